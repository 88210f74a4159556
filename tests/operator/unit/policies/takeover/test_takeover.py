"""How a takeover begins, situation by situation: each time limit is tried 1 ms before it, and at it."""

from __future__ import annotations

import pytest

from slackwater_operator.model.statefulsets import Ordinals
from slackwater_operator.policies.rollout.restarts import HOPELESS
from slackwater_operator.policies.takeover.decision import REQUEST_RETRY_MS, SLACK_MS, Moving, SetView
from tests.operator.unit.policies.takeover.takeover_cases import (
    BOTH,
    BUDGET_MS,
    DEADLINE_MS,
    MOVING,
    NOW,
    PAUSED,
    STANDS_BY,
    STOPS,
    WARM_MS,
    A,
    B,
    Case,
    by_name,
    check,
    dead,
    group,
    late,
    moving_since,
    not_in,
    note,
    worker,
)

BEGINNING = [
    Case("the highest goes first", ("extend", 3), gives={"note": Moving(3, NOW, 7, 100, to=B)}),
    Case("no members", ("done", -1), old=(0, 0), more={"members": 0}),
    Case("nothing is left", ("done", -1), old=(0, 0), new=(0, 4)),
    Case(
        "nothing is left, and the broker is away", ("done", -1), old=(0, 0), new=(0, 4), more={"group": None}
    ),
    Case("one member", ("extend", 0), old=(0, 1), more={"members": 1}),
    Case("the next below those that moved", ("extend", 1), old=(0, 2), new=(2, 2)),
    Case("the last", ("extend", 0), old=(0, 1), new=(1, 3)),
    Case(
        "the other way it goes upwards",
        ("extend", 2),
        old=(0, 2),
        new=(2, 2),
        more={"swapped": True, "back": True},
    ),
    Case("paused", ("wait", -1), policy=PAUSED, says="paused"),
    Case("the way back is not paused", ("extend", 3), policy=PAUSED, more={"back": True}),
    Case("the broker does not answer", ("wait", -1), more={"group": None}, says="did not describe"),
    Case("a rebalance", ("wait", -1), more={"group": group(4, "PreparingRebalance")}, says="Preparing"),
    Case("one is not in the group", ("wait", -1), more={"group": group(3)}, says="f-3 is not in"),
    Case("one is in another generation", ("wait", -1), workers={"f-a-1": worker(A, 1, generation=6)}),
    Case("one does not answer", ("wait", -1), workers={"f-a-1": not_in(A, 1, "")}, says="f-1"),
    Case("one is restarting", ("wait", -1), workers={"f-a-0": dead(A, 0)}, says="f-0 is not running"),
    Case(
        "one is evicted",
        ("wait", -1),
        workers={"f-a-0": worker(A, 0, terminating=True)},
        says="another actor",
    ),
    Case(
        "one that never comes up with the old revision is not waited for",
        ("extend", 3),
        workers={"f-a-0": dead(A, 0, failures=HOPELESS, trouble="exit code 1", ended_ms=NOW - 500)},
    ),
    Case(
        "one that failed less often is",
        ("wait", -1),
        workers={"f-a-0": dead(A, 0, failures=HOPELESS - 1, trouble="exit code 1", ended_ms=NOW - 500)},
    ),
    Case(
        "the next one itself may be hopeless",
        ("extend", 3),
        workers={"f-a-3": dead(A, 3, failures=HOPELESS, trouble="exit code 1", ended_ms=NOW - 500)},
    ),
    Case("a takeover fits whatever restarts took", ("extend", 3), more={"gaps_ms": (900_000,)}),
    Case(
        "a moved member that fails again and again",
        ("stop", 3),
        old=(0, 3),
        new=(3, 1),
        workers={"f-b-3": dead(B, 3, failures=HOPELESS, trouble="exit code 1")},
        gives={"note": None, "failed": "f-3"},
    ),
    Case(
        "a moved member that failed less often",
        ("wait", -1),
        old=(0, 3),
        new=(3, 1),
        workers={"f-b-3": dead(B, 3, failures=HOPELESS - 1, trouble="exit code 1")},
    ),
]

