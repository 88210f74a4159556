"""What a sink with marks must do, as tests for pytest: each record is in its table once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.interfaces import Range, Sink, SinkFencedError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.runtime.interfaces import Staged

A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
OLD, NEW = "nxyNPlt6TCGPAAEjRWeJqw", "-_xyNPlt6TCGPAAEjRWeJq"
"""Ids of two topics of the same name."""
RECORDS = 8
"""Of each partition."""


class SinkContract:
    """The tests of a sink that keeps marks (:class:`slackwater.sinks.Sink`).

    A subclass whose name begins with ``Test`` runs them under pytest. It implements :meth:`sink` and
    :meth:`stored`; each test is to have a table of its own, which is not there yet. A sink without ``rewind``
    or ``probe`` skips their tests. docs/how-to/tables/write-a-sink.md has an example.
    """

    groups: Sequence[str] = ("g/flights", "g/flights/", "/", "G", "g ", "ü%2F", "'", '"', "%s")
    """Ids of other groups, whose marks are to be their own."""
    rewinds = True
    """False: where rows change others, ``rewind`` removes none: it raises, or has them applied again."""

    def sink(self, group_id: str = "g") -> Sink:
        """A new sink of this group for the test's table, as another worker makes it."""
        raise NotImplementedError

    def stored(self) -> Counter[tuple[int, int]]:
        """How many rows the table has of each (partition, offset), read without the sink; empty where there
        is no table."""
        raise NotImplementedError

    def rows(self, offsets: Sequence[int], partition: int = 0) -> pa.Table:
        """Rows as a handler gives them, one for each of these offsets of the topic ``flights``. To be
        replaced where the sink needs other columns."""
        import pyarrow as pa

        n = len(offsets)
        return pa.table(
            {
                "topic": pa.array([A.topic] * n, pa.string()),
                "partition": pa.array([partition] * n, pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "carrier": pa.array(["UA"] * n, pa.string()),
            }
        )

    def trace(self) -> object:
        """What is in the storage, to be compared: what must leave nothing must not change it. To be replaced
        where more can be seen than rows, such as files."""
        return self.stored()

    # ---- rows and marks are one commit

    def test_staged_rows_are_invisible_until_published(self) -> None:
        sink = self.sink()
        assert marks_of(sink) == {A: 0, B: 0}
        staged = self.stage(sink, {A: 0, B: 0}, 5)
        assert not self.stored(), "staged rows are visible"
        staged.publish()
        assert self.stored() == places(A, range(5)) + places(B, range(5))
        assert marks_of(self.sink()) == {A: 5, B: 5}, "another worker does not find the marks"

    def test_an_offset_that_is_set_back_writes_nothing_twice(self) -> None:
        """The batches of the replay have other ends."""
        sink = self.sink()
        for start in range(0, RECORDS, 4):
            self.stage(sink, {A: start}, 4).publish()
        again = self.sink()
        assert marks_of(again)[A] == RECORDS, "a worker begins there"
        with refused("another process has written flights-0"):
            again.stage(self.rows(range(3)), {A: Range(OLD, 0, 3, None)}).publish()
        assert self.stored() == places(A, range(RECORDS))

    def test_a_former_owner_changes_nothing(self) -> None:
        """It was stopped between staging and publishing, before the first mark and after one."""
        for start in (0, 4):
            former, successor = self.sink(), self.sink()
            marks_of(former), marks_of(successor)
            late = self.stage(former, {A: start, B: start}, 2)
            self.stage(successor, {A: start}, 4).publish()
            with refused():
                late.publish()
            assert self.stored() == places(A, range(start + 4)) + places(B, range(start))
            assert marks_of(former) == {A: start + 4, B: start}, "marks are read anew after a refusal"
            self.stage(former, {B: start}, 4).publish()

    def test_three_workers_at_once_write_each_record_once(self) -> None:
        """They create the table at once, and each writes all partitions until it is refused."""
        barrier = threading.Barrier(3)

        def work(size: int) -> None:
            sink = self.sink()
            barrier.wait()
            at = marks_of(sink)
            while min(at.values()) < RECORDS:
                with suppress(SinkFencedError):
                    self.stage(sink, at, size).publish()
                at = marks_of(sink)

        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(work, size) for size in (1, 2, 3)]:
                done.result()
        assert self.stored() == places(A, range(RECORDS)) + places(B, range(RECORDS))

    def test_what_is_dropped_is_neither_written_nor_marked(self) -> None:
        sink = self.sink()
        staged = self.stage(sink, {A: 0, B: 0}, 5)
        staged.drop([A, TopicPartition("other", 0)])
        staged.publish()
        assert self.stored() == places(B, range(5))
        assert marks_of(sink) == {A: 0, B: 5}
        before = self.trace()
        staged = self.stage(sink, {A: 0, B: 5}, 3)
        staged.drop([A])
        staged.drop([B])
        staged.publish()
        assert self.trace() == before, "a batch of which all was dropped has changed the table"
        assert marks_of(sink) == {A: 0, B: 5}

    def test_a_batch_that_is_discarded_leaves_nothing(self) -> None:
        sink = self.sink()
        marks_of(sink)
        before = self.trace()
        self.stage(sink, {A: 0}, 5).discard()
        assert self.trace() == before
        assert marks_of(sink) == {A: 0, B: 0}

    def test_a_batch_without_rows_moves_the_mark(self) -> None:
        """Else a former owner could add the rows of these records."""
        sink = self.sink()
        self.put(sink, [], 0, 1)
        self.put(sink, [1], 1, 2)
        self.put(sink, [], 2, 3)
        assert marks_of(sink) == {A: 3, B: 0}
        assert self.stored() == places(A, [1])
        with refused():
            sink.stage(self.rows([2]), {A: Range(OLD, 2, 3, 2)}).publish()
        assert self.stored() == places(A, [1])

    def test_groups_and_topics_made_anew_have_marks_of_their_own(self) -> None:
        sink = self.sink()
        self.put(sink, [0, 1], 0, 2)
        self.put(sink, [0], 0, 1, NEW)
        self.put(sink, [0, 1, 2], 0, 3, "")
        for number, group in enumerate(self.groups):
            self.put(self.sink(group), [5], 5 + number, 6 + number)
        own = sink.marks([A, B])
        assert own[A] == {OLD: 2, NEW: 1, "": 3}
        assert not own.get(B)
        for number, group in enumerate(self.groups):
            assert self.sink(group).marks([A])[A] == {OLD: 6 + number}, f"the marks of the group {group!r}"
        assert not any(sink.marks([]).values())

    # ---- rewind and probe

    def test_rows_are_written_again_from_the_offset_that_is_named(self) -> None:
        former, sink = self._rewinding(), self.sink()
        for start in range(0, RECORDS, 4):
            self.stage(former, {A: start, B: start}, 4).publish()
        assert sink.rewind({A: (OLD, 3), B: (OLD, RECORDS)}) == RECORDS - 3
        assert marks_of(sink) == {A: 3, B: RECORDS}
        assert self.stored() == places(A, range(3)) + places(B, range(RECORDS))
        with refused():
            self.stage(former, {A: RECORDS}, 1, RECORDS + 1).publish()
        self.stage(sink, {A: 3}, RECORDS).publish()
        assert self.stored() == places(A, range(RECORDS)) + places(B, range(RECORDS))
        before = self.trace()
        assert sink.rewind({}) == sink.rewind({A: (OLD, RECORDS)}) == sink.rewind({A: (NEW, 0)}) == 0
        assert self.trace() == before, "a rewind of nothing has changed the table"
        assert sink.rewind({A: (OLD, 0), B: (OLD, 0)}) == 2 * RECORDS
        assert marks_of(sink) == {A: 0, B: 0}
        sink.stage(self.rows([0]), {A: Range(OLD, 0, 1, 0)}).publish()
        assert self.stored() == places(A, [0])

    def test_a_rewind_of_marks_without_rows_moves_the_marks(self) -> None:
        sink = self._rewinding()
        assert sink.rewind({}) == sink.rewind({A: (OLD, 0)}) == 0
        self.put(sink, [], 0, 1)
        assert sink.rewind({A: (OLD, 0)}) == 0
        assert sink.marks([A])[A] == {OLD: 0}
        with refused():
            sink.stage(self.rows([1]), {A: Range(OLD, 1, 2, 1)}).publish()
        sink.stage(self.rows([0]), {A: Range(OLD, 0, 1, 0)}).publish()
        assert self.stored() == places(A, [0])

    def test_the_probe_leaves_nothing(self) -> None:
        sink = self.sink()
        if not hasattr(sink, "probe"):
            raise SkipTest("the sink has no probe")
        marks_of(sink)
        before = self.trace()
        assert sink.probe(), "it does not say where the table is"
        assert self.trace() == before
        self.put(sink, [0], 0, 1)
        before = self.trace()
        sink.probe()
        assert self.trace() == before
        assert marks_of(sink)[A] == 1

    # ---- batches

    def stage(
        self, sink: Sink, starts: Mapping[TopicPartition, int], most: int, records: int = RECORDS
    ) -> Staged:
        """A batch of up to ``most`` records of each partition that has some left of its ``records``."""
        import pyarrow as pa

        ranges = {
            tp: Range(OLD, start, min(start + most, records), start or None)
            for tp, start in starts.items()
            if start < records
        }
        tables = [self.rows(range(span.start, span.end), tp.partition) for tp, span in ranges.items()]
        return sink.stage(pa.concat_tables(tables), ranges)

    def put(self, sink: Sink, offsets: Sequence[int], start: int, end: int, topic_id: str = OLD) -> None:
        """Writes a batch of the partition A that covers ``start`` to ``end``, with rows of ``offsets``."""
        mark = sink.marks([A]).get(A, {}).get(topic_id)
        sink.stage(self.rows(offsets), {A: Range(topic_id, start, end, mark)}).publish()

    def _rewinding(self) -> Any:
        sink = self.sink()
        if not self.rewinds or not hasattr(sink, "rewind"):
            raise SkipTest("the sink removes no rows")
        return sink


def places(tp: TopicPartition, offsets: Collection[int]) -> Counter[tuple[int, int]]:
    """Each of these offsets of a partition once."""
    return Counter((tp.partition, offset) for offset in offsets)


def marks_of(sink: Sink) -> dict[TopicPartition, int]:
    """The marks of both partitions; 0: none."""
    read = sink.marks([A, B])
    return {tp: read.get(tp, {}).get(OLD, 0) for tp in (A, B)}


@contextmanager
def refused(message: str = "") -> Iterator[None]:
    """Raises AssertionError unless the block raises SinkFencedError with ``message``."""
    said = None
    try:
        yield
    except SinkFencedError as exc:
        said = str(exc)
    assert said is not None, "a writer whose mark is not the table's was not refused"
    assert message in said
