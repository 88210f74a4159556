"""Dynamic members, the choice of the protocol, and LeaveGroup."""

from __future__ import annotations

import pytest

from slackwater.devbroker.group import GroupConfig
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import DELAY_MS, REBALANCE_MS, SESSION_MS, Bench, Call

E = ErrorCode


def join_dynamic(bench: Bench, **options: object) -> Call:
    """Both halves of a dynamic member's join."""
    member_id = bench.join(**options).answer.member_id  # type: ignore[arg-type]
    return bench.join(member_id, **options)  # type: ignore[arg-type]


def form(bench: Bench, count: int, **options: object) -> list[str]:
    """A Stable group of so many dynamic members; the first leads."""
    calls = [join_dynamic(bench, **options) for _ in range(count)]
    bench.advance(2 * DELAY_MS)
    ids = [call.answer.member_id for call in calls]
    for member_id in ids[1:]:
        assert bench.sync(member_id, 1).parked
    bench.sync(ids[0], 1, None, {member_id: member_id.encode() for member_id in ids})
    assert bench.state == "Stable"
    return ids


@pytest.mark.parametrize(("version", "asked"), [(3, False), (4, True), (9, True)])
def test_member_id_required_from_v4_on(version: int, asked: bool) -> None:
    bench = Bench()
    first = bench.join(version=version)
    if not asked:
        assert first.parked
        return
    assert first.error is E.MEMBER_ID_REQUIRED
    assert first.answer.member_id.startswith("c-")
    assert bench.described()["pending_joins"] == [first.answer.member_id]
    assert bench.join(first.answer.member_id, version=version).parked
    assert bench.described()["pending_joins"] == []


def test_v0_takes_the_session_timeout_as_rebalance_timeout() -> None:
    bench = Bench()
    bench.join(version=0, session_ms=7_000, rebalance_ms=-1)
    assert bench.described()["members"][0]["rebalance_timeout_ms"] == 7_000


def test_a_pending_id_that_does_not_come_back_holds_the_join_up_for_its_session_only() -> None:
    bench = Bench()
    ids = form(bench, 1, session_ms=30_000)
    pending = bench.join(session_ms=6_000).answer.member_id
    call = bench.join(ids[0], session_ms=30_000)
    bench.advance(5_999)
    assert call.parked
    bench.advance(1)
    assert call.answer.generation_id == 2
    assert bench.join(pending).error is E.UNKNOWN_MEMBER_ID


def test_a_pending_id_may_leave() -> None:
    bench = Bench()
    form(bench, 1)
    pending = bench.join().answer.member_id
    assert bench.leave((pending, None)) == [E.NONE]
    # Kafka rebalances for it, although nobody has gone.
    assert bench.state == "PreparingRebalance"
    assert bench.described()["pending_joins"] == []


def test_dynamic_members_that_do_not_rejoin_are_removed_at_the_rebalance_timeout() -> None:
    bench = Bench()
    ids = form(bench, 3, session_ms=120_000)
    call = bench.join(ids[0], session_ms=120_000)
    bench.advance(REBALANCE_MS - 1)
    assert call.parked
    bench.advance(1)
    assert [member.member_id for member in call.answer.members] == [ids[0]]
    assert bench.heartbeat(ids[1], 1) is E.UNKNOWN_MEMBER_ID


def test_a_parked_join_of_a_new_member_ends_after_five_minutes() -> None:
    bench = Bench()
    ids = bench.form_static("a", session_ms=1_800_000, rebalance_ms=1_800_000)
    call = bench.join(instance="b", session_ms=1_800_000, rebalance_ms=1_800_000)
    bench.advance(299_999)
    assert call.parked
    bench.advance(1)
    assert call.error is E.UNKNOWN_MEMBER_ID
    assert bench.member_ids == [ids["a"]]


# -- protocols


def test_the_protocol_with_the_most_votes_among_the_shared_ones() -> None:
    bench = Bench()
    offers = [["only-a", "range", "sticky"], ["range", "sticky"], ["sticky", "range"]]
    calls = [
        bench.join(instance=str(i), protocols=[(name, name.encode()) for name in names])
        for i, names in enumerate(offers)
    ]
    bench.advance(3 * DELAY_MS)
    assert {call.answer.protocol_name for call in calls} == {"range"}
    assert {member.metadata for member in calls[0].answer.members} == {b"range"}


@pytest.mark.parametrize("first", ["range", "cooperative-sticky"])
def test_a_tied_vote_goes_by_the_order_of_javas_hash_map(first: str) -> None:
    """As in Kafka; who came or voted first plays no part."""
    bench = Bench()
    names = sorted(["range", "cooperative-sticky"], key=lambda name: name != first)
    calls = [
        bench.join(instance=str(i), protocols=[(name, b"") for name in order])
        for i, order in enumerate([names, names[::-1]])
    ]
    bench.advance(2 * DELAY_MS)
    assert {call.answer.protocol_name for call in calls} == {"range"}


