"""Dynamic members, and the choice of the protocol, beyond the rows of the conformance suite."""

from __future__ import annotations

import pytest

from slackwater.devbroker.group import GroupConfig
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import DELAY_MS, Bench, Call

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


def test_a_leader_that_leaves_hands_the_lead_on() -> None:
    bench = Bench()
    ids = form(bench, 2)
    bench.leave((ids[0], None))
    answer = bench.join(ids[1]).answer
    assert answer.leader == ids[1]
    assert len(answer.members) == 1
