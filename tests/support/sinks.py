"""Batches of two partitions for the tests of sinks, and writers that are stopped at any call they make."""

from __future__ import annotations

import contextlib
import decimal
import math
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from unittest import mock

import pyarrow as pa
import pytest
from deltalake.table import TableMerger

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.interfaces import Range, Sink, SinkFencedError

T = TypeVar("T")
A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
OLD, NEW = "nxyNPlt6TCGPAAEjRWeJqw", "-_xyNPlt6TCGPAAEjRWeJq"
"""Ids of two topics of the same name."""
KEYS = 3
MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "changes": {"mode": "changes", "key": ["partition", "key"]},
    "merge": {
        "mode": "merge",
        "key": ["partition", "key"],
        "aggregates": {"total": "sum", "least": "min", "most": "max", "records": "count"},
    },
}
"""Modes of sinks that have them, each with its settings."""


class TableCases(ABC):
    """Tests of a sink, each with a table of its own."""

    @pytest.fixture(autouse=True)
    def use(self, request: pytest.FixtureRequest) -> None:
        """Prepares an empty place for a table."""
        self.prepare(request)

    @abstractmethod
    def prepare(self, request: pytest.FixtureRequest) -> None: ...


def rows(offsets: Sequence[int], partition: int = 0, **columns: Any) -> pa.Table:
    """Rows of these offsets, with ``columns`` or one column."""
    n = len(offsets)
    return pa.table(
        {
            "topic": pa.array(["flights"] * n, pa.string()),
            "partition": pa.array([partition] * n, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            **(columns or {"carrier": pa.array(["UA"] * n, pa.string())}),
        }
    )


def mode_rows(offsets: Sequence[int], partition: int, mode: str) -> pa.Table:
    """What a handler makes of records for one of :data:`MODES`."""
    values = pa.array(offsets, pa.int64())
    keys = pa.array([offset % KEYS for offset in offsets], pa.int32())
    if mode == "merge":
        return rows(offsets, partition, key=keys, total=values, least=values, most=values)
    operations = pa.array(["delete" if _deletes(offset) else None for offset in offsets], pa.string())
    given = {"_op": operations} if mode == "changes" else {}
    return rows(offsets, partition, key=keys, value=values, **given)


def _deletes(offset: int) -> bool:
    return offset % 4 == 1


def mode_table(mode: str, records: int) -> list[tuple[int, ...]]:
    """What the table holds of ``records`` of each partition, sorted.

    In mode ``changes`` partition, key, value and offset; in mode ``merge`` partition, key, total, least, most
    and records; otherwise partition and offset.
    """
    places: list[tuple[int, ...]] = [(p, offset) for p in (0, 1) for offset in range(records)]
    by_key: dict[tuple[int, int], list[int]] = {}
    for partition, offset in places:
        by_key.setdefault((partition, offset % KEYS), []).append(offset)
    if mode == "changes":
        return sorted((*key, max(of), max(of)) for key, of in by_key.items() if not _deletes(max(of)))
    if mode == "merge":
        return sorted((*key, sum(of), min(of), max(of), len(of)) for key, of in by_key.items())
    return places


SUMS = {
    "total": "sum",
    "part": "sum",
    "exact": "sum",
    "least": "min",
    "most": "max",
    "name": "max",
    "n": "count",
}
"""How columns are added up in :func:`sums_by_id`."""


def sums_by_id() -> tuple[pa.Table, dict[str, dict[str, Any]]]:
    """Rows for :data:`SUMS` with the key ``id``, and what they add up to, by id."""
    rng = random.Random(11)
    values = [
        {
            "id": rng.choice("abc"),
            "total": rng.choice([None, rng.randrange(-9, 9)]),
            "part": rng.choice([None, rng.randrange(8) / 4]),
            "exact": rng.choice([None, decimal.Decimal(rng.randrange(999)) / 100]),
            "least": rng.choice([None, math.nan, rng.random()]),
            "most": rng.choice([None, math.nan, rng.random()]),
            "name": rng.choice([None, "x", "Y", "ü"]),
        }
        for _ in range(60)
    ]
    schema = pa.schema(
        [
            ("id", pa.string()), ("total", pa.int32()), ("part", pa.float32()),
            ("exact", pa.decimal128(5, 2)),
            ("least", pa.float64()), ("most", pa.float64()), ("name", pa.string()),
        ]
    )  # fmt: skip
    expected: dict[str, dict[str, Any]] = {}
    functions: dict[str, Callable[[list[Any]], Any]] = {"sum": sum, "min": min, "max": max}
    for key in "abc":
        own = [value for value in values if value["id"] == key]
        expected[key] = {"id": key, "n": len(own)}
        for name, function in SUMS.items():
            if name != "n":
                of = [value[name] for value in own if value[name] is not None and value[name] == value[name]]
                expected[key][name] = functions[function](of) if of else None
    return pa.Table.from_pylist(values, schema), expected


def stage(
    sink: Sink,
    starts: dict[TopicPartition, int],
    most: int = 5,
    topic_id: str = OLD,
    *,
    records: int,
    make: Callable[[Sequence[int], int], pa.Table] = rows,
) -> Any:
    """A batch of up to ``most`` records of each partition, which has ``records``.

    ``make``: the rows of offsets and a partition.
    """
    ranges = {
        tp: Range(topic_id, start, min(start + most, records), start or None)
        for tp, start in starts.items()
        if start < records
    }
    tables = [make(range(span.start, span.end), tp.partition) for tp, span in ranges.items()]
    return sink.stage(pa.concat_tables(tables), ranges)


def marks(sink: Sink, topic_id: str = OLD) -> dict[TopicPartition, int]:
    """The marks of both partitions; 0: none."""
    read = sink.marks([A, B])
    return {tp: read.get(tp, {}).get(topic_id, 0) for tp in (A, B)}


def put(sink: Sink, table: Any, start: int, tp: TopicPartition = A, topic_id: str = OLD) -> int:
    """Writes a batch of one partition. Returns its end."""
    end: int = start + max(1, table.num_rows)
    mark = sink.marks([tp]).get(tp, {}).get(topic_id)
    sink.stage(table, {tp: Range(topic_id, start, end, mark)}).publish()
    return end


def write_all(
    sink: Sink,
    rng: random.Random,
    *,
    records: int,
    make: Callable[[Sequence[int], int], pa.Table] = rows,
) -> None:
    """What a worker does that owns both partitions."""
    at = marks(sink)
    while any(start < records for start in at.values()):
        stage(sink, at, rng.randrange(1, 9), records=records, make=make).publish()
        at = marks(sink)


def once(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[BaseException | None]:
    """Calls ``call`` when the next merge into a Delta table has been planned, before it
    commits. Returns how each ended."""
    execute, outcomes = TableMerger.execute, list[BaseException | None]()
    pending = [call]

    def watched(self: TableMerger) -> dict[str, Any]:
        if pending:
            pending.pop()()
        try:
            result = execute(self)
        except BaseException as exc:
            outcomes.append(exc)
            raise
        outcomes.append(None)
        return result

    monkeypatch.setattr(TableMerger, "execute", watched)
    return outcomes


def at_once(work: Callable[[T], object], arguments: Sequence[T]) -> None:
    """Calls ``work`` with each of the arguments, on a thread each. Raises what one of them raised."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        for done in [pool.submit(work, argument) for argument in arguments]:
            done.result()


def write_at_once(make: Callable[[], Sink], write: Callable[[Sink, random.Random], None]) -> None:
    """Three writers at once, each with a sink of its own. Each writes all that is not there yet, and goes on
    after another one has fenced it. Raises what one of them raised."""
    barrier = threading.Barrier(3)

    def work(seed: int) -> None:
        sink = make()
        barrier.wait()
        while True:
            with contextlib.suppress(SinkFencedError):
                write(sink, random.Random(seed))
                return
            seed += 100

    at_once(work, range(3))


class Died(BaseException):
    """The process has ended: it does nothing any more."""


def die(_: Steps) -> None:
    """For :class:`Steps`: the process ends."""
    raise Died


class Steps:
    """The calls that a writer makes, one after another. ``at``: called at call number ``turn``, before or
    after it, also where that fails."""

    def __init__(self, turn: int, at: Callable[[Steps], None], *, after: bool) -> None:
        self._turn, self._at, self._after = turn, at, after
        self.count = 0
        self._paused = False
        """While another process is at work."""
        self._dead = False

    @contextlib.contextmanager
    def watching(self, calls: Sequence[tuple[Any, str]]) -> Iterator[None]:
        """Counts ``calls``, each an attribute of an object by its name, within the block."""
        with contextlib.ExitStack() as stack:
            for owner, name in calls:
                stack.enter_context(mock.patch.object(owner, name, self._watched(getattr(owner, name))))
            yield

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            return self._made(call, *args, **options)

        return watched

    def _made(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._paused:
            return call(*args, **options)
        if self._dead:
            raise Died
        self.count += 1
        here = self.count == self._turn
        if here and not self._after:
            self._reach()
        try:
            return call(*args, **options)
        finally:
            if here and self._after:
                self._reach()

    def _reach(self) -> None:
        self._paused = True
        try:
            self._at(self)
        except Died:
            self._dead = True
            raise
        finally:
            self._paused = False
