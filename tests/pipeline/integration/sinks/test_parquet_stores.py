"""Parquet files in an object store: writers that end, stop or lose an answer at any request, and stores that
refuse.

The reader is pyarrow's own file system for the store, which lists the address and leaves out names with a
dot.
"""

from __future__ import annotations

import contextlib
import http.server
import itertools
import os
import uuid
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from slackwater.pipeline.sinks.parquet import commit_log, store
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support.stores.choice import only
from tests.support.stores.gate import BUCKET, StoreGate
from tests.support.stores.objects import StoreServer
from tests.support.stores.writers import (
    ALL,
    ID,
    NO_RETRIES,
    RECORDS,
    TPS,
    Requests,
    StoppedAtRequests,
    ending,
    rows,
    write_all,
    write_at_once,
)


@pytest.fixture
def table(store: StoreServer) -> Table:
    return Table(store)


class Table:
    """A table of its own for a test."""

    def __init__(self, store: StoreServer) -> None:
        self.store = store
        self.settings: dict[str, Any] = {}
        """Of the sink, beside its options."""
        self.begin()

    def begin(self, bucket: str = BUCKET) -> None:
        """From now on: another table, that is not there yet."""
        self.key = f"tables/{uuid.uuid4().hex}"
        self.address = self.title = f"{self.store.scheme}://{bucket}/{self.key}"

    def sink(self, url: str = "", **options: str) -> ParquetSink:
        given = self.store.options(url, **options)
        return ParquetSink("g", self.address, options=given, **self.settings)

    def check(self, why: str) -> None:
        """Whether each record is there once."""
        assert self.places() == ALL, why

    def read(self, **options: Any) -> pa.Table:
        """What a reader sees that knows nothing of the log."""
        files = self.store.file_system()
        return ds.dataset(f"{BUCKET}/{self.key}", filesystem=files, format="parquet", **options).to_table()

    def places(self) -> Counter[tuple[int, int]]:
        read = self.read()
        if not read.num_rows:
            return Counter()
        return Counter(zip(read["partition"].to_pylist(), read["offset"].to_pylist(), strict=True))

    def names(self, below: str) -> list[str]:
        return [key.rpartition("/")[2] for key in self.store.keys(f"{self.key}/{below}")]


