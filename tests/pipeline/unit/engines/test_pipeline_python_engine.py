"""The engine `python`: rows to a table, and errors that name the record."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from slackwater.kafka import ConsumerRecord
from slackwater.kafka.records import BatchBuilder, decode
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.pipeline.engines.python import PythonEngine, RowFailed
from slackwater.runtime.errors import HandlerError, HandlerTimeoutError, RecordsError
from slackwater.runtime.handler_output import checked_output
from slackwater.runtime.interfaces import RecordEngine

HANDLERS = """
import threading
from decimal import Decimal
import pyarrow as pa
release = threading.Event()

def place(record):
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}

def keep(records):
    return [{**place(r), "text": r.value.decode(), "n": len(r.value)} for r in records]

def generator(records):
    for record in records:
        if record.value == b"bad":
            yield {**place(record), "_error": "is bad"}
        elif record.value != b"drop":
            yield {**place(record), "text": record.value.decode()}

def parse(value):
    return int(value)

def raises(records):
    for r in records:
        yield {**place(r), "n": parse(r.value)}

def mixed(records):
    return [{**place(r), "n": int(r.value) if r.value.isdigit() else r.value.decode()} for r in records]

def no_place(records):
    return [{"topic": r.topic, "partition": r.partition} for r in records]

def half_offset(records):
    return [{**place(r), "offset": r.offset + 0.5} for r in records]

def offset_as_text(records):
    return [{**place(r), "offset": str(r.offset)} for r in records]

def bytes_as_topic(records):
    return [{**place(r), "topic": r.topic.encode()} for r in records]

def no_mapping(records):
    return [1 for r in records]

def number(records):
    return 3

def one_mapping(records):
    return {}

def fails_on_nothing(records):
    return [{**place(records[0])}]

def hangs(records):
    if records:
        release.wait()
    return []

def declared(records):
    return [{**place(r), "delay": None, "n": len(r.value)} for r in records]
declared.schema = pa.schema([("delay", pa.int64()), ("n", pa.int16())])

def decimals(records):
    return [{**place(r), "sums": [{"n": Decimal(r.value.decode())}]} for r in records]
decimals.schema = pa.schema([("sums", pa.list_(pa.struct([("n", pa.decimal128(10, 2))])))])

def huge_number(records):
    return [{**place(r), "n": 10**5000} for r in records]

def huge_offset(records):
    return [{**place(r), "offset": 10**5000} for r in records]

def bad_schema(records):
    return []
