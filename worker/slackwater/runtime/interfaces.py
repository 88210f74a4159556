"""Interfaces that the worker's loop uses: engine, sink, consumer. Engines and sinks are in ``pipeline``.

An engine is used by one thread at a time, but not always by the same one. Errors that carry an exit
code of their own are :mod:`slackwater.runtime.errors`; any other exception of ``transform`` counts as
the handler's and is tried again, any other of a sink as the sink's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from slackwater.handler import Batch
    from slackwater.kafka.records import ConsumerRecord
    from slackwater.kafka.structs import MembershipSnapshot, OffsetAndMetadata, SkippedRecords, TopicPartition

ERROR_COLUMN = "_error"
"""Name of the output column (string, may be left out) that sends a row to the dead-letter topic."""

PLACE_COLUMNS = ("topic", "partition", "offset")
"""Columns of the input that the output must keep: where each row came from."""


@runtime_checkable
class EngineResidentRows(Protocol):
    """A handler's rows that stay where the engine has made them, for a sink that writes them there."""

    counts: Mapping[TopicPartition, int]
    """How many rows there are of each partition, without the rejected ones."""
    to_check: pa.Table
    """Positions and errors of the rejected rows, or of all rows if some may carry a position that is no
    record's."""
    column_names: Sequence[str]

    @property
    def num_rows(self) -> int: ...

    def of(self, partitions: Collection[TopicPartition]) -> EngineResidentRows:
        """The rows whose positions are in ``partitions``."""

    def with_rejected(self, rejected: pa.Table) -> EngineResidentRows:
        """These rows, and rejected ones: their positions and errors."""

    def places(self) -> pa.Table:
        """The positions of the rows."""

    def at(self, places: pa.Table, numbers: Sequence[int]) -> EngineResidentRows:
        """The rows at those of ``places`` that have these ``numbers``."""


class _HandlerEngine(Protocol):
    """Runs the user's handler."""

    def start(self) -> None:
        """Loads the handler and what it runs on.

        Raises ``HandlerLoadError`` where the handler cannot be loaded (exit 2) and ``StartError``
        where what it runs on cannot be had (exit 1).
        """

    def warm_up(self) -> None:
        """Calls the handler's ``setup``, and does in advance what the first batch would otherwise wait for.
        May take seconds."""

    def refresh(self) -> None:
        """Calls the handler's ``refresh``. Not while the handler runs. Raises ``RefreshFailed`` where the
        handler can go on with what it has, and WorkerError where it cannot."""

    def close(self) -> None:
        """Releases what ``start`` acquired. Called once, also when ``start`` failed or a call still runs."""


class Engine(_HandlerEngine, Protocol):
    """Runs the user's handler on a table of polled records."""

    def transform(self, table: pa.Table, batch: Batch) -> pa.Table:
        """The handler's output for ``table`` (schema ``slackwater.kafka.records.ARROW_SCHEMA``), or
        EngineResidentRows in its place.

        The table holds the records of all partitions of one poll; ``batch``: what the handler is told of
        them. Raises ``HandlerError`` for what
        will fail again on every try, such as a result that is no table; other exceptions are tried again.
        """


@runtime_checkable
class RecordEngine(_HandlerEngine, Protocol):
    """Runs a handler that takes records one by one, not a table."""

    def transform_records(self, records: list[ConsumerRecord], batch: Batch) -> pa.Table:
        """The handler's output for the records of all partitions of one poll, in the partitions' order."""


AnyEngine = Engine | RecordEngine


@dataclass(frozen=True)
class Range:
    """The offsets of one partition that a batch covers: from ``start`` up to ``end``, not included.

    ``topic_id``: of the topic that they belong to; "": not known. ``mark``: the table's mark for this topic
    and partition, as far as the writer knows; None: none. It is at most ``start``, and less where the offsets
    in between have no records.
    """

    topic_id: str
    start: int
    end: int
    mark: int | None


class SinkFencedError(Exception):
    """A mark is not where the writer has left it: another process has written the partition since.

    Nothing of the batch was written.
    """


