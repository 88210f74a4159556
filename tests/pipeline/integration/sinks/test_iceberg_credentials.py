"""Iceberg tables in a REST catalog that wants an OAuth2 issuer's tokens and hands out credentials for its
store: both expire while a worker runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from slackwater.pipeline.sinks.compaction import LEAST_FILES
from slackwater.pipeline.sinks.iceberg import maintenance
from slackwater.pipeline.sinks.iceberg.maintenance import IcebergMaintenance
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Range
from tests.support.iceberg.catalogs import Catalog
from tests.support.iceberg.rest import RestCatalogServer
from tests.support.iceberg.vending import SECRET, VendingCatalog
from tests.support.sinks import OLD, A, put, rows
from tests.support.stores.gate import BUCKET
from tests.support.stores.s3 import S3Server

pytestmark = [pytest.mark.long, pytest.mark.parts("iceberg", "s3")]
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path_factory.mktemp("catalog"), s3) as server:
        yield server


@pytest.fixture
def vending(server: RestCatalogServer, s3: S3Server) -> Iterator[VendingCatalog]:
    with VendingCatalog(server, s3) as vending:
        yield vending


@pytest.fixture
def lake(server: RestCatalogServer, s3: S3Server, vending: VendingCatalog) -> Catalog:
    return Catalog(
        server.database, vending.options(), lambda path: s3.read(path.removeprefix(f"s3://{BUCKET}/"))
    )


def test_a_worker_goes_on_when_tokens_and_credentials_expire(lake: Catalog, vending: VendingCatalog) -> None:
    sink = lake.sink()
    assert sink.probe() == lake.table
    for start in range(4):
        vending.expire()
        staged = sink.stage(rows([start]), {A: Range(OLD, start, start + 1, start or None)})
        vending.expire()
        staged.publish()
    vending.expire()
    assert sink.rewind({A: (OLD, 3)}) == 1
    assert lake.read().places() == Counter({(0, offset): 1 for offset in range(3)})
    assert len(vending.tokens) > 5, "each that had expired was followed by another one"
    assert vending.expired < len(vending.tokens), "no credential was used that had expired"


def test_maintenance_goes_on_when_credentials_expire(
    lake: Catalog, vending: VendingCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of its commits of new files."""
    sink = lake.sink(partition_by=["partition"])
    for number in range(3 * LEAST_FILES):
        put(sink, rows([number], partition=number % 3), number)
    commit = IcebergMaintenance._commit

    def expiring(*arguments: Any) -> Any:
        vending.expire()
        return commit(*arguments)

    monkeypatch.setattr(IcebergMaintenance, "_commit", expiring)
    monkeypatch.setattr(maintenance, "_GROUPS_OF_A_COMMIT", 1)
    done = IcebergMaintenance(lake.table, lake.options).run(1 << 20, HOUR_MS)
    assert (done.compacted, done.written) == (3 * LEAST_FILES, 3)
    assert lake.read().places() == Counter({(number % 3, number): 1 for number in range(3 * LEAST_FILES)})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"credential": "slackwater:hush-hush"}, "invalid_client"), ({"scope": "hush-hush"}, "invalid_scope")],
)
def test_what_the_issuer_refuses_is_named(
    lake: Catalog, vending: VendingCatalog, wrong: dict[str, str], said: str
) -> None:
    with pytest.raises(SinkError, match=f"{said}.*; check the credentials") as caught:
        lake.sink(options=vending.options(**wrong)).marks([A])
    assert "hush-hush" not in str(caught.value)
    assert SECRET not in str(caught.value)
