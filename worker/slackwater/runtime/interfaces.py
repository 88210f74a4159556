"""Interfaces that the worker's loop uses: engine, sink, consumer. Engines and sinks are in ``pipeline``.

An engine is used by one thread at a time, but not always by the same one. Errors that carry an exit
code of their own are :mod:`slackwater.runtime.errors`; any other exception of ``transform`` counts as
the handler's and is tried again, any other of a sink as the sink's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from slackwater.kafka.records import ConsumerRecord
    from slackwater.kafka.structs import (
        MembershipSnapshot,
        OffsetAndMetadata,
        SkippedRecords,
        TopicPartition,
    )

ERROR_COLUMN = "_error"
"""Name of the output column (string, may be left out) that sends a row to the dead-letter topic."""

PLACE_COLUMNS = ("topic", "partition", "offset")
"""Columns of the input that the output must keep: where each row came from."""


class Engine(Protocol):
    """Runs the user's handler on a table of polled records."""

    def start(self) -> None:
        """Loads the handler and what it runs on.

        Raises ``HandlerLoadError`` where the handler cannot be loaded (exit 2) and ``StartError``
        where what it runs on cannot be had (exit 1).
        """

    def warm_up(self) -> None:
        """Does in advance what the first batch would otherwise wait for. May take seconds."""

    def transform(self, table: pa.Table) -> pa.Table:
        """The handler's output for ``table`` (schema ``slackwater.kafka.records.ARROW_SCHEMA``).

        The table holds the records of all partitions of one poll. Raises ``HandlerError`` for what
        will fail again on every try, such as a result that is no table; other exceptions are tried again.
        """

    def close(self) -> None:
        """Releases what ``start`` acquired. Called once, also when ``start`` failed or a call still runs."""


@runtime_checkable
class RecordEngine(Protocol):
    """An :class:`Engine` whose handler takes records one by one, not a table."""

    def start(self) -> None: ...

    def warm_up(self) -> None: ...

    def transform_records(self, records: list[ConsumerRecord]) -> pa.Table:
        """The handler's output for the records of all partitions of one poll, in the partitions' order."""

    def close(self) -> None: ...


AnyEngine = Engine | RecordEngine


class StagedGoneError(Exception):
    """What this process had staged of a partition is gone: a later owner has claimed the partition."""


class Staged(Protocol):
    """One partition's part of a batch, written but not yet visible. Exactly one of the calls is made."""

    def publish(self) -> None:
        """Makes it visible, in place of what an earlier try with this start offset has left.

        Visible or not is decided by one atomic operation that fails when another process has claimed the
        partition (:meth:`Sink.claim`) since this was staged: raises ``StagedGoneError``, and changes nothing.
        Must be quick (a rename).
        """

    def discard(self) -> None:
        """Removes it. Never raises for something that is already gone."""


class Sink(Protocol):
    """Stores a batch's output, a partition at a time."""

    def claim(self, partitions: Collection[TopicPartition]) -> None:
        """Takes ``partitions`` that were just assigned: all that was staged of them so far, by whichever
        process, can not be published any more.

        The worker calls it once for each assignment (a first one, a return, a takeover, one taken back), when
        its own membership is in force and before it stages anything. Together with the fence that leaves a
        former owner nothing that it could publish, however long it was stopped and at which step: what it
        staged before the claim is gone, and what it stages after is never fenced, since the broker refuses
        its commits. Raises ``SinkError`` or OSError; nothing of ``partitions`` may be staged then.
        """

    def topic_ids(self, topic: str) -> Collection[str]:
        """The ids of the topics of this name that it holds rows of, as far as :meth:`identify` gave them.

        Raises ``SinkError`` or OSError.
        """

    def identify(self, partition: TopicPartition, topic_id: str, *, continues: bool) -> None:
        """What is staged of ``partition`` from now on is of the topic with this id ("": not known). It is
        never published in place of rows of another topic of that name.

        ``continues``: a worker's commit says that rows of this very partition were delivered before. Looks
        nothing up and raises nothing: that is for the first ``stage``.
        """

    def stage(self, topic: str, partition: int, start_offset: int, table: pa.Table) -> Staged:
        """Writes ``table`` where no reader sees it, durably enough to be published by a rename.

        Called also with no rows, because then a publish removes what an earlier try has left.
        ``start_offset`` names the result: the partition's committed offset before the batch.
        Raises ``SinkError`` or OSError, and ``StagedGoneError`` where another process claims the partition
        meanwhile; leaves nothing behind.
        """

    def probe(self) -> str:
        """Writes something, makes it visible to nobody, removes it, and says where. Raises ``SinkError``."""


class Columns(Protocol):
    """One partition's records of a poll; ``slackwater.kafka.RecordColumns`` is one."""

    next_offset: int

    @property
    def first_offset(self) -> int: ...

    def __len__(self) -> int: ...

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch: ...

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]: ...


class Consumer(Protocol):
    """The part of ``slackwater.kafka.KafkaConsumer`` that the loop uses. All calls come from one thread."""

    def subscribe(
        self, topics: Collection[str] = (), pattern: str | None = None, *, listener: Any
    ) -> None: ...

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> Mapping[TopicPartition, Columns]: ...

    def assignment(self) -> Collection[TopicPartition]: ...

    def pause(self, *partitions: TopicPartition) -> None: ...

    def resume(self, *partitions: TopicPartition) -> None: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def highwater(self, partition: TopicPartition) -> int | None: ...

    def current_lag(self, partition: TopicPartition) -> int | None: ...

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int: ...

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """The id of the topic that the partition's position belongs to."""

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = False) -> None:
        """Asks for new metadata."""

    def skipped_records(self) -> list[SkippedRecords]:
        """What was skipped since the last call."""

    def committed(self, partition: Any, metadata: bool = False, timeout_ms: int | None = None) -> Any:
        """Of one partition its committed offset, of several a mapping of them."""

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int | None = None
    ) -> None: ...

    def membership(self) -> MembershipSnapshot: ...

    def close(self, *, timeout_ms: float | None = None) -> None: ...


class StandbyConsumer(Consumer, Protocol):
    """A consumer that can get ready beside the one that is the member."""

    def stand_by(
        self, topics: Collection[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        """Connects to all that it will need, and the group is not joined."""

    def prefetch(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions ahead, from these offsets, and no others."""

    def take_over(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int | None = None
    ) -> None:
        """Joins, and begins at ``offsets`` where they name a partition of its first assignment, if that is of
        the ``generation``.
        """
