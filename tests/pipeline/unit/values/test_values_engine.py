"""Engines with decoded values: what the handler gets, and what becomes of values that cannot be decoded."""

import datetime
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slackwater.kafka.records import ARROW_SCHEMA, ConsumerRecord
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline import make_engine
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import ConfigError, HandlerError, HandlerLoadError, WorkerError
from slackwater.runtime.handler_output import checked_output
from slackwater.runtime.interfaces import ERROR_COLUMN, Engine, RecordEngine
from tests.support.registry import RegistryServer

HANDLERS = """
import pyarrow as pa, pyarrow.compute as pc
calls = []
def typed(table):
    calls.append(table)
    fields = pa.table(table["value"].combine_chunks().flatten(), names=["a", "at"])
    return table.select(["topic", "partition", "offset"]).append_column("a", fields["a"])
def marks(table):
    calls.append(table)
    error = pc.if_else(pc.is_null(table["value"]), "no value", None)
    return table.select(["topic", "partition", "offset"]).append_column("_error", error)
def widened(table):
    calls.append(table)
    table = table.select(["topic", "partition", "offset"])
    table = table.set_column(0, "topic", table["topic"].dictionary_encode())
    table = table.set_column(1, "partition", table["partition"].cast(pa.int64()))
    return table.append_column("_error", pa.nulls(len(table)))
def no_offset(table): return table.select(["topic", "partition"])
def no_table(table): return 3 if table.num_rows else table
def float_offset(table):
    return table.set_column(2, "offset", table["offset"].cast(pa.float64())) if table.num_rows else table
def keyed(table):
    calls.append(table)
    fields = pa.table(table["key"].combine_chunks().flatten(), names=["id"])
    return table.select(["topic", "partition", "offset"]).append_column("id", fields["id"])
def keyed_rows(records):
    for r in records:
        yield {"topic": r.topic, "partition": r.partition, "offset": r.offset, "id": r.key and r.key["id"]}
def rows(records):
    calls.append(records)
    for r in records:
        yield {"topic": r.topic, "partition": r.partition, "offset": r.offset, "a": r.value and r.value["a"]}
"""
VALUE = {"format": "json", "schema": "a INT, at TIMESTAMP"}
GOOD = b'{"a": 1, "at": "2013-01-01T05:00:00Z"}'
TP = TopicPartition("t", 0)


