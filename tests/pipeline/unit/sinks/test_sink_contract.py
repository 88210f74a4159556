"""Each sink of a table keeps the contract of `slackwater.testing`, and so does the example of the docs.

Tables are read by readers that know nothing of the sinks. PostgreSQL:
tests/pipeline/integration/sinks/test_postgres_contract.py.
"""

from __future__ import annotations

import inspect
import os
import re
import sqlite3
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.table import TableMerger
from obstore.store import MemoryStore
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.orm import Session

from examples.flights.sqlite import SqliteSink
from slackwater.conditions import Condition
from slackwater.pipeline.sinks.delta import sink as delta
from slackwater.pipeline.sinks.delta.log import TransactionLog
from slackwater.pipeline.sinks.parquet import commit_log
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.pipeline.sinks.parquet.store import Objects
from slackwater.pipeline.sinks.parquet.store_options import StoreAddress
from slackwater.pipeline.sinks.routed.destinations import FixedTable
from slackwater.pipeline.sinks.routed.routes import Route
from slackwater.pipeline.sinks.routed.sink import RoutedSink
from slackwater.pipeline.sinks.routed.table import Table
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.interfaces import Sink
from slackwater.testing import SinkContract
from tests.support.contracts import QUICK, CommittedTable, KeyedTable, SharedTable, StoppedSink
from tests.support.delta import DeltaFolder
from tests.support.iceberg.catalogs import SINK_CALLS, sql_catalog
from tests.support.sink_changes import HOUR_MS
from tests.support.stores.memory import places_in

ROOT = Path(__file__).parents[4]
KEY = ["topic", "partition", "offset"]


class DeltaTables:
    """Tables in folders of their own."""

    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delta, "_LONGEST_WAIT_S", 0.0)
        self.scratch = tmp_path
        self.begin()

    def begin(self) -> None:
        self.folder = self.scratch / uuid.uuid4().hex

    def made(self, group_id: str = "g", **settings: Any) -> Sink:
        return delta.delta_sink(group_id, str(self.folder), **self.settings, **settings)

    def columns(self) -> dict[str, Any]:
        return DeltaFolder(self.folder).columns

    def sink(self, group_id: str = "g") -> Sink:
        return self.made(group_id)

    def stored(self) -> Counter[tuple[int, int]]:
        return DeltaFolder(self.folder).places() if self.folder.exists() else Counter()

    def trace(self) -> object:
        return sorted(self.scratch.rglob("*"))


LOG_CALLS = [
    (DeltaTable, "create"),
    (DeltaTable, "create_write_transaction"),
    (DeltaTable, "update_incremental"),
    (TransactionLog, "__init__"),
    (TransactionLog, "read_to"),
    (TransactionLog, "add"),
    (TableSink, "stage"),
    (StagedRows, "publish"),
]


class TestDelta(DeltaTables, CommittedTable):
    groups = (*SinkContract.groups, "", "g\ud800")
    calls = (*LOG_CALLS, (deltalake, "write_deltalake"), (DeltaTable, "delete"))
    fenced, swept = 8, 20


class TestDeltaUpsert(DeltaTables, KeyedTable):
    calls = (*LOG_CALLS, (DeltaTable, "merge"), (TableMerger, "execute"))
    settings: ClassVar[dict[str, Any]] = {"mode": "upsert", "key": KEY}
    fenced = 8
    quick = (("dies_after", True),)


class TestDeltaMerge(DeltaTables, KeyedTable):
    calls = TestDeltaUpsert.calls
    settings: ClassVar[dict[str, Any]] = {"mode": "merge", "key": KEY, "aggregates": {"records": "count"}}
    fenced = 8
    quick = (("stopped_after", False),)

    def rows(self, offsets: Sequence[int], partition: int = 0) -> pa.Table:
        return super().rows(offsets, partition).select(KEY)

    def stored(self) -> Counter[tuple[int, int]]:
        rows = DeltaFolder(self.folder).rows() if self.folder.exists() else []
        return Counter({(row["partition"], row["offset"]): row["records"] for row in rows})


class IcebergTables:
    """A writer that is stopped while the database commits holds SQLite's lock, and nobody else writes."""

    settings: ClassVar[dict[str, Any]] = {}
    groups = (*SinkContract.groups, "")
    calls = (
        *((SqlCatalog, name) for name in ("create_namespace", "create_table", "load_table", "commit_table")),
        *SINK_CALLS,
    )
    dying = (*calls, (Session, "commit"))

    @pytest.fixture(autouse=True)
    def lake(self, tmp_path: Path) -> None:
        self.folder, self.catalog = tmp_path, sql_catalog(tmp_path)

    def begin(self) -> None:
        self.catalog.begin()

    def made(self, group_id: str = "g", **settings: Any) -> Sink:
        return self.catalog.sink(group_id, **self.settings, **settings)

    def columns(self) -> dict[str, Any]:
        return self.catalog.read().columns

    def sink(self, group_id: str = "g") -> Sink:
        return self.made(group_id)

    def stored(self) -> Counter[tuple[int, int]]:
        exists = (self.folder / "warehouse" / self.catalog.table.split(".")[0]).exists()
        return self.catalog.read().places() if exists else Counter()

    def trace(self) -> object:
        return sorted(self.folder.rglob("*"))


class TestIceberg(IcebergTables, CommittedTable):
    pass


