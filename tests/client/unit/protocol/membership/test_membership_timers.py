"""Each of a member's timers, one millisecond before its deadline and at it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from slackwater.kafka.errors import FencedInstanceIdError
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol.assignors import (
    CooperativeStickyAssignor,
    GroupAssignment,
    GroupSubscription,
)
from slackwater.kafka.protocol.consumer_protocol import MemberSubscription, encode_subscription
from slackwater.kafka.protocol.diagnostics import FindingKind
from slackwater.kafka.protocol.membership.notices import NoticeKind
from slackwater.kafka.protocol.membership.requests import Lane
from slackwater.kafka.protocol.membership.states import JOIN_MARGIN_MS, State
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.protocol.membership.test_membership import Bench, tps


def kinds(bench: Bench) -> list[FindingKind]:
    return [finding.kind for finding in bench.member.diagnostics.findings]


# -- heartbeat, session, poll ----------------------------------------------------------------------


def test_heartbeats_do_not_wait_for_the_application() -> None:
    bench = Bench(heartbeat_interval_ms=3_000, max_poll_interval_ms=20_000)
    bench.settle(0)
    bench.calm()
    bench.member.caller_leaves(bench.now)
    left, beats = bench.now, 0
    bench.poll()
    while bench.now < left + 19_999:
        bench.poll(min(bench.wake_at, left + 19_999))
        if Lane.COORDINATOR in bench.member._machine.in_flight:
            bench.answer(bench.sent[-1], m.HeartbeatResponse())
            beats += 1
            bench.poll()
    assert beats == 6
    assert bench.state() is State.STABLE


def test_session() -> None:
    bench = Bench(session_timeout_ms=10_000, heartbeat_interval_ms=3_000)
    bench.settle(0)
    start = bench.now
    bench.poll(start + 3_000)
    bench.poll(start + 9_999)
    assert (bench.member.coordinator_lost, kinds(bench)) == (False, [])
    bench.poll(start + 10_000)
    assert (bench.member.coordinator_lost, kinds(bench)) == (True, [FindingKind.COORDINATOR_SILENT])


@pytest.mark.parametrize("accepted", [m.HeartbeatResponse(), m.HeartbeatResponse(error_code=E.NONE)])
def test_an_answered_heartbeat_begins_the_session_anew(accepted: m.HeartbeatResponse) -> None:
    bench = Bench(session_timeout_ms=10_000, heartbeat_interval_ms=3_000)
    bench.settle(0)
    (beat,) = bench.poll(bench.now + 3_000)
    bench.answer(beat, accepted)
    again = bench.now
    bench.poll(again + 3_000)
    bench.poll(again + 9_999)
    assert not bench.member.coordinator_lost
    bench.poll(again + 10_000)
    assert bench.member.coordinator_lost


def test_an_accepted_commit_begins_the_session_anew() -> None:
    bench = Bench(session_timeout_ms=10_000, heartbeat_interval_ms=9_000)
    bench.settle(0)
    bench.poll(bench.now + 5_000)
    bench.member.commit_accepted(bench.now)
    start = bench.now
    bench.poll(start + 9_999)
    assert not bench.member.coordinator_lost
    bench.poll(start + 10_000)
    assert bench.member.coordinator_lost


@pytest.mark.parametrize("static", [True, False])
def test_max_poll_interval(static: bool, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(static=static, max_poll_interval_ms=10_000, heartbeat_interval_ms=1_000_000)
    bench.settle(0)
    bench.poll(bench.now + 20_000)
    assert bench.state() is State.STABLE, "inside poll() there is no limit"
    bench.member.caller_leaves(bench.now)
    left = bench.now
    bench.poll(left + 9_999)
    assert bench.state() is State.STABLE
    assert bench.wake_at == left + 10_000
    assert bench.poll(left + 10_000) == []
    assert bench.member.poll_expired
    assert bench.member.departed_member_id == ("" if static else "m-1")
    assert "max.poll.records" in caplog.text
    assert bench.poll(left + 500_000) == []
    bench.member.caller_polls(bench.now)
    assert bench.tell() == [(NoticeKind.LOST, tps(0))]
    if static:
        assert bench.keep_place().request.member_id == "m-1"
    assert bench.take(m.JoinGroupRequest).request.member_id == ""


def late_again(**settings: Any) -> Bench:
    """A static member that polls again after max.poll.interval.ms."""
    bench = Bench(max_poll_interval_ms=10_000, heartbeat_interval_ms=1_000_000, **settings)
    bench.settle(0)
    bench.member.caller_leaves(bench.now)
    bench.poll(bench.now + 10_000)
    bench.member.caller_polls(bench.now)
    bench.tell()
    return bench


@pytest.mark.parametrize("code", [0, E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.REBALANCE_IN_PROGRESS])
def test_a_late_member_joins_where_nobody_has_its_place(code: int) -> None:
    bench = late_again()
    assert bench.keep_place(code).request.generation_id == 1
    assert bench.take(m.JoinGroupRequest).request.member_id == ""


@pytest.mark.parametrize("removed", [False, True])
def test_a_member_that_comes_back_does_not_displace_the_process_that_has_its_place(removed: bool) -> None:
    if removed:
        bench = Bench()
        bench.settle(0)
        bench.poll()
        bench.beat(E.UNKNOWN_MEMBER_ID)
        bench.tell()
        bench.now += 1_000
    else:
        bench = late_again()
    bench.keep_place(E.FENCED_INSTANCE_ID)
    assert isinstance(bench.member.error, FencedInstanceIdError)
    assert bench.poll(bench.now + 100_000) == []


def test_a_late_member_asks_again_where_it_was_not_answered() -> None:
    bench = late_again()
    bench.keep_place(E.NOT_COORDINATOR)
    assert bench.member.coordinator_lost
    assert bench.poll() == []
    bench.now = bench.wake_at
    bench.member.on_failure(bench.take(m.HeartbeatRequest), bench.now)
    assert bench.poll() == []
    bench.now = bench.wake_at
    bench.keep_place()
    bench.take(m.JoinGroupRequest)
    assert bench.member.leave() == ""


# -- the rebalance: a Join and a Sync have limits of their own ---------------------------------------


def test_rebalance() -> None:
    bench = Bench(max_poll_interval_ms=60_000, request_timeout_ms=30_000)
    bench.subscribe()
    parked = bench.take(m.JoinGroupRequest)
    end = bench.now + 60_000 + JOIN_MARGIN_MS
    bench.member.timers.diagnose_at = 1 << 62
    bench.poll()
    assert bench.wake_at == end
    assert bench.poll(end - 1) == []
    assert not bench.member.coordinator_lost
    assert bench.poll(end) == []
    assert bench.member.coordinator_lost
    assert bench.poll(end + 99) == []
    (again,) = bench.poll(end + 100)
    assert isinstance(again.request, m.JoinGroupRequest)
    # The answer to the one that was given up comes too late.
    bench.answer(parked, m.JoinGroupResponse(generation_id=1, member_id="late", leader="late"))
    assert bench.member.member_id == ""


def test_sync_while_the_coordinator_lives() -> None:
    bench = Bench(request_timeout_ms=30_000, heartbeat_interval_ms=3_000)
    bench.subscribe()
    bench.join(1)
    parked = bench.take(m.SyncGroupRequest)
    end = bench.now + 30_000
    bench.poll()
    while bench.now < end - 3_000:
        bench.poll(min(bench.wake_at, end - 3_000))
        if Lane.COORDINATOR in bench.member._machine.in_flight:
            bench.answer(bench.sent[-1], m.HeartbeatResponse())
            bench.poll()
    bench.member.timers.heartbeat_at = 1 << 62
    assert bench.poll(end - 1) == []
    (again,) = bench.poll(end)
    assert again.request == parked.request
    assert not bench.member.coordinator_lost, "an answered heartbeat shows that it lives"
    assert kinds(bench) == [FindingKind.SYNC_UNANSWERED]
    # A fence now is that of another consumer, and not the fault of a coordinator that moved.
    bench.answer(again, m.SyncGroupResponse(error_code=E.FENCED_INSTANCE_ID))
    assert bench.state() is State.DEAD


def test_sync_while_the_coordinator_is_silent() -> None:
    bench = Bench(request_timeout_ms=30_000, heartbeat_interval_ms=1_000_000, session_timeout_ms=2_000_000)
    bench.subscribe()
    bench.join(1)
    bench.take(m.SyncGroupRequest)
    end = bench.now + 30_000
    bench.member.timers.heard_at = bench.now - 1
    assert bench.poll(end - 1) == []
    assert not bench.member.coordinator_lost
    assert bench.poll(end) == []
    assert bench.member.coordinator_lost


def test_sync_is_not_waited_for_longer_than_the_rebalance_timeout() -> None:
    bench = Bench(request_timeout_ms=30_000, max_poll_interval_ms=7_000)
    bench.subscribe()
    bench.join(1)
    bench.take(m.SyncGroupRequest)
    bench.poll()
    assert bench.member.timers.request_ends_at == bench.now + 7_000


@pytest.mark.parametrize("static", [True, False])
def test_a_parked_join_does_not_wait_for_a_coordinator_that_has_vanished(static: bool) -> None:
    bench = Bench(static=static, max_poll_interval_ms=300_000, session_timeout_ms=45_000)
    bench.settle(0)
    bench.member.request_rejoin("test", bench.now)
    parked = bench.take(m.JoinGroupRequest)
    (ask,) = bench.poll(bench.now + 10_000)
    assert ask.timeout_ms == 15_000
    bench.now += 15_000
    bench.member.on_failure(ask, bench.now)
    assert bench.member.coordinator_lost
    bench.now += 100
    again = bench.take(m.JoinGroupRequest)
    assert again.request == parked.request
    assert kinds(bench) == [FindingKind.COORDINATOR_SILENT]


def test_a_coordinator_that_lives_is_asked_again_and_left_alone() -> None:
    bench = Bench(max_poll_interval_ms=300_000, session_timeout_ms=45_000)
    bench.subscribe()
    bench.take(m.JoinGroupRequest)
    group = m.DescribeGroupsResponseGroup(group_id="g", group_state="PreparingRebalance")
    for expected in (10_000, 15_000, 15_000):
        bench.poll()
        assert bench.wake_at == bench.now + expected
        assert bench.poll(bench.now + expected - 1) == []
        (ask,) = bench.poll(bench.now + 1)
        bench.answer(ask, m.DescribeGroupsResponse(groups=[group]))
    assert (bench.member.coordinator_lost, kinds(bench)) == (False, [FindingKind.REBALANCE_WAITS])


def test_a_coordinator_that_is_none_any_more_says_so() -> None:
    bench = Bench()
    bench.subscribe()
    bench.take(m.JoinGroupRequest)
    (ask,) = bench.poll(bench.now + 10_000)
    group = m.DescribeGroupsResponseGroup(error_code=E.NOT_COORDINATOR)
    bench.answer(ask, m.DescribeGroupsResponse(groups=[group]))
    assert bench.member.coordinator_lost
    bench.now += 100
    assert bench.take(m.JoinGroupRequest)


def test_what_it_says_after_the_join_is_over_changes_nothing() -> None:
    bench = Bench()
    bench.subscribe()
    join = bench.take(m.JoinGroupRequest)
    (ask,) = bench.poll(bench.now + 10_000)
    answer = m.JoinGroupResponse(
        generation_id=1, member_id="m", leader="o", protocol_name="cooperative-sticky"
    )
    bench.answer(join, answer)
    bench.take(m.SyncGroupRequest)
    bench.member.on_failure(ask, bench.now)
    assert bench.poll() == []
    assert Lane.GROUP in bench.member._machine.in_flight
    assert kinds(bench) == []


# -- back-off ----------------------------------------------------------------------------------------


def test_members_that_fail_together_do_not_try_again_together() -> None:
    """A fifth up or down, as Java's: the coordinator that comes up has not all of them at once."""
    waits = set()
    for seed in range(50):
        bench = Bench(backoff=Backoff(1_000, 10_000, random.Random(seed)))
        bench.subscribe()
        error = m.JoinGroupResponse(error_code=E.COORDINATOR_LOAD_IN_PROGRESS)
        bench.answer(bench.take(m.JoinGroupRequest), error)
        assert bench.poll() == []
        waits.add(bench.wake_at - bench.now)
        assert bench.poll(bench.wake_at - 1) == []
        assert len(bench.poll(bench.wake_at)) == 1
    assert 800 <= min(waits) < 900
    assert 1_100 < max(waits) <= 1_200


