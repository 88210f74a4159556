"""Workers that write Parquet files to an object store: each record once, whichever of them dies."""

from __future__ import annotations

import signal
from collections import Counter

import pyarrow.dataset as ds
import pytest

from tests.support.stores.gate import BUCKET
from tests.support.stores.objects import StoreServer
from tests.support.workers.delivery_site import DeliverySite


def check(site: DeliverySite, store: StoreServer, key: str) -> None:
    """Whether each record is a row or a dead letter, once."""
    read = ds.dataset(f"{BUCKET}/{key}", filesystem=store.file_system(), format="parquet").to_table()
    assert Counter(read["text"].to_pylist()) == Counter(text for text in site.produced if text[0] == "v")
    assert Counter(site.letters()) == Counter(text for text in site.produced if text[0] == "b")


@pytest.mark.long
def test_workers_that_die_leave_each_record_once_in_the_store(site: DeliverySite, store: StoreServer) -> None:
    site.produce(1000, bad_every=10)
    site.die_and_finish(
        "publish",
        sink={
            "format": "parquet",
            "path": f"{store.scheme}://{BUCKET}/dying/flights",
            "options": store.options(),
        },
    )
    check(site, store, "dying/flights")


@pytest.mark.long
def test_three_workers_of_which_one_is_killed_write_each_record_once(
    site: DeliverySite, store: StoreServer
) -> None:
    """Their credentials are in the environment, as in a pod."""
    sink = {"format": "parquet", "path": f"{store.scheme}://{BUCKET}/three", "maxAgeMs": 200}
    environment = {name.upper(): value for name, value in store.options().items()} | {"SLOW_MS": "10"}
    properties = {**site.config()["properties"], "session.timeout.ms": "6000"}
    first, *others = workers = [
        site.worker(name, sink=sink, properties=properties, environment=environment)
        for name in ("w-0", "w-1", "w-2")
    ]
    for worker in workers:
        worker.until("assigned", lambda event: bool(event["partitions"]))
    site.produce(1000, bad_every=10)
    first.until("committed")
    first.signal(signal.SIGKILL)
    site.until_committed(why=site.why)
    for worker in others:
        assert worker.terminate() == 0
    check(site, store, "three")