@pytest.fixture
def engine_of(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "ve_handlers.py").write_text(HANDLERS)
    made = []

    def make(function: str, value: Any = VALUE, engine: str = "arrow", key: Any = None) -> Any:
        document = {
            "groupId": "g", "topics": ["t"], "bootstrapServers": "h:1", "handler": f"ve_handlers:{function}",
            "handlerPath": [str(tmp_path)], "engine": engine, "sink": {"format": "parquet", "path": "/x"},
            "handlerTimeoutMs": 5_000, **({"value": value} if value else {}), **({"key": key} if key else {}),
        }  # fmt: skip
        made.append(make_engine(parse(document)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    sys.modules.pop("ve_handlers", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def batch(*values: bytes | None, partition: int = 0) -> pa.RecordBatch:
    rows = [
        {
            "topic": "t",
            "partition": partition,
            "offset": 10 + n,
            "timestamp": 0,
            "value": value,
            "headers": [],
        }
        for n, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ARROW_SCHEMA)


def handled(engine: Engine, *batches: pa.RecordBatch) -> tuple[list[dict[str, Any]], dict[int, list[Any]]]:
    inputs = {TopicPartition("t", n): one for n, one in enumerate(batches)}
    output = checked_output(engine.transform(pa.Table.from_batches(batches)), inputs)
    return output.rows.to_pylist(), {tp.partition: letters for tp, letters in output.dead.items()}


def test_the_handler_gets_typed_values_and_bad_ones_are_rejected(engine_of: Any) -> None:
    engine = engine_of("typed")
    assert not isinstance(engine, RecordEngine)
    engine.start()
    engine.warm_up()
    calls = sys.modules["ve_handlers"].calls
    typed = pa.struct([("a", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
    assert calls[0].schema == ARROW_SCHEMA.set(5, pa.field("value", typed))
    assert calls[0].num_rows == 0
    rows, dead = handled(engine, batch(GOOD, b"x", None, b'{"a": "x"}'), batch(b"[]", GOOD, partition=1))
    place = {"topic": "t", "partition": 0}
    assert rows == [
        {**place, "offset": 10, "a": 1},
        {**place, "offset": 12, "a": None},
        {**place, "partition": 1, "offset": 11, "a": 1},
    ]
    assert dead == {
        0: [
            (11, "JSON value: is not JSON at byte 0: Expecting value"),
            (13, "JSON value: field a: must be a whole number, not text"),
        ],
        1: [(10, "JSON value: must be an object, not an array")],
    }
    assert calls[1].schema == calls[0].schema
    assert calls[1]["value"].to_pylist()[:2] == [
        {"a": 1, "at": datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC)}, None,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["arrow", "python"])
@pytest.mark.parametrize("value", [VALUE, None], ids=["with value", "key alone"])
def test_keys_are_decoded_as_values_are(engine_of: Any, kind: str, value: Any) -> None:
    handler = "keyed" if kind == "arrow" else "keyed_rows"
    engine = engine_of(handler, value, kind, key={"format": "json", "schema": "id INT NOT NULL"})
    engine.start()
    engine.warm_up()
    given = [(b'{"id": 7}', GOOD), (None, GOOD), (b"{}", GOOD), (b"x", b"x")]
    inputs = batch(*(content for _, content in given))
    inputs = inputs.set_column(4, inputs.schema.field(4), pa.array([key for key, _ in given], pa.binary()))
    table = pa.Table.from_batches([inputs])
    if kind == "arrow":
        made = engine.transform(table)
    else:
        made = engine.transform_records(
            [
                ConsumerRecord("t", 0, 0, 10 + n, 5, 0, key, content, [])
                for n, (key, content) in enumerate(given)
            ]
        )
    output = checked_output(made, {TP: inputs})
    assert [(row["offset"], row["id"]) for row in output.rows.to_pylist()] == [(10, 7), (11, None)]
    assert output.dead[TP] == [
        (12, "JSON key: field id: is missing, and it is NOT NULL"),
        (13, f"JSON {'key' if value is None else 'value'}: is not JSON at byte 0: Expecting value"),
    ]


def test_a_schema_of_keys_that_cannot_be_used_is_named(engine_of: Any) -> None:
    with pytest.raises(ConfigError) as error:
        engine_of("keyed", None, key={"format": "json", "schema": "id INTT"}).start()
    assert error.value.field == "key.schema"


def test_a_batch_of_bad_values_does_not_reach_the_handler(engine_of: Any) -> None:
    engine = engine_of("typed")
    engine.start()
    rows, dead = handled(engine, batch(b"", b"1"))
    assert rows == []
    assert [offset for offset, _ in dead[0]] == [10, 11]
    assert sys.modules["ve_handlers"].calls == []


def test_the_handlers_own_rejections_stay(engine_of: Any) -> None:
    engine = engine_of("marks")
    engine.start()
    rows, dead = handled(engine, batch(GOOD, None, b"1"))
    assert [row["offset"] for row in rows] == [10]
    assert dead[0] == [(11, "no value"), (12, "JSON value: must be an object, not a number")]


def test_an_output_in_other_types_is_taken(engine_of: Any) -> None:
    engine = engine_of("widened")
    engine.start()
    rows, dead = handled(engine, batch(GOOD, b"1"))
    assert [(row["topic"], row["offset"]) for row in rows] == [("t", 10)]
    assert [offset for offset, _ in dead[0]] == [11]


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("no_offset", "must have the column offset"),
        ("no_table", "returned int, not a table"),
        ("float_offset", "column offset of the handler's result is double"),
    ],
)
def test_a_refused_output_is_refused_beside_bad_values(engine_of: Any, handler: str, said: str) -> None:
    engine = engine_of(handler)
    engine.start()
    for values in ((GOOD,), (GOOD, b"1")):
        with pytest.raises(HandlerError, match=said):
            handled(engine, batch(*values))


def test_records_of_the_engine_python_have_decoded_values(engine_of: Any) -> None:
    engine = engine_of("rows", {"format": "json", "schema": "a INT, m MAP<STRING, INT>"}, "python")
    assert isinstance(engine, RecordEngine)
    engine.start()
    engine.warm_up()
    values = [b'{"a": 1, "m": {"k": 2}}', b"x", None]
    headers = [("h", b"1")]
    records = [
        ConsumerRecord("t", 0, 0, 10 + n, 5, 0, b"k", value, headers) for n, value in enumerate(values)
    ]
    output = checked_output(engine.transform_records(records), {TP: batch(*values)})
    assert [(row["offset"], row["a"]) for row in output.rows.to_pylist()] == [(10, 1), (12, None)]
    assert output.dead == {TP: [(11, "JSON value: is not JSON at byte 0: Expecting value")]}
    given = sys.modules["ve_handlers"].calls[1]
    assert [record.value for record in given] == [{"a": 1, "m": {"k": 2}}, None]
    assert (given[0].key, given[0].headers, given[0].timestamp) == (b"k", [("h", b"1")], 5)
    assert records[0].value == values[0]
    all_bad = engine.transform_records(records[1:2])
    assert all_bad[ERROR_COLUMN].null_count == 0
    assert len(sys.modules["ve_handlers"].calls) == 2


def test_what_cannot_start_is_named(engine_of: Any) -> None:
    with pytest.raises(ConfigError, match="value.schema: at position 3"):
        engine_of("typed", {"format": "json", "schema": "a NUMBER"}).start()
    with pytest.raises(HandlerLoadError):
        engine_of("none").start()


@pytest.mark.parametrize("package", ["fastavro", "google.protobuf"])
def test_a_missing_package_is_named(engine_of: Any, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    name = {"fastavro": "avro"}.get(package, "protobuf")
    with pytest.raises(ConfigError, match=rf"value.format: .*pip install 'slackwater\[{name}\]'"):
        engine_of("typed", {"format": name, "schema": "AAAA"}).start()


def test_a_registry_that_goes_away_ends_the_worker_and_rejects_nothing(engine_of: Any) -> None:
    schema = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    server = RegistryServer()
    server.register("v", schema)
    with server:
        source = {"url": server.url, "subject": "v", "timeoutMs": 200}
        engine = engine_of("marks", {"format": "avro", "registry": source})
        engine.start()
        dict(engine._decoders)["value"]._registry._timeout_ms = 300
    with pytest.raises(WorkerError, match="no schema registry answers within 300 ms.*was not committed"):
        handled(engine, batch(b"\0\0\0\0\1\2"))
