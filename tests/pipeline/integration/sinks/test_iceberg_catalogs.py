"""Iceberg tables in a REST catalog, which is Iceberg's own, and in object stores: writers that end, stop or
lose an answer, and catalogs and stores that refuse."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from slackwater.pipeline.sinks.iceberg import rest
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support import sinks, sweeps
from tests.support.iceberg.catalogs import SINK_CALLS, Catalog, sql_catalog
from tests.support.iceberg.others import OTHERS, append, compact, delete, expire_all
from tests.support.iceberg.rest import TOKEN, RestCatalogServer
from tests.support.sinks import OLD, A, B, marks, put, rows
from tests.support.stores.gate import BUCKET, StoreGate
from tests.support.stores.objects import StoreServer
from tests.support.stores.s3 import S3Server
from tests.support.sweeps import ALL, RECORDS

CALLS: list[tuple[Any, str]] = [
    (RestCatalog, "create_namespace"),
    (RestCatalog, "create_table"),
    (RestCatalog, "load_table"),
    (RestCatalog, "commit_table"),
    *SINK_CALLS,
]


def write_all(sink: sinks.Sink) -> None:
    sinks.write_all(sink, random.Random(1), records=RECORDS)


# ---- a REST catalog


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path_factory.mktemp("catalog")) as server:
        yield server


@pytest.fixture
def lake(server: RestCatalogServer) -> Catalog:
    return Catalog(server.database, server.options())


def rest_catalog(function: Callable[..., None]) -> Callable[..., None]:
    """Marks a test with Iceberg's own REST catalog."""
    return pytest.mark.long(pytest.mark.parts("iceberg")(function))


@rest_catalog
def test_a_table_is_created_and_evolves(lake: Catalog) -> None:
    sink = lake.sink(partition_by=["bucket(4, offset)", "carrier"])
    assert sink.probe() == lake.table
    put(sink, rows(range(9)), 0)
    put(sink, rows([]), 9)
    put(sink, rows([10], carrier=pa.array(["UA"]), gate=pa.array(["B4"])), 10)
    assert sink.rewind({A: (OLD, 5)}) == 5
    put(sink, rows([5]), 5)
    table = lake.read()
    assert table.places() == Counter({(0, offset): 1 for offset in range(6)})
    assert table.marks == {("g", "flights", OLD, 0): 6}
    assert table.partitioning == [("offset", "bucket[4]"), ("carrier", "identity")]
    assert table.columns["gate"] == "string"
    before = table.metadata
    assert lake.sink().probe() == lake.table
    assert lake.read().metadata == before


@rest_catalog
def test_old_metadata_is_left_to_the_catalog(lake: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    """pyiceberg would warn of each file that the server has removed."""
    sink = lake.sink()
    put(sink, rows([0]), 0)
    with lake.other().transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "1"})
    caplog.clear()
    for start in range(1, 5):
        put(sink, rows([start]), start)
    assert len(lake.read().metadata["metadata-log"]) == 1
    assert caplog.messages == []


@rest_catalog
@pytest.mark.long
def test_a_worker_that_dies_at_any_step_leaves_each_record_once(lake: Catalog) -> None:
    assert sweeps.die_at_each_step(lake, CALLS, after=True) > 15


@rest_catalog
@pytest.mark.long
def test_a_worker_that_goes_on_after_its_successor_has_written_changes_nothing(lake: Catalog) -> None:
    turns, fenced = sweeps.go_on_after_a_successor(lake, CALLS, after=False)
    assert turns > 15
    assert fenced > 5


@rest_catalog
@pytest.mark.long
def test_three_workers_at_once_write_each_record_once(lake: Catalog) -> None:
    sweeps.create_at_once(lake)


@rest_catalog
@pytest.mark.parametrize("action", [StoreGate.LOSE, pytest.param(StoreGate.REFUSE, marks=pytest.mark.long)])
def test_an_answer_or_a_request_that_is_lost_leaves_each_record_once(
    server: RestCatalogServer, lake: Catalog, action: str
) -> None:
    """Of each commit in turn. A commit that was made, but not answered, is not made again, and no error."""
    for turn in range(1, 4):
        lake.begin()
        commits = []

        def passing(
            number: int, method: str, path: str, turn: int = turn, commits: list[str] = commits
        ) -> str:
            if method == "POST" and path.endswith("/tables/flights"):
                commits.append(path)
                if len(commits) == turn:
                    return action
            return StoreGate.PASS

        with StoreGate(server, passing) as gate:
            sink = lake.sink(options=server.options(gate.url))
            with contextlib.nullcontext() if action == StoreGate.LOSE else pytest.raises(SinkError):
                write_all(sink)
        assert len(commits) >= turn
        write_all(lake.sink())
        assert lake.read().places() == ALL


