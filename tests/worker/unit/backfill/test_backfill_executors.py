"""What runs in Spark's Python processes, called as Spark calls it; and what the data source is asked for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slackwater.backfill.executors import HandlerTask, partitions_of, rows_together
from slackwater.backfill.frames import LogReader
from slackwater.handler import OffsetRange
from slackwater.kafka.records import ARROW_SCHEMA
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.worker_config import WorkerConfig, parse

HANDLER = """
import json
import pyarrow as pa

PLACE = ["topic", "partition", "offset"]


def table(given, batch):
    assert (batch.group_id, batch.instance) in (("orders", "backfill"), ("", ""))
    ids = [json.loads(value)["id"] for value in given["value"].to_pylist()]
    if 0 in ids:
        raise ValueError("id is 0")
    return given.select(PLACE).append_column("id", pa.array(ids, pa.int64()))


def records(given):
    for record in given:
        row = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        yield {**row, "id": record.value["id"], "header": dict(record.headers)["h"], "time": record.timestamp}
"""
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
TIME_MS = 1_700_000_000_000
NONE = pa.table({"offset": pa.array([], pa.int64())})


def config(folder: Path, **more: Any) -> WorkerConfig:
    (folder / "executor_handler.py").write_text(HANDLER)
    return parse(
        {
            "groupId": "orders",
            "bootstrapServers": "kafka:9092",
            "topics": ["orders"],
            "handler": "executor_handler:table",
            "handlerPath": [str(folder)],
            "engine": "arrow",
            "sink": {"format": "parquet", "path": "none"},
            **more,
        }
    )


def batch(*values: bytes, partitions: tuple[int, ...] = ()) -> pa.RecordBatch:
    """As Spark gives it: times in microseconds, and another order of columns."""
    count = len(values)
    return pa.record_batch(
        {
            "timestamp": pa.array([TIME_MS * 1000] * count, pa.timestamp("us", tz="UTC")),
            "topic": ["orders"] * count,
            "partition": pa.array(partitions or [0] * count, pa.int32()),
            "offset": pa.array(range(7, 7 + count), pa.int64()),
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"x"}]] * count, ARROW_SCHEMA.field("headers").type),
        }
    )


def run(task: HandlerTask, *batches: pa.RecordBatch) -> tuple[pa.Table, list[Any]]:
    results = list(pickle.loads(pickle.dumps(task))(iter(batches)))
    rows = [
        pa.ipc.open_stream(stream.as_buffer()).read_all() for result in results for stream in result.column(0)
    ]
    letters = [
        letter for result in results for given in result.column(1) for letter in pickle.loads(given.as_py())
    ]
    return rows_together(rows, NONE), letters


def test_rows_and_the_record_that_breaks_a_batch(tmp_path: Path) -> None:
    task = HandlerTask(config(tmp_path), "arrow")
    rows, letters = run(task, batch(b'{"id": 1}', b'{"id": 0}', b'{"id": 2}'), batch(), batch(b'{"id": 3}'))
    assert rows.to_pydict()["id"] == [1, 2, 3]
    ((tp, letter),) = letters
    assert (tp, letter.offset, letter.value, letter.headers) == (P0, 8, b'{"id": 0}', [("h", b"x")])
    assert letter.timestamp_ms == TIME_MS
    assert "ValueError: id is 0" in letter.error


def test_decoded_values_and_records(tmp_path: Path) -> None:
    value = {"format": "json", "schema": "id LONG"}
    task = HandlerTask(
        config(tmp_path, engine="python", handler="executor_handler:records", value=value), "python"
    )
    rows, letters = run(task, batch(b'{"id": 1}', b"no json"))
    assert rows.drop_columns(["topic", "partition", "offset"]).to_pylist() == [
        {"id": 1, "header": b"x", "time": TIME_MS}
    ]
    assert [(tp, letter.offset, letter.value) for tp, letter in letters] == [(P0, 8, b"no json")]


def test_records_of_several_partitions() -> None:
    parts = partitions_of(batch(b"a", b"b", b"c", partitions=(0, 1, 0)))
    assert {tp: (len(part), part.first_offset, part.next_offset) for tp, part in parts.items()} == {
        P0: (2, 7, 10),
        P1: (1, 8, 9),
    }
    assert [record.value for record in parts[P0].records("orders", 0)] == [b"a", b"c"]
    assert parts[P1].to_arrow("orders", 1).schema == ARROW_SCHEMA


def test_rows_of_different_columns_are_one_table() -> None:
    tables = [pa.table({"id": [1]}), pa.table({"id": [2.5], "note": ["x"]}), pa.table({"other": pa.nulls(0)})]
    assert rows_together(tables, NONE).to_pylist() == [{"id": 1.0, "note": None}, {"id": 2.5, "note": "x"}]
    assert rows_together([], NONE) == NONE


class FakeReader:
    """Stands in for a session, its reader and its data frame."""

    def __init__(self) -> None:
        self.read = self
        self.given: dict[str, str] = {}
        self.columns: tuple[str, ...] = ()

    def format(self, name: str) -> FakeReader:
        assert name == "slackwater"
        return self

    def options(self, **options: str) -> FakeReader:
        self.given = options
        return self

    def load(self) -> FakeReader:
        return self

    def selectExpr(self, *columns: str) -> FakeReader:  # noqa: N802
        self.columns = columns
        return self


@pytest.mark.parametrize("decoded", [True, False])
def test_the_options_of_the_data_source(tmp_path: Path, decoded: bool) -> None:
    from slackwater.pipeline.datasource.client import config_of
    from slackwater.pipeline.datasource.options import parse as parse_options

    secret = tmp_path / "secret"
    secret.write_text("x")
    given = config(
        tmp_path,
        properties={
            "auto.offset.reset": "latest",
            "isolation.level": "read_committed",
            "max.poll.records": "9",
        },
        security={
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "PLAIN",
            "usernameFile": str(secret),
            "passwordFile": str(secret),
        },
        value={"format": "json", "schema": "id LONG"},
        key={"format": "json", "schema": "id LONG"},
    )
    fake = FakeReader()
    reader = LogReader(given, {"orders": "id", "other": "x"}, decoded=decoded, tasks=4)
    reader.read(fake, {P0: OffsetRange(3, 9), P1: OffsetRange(0, 5)})  # type: ignore[arg-type]
    options = parse_options(fake.given).for_batch()
    assert options.start is not None
    assert options.end is not None
    assert (options.start.offsets, options.end.offsets) == ({P0: 3, P1: 0}, {P0: 9, P1: 5})
    assert options.start.topic_ids == options.end.topic_ids == {"orders": "id"}
    assert (options.topics.assigned, options.min_partitions) == ((P0, P1), 4)
    client = config_of(options.properties)
    assert (client.bootstrap_servers, client.isolation_level) == ("kafka:9092", "read_committed")
    assert client.security.username_file == str(secret)
    assert [column for column, _ in options.decoded] == (["value", "key"] if decoded else [])
    assert list(fake.columns[:6]) == list(ARROW_SCHEMA.names[:6])
    assert ("_error" in fake.columns) is decoded
