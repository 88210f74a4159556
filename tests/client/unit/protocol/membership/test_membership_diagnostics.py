"""Each message: what it says, and that it comes once and not every second."""

from __future__ import annotations

import logging

import pytest

from slackwater.kafka.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    UnsupportedVersionError,
)
from slackwater.kafka.protocol.diagnostics import Diagnostics, Finding, FindingKind
from slackwater.kafka.protocol.membership.states import MembershipConfig, State
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.protocol.membership.test_membership import Bench, tps
from tests.client.unit.protocol.membership.test_membership_returns import TWO, described


def findings(bench: Bench, kind: FindingKind) -> list[Finding]:
    return [finding for finding in bench.member.diagnostics.findings if finding.kind is kind]


def the(bench: Bench, kind: FindingKind) -> str:
    (finding,) = findings(bench, kind)
    assert finding.text.startswith("group g: ")
    return finding.text


def says(text: str, *parts: str) -> None:
    for part in parts:
        assert part in text, f"{part!r} is not in {text!r}"


def test_findings_are_logged_as_they_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    diagnostics = Diagnostics(MembershipConfig("g"))
    diagnostics.silent("for long", 5)
    (finding,) = diagnostics.findings
    assert (finding.at_ms, finding.level) == (5, logging.WARNING)
    assert [record.getMessage() for record in caplog.records] == [finding.text]


# -- poll() comes too late ---------------------------------------------------------------------------


def exceed(bench: Bench, gap_ms: int = 12_000) -> None:
    bench.member.caller_leaves(bench.now)
    left = bench.now
    bench.poll(left + bench.member.config.max_poll_interval_ms)
    bench.poll(left + gap_ms)
    bench.member.caller_polls(bench.now)
    bench.tell()


@pytest.mark.parametrize("static", [True, False])
def test_a_late_poll_is_explained(static: bool) -> None:
    bench = Bench(static=static, max_poll_interval_ms=10_000, heartbeat_interval_ms=1_000_000)
    bench.settle(0)
    bench.member.caller_leaves(bench.now)
    left = bench.now
    for later in range(10_000, 40_000, 1_000):
        bench.poll(left + later)
    text = the(bench, FindingKind.POLL_TOO_LATE)
    says(text, "max.poll.interval.ms=10000", "max.poll.records", "pause()", "joins again by itself")
    if static:
        says(text, "so i-0 stops", "stand still", "session.timeout.ms=45000", "remove_members('g', ['i-0'])")
    else:
        says(text, "so m-1 stops", "it leaves the group")
    bench.member.caller_polls(bench.now)
    says(the(bench, FindingKind.POLL_RESUMED), "after 39000 ms, 29000 ms too late", "above 39000")


def test_poll_too_late_again_and_again_names_what_would_do() -> None:
    bench = Bench(max_poll_interval_ms=10_000, heartbeat_interval_ms=1_000_000)
    bench.settle(0)
    for gap, generation in ((12_000, 1), (17_000, 1), (11_000, 1)):
        exceed(bench, gap)
        bench.keep_place()
        bench.join(generation, member_id=f"m-{gap}")
        bench.sync(*tps(0))
        bench.tell()
    first, second, third = findings(bench, FindingKind.POLL_RESUMED)
    assert "rebalanced" not in first.text
    assert (first.level, third.level) == (logging.INFO, logging.WARNING)
    says(second.text, "rebalanced 2 times for this", "up to 17000 ms")
    says(third.text, "rebalanced 3 times for this", "above 17000")
    says(findings(bench, FindingKind.POLL_TOO_LATE)[2].text, "time 3 without a quiet interval")
    # After two intervals without lateness it is counted anew.
    bench.now += 20_000
    exceed(bench)
    assert "This is time" not in findings(bench, FindingKind.POLL_TOO_LATE)[3].text


# -- taken out of the group ----------------------------------------------------------------------------


