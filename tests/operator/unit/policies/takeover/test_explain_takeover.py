"""What `slackwater explain` says of a rollout by takeover."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater_operator.policies.explanations import explain

NOW_MS = 1_790_000_100_000


def explained(rollout: dict[str, Any]) -> list[str]:
    resource = {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "flights", "namespace": "default", "generation": 2},
        "spec": {
            "kafka": {"bootstrapServers": "kafka:9092"},
            "topics": ["flights"],
            "pipeline": {"handler": "flights:keep", "engine": "arrow", "sink": {"path": "/data"}},
            "rollout": {"strategy": "Takeover"},
        },
        "status": {"observedGeneration": 2, "desiredReplicas": 3, "rollout": rollout},
    }
    return [line.strip() for line in explain(resource, NOW_MS).lines()]


TWO = {"phase": "Rolling", "fromSet": "flights-a", "toSet": "flights-b", "since": NOW_MS - 30_000}


def test_the_explanation_names_the_takeover_and_what_it_waits_for() -> None:
    moving = {"ordinal": 2, "sinceMs": NOW_MS - 12_000, "by": "takeover", "toldMs": 0}
    lines = explained({**TWO, "reason": "flights-b-2 is warming", "moving": moving})
    assert "Rolling for 30 s (flights-b-2 is warming)" in lines
    assert "workers move from StatefulSet flights-a to flights-b" in lines
    assert "flights-b-2 takes over flights-2 from flights-a-2, for 12 s" in lines
    assert any(
        line.startswith("the takeover continues when flights-b-2 is in standby and the group is stable")
        for line in lines
    )


def test_the_explanation_names_a_successor_that_was_asked() -> None:
    moving = {"ordinal": 2, "sinceMs": NOW_MS - 12_000, "by": "takeover", "toldMs": NOW_MS - 3_000}
    lines = explained({**TWO, "moving": moving})
    assert any(line.endswith("for 12 s; asked to take over 3 s ago") for line in lines)
    assert any("when flights-b-2 has run without errors for a while" in line for line in lines)


def test_the_explanation_names_a_move_by_restart() -> None:
    moving = {"ordinal": 1, "sinceMs": NOW_MS - 1_000, "by": "restart", "toldMs": 0}
    lines = explained({**TWO, "moving": moving})
    said = "flights-1 moves by restart: flights-a-1 stops before flights-b-1 starts consuming, for 1 s"
    assert said in lines
    assert any("continues when flights-b-1 runs" in line for line in lines)


def test_the_explanation_says_when_the_next_takeover_begins() -> None:
    lines = explained(TWO)
    assert any(
        line.startswith("the next takeover begins when all workers are in the group") for line in lines
    )


@pytest.mark.parametrize(
    "rollout",
    [
        {"phase": "Idle"},
        {"phase": "Rolling", "toSet": 7, "fromSet": ["x"], "moving": "y"},
        {**TWO, "moving": {"ordinal": "two"}},
        {**TWO, "moving": {"ordinal": 2, "sinceMs": "then", "toldMs": None}},
    ],
)
def test_a_status_written_by_hand_is_read_as_far_as_it_makes_sense(rollout: dict[str, Any]) -> None:
    assert explained(rollout)[0].startswith("ConsumerGroup default/flights")


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def test_a_message_stands_once() -> None:
    failing, missing = "w-1 exits with 2", "w-1 is not in the group"
    conditions = [
        _condition("Ready", "False", "WorkerFailing", failing),
        _condition("Stable", "False", "NotSettled", missing),
        _condition("RolledOut", "False", "Rolling", "1 of 3 workers is updated"),
        _condition("Degraded", "True", "WorkerFailing", f"{failing}; no Secret"),
    ]
    rollout = {"phase": "Rolling", "reason": "1 of 3 workers is updated"}
    lines = explain({"metadata": {}, "spec": {}, "status": {"conditions": conditions, "rollout": rollout}}, 0)
    text = "\n".join(lines.lines())
    for message in (failing, missing, "1 of 3 workers is updated", "no Secret"):
        assert text.count(message) == 1, text
    for head in ("Ready=False WorkerFailing", "Stable=False NotSettled", "Degraded=True WorkerFailing"):
        assert head in text
