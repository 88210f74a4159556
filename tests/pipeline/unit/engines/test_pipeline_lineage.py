"""``lineage: batch`` in the engines, the sinks and ``slackwater.testing``: rows without a position."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from slackwater import cli
from slackwater.kafka import ConsumerRecord
from slackwater.kafka.records import BatchBuilder, decode
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline import make_sink
from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.pipeline.engines.decoding import DecodingEngine, DecodingRecordEngine
from slackwater.pipeline.engines.python import PythonEngine, table_of
from slackwater.pipeline.values.ddl import parse
from slackwater.pipeline.values.json import JsonDecoder
from slackwater.runtime.config import worker_config as configs
from slackwater.runtime.errors import ConfigError, HandlerError, RecordsError
from slackwater.runtime.handler_output import Output, checked_output
from slackwater.runtime.interfaces import Range, SinkFencedError
from slackwater.testing import run
from tests.support.iceberg.catalogs import sql_catalog
from tests.support.workers.fakes import worker_config

TP = TopicPartition("flights", 3)
Rows = Iterator[dict[str, Any]]


def counts(records: list[ConsumerRecord]) -> Rows:
    """A row for each carrier; a record without one is rejected."""
    carriers: dict[str, int] = {}
    for record in records:
        value = record.value if isinstance(record.value, dict) else json.loads(record.value)
        if value["carrier"] is None:
            place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            yield {**place, "_error": "no carrier"}
        else:
            carriers[value["carrier"]] = carriers.get(value["carrier"], 0) + 1
    for carrier, number in sorted(carriers.items()):
        yield {"carrier": carrier, "records": number}


def grouped(table: pa.Table) -> pa.Table:
    carriers = pa.table({"carrier": pc.struct_field(table["value"], "carrier")})
    return carriers.group_by("carrier", use_threads=False).aggregate([([], "count_all")])


def polled(*values: str) -> Any:
    """Records of the partition, from offset 40 on."""
    batch = BatchBuilder("none", 1 << 20)
    for value in values:
        assert batch.append(0, None, value.encode(), [])
    return decode(batch.build(base_offset=40), fetch_offset=40)


def output_of(made: Any, *values: str) -> Output:
    """What a worker takes of the engine's output."""
    records = polled(*values)
    inputs = {TP: records.to_arrow(*TP)}
    made.start()
    try:
        made.warm_up()
        if hasattr(made, "transform_records"):
            rows = made.transform_records(records.records(*TP))
        else:
            rows = made.transform(pa.Table.from_batches(inputs.values()))
    finally:
        made.close()
    return checked_output(rows, inputs, by_record=False)


def decoder() -> JsonDecoder:
    return JsonDecoder(parse("carrier STRING"))


UA, AA, NONE = '{"carrier": "UA"}', '{"carrier": "AA"}', '{"carrier": null}'


def test_rows_and_rejected_records_of_the_engine_python() -> None:
    output = output_of(PythonEngine("m:counts", function=counts, by_record=False), UA, NONE, AA, UA)
    assert output.rows.to_pylist() == [{"carrier": "AA", "records": 1}, {"carrier": "UA", "records": 2}]
    assert (output.counts, output.dead) == ({TP: 2}, {TP: [(41, "no carrier")]})


@pytest.mark.parametrize("values", [(UA, "no json", AA, UA), (UA, NONE, AA, "{", UA)])
def test_values_that_cannot_be_decoded_are_rejected_beside_them(values: tuple[str, ...]) -> None:
    engine = DecodingRecordEngine(
        PythonEngine("m:counts", function=counts, by_record=False), {"value": decoder}, by_record=False
    )
    output = output_of(engine, *values)
    assert output.rows.to_pylist() == [{"carrier": "AA", "records": 1}, {"carrier": "UA", "records": 2}]
    bad = [40 + at for at, value in enumerate(values) if value not in (UA, AA)]
    assert [offset for offset, _ in output.dead[TP]] == bad


def test_the_engine_arrow_with_decoded_values() -> None:
    engine = DecodingEngine(
        ArrowEngine("m:grouped", function=grouped, by_record=False), {"value": decoder}, by_record=False
    )
    output = output_of(engine, UA, "no json", AA, UA)
    assert output.rows.to_pylist() == [{"carrier": "UA", "count_all": 2}, {"carrier": "AA", "count_all": 1}]
    assert [offset for offset, _ in output.dead[TP]] == [41]


