"""Other ways than by takeover: by restart, back, and out of what a hand has done; situation by situation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slackwater_operator.policies.rollout.restarts import HOPELESS
from slackwater_operator.policies.takeover.decision import FIRST_PROOF_MS, REQUEST_RETRY_MS, Moving
from tests.operator.unit.policies.takeover.takeover_cases import (
    BOTH,
    BUDGET_MS,
    KEYLESS,
    NOW,
    PAUSED,
    POLICY,
    STANDS_BY,
    WARM_MS,
    A,
    B,
    Case,
    by_name,
    check,
    dead,
    group,
    moving_since,
    not_in,
    note,
    worker,
)

AWAY: dict[str, Any] = {"old": (0, 3), "new": (3, 1)}
"""f-3 has left the old set, and has not come back."""


def away(since: int = 1_000, **more: Any) -> Moving:
    return note(since=since, by="restart", **more)


RESTARTS = [
    Case(
        "the predecessor drains",
        ("wait", 3),
        **AWAY,
        workers={"f-a-3": worker(A, 3, phase="draining", terminating=True), **STANDS_BY},
        more={"moving": away(4_999)},
        notes={"since_ms": NOW - 4_999},
    ),
    Case(
        "the predecessor drains for long: it is not away yet",
        ("wait", 3),
        **AWAY,
        workers={"f-a-3": worker(A, 3, phase="draining", terminating=True), **STANDS_BY},
        more={"moving": away(5_000)},
        notes={"since_ms": NOW, "by": "restart"},
    ),
    Case(
        "the successor stands by",
        ("tell", 3),
        **AWAY,
        workers=STANDS_BY,
        more={"moving": away()},
        gives={"predecessor": False, "by": "restart"},
        notes={"generation": 7, "tells": 1},
    ),
    Case(
        "the successor warms up",
        ("tell", 3),
        **AWAY,
        workers={"f-b-3": not_in(B, 3, "warming")},
        more={"moving": away()},
        gives={"predecessor": False},
        notes={"tells": 0, "told_ms": NOW},
    ),
    Case(
        "whatever the group's state",
        ("tell", 3),
        **AWAY,
        workers=STANDS_BY,
        more={"moving": away(), "group": group(4, "PreparingRebalance")},
    ),
    Case(
        "the broker does not answer",
        ("wait", -1),
        **AWAY,
        workers=STANDS_BY,
        more={"moving": away(), "group": None},
        notes={"by": "restart"},
    ),
    Case(
        "it was told just now",
        ("wait", 3),
        **AWAY,
        workers=STANDS_BY,
        more={"moving": away(told_ms=NOW - REQUEST_RETRY_MS + 1)},
    ),
    Case(
        "it was told, and did not hear",
        ("tell", 3),
        **AWAY,
        workers=STANDS_BY,
        more={"moving": away(told_ms=NOW - REQUEST_RETRY_MS, tells=1)},
    ),
    Case(
        "it has joined, and warms up",
        ("wait", 3),
        **AWAY,
        workers={"f-b-3": not_in(B, 3, "warming", generation=7)},
        more={"moving": away(WARM_MS - 1)},
    ),
    Case(
        "it has joined, and never gets warm",
        ("stop", 3),
        **AWAY,
        workers={"f-b-3": not_in(B, 3, "warming", generation=7)},
        more={"moving": away(WARM_MS)},
        says="f-b-3 joined, but does not run within 1 min: it is warming",
    ),
    Case(
        "it may warm up for a shorter time than the budget, and has not joined",
        ("stop", 3),
        **AWAY,
        workers={"f-b-3": not_in(B, 3, "starting")},
        more={"moving": away(BUDGET_MS // 2)},
        policy=replace(POLICY, warm_timeout_ms=BUDGET_MS // 2),
        says="f-b-3 has not joined within 5 s: it is starting",
    ),
    Case(
        "it may warm up for a shorter time than the budget, and that is not over",
        ("wait", 3),
        **AWAY,
        workers={"f-b-3": not_in(B, 3, "starting")},
        more={"moving": away(BUDGET_MS // 2 - 1)},
        policy=replace(POLICY, warm_timeout_ms=BUDGET_MS // 2),
    ),
    Case(
        "it is not started yet",
        ("wait", 3),
        **AWAY,
        workers={"f-b-3": dead(B, 3, trouble="Unschedulable: 0/3")},
        more={"moving": away(BUDGET_MS)},
        says="Unschedulable",
    ),
    Case(
        "it is not started within the budget",
        ("stop", 3),
        **AWAY,
        workers={"f-b-3": dead(B, 3, trouble="Unschedulable: 0/3")},
        more={"moving": away(BUDGET_MS + 1)},
        says="Unschedulable",
    ),
    Case("its pod is not there", ("wait", 3), **AWAY, workers={"f-b-3": None}, more={"moving": away()}),
    Case(
        "it does not answer",
        ("wait", 3),
        **AWAY,
        workers={"f-b-3": not_in(B, 3, "")},
        more={"moving": away()},
    ),
    Case(
        "it fails again and again",
        ("stop", 3),
        **AWAY,
        workers={"f-b-3": dead(B, 3, failures=HOPELESS)},
        more={"moving": away()},
    ),
    Case(
        "it came back in another generation",
        ("stop", 3),
        **AWAY,
        workers={"f-b-3": worker(B, 3, generation=8)},
        more={"moving": away()},
    ),
    Case(
        "it has to prove itself",
        ("wait", 3),
        **AWAY,
        workers={"f-b-3": worker(B, 3, running_since_ms=NOW - FIRST_PROOF_MS + 1)},
        more={"moving": away()},
    ),
    Case(
        "it is back, and the next one goes",
        ("extend", 2),
        **AWAY,
        workers={"f-b-3": worker(B, 3, running_since_ms=NOW - FIRST_PROOF_MS)},
        more={"moving": away()},
        gives={"moved": True, "by": "takeover"},
        notes={"ordinal": 2, "by": "takeover"},
    ),
    Case(
        "it is back, and was the last",
        ("done", -1),
        old=(0, 0),
        new=(0, 4),
        more={"moving": away(ordinal=0)},
        gives={"moved": True, "note": None},
    ),
    Case(
        "a forced rebalance is named",
        ("extend", 2),
        **AWAY,
        workers={
            **{f"f-a-{ordinal}": worker(A, ordinal, generation=8) for ordinal in range(3)},
            "f-b-3": worker(B, 3, generation=8),
        },
        more={"moving": away(), "forced": "the coordinator moved"},
        gives={"moved": True, "unplanned": "the coordinator moved"},
    ),
    Case(
        "a revision without a key: each goes first",
        ("retire", 3),
        policy=KEYLESS,
        gives={"by": "restart"},
        notes={"by": "restart", "to": B},
    ),
    Case("and is paused like a restart", ("wait", 3), policy=replace(KEYLESS, rollout=PAUSED.rollout)),
    Case("and is refused like a restart", ("refuse", 3), policy=KEYLESS, more={"gaps_ms": (BUDGET_MS + 1,)}),
    Case("noted, and not begun", ("retire", 3), policy=KEYLESS, more={"moving": away()}),
    Case(
        "in neither set, and its predecessor drains",
        ("wait", 3),
        old=(0, 3),
        workers={"f-a-3": worker(A, 3, phase="draining", terminating=True)},
        more={"moving": away()},
        policy=KEYLESS,
    ),
    Case(
        "in neither set",
        ("extend", 3),
        old=(0, 3),
        more={"moving": away()},
        policy=KEYLESS,
        gives={"by": "restart"},
        notes={"by": "restart", "since_ms": NOW - 1_000},
    ),
    Case(
        "the only member, in neither set",
        ("extend", 0),
        old=(0, 0),
        more={"moving": away(ordinal=0), "members": 1},
        policy=KEYLESS,
    ),
    Case(
        "in neither set, and the note is lost",
        ("extend", 2),
        old=(0, 2),
        new=(3, 1),
        gives={"by": "restart"},
        notes={"ordinal": 2, "by": "restart"},
    ),
    Case(
        "without a key it joins by itself",
        ("wait", 3),
        **AWAY,
        workers={"f-b-3": not_in(B, 3, "warming", can_hand_over=False)},
        more={"moving": away()},
        policy=KEYLESS,
    ),
]

BACK: dict[str, Any] = {"swapped": True, "back": True}
"""From b, whose revision has failed, to a."""

WAY_BACK = [
    Case(
        "the failed one does not run: at once",
        ("extend", 3),
        old=(0, 3),
        new=(3, 1),
        workers={"f-b-3": dead(B, 3)},
        more={**BACK, "group": group(4, "PreparingRebalance")},
        notes={"to": A},
    ),
    Case(
        "the failed one is silent: it may run",
        ("wait", -1),
        old=(0, 3),
        new=(3, 1),
        workers={"f-b-3": not_in(B, 3, "")},
        more=BACK,
    ),
    Case(
        "the failed one runs: in turn",
        ("wait", -1),
        old=(0, 3),
        new=(3, 1),
        more={**BACK, "group": group(4, "PreparingRebalance")},
    ),
    Case(
        "the broker does not answer",
        ("wait", -1),
        old=(0, 3),
        new=(3, 1),
        workers={"f-b-3": dead(B, 3)},
        more={**BACK, "group": None},
    ),
    Case(
        "another of the failed ones does not run: nobody waits for it",
        ("extend", 2),
        old=(0, 2),
        new=(2, 2),
        workers={"f-b-3": dead(B, 3)},
        more=BACK,
    ),
    Case(
        "the successor was never the member: it goes",
        ("retire", 3),
        **BOTH,
        workers=STANDS_BY,
        more=BACK,
        gives={"moved": True},
    ),
    Case(
        "the successor hangs in its start: it goes",
        ("retire", 3),
        **BOTH,
        workers={"f-b-3": dead(B, 3)},
        more=BACK,
    ),
    Case(
        "the failed one is dead: at once, whatever the group's state",
        ("tell", 3),
        **BOTH,
        workers={
            "f-a-3": not_in(A, 3, "standby", handed_over=True),
            "f-b-3": dead(B, 3, failures=9, trouble="exit code 1"),
        },
        more={**BACK, "group": group(4, "PreparingRebalance")},
        gives={"predecessor": False},
    ),
    Case(
        "also one that warms up yet",
        ("tell", 3),
        **BOTH,
        workers={"f-a-3": not_in(A, 3, "warming"), "f-b-3": dead(B, 3)},
        more={**BACK, "group": group(4, "PreparingRebalance")},
        gives={"predecessor": False},
    ),
    Case(
        "it has joined, and warms up",
        ("wait", 3),
        **BOTH,
        workers={"f-a-3": not_in(A, 3, "warming", generation=7), "f-b-3": dead(B, 3)},
        more=BACK,
    ),
    Case(
        "the failed one runs, and is asked",
        ("tell", 3),
        **BOTH,
        workers={"f-a-3": not_in(A, 3, "standby", handed_over=True)},
        more=BACK,
        gives={"predecessor": True},
    ),
    Case(
        "told again for as long as it takes",
        ("tell", 3),
        **BOTH,
        workers={"f-a-3": not_in(A, 3, "standby", handed_over=True)},
        more={**BACK, "moving": moving_since(REQUEST_RETRY_MS, tells=99, to=A)},
    ),
    Case(
        "another generation is not held against it",
        ("retire", 3),
        **BOTH,
        workers={
            "f-b-3": dead(B, 3),
            **{f"f-a-{ordinal}": worker(A, ordinal, generation=8) for ordinal in range(4)},
        },
        more={**BACK, "moving": moving_since(9_000, to=A)},
        gives={"moved": True},
    ),
    Case(
        "the failed one takes the room of its successor",
        ("retire", 3),
        **BOTH,
        workers={"f-a-3": dead(A, 3, trouble="Unschedulable: 0/3"), "f-b-3": not_in(B, 3, "warming")},
        more=BACK,
        gives={"by": "restart"},
    ),
    Case("nothing has moved", ("done", -1), old=(0, 4), new=(0, 0), more=BACK),
    Case(
        "only exchanged, since the user wants what was before",
        ("retire", 3),
        **BOTH,
        workers=STANDS_BY,
        more={"swapped": True, "moving": moving_since(1_000)},
        gives={"moved": True},
    ),
    Case(
        "exchanged, and upwards",
        ("extend", 2),
        old=(0, 2),
        new=(2, 2),
        more={"swapped": True},
        notes={"to": A, "ordinal": 2},
    ),
]

BY_HAND = [
    Case(
        "all have two pods: one after the other",
        ("wait", 3),
        old=(0, 4),
        new=(0, 4),
        workers={f"f-b-{ordinal}": not_in(B, ordinal, "warming") for ordinal in range(4)},
        notes={"ordinal": 3},
    ),
    Case(
        "in the middle",
        ("withdraw", 2),
        old=(0, 4),
        new=(1, 2),
        workers={f"f-b-{ordinal}": not_in(B, ordinal, "standby") for ordinal in (1, 2)},
    ),
    Case(
        "in the middle, and it serves",
        ("wait", -1),
        old=(0, 4),
        new=(1, 2),
        says="delete the StatefulSet f-b",
    ),
    Case("more ordinals than members", ("wait", -1), old=(0, 4), more={"members": 3}, says="not a member"),
]


CASES = by_name(restarts=RESTARTS, way_back=WAY_BACK, by_hand=BY_HAND)


@pytest.mark.parametrize("name", CASES)
def test_a_situation_leads_to_its_decision(name: str) -> None:
    check(CASES[name])