# -- a delayed assignor ------------------------------------------------------------------------------


class Later(CooperativeStickyAssignor):
    """Holds one partition back for five seconds."""

    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        (member,) = group.members
        waits = TopicPartition("t", 1)
        return GroupAssignment({member: tps(0)}, {}, frozenset({waits}), group.now_ms + 5_000)


def lead(bench: Bench, generation: int = 1) -> None:
    metadata = encode_subscription(MemberSubscription(("t",)))
    member = m.JoinGroupResponseMember(member_id="m-1", group_instance_id="i-0", metadata=metadata)
    bench.join(generation, leader="m-1", members=[member])
    bench.member.plan({"t": 2}, bench.now)
    bench.sync(*tps(0))
    bench.tell()
    bench.calm()


def leading_later() -> Bench:
    bench = Bench(assignors=[Later()], heartbeat_interval_ms=1_000_000, session_timeout_ms=2_000_000)
    bench.subscribe()
    lead(bench)
    return bench


def test_a_leader_asks_for_the_rebalance_that_its_assignor_delayed() -> None:
    bench = leading_later()
    due = bench.now + 5_000
    bench.poll()
    assert bench.wake_at == due
    assert bench.poll(due - 1) == []
    assert bench.state() is State.STABLE
    (send,) = bench.poll(due)
    assert "held back are due" in send.request.reason


