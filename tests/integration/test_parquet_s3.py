"""Parquet files on S3: writers that end, stop or lose an answer at any request, and stores that refuse.

The reader is pyarrow's own file system for S3, which lists the address and leaves out names with a dot.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.parquet import commit_log
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.errors import RecordsError, SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support.processes import reserve_ports
from tests.support.s3 import S3Gate, S3Server
from tests.support.store_writers import (
    ALL,
    ID,
    NO_RETRIES,
    RECORDS,
    TPS,
    Requests,
    check_no_secret,
    failing_calls,
    rows,
    write_all,
)

pytestmark = pytest.mark.parts("s3")

BUCKET = "lake"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture
def table(s3: S3Server) -> Table:
    return Table(s3)


class Table:
    """A table of its own for a test."""

    def __init__(self, s3: S3Server) -> None:
        self.s3 = s3
        self.begin()

    def begin(self) -> None:
        """From now on: another table, that is not there yet."""
        self.key = f"tables/{uuid.uuid4().hex}"

    def sink(self, url: str = "", *, settings: dict[str, Any] | None = None, **options: str) -> ParquetSink:
        given = self.s3.options(url, **options)
        return ParquetSink("g", f"s3://{BUCKET}/{self.key}", options=given, **(settings or {}))

    def read(self, **options: Any) -> pa.Table:
        """What a reader sees that knows nothing of the log."""
        files = fs.S3FileSystem(
            access_key="test-key-id", secret_key="test-secret-key", region="us-east-1",
            endpoint_override=f"127.0.0.1:{self.s3.port}", scheme="http",
        )  # fmt: skip
        return ds.dataset(f"{BUCKET}/{self.key}", filesystem=files, format="parquet", **options).to_table()

    def places(self) -> Counter[tuple[int, int]]:
        read = self.read()
        if not read.num_rows:
            return Counter()
        return Counter(zip(read["partition"].to_pylist(), read["offset"].to_pylist(), strict=True))

    def names(self, below: str) -> list[str]:
        return [key.rpartition("/")[2] for key in self.s3.keys(BUCKET, f"{self.key}/{below}")]


def test_rows_are_visible_when_they_are_committed(table: Table) -> None:
    sink = table.sink()
    staged = sink.stage(rows(TPS[0], 0, RECORDS), {TPS[0]: Range(ID, 0, RECORDS, None)})
    assert table.read().num_rows == 0
    staged.publish()
    assert table.places() == Counter({(0, offset): 1 for offset in range(RECORDS)})
    assert table.sink().marks(TPS) == {TPS[0]: {ID: RECORDS}}
    assert table.names(".slackwater/g/staging/") == []


of_requests = pytest.mark.parametrize(
    "kind", [pytest.param("writes", id="writes"), pytest.param("all", id="all", marks=pytest.mark.long)]
)


@of_requests
def test_a_worker_that_ends_at_any_request_leaves_each_record_once(
    table: Table, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 3)
    for turn in itertools.count(1):
        table.begin()
        requests = Requests(turn, kind)

        def passing(number: int, method: str, path: str, requests: Requests = requests) -> str:
            at = requests.next(method)
            return S3Gate.PASS if at < 0 else S3Gate.REFUSE if at else S3Gate.LOSE

        with S3Gate(table.s3, passing) as gate, contextlib.suppress(SinkError):
            write_all(table.sink(gate.url, **NO_RETRIES), 3)
        write_all(table.sink(), 4)
        assert table.places() == ALL, f"ended at request {turn}"
        if requests.over:
            break
    assert turn > 15
