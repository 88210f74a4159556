"""A table with a declared schema, in each format: from its first batch on, and when it is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from slackwater.pipeline import make_sink
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import ConfigError, RecordsError
from slackwater.runtime.interfaces import Sink
from tests.support.postgres import PostgresDatabase
from tests.support.sinks import marks, put, rows

SCHEMA = "carrier STRING NOT NULL, delay DOUBLE, hops ARRAY<INT>"
FORMATS = ["parquet", "delta", "iceberg"]
"""PostgreSQL: tests/pipeline/integration/sinks/test_declared_schema.py."""


class Table:
    """Makes sinks for one table."""

    def __init__(self, format_: str, folder: Path, database: PostgresDatabase | None = None) -> None:
        self.format, self._database = format_, database
        if format_ == "iceberg":
            uri = f"sqlite:///{folder}/catalog.db"
            options = {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/warehouse"}
            self._sink: dict[str, Any] = {"table": "lake.flights", "options": options}
        elif database is not None:
            self._sink = {"table": "public.flights", "options": database.options()}
        else:
            self._sink = {"path": str(folder / "out")}

    def sink(self, schema: str = "", **more: Any) -> Sink:
        declared = {"schema": schema} if schema else {}
        document = {
            "groupId": "flights",
            "topics": ["flights"],
            "bootstrapServers": "127.0.0.1:9092",
            "handler": "a:b",
            "sink": {"format": self.format, **self._sink, **declared, **more},
        }
        return make_sink(parse(document))

    def ids(self) -> list[int]:
        """The column id, by a reader of its own."""
        if self._database is not None:
            return [id_ for (id_,) in self._database.rows("select id from flights")]
        if self.format == "delta":
            return list(DeltaTable(self._sink["path"]).to_pyarrow_table()["id"].to_pylist())
        catalog = load_catalog("default", **self._sink["options"])
        return list(catalog.load_table("lake.flights").scan().to_arrow()["id"].to_pylist())


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


def test_the_first_batch_makes_all_declared_columns(table: Table) -> None:
    """Also those that its rows lack, and with their types: an integer comes before a float."""
    sink = table.sink(SCHEMA)
    assert sink.probe()
    put(sink, rows([0], carrier=pa.array(["UA"]), delay=pa.array([1], pa.int8())), 0)
    put(sink, rows([1], carrier=pa.array(["AA"]), delay=pa.array([1.5])), 1)
    put(sink, rows([2], carrier=pa.array(["DL"]), hops=pa.array([[1, 2]])), 2)
    assert max(marks(sink).values()) == 3
    wider = SCHEMA.replace("DOUBLE", "STRING")
    with pytest.raises(ConfigError, match=r"declares delay as string, and the table has it as double"):
        table.sink(wider).probe()


ALL_TYPES = (
    "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(12,3), i STRING, "
    "j BINARY, k DATE, l TIMESTAMP, m TIMESTAMP_NTZ, n ARRAY<STRING>, o MAP<STRING, INT>, "
    "p STRUCT<x: INT, y: ARRAY<DOUBLE>>, q ARRAY<STRUCT<x: SMALLINT>>"
)


def test_a_worker_that_returns_finds_the_types_that_it_has_declared(table: Table) -> None:
    put(table.sink(ALL_TYPES), rows([0], d=pa.array([1])), 0)
    again = table.sink(ALL_TYPES)
    assert again.probe()
    put(again, rows([1], d=pa.array([2]), p=pa.array([{"x": 1, "y": [1.0]}])), 1)
    assert max(marks(table.sink(ALL_TYPES)).values()) == 2


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"carrier": pa.array(["UA"]), "delay": pa.array(["late"])}, "delay of the table is double"),
        ({"carrier": pa.array(["UA"]), "hops": pa.array([[2**40]])}, "hops of the table is list"),
        ({"carrier": pa.array([None], pa.string())}, r"carrier must not be null \(NOT NULL in sink.schema\)"),
        ({"delay": pa.array([1.0])}, r"carrier must not be null \(NOT NULL in sink.schema\)"),
    ],
)
def test_a_value_that_does_not_fit_is_its_records_fault(
    tmp_path: Path, columns: dict[str, pa.Array], problem: str
) -> None:
    sink = Table("parquet", tmp_path).sink(SCHEMA)
    with pytest.raises(RecordsError, match=problem):
        put(sink, rows([0], **columns), 0)
    assert list((tmp_path / "out").glob("*.parquet")) == []


def test_other_columns_are_added_or_rejected(tmp_path: Path) -> None:
    columns = {"carrier": pa.array(["UA"]), "gate": pa.array(["B7"])}
    rejecting = Table("parquet", tmp_path / "a").sink(SCHEMA, newColumns="reject")
    with pytest.raises(RecordsError, match=r"columns gate, which sink\.schema does not declare"):
        put(rejecting, rows([0], **columns), 0)
    put(rejecting, rows([0], carrier=pa.array(["UA"])), 0)  # the place columns are not declared
    put(Table("parquet", tmp_path / "b").sink(SCHEMA), rows([0], **columns), 0)
    made = pa.parquet.read_schema(next((tmp_path / "b" / "out").glob("*.parquet")))
    assert made.names == ["carrier", "delay", "hops", "topic", "partition", "offset", "gate"]
    assert made.types[:3] == [pa.string(), pa.float64(), pa.list_(pa.int32())]


def test_a_table_with_another_type_is_refused_before_it_is_written_to(table: Table) -> None:
    put(table.sink(), rows([0], carrier=pa.array(["UA"]), delay=pa.array([1], pa.int32())), 0)
    sink = table.sink(SCHEMA)
    message = r"sink\.schema.*declares delay as double, and the table has it as int32"
    with pytest.raises(ConfigError, match=message):
        sink.probe()
    with pytest.raises(ConfigError, match=message):
        marks(sink)
    fitting = table.sink("carrier STRING, delay INT, gate STRING")
    assert fitting.probe(), "a column that the table lacks is added"
    put(fitting, rows([1], carrier=pa.array(["AA"]), delay=pa.array([2.0])), 1)


def test_a_schema_that_cannot_be_read_names_the_position(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sink\.schema.*at position 9: 'TXT' is no type"):
        Table("parquet", tmp_path).sink("carrier TXT")


def test_a_table_that_can_grow_to_what_is_declared_is_taken(table: Table) -> None:
    kind = pa.struct([("a", pa.int32()), ("z", pa.string())])
    put(table.sink(), rows([0], delay=pa.array([1], pa.int32()), s=pa.array([{"a": 1}], kind)), 0)
    widened = "delay BIGINT, s STRUCT<a: BIGINT, b: STRING>"
    if table.format == "delta":
        with pytest.raises(ConfigError, match="declares delay as int64, and the table has it as int32"):
            table.sink(widened).probe()
        widened = "delay INT, s STRUCT<a: INT, b: STRING>"
    sink = table.sink(widened)
    assert sink.probe()
    most = 2**31 - 1 if table.format == "delta" else 2**40
    put(sink, rows([1], delay=pa.array([most]), s=pa.array([{"a": most, "b": "x"}])), 1)
    assert max(marks(table.sink(widened)).values()) == 2


def test_a_row_that_deletes_needs_no_other_columns(table: Table) -> None:
    if table.format == "parquet":
        return  # it has no keys
    sink = table.sink("id INT, delay INT NOT NULL", mode="changes", key=["id"])
    at = put(sink, rows([0, 1], id=pa.array([1, 2]), delay=pa.array([1, 2])), 0)
    gone = {"id": pa.array([1, 3]), "delay": pa.array([2**40, None]), "_op": pa.array(["delete"] * 2)}
    at = put(sink, rows([at, at + 1], **gone), at)
    with pytest.raises(RecordsError, match=r"delay must not be null \(NOT NULL in sink.schema\)"):
        put(sink, rows([at], id=pa.array([4])), at)
    assert table.ids() == [2]
