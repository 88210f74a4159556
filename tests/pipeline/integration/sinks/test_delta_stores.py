"""A Delta table in an object store: writers that end, stop or lose an answer at any request, and stores that
refuse.

The gate in front of the store is in this process: a call of deltalake that held the interpreter's lock while
it waits would never get its answer.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.delta import store
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support.delta import DeltaFolder
from tests.support.processes import reserve_ports
from tests.support.stores.choice import only
from tests.support.stores.gate import BUCKET, StoreGate
from tests.support.stores.objects import StoreServer, download
from tests.support.stores.writers import (
    ALL,
    ID,
    NO_RETRIES,
    RECORDS,
    TPS,
    Requests,
    check_missing_bucket,
    check_time_limit,
    check_unreachable,
    check_wrong_credentials,
    ending,
    rows,
    write_all,
    write_at_once,
)


@pytest.fixture
def table(store: StoreServer, tmp_path: Path) -> Table:
    return Table(store, tmp_path)


class Table:
    """A table of its own for a test, and copies of it."""

    def __init__(self, store: StoreServer, scratch: Path) -> None:
        self.store, self._scratch = store, scratch
        self.settings: dict[str, Any] = {}
        """Of the sink, beside its options."""
        self.begin()

    def begin(self) -> None:
        """From now on: another table, that is not there yet."""
        self.key = f"tables/{uuid.uuid4().hex}"
        self.address = f"{self.store.scheme}://{BUCKET}/{self.key}"

    def sink(self, url: str = "", **options: str) -> TableSink:
        given = self.store.options(url, **options)
        return delta_sink("g", self.address, options=given, **self.settings)

    def read(self) -> DeltaFolder:
        folder = self._scratch / uuid.uuid4().hex
        return DeltaFolder(download(self.store, self.key, folder))

    def check(self, why: str) -> None:
        """Whether each record is there, and was added up, once."""
        read = self.read()
        assert read.places() == ALL, why
        assert {row.get("records", 1) for row in read.rows()} == {1}, why


def test_each_record_is_there_once(table: Table) -> None:
    write_all(table.sink())
    assert table.read().places() == ALL
    assert table.sink().marks(TPS) == {tp: {ID: RECORDS} for tp in TPS}


MERGE = {"mode": "merge", "key": ["topic", "partition", "offset"], "aggregates": {"records": "count"}}
of_requests = pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param("writes", {}, id="writes"),
        pytest.param("all", {}, id="all", marks=pytest.mark.long),
        pytest.param("writes", MERGE, id="writes-merge", marks=pytest.mark.long),
        pytest.param("all", MERGE, id="all-merge", marks=pytest.mark.long),
    ],
)


@of_requests
@pytest.mark.long
def test_a_worker_that_ends_at_any_request_leaves_each_record_once(
    table: Table, kind: str, settings: dict[str, Any]
) -> None:
    table.settings = settings
    for turn in itertools.count(1):
        table.begin()
        requests = Requests(turn, kind)
        with StoreGate(table.store, ending(requests)) as gate, contextlib.suppress(SinkError):
            write_all(table.sink(gate.url, **NO_RETRIES))
        write_all(table.sink(), 4)
        table.check(f"ended at request {turn}")
        if requests.over:
            break
    assert turn > 10


@of_requests
def test_a_worker_that_goes_on_after_its_successor_has_written_changes_nothing(
    table: Table, kind: str, settings: dict[str, Any]
) -> None:
    """It is stopped within deltalake, too, such as between the data file and the commit. The successor writes
    all in one batch."""
    table.settings = settings
    fenced = 0
    for turn in itertools.count(1):
        table.begin()
        requests = Requests(turn, kind)

        def passing(number: int, method: str, path: str, requests: Requests = requests) -> str:
            if requests.next(method) == 0:
                write_all(table.sink(), 9)
            return StoreGate.PASS

        with StoreGate(table.store, passing) as gate:
            try:
                write_all(table.sink(gate.url))
            except SinkFencedError:
                fenced += 1
        if requests.over:
            break
        table.check(f"stopped at request {turn}")
    assert turn > 10
    assert fenced > 5


@of_requests
@pytest.mark.long
def test_an_answer_that_is_lost_is_borne(table: Table, kind: str, settings: dict[str, Any]) -> None:
    """The store refuses the second try of a commit whose answer was lost; the sink finds that it was made."""
    table.settings = settings
    for turn in itertools.count(1):
        table.begin()
        requests = Requests(turn, kind)

        def passing(number: int, method: str, path: str, requests: Requests = requests) -> str:
            return StoreGate.LOSE if requests.next(method) == 0 else StoreGate.PASS

        with StoreGate(table.store, passing) as gate:
            write_all(table.sink(gate.url))
        table.check(f"request {turn}")
        if requests.over:
            break
    assert turn > 10


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, MERGE], ids=["append", "merge"])
def test_three_workers_at_once_write_each_record_once(table: Table, settings: dict[str, Any]) -> None:
    table.settings = settings
    assert write_at_once(table.sink) == table.read().places()


def test_a_table_that_another_worker_creates_first_keeps_its_columns(table: Table) -> None:
    """It does so when this worker's request to create the table is on its way."""

    def put(sink: TableSink, tp: TopicPartition, column: str) -> None:
        batch = rows(tp, 0, 1).append_column(column, pa.array([1.5]))
        sink.stage(batch, {tp: Range(ID, 0, 1, None)}).publish()

    def passing(number: int, method: str, path: str) -> str:
        if method == "PUT" and not created:
            created.append(path)
            put(table.sink(), TPS[0], "other")
        return StoreGate.PASS

    created: list[str] = []
    with StoreGate(table.store, passing) as gate:
        put(table.sink(gate.url), TPS[1], "own")
    assert created[0].endswith("/_delta_log/00000000000000000000.json")
    read = table.read()
    assert list(read.columns) == ["topic", "partition", "offset", "other", "own"]
    assert [(row["other"], row["own"]) for row in read.rows()] == [(1.5, None), (None, 1.5)]
    assert read.version == 2