def test_a_removal_is_explained() -> None:
    bench = Bench(heartbeat_interval_ms=3_000, session_timeout_ms=10_000)
    bench.settle(0)
    bench.calm()
    bench.poll()
    bench.beat(E.UNKNOWN_MEMBER_ID)
    text = the(bench, FindingKind.REMOVED)
    says(text, "i-0 was taken out", "UNKNOWN_MEMBER_ID", "heard of it 3000 ms ago", "remove_members")
    says(text, "stop its process first")
    # The Join after it may meet the same code; that is no removal more.
    bench.tell()
    bench.now += 1_000
    bench.keep_place(E.UNKNOWN_MEMBER_ID)
    bench.answer(bench.take(m.JoinGroupRequest), m.JoinGroupResponse(error_code=E.UNKNOWN_MEMBER_ID))
    assert len(bench.member.diagnostics.findings) == 1


def test_an_expired_session_is_explained() -> None:
    bench = Bench(heartbeat_interval_ms=3_000, session_timeout_ms=10_000)
    bench.settle(0)
    bench.poll()
    bench.now += 25_000  # nothing ran here for so long
    bench.wake_at = bench.now
    bench.member.timers.session_ends_at = bench.now + 1
    bench.beat(E.UNKNOWN_MEMBER_ID)
    says(
        the(bench, FindingKind.SESSION_EXPIRED),
        "heard nothing for 25000 ms",
        "session.timeout.ms is 10000",
        "suspended",
    )


def test_a_missed_rebalance_is_explained() -> None:
    bench = Bench(heartbeat_interval_ms=3_000, session_timeout_ms=60_000, max_poll_interval_ms=10_000)
    bench.settle(0)
    bench.poll()
    bench.now += 12_000
    bench.wake_at = bench.now
    bench.beat(E.ILLEGAL_GENERATION)
    text = the(bench, FindingKind.LEFT_BEHIND)
    says(text, "completed a rebalance without it (the coordinator heard of it 12000 ms ago)")
    says(text, "max.poll.interval.ms=10000", "the process was held up")


def test_a_failed_commit_can_say_why() -> None:
    bench = Bench(heartbeat_interval_ms=3_000)
    bench.settle(0)
    assert bench.member.diagnostics.why_out == ""
    bench.poll()
    bench.beat(E.UNKNOWN_MEMBER_ID)
    assert "somebody removed it" in bench.member.diagnostics.why_out
    bench.tell()
    bench.now += 1_000
    bench.keep_place(E.UNKNOWN_MEMBER_ID)
    bench.join(2)
    assert bench.member.diagnostics.why_out == ""


# -- the coordinator -------------------------------------------------------------------------------------


def test_a_silent_coordinator_is_told_of_once_until_it_speaks() -> None:
    bench = Bench(session_timeout_ms=10_000, heartbeat_interval_ms=3_000)
    bench.settle(0)
    for _ in range(100):
        bench.poll(bench.now + 1_000)
        for send in list(bench.member._machine.in_flight):
            bench.member.on_failure(send, bench.now)
    says(
        the(bench, FindingKind.COORDINATOR_SILENT),
        "nothing for session.timeout.ms=10000",
        "cannot be reached",
    )
    bench.poll(bench.now + 1_000)
    bench.answer(bench.sent[-1], m.HeartbeatResponse())
    bench.poll(bench.now + 3_000)
    bench.poll(bench.now + 10_000)
    assert len(findings(bench, FindingKind.COORDINATOR_SILENT)) == 2


def test_a_forgiven_fence_is_explained() -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(5)
    bench.member.on_failure(bench.take(m.SyncGroupRequest), bench.now)
    bench.now += 100
    bench.answer(bench.take(m.SyncGroupRequest), m.SyncGroupResponse(error_code=E.FENCED_INSTANCE_ID))
    says(the(bench, FindingKind.FENCE_FORGIVEN), "coordinator moved", "If it is fenced again")


def test_a_quota_is_told_of_once() -> None:
    bench = Bench(heartbeat_interval_ms=3_000, session_timeout_ms=1_000_000)
    bench.settle(0)
    for throttle_ms in (5_000, 5_000, 0, 5_000):
        bench.poll()
        bench.poll(bench.wake_at)
        bench.answer(bench.sent[-1], m.HeartbeatResponse(throttle_time_ms=throttle_ms))
    first, _ = findings(bench, FindingKind.THROTTLED)
    says(first.text, "Heartbeat: throttle_time_ms=5000", "request_percentage")


