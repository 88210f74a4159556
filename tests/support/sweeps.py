"""Writers of a table that end or stop at any call they make, and writers at the same time.

``records``: how many each of the two partitions has.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import pyarrow as pa

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.interfaces import Range, Sink, SinkFencedError
from tests.support.sinks import OLD, Died, Steps, at_once, die, rows, write_all

RECORDS = 8
Make = Callable[[Sequence[int], int], pa.Table]
"""Makes rows of offsets and a partition."""


class Places(Protocol):
    """What an independent reader finds in a table."""

    def places(self) -> Counter[tuple[int, int]]:
        """How many rows there are of each (partition, offset)."""


class Files(Places, Protocol):
    """The same, with the rows."""

    def rows(self) -> list[dict[str, Any]]:
        """All rows."""


F = TypeVar("F", bound=Files)
P = TypeVar("P", bound=Places, covariant=True)


class Table(Protocol[P]):
    """One table after another."""

    def begin(self) -> None:
        """From now on: another table, that is not there yet."""

    def sink(self) -> Sink:
        """A sink for the table."""

    def read(self) -> P:
        """What is in the table."""


def each_once(records: int = RECORDS) -> Counter[tuple[int, int]]:
    """The places of both partitions' records, each once."""
    return Counter({(partition, offset): 1 for partition in (0, 1) for offset in range(records)})


ALL = each_once()


def die_at_each_step(
    table: Table[Places],
    calls: Sequence[tuple[Any, str]],
    *,
    after: bool,
    records: int = RECORDS,
    make: Make = rows,
    ended: Callable[[Any], object] = lambda _: None,
) -> int:
    """A writer ends before or after each of its ``calls``; another one then writes the rest. Returns how many
    there were. ``ended``: does with a sink what the end of its process does."""
    for turn in itertools.count(1):
        table.begin()
        sink, rng, steps = table.sink(), random.Random(turn), Steps(turn, die, after=after)
        try:
            with steps.watching(calls):
                write_all(sink, rng, records=records, make=make)
            break
        except Died:
            ended(sink)
        write_all(table.sink(), rng, records=records, make=make)
        assert table.read().places() == each_once(records), f"died at step {turn}"
    return turn


class _NotUndone:
    """A sink whose marks must be at ``ends``, once there are any."""

    def __init__(self, sink: Sink, ends: Sequence[int]) -> None:
        self._sink, self._ends, self.stage = sink, ends, sink.stage

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        ends = list(self._ends)
        read = self._sink.marks(partitions)
        undone = [tp for tp in partitions if ends and read.get(tp, {}).get(OLD) not in ends]
        assert not undone, f"the successor's commits were undone: {read}"
        return read


def go_on_after_a_successor(
    table: Table[Places],
    calls: Sequence[tuple[Any, str]],
    *,
    after: bool,
    records: int = RECORDS,
    make: Make = rows,
    stopped: Callable[[], object] = lambda: None,
) -> tuple[int, int]:
    """A writer stops before or after each of its ``calls`` while another one writes all. Returns how many
    there were, and how often the first one was refused. ``stopped``: called while the first one is.

    The rows in the end do not show a commit that has undone the successor's: marks go with rows, and the
    first writer would write the rows again. So the marks that it reads must be the successor's.
    """
    fenced = 0
    for turn in itertools.count(1):
        table.begin()
        rng, ends = random.Random(turn), list[int]()

        def succeed(_: Steps, rng: random.Random = rng, ends: list[int] = ends) -> None:
            stopped()
            write_all(table.sink(), rng, records=records, make=make)
            ends.append(records)

        steps = Steps(turn, succeed, after=after)
        try:
            with steps.watching(calls):
                write_all(cast(Sink, _NotUndone(table.sink(), ends)), rng, records=records, make=make)
        except SinkFencedError:
            fenced += 1
        if steps.count < turn:
            break
        assert table.read().places() == each_once(records), f"stopped at step {turn}"
    return turn, fenced


def create_at_once(table: Table[F], *, records: int = RECORDS) -> F:
    """Three writers create the table and write a partition each. The rows of each have a column of their own:
    no creation replaces another's schema."""
    tps = [TopicPartition("flights", partition) for partition in range(3)]
    barrier = threading.Barrier(len(tps))

    def work(tp: TopicPartition) -> None:
        sink, rng = table.sink(), random.Random(tp.partition)
        at = sink.marks([tp]).get(tp, {}).get(OLD, 0)
        barrier.wait()
        while at < records:
            end = min(records, at + rng.randrange(1, 5))
            own = {f"column{tp.partition}": pa.array(range(at, end), pa.int64())}
            batch = rows(range(at, end), tp.partition, **own)
            sink.stage(batch, {tp: Range(OLD, at, end, at or None)}).publish()
            at = end

    at_once(work, tps)
    read = table.read()
    assert read.places() == Counter({(tp.partition, o): 1 for tp in tps for o in range(records)})
    assert [row for row in read.rows() if row[f"column{row['partition']}"] != row["offset"]] == []
    return read