NOTES = [
    Case("noted, but never begun", ("extend", 3), more=MOVING, notes={"since_ms": NOW}),
    Case("noted, never begun, and paused", ("wait", -1), more=MOVING, policy=PAUSED, gives={"note": None}),
    Case(
        "begun, but never noted", ("tell", 3), **BOTH, workers=STANDS_BY, notes={"told_ms": NOW, "tells": 1}
    ),
    Case(
        "begun, never noted, and not ready",
        ("wait", 3),
        **BOTH,
        workers={"f-b-3": not_in(B, 3, "warming")},
        notes={"since_ms": NOW, "ordinal": 3, "to": B},
    ),
    Case(
        "it was retired, and the note is still there",
        ("extend", 2),
        old=(0, 3),
        new=(3, 1),
        more={"moving": moving_since(9_000)},
        gives={"moved": True},
        notes={"ordinal": 2, "since_ms": NOW},
    ),
    Case(
        "the last was retired, and the note is still there",
        ("done", -1),
        old=(0, 0),
        new=(0, 4),
        more={"moving": moving_since(9_000, 0)},
        gives={"moved": True, "note": None},
    ),
    Case(
        "the note is of a member that has been scaled away",
        ("extend", 3),
        more={"moving": moving_since(9_000, 7)},
        gives={"moved": False},
        notes={"ordinal": 3, "told_ms": 0},
    ),
    Case(
        "the note is of a restart that has been scaled away",
        ("extend", 3),
        more={"moving": note(7, by="restart")},
        gives={"moved": False},
    ),
    Case(
        "the note is of the other direction",
        ("tell", 3),
        **BOTH,
        workers=STANDS_BY,
        more={"moving": moving_since(1_000, to=A)},
        notes={"tells": 1, "to": B},
    ),
    Case(
        "the note is of another member than the one between the sets",
        ("tell", 3),
        **BOTH,
        workers=STANDS_BY,
        more={"moving": moving_since(1_000, 1)},
        notes={"ordinal": 3},
    ),
    Case(
        "the broker is away: the note stays",
        ("wait", -1),
        **BOTH,
        more={**MOVING, "group": None},
        notes={"ordinal": 3},
    ),
]