def test_rows_are_visible_when_they_are_committed(table: Table) -> None:
    sink = table.sink()
    staged = sink.stage(rows(TPS[0], 0, RECORDS), {TPS[0]: Range(ID, 0, RECORDS, None)})
    assert table.read().num_rows == 0
    staged.publish()
    assert table.places() == Counter({(0, offset): 1 for offset in range(RECORDS)})
    assert table.sink().marks(TPS) == {TPS[0]: {ID: RECORDS}}
    assert table.names(".slackwater/g/staging/") == []


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Often enough that a few batches have one."""
    monkeypatch.setattr(commit_log, "CHECKPOINT_EVERY", 2)


@pytest.mark.usefixtures("checkpoints")
class TestParquetInStores(StoppedAtRequests):
    cases = (
        pytest.param("writes", 9, {}, id="writes"),
        pytest.param("all", 3, {}, id="all", marks=pytest.mark.long),
    )
    """Few batches, or more."""
    stopped_cases = tuple(case._replace(marks=(pytest.mark.long,)) for case in cases)


@pytest.mark.usefixtures("checkpoints")
@pytest.mark.long
def test_three_workers_at_once_write_each_record_once(table: Table) -> None:
    assert write_at_once(table.sink) == table.places()


@pytest.mark.parametrize(("kind", "most"), [("all", 3)])
@pytest.mark.usefixtures("checkpoints")
@pytest.mark.long
def test_an_answer_that_is_lost_changes_nothing(table: Table, kind: str, most: int) -> None:
    """Requests are tried again, or the worker begins anew: also where the commit was made."""
    for turn in itertools.count(1):
        table.begin()
        requests = Requests(turn, kind)

        def passing(number: int, method: str, path: str, requests: Requests = requests) -> str:
            return StoreGate.LOSE if requests.next(method) == 0 else StoreGate.PASS

        with StoreGate(table.store, passing) as gate:
            sink = table.sink(gate.url)
            for _ in range(3):
                with contextlib.suppress(SinkError, SinkFencedError):
                    write_all(sink, most)
                    break
        assert table.places() == ALL, f"request {turn}"
        if requests.over:
            break
    assert turn > 10


def test_a_commit_without_an_answer_keeps_its_files(table: Table) -> None:
    """The batch is given up. But its commit counts, and the next worker puts its rows in place."""

    def passing(number: int, method: str, path: str) -> str:
        return StoreGate.LOSE if method == "PUT" and "/log/" in path else StoreGate.PASS

    with StoreGate(table.store, passing) as gate:
        sink = table.sink(gate.url, **NO_RETRIES)
        staged = sink.stage(rows(TPS[0], 0, RECORDS), {TPS[0]: Range(ID, 0, RECORDS, None)})
        with pytest.raises(SinkError, match="check that the store can be reached"):
            staged.publish()
        staged.discard()
        assert table.read().num_rows == 0
        assert table.sink().marks(TPS) == {TPS[0]: {ID: RECORDS}}
        assert table.places() == Counter({(0, offset): 1 for offset in range(RECORDS)})
        with pytest.raises(SinkFencedError):
            staged.publish()


def test_a_copy_that_is_made_after_its_rows_were_removed_is_refused(table: Table) -> None:
    """A worker is suspended within the copy of a file that it has committed. Another one copies it, and a
    rewind removes the rows."""
    reached: list[str] = []

    def passing(number: int, method: str, path: str) -> str:
        if table.store.is_copy(method, path) and "/.slackwater/" not in path and not reached:
            reached.append(path)
            table.sink().marks(TPS)
            assert table.sink().rewind({TPS[0]: (ID, 2)}) == RECORDS - 2
        return StoreGate.PASS

    with StoreGate(table.store, passing) as gate:
        sink = table.sink(gate.url)
        sink.stage(rows(TPS[0], 0, RECORDS), {TPS[0]: Range(ID, 0, RECORDS, None)}).publish()
    assert len(reached) == 1
    assert table.places() == Counter({(0, 0): 1, (0, 1): 1})
    write_all(table.sink())
    assert table.places() == ALL


def test_rows_are_written_again_after_a_rewind(table: Table) -> None:
    write_all(table.sink(), 2)
    for _ in range(2):
        assert table.sink().rewind({TPS[0]: (ID, 2)}) == RECORDS - 2
        expected = Counter({place: 1 for place in ALL if place < (0, 2) or place >= (1, 0)})
        assert table.places() == expected
        write_all(table.sink())
        assert table.places() == ALL


@pytest.mark.usefixtures("checkpoints")
@pytest.mark.long
def test_a_rewind_that_ends_at_any_request_is_made_or_not_made(table: Table) -> None:
    for turn in itertools.count(1):
        table.begin()
        write_all(table.sink(), 3)
        requests = Requests(turn, "all")
        with StoreGate(table.store, ending(requests)) as gate, contextlib.suppress(SinkError):
            table.sink(gate.url, **NO_RETRIES).rewind({TPS[0]: (ID, 2)})
        end = table.sink().marks(TPS)[TPS[0]][ID]
        assert end in (2, RECORDS)
        expected = {place: 1 for place in ALL if place[0] == 1 or place[1] < end}
        assert table.places() == Counter(expected), f"ended at request {turn}"
        write_all(table.sink())
        assert table.places() == ALL, f"ended at request {turn}"
        if requests.over:
            break
    assert turn > 10


@pytest.mark.usefixtures("checkpoints")
def test_files_that_nobody_can_commit_are_removed_with_a_checkpoint(table: Table) -> None:
    table.sink().stage(rows(TPS[0], 0, 2), {TPS[0]: Range(ID, 0, 2, None)})  # of a worker that died
    (dead,) = table.names(".slackwater/g/staging/")
    table.sink().stage(rows(TPS[1], 0, 2), {TPS[1]: Range(ID, 0, 2, None)})  # of one that is at work
    (alive,) = set(table.names(".slackwater/g/staging/")) - {dead}
    sink = table.sink()
    for start in range(2):
        span = Range(ID, start, start + 1, start or None)
        sink.stage(rows(TPS[0], start, start + 1), {TPS[0]: span}).publish()
    assert table.names(".slackwater/g/staging/") == [alive]
    assert table.names(".slackwater/g/log/") == ["checkpoint-00000000000000000002.json"]


def test_rows_lie_in_the_folders_of_their_values(table: Table) -> None:
    batch = rows(TPS[0], 0, 4).append_column("place", pa.array(["a/b", "ü %41", None, "x=y"]))
    table.settings = {"partition_by": ["place"]}
    sink = table.sink()
    sink.stage(batch, {TPS[0]: Range(ID, 0, 4, None)}).publish()
    read = table.read(partitioning="hive").sort_by("offset")
    assert read["offset"].to_pylist() == [0, 1, 2, 3]
    assert read["place"].to_pylist() == ["a/b", "ü %41", None, "x=y"]
    assert sink.rewind({TPS[0]: (ID, 1)}) == 3
    assert table.read(partitioning="hive").to_pylist() == [
        {"topic": "flights", "partition": 0, "offset": 0, "place": "a/b"}
    ]


def test_a_large_file_is_sent_in_parts(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 5 << 20)
    parts: list[str] = []

    def passing(number: int, method: str, path: str) -> str:
        parts.extend([path] * (table.store.part_mark in path and ".staged" in path))
        return StoreGate.PASS

    noise = pa.array([os.urandom(1 << 20) for _ in range(11)])
    batch = rows(TPS[0], 0, 11).append_column("noise", noise)
    with StoreGate(table.store, passing) as gate:
        table.sink(gate.url).stage(batch, {TPS[0]: Range(ID, 0, 11, None)}).publish()
    assert len(parts) == 3
    assert table.read()["noise"].to_pylist() == noise.to_pylist()


def test_the_probe_leaves_nothing(table: Table) -> None:
    sink = table.sink()
    assert sink.probe() == table.address
    assert table.store.keys(table.key) == []


# ---- stores that refuse


@only("s3")
@pytest.mark.parametrize("ignored", ["put", "copy"])
def test_a_store_that_ignores_conditions_is_refused(table: Table, ignored: str) -> None:
    """By the preflight, and by a worker that finds no commit."""

    def passing(number: int, method: str, path: str) -> str:
        return StoreGate.PASS

    class Careless(StoreGate):
        def _forward(self, client: http.server.BaseHTTPRequestHandler) -> None:
            if (ignored == "put") == (client.command == "PUT"):
                del client.headers["If-None-Match"]
            super()._forward(client)

    with Careless(table.store, passing) as gate:
        sink = table.sink(gate.url)
        for call in (sink.probe, lambda: sink.marks(TPS)):
            with pytest.raises(
                SinkError, match=rf"the {ignored} was to be refused .*Set sink.path to a store"
            ):
                call()
    assert table.store.keys(table.key) == []


def test_credentials_and_settings_come_from_the_environment(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in table.store.options().items():
        monkeypatch.setenv(name.upper(), value)
    write_all(ParquetSink("g", table.address))
    assert table.places() == ALL
