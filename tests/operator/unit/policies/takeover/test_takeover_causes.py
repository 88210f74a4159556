"""A takeover that is rolled back says whose trouble it was."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater_operator.model.group import GroupView
from tests.operator.unit.policies.takeover.takeover_cases import (
    BOTH,
    DEADLINE_MS,
    NOW,
    A,
    B,
    Case,
    dead,
    decide,
    group,
    moving_since,
    not_in,
    note,
    worker,
)

REFUSED = "f-a-3 answered 401: not by this group's key"
OFTEN = 1 + (DEADLINE_MS + 20_000) // 10_000


def rebalanced(view: GroupView | None = None, **workers: Any) -> Case:
    """f-3 was told in generation 7, and all are in 8."""
    settled = {f"f-a-{number}": worker(A, number, generation=8) for number in range(3)}
    moved = {"f-a-3": not_in(A, 3, "standby", handed_over=True), "f-b-3": worker(B, 3, generation=8)}
    more = {"moving": moving_since(9_000), "group": view or group(4)}
    return Case("", ("stop", 3), **BOTH, workers={**settled, **moved, **workers}, more=more)


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        (rebalanced(**{"f-a-1": dead(A, 1, ended_ms=NOW - 500, trouble="exit code 4: no room on the disk")}),
            "(f-1 does not run: exit code 4: no room on the disk)"),
        (rebalanced(group(4), **{"f-b-3": worker(B, 3, generation=8, trouble="exit code 137")}),
            "(f-b-3: exit code 137)"),
        (rebalanced(GroupView("Stable", tuple(m for m in group(4).members if m.instance_id != "f-0"))),
            "(f-0 is not in the group)"),
    ],
)  # fmt: skip
def test_a_rebalance_names_whose_trouble_it_may_be(case: Case, cause: str) -> None:
    decision = decide(case)
    assert decision.action == "stop"
    assert decision.reason.endswith(f"the group rebalanced meanwhile {cause}")
    assert decision.summary.endswith(cause)


def test_a_rebalance_that_nobody_is_known_to_have_caused() -> None:
    decision = decide(rebalanced())
    assert decision.action == "stop"
    assert decision.reason.endswith("the group rebalanced meanwhile")


@pytest.mark.parametrize("old", [worker(A, 3), not_in(A, 3, "standby")], ids=["served", "unserved"])
def test_a_successor_that_is_refused_repeatedly_says_why(old: Any) -> None:
    pods = {"f-a-3": old, "f-b-3": not_in(B, 3, "standby", trouble=REFUSED)}
    decision = decide(
        Case("", ("stop", 3), **BOTH, workers=pods, more={"moving": moving_since(10_000, tells=OFTEN)})
    )
    assert decision.action == "stop"
    assert decision.reason.endswith(f"still in standby: {REFUSED}")


def test_a_successor_that_does_not_join_says_why() -> None:
    pods = {"f-a-3": dead(A, 3), "f-b-3": not_in(B, 3, "joining", trouble="no broker answers")}
    late = note(3, 60_000, told_ms=moving_since(60_000).told_ms, tells=1)
    decision = decide(Case("", ("stop", 3), **BOTH, workers=pods, more={"moving": late}))
    assert decision.action == "stop"
    assert decision.reason.endswith("has not taken over: no broker answers")
