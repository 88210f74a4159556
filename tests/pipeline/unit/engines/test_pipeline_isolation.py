"""Records that break a batch, with the real engines and the real sink: 999 of 1,000 are in the files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.pipeline.engines.python import PythonEngine
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from tests.support.workers.fakes import Bench

HANDLERS = """
import json
import pyarrow as pa
import pyarrow.compute as pc

def rows(records):
    for record in records:
        yield {**json.loads(record.value), "topic": record.topic, "partition": record.partition,
               "offset": record.offset}

def declared(records):
    return rows(records)
declared.schema = pa.schema([("amount", pa.float64())])

def moved(records):
    for record in records:
        position = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        yield {**position, **json.loads(record.value)}

def cents(records):
    return rows(records)
cents.schema = pa.schema([("amount", pa.int64())])

def table(batch):
    values = [json.loads(value) for value in batch["value"].to_pylist()]
    amounts = pa.array([str(value["amount"]) for value in values], pa.string()).cast(pa.float64())
    return batch.select(["topic", "partition", "offset"]).append_column("amount", amounts)

def nested(batch):
    values = [json.loads(value) for value in batch["value"].to_pylist()]
    position = batch.select(["topic", "partition", "offset"])
    return position.append_column("tags", pa.array([value.get("tags") for value in values]))
"""
COUNT = 1000
ENDS = (0, 499, 999)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "iso_handlers.py").write_text(HANDLERS)
    yield tmp_path
    sys.modules.pop("iso_handlers", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def play(folder: Path, engine: ArrowEngine | PythonEngine, produced: list[bytes]) -> tuple[Bench, pa.Table]:
    """Has a worker's delivery handle ``produced`` as one batch; its bench and what is in the files."""
    bench = Bench(retries=0)
    bench.sink = ParquetSink("flights", str(folder / "out"))
    engine.start()
    try:
        engine.warm_up()
        bench.restart(max_records=COUNT, engine=engine)
        bench.assign(bench.produce(0, *(value.decode() for value in produced)))
        bench.until_idle()
    finally:
        engine.close()
    assert not list((folder / "out" / ".slackwater" / "flights" / "staging").iterdir())
    return bench, ds.dataset(folder / "out", format="parquet").to_table()


@pytest.mark.parametrize(
    ("at", "function", "bad", "reason"),
    [
        *((at, "rows", b'{"amount": "12,50"}', r"is '12,50', not like most rows (int64)") for at in ENDS),
        (499, "declared", b'{"amount": "12,50"}', "is '12,50', not double"),
        (0, "cents", b'{"amount": 12.5}', "is 12.5, not int64"),
        (999, "rows", b'{"amount": 1, "text": "\\ud800"}', "surrogates not allowed"),
        (499, "rows", b"{", "JSONDecodeError"),
        (0, "moved", b'{"amount": 1, "offset": 4711}', "says flights-0 offset 4711"),
        (999, "moved", b'{"amount": 1, "partition": "x"}', "has partition 'x', a str"),
        *((at, "table", b'{"amount": "12,50"}', "Failed to parse string: '12,50'") for at in ENDS),
        (499, "table", b"[]", "TypeError"),
    ],
)
def test_one_bad_record_of_a_thousand_becomes_a_dead_letter(
    folder: Path, at: int, function: str, bad: bytes, reason: str
) -> None:
    kind = ArrowEngine if function == "table" else PythonEngine
    produced = [json.dumps({"amount": number}).encode() for number in range(COUNT)]
    produced[at] = bad
    bench, written = play(folder, kind(f"iso_handlers:{function}", [str(folder)]), produced)
    assert written["offset"].to_pylist() == [offset for offset in range(COUNT) if offset != at]
    assert written["amount"].to_pylist() == written["offset"].to_pylist()
    assert bench.letters.origins() == [f"flights-0@{at}"]
    (letter,) = [letter for partition in bench.letters.partitions for letter in partition]
    assert letter[2] == bad, "the record as it was polled"
    assert reason in (dict(letter[3])["slackwater.error"] or b"").decode()


def test_a_column_that_no_format_can_hold_is_left_out(folder: Path) -> None:
    """A struct without fields: Arrow has a type for it, Parquet has not; the handler raises nothing."""
    produced = [b'{"tags": null}'] * 9 + [b'{"tags": {}}']
    bench, written = play(folder, ArrowEngine("iso_handlers:nested", [str(folder)]), produced)
    assert written["offset"].to_pylist() == list(range(10))
    assert "tags" not in written.column_names
    assert bench.letters.origins() == []


def test_empty_objects_break_nothing(folder: Path) -> None:
    produced = [b'{"amount": 1, "tags": {}}', b'{"amount": 2, "tags": null}', b'{"amount": 3, "tags": {}}']
    bench, written = play(folder, PythonEngine("iso_handlers:rows", [str(folder)]), produced)
    assert written["amount"].to_pylist() == [1, 2, 3]
    assert "tags" not in written.column_names
    assert bench.letters.origins() == []


def test_records_of_the_rarer_of_two_types_become_dead_letters(folder: Path) -> None:
    produced = [b'{"amount": %d}' % n for n in range(100)]
    produced[::20] = [b'{"amount": "%d"}' % n for n in range(0, 100, 20)]
    bench, written = play(folder, PythonEngine("iso_handlers:rows", [str(folder)]), produced)
    assert written.schema.field("amount").type == pa.int64()
    assert written["amount"].to_pylist() == [n for n in range(100) if n % 20]
    assert len(bench.letters.origins()) == 5
