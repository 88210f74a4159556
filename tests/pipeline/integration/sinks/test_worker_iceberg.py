"""Workers that write to an Iceberg table: each record once, whichever dies, read without pyiceberg."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.iceberg.reader import IcebergFiles
from tests.support.workers.delivery_site import DeliverySite
from tests.support.workers.tables import WorkersOfTable

TABLE = "lake.flights"


def sink(site: DeliverySite, **options: str) -> dict[str, object]:
    place = {"uri": f"sqlite:///{site.folder}/catalog.db", "warehouse": f"file://{site.folder}/warehouse"}
    by = ["bucket(3, offset)"]
    return {"format": "iceberg", "table": TABLE, "options": {**place, **options}, "partitionBy": by}


@pytest.mark.long
class TestIceberg(WorkersOfTable):
    def sink(self, site: DeliverySite, **more: Any) -> dict[str, object]:
        return sink(site)

    def places(self, site: DeliverySite) -> Counter[tuple[int, int]]:
        return IcebergFiles(site.folder / "catalog.db", TABLE).places()


@pytest.mark.long
def test_a_worker_whose_catalog_cannot_be_used_says_so(site: DeliverySite) -> None:
    site.produce(10)
    worker = site.worker(sink=sink(site, uri="sqlite:////nowhere/catalog.db"))
    assert worker.wait() == 4
    assert "the sink cannot connect to the catalog of the Iceberg table lake.flights" in worker.stderr
    worker = site.worker(sink=sink(site, type="glue"))
    assert worker.wait() == 2
    assert "sink.options.type: must be rest or sql, not glue" in worker.stderr