# -- rebalances --------------------------------------------------------------------------------------------


def test_a_rebalance_that_does_not_end_names_the_members() -> None:
    bench = Bench(max_poll_interval_ms=60_000)
    bench.subscribe()
    join = bench.take(m.JoinGroupRequest)
    start = bench.now
    bench.poll()
    assert bench.wake_at == start + 10_000
    assert bench.poll(start + 9_999) == []
    (ask,) = bench.poll(start + 10_000)
    assert isinstance(ask.request, m.DescribeGroupsRequest)
    members = [
        m.DescribeGroupsResponseMember(
            member_id="x", group_instance_id="i-7", client_id="c7", client_host="/10.0.0.7"
        ),
        m.DescribeGroupsResponseMember(member_id="dyn-1", client_id="c8", client_host="/10.0.0.8"),
    ]
    group = m.DescribeGroupsResponseGroup(group_id="g", group_state="PreparingRebalance", members=members)
    bench.now += 5
    bench.answer(ask, m.DescribeGroupsResponse(groups=[group]))
    text = the(bench, FindingKind.REBALANCE_WAITS)
    says(text, "not ended for 10005 ms", "i-7 (client c7, /10.0.0.7), dyn-1 (client c8, /10.0.0.8)")
    says(text, "of this one: 60000", "remove_members('g', [its group.instance.id])")
    says(text, "static member that is away")
    for later in range(20_000, 65_000, 1_000):
        for ask in bench.poll(start + later):  # whether the coordinator lives
            bench.answer(ask, m.DescribeGroupsResponse(groups=[group]))
    name = "cooperative-sticky"
    bench.answer(join, m.JoinGroupResponse(generation_id=2, member_id="m-1", leader="o", protocol_name=name))
    assert len(bench.member.diagnostics.findings) == 1


def test_where_the_coordinator_does_not_answer_that_is_said() -> None:
    bench = Bench()
    bench.subscribe()
    bench.take(m.JoinGroupRequest)
    (ask,) = bench.poll(bench.now + 10_000)
    bench.member.on_failure(ask, bench.now)
    (finding,) = bench.member.diagnostics.findings
    assert finding.kind is FindingKind.COORDINATOR_SILENT
    says(finding.text, "nothing for 15000 ms during a rebalance")


def fail_sync(bench: Bench, took_ms: int, code: int = E.REBALANCE_IN_PROGRESS) -> None:
    bench.join(bench.member.generation + 1 if bench.member.generation > 0 else 1)
    send = bench.take(m.SyncGroupRequest)
    bench.now += took_ms
    bench.member.timers.heartbeat_at = bench.now + 3_000
    bench.answer(send, m.SyncGroupResponse(error_code=code))


def test_a_group_that_never_becomes_stable_because_nothing_is_stored() -> None:
    """The other of the two common complaints: every five seconds another rebalance."""
    bench = Bench()
    bench.subscribe()
    fail_sync(bench, 5_000)
    fail_sync(bench, 200)  # so it is with Kafka 4.3: a Sync that waits for the replicas, one that does not
    assert findings(bench, FindingKind.SYNC_FAILS) == []
    for _ in range(5):
        fail_sync(bench, 200)
    text = the(bench, FindingKind.SYNC_FAILS)
    says(text, "3 times in a row", "REBALANCE_IN_PROGRESS after 5000 ms")
    says(text, "__consumer_offsets", "min.insync.replicas")
    bench.join(20)
    bench.sync(*tps(0))
    bench.tell()
    bench.member.request_rejoin("test", bench.now)
    for _ in range(3):
        fail_sync(bench, 5_000)
    assert len(findings(bench, FindingKind.SYNC_FAILS)) == 2, "an occurrence ends when a Sync succeeds"


