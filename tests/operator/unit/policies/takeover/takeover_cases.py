"""Situations of a takeover, written down as tables: who is where, and what has to come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slackwater_operator.model.group import GroupView, MemberView, WorkerView
from slackwater_operator.model.statefulsets import Ordinals
from slackwater_operator.policies.rollout.restarts import RolloutPolicy
from slackwater_operator.policies.takeover.decision import (
    FIRST_PROOF_MS,
    Moving,
    SetView,
    TakeoverDecision,
    TakeoverInput,
    TakeoverMember,
    TakeoverPolicy,
    decide_takeover,
)

NOW = 10_000_000
SESSION_MS = 20_000
BUDGET_MS = 10_000
WARM_MS = 60_000
DEADLINE_MS = 15_000
POLICY = TakeoverPolicy(
    RolloutPolicy(session_budget=0.5, session_timeout_ms=SESSION_MS), WARM_MS, "Restart", DEADLINE_MS
)
STOPS = replace(POLICY, fallback="Stop")
PAUSED = replace(POLICY, rollout=replace(POLICY.rollout, paused=True))
KEYLESS = replace(POLICY, hands_over=False)
A, B = "f-a", "f-b"


def worker(set_name: str, ordinal: int, **more: Any) -> WorkerView:
    base = WorkerView(
        f"f-{ordinal}",
        True,
        "running",
        generation=7,
        running_since_ms=NOW - 60_000,
        lag=100,
        pod=f"{set_name}-{ordinal}",
        member_id=f"id-of-{set_name}-{ordinal}",
    )
    return replace(base, **more)


def not_in(set_name: str, ordinal: int, phase: str, **more: Any) -> WorkerView:
    """A pod whose worker is not in the group."""
    given = {"generation": -1, "running_since_ms": None, "lag": None, "member_id": "", **more}
    if phase == "standby":
        given = {"standby_since_ms": NOW - 1_000, **given}
    return worker(set_name, ordinal, phase=phase, **given)


def dead(set_name: str, ordinal: int, **more: Any) -> WorkerView:
    return not_in(set_name, ordinal, "", alive=False, **more)


def group(members: int, state: str = "Stable", *, first: str = A, **holders: str) -> GroupView:
    """All members in and synced; `f3="f-b-3"` says whose member id the broker told, where it did.

    Their client.ids are those of the pods of set `first`, which joined before all others.
    """
    views = [
        MemberView(
            f"id-of-{holders[f'f{ordinal}']}" if f"f{ordinal}" in holders else "",
            f"f-{ordinal}",
            frozenset(),
            state == "Stable",
            f"{first}-{ordinal}",
        )
        for ordinal in range(members)
    ]
    return GroupView(state, tuple(views))


def note(ordinal: int = 3, since: int = 5_000, **more: Any) -> Moving:
    """A note of so many ms ago."""
    return replace(Moving(ordinal, NOW - since, 7, 100, to=B), **more)


def moving_since(since: int, ordinal: int = 3, tells: int = 1, **more: Any) -> Moving:
    return note(ordinal, 30_000, told_ms=NOW - since, tells=tells, **more)


@dataclass(frozen=True)
class Case:
    """A situation of four members f-0 to f-3, and what comes of it.

    Attributes:
        name: what it is about.
        expected: action and ordinal.
        old: the range of set a, (start, replicas).
        new: the range of set b.
        workers: pods by name that are not as they would be (running, in generation 7); None: there is none.
        more: fields of the TakeoverInput.
        policy: the user's.
        says: what the reason has to say.
        gives: fields of the decision.
        notes: fields of its note.
    """

    name: str
    expected: tuple[str, int]
    old: tuple[int, int] = (0, 4)
    new: tuple[int, int] = (0, 0)
    workers: Mapping[str, WorkerView | None] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    policy: TakeoverPolicy = POLICY
    says: str = ""
    gives: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


def look(case: Case) -> TakeoverInput:
    count = int(case.more.get("members", 4))
    old, new = SetView(A, Ordinals(*case.old)), SetView(B, Ordinals(*case.new))
    members = []
    for ordinal in range(count):
        pods = {
            view.name: case.workers.get(
                f"{view.name}-{ordinal}", worker(view.name, ordinal) if ordinal in view.ordinals else None
            )
            for view in (old, new)
        }
        members.append(TakeoverMember(ordinal, f"f-{ordinal}", pods[A], pods[B]))
    more = {name: value for name, value in case.more.items() if name != "members"}
    base = TakeoverInput(old, new, members, group(count), None, (1_000,), NOW)
    if more.pop("swapped", False):
        members = [replace(member, old=member.new, new=member.old) for member in members]
        base = replace(base, old=new, new=old, members=members)
    return replace(base, **more)


def decide(case: Case) -> TakeoverDecision:
    decision = decide_takeover(case.policy, look(case))
    assert decision.reason
    assert decision.summary
    return decision


BOTH: dict[str, Any] = {"old": (0, 4), "new": (3, 1)}
"""f-3 has a pod in both sets."""
STANDS_BY = {"f-b-3": not_in(B, 3, "standby")}
TAKEN = {
    "f-a-3": not_in(A, 3, "standby", handed_over=True),
    "f-b-3": worker(B, 3, running_since_ms=NOW - FIRST_PROOF_MS),
}
MOVING = {"moving": note()}
SILENT_OLD = not_in(A, 3, "")


def late(view: WorkerView | None, since: int = WARM_MS, **more: Any) -> dict[str, Any]:
    """A successor that is not ready so long after it was begun."""
    return {**BOTH, "workers": {"f-b-3": view}, "more": {"moving": note(since=since)}, **more}


def check(case: Case) -> None:
    """Decides, and compares."""
    decision = decide(case)
    assert (decision.action, decision.ordinal) == case.expected, decision.reason
    assert case.says in decision.reason
    for attribute, value in case.gives.items():
        assert getattr(decision, attribute) == value, attribute
    if case.notes:
        assert decision.note is not None
    for attribute, value in case.notes.items():
        assert getattr(decision.note, attribute) == value, attribute


def by_name(**tables: list[Case]) -> dict[str, Case]:
    """The cases of several tables by table and name."""
    result = {f"{part}: {case.name}": case for part, cases in tables.items() for case in cases}
    assert len(result) == sum(map(len, tables.values())), "two cases have the same name"
    return result