bad_schema.schema = {"a": "int"}
"""
Make = Callable[..., PythonEngine]


DOCS = Path(__file__).parents[4] / "docs" / "how-to" / "pipeline" / "handle-records-one-by-one.md"


@pytest.fixture
def engine_of(tmp_path: Path) -> Iterator[Make]:
    (tmp_path / "pe_handlers.py").write_text(HANDLERS)
    made = []

    def make(function: str, timeout_ms: float = 5_000) -> PythonEngine:
        engine = PythonEngine(f"pe_handlers:{function}", [str(tmp_path)], timeout_ms=timeout_ms)
        made.append(engine)
        engine.start()
        return engine

    yield make
    sys.modules["pe_handlers"].release.set()
    for engine in made:
        engine.close()
    del sys.modules["pe_handlers"]
    sys.path.remove(str(tmp_path))


def records(*values: bytes) -> list[ConsumerRecord]:
    builder = BatchBuilder(max_bytes=1 << 20)
    for value in values:
        assert builder.append(1_357_034_400_000, b"k", value, [])
    return decode(builder.build(base_offset=40), fetch_offset=40).records("t", 2)


def test_only_this_engine_takes_records(engine_of: Make) -> None:
    assert isinstance(engine_of("keep"), RecordEngine)
    assert not isinstance(ArrowEngine("pe_handlers:keep"), RecordEngine)


def test_rows_become_a_table(engine_of: Make) -> None:
    engine = engine_of("keep")
    engine.warm_up()
    table = engine.transform_records(records(b"a", b"bc"))
    assert table.schema.names == ["topic", "partition", "offset", "text", "n"]
    assert [str(field.type) for field in table.schema] == ["string", "int32", "int64", "string", "int64"]
    assert table.to_pylist() == [
        {"topic": "t", "partition": 2, "offset": 40, "text": "a", "n": 1},
        {"topic": "t", "partition": 2, "offset": 41, "text": "bc", "n": 2},
    ]


def test_a_generator_may_yield_rows_with_new_keys(engine_of: Make) -> None:
    engine = engine_of("generator")
    engine.warm_up()
    table = engine.transform_records(records(b"bad", b"drop", b"good"))
    assert table.column("_error").to_pylist() == ["is bad", None]
    assert table.column("text").to_pylist() == [None, "good"]
    assert table.column("offset").to_pylist() == [40, 42]


def test_what_the_handler_raises_names_the_record_and_the_line(engine_of: Make) -> None:
    engine = engine_of("raises")
    engine.warm_up()
    with pytest.raises(
        RowFailed, match=r"ValueError.*pe_handlers\.py line \d+\), at t-2 offset 41"
    ) as raised:
        engine.transform_records(records(b"1", b"x", b"3"))
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("mixed", r"column n of its row for t-2 offset 42 is 'x', not like most rows \(int64\)"),
        ("no_place", r"row 0 has no offset \(it has: topic, partition\)"),
        ("half_offset", r"row 0 has offset 40.5, a float; every row must carry topic, partition, offset"),
        ("offset_as_text", "row 0 has offset '40', a str"),
        ("bytes_as_topic", "row 0 has topic b't', a bytes"),
        ("no_mapping", "row 0 is int, not a mapping"),
        (
            "huge_number",
            "column n of its row for t-2 offset 40 is a value .int. with a number that is too large",
        ),
        ("huge_offset", "column offset of its row for"),
        ("number", "returned int, not rows"),
        ("one_mapping", "returned dict, not rows"),
        ("bad_schema", "its schema is dict, not a pyarrow.Schema"),
    ],
)
def test_rows_that_make_no_table_are_refused(engine_of: Make, function: str, said: str) -> None:
    with pytest.raises(HandlerError, match=rf"pe_handlers:{function}.*{said}"):
        engine_of(function).transform_records(records(b"1", b"2", b"x", b"4"))


def test_the_manual_s_example_keeps_each_position_whatever_the_payload_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(import json\n.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "manual_example.py").write_text(example)
    engine = PythonEngine("manual_example:transform", [str(tmp_path)])
    engine.start()
    try:
        engine.warm_up()
        polled = records(
            b'{"offset": 7, "partition": 0, "topic": "other", "n": 1}',
            b'{"offset": 42, "_error": "mine", "n": 2}',
            *(b"5", b"[1]", b'"text"', b"null", b"{", b"\xff", b""),
        )
        table = engine.transform_records(polled)
        batch = pa.RecordBatch.from_pylist([{"offset": record.offset} for record in polled])
        made = checked_output(table, {TopicPartition("t", 2): batch})
    finally:
        engine.close()
        del sys.modules["manual_example"]
        sys.path.remove(str(tmp_path))
    assert made.rows.select(["topic", "partition", "offset", "n"]).to_pylist() == [
        {"topic": "t", "partition": 2, "offset": 40, "n": 1},
        {"topic": "t", "partition": 2, "offset": 41, "n": 2},
    ]
    assert [offset for offset, _ in made.dead[TopicPartition("t", 2)]] == [42, 43, 44, 45, 46, 47, 48]
    assert made.dead[TopicPartition("t", 2)][0][1] == "'int' object is not a mapping"


def test_warm_up_shows_one_that_cannot_take_an_empty_list(engine_of: Make) -> None:
    with pytest.raises(HandlerError, match=r"fails on an empty list.*IndexError.*pe_handlers\.py line \d+"):
        engine_of("fails_on_nothing").warm_up()


def test_a_schema_keeps_the_types_from_batch_to_batch(engine_of: Make) -> None:
    table = engine_of("declared").transform_records(records(b"abc"))
    assert table.schema.field("delay").type == pa.int64()
    assert table.schema.field("n").type == pa.int16()
    assert table.column("delay").to_pylist() == [None]


def test_a_decimal_that_arrow_reads_wrongly_is_refused(engine_of: Make) -> None:
    """Arrow makes 0.00 of it, and ends the process at 1e-999999999."""
    engine = engine_of("decimals")
    with pytest.raises(
        RecordsError, match=r"the column sums of its row for t-2 offset 41 .*41 digits behind"
    ):
        engine.transform_records(records(b"1.5", b"1e-41"))


def test_one_that_hangs_is_given_up(engine_of: Make) -> None:
    engine = engine_of("hangs", timeout_ms=100)
    engine.warm_up()
    with pytest.raises(HandlerTimeoutError, match="did not end within 100 ms"):
        engine.transform_records(records(b"a"))