def test_a_group_that_never_becomes_stable_because_members_come_and_go() -> None:
    bench = Bench()
    bench.subscribe()
    for _ in range(3):
        fail_sync(bench, 200)
    says(the(bench, FindingKind.SYNC_FAILS), "after 200 ms", "restarted all the time")


def test_many_rebalances_in_a_short_time() -> None:
    bench = Bench()
    bench.settle(0)
    for generation in range(2, 12):
        bench.now += 4_000
        bench.member.timers.heartbeat_at = bench.now + 3_000
        bench.member.request_rejoin("test", bench.now)
        bench.join(generation)
        bench.sync(*tps(0))
        bench.tell()
    says(
        the(bench, FindingKind.REBALANCES_OFTEN),
        "5 rebalances within 16000 ms",
        "crashes",
        "max.poll.interval.ms",
    )


def test_the_halves_of_cooperative_rebalances_count_once() -> None:
    bench = Bench()
    bench.settle(0, 1)
    generation = 1
    for turn in range(3):
        bench.now += 2_000
        bench.member.timers.heartbeat_at = bench.now + 3_000
        bench.member.request_rejoin("test", bench.now)
        generation += 1
        bench.join(generation)
        bench.sync(*tps(turn % 2))
        bench.tell()
        if bench.state() is State.JOINING:
            generation += 1
            bench.join(generation)
            bench.sync(*tps(0, 1))
            bench.tell()
    assert findings(bench, FindingKind.REBALANCES_OFTEN) == []


def returned(bench: Bench) -> None:
    bench.subscribe("t")
    bench.join(4, probe=described(TWO))
    bench.sync(*tps(0, 1))
    bench.tell()
    assert bench.member.returned


def rebalance(bench: Bench, after_ms: int, *partitions: int) -> None:
    bench.now += after_ms
    bench.member.timers.heartbeat_at = bench.now + 3_000
    bench.member.request_rejoin("the group is rebalancing", bench.now)
    bench.join(5)
    bench.sync(*tps(*partitions))
    bench.tell()


def test_the_echo_of_a_return_is_explained() -> None:
    bench = Bench(max_poll_interval_ms=60_000, session_timeout_ms=1_000_000)
    returned(bench)
    bench.member.caller_polls(bench.now)
    rebalance(bench, 60_000, 0, 1)
    text = the(bench, FindingKind.ECHO)
    says(text, "60000 ms after this member's return", "comes once", "while the group is Stable")


@pytest.mark.parametrize(
    ("after_ms", "partitions"), [(60_000, (0,)), (65_001, (0, 1))], ids=["moved", "too late"]
)
def test_a_rebalance_at_another_time_is_not_called_an_echo(
    after_ms: int, partitions: tuple[int, ...]
) -> None:
    bench = Bench(max_poll_interval_ms=60_000, session_timeout_ms=1_000_000)
    returned(bench)
    rebalance(bench, after_ms, *partitions)
    assert findings(bench, FindingKind.ECHO) == []


# -- errors that end the member ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "parts"),
    [
        (E.FENCED_INSTANCE_ID, FencedInstanceIdError, ["'i-0'", "StatefulSet", "must have ended before"]),
        (E.INVALID_SESSION_TIMEOUT, InvalidSessionTimeoutError, ["session_timeout_ms=45000", "6000"]),
        (
            E.INCONSISTENT_GROUP_PROTOCOL, InconsistentGroupProtocolError,
            ["cooperative-sticky", "partition_assignment_strategy", "restart all members twice"],
        ),
        (E.GROUP_MAX_SIZE_REACHED, GroupMaxSizeReachedError, ["group.max.size", "fewer members"]),
        (E.UNSUPPORTED_VERSION, UnsupportedVersionError, []),
    ],
)  # fmt: skip
def test_errors_that_end_the_member(
    code: E, kind: type[Exception], parts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.subscribe()
    bench.answer(bench.take(m.JoinGroupRequest), m.JoinGroupResponse(error_code=code))
    assert (bench.state(), type(bench.member.error)) == (State.DEAD, kind)
    says(str(bench.member.error), "group 'g'", code.name, *parts)
    bench.poll(bench.now + 60_000)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
