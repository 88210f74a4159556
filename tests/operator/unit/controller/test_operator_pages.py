"""The operator's pages for people."""

from __future__ import annotations

from typing import Any

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.worker_status import StoppedPartition, WorkerStatus
from slackwater_operator.telemetry.pages import group_page, overview_page

NOW_MS = 1_700_000_100_000
TP = TopicPartition("flights", 0)


def condition(kind: str, status: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": "Why",
        "message": message,
        "lastTransitionTime": "2023-11-14T22:13:20Z",
    }


def resource(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "air", "name": name}, "spec": {}, "status": status}


def test_the_overview_names_each_group_its_cause_and_its_page() -> None:
    waiting = condition("Ready", "False", "2 of 3 workers are ready: <w-1> has failed")
    status = {"readyReplicas": 2, "desiredReplicas": 3, "lag": 1200, "generation": 9}
    groups = [resource("trains"), resource("flights", conditions=[waiting], **status)]
    body = overview_page("slackwater-0", leads=True, resources=groups, now_ms=NOW_MS).decode()
    assert "slackwater-0 leads" in body
    assert body.index("/groups/air/flights") < body.index("/groups/air/trains")
    row = body[body.index("/groups/air/flights") :]
    assert '<span class="bad">False</span>' in row
    assert "1 min 40 s ago" in row
    assert "2 of 3 ready" in row
    assert "1,200" in row
    assert "&lt;w-1&gt; has failed" in row
    assert "has not written a status yet" in body


def test_a_replica_that_waits_says_that_another_leads() -> None:
    body = overview_page("slackwater-1", leads=False, resources=[], now_ms=NOW_MS).decode()
    assert "waits: another replica of the operator leads" in body


def test_a_group_has_its_conditions_and_workers() -> None:
    conditions = [condition("Ready", "True", "all is well"), condition("Degraded", "True", "no budget")]
    stopped = StoppedPartition(TP, "LogTruncated", "set the offset")
    workers = {
        "flights-1": None,
        "flights-0": WorkerStatus(
            "running", generation=9, assignment=frozenset({TP}), lag={TP: 77}, stopped=(stopped,)
        ),
    }
    body = group_page(resource("flights", conditions=conditions), workers, NOW_MS).decode()
    assert '<td>Degraded</td><td><span class="bad">True</span>' in body, "False would be good"
    assert '<td>Ready</td><td><span class="well">True</span>' in body
    assert body.index("flights-0") < body.index("flights-1")
    assert '<span class="well">running</span>' in body
    assert '<td class="number">77</td>' in body
    assert "set the offset" in body
    assert "did not answer" in body
    assert "the spec is invalid" in body, "what explain says"
    assert body.count("no budget") == 1
