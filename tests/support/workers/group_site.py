"""The base of every site: a topic, the group that reads it, a handler, worker processes, and their output.

A site for a kind of test is built from it: it holds a :class:`GroupSite` or extends it by parts of its own
(a load, orders for takeovers, a record of what was produced). Topics, offsets and output are read with
libraries that share no code with Slackwater (librdkafka, pyarrow).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import confluent_kafka
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from slackwater.kafka import KafkaAdmin
from slackwater.kafka.admin.results import GroupDescription
from tests.support.peers.librdkafka import StoredRecord, read_topic, write_topic
from tests.support.waiting import WAIT_S, wait_until
from tests.support.workers.process import WorkerProcess


class GroupTopic:
    """A topic and the group that reads it, by librdkafka.

    Attributes:
        topic, group: their names.
        partitions: how many the topic has.
        ends: the end offset of each partition, as far as it was produced by :meth:`write`.
    """

    def __init__(self, bootstrap: str, topic: str, group: str, partitions: int) -> None:
        self.bootstrap, self.topic, self.group, self.partitions = bootstrap, topic, group, partitions
        self.ends = dict.fromkeys(range(partitions), 0)

    @functools.cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    # --- topics -----------------------------------------------------------------------------------

    def create_topics(self, config: Mapping[str, str] | None = None, /, **partitions: int) -> None:
        """Creates each topic with so many partitions and the settings ``config``."""
        topics = [
            NewTopic(topic, count, replication_factor=1, config=dict(config or {}))
            for topic, count in partitions.items()
        ]
        for created in self._admin.create_topics(topics).values():
            created.result(WAIT_S)

    def create_topic(self) -> None:
        """Creates the group's topic."""
        self.create_topics(**{self.topic: self.partitions})

    def recreate_topic(self) -> None:
        """Deletes the topic and creates an empty one of the same name."""
        self._admin.delete_topics([self.topic], operation_timeout=30)[self.topic].result(WAIT_S)

        def created() -> bool:
            try:
                self.create_topic()
            except confluent_kafka.KafkaException as exc:  # the old topic is still being deleted
                if exc.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False
            return True

        wait_until(created, f"the new topic {self.topic}")
        self.ends = dict.fromkeys(range(self.partitions), 0)

    def delete_records(self, partition: int, before: int) -> None:
        """Moves the start of the partition's log to the offset ``before``, as retention does."""
        place = confluent_kafka.TopicPartition(self.topic, partition, before)
        for deleted in self._admin.delete_records([place]).values():
            assert deleted.result(WAIT_S).low_watermark == before

    def write(
        self, records: Iterable[tuple[int, bytes]], *, headers: dict[str, bytes] | None = None, **options: Any
    ) -> None:
        """Stores (partition, value) in their order. ``options``: of librdkafka's producer."""
        stored = list(records)
        write_topic(self.bootstrap, self.topic, stored, headers=headers, **options)
        for partition, _ in stored:
            self.ends[partition] += 1

    # --- the group --------------------------------------------------------------------------------

    def committed(self) -> dict[int, int]:
        """The group's committed offset of each partition, 0 where there is none."""
        options = {"bootstrap.servers": self.bootstrap, "group.id": self.group}
        consumer = confluent_kafka.Consumer(options)
        try:
            return self._committed(consumer)
        finally:
            consumer.close()

    def _committed(self, consumer: confluent_kafka.Consumer) -> dict[int, int]:
        places = [confluent_kafka.TopicPartition(self.topic, partition) for partition in self.ends]
        committed = consumer.committed(places, WAIT_S)
        return {place.partition: max(0, place.offset) for place in committed}

    def until_committed(
        self, offsets: Mapping[int, int] | None = None, timeout_s: float = WAIT_S, why: Any = ""
    ) -> None:
        """Waits until the group has committed ``offsets``; default: all that was produced.

        ``timeout_s``: how long it may commit nothing. ``why()`` adds the workers' state to the error.
        """
        options = {"bootstrap.servers": self.bootstrap, "group.id": self.group}
        consumer = confluent_kafka.Consumer(options)
        try:
            last: dict[int, int] = {}

            def changed(before: dict[int, int]) -> bool:
                last.update(self._committed(consumer))
                return last != before

            while last != (self.ends if offsets is None else offsets):
                wait_until(
                    functools.partial(changed, dict(last)),
                    lambda: (last, offsets or self.ends, why() if why else ""),
                    timeout_s,
                    every_s=0.05,
                )
        finally:
            consumer.close()

    def commit(self, offsets: Mapping[int, int], leader_epoch: int = -1) -> None:
        """Sets offsets of the group, which has no members, as kafka-consumer-groups.sh does."""
        places = [
            confluent_kafka.TopicPartition(self.topic, partition, offset, leader_epoch=leader_epoch)
            for partition, offset in offsets.items()
        ]
        wanted = confluent_kafka.ConsumerGroupTopicPartitions(self.group, places)
        errors: list[Any] = []

        def stored() -> bool:
            """A coordinator learns of a new topic a little later than the broker that created it."""
            (changed,) = self._admin.alter_consumer_group_offsets([wanted]).values()
            partitions = changed.result(WAIT_S).topic_partitions
            errors[:] = [place.error for place in partitions if place.error is not None]
            unknown = confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
            assert all(error.code() == unknown for error in errors), errors
            return not errors

        wait_until(stored, lambda: errors)

    def describe(self) -> GroupDescription:
        """DescribeGroups, by Slackwater's own admin client."""
        with KafkaAdmin(self.bootstrap) as admin:
            return admin.describe_groups([self.group]).unwrap()[self.group]

    def remove_members(self, *instances: str) -> None:
        """Takes static members out of the group, as the operator does when it suspends one."""
        with KafkaAdmin(self.bootstrap) as admin:
            admin.remove_members(self.group, instances)