def test_a_rebalance_before_the_delay_is_over_sets_it_anew() -> None:
    bench = leading_later()
    first = bench.now + 5_000
    bench.now += 3_000
    bench.member.request_rejoin("test", bench.now)
    lead(bench, 2)
    assert bench.poll(first) == []
    due = first + 3_000
    assert bench.poll(due - 1) == []
    assert len(bench.poll(due)) == 1


def test_one_who_leads_no_more_does_not_wait_for_the_delay() -> None:
    bench = leading_later()
    bench.member.request_rejoin("test", bench.now)
    bench.join(2, leader="m-2")
    bench.sync(*tps(0))
    bench.tell()
    bench.calm()
    assert bench.poll(bench.now + 6_000) == []
    assert bench.state() is State.STABLE


# -- a partition that is to change hands ---------------------------------------------------------------


def lead_two(bench: Bench, theirs: list[TopicPartition], count: int, generation: int = 1) -> None:
    """The bench's member leads; "m-2" says that it holds ``theirs``."""
    members = [
        m.JoinGroupResponseMember(
            member_id=member_id,
            group_instance_id=instance_id,
            metadata=encode_subscription(MemberSubscription(("t",), owned, 0)),
        )
        for member_id, instance_id, owned in (
            ("m-1", "i-0", tuple(sorted(bench.owned))),
            ("m-2", "i-1", tuple(theirs)),
        )
    ]
    bench.join(generation, leader="m-1", members=members)
    bench.member.plan({"t": count}, bench.now)
    send = bench.take(m.SyncGroupRequest)
    (mine,) = [assignment for assignment in send.request.assignments if assignment.member_id == "m-1"]
    bench.answer(send, m.SyncGroupResponse(assignment=mine.assignment))
    bench.tell()
    bench.calm()


