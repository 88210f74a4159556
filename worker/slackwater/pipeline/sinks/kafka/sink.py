"""A topic of Kafka: the rows of a batch are sent by an idempotent producer, each at least once.

The topic holds no marks: Kafka's own exactly-once needs transactions. So a partition is read from the group's
committed offset, which is committed after all records of the batch are acknowledged. A worker that dies in
between has its batch written again, and so may one that was suspended for long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from slackwater.kafka.errors import (
    AuthorizationError,
    InvalidRecordError,
    KafkaError,
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)
from slackwater.pipeline.sinks.kafka.limits import Limits
from slackwater.pipeline.sinks.kafka.options import TopicConnection
from slackwater.pipeline.sinks.kafka.records import Record, records_of
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError, StartError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka import KafkaProducer
    from slackwater.kafka.admin import ConfigEntry, KafkaAdmin
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range

_DEFAULT_MESSAGE_BYTES = 1_048_588
"""Kafka's default of max.message.bytes."""
_TIMEOUT_MS = 10_000
"""Of a request about the topic."""


class KafkaSink:
    """Writes to ``topic``, which must exist.

    Args:
        group_id: the consumer group, for the client's id.
        topic: the target.
        connection: how its cluster is reached.
        group_cluster: the id of the group's cluster, asked for if the group reads a topic of this name, but
            its options name brokers: the topic must be in another cluster then. None: it need not be asked.
    """

    def __init__(
        self,
        group_id: str,
        topic: str,
        connection: TopicConnection,
        *,
        group_cluster: Callable[[], str | None] | None = None,
    ) -> None:
        self._topic, self._connection, self._group_cluster = topic, connection, group_cluster
        self._client_id = f"{group_id}-sink"
        self._producer: KafkaProducer | None = None
        self._limits: Limits | None = None
        """None: to be read."""
        self._was_refused = False
        """Whether the brokers have refused a record, whose topic's settings this client may not read."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """There are none: a partition is read from its committed offset. Without partitions, in a worker that
        stands by, it connects for the first rows. Raises SinkError, ConfigError."""
        if not partitions:
            self._limits = self._limits or self._read_limits()
            try:
                self._connected()
            except KafkaError as exc:
                raise self._error(exc) from exc
        return {}

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedRows:
        """Makes records of the rows, and sends nothing. Raises HandlerError for a wrong column, RecordsError
        for a record that the topic cannot take, SinkError, ConfigError."""
        staged = StagedRows(self._commit, rows, ranges)
        staged.prepared = records_of(rows)
        if staged.prepared:
            self._check(staged.prepared, rows)
        return staged

    def _check(self, records: list[Record], rows: pa.Table) -> None:
        """Raises RecordsError by the topic's settings as they are now: they may have been raised."""
        if self._limits is not None:
            try:
                self._limits.check(records, rows, self._topic)
            except RecordsError:
                self._limits = None
            else:
                return
        self._limits = self._read_limits()
        self._limits.check(records, rows, self._topic)

    def _commit(self, staged: StagedRows) -> None:
        """Sends the records, and returns when all are acknowledged. Raises RecordsError, SinkError; some may
        be in the topic then."""
        records = staged.prepared if staged.prepared is not None else records_of(staged.rows)
        if not records:
            return
        try:
            producer = self._connected()
            try:
                sent = [producer.send(self._topic, value, key, headers) for key, value, headers in records]
            finally:
                producer.flush()  # also before it is known whether all can be sent: nothing is left behind
        except KafkaError as exc:
            raise self._error(exc) from exc
        for record in sent:
            if record.exception is not None:
                raise self._error(record.exception) from record.exception

    def _connected(self) -> KafkaProducer:
        if self._producer is None:
            from slackwater.kafka import KafkaProducer

            options = self._connection.producer_options(self._client_id)
            most = self._limits.max_batch_bytes if self._limits is not None else None
            if most is not None:
                batch_size = self._connection.producer_config().batch_size
                options["batch_size"] = max(1, min(batch_size, most))
            self._producer = KafkaProducer(**options)
        return self._producer

    def _error(self, exc: KafkaError) -> RecordsError | SinkError:
        what = (
            f"the sink cannot write to the topic {self._topic} at {self._connection.bootstrap_servers}: {exc}"
        )
        if isinstance(exc, MessageSizeTooLargeError | InvalidRecordError):
            # The topic's settings may have changed: `stage` reads them again, and finds the record.
            self._limits, self._was_refused = None, True
            return RecordsError(what)
        hint = "; grant this client WRITE on the topic" if isinstance(exc, AuthorizationError) else ""
        return SinkError(f"{what}{hint}. The batch is not committed; some of its records may be in the topic")

    # ---- the topic

    def _admin(self) -> KafkaAdmin:
        from slackwater.kafka import KafkaAdmin

        return KafkaAdmin(
            self._connection.bootstrap_servers,
            security=self._connection.security,
            client_id=self._client_id,
            request_timeout_ms=_TIMEOUT_MS,
        )

    def _read_limits(self) -> Limits:
        try:
            with self._admin() as admin:
                self._check_cluster(admin)
                settings = self._settings(admin)
        except UnknownTopicOrPartitionError:
            raise SinkError(self._missing()) from None
        except KafkaError as exc:
            raise SinkError(
                f"the sink cannot read the settings of the topic {self._topic} at "
                f"{self._connection.bootstrap_servers}: {exc}"
            ) from exc
        size = settings.get("max.message.bytes")
        most = None if size is None else size.number
        if most is None and self._was_refused:
            most = _DEFAULT_MESSAGE_BYTES
        policy = settings.get("cleanup.policy")
        return Limits(
            self._connection.producer_config().codec,
            self._connection.max_request_bytes,
            most,
            needs_keys=policy is not None and "compact" in (policy.value or ""),
        )

    def _settings(self, admin: KafkaAdmin) -> Mapping[str, ConfigEntry]:
        """The topic's settings; none where this client may not read them."""
        from slackwater.kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        try:
            return admin.describe_configs([resource]).unwrap()[resource]
        except AuthorizationError:
            return {}

    def _check_cluster(self, admin: KafkaAdmin) -> None:
        """Raises ConfigError where the group would read what it writes."""
        if self._group_cluster is None:
            return
        cluster = admin.describe_cluster().cluster_id
        if cluster is not None and cluster == self._group_cluster():
            raise ConfigError(
                f"{self._topic} is also a topic that the group reads or its dead-letter topic: "
                "sink.options.bootstrap.servers leads to the group's own cluster; choose another topic",
                field="sink.topic",
            )

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Raises SinkError: records cannot be removed from the middle of a log."""
        raise SinkError(
            f"the sink cannot remove records from the topic {self._topic}: Kafka can only append to it. To "
            "write records again behind those, set the group's committed offsets back with "
            "kafka-consumer-groups.sh --reset-offsets"
        )

    def probe(self) -> str:
        """Checks that the topic exists and that this client may write to it, and writes nothing. Returns
        where. Raises StartError, ConfigError."""
        where = f"{self._topic} at {self._connection.bootstrap_servers}"
        try:
            with self._admin() as admin:
                self._check_cluster(admin)
                count, may_write = self._described(admin)
        except UnknownTopicOrPartitionError:
            raise StartError(self._missing()) from None
        except KafkaError as exc:
            raise StartError(f"the sink cannot reach the topic {where}: {exc}") from exc
        if not may_write:
            raise StartError(
                f"the sink cannot write to the topic {where}: grant this client WRITE on the topic"
            )
        return f"the topic {where} ({count} partitions)"

    def _described(self, admin: KafkaAdmin) -> tuple[int, bool]:
        """How many partitions it has, and whether this client may write, as far as the brokers say."""
        from slackwater.kafka.admin import TopicOperation

        topic: Any = admin.describe_topics([self._topic], operations=True).unwrap()[self._topic]
        may_write = topic.operations is None or TopicOperation.WRITE in topic.operations
        return len(topic.partitions), may_write

    def _missing(self) -> str:
        where = self._connection.bootstrap_servers
        return f"no topic {self._topic} at {where}: create it, or correct sink.topic"

    def close(self) -> None:
        """Closes the producer."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
