"""A Delta table in an object store: writers that end, stop or lose an answer at any request, and stores that
refuse.

The gate in front of the store is in this process: a call of deltalake that held the interpreter's lock while
it waits would never get its answer.
"""

from __future__ import annotations

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
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support.delta import DeltaFolder
from tests.support.stores.gate import BUCKET, StoreGate
from tests.support.stores.objects import StoreServer, download
from tests.support.stores.writers import (
    ALL,
    ID,
    RECORDS,
    TPS,
    Requests,
    StoppedAtRequests,
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

    def begin(self, bucket: str = BUCKET) -> None:
        """From now on: another table, that is not there yet."""
        self.key = f"tables/{uuid.uuid4().hex}"
        self.address = f"{self.store.scheme}://{bucket}/{self.key}"
        self.title = f"the Delta table {self.address}"

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
CASES = [
    pytest.param("writes", 5, {}, id="writes"),
    pytest.param("all", 5, {}, id="all", marks=pytest.mark.long),
    pytest.param("writes", 5, MERGE, id="writes-merge", marks=pytest.mark.long),
    pytest.param("all", 5, MERGE, id="all-merge", marks=pytest.mark.long),
]


class TestDeltaInStores(StoppedAtRequests):
    cases = stopped_cases = CASES
    most = 9


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, MERGE], ids=["append", "merge"])
def test_three_workers_at_once_write_each_record_once(table: Table, settings: dict[str, Any]) -> None:
    table.settings = settings
    assert write_at_once(table.sink) == table.read().places()


@pytest.mark.parametrize(("kind", "most", "settings"), CASES)
@pytest.mark.long
def test_an_answer_that_is_lost_is_borne(
    table: Table, kind: str, most: int, settings: dict[str, Any]
) -> None:
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
