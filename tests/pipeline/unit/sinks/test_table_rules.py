"""Records whose rows a table does not take become dead letters that name column and rule.

The others are stored once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType

from slackwater.pipeline.engines.python import PythonEngine
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.runtime.interfaces import Sink
from tests.support.delta import DeltaFolder
from tests.support.iceberg.catalogs import sql_catalog
from tests.support.workers.fakes import Bench

HANDLER = """
import json

def rows(records):
    for record in records:
        yield {**json.loads(record.value), "topic": record.topic, "partition": record.partition,
               "offset": record.offset}
"""
PLACES = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
STRUCT = pa.struct([pa.field("x", pa.int64(), nullable=False)])
COUNT = 60
Offsets = Callable[[], list[int]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "rules_handler.py").write_text(HANDLER)
    yield tmp_path
    sys.modules.pop("rules_handler", None)
    sys.path.remove(str(tmp_path))


def play(folder: Path, sink: Sink, values: list[dict[str, Any]]) -> dict[str, str]:
    """The dead letters of one batch, with their reasons."""
    bench = Bench(retries=0)
    bench.sink = sink
    engine = PythonEngine("rules_handler:rows", [str(folder)])
    engine.start()
    try:
        engine.warm_up()
        bench.restart(max_records=1000, engine=engine)
        bench.assign(bench.produce(0, *map(json.dumps, values)))
        bench.until_idle()
    finally:
        engine.close()
    letters = [letter for partition in bench.letters.partitions for letter in partition]
    reasons = [(dict(letter[3])["slackwater.error"] or b"").decode() for letter in letters]
    return dict(zip(bench.letters.origins(), reasons, strict=True))


def delta(folder: Path) -> tuple[Sink, Offsets]:
    """A table with constraints of each kind that deltalake can make."""
    table = folder / "out"
    fields = [
        *PLACES,
        pa.field("n", pa.int64(), nullable=False),
        ("s", STRUCT),
        ("l", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        ("m", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
    ]
    DeltaTable.create(table, pa.schema(fields)).alter.add_constraint({"positive": "n > 0"})
    return delta_sink("flights", str(table)), lambda: [row["offset"] for row in DeltaFolder(table).rows()]


def iceberg(folder: Path) -> tuple[Sink, Offsets]:
    lake = sql_catalog(folder)
    catalog = load_catalog("default", **lake.options)
    catalog.create_namespace(lake.table.split(".")[0])
    catalog.create_table(
        lake.table,
        Schema(
            NestedField(1, "topic", StringType()),
            NestedField(2, "partition", IntegerType()),
            NestedField(3, "offset", LongType()),
            NestedField(4, "n", LongType(), required=True),
            NestedField(5, "s", StructType(NestedField(6, "x", LongType(), required=True))),
            NestedField(7, "l", ListType(8, LongType(), element_required=True)),
        ),
    )
    return lake.sink(), lambda: [row["offset"] for row in lake.read().rows()]


GOOD = {"n": 1, "s": {"x": 1}, "l": [1], "m": None}
BOTH, DELTA = (delta, iceberg), (delta,)
CASES = [
    (BOTH, {"s": None, "l": None}, "the column n must not be null"),
    (BOTH, {**GOOD, "n": None}, "the column n must not be null"),
    (BOTH, {**GOOD, "s": {"x": None}}, "the column s.x must not be null"),
    (BOTH, {**GOOD, "l": [1, None]}, "the column l.element must not be null"),
    (BOTH, {**GOOD, "s": {"x": "1"}}, "the column s of the table is struct<x: int64"),
    (BOTH, {**GOOD, "n": 1.5}, "the column n of the table is int64, and rows have double"),
    (DELTA, {**GOOD, "n": 0}, "constraint positive, n > 0"),
]


@pytest.mark.parametrize(
    ("make", "bad", "reason", "share"),
    [
        *((make, bad, reason, 1) for makes, bad, reason in CASES for make in makes),
        *((make, *CASES[0][1:], COUNT // 2) for make in BOTH),
        (delta, *CASES[-1][1:], COUNT // 2),
    ],
)
def test_what_a_table_does_not_take_is_a_dead_letter(
    folder: Path, make: Callable[[Path], tuple[Sink, Offsets]], bad: dict[str, Any], reason: str, share: int
) -> None:
    sink, stored = make(folder)
    at = {number * (COUNT // share) for number in range(share)}
    letters = play(folder, sink, [bad if number in at else GOOD for number in range(COUNT)])
    assert sorted(letters) == sorted(f"flights-0@{number}" for number in at)
    assert all(reason in text for text in letters.values()), letters
    assert sorted(stored()) == [number for number in range(COUNT) if number not in at]


@pytest.mark.parametrize(("share", "constraint"), [(1, "stock >= 0"), (COUNT // 2, "stock < 1000")])
def test_a_row_that_would_break_a_rule_of_the_row_it_is_added_to_is_a_dead_letter(
    folder: Path, share: int, constraint: str
) -> None:
    table = folder / "out"
    kept = DeltaTable.create(table, pa.schema([("item", pa.int64()), ("stock", pa.int64())]))
    kept.alter.add_constraint({"bounds": constraint})
    sink = delta_sink("flights", str(table), mode="merge", key=["item"], aggregates={"stock": "sum"})
    at = {number * (COUNT // share) for number in range(share)}
    bad = -5_000 if constraint == "stock >= 0" else 5_000
    values = [{"item": number, "stock": bad if number in at else 7} for number in range(COUNT)]
    letters = play(folder, sink, values)
    assert sorted(letters) == sorted(f"flights-0@{number}" for number in at)
    assert all("constraint bounds" in text for text in letters.values()), letters
    stored = {row["item"]: row["stock"] for row in DeltaFolder(table).rows()}
    assert stored == {number: 7 for number in range(COUNT) if number not in at}


def test_a_sum_that_breaks_a_rule_stops_at_the_record_that_does_it(folder: Path) -> None:
    table = folder / "out"
    kept = DeltaTable.create(table, pa.schema([("item", pa.int64()), ("stock", pa.int64())]))
    kept.alter.add_constraint({"bounds": "stock <= 2"})
    sink = delta_sink("flights", str(table), mode="merge", key=["item"], aggregates={"stock": "sum"})
    letters = play(folder, sink, [{"item": 1, "stock": 1} for _ in range(3)])
    assert len(letters) == 1
    assert [row["stock"] for row in DeltaFolder(table).rows()] == [2]
