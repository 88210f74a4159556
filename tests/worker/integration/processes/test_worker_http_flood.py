"""A worker under a flood of HTTP requests beats and delivers as without one."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.devbroker import DevBroker
from tests.support.waiting import wait_until
from tests.support.workers.stoppable_site import StoppableSite

HEARTBEATS = 20
HEARTBEAT_INTERVAL_MS = 500
SESSION_MS = 6_000
ROOT = Path(__file__).parents[4]


@contextmanager
def flooded(port: int) -> Iterator[dict[str, int]]:
    """A flood for as long as the block; its answers by status, once it has ended."""
    statuses: dict[str, int] = {}
    command = [
        sys.executable,
        "-m",
        "tests.support.workers.http_flood",
        str(port),
        "/status",
        "/metrics",
        "/join",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as flood:
        try:
            yield statuses
        finally:
            output, _ = flood.communicate()
            statuses.update(json.loads(output))


def intervals(broker: DevBroker, count: int) -> list[float]:
    """Milliseconds between the next so many heartbeats, by the broker's clock."""
    broker.control("POST", "/requests", {"keep": 100_000})

    def beats() -> list[float]:
        requests = broker.control("GET", "/requests")["requests"]
        return [request["at_ms"] for request in requests if request["api"] == "Heartbeat"]

    wait_until(lambda: len(beats()) > count, beats)
    return [after - before for before, after in pairwise(beats())]


@pytest.mark.long
def test_a_worker_sends_heartbeats_and_delivers_under_a_flood(tmp_path: Path) -> None:
    with DevBroker() as broker, StoppableSite(broker.bootstrap, tmp_path, session_ms=SESSION_MS) as site:
        worker = site.start(0)
        site.produce(100)
        worker.until_phase("running")
        site.until_done()
        quiet = intervals(broker, HEARTBEATS)
        with flooded(worker.port) as statuses:
            flood = intervals(broker, HEARTBEATS)
            site.produce(1_000)
            site.until_done()
        site.check()
        assert worker.terminate() == 0
        print(f"\nanswers under the flood: {statuses}")
        for name, gaps_ms in (("quiet", quiet), ("flood", flood)):
            middle = statistics.median(gaps_ms)
            print(f"{name}: {len(gaps_ms)} intervals, median {middle:.0f} ms, longest {max(gaps_ms):.0f} ms")
        assert statuses["200"] > 1_000
        assert statistics.median(flood) < 2 * HEARTBEAT_INTERVAL_MS
        assert max(flood) < SESSION_MS / 2
        assert len(worker.named("joined")) == 1, "the member kept its membership"