class Staged(Protocol):
    """A batch's rows, not yet visible. At most one of :meth:`publish` and :meth:`discard` is called, once."""

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Leaves rows and ranges of ``partitions`` out of what :meth:`publish` writes.

        Called by the main thread, not while ``publish`` runs. Must return at once: the work is left to
        ``publish``.
        """

    def publish(self) -> None:
        """Writes the rows and moves each range's mark to its end, in one commit of the table.

        Raises ``SinkFencedError`` where the table has a mark that is not the range's ``mark``; no row is
        written then, and what may be left in the storage is never part of the table. Raises ``SinkError``,
        OSError or ``RecordsError`` where it cannot write; the rows may have been written then, with their
        marks.
        """

    def discard(self) -> None:
        """Removes what is staged. Raises nothing; what it cannot remove is never published."""


class Sink(Protocol):
    """A table that holds, beside its rows, a mark for each (group, topic, partition): the next offset.

    Rows and marks change in one commit, which the table refuses if a mark has moved since the writer read it.
    So a replay writes nothing twice, and a former owner of a partition writes nothing, however long it was
    suspended and at which step. Neither depends on Kafka's committed offset.

    All methods are called by one thread at a time, and may take seconds.
    """

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks of ``partitions``, as they are in the table now, by topic id.

        A topic that was deleted and created again has another id, and so a mark of its own. Partitions
        without a mark may be left out. Called after each assignment, and after a ``SinkFencedError``; with no
        partitions by a worker that stands by, so that later calls are quick. Raises ``SinkError`` or
        OSError.
        """

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> Staged:
        """Prepares a batch to be published. ``ranges``: its partitions, each with at least one record.

        Every row carries ``topic``, ``partition`` and ``offset`` of a record in ``ranges``; there may be no
        rows. Raises ``RecordsError`` where the table cannot hold a value, ``SinkError`` or OSError where it
        cannot write, ``SinkFencedError`` where a mark is not the range's; leaves nothing behind then. A fault
        of records that only ``publish`` can find is found by later calls of ``stage``, too, until a batch is
        published: the search for the records at fault stages parts of the batch and discards them.
        """

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Removes rows so that they are written again, and lowers the marks, in one commit. A table keeps
        rows whose second write leaves it as it is.

        ``starts``: by partition, the topic id and the offset from which on. A mark that is lower already
        stays as it is. Returns how many rows were removed. For a group without members: a worker that is at
        work is fenced. Raises ``SinkError`` or OSError; nothing has changed then.
        """

    def probe(self) -> str:
        """Checks that it can write, leaves nothing visible, and says where. Raises ``SinkError``."""


@runtime_checkable
class SinkOfTables(Sink, Protocol):
    """A sink of several tables."""

    @property
    def rows_written(self) -> Mapping[str, int]:
        """By the name of each table that is known, how many rows this process has written to it."""


class Columns(Protocol):
    """One partition's records of a poll; ``slackwater.kafka.RecordColumns`` is one."""

    next_offset: int

    @property
    def first_offset(self) -> int: ...

    def __len__(self) -> int: ...

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch: ...

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]: ...

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        """The values of the header ``name`` in ``rows``, which ascend."""


class Consumer(Protocol):
    """The part of ``slackwater.kafka.KafkaConsumer`` that the loop uses. All calls but
    :meth:`end_poll` come from one thread."""

    def replace_member(self, member_id: str, epoch: int | None) -> None:
        """The next join is in the place of this process, which is the member now."""

    def expect_rebalance(self) -> None:
        """Members are about to join or to leave."""

    def end_poll(self) -> None:
        """The poll under way, or the next, waits no longer. From any thread, or a signal handler."""

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

    def position_confirmed(self, partition: TopicPartition) -> bool:
        """Whether the position is known and, where it has a leader epoch, confirmed by the leader."""

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """The id of the topic that the partition's position belongs to."""

    def cluster_id(self) -> str:
        """The id of the Kafka cluster; "": not known."""

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

    def close(self, *, timeout_ms: float | None = None, leave_group: bool | None = None) -> None: ...


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
