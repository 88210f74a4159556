"""The memory in the status: what is written is read back, and what makes no sense is left out."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from slackwater_operator.planner.status_memory import (
    DECISIONS_KEPT,
    Memory,
    RolloutMemory,
    UnderWay,
    parse,
    remember,
)
from slackwater_operator.policies.takeover.types import TAKEOVER, Moving

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
FIELDS = ("rollout", "scaling", "restartGapsMs", "decisions", "conditions", "desiredReplicas")
INNER = (
    "phase",
    "target",
    "good",
    "failed",
    "underWay",
    "updated",
    "since",
    "hash",
    "name",
    "uid",
    "at",
    "kind",
    "type",
    "moving",
    "ordinal",
    "toSet",
    "to",
    "by",
)
STATUSES = st.dictionaries(
    st.sampled_from(FIELDS),
    ANYTHING
    | st.dictionaries(st.sampled_from(INNER), ANYTHING, max_size=6)
    | st.lists(st.dictionaries(st.sampled_from(INNER), ANYTHING, max_size=6), max_size=3),
)


def test_what_is_written_is_read_back() -> None:
    rollout = RolloutMemory(
        phase="Rolling",
        under_way=(
            UnderWay("flights-1", "uid-1", 7, 12, 1_000, None),
            UnderWay("flights-2", "uid-2", -1, None, 5, 9),
        ),
    )
    decisions = remember((), 5, "rollout", "restart flights-1", "the group is Stable")
    status = {
        "rollout": rollout.dump(),
        "desiredReplicas": 4,
        "scaling": {"applied": 4},
        "restartGapsMs": [900, 1_100],
        "decisions": [decision.dump() for decision in decisions],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    document = parse(json.loads(json.dumps(status)))
    assert document == Memory(
        rollout, 4, {"applied": 4}, (900, 1_100), decisions, {"Ready": {"type": "Ready", "status": "True"}}
    )


@given(status=STATUSES | ANYTHING)
def test_whatever_stands_in_a_status_is_read(status: object) -> None:
    parsed = parse(status)
    assert parsed.rollout.phase in (
        "Idle",
        "Preflight",
        "Rolling",
        "Paused",
        "Refused",
        "Stopped",
        "RollingBack",
    )
    assert parse({"rollout": parsed.rollout.dump()}).rollout == parsed.rollout


def test_a_decision_is_kept_once_while_only_its_figures_change() -> None:
    kept = remember((), 1, "scaling", "hold", "need 2.51 of 3")
    assert remember(kept, 2, "scaling", "hold", "need 12.7 of 3") == kept
    assert len(remember(kept, 2, "scaling", "up", "need 12.7 of 3")) == 2
    assert len(remember(kept, 2, "scaling", "hold", "the lag is not known")) == 2
    assert len(remember(kept, 2, "rollout", "hold", "need 2.51 of 3")) == 2


def test_steps_that_follow_each_other_at_once_are_each_kept() -> None:
    """As KEDA's first worker and the HPA's next number: the operator holds in between only if it is quick."""
    kept = remember((), 1, "scaling", "up", "0 to 1: requested by spec.replicas")
    again = remember(kept, 2, "scaling", "up", "1 to 3: requested by spec.replicas")
    assert [step.reason[:6] for step in again] == ["0 to 1", "1 to 3"]
    tried = remember((), 1, "scaling", "up", "1 to 3: need 2.51")
    assert remember(tried, 2, "scaling", "up", "1 to 3: need 2.7") == tried, "the same, tried again"


def test_the_decisions_of_a_long_rollout_leave_the_others() -> None:
    kept = remember((), 1, "scaling", "up", "1 to 3: need 2.51")
    kept = remember(kept, 2, "topics", "kept", "a topic was added")
    for pod in range(3 * DECISIONS_KEPT):
        kept = remember(kept, 3 + pod, "rollout", f"restart flights-{pod}", "the group is Stable")
    assert len(kept) == DECISIONS_KEPT
    assert [decision.kind for decision in kept[:2]] == ["scaling", "topics"]
    assert kept[-1].action == f"restart flights-{3 * DECISIONS_KEPT - 1}"
    assert [decision.at_ms for decision in kept] == sorted(decision.at_ms for decision in kept)
    assert parse({"decisions": [decision.dump() for decision in kept] * 2}).decisions[-1] == kept[-1]


def test_no_more_decisions_are_kept_than_the_last() -> None:
    kept: tuple = ()  # type: ignore[type-arg]
    for number in range(50):
        kept = remember(kept, number, "scaling", f"step{chr(97 + number % 26)}", "because")
    assert len(kept) == DECISIONS_KEPT
    assert kept[-1].at_ms == 49


def test_a_takeover_that_makes_no_sense_is_none() -> None:
    for moving in ({}, {"ordinal": -1}, {"ordinal": "2"}, {"sinceMs": 4}, 7, None):
        assert parse({"rollout": {"moving": moving}}).rollout.moving is None
    read = parse({"rollout": {"moving": {"ordinal": 2, "by": "magic", "toldMs": "x"}}}).rollout.moving
    assert read == Moving(2, 0, -1, None, TAKEOVER)