def test_without_it_a_row_needs_its_position() -> None:
    with pytest.raises(HandlerError, match="row 0 has no topic"):
        output_of(PythonEngine("m:counts", function=counts), UA)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([{"_error": "who?"}], HandlerError, "row 0 has no topic"),
        ([{"n": 1}, {"n": "a"}], RecordsError, "the column n of its row 1 is 'a', not"),
        ([{"n": 1}, 3], HandlerError, "row 1 is int, not a mapping"),
    ],
)
def test_rows_that_cannot_be_used_are_named(rows: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        table_of(rows, None, "m:f", by_record=False)


def test_a_handler_in_a_test() -> None:
    result = run(counts, [UA, NONE, UA], "python", lineage="batch")
    assert result.to_pylist() == [{"carrier": "UA", "records": 2}]
    assert [letter.offset for letter in result.dead_letters] == [1]
    assert run(counts, [], "python", lineage="batch").to_pylist() == []
    with pytest.raises(ValueError, match="lineage is 'file'"):
        run(counts, [UA], "python", lineage="file")


SINKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "parquet": lambda folder: {"format": "parquet", "path": str(folder / "out")},
    "delta": lambda folder: {"format": "delta", "path": str(folder / "out")},
    "iceberg": lambda folder: {
        "format": "iceberg", "table": "lake.sums", "options": {"type": "sql", **sql_catalog(folder).options},
    },
}  # fmt: skip


def totals(folder: Path, format_: str) -> list[int]:
    if format_ == "parquet":
        table = ds.dataset(sorted((folder / "out").glob("*.parquet"))).to_table()
    elif format_ == "delta":
        table = DeltaTable(str(folder / "out")).to_pyarrow_table()
    else:
        table = (
            load_catalog("default", **sql_catalog(folder).options).load_table("lake.sums").scan().to_arrow()
        )
    assert table.column_names == ["total"]
    return sorted(table["total"].to_pylist())


@pytest.mark.parametrize("format_", SINKS)
def test_a_sink_keeps_rows_without_positions_and_refuses_a_replay(tmp_path: Path, format_: str) -> None:
    config = worker_config(lineage="batch", sink=SINKS[format_](tmp_path))
    sink, none = make_sink(config), pa.table({})
    sink.stage(none, {TP: Range("id", 0, 2, None)}).publish()
    sink.stage(pa.table({"total": [5]}), {TP: Range("id", 2, 10, 2)}).publish()
    sink.stage(none, {TP: Range("id", 10, 12, 10)}).publish()
    sink.stage(pa.table({"total": [7]}), {TP: Range("id", 12, 20, 12)}).publish()
    assert totals(tmp_path, format_) == [5, 7]
    other = make_sink(config)
    assert other.marks([TP]) == {TP: {"id": 20}}
    with pytest.raises(SinkFencedError):
        other.stage(pa.table({"total": [5]}), {TP: Range("id", 2, 10, 2)}).publish()
    assert totals(tmp_path, format_) == [5, 7]


def test_a_rewind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "worker.yaml"
    document = {
        "groupId": "g", "topics": ["flights"], "bootstrapServers": "127.0.0.1:1", "handler": "m:f",
        "lineage": "batch", "sink": {"format": "parquet", "path": "out"},
    }  # fmt: skip
    file.write_text(json.dumps(document))
    assert cli.main(["rewind", "--config", str(file), "flights:0:4"]) == 4
    assert "with lineage: batch the rows do not tell which records they are of" in capsys.readouterr().err


def test_an_upsert_needs_positions() -> None:
    sink = {"format": "postgres", "table": "a.t", "mode": "upsert", "key": ["k"], "options": {"host": "h"}}
    with pytest.raises(ConfigError, match="lineage: batch is not for sink.mode upsert"):
        worker_config(lineage="batch", sink=sink)
    assert not configs.parse({**MINIMAL, "lineage": "batch"}).by_record
    assert configs.parse(MINIMAL).by_record


MINIMAL = {
    "groupId": "g", "topics": ["t"], "bootstrapServers": "h:1", "handler": "m:f",
    "sink": {"format": "parquet", "path": "out"},
}  # fmt: skip