READY = [
    Case(
        "it stands by",
        ("tell", 3),
        **BOTH,
        workers=STANDS_BY,
        more={"moving": note(generation=5, lag=None)},
        gives={"predecessor": True, "by": "takeover"},
        notes={"generation": 7, "lag": 100, "told_ms": NOW, "tells": 1},
    ),
    Case("paused", ("wait", 3), **BOTH, workers=STANDS_BY, more=MOVING, policy=PAUSED, says="paused"),
    Case(
        "the broker does not answer", ("wait", -1), **BOTH, workers=STANDS_BY, more={**MOVING, "group": None}
    ),
    Case(
        "a rebalance",
        ("wait", 3),
        **BOTH,
        workers=STANDS_BY,
        more={**MOVING, "group": group(4, "CompletingRebalance")},
    ),
    Case(
        "somebody else is away",
        ("wait", 3),
        **BOTH,
        workers={**STANDS_BY, "f-a-1": dead(A, 1)},
        more=MOVING,
        says="f-1 is not running",
    ),
    Case(
        "it is being ended", ("wait", 3), **BOTH, workers={"f-b-3": not_in(B, 3, "standby", terminating=True)}
    ),
    Case("it does not answer", ("wait", 3), **BOTH, workers={"f-b-3": not_in(B, 3, "")}, more=MOVING),
    Case(
        "it was told just now",
        ("wait", 3),
        **BOTH,
        workers=STANDS_BY,
        more={"moving": moving_since(REQUEST_RETRY_MS - 1)},
    ),
    Case(
        "it was told, and stands by still",
        ("tell", 3),
        **BOTH,
        workers=STANDS_BY,
        more={"moving": moving_since(REQUEST_RETRY_MS)},
        notes={"told_ms": NOW, "tells": 2},
    ),
    Case(
        "it was told as often as fits",
        ("tell", 3),
        **BOTH,
        workers=STANDS_BY,
        more={"moving": moving_since(REQUEST_RETRY_MS, tells=(DEADLINE_MS + SLACK_MS) // REQUEST_RETRY_MS)},
    ),
    Case(
        "it was told once more than that",
        ("stop", 3),
        **BOTH,
        workers=STANDS_BY,
        more={
            "moving": moving_since(REQUEST_RETRY_MS, tells=(DEADLINE_MS + SLACK_MS) // REQUEST_RETRY_MS + 1)
        },
    ),
    Case(
        "it has stood by for long: the wait for one in its place begins anew",
        ("wait", 3),
        **BOTH,
        workers=STANDS_BY,
        more={"moving": note(since=WARM_MS // 2)},
        policy=PAUSED,
        notes={"since_ms": NOW},
    ),
    Case(
        "its predecessor has no key: it goes first",
        ("retire", 3),
        **BOTH,
        workers={**STANDS_BY, "f-a-3": worker(A, 3, can_hand_over=False)},
        more={**MOVING, "gaps_ms": (900_000,)},
        gives={"by": "restart", "moved": False},
        notes={"by": "restart", "since_ms": NOW, "generation": 7, "lag": 100},
    ),
    Case(
        "it came after all, when a restart had been noted",
        ("tell", 3),
        **BOTH,
        workers=STANDS_BY,
        more={"moving": note(by="restart")},
        gives={"by": "takeover", "predecessor": True},
        notes={"by": "takeover"},
    ),
    Case(
        "a moved member has no room, which it may have taken",
        ("withdraw", 2),
        old=(0, 3),
        new=(2, 2),
        workers={"f-b-2": not_in(B, 2, "standby"), "f-b-3": dead(B, 3, trouble="Unschedulable: no room")},
        more={"moving": note(2)},
        gives={"note": None},
    ),
]

NOT_READY = [
    Case("it has time yet", ("wait", 3), **late(not_in(B, 3, "warming"), WARM_MS - 1)),
    Case(
        "it is slow",
        ("retire", 3),
        **late(not_in(B, 3, "warming")),
        gives={"by": "restart", "moved": False},
        notes={"by": "restart", "since_ms": NOW, "generation": 7, "lag": 100, "told_ms": 0},
    ),
    Case("it is slow, and no restart is wanted", ("stop", 3), **late(not_in(B, 3, "warming"), policy=STOPS)),
    Case("it has no room yet", ("wait", 3), **late(dead(B, 3, trouble="Unschedulable: 0/3"), WARM_MS - 1)),
    Case("it has no room", ("retire", 3), **late(dead(B, 3, trouble="Unschedulable: 0/3"))),
    Case("its pod is not made yet", ("wait", 3), **late(None, WARM_MS - 1)),
    Case("its pod is not made: a quota", ("retire", 3), **late(None)),
    Case(
        "its pod is not made: a policy",
        ("wait", 3),
        **{**late(None), "more": {"moving": note(since=WARM_MS), "held_up": {"f-b-3": "denied"}}},
        notes={"since_ms": NOW},
    ),
    Case("it cannot start", ("wait", 3), **late(dead(B, 3, trouble="ImagePullBackOff"), WARM_MS - 1)),
    Case(
        "it cannot start, whatever the fallback", ("stop", 3), **late(dead(B, 3, trouble="ImagePullBackOff"))
    ),
    Case("it failed once, and is slow", ("stop", 3), **late(not_in(B, 3, "warming", failures=1))),
    Case("it never answers, and has time yet", ("wait", 3), **late(not_in(B, 3, ""), WARM_MS - 1)),
    Case("it never answers", ("stop", 3), **late(not_in(B, 3, ""))),
    Case(
        "it fails again and again",
        ("stop", 3),
        **late(dead(B, 3, failures=HOPELESS, trouble="exit code 2"), 1_000),
        says="exit code 2",
    ),
    Case("it fails", ("wait", 3), **late(dead(B, 3, failures=HOPELESS - 1, trouble="exit code 2"), 1_000)),
    Case(
        "a restart would not fit the session",
        ("refuse", 3),
        **{
            **late(not_in(B, 3, "warming")),
            "more": {"moving": note(since=WARM_MS), "gaps_ms": (BUDGET_MS + 1,)},
        },
        gives={"by": "restart"},
        notes={"by": "takeover", "since_ms": NOW - WARM_MS},
    ),
    Case(
        "a restart just fits",
        ("retire", 3),
        **{**late(not_in(B, 3, "warming")), "more": {"moving": note(since=WARM_MS), "gaps_ms": (BUDGET_MS,)}},
    ),
    Case("a restart is paused", ("wait", 3), **late(not_in(B, 3, "warming"), policy=PAUSED), says="paused"),
    Case(
        "a restart waits for a settled group",
        ("wait", 3),
        **{
            **late(not_in(B, 3, "warming")),
            "more": {"moving": note(since=WARM_MS), "group": group(4, "PreparingRebalance")},
        },
    ),
    Case(
        "a restart was noted, and not begun",
        ("retire", 3),
        **{**late(not_in(B, 3, "warming")), "more": {"moving": note(since=1_000, by="restart")}},
    ),
    Case("it waits as a new member where it is none", ("wait", 3), **late(not_in(B, 3, "warm"), WARM_MS - 1)),
    Case("it waits so for too long", ("withdraw", 3), **late(not_in(B, 3, "warm")), gives={"note": None}),
    Case(
        "the way back waits where a new revision would be given up",
        ("wait", 3),
        **{
            **late(dead(B, 3, trouble="ImagePullBackOff")),
            "more": {"moving": note(since=WARM_MS), "back": True},
        },
        says="the rollback waits for f-3",
    ),
    Case(
        "the way back goes by restart, whatever would be refused",
        ("retire", 3),
        **{
            **late(not_in(B, 3, "warming")),
            "more": {"moving": note(since=WARM_MS), "back": True, "gaps_ms": (900_000,)},
        },
    ),
]


CASES = by_name(beginning=BEGINNING, notes=NOTES, ready=READY, not_ready=NOT_READY)


@pytest.mark.parametrize("name", CASES)
def test_a_situation_leads_to_its_decision(name: str) -> None:
    check(CASES[name])


def test_the_sets_stay_ranges() -> None:
    empty = SetView(B)
    assert empty.having(3) == SetView(B, Ordinals(3, 1))
    assert SetView(B, Ordinals(3, 1)).having(2) == SetView(B, Ordinals(2, 2))
    assert SetView(B, Ordinals(3, 1)).having(4) == SetView(B, Ordinals(3, 2))
    assert SetView(B, Ordinals(3, 1)).having(3) == SetView(B, Ordinals(3, 1))
    assert SetView(A, Ordinals(0, 4)).lacking(3) == SetView(A, Ordinals(0, 3))
    assert SetView(A, Ordinals(0, 4)).lacking(0) == SetView(A, Ordinals(1, 3))
    assert SetView(A, Ordinals(2, 1)).lacking(2) == SetView(A, Ordinals(2, 0))
    assert SetView(A, Ordinals(0, 4)).lacking(7) == SetView(A, Ordinals(0, 4))
    assert (empty.ordinals.top, SetView(A, Ordinals(1, 3)).ordinals.top) == (-1, 3)
    with pytest.raises(ValueError, match="5 is not adjacent"):
        SetView(B, Ordinals(2, 2)).having(5)
    with pytest.raises(ValueError, match="1 is at neither end"):
        SetView(A, Ordinals(0, 4)).lacking(1)
