"""Modes ``changes``, ``upsert`` and ``merge`` of an Iceberg table."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.errors import ConfigError, SinkError
from slackwater.runtime.interfaces import Range
from tests.support.iceberg.catalogs import Catalog, sql_catalog
from tests.support.sink_changes import CommittedChangesCases, changes
from tests.support.sinks import OLD, SUMS, A, B, marks, put, rows, sums_by_id

DAY = datetime.date(2026, 1, 1)
INSTANT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int64(), [-(2**63), 5, 2**63 - 1]),
    "text": (pa.string(), ["a", "x" * 99, "x" * 98 + "y"]),
    "bool": (pa.bool_(), [False, True]),
    "bytes": (pa.binary(), [b"", b"a", b"\xff"]),
    "day": (pa.date32(), [DAY, DAY.replace(day=2), DAY.replace(day=3)]),
    "instant": (pa.timestamp("us", "UTC"), [INSTANT.replace(microsecond=n) for n in (0, 1, 999)]),
}


class TestIcebergChanges(CommittedChangesCases):
    lake: Catalog

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.lake = sql_catalog(request.getfixturevalue("tmp_path"))

    def made(self, **settings: Any) -> TableSink:
        return self.lake.sink(**{"mode": "changes", "key": ["id"], **settings})

    def stored(self) -> list[dict[str, Any]]:
        return self.lake.read().rows()

    def notes(self) -> tuple[list[str], int]:
        catalog = load_catalog("default", **self.lake.options)
        read = catalog.load_table(f"{self.lake.table}_slackwater_deleted").scan()
        return sorted(read.to_arrow()["key"].to_pylist()), len(list(read.plan_files()))

    def require(self, column: str) -> None:
        with self.lake.other().update_schema(allow_incompatible_changes=True) as update:
            update._set_column_requirement(column, required=True)

    def test_upsert_replaces_without_operations(self) -> None:
        sink = self.made(mode="upsert")
        put(sink, rows([0, 1], id=pa.array([1, 2]), v=pa.array([1, 2])), 0)
        put(sink, rows([2, 3], id=pa.array([2, 3]), w=pa.array([{"a": 5}, None])), 2)
        assert {row["id"]: (row["v"], row["w"]) for row in self.stored()} == {
            1: (1, None),
            2: (None, {"a": 5}),
            3: (None, None),
        }

    @pytest.mark.parametrize(
        "name", [pytest.param(name, marks=() if name == "text" else pytest.mark.long) for name in KEYS]
    )
    def test_rows_are_found_in_their_files(self, name: str) -> None:
        """By the bounds of each file, in tables with and without partitions. Other files stay as they are."""
        kind, values = KEYS[name]
        for by in ([], ["id"] if name != "bytes" else ["bucket(3, id)"]):
            self.lake.begin()
            sink, at = self.made(partition_by=by), 0
            for value in values:
                at = put(sink, changes((None, 0, "a"), start=at).set_column(4, "id", _of(kind, value)), at)
            before = set(self.lake.read().files)
            gone = changes(("delete", 0, None), start=at).set_column(4, "id", _of(kind, values[1]))
            put(sink, gone, at)
            left = [_of(kind, value)[0].as_py() for value in values if value != values[1]]
            assert sorted(row["id"] for row in self.stored()) == left
            assert len(before - set(self.lake.read().files)) == 1

    def test_a_batch_of_many_keys_reads_the_files_in_their_range(self) -> None:
        sink = self.made()
        for at, first in ((0, 0), (300, 300), (600, 1000)):
            put(sink, changes(*((None, key, "a") for key in range(first, first + 300)), start=at), at)
        other = set(self.lake.read().files)
        put(sink, changes(*(("delete", key, None) for key in range(0, 600, 2)), start=900), 900)
        assert sorted(self.values()) == [*range(1, 600, 2), *range(1000, 1300)]
        assert len(other & set(self.lake.read().files)) == 1

    def test_a_commit_that_is_refused_leaves_no_files(self, tmp_path: Path) -> None:
        first, second = self.made(), self.made()
        put(first, changes((None, 1, "a"), (None, 2, "b")), 0)
        staged = first.stage(changes((None, 1, "first"), start=2), {A: Range(OLD, 2, 3, 2)})
        load, commits = SqlCatalog.commit_table, []

        def watched(*args: Any) -> Any:
            commits.append(args)
            if len(commits) == 1:
                put(second, changes((None, 2, "second"), partition=1), 0, B)
            return load(*args)

        with mock.patch.object(SqlCatalog, "commit_table", watched):
            staged.publish()
        assert len(commits) == 3
        assert self.values() == {1: "first", 2: "second"}
        made = {f"file://{path}" for path in tmp_path.rglob("*.parquet")}
        assert len(made) == 1 + 2 + 1, (
            "the first; one without a row, and its row; the last row in place of a file"
        )
        assert set(self.lake.read().files) <= made


def test_rows_are_added_up_with_those_of_the_table(tmp_path: Path) -> None:
    lake, rng, (given, expected) = sql_catalog(tmp_path), random.Random(3), sums_by_id()
    for most in (15, 60):
        lake.begin()
        at = 0
        while at < len(given):
            batch = given.slice(at, rng.randint(1, most))
            columns = dict(zip(batch.column_names, batch.columns, strict=True))
            sink = lake.sink(mode="merge", key=["id"], aggregates=SUMS)
            at = put(sink, rows(range(at, at + len(batch)), **columns), at)
        read = lake.read()
        assert {row["id"]: row for row in read.rows()} == expected
        assert read.columns["exact"] == "decimal(38, 2)"


def test_sums_keep_other_columns_and_never_overflow(tmp_path: Path) -> None:
    lake, largest = sql_catalog(tmp_path), 2**63 - 1
    put(lake.sink(), rows([0], id=pa.array([1]), v=pa.array([3]), note=pa.array(["kept"])), 0)
    sink = lake.sink(mode="merge", key=["id"], aggregates={"v": "sum"})
    put(sink, rows([1, 2], id=pa.array([1, 2]), v=pa.array([4, largest])), 1)
    assert {row["id"]: (row["v"], row["note"]) for row in lake.read().rows()} == {
        1: (7, "kept"),
        2: (largest, None),
    }
    with pytest.raises(SinkError, match="a sum does not fit its column v"):
        put(sink, rows([3], id=pa.array([2]), v=pa.array([1])), 3)
    with pytest.raises(ConfigError, match="cannot be a count"):
        lake.sink(mode="merge", key=["id"], aggregates={"offset": "count"})
    assert marks(sink)[A] == 3


def _of(kind: pa.DataType, value: Any) -> pa.Array:
    return pa.array([value], kind)