@pytest.mark.long
def test_rows_can_be_written_again(table: Table) -> None:
    write_all(table.sink())
    assert table.sink().rewind({TPS[0]: (ID, 2)}) == RECORDS - 2
    assert sum(table.read().places().values()) == RECORDS + 2
    write_all(table.sink())
    assert table.read().places() == ALL


def test_a_rewind_whose_answer_is_lost_tells_how_many_rows_it_removed(table: Table) -> None:
    write_all(table.sink())
    version = table.read().version

    def passing(number: int, method: str, path: str) -> str:
        first = method == "PUT" and path.endswith(f"{version + 1:020d}.json") and not lost
        lost.extend([path] * first)
        return StoreGate.LOSE if first else StoreGate.PASS

    lost: list[str] = []
    with StoreGate(table.store, passing) as gate:
        assert table.sink(gate.url).rewind({TPS[0]: (ID, 2)}) == RECORDS - 2
    assert len(lost) == 1
    assert table.read().version == version + 1


@pytest.mark.parametrize(
    "case",
    [
        "as they are",
        *(pytest.param(case, marks=pytest.mark.long) for case in ("larger than a piece", "without a hint")),
    ],
)
def test_marks_are_found_in_a_checkpoint(table: Table, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = table.sink()
    write_all(old)
    DeltaTable(table.address, storage_options=table.store.options()).create_checkpoint()
    gone = [f"{number:020d}.json" for number in range(table.read().version)]
    gone += ["_last_checkpoint"] if case == "without a hint" else []
    for name in gone:
        table.store.delete(f"{table.key}/_delta_log/{name}")
    if case == "larger than a piece":
        monkeypatch.setattr(store, "_PIECE", 100)
    assert table.sink().marks(TPS) == old.marks(TPS) == {tp: {ID: RECORDS} for tp in TPS}


@pytest.mark.long
def test_another_table_in_the_same_place_is_noticed(table: Table) -> None:
    sink = table.sink()
    write_all(sink)
    for key in table.store.keys(table.key):
        table.store.delete(key)
    with pytest.raises(SinkFencedError):
        sink.stage(
            rows(TPS[0], RECORDS, RECORDS + 1), {TPS[0]: Range(ID, RECORDS, RECORDS + 1, RECORDS)}
        ).publish()
    write_all(sink)
    assert table.read().places() == ALL


def test_the_probe_leaves_nothing(table: Table) -> None:
    sink = table.sink()
    assert sink.probe() == table.address
    assert table.store.keys(table.key) == []
    write_all(sink)
    before = table.store.keys()
    sink.probe()
    assert table.store.keys() == before


# ---- stores that refuse


@only("s3", "azure")
def test_wrong_credentials_are_named(table: Table) -> None:
    check_wrong_credentials(table.store, table.sink, f"the Delta table {table.address}")


@only("s3", "azure")
def test_a_missing_bucket_is_named(table: Table) -> None:
    address = f"{table.store.scheme}://missing/key"
    sink = delta_sink("g", address, options=table.store.options())
    check_missing_bucket(sink, f"the Delta table {address}")


def test_a_store_that_is_away_is_named(table: Table) -> None:
    (port,) = reserve_ports(1)
    sink = table.sink(f"http://127.0.0.1:{port}", **NO_RETRIES)
    check_unreachable(sink, f"the Delta table {table.address}")


def test_a_store_that_does_not_answer_is_left_after_the_time_that_is_set(table: Table) -> None:
    check_time_limit(table.store, lambda url: table.sink(url, timeout="1s", **NO_RETRIES))