def test_a_group_that_all_left_during_the_initial_delay_takes_any_protocol_of_its_type() -> None:
    bench = Bench()
    bench.join(instance="a")
    bench.leave(("", "a"))
    assert (bench.state, bench.member_ids) == ("PreparingRebalance", [])
    assert bench.join(instance="b", protocol_type="connect").error is E.INCONSISTENT_GROUP_PROTOCOL
    assert bench.join(instance="b", protocols=[]).error is E.INCONSISTENT_GROUP_PROTOCOL
    call = bench.join(instance="b", protocols=[("other", b"")])
    bench.advance(2 * DELAY_MS)
    assert call.answer.protocol_name == "other"


def test_a_group_that_all_but_a_pending_member_have_left_is_empty_at_the_next_poll() -> None:
    bench = Bench()
    bench.form_static("a")
    bench.join()
    bench.leave(("", "a"))
    bench.coordinator.poll(bench.now_ms)
    assert (bench.state, bench.generation) == ("Empty", 2)


def test_a_newcomer_without_a_shared_protocol_is_refused() -> None:
    bench = Bench()
    bench.form_static("a", protocols=[("range", b""), ("sticky", b"")])
    assert bench.join(instance="b", protocols=[("other", b"")]).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert bench.join(instance="b", protocols=[("sticky", b"")]).parked


@pytest.mark.parametrize("options", [{"protocols": []}, {"protocol_type": ""}])
def test_the_first_member_must_have_a_protocol_type_and_a_protocol(options: dict[str, object]) -> None:
    bench = Bench()
    assert bench.join(instance="a", **options).error is E.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]


def test_max_size_lets_in_members_but_nobody_else() -> None:
    bench = Bench(GroupConfig(max_size=2))
    ids = bench.form_static("a", "b")
    assert bench.join(instance="c").error is E.GROUP_MAX_SIZE_REACHED
    assert bench.state == "Stable"
    calls = [bench.join(ids[name], name) for name in "ab"]
    assert all(call.answer.generation_id == 2 for call in calls)


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_join_can_be_answered_refused_and_completed(version: int) -> None:
    bench = Bench()
    assert bench.join("who", version=version).error is E.UNKNOWN_MEMBER_ID
    call = bench.join(version=version)
    if version >= 4:
        call = bench.join(call.answer.member_id, version=version)
    bench.advance(DELAY_MS)
    assert call.answer.protocol_name == "range"
    assert call.answer.generation_id == 1
    assert call.answer.leader == call.answer.member_id
    if version >= 7:
        assert call.answer.protocol_type == "consumer"


# -- LeaveGroup


def test_leaving_rebalances_once_for_many_and_not_at_all_for_failures_only() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b", "c", "d")
    assert bench.leave(("", "nobody"), ("who", None), ("", None), (ids["a"], "b")) == [
        E.UNKNOWN_MEMBER_ID,
        E.UNKNOWN_MEMBER_ID,
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
    ]
    assert bench.state == "Stable"
    assert bench.leave(("", "b"), ("", "c"), ("", "c")) == [E.NONE, E.NONE, E.UNKNOWN_MEMBER_ID]
    assert bench.leave(("", "d")) == [E.NONE]
    assert bench.state == "PreparingRebalance"
    assert bench.join(ids["a"], "a").answer.generation_id == 2


def test_removing_all_makes_the_group_empty_and_keeps_offsets() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    assert bench.commit(ids["a"], 1, "a", offset=9) is E.NONE
    bench.leave(("", "a"), ("", "b"))
    assert (bench.state, bench.generation) == ("Empty", 2)
    assert bench.committed() == 9


def test_a_removed_live_pod_gets_unknown_member_id_and_rejoins() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    bench.leave(("", "b"))
    assert bench.heartbeat(ids["b"], 1, "b") is E.UNKNOWN_MEMBER_ID
    assert bench.join(instance="b").parked


def test_a_removed_members_parked_join_gets_unknown_member_id() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    call = bench.join(ids["b"], "b", protocols=[("range", b"x")])
    assert bench.leave(("", "b")) == [E.NONE]
    assert call.error is E.UNKNOWN_MEMBER_ID


def test_a_removed_members_parked_sync_is_never_answered() -> None:
    bench = Bench()
    joins = {name: bench.join(instance=name) for name in "ab"}
    bench.advance(2 * DELAY_MS)
    sync = bench.sync(joins["b"].answer.member_id, 1, "b")
    assert bench.leave(("", "b")) == [E.NONE]
    rejoined = bench.join(joins["a"].answer.member_id, "a").answer
    bench.sync(rejoined.member_id, 2, "a")
    bench.advance(SESSION_MS + REBALANCE_MS)
    bench.coordinator.unload()
    assert sync.parked


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_leave_one_member_with_a_top_level_error(version: int) -> None:
    bench = Bench()
    ids = form(bench, 2)
    who = m.LeaveGroupRequest(group_id="g", member_id="who")
    assert ErrorCode(bench.ask(who, version).error_code) is E.UNKNOWN_MEMBER_ID
    assert bench.state == "Stable"
    me = m.LeaveGroupRequest(group_id="g", member_id=ids[1])
    assert ErrorCode(bench.ask(me, version).error_code) is E.NONE
    assert bench.state == "PreparingRebalance"


def test_a_leader_that_leaves_hands_the_lead_on() -> None:
    bench = Bench()
    ids = form(bench, 2)
    bench.leave((ids[0], None))
    answer = bench.join(ids[1]).answer
    assert answer.leader == ids[1]
    assert len(answer.members) == 1
