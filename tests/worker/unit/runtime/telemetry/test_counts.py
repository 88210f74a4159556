"""The figures of its own that a worker sends for a rollout's analysis: ``counts`` of /status."""

from __future__ import annotations

import json
import urllib.request

from slackwater.runtime.config.worker_config import HealthConfig
from slackwater.runtime.telemetry.http_server import HealthServer
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status
from tests.support.waiting import HANG_S
from tests.support.workers.fakes import VirtualClock


def test_a_worker_that_has_done_nothing_counts_zero() -> None:
    metrics = Metrics(group="flights", instance="flights-1")
    assert metrics.counts() == {"records": 0, "dead_letters": 0, "handler_failures": 0}


def test_counts_are_sums_over_all_partitions_of_their_own_metric() -> None:
    metrics = Metrics(group="flights", instance="flights-1")
    for labels, records, dead in (
        (("flights", "0"), 40, 1),
        (("flights", "1"), 2, 2),
        (("trains", "0"), 5, 0),
    ):
        metrics.count("records_in", labels, records)
        metrics.count("records_dead", labels, dead)
    for _ in range(4):
        metrics.count("handler_failures")
    assert metrics.counts() == {"records": 47, "dead_letters": 3, "handler_failures": 4}


def test_status_sends_the_counts_of_now() -> None:
    metrics = Metrics(group="flights", instance="flights-1")
    status = Status("flights", "flights-1", VirtualClock(), pod="flights-1")
    server = HealthServer(HealthConfig(), status, metrics)
    server.serve()
    try:
        for records in (3, 10):
            metrics.count("records_in", ("flights", "0"), records)
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/status", timeout=HANG_S) as response:
                assert json.load(response)["counts"] == metrics.counts()
    finally:
        server.close()
    assert metrics.counts()["records"] == 13
