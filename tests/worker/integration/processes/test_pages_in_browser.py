"""The pages of worker and operator in a real browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.worker_config import HealthConfig
from slackwater.runtime.telemetry.http_server import HealthServer as WorkerServer
from slackwater.runtime.telemetry.metrics import Metrics as WorkerMetrics
from slackwater.runtime.telemetry.page import worker_page
from slackwater.runtime.telemetry.status import Status
from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.telemetry.http_server import HealthServer as OperatorServer
from slackwater_operator.telemetry.metrics import OperatorMetrics
from slackwater_operator.telemetry.pages import group_page, overview_page
from tests.support.chromium.browser import browse
from tests.support.workers.fakes import VirtualClock, worker_config

pytestmark = pytest.mark.long

NOW_MS = 1_700_000_100_000
NASTY = "<script>document.title = 'changed'</script><img src=x onerror=alert(1)>"


@pytest.fixture
def worker_url() -> Iterator[str]:
    status = Status("flights", "flights-1", VirtualClock(), pod="flights-1", error=NASTY)
    status.phase, status.phase_since_ms, status.generation = "running", NOW_MS - 90_000, 7
    status.assignment = [["flights", number] for number in range(40)]
    status.committed = {f"flights-{number}": 1_000_000 + number for number in range(40)}
    status.lag = {f"flights-{number}": number for number in range(40)}
    status.joins = [{"generation": 7, "at_ms": NOW_MS - 9_000, "kind": "joined", "reason": NASTY}]
    metrics = WorkerMetrics(group="flights", instance="flights-1")
    server = WorkerServer(
        HealthConfig(), status, metrics, page=lambda document: worker_page(document, worker_config(), NOW_MS)
    )
    server.serve()
    yield f"http://127.0.0.1:{server.port}/"
    server.close()


def resource() -> dict[str, Any]:
    since = "2023-11-14T22:13:20Z"
    conditions = [
        {"type": kind, "status": status, "reason": "Why", "message": message, "lastTransitionTime": since}
        for kind, status, message in (("Ready", "False", NASTY), ("Degraded", "True", "a worker fails " * 30))
    ]
    status = {
        "readyReplicas": 2,
        "desiredReplicas": 3,
        "lag": 1200,
        "generation": 7,
        "conditions": conditions,
    }
    return {"metadata": {"namespace": "air", "name": "flights"}, "spec": {}, "status": status}


@pytest.fixture
def operator_url() -> Iterator[str]:
    worker = WorkerStatus("running", generation=7, assignment=frozenset({TopicPartition("flights", 0)}))
    server = OperatorServer(
        OperatorMetrics(),
        lambda: (True, "leading"),
        lambda: (True, "leading"),
        lambda: overview_page("operator-0", leads=True, resources=[resource()], now_ms=NOW_MS),
        lambda namespace, name: group_page(resource(), {"flights-0": worker, "flights-1": None}, NOW_MS),
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0), loop).result()
    yield f"http://127.0.0.1:{server.port}/"
    asyncio.run_coroutine_threadsafe(server.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_browser_shows_the_pages_and_runs_nothing(
    worker_url: str, operator_url: str, tmp_path: Path
) -> None:
    group_url = f"{operator_url}groups/air/flights"
    pages = browse(
        {
            worker_url: tmp_path / "worker.png",
            operator_url: tmp_path / "operator.png",
            group_url: tmp_path / "group.png",
        }
    )
    for url, page in pages.items():
        assert (page.status, page.wide) == (200, False), url
        assert [problem for problem in page.problems if "favicon" not in problem] == [], url
        assert NASTY in page.text, "text, not HTML"
    worker, operator, group = pages.values()
    assert worker.title == "flights-1"
    assert "running for 1 min" in worker.text
    assert "Partitions: 40, lag 780" in worker.text
    assert "1,000,039" in worker.text
    assert "/status" in worker.links
    assert operator.title == "Slackwater operator"
    assert "2 of 3 ready" in operator.text
    assert "/groups/air/flights" in operator.links
    assert "did not answer" in group.text
    assert "/" in group.links