def test_a_leader_asks_for_the_next_rebalance_when_nobody_has_for_a_poll_interval() -> None:
    """The one who was to give it up came back without it: it does not, and nobody else knows."""
    bench = Bench(max_poll_interval_ms=60_000, heartbeat_interval_ms=1_000_000, session_timeout_ms=2_000_000)
    bench.subscribe()
    lead_two(bench, tps(0, 1), 2)
    assert bench.owned == set(), "what is to come is held still"
    due = bench.now + 60_000
    bench.poll()
    assert bench.wake_at == due
    assert bench.poll(due - 1) == []
    assert bench.state() is State.STABLE
    (send,) = bench.poll(due)
    assert isinstance(send.request, m.JoinGroupRequest)


def test_a_leader_asks_for_no_rebalance_when_another_member_has() -> None:
    bench = Bench(max_poll_interval_ms=60_000, heartbeat_interval_ms=1_000_000, session_timeout_ms=2_000_000)
    bench.subscribe()
    lead_two(bench, tps(0, 1), 2)
    due = bench.now + 60_000
    bench.now += 1_000
    bench.member.request_rejoin("the group is rebalancing", bench.now)
    lead_two(bench, tps(0), 2, generation=2)
    assert bench.owned == set(tps(1))
    assert bench.poll(due) == []
    assert bench.poll(due + 120_000) == []
    assert bench.state() is State.STABLE


