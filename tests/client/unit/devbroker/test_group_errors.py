"""The table of errors: identity before generation, then the state of the group."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import DELAY_MS, SESSION_MS, Bench

E = ErrorCode
PARKED = "parked"


@dataclass
class Case:
    """Who asks what generation of a group in what state, and the answers of the three APIs."""

    state: str
    member: str  # "right", "displaced", "unknown"
    instance: str | None
    generation: str  # "right", "wrong"
    heartbeat: ErrorCode
    commit: ErrorCode
    sync: ErrorCode | str


STATES = ("Stable", "PreparingRebalance", "CompletingRebalance")
BY_STATE: dict[str, tuple[ErrorCode, ErrorCode, ErrorCode | str]] = {
    "Stable": (E.NONE, E.NONE, E.NONE),
    "PreparingRebalance": (E.REBALANCE_IN_PROGRESS, E.NONE, E.REBALANCE_IN_PROGRESS),
    "CompletingRebalance": (E.NONE, E.REBALANCE_IN_PROGRESS, PARKED),
}

CASES = [Case(state, "right", "b", "right", *answers) for state, answers in BY_STATE.items()]
CASES += [Case(state, "right", None, "right", *answers) for state, answers in BY_STATE.items()]
for _state in STATES:
    for _generation in ("right", "wrong"):
        # Identity comes first, whatever the generation is.
        CASES.append(Case(_state, "displaced", "b", _generation, *[E.FENCED_INSTANCE_ID] * 3))
        CASES.append(Case(_state, "displaced", None, _generation, *[E.UNKNOWN_MEMBER_ID] * 3))
        CASES.append(Case(_state, "unknown", None, _generation, *[E.UNKNOWN_MEMBER_ID] * 3))
        CASES.append(Case(_state, "right", "nobody", _generation, *[E.UNKNOWN_MEMBER_ID] * 3))
    CASES.append(Case(_state, "right", "b", "wrong", *[E.ILLEGAL_GENERATION] * 3))
CASES.append(Case("Empty", "right", "b", "right", *[E.UNKNOWN_MEMBER_ID] * 3))


def make(state: str) -> tuple[Bench, dict[str, str]]:
    """A group of ``a`` (leader) and ``b`` in that state, and the ids: right, displaced, unknown.

    The displaced one has always been replaced while that cost no rebalance.
    """
    bench = Bench()
    displaced = bench.form_static("a", "b")["b"]
    right = bench.join(instance="b").answer.member_id
    if state == "Empty":
        bench.advance(SESSION_MS)
    elif state != "Stable":
        leader = bench.join(instance="a").answer.member_id
        bench.join(leader, "a")
        if state == "CompletingRebalance":
            bench.join(right, "b")
    assert bench.state == state
    return bench, {"right": right, "displaced": displaced, "unknown": "who"}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.state}-{c.member}-{c.instance}-{c.generation}")
def test_heartbeat_commit_and_sync(case: Case) -> None:
    bench, ids = make(case.state)
    member_id = ids[case.member]
    generation = bench.generation + (case.generation == "wrong")
    assert bench.heartbeat(member_id, generation, case.instance) is case.heartbeat
    assert bench.commit(member_id, generation, case.instance, offset=7) is case.commit
    assert bench.committed() == (7 if case.commit is E.NONE else -1)
    sync = bench.sync(member_id, generation, case.instance)
    assert (PARKED if sync.parked else sync.error) == case.sync


@pytest.mark.parametrize("state", ["none", "Empty", *STATES])
def test_simple_consumers_commit_only_where_nobody_is_a_member(state: str) -> None:
    bench = Bench() if state == "none" else make(state)[0]
    open_to_all = state in ("none", "Empty")
    assert bench.commit() is (E.NONE if open_to_all else E.UNKNOWN_MEMBER_ID)
    assert bench.committed() == (1 if open_to_all else -1)


def test_generation_minus_one_commits_to_an_empty_group_whatever_the_member_id() -> None:
    bench = make("Empty")[0]
    assert bench.commit("who", -1, "nobody") is E.NONE
    assert bench.commit("who", 0, "nobody") is E.UNKNOWN_MEMBER_ID


def test_a_group_made_by_a_simple_commit_is_empty_and_has_no_protocol() -> None:
    bench = Bench()
    bench.commit()
    group = bench.described()
    assert (group["state"], group["generation"], group["protocol_type"]) == ("Empty", 0, None)
    assert bench.join(instance="a", protocol_type="connect").parked


def test_a_null_protocol_is_refused_before_the_group_is_looked_for() -> None:
    assert Bench().sync("who", 1, protocol=None).error is E.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_id_is_invalid_for_members_and_allowed_for_offsets() -> None:
    bench = Bench(group="")
    assert bench.join(instance="a").error is E.INVALID_GROUP_ID
    assert bench.heartbeat("x", 1) is E.INVALID_GROUP_ID
    assert bench.sync("x", 1).error is E.INVALID_GROUP_ID
    leave = m.LeaveGroupRequest(group_id="", members=[m.LeaveGroupRequestMember(member_id="x")])
    assert ErrorCode(bench.ask(leave).error_code) is E.INVALID_GROUP_ID
    assert bench.commit(offset=3) is E.NONE
    assert bench.committed() == 3


def test_a_known_member_that_repeats_its_join_in_completing_gets_the_same_answer() -> None:
    bench = Bench()
    joins = {name: bench.join(instance=name) for name in "ab"}
    bench.advance(2 * DELAY_MS)
    leader, follower = joins["a"].answer, joins["b"].answer
    assert bench.join(leader.member_id, "a").answer == leader
    assert bench.join(follower.member_id, "b").answer == follower
    assert bench.state == "CompletingRebalance"
    assert bench.join(follower.member_id, "b", protocols=[("range", b"new")]).parked
    assert bench.state == "PreparingRebalance"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"protocols": [("other", b"")]}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
    ],
)
def test_a_refused_rejoin_displaces_nobody(options: dict[str, object], error: ErrorCode) -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    assert bench.join(instance="b", **options).error is error  # type: ignore[arg-type]
    assert bench.heartbeat(ids["b"], 1, "b") is E.NONE
