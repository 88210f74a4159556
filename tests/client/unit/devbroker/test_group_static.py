"""Static members (KIP-345): a known group.instance.id that rejoins without a member id."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.devbroker.group import GroupStoreError
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import DELAY_MS, REBALANCE_MS, SESSION_MS, Bench

E = ErrorCode


def test_stable_and_same_protocol_keeps_generation_and_assignment() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    back = bench.join(instance="b")
    assert back.error is E.NONE
    assert back.answer.generation_id == 1
    assert back.answer.member_id not in ids.values()
    assert bench.sync(back.answer.member_id, 1, "b").answer.assignment == b"a-b"
    assert (bench.state, bench.generation) == ("Stable", 1)


def test_all_return_at_once_without_a_rebalance() -> None:
    bench = Bench()
    bench.form_static("a", "b", "c")
    back = {name: bench.join(instance=name).answer.member_id for name in "abc"}
    for name, member_id in back.items():
        assert bench.sync(member_id, 1, name).answer.assignment == b"a-" + name.encode()
    assert (bench.state, bench.generation) == ("Stable", 1)


def test_stable_and_the_selected_name_changes_rebalances() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b", protocols=[("range", b"m"), ("sticky", b"m")])
    assert bench.described()["protocol"] == "range"
    back = bench.join(instance="b", protocols=[("sticky", b"m")])
    assert back.parked
    assert bench.state == "PreparingRebalance"
    assert bench.heartbeat(ids["a"], 1, "a") is E.REBALANCE_IN_PROGRESS
    again = bench.join(ids["a"], "a", protocols=[("range", b"m"), ("sticky", b"m")])
    assert (again.answer.protocol_name, again.answer.generation_id) == ("sticky", 2)


def test_stable_and_a_changed_list_that_leaves_the_vote_does_not_rebalance() -> None:
    bench = Bench()
    bench.form_static("a", "b")
    back = bench.join(instance="b", protocols=[("range", b"m"), ("sticky", b"m")])
    assert back.answer.generation_id == 1
    assert bench.state == "Stable"


def test_preparing_parks_and_completes_when_all_have_joined_and_the_leader_keeps_the_lead() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    bench.join(instance="c")
    leader = bench.join(instance="a")
    assert leader.parked
    other = bench.join(ids["b"], "b")
    assert leader.answer.leader == leader.answer.member_id
    assert len(leader.answer.members) == 3
    assert other.answer.members == []
    assert bench.generation == 2


def test_preparing_fences_the_parked_join_of_the_old_member_id() -> None:
    bench = Bench()
    bench.form_static("a", "b")
    bench.join(instance="c")
    old = bench.join(instance="a")
    new = bench.join(instance="a")
    assert old.error is E.FENCED_INSTANCE_ID
    assert new.parked


def test_completing_always_rebalances_and_sends_parked_syncs_to_rejoin() -> None:
    bench = Bench()
    joins = {name: bench.join(instance=name) for name in "abc"}
    bench.advance(DELAY_MS * 2)
    follower = bench.sync(joins["b"].answer.member_id, 1, "b")
    old = bench.sync(joins["c"].answer.member_id, 1, "c")
    assert follower.parked
    back = bench.join(instance="c")
    assert old.error is E.FENCED_INSTANCE_ID
    assert follower.error is E.REBALANCE_IN_PROGRESS
    assert back.parked
    assert bench.state == "PreparingRebalance"


def test_empty_after_expiry_joins_anew_with_the_initial_delay_and_generation_plus_two() -> None:
    bench = Bench()
    bench.form_static("a")
    bench.advance(SESSION_MS)
    assert (bench.state, bench.generation) == ("Empty", 2)
    back = bench.join(instance="a")
    bench.advance(DELAY_MS - 1)
    assert back.parked
    bench.advance(1)
    assert back.answer.generation_id == 3


def test_unknown_instance_is_a_new_member_and_rebalances() -> None:
    bench = Bench()
    bench.form_static("a")
    assert bench.join(instance="b").parked
    assert bench.state == "PreparingRebalance"


def test_static_members_are_never_asked_for_a_member_id() -> None:
    assert Bench().join(instance="a", version=5).parked


@pytest.mark.parametrize(("instance", "error"), [("a", E.FENCED_INSTANCE_ID), ("z", E.UNKNOWN_MEMBER_ID)])
def test_join_with_a_wrong_member_id(instance: str, error: ErrorCode) -> None:
    bench = Bench()
    bench.form_static("a")
    assert bench.join("somebody-else", instance).error is error


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


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_session_timeouts_at_the_bounds_are_accepted(session_ms: int) -> None:
    assert Bench().join(instance="a", session_ms=session_ms).parked


# -- the leader


def test_v8_names_the_old_leader_and_gives_no_members() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    back = bench.join(instance="a", version=8)
    assert back.answer.leader == ids["a"]
    assert back.answer.members == []
    assert bench.described()["leader"] == back.answer.member_id


def test_v9_makes_it_leader_and_tells_it_to_skip_the_assignment() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    back = bench.join(instance="a").answer
    assert back.leader == back.member_id
    assert back.skip_assignment
    assert {member.member_id for member in back.members} == {back.member_id, ids["b"]}
    assert not bench.join(instance="b").answer.skip_assignment


def test_after_skip_assignment_a_sync_that_is_not_empty_is_ignored() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    back = bench.join(instance="a").answer
    answer = bench.sync(back.member_id, 1, "a", {back.member_id: b"new", ids["b"]: b"new"}).answer
    assert answer.assignment == b"a-a"
    assert bench.sync(ids["b"], 1, "b").answer.assignment == b"a-b"


def test_an_empty_sync_without_skip_assignment_gives_everybody_nothing() -> None:
    bench = Bench()
    joins = {name: bench.join(instance=name) for name in "ab"}
    bench.advance(DELAY_MS * 2)
    follower = bench.sync(joins["b"].answer.member_id, 1, "b")
    leader = bench.sync(joins["a"].answer.member_id, 1, "a")
    assert leader.error is E.NONE
    assert leader.answer.assignment == b""
    assert follower.answer.assignment == b""
    assert bench.state == "Stable"


def test_an_absent_leader_loses_the_lead_to_a_joiner_at_the_rebalance_timeout() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b", session_ms=120_000)
    other = bench.join(ids["b"], "b", protocols=[("range", b"changed")], session_ms=120_000)
    bench.advance(REBALANCE_MS - 1)
    assert other.parked
    bench.advance(1)
    assert other.answer.leader == ids["b"]
    assert {member.group_instance_id for member in other.answer.members} == {"a", "b"}


# -- a changed subscription (KAFKA-12759)


def test_new_metadata_of_a_static_rejoin_is_stored_and_brings_no_rebalance() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    changed = [("range", b"more topics")]
    back = bench.join(instance="b", protocols=changed).answer.member_id
    # Identical bytes again, now with the member id: no rebalance either.
    assert bench.join(back, "b", protocols=changed).answer.generation_id == 1
    assert bench.state == "Stable"
    leader = bench.join(instance="a").answer
    assert {member.metadata for member in leader.members} == {b"m", b"more topics"}
    assert ids["b"] != back
    # The known member id and different bytes.
    assert bench.join(back, "b", protocols=[("range", b"others")]).parked
    assert bench.state == "PreparingRebalance"


# -- a known member id in Stable


@pytest.mark.parametrize("static", [True, False])
def test_the_leader_rejoining_always_rebalances_a_follower_only_with_other_metadata(static: bool) -> None:
    bench = Bench()
    ids = _form(bench, static)
    name = "b" if static else None
    assert bench.join(ids["b"], name).answer.generation_id == 1
    assert bench.state == "Stable"
    assert bench.join(ids["b"], name, protocols=[("range", b"x")]).parked
    bench = Bench()
    ids = _form(bench, static)
    assert bench.join(ids["a"], "a" if static else None).parked
    assert bench.state == "PreparingRebalance"


def _form(bench: Bench, static: bool) -> dict[str, str]:
    if static:
        return bench.form_static("a", "b")
    ids = {name: bench.join(version=4).answer.member_id for name in "ab"}
    for member_id in ids.values():
        bench.join(member_id)
    bench.advance(DELAY_MS * 2)
    assignment = {member_id: b"a-" + name.encode() for name, member_id in ids.items()}
    bench.sync(ids["a"], 1, None, assignment)
    bench.sync(ids["b"], 1)
    assert bench.state == "Stable"
    return ids


# -- two pods, one id


def test_the_newcomer_wins_and_the_old_pod_is_fenced_and_fences_back() -> None:
    bench = Bench()
    first = bench.form_static("a")["a"]
    second = bench.join(instance="a").answer.member_id
    assert bench.heartbeat(first, 1, "a") is E.FENCED_INSTANCE_ID
    assert bench.heartbeat(first, 1) is E.UNKNOWN_MEMBER_ID
    third = bench.join(instance="a").answer.member_id
    assert bench.heartbeat(second, 1, "a") is E.FENCED_INSTANCE_ID
    assert bench.heartbeat(third, 1, "a") is E.NONE


def test_join_and_leave_of_a_displaced_member() -> None:
    bench = Bench()
    old = bench.form_static("a")["a"]
    bench.join(instance="a")
    assert bench.join(old, "a").error is E.FENCED_INSTANCE_ID
    assert bench.join(old).error is E.UNKNOWN_MEMBER_ID
    assert bench.leave((old, "a"), (old, None)) == [E.FENCED_INSTANCE_ID, E.UNKNOWN_MEMBER_ID]


# -- storage


def test_an_assignment_that_cannot_be_stored_is_not_handed_out() -> None:
    bench = Bench()
    joins = {name: bench.join(instance=name) for name in "ab"}
    bench.advance(DELAY_MS * 2)
    ids = {name: call.answer.member_id for name, call in joins.items()}
    append = bench.store.append

    def fail(records: object) -> None:
        raise GroupStoreError("No space left on device")

    bench.store.append = fail  # type: ignore[method-assign]
    syncs = [bench.sync(ids["b"], 1, "b"), bench.sync(ids["a"], 1, "a", {ids["b"]: b"x"})]
    assert {call.error for call in syncs} == {E.COORDINATOR_NOT_AVAILABLE}
    assert {call.answer.assignment for call in syncs} == {b""}
    assert bench.state == "PreparingRebalance"
    bench.store.append = append  # type: ignore[method-assign]
    for name in "ab":
        bench.join(ids[name], name)
    bench.sync_all(ids)


def test_a_new_group_that_cannot_be_stored_does_not_come_into_being() -> None:
    bench = Bench()

    def fail(records: object) -> None:
        raise GroupStoreError("No space left on device")

    bench.store.append = fail  # type: ignore[method-assign]
    assert bench.join(instance="a").error is E.COORDINATOR_NOT_AVAILABLE
    assert bench.coordinator.describe() == []


def test_a_return_that_cannot_be_stored_leaves_the_old_member_in_place() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    append = bench.store.append

    def fail(records: object) -> None:
        raise GroupStoreError("No space left on device")

    changed: dict[str, Any] = {"session_ms": 20_000, "protocols": [("range", b"new"), ("sticky", b"")]}
    bench.store.append = fail  # type: ignore[method-assign]
    assert bench.join(instance="a", **changed).error is E.COORDINATOR_NOT_AVAILABLE
    assert bench.heartbeat(ids["a"], 1, "a") is E.NONE
    assert bench.described()["leader"] == ids["a"]
    member = next(member for member in bench.described()["members"] if member["instance_id"] == "a")
    assert (member["session_timeout_ms"], member["protocols"]) == (SESSION_MS, ["range"])
    bench.store.append = append  # type: ignore[method-assign]
    assert bench.join(instance="a").answer.generation_id == 1