def test_a_delayed_assignor_is_not_made_to_wait_for_the_poll_interval() -> None:
    class HandingOver(Later):
        """Gives up a partition besides."""

        def assign_group(self, group: GroupSubscription) -> GroupAssignment:
            return GroupAssignment({"m-1": [], "m-2": tps(0)}, {}, frozenset(tps(2)), group.now_ms + 5_000)

    bench = Bench(
        assignors=[HandingOver()], max_poll_interval_ms=60_000,
        heartbeat_interval_ms=1_000_000, session_timeout_ms=2_000_000,
    )  # fmt: skip
    bench.subscribe()
    lead_two(bench, tps(0, 1), 3)
    due = bench.now + 5_000
    assert bench.poll(due - 1) == []
    assert len(bench.poll(due)) == 1


# -- quotas (KIP-219) ----------------------------------------------------------------------------------


def test_a_throttled_heartbeat_holds_the_next_one_back() -> None:
    bench = Bench(heartbeat_interval_ms=3_000, session_timeout_ms=1_000_000)
    bench.settle(0)
    (beat,) = bench.poll(bench.now + 3_000)
    bench.answer(beat, m.HeartbeatResponse(throttle_time_ms=8_000))
    until = bench.now + 8_000
    bench.poll()
    assert bench.wake_at == until
    assert bench.poll(until - 1) == []
    (again,) = bench.poll(until)
    assert isinstance(again.request, m.HeartbeatRequest)
    assert kinds(bench) == [FindingKind.THROTTLED]


def test_a_throttled_join_holds_the_sync_back_but_no_heartbeat() -> None:
    bench = Bench(heartbeat_interval_ms=3_000, session_timeout_ms=1_000_000)
    bench.subscribe()
    bench.join(1, throttle_time_ms=10_000)
    until = bench.now + 10_000
    assert bench.poll() == []
    (beat,) = bench.poll(bench.now + 3_000)
    assert isinstance(beat.request, m.HeartbeatRequest)
    bench.answer(beat, m.HeartbeatResponse())
    bench.member.timers.heartbeat_at = 1 << 62
    assert bench.poll(until - 1) == []
    (sync,) = bench.poll(until)
    assert isinstance(sync.request, m.SyncGroupRequest)


def test_a_throttled_error_waits_for_the_longer_of_quota_and_back_off() -> None:
    bench = Bench()
    bench.subscribe()
    error = m.JoinGroupResponse(error_code=E.COORDINATOR_LOAD_IN_PROGRESS, throttle_time_ms=2_000)
    bench.answer(bench.take(m.JoinGroupRequest), error)
    until = bench.now + 2_000
    assert bench.poll() == []
    assert bench.wake_at == until
    assert bench.poll(until - 1) == []
    assert len(bench.poll(until)) == 1
