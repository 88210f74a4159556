"""What a turn writes into the status is in its schema: the API server drops what is not, and says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1 import status_schema
from slackwater_operator.model.worker_status import Skip
from slackwater_operator.planner import status_memory as memory
from slackwater_operator.planner.rewind.memory import RewindMemory
from slackwater_operator.planner.status_memory import DecisionRecord, Failed, RolloutMemory, Tries, UnderWay
from slackwater_operator.policies.conditions import TYPES, ConditionsInput, conditions
from slackwater_operator.policies.rollout.steps import StepState
from slackwater_operator.policies.scaling.autoscaler import Autoscaler
from slackwater_operator.policies.scaling.types import ScalingDecision, ScalingPolicy
from slackwater_operator.policies.takeover.types import RESTART, Moving

TYPES_OF: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


def strangers(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    """What the schema does not know, or knows to be something else."""
    if not isinstance(value, TYPES_OF[schema["type"]]):
        return [f"{path}: {type(value).__name__}, not {schema['type']}"]
    if isinstance(value, dict):
        return [
            stranger
            for key, member in value.items()
            for stranger in (
                strangers(member, schema["properties"][key], f"{path}.{key}")
                if key in schema["properties"]
                else [f"{path}.{key}: not in the schema"]
            )
        ]
    if isinstance(value, list):
        return [
            stranger
            for at, item in enumerate(value)
            for stranger in strangers(item, schema["items"], f"{path}[{at}]")
        ]
    return []


def part(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = status_schema.schema()["properties"][name]
    return schema


def test_the_status_of_a_rollout_is_in_the_schema() -> None:
    rollout = RolloutMemory(
        phase="Rolling",
        target="flights-1",
        good="flights-0",
        failed=Failed("abc", "it crashed", "1"),
        tries=Tries("abd", "no topic", 2, 3_000, "1"),
        passed="abd",
        updated=2,
        under_way=(UnderWay("flights-1", "uid", 7, 12, 1_000, 2_000),),
        since_ms=900,
        reason="because",
        from_set="flights-a",
        to_set="flights-b",
        moving=Moving(3, 1_000, 7, 12, RESTART, told_ms=1_100, tells=2, to="flights-b"),
        ended_ms=1_050,
        expected_rebalance="the topics change",
        wanted="abd",
        good_revision="abc",
        step=StepState("abd", "v1", 2, 900, "1 now", 910, 920, 1, 2, "letters is 0"),
    )
    saved = rollout.dump()
    assert strangers(saved, part("rollout"), "rollout") == []
    assert set(saved) == set(part("rollout")["properties"])
    assert set(saved["underWay"][0]) == set(part("rollout")["properties"]["underWay"]["items"]["properties"])
    assert set(saved["moving"]) == set(part("rollout")["properties"]["moving"]["properties"])
    assert set(saved["step"]) == set(part("rollout")["properties"]["step"]["properties"])
    assert memory.parse({"rollout": saved}).rollout == rollout


def test_the_status_of_a_rewind_is_in_the_schema() -> None:
    rewind = RewindMemory("flights:3:4200", "Done", 1_000, 2_000, "Rewound", "removed 7 rows")
    saved = rewind.dump()
    assert strangers(saved, part("rewind"), "rewind") == []
    assert set(saved) == set(part("rewind")["properties"])
    assert memory.parse({"rewind": saved}).rewind == rewind


@pytest.mark.parametrize(
    "saved",
    ["x", {}, {"phase": "Done"}, {"request": "a", "phase": "Flying"}, {"request": 3, "phase": "Done"}],
)
def test_a_rewind_that_somebody_has_written_over_is_ignored(saved: object) -> None:
    assert memory.parse({"rewind": saved}).rewind is None


def test_decisions_and_gaps_are_in_the_schema() -> None:
    assert (
        strangers([DecisionRecord(1, "scaling", "step", "why").dump()], part("decisions"), "decisions") == []
    )
    assert part("decisions")["maxItems"] >= memory.DECISIONS_KEPT
    assert part("restartGapsMs")["maxItems"] >= memory.GAPS_KEPT


def test_the_status_of_the_scaling_is_in_the_schema() -> None:
    decision = ScalingDecision(
        4.2,
        "maxReplicas",
        "window",
        4,
        "why",
        skewed=(TopicPartition("flights", 3),),
        capped=4,
        summary="why",
    )
    scaler = Autoscaler(ScalingPolicy(1, 8, 60_000, None), window_ms=1_000, down_window_ms=1, settle_ms=1)
    scaler.restore(
        {
            "lastStep": {"before": 2, "after": 4, "at": 1_000, "consumedPerS": 10.5, "tookMs": 900},
            "ceiling": {"replicas": 5, "untilMs": 9_000},
            "tooFew": {"replicas": 2, "untilMs": 9_000},
            "settleMs": 900,
            "lostMs": 300,
            "capacityPerS": 1200.0,
            "partitions": 12,
        },
        now_ms=2_000,
    )
    saved = {**scaler.dump(), **decision.dump()}
    assert {"lastStep", "ceiling", "tooFew", "raw", "skewed"} <= set(saved)
    assert strangers(saved, part("scaling"), "scaling") == []


def test_the_conditions_are_in_the_schema() -> None:
    message = conditions(ConditionsInput(generation=3), [], now_ms=1_000)
    assert strangers(message, part("conditions"), "conditions") == []
    assert all(name in part("conditions")["description"] for name in TYPES)


def test_the_check_finds_fields_that_the_schema_lacks() -> None:
    assert strangers({"phases": "x"}, part("rollout"), "rollout") == ["rollout.phases: not in the schema"]
    assert strangers({"updated": "x"}, part("rollout"), "rollout") == ["rollout.updated: str, not integer"]


def test_the_skipped_records_are_in_the_schema() -> None:
    skip = Skip(TopicPartition("flights", 3), 10, 20, "retention", 5)
    assert strangers([memory.dump_skip(skip)], part("skipped"), "skipped") == []
