"""Columns that grow, in Delta, Iceberg and Parquet."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import Sink
from tests.support.iceberg.catalogs import Catalog, sql_catalog
from tests.support.sink_growth import GrowthCases, KeyedGrowthCases
from tests.support.sinks import put, rows

AB = pa.struct([("a", pa.int64()), ("b", pa.int64())])


class TestDelta(KeyedGrowthCases):
    widens = False

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.scratch = request.getfixturevalue("tmp_path")
        self.begin()

    def begin(self) -> None:
        self.folder = self.scratch / uuid.uuid4().hex

    def made(self, **settings: Any) -> Sink:
        return delta_sink("g", str(self.folder), **settings)

    def stored(self) -> pa.Table:
        return DeltaTable(self.folder).to_pyarrow_table()

    def test_a_field_has_a_name_that_delta_takes(self) -> None:
        sink = self.made()
        put(sink, rows([0], c=pa.array([{"a": 1}])), 0)
        with pytest.raises(RecordsError, match="a Delta table cannot have a column 'b c'"):
            put(sink, rows([1], c=pa.array([{"a": 1, "b c": 2}])), 1)


class TestIceberg(KeyedGrowthCases):
    lake: Catalog

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.lake = sql_catalog(request.getfixturevalue("tmp_path"))

    def begin(self) -> None:
        self.lake.begin()

    def made(self, **settings: Any) -> Sink:
        return self.lake.sink(**settings)

    def stored(self) -> pa.Table:
        return load_catalog("default", **self.lake.options).load_table(self.lake.table).scan().to_arrow()

    def test_what_is_required_stays_so(self) -> None:
        sink = self.made(partition_by=["bucket(4, n)"])
        put(sink, rows([0], c=pa.array([{"a": 1}]), n=pa.array([1], pa.int32())), 0)
        with self.lake.other().update_schema(allow_incompatible_changes=True) as update:
            update._set_column_requirement("n", required=True)
            update._set_column_requirement("c.a", required=True)
        put(sink, rows([1], c=pa.array([{"a": 1, "b": 2}]), n=pa.array([2**40])), 1)
        required = {
            name: self.lake.other().schema().find_field(name).required for name in ("n", "c.a", "c.b")
        }
        assert required == {"n": True, "c.a": True, "c.b": False}
        assert self.values("n") == [1, 2**40]
        lacking = rows([2, 3], c=pa.array([{"a": None, "b": 1}, None], AB), n=pa.array([None, 1], pa.int64()))
        with pytest.raises(RecordsError, match="must not be null"):
            put(sink, lacking, 2)
        put(self.made(makes_optional=True), lacking, 2)
        fields = self.lake.other().schema()
        assert not any(fields.find_field(name).required for name in ("n", "c.a", "c.b"))
        assert self.values("n") == [1, 2**40, None, 1]


class TestParquet(GrowthCases):
    folder: Path

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.folder = request.getfixturevalue("tmp_path")

    def made(self, **settings: Any) -> Sink:
        return ParquetSink("g", str(self.folder), **settings)

    def stored(self) -> pa.Table:
        schema = pq.read_schema(self.folder / "_common_metadata")
        return ds.dataset(self.folder, schema=schema).to_table()
