"""Iceberg tables in AWS Glue: moto's, behind a proxy that compares the versions that updates name."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Sink
from slackwater.testing import SinkContract
from tests.support import sweeps
from tests.support.contracts import CommittedTable
from tests.support.iceberg.catalogs import SINK_CALLS, Catalog
from tests.support.iceberg.glue import GlueServer, use_boto3
from tests.support.sinks import A, marks, put, rows
from tests.support.stores.s3 import S3Server

pytestmark = [pytest.mark.long, pytest.mark.parts("s3")]


@pytest.fixture
def glue(s3: S3Server) -> Iterator[GlueServer]:
    use_boto3()
    with GlueServer(s3) as server:
        yield server


class TestGlue(CommittedTable):
    """A writer stops, too, between reading the version and the update that names it."""

    groups = (*SinkContract.groups, "", "g" * 255)

    @property
    def calls(self) -> Sequence[tuple[Any, str]]:  # type: ignore[override]
        from slackwater.pipeline.sinks.iceberg.glue import BoundedGlueCatalog

        names = ("create_namespace", "create_table", "load_table", "commit_table")
        inner = ("_get_glue_table", "_create_glue_table", "_update_glue_table")
        return [*((BoundedGlueCatalog, name) for name in (*names, *inner)), *SINK_CALLS]

    @pytest.fixture(autouse=True)
    def lake(self, glue: GlueServer, s3: S3Server) -> None:
        self.catalog, self.store = glue.catalog(), s3

    def begin(self) -> None:
        self.catalog.begin()

    def made(self, group_id: str = "g", **settings: Any) -> Sink:
        return self.catalog.sink(group_id, **settings)

    def columns(self) -> dict[str, Any]:
        return self.catalog.read().columns

    def stored(self) -> Counter[tuple[int, int]]:
        exists = self.store.keys(f"glue/{self.catalog.table.split('.')[0]}.db/")
        return self.catalog.read().places() if exists else Counter()

    def trace(self) -> object:
        # Without the folders, which pyarrow keeps as objects.
        return [key for key in self.store.keys("glue/") if "." in key.rpartition("/")[2]]


@pytest.fixture
def lake(glue: GlueServer) -> Catalog:
    return glue.catalog()


def test_an_update_is_refused_if_another_one_has_come_since_its_version_was_read(lake: Catalog) -> None:
    """Each update in turn. One that passed would take the successor's rows, and marks, out of the table."""
    from slackwater.pipeline.sinks.iceberg.glue import BoundedGlueCatalog

    update = [(BoundedGlueCatalog, "_update_glue_table")]
    turns, fenced = sweeps.go_on_after_a_successor(lake, update, after=False)
    assert turns - 1 == fenced > 2


def test_three_workers_at_once_write_each_record_once(lake: Catalog, glue: GlueServer) -> None:
    sweeps.create_at_once(lake)
    assert glue.refused > 0, "they have met each other"


def test_a_commit_whose_answer_is_lost_is_made_once(glue: GlueServer, lake: Catalog) -> None:
    """boto3 sends it again, and Glue refuses that."""
    sink = lake.sink()
    put(sink, rows([0]), 0)
    glue.loses = 1
    put(sink, rows([1]), 1)
    assert (glue.loses, glue.refused) == (0, 1)
    assert lake.read().places() == Counter({(0, 0): 1, (0, 1): 1})
    assert marks(lake.sink())[A] == 2


def test_glue_itself_keeps_no_marks(glue: GlueServer, lake: Catalog) -> None:
    put(lake.sink(), rows([0]), 0)
    put(lake.sink(), rows([1]), 1)
    kept = {name for update in glue.updates for name in update["TableInput"]["Parameters"]}
    assert "metadata_location" in kept
    assert [name for name in kept if name.startswith("slackwater")] == []
    assert lake.read().marks != {}


def test_a_glue_that_does_not_answer_is_not_waited_for(
    glue: GlueServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slackwater.pipeline.sinks.iceberg import glue as bounded

    monkeypatch.setattr(bounded, "ANSWER_S", 0.05)
    monkeypatch.setattr(bounded, "_RETRIES", 0)
    lake = glue.catalog()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sink = lake.sink(options=glue.options(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        with pytest.raises(SinkError, match=r"cannot read the Iceberg table .* timeout.*; check that"):
            sink.marks([A])


def test_a_region_that_is_missing_and_credentials_that_are_refused_are_named(
    glue: GlueServer, lake: Catalog, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    options = glue.options()
    del options["client.region"]
    with pytest.raises(SinkError, match="; set client.region in sink.options"):
        lake.sink(options=options).marks([A])
    with s3.refusing_credentials(), pytest.raises(SinkError, match="; check the credentials") as caught:
        lake.sink().marks([A])
    assert "test-secret-key" not in str(caught.value)