@rest_catalog
@pytest.mark.parametrize(
    "change",
    [pytest.param(change, marks=() if change is append else pytest.mark.long) for change in OTHERS],
    ids=lambda change: change.__name__,
)
def test_commits_of_other_processes_lose_no_mark_and_no_row(
    lake: Catalog, change: Callable[[Catalog], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come between a batch's reading of the table and its commit, and so does the end of snapshots."""
    sink = lake.sink()
    put(sink, rows([0]), 0)
    put(sink, rows([0], partition=1), 0, tp=B)
    commit = RestCatalog.commit_table

    def once(*arguments: Any) -> Any:
        monkeypatch.setattr(RestCatalog, "commit_table", commit)
        change(lake)
        return commit(*arguments)

    staged = sink.stage(rows([1]), {A: Range(OLD, 1, 2, 1)})
    former = lake.sink().stage(rows([1]), {A: Range(OLD, 1, 2, 1)})
    monkeypatch.setattr(RestCatalog, "commit_table", once)
    staged.publish()
    compact(lake)
    expire_all(lake)
    expected = Counter({(0, 0): 1, (1, 0): 1, (0, 1): 1})
    if change is delete:
        expected = Counter({(0, 1): 1})
    if change is append:
        expected[None, None] = 1  # type: ignore[index]
    assert lake.read().places() == expected
    assert marks(lake.sink()) == {A: 2, B: 1}
    with pytest.raises(SinkFencedError):
        former.publish()
    assert lake.read().places() == expected


@rest_catalog
def test_a_wrong_token_is_named(server: RestCatalogServer, lake: Catalog) -> None:
    put(lake.sink(), rows([0]), 0)
    sink = lake.sink(options=server.options(token="wrong-one"))
    for call in (lambda: sink.marks([A]), sink.probe, lambda: put(sink, rows([1]), 1)):
        with pytest.raises(SinkError, match=r"Not authorized.*; check the credentials") as caught:
            call()
        assert "wrong-one" not in str(caught.value)
        assert TOKEN not in str(caught.value)


@rest_catalog
def test_a_credential_may_be_in_the_environment(
    server: RestCatalogServer, lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod has it from a Secret. The catalog gives a token for it."""
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__CREDENTIAL", f"{TOKEN}:sesame")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__OAUTH2_SERVER_URI", f"{server.url}/v1/oauth/tokens")
    options = {"type": "rest", "uri": server.url}
    put(lake.sink(options=options), rows([0]), 0)
    assert lake.read().places() == Counter({(0, 0): 1})
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__CREDENTIAL", "somebody:sesame")
    with pytest.raises(SinkError, match=r"Not authorized.*; check the credentials") as caught:
        lake.sink(options=options).marks([A])
    assert "sesame" not in str(caught.value)


@rest_catalog
def test_a_catalog_that_does_not_answer_is_not_waited_for(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sink = lake.sink(options={"type": "rest", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        with pytest.raises(SinkError, match=r"cannot connect to the catalog of .* timed out.*; check that"):
            sink.marks([A])


# ---- object stores


def in_store(store: StoreServer, folder: Path, warehouse: str = f"{BUCKET}/warehouse") -> Catalog:
    """A SQL catalog whose tables are in ``store``."""
    address = f"{store.iceberg_scheme}://"
    catalog = sql_catalog(folder, f"{address}{warehouse}", **store.iceberg_properties())
    return Catalog(
        folder / "catalog.db",
        catalog.options,
        lambda path: store.read(path.removeprefix(f"{address}{BUCKET}/")),
    )


def test_a_table_in_a_store_has_each_record_once(store: StoreServer, tmp_path: Path) -> None:
    lake = in_store(store, tmp_path)
    assert lake.sink().probe() == lake.table
    write_all(lake.sink(partition_by=["partition"]))
    assert lake.read().places() == ALL
    sink = lake.sink()
    assert sink.rewind({A: (OLD, 2)}) == RECORDS - 2
    write_all(sink)
    assert lake.read().places() == ALL
    before = files(store)
    sink.probe()
    assert files(store) == before


def files(store: StoreServer) -> set[str]:
    """Without the folders, which pyarrow keeps as objects."""
    keys = store.keys()
    return {key for key in keys if not key.endswith("/") and "." in key.rpartition("/")[2]}


@pytest.mark.long
def test_a_worker_that_dies_at_any_step_leaves_each_record_once_in_a_store(
    store: StoreServer, tmp_path: Path
) -> None:
    assert sweeps.die_at_each_step(in_store(store, tmp_path), SINK_CALLS, after=True) > 8


@pytest.mark.long
def test_a_worker_that_goes_on_after_its_successor_has_written_to_a_store_changes_nothing(
    store: StoreServer, tmp_path: Path
) -> None:
    turns, fenced = sweeps.go_on_after_a_successor(in_store(store, tmp_path), SINK_CALLS, after=False)
    assert turns > 8
    assert fenced > 3


@pytest.mark.parts("s3")
def test_a_bucket_that_is_missing_and_wrong_credentials_are_named(s3: S3Server, tmp_path: Path) -> None:
    lake = in_store(s3, tmp_path, "nowhere/warehouse")
    sink = lake.sink()
    for call in (sink.probe, lambda: put(sink, rows([0]), 0)):
        with pytest.raises(SinkError, match="bucket.*; create what is missing, or correct sink.options"):
            call()
    lake = in_store(s3, tmp_path)
    lake.begin()
    with s3.refusing_credentials():
        sink = lake.sink()
        for call in (sink.probe, lambda: put(sink, rows([0]), 0)):
            with pytest.raises(SinkError, match="; check the credentials") as caught:
                call()
            assert "test-secret-key" not in str(caught.value)
