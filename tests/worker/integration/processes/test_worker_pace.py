"""A worker whose batches are kept apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import confluent_kafka
import pytest

from tests.support.waiting import WAIT_S
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite
from tests.support.workers.process import WorkerProcess

INTERVAL_MS, LONGEST_MS = 1_000, 5_000


def trickle(site: DeliverySite, worker: WorkerProcess, until: Callable[[], bool]) -> None:
    """Produces a record every 10 ms."""
    producer = confluent_kafka.Producer({"bootstrap.servers": site.bootstrap, "linger.ms": 0})
    pause = threading.Event()
    deadline = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < deadline, worker.why("")
        number = len(site.produced)
        producer.produce(site.topic, f"v-{number}".encode(), partition=number % PARTITIONS)
        site.produced.append(f"v-{number}")
        site.ends[number % PARTITIONS] += 1
        producer.poll(0)
        pause.wait(0.01)
    assert producer.flush(WAIT_S) == 0


@pytest.mark.long
def test_a_slow_flow_is_handled_in_one_batch_an_interval(site: DeliverySite) -> None:
    worker = site.worker(batchIntervalMs=INTERVAL_MS, properties={"session.timeout.ms": "45000"})
    trickle(site, worker, lambda: len(worker.named("batch")) >= 6)
    batches = worker.named("batch")
    span_ms = batches[-1]["ts_ms"] - batches[0]["ts_ms"]
    # Each may be followed by one of what it had missed: a broker that is slow to answer makes a backlog.
    assert len(batches) <= 2 * (span_ms / INTERVAL_MS + 1), span_ms
    site.until_done()
    assert worker.terminate() == 0
    site.check()


@pytest.mark.long
def test_fetched_records_are_handled_before_the_worker_ends(site: DeliverySite) -> None:
    worker = site.worker(batchIntervalMs=LONGEST_MS)

    before = 0

    def waits() -> bool:
        nonlocal before
        before = sum(site.committed().values())
        lag = worker.status()["lag"]
        return len(worker.named("batch")) > 1 and any(lag.values())

    site.produce(PARTITIONS)
    worker.until("batch")
    trickle(site, worker, waits)
    assert worker.terminate() == 0
    between, last = (batch["ts_ms"] for batch in worker.named("batch")[-2:])
    assert last - between < LONGEST_MS, "it does not wait for the next batch's time"
    assert sum(site.committed().values()) > before
    site.worker(batchIntervalMs=LONGEST_MS)
    site.until_done()
    site.check()
