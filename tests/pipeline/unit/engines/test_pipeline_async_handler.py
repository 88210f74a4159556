"""Handlers of the engine ``python`` that are coroutine functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from slackwater import Batch
from slackwater.kafka import ConsumerRecord
from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.pipeline.engines.python import PythonEngine, RowFailed
from slackwater.runtime.errors import HandlerError, HandlerLoadError
from slackwater.testing import run


def records(*values: bytes) -> list[ConsumerRecord]:
    return [ConsumerRecord("t", 0, -1, 10 + at, 0, 0, None, value) for at, value in enumerate(values)]


def place(record: ConsumerRecord) -> dict[str, Any]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


Make = Callable[..., PythonEngine]


@pytest.fixture
def engine() -> Iterator[Make]:
    made: list[PythonEngine] = []

    def make(function: Any, **options: Any) -> PythonEngine:
        made.append(PythonEngine("m:f", function=function, timeout_ms=10_000, **options))
        made[-1].start()
        made[-1].warm_up()
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def test_rows_are_in_the_order_of_the_records_whichever_call_ends_first(engine: Make) -> None:
    ended: list[int] = []
    last = asyncio.Event()

    async def transform(record: ConsumerRecord) -> dict[str, Any]:
        if record.offset == 12:
            last.set()
        await last.wait()
        if record.offset == 10:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        ended.append(record.offset)
        return {"v": record.value.decode(), **place(record)}

    table = engine(transform).transform_records(records(b"a", b"b", b"c"))
    assert table["v"].to_pylist() == ["a", "b", "c"]
    assert ended[0] == 12
    assert ended != [10, 11, 12]


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (4, 4), (100, 30)])
def test_so_many_calls_are_under_way_at_most(engine: Make, concurrency: int, most: int) -> None:
    now, peak = 0, 0

    async def transform(record: ConsumerRecord) -> dict[str, Any]:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0)
        now -= 1
        return place(record)

    assert engine(transform, concurrency=concurrency).transform_records(records(*[b"x"] * 30)).num_rows == 30
    assert peak == most


def test_none_one_and_several_rows(engine: Make) -> None:
    async def transform(record: ConsumerRecord, batch: Batch) -> Any:
        rows = [{**place(record), "n": n, "attempt": batch.attempt} for n in range(int(record.value))]
        return rows if len(rows) > 1 else rows[0] if rows else None

    table = engine(transform).transform_records(records(b"2", b"0", b"1"))
    assert list(zip(table["offset"].to_pylist(), table["n"].to_pylist(), strict=True)) == [
        (10, 0),
        (10, 1),
        (12, 0),
    ]
    assert set(table["attempt"].to_pylist()) == {1}


def test_one_that_fails_is_named_and_the_others_end_first(engine: Make) -> None:
    cancelled: list[int] = []

    async def transform(record: ConsumerRecord) -> dict[str, Any]:
        if record.offset == 11:
            raise ValueError("no order")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(record.offset)
            raise
        return place(record)

    made = engine(transform)
    with pytest.raises(RowFailed, match="ValueError: no order .*, at t-0 offset 11"):
        made.transform_records(records(b"a", b"b", b"c"))
    assert cancelled == [10, 12]


def test_all_batches_have_one_event_loop(engine: Make) -> None:
    loops = []

    async def transform(record: ConsumerRecord) -> dict[str, Any]:
        loops.append(asyncio.get_running_loop())
        return place(record)

    made = engine(transform)
    made.transform_records(records(b"a"))
    made.transform_records(records(b"b"))
    assert loops[0] is loops[1]
    made.close()
    assert loops[0].is_closed()


def test_what_is_no_row_is_refused(engine: Make) -> None:
    async def transform(record: ConsumerRecord) -> Any:
        return 3

    with pytest.raises(HandlerError, match="returned int for a record: return a mapping"):
        engine(transform).transform_records(records(b"a"))


def test_a_test_runs_one_and_isolates_records() -> None:
    async def transform(record: ConsumerRecord) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"n": int(record.value), **place(record)}

    result = run(transform, [b"1", b"x", b"3"], "python")
    assert [row["n"] for row in result.to_pylist()] == [1, 3]
    assert [letter.offset for letter in result.dead_letters] == [1]


def test_the_other_engines_refuse_one() -> None:
    async def transform(table: pa.Table) -> pa.Table:
        return table

    with pytest.raises(
        HandlerLoadError, match=r"m:f is a coroutine function \(async def\), which only the engine"
    ):
        ArrowEngine("m:f", function=transform).start()