class TestIcebergChanges(IcebergTables, SharedTable):
    settings: ClassVar[dict[str, Any]] = {
        "mode": "changes", "key": KEY, "version": "version", "deleted_for_ms": HOUR_MS,
    }  # fmt: skip
    quick = (("stopped_after", False),)
    rewinds = False

    def rows(self, offsets: Sequence[int], partition: int = 0) -> pa.Table:
        made = super().rows(offsets, partition)
        return made.append_column("version", pa.array(offsets, pa.int64()))


@pytest.mark.long
class TestIcebergMerge(IcebergTables, KeyedTable):
    settings: ClassVar[dict[str, Any]] = {"mode": "merge", "key": KEY, "aggregates": {"records": "count"}}
    quick = ()

    def rows(self, offsets: Sequence[int], partition: int = 0) -> pa.Table:
        return super().rows(offsets, partition).select(KEY)

    def stored(self) -> Counter[tuple[int, int]]:
        exists = (self.folder / "warehouse" / self.catalog.table.split(".")[0]).exists()
        rows = self.catalog.read().rows() if exists else []
        return Counter({(row["partition"], row["offset"]): row["records"] for row in rows})


class TestParquet(StoppedSink):
    calls = ((os, "link"), (os, "fsync"), (Path, "replace"), (Path, "unlink"), (pq, "write_table"))
    turns, fenced, swept = 25, 10, 20
    quick = (("dies_after", True), *QUICK)

    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 3)
        self.scratch = tmp_path
        self.begin()

    def begin(self) -> None:
        self.folder = self.scratch / uuid.uuid4().hex

    def sink(self, group_id: str = "g") -> Sink:
        return ParquetSink(group_id, str(self.folder))

    def stored(self) -> Counter[tuple[int, int]]:
        read = ds.dataset(self.folder, format="parquet").to_table()
        if not read.num_rows:
            return Counter()
        return Counter(zip(read["partition"].to_pylist(), read["offset"].to_pylist(), strict=True))

    def trace(self) -> object:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


class TestRoutedTables(TestParquet):
    """Every second record's rows are in a Delta table, the others in files."""

    calls = (*TestParquet.calls, *LOG_CALLS, (deltalake, "write_deltalake"), (DeltaTable, "delete"))
    turns, fenced, swept = 40, 15, 12

    def sink(self, group_id: str = "g") -> Sink:
        files = FixedTable(Table("files", "sink", lambda: super(TestRoutedTables, self).sink(group_id)))
        path = str(self.folder.with_suffix(".delta"))
        table = FixedTable(Table("table", "routes[0].sink", lambda: delta.delta_sink(group_id, path)))
        odd = Condition("offset in (1, 3, 5, 7, 9, 11)")
        return RoutedSink([Route("routes[0]", odd, table)], files)

    def stored(self) -> Counter[tuple[int, int]]:
        table = self.folder.with_suffix(".delta")
        odd = DeltaFolder(table).places() if table.exists() else Counter()
        even = super().stored() if self.folder.exists() else Counter()
        assert all(offset % 2 for _, offset in odd)
        assert not any(offset % 2 for _, offset in even)
        return odd + even

    def trace(self) -> object:
        return sorted(path for path in self.scratch.rglob("*") if path.is_file())


class TestParquetInAStore(StoppedSink):
    url = "s3://lake/flights"
    calls = tuple(
        (Objects, name)
        for name in ("create", "put", "upload", "copy_to_free", "delete", "get", "list", "size")
    )
    turns, fenced, swept = 25, 10, 12
    quick = (("dies_after", True),)

    @pytest.fixture(autouse=True)
    def table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(StoreAddress, "open", lambda _: self.store)
        monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 2)
        self.begin()

    def begin(self) -> None:
        self.store = MemoryStore()

    def sink(self, group_id: str = "g") -> Sink:
        return ParquetSink(group_id, self.url)

    def stored(self) -> Counter[tuple[int, int]]:
        return places_in(self.store)

    def trace(self) -> object:
        return sorted(meta["path"] for page in self.store.list() for meta in page)


class TestParquetInAzure(TestParquetInAStore):
    """Copies are downloads and conditional puts."""

    url = "az://lake/flights"


class TestSqliteSink(SinkContract):
    """Your sink keeps the contract if these tests pass."""

    @pytest.fixture(autouse=True)
    def file(self, tmp_path):
        self.file = tmp_path / "flights.db"

    def sink(self, group_id="g"):
        return SqliteSink(group_id, {"file": str(self.file)})

    def rows(self, offsets, partition=0):
        columns = {"origin": "JFK", "hour": "2013-01-01 10:00", "cancelled": 0, "delay_total": 5}
        rows = super().rows(offsets, partition)
        for name, value in columns.items():
            rows = rows.append_column(name, pa.array([value] * len(offsets)))
        return rows

    def stored(self):
        with closing(sqlite3.connect(self.file)) as database:
            tables = database.execute("select * from sqlite_master where name = 'flights'").fetchall()
            query = 'select "partition", "offset" from flights'
            return Counter(database.execute(query).fetchall() if tables else [])


def test_the_page_has_the_class_that_runs_here() -> None:
    page = (ROOT / "docs" / "how-to" / "tables" / "write-a-sink.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\nimport sqlite3.*?(class TestSqliteSink.*?)```", page, re.DOTALL)
    assert block.strip() == inspect.getsource(TestSqliteSink).strip()