class Output:
    """The Parquet files of a sink that count: those whose name does not begin with a dot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[Path]:
        """The files of rows, in the order of their names."""
        return sorted(path for path in self.folder.glob("*.parquet") if not path.name.startswith("."))

    def rows(self, *columns: str) -> list[dict[str, Any]]:
        """All rows, file by file, each with its file's name as ``file``."""
        return [
            {**row, "file": path.name}
            for path in self.files()
            for row in pq.read_table(path, columns=list(columns) or None).to_pylist()
        ]

    def texts(self) -> list[str]:
        """The column ``text`` of all rows."""
        return [row["text"] for row in self.rows("text")]

    def offsets(self, partitions: Iterable[int]) -> dict[int, list[int]]:
        """The offsets of all rows by partition, in order; an offset that is written twice is twice here."""
        offsets: dict[int, list[int]] = {partition: [] for partition in partitions}
        for row in self.rows("partition", "offset"):
            offsets[row["partition"]].append(row["offset"])
        return {partition: sorted(values) for partition, values in offsets.items()}


class GroupSite(GroupTopic):
    """A topic, its group, a handler, the output, and the group's worker processes, which end when it is left.

    ``handler``: the source of the module ``site_handler``. ``dead_letters``: the partitions of the topic for
    dead letters; 0: the site has none.

    Attributes:
        out: where the sink writes; read it through ``output``.
        workers: every worker that was started, in this order.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *,
        handler: str,
        partitions: int,
        dead_letters: int = 0,
    ) -> None:
        name = f"site-{uuid4().hex[:8]}"
        super().__init__(bootstrap, name, f"group-{name}", partitions)
        self.folder = folder
        self.out = folder / "out"
        self.output = Output(self.out)
        self.letters_topic = f"{name}.dlq" if dead_letters else ""
        self.workers: list[WorkerProcess] = []
        (folder / "handlers").mkdir(parents=True)
        self.write_handler("site_handler", handler)
        self.create_topic()
        if dead_letters:
            self.create_topics(**{self.letters_topic: dead_letters})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills the workers that still run."""
        for worker in self.workers:
            worker.__exit__(None, None, None)

    def write_handler(self, module: str, source: str) -> None:
        """Writes a module that workers can name as their handler's."""
        (self.folder / "handlers" / f"{module}.py").write_text(source)

    def config(self, **changes: Any) -> dict[str, Any]:
        """A worker's configuration; a change to None takes the field away."""
        document = {
            "groupId": self.group,
            "topics": [self.topic],
            "bootstrapServers": self.bootstrap,
            "handler": "site_handler:transform",
            "handlerPath": [str(self.folder / "handlers")],
            "engine": "python",
            "sink": {"format": "parquet", "path": str(self.out)},
            "deadLetterTopic": self.letters_topic or None,
            **changes,
        }
        return {field: value for field, value in document.items() if value is not None}

    def start_worker(
        self, instance: str, config: Mapping[str, Any], *, pod: str = "", **environment: str
    ) -> WorkerProcess:
        """Starts a worker process as the member ``instance``; ``pod``: under this pod's name."""
        folder = self.folder / "workers" / f"{len(self.workers)}-{pod or instance}"
        worker = WorkerProcess(folder, instance, dict(config), pod=pod, **environment)
        self.workers.append(worker)
        return worker

    def why(self) -> str:
        """The state of the last workers, for an error."""
        return "\n".join(worker.why("") for worker in self.workers[-3:])

    def dead_letters(self) -> list[StoredRecord]:
        """All dead letters."""
        return list(read_topic(self.bootstrap, self.letters_topic))
