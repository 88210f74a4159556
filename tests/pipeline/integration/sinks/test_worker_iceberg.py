"""Workers that write to an Iceberg table: each record once, whichever dies, read without pyiceberg."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.support.iceberg.reader import IcebergFiles
from tests.support.workers.delivery_site import DeliverySite

TABLE = "lake.flights"


def sink(site: DeliverySite, **options: str) -> dict[str, object]:
    place = {"uri": f"sqlite:///{site.folder}/catalog.db", "warehouse": f"file://{site.folder}/warehouse"}
    by = ["bucket(3, offset)"]
    return {"format": "iceberg", "table": TABLE, "options": {**place, **options}, "partitionBy": by}


def places(site: DeliverySite) -> Counter[tuple[int, int]]:
    return IcebergFiles(site.folder / "catalog.db", TABLE).places()


def test_workers_that_die_leave_each_record_once_in_the_table(site: DeliverySite) -> None:
    site.produce(400, bad_every=10)
    site.die_and_finish("publish", sink=sink(site))
    assert places(site) == site.good_places()
    assert Counter(site.letters()) == Counter(site.bad())


@pytest.mark.long
def test_rows_of_an_iceberg_table_are_written_again_after_a_rewind(site: DeliverySite) -> None:
    site.produce(400)
    for _ in range(2):
        worker = site.worker(sink=sink(site))
        site.until_committed(why=site.why)
        assert worker.terminate() == 0
        site.remove_members("w-0")
        assert places(site) == site.good_places()
        file = site.folder / "rewind.yaml"
        file.write_text(json.dumps(site.config(sink=sink(site))))
        command = [sys.executable, "-m", "slackwater", "rewind", "--config", str(file), f"{site.topic}:2:60"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[0] == "removed 40 rows"
        left = {place: 1 for place in site.good_places() if place < (2, 60) or place >= (3, 0)}
        assert places(site) == Counter(left)


@pytest.mark.long
def test_a_worker_whose_catalog_cannot_be_used_says_so(site: DeliverySite) -> None:
    site.produce(10)
    worker = site.worker(sink=sink(site, uri="sqlite:////nowhere/catalog.db"))
    assert worker.wait() == 4
    assert "the sink cannot connect to the catalog of the Iceberg table lake.flights" in worker.stderr
    worker = site.worker(sink=sink(site, type="glue"))
    assert worker.wait() == 2
    assert "sink.options.type: must be rest or sql, not glue" in worker.stderr
