"""A Delta table on HDFS, which deltalake writes by hdfs-native: a commit is a rename to a name that is free.
And files of a format of Spark.

The reader asks WebHDFS for the files, and knows nothing of deltalake.
"""

from __future__ import annotations

import io
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from slackwater.pipeline.sinks.delta.log import TransactionLog
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Range
from tests.support import sinks, sweeps
from tests.support.delta import DeltaFolder
from tests.support.kafka.jars import ROOT
from tests.support.processes import reserve_ports
from tests.support.sinks import OLD, A, rows
from tests.support.stores.hdfs import HdfsServer
from tests.support.stores.objects import download
from tests.support.sweeps import ALL, RECORDS

pytestmark = [pytest.mark.parts("hdfs"), pytest.mark.long]

CALLS: list[tuple[Any, str]] = [
    (deltalake, "write_deltalake"),
    (DeltaTable, "create"),
    (DeltaTable, "create_write_transaction"),
    (TransactionLog, "add"),
    (TableSink, "stage"),
    (StagedRows, "publish"),
]
write_all = partial(sinks.write_all, records=RECORDS)


@pytest.fixture(scope="module")
def hdfs() -> Iterator[HdfsServer]:
    with HdfsServer() as server:
        yield server


@pytest.fixture
def table(hdfs: HdfsServer, tmp_path: Path) -> Table:
    return Table(hdfs, tmp_path)


class Table:
    """A table of its own for a test, and copies of it."""

    def __init__(self, hdfs: HdfsServer, scratch: Path) -> None:
        self.hdfs, self._scratch = hdfs, scratch
        self.begin()

    def begin(self) -> None:
        """From now on: another table, that is not there yet."""
        self.key = f"tables/{uuid.uuid4().hex}"
        self.address = f"{self.hdfs.address}/{self.key}"

    def sink(self) -> TableSink:
        return delta_sink("g", self.address)

    def read(self) -> DeltaFolder:
        return DeltaFolder(download(self.hdfs, self.key, self._scratch / uuid.uuid4().hex))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_worker_that_dies_at_any_step_leaves_each_record_once(table: Table, after: bool) -> None:
    assert sweeps.die_at_each_step(table, CALLS, after=after) > 8


def test_a_worker_that_goes_on_after_its_successor_has_written_changes_nothing(table: Table) -> None:
    turns, fenced = sweeps.go_on_after_a_successor(table, CALLS, after=False)
    assert turns > 8
    assert fenced > 3


def test_three_workers_at_once_write_each_record_once(table: Table) -> None:
    sinks.write_at_once(table.sink, write_all)
    assert table.read().places() == ALL


def test_rows_are_written_again_after_a_rewind(table: Table) -> None:
    write_all(table.sink(), random.Random(1))
    assert table.sink().rewind({A: (OLD, 2)}) == RECORDS - 2
    assert sum(table.read().places().values()) == RECORDS + 2
    write_all(table.sink(), random.Random(2))
    assert table.read().places() == ALL


def test_the_probe_leaves_nothing(table: Table) -> None:
    assert table.sink().probe() == table.address
    assert table.hdfs.keys(f"{table.key}/") == []


def test_a_name_node_that_is_away_is_named() -> None:
    (port,) = reserve_ports(1)
    sink = delta_sink("g", f"hdfs://127.0.0.1:{port}/lake/flights")
    for call in (
        lambda: sink.marks([A]),
        sink.probe,
        lambda: sink.stage(rows([0]), {A: Range(OLD, 0, 1, None)}).publish(),
    ):
        with pytest.raises(SinkError, match=r"hdfs://.*; check that the store can be reached from here"):
            call()


SPARK = """
import sys
from pyspark.sql import SparkSession
from slackwater.pipeline.sinks.spark import spark_sink
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.config.worker_config import parse
from tests.support.sinks import put, rows

config = parse({
    "groupId": "g", "topics": ["t"], "bootstrapServers": "h:1", "handler": "m:f",
    "sink": {"format": "spark", "sparkFormat": "parquet", "options": {"path": sys.argv[1]}},
})
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
sink = spark_sink(config, lambda: spark)
put(sink, rows(range(3)), 0)
put(sink, rows(range(3, 8)), 3)
"""


def test_a_format_of_spark_writes_its_files(table: Table) -> None:
    """In a process of its own: a process has one session of Spark."""
    done = subprocess.run(
        [sys.executable, "-c", SPARK, table.address], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    files = [key for key in table.hdfs.keys(f"{table.key}/") if key.endswith(".parquet")]
    assert len(files) == 2
    tables = [pq.read_table(io.BytesIO(table.hdfs.read(key))) for key in files]
    assert sorted(offset for read in tables for offset in read["offset"].to_pylist()) == list(range(8))
