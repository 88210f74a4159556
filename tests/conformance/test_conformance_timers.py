"""What only time shows: sessions, rebalance timeouts, the initial delay, and the echo of a return.

Each row waits for a timer of the broker, so all rows of one broker run side by side, each in a
group of its own, and the tests collect their outcomes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.conformance.brokers import FIXTURES, ceilings
from tests.support.kafka.brokers import GROUP_CONFIG
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire.beater import Beater
from tests.support.wire.rawclient import (
    CEILINGS,
    Member,
    RawClient,
    create_topic,
    describe,
    form,
    join_all,
    members,
    parse_address,
    remove,
    subscription,
    successor,
    sync_all,
    until_rebalance,
)

SESSION_MS = 6_000
SLACK_MS = 2_500
"""How late a timer may be seen to fire on a busy machine."""
EARLY_MS = 700
"""How early: a test's clock starts when the answer is read, which is after the broker's."""

Row = Callable[[str, str], None]
ROWS: list[Row] = []


def row(function: Row) -> Row:
    """Marks a scenario; it gets the broker's address and the name of a group and topic of its own."""
    ROWS.append(function)
    return function


class Clock:
    """Milliseconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self) -> float:
        return (time.monotonic() - self._start) * 1000

    def sleep_until(self, at_ms: float) -> None:
        """The passing of time is what these rows are about, so this is a sleep and no wait."""
        time.sleep(max(0.0, at_ms - self()) / 1000)


@contextlib.contextmanager
def heartbeats(*group: Member) -> Iterator[list[int]]:
    """Heartbeats for ``group`` every 0.3 s in the background; yields the errors seen, in order."""
    errors: list[int] = []
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.3):
            errors.extend(member.heartbeat() for member in group)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield errors
    finally:
        stop.set()
        thread.join()


def gone_at(member: Member, clock: Clock, watcher: RawClient, timeout_ms: float) -> float:
    """When the group no longer lists the member, in ms of ``clock``; asks without refreshing it."""
    while clock() < timeout_ms:
        if all(x.member_id != member.member_id for x in describe(watcher, member.group).members):
            return clock()
        time.sleep(0.05)
    raise AssertionError(f"{member.instance} is still a member after {clock():.0f} ms")


def assert_near(at_ms: float, expected_ms: float) -> None:
    """``at_ms`` is ``expected_ms``, but for what a busy machine adds on either side."""
    assert expected_ms - EARLY_MS <= at_ms <= expected_ms + SLACK_MS


# --- sessions ------------------------------------------------------------------------------------


@row
def session_expires(bootstrap: str, name: str) -> None:
    """A session that nothing refreshes ends after session.timeout.ms; Sync in Stable, a follower's
    repeated Join and a heartbeat with ILLEGAL_GENERATION do not refresh it.
    """
    with members(bootstrap, name, "a", "b", session_ms=SESSION_MS) as group:
        leader = form(group)
        clock = Clock()
        follower = next(x for x in group if x is not leader)
        with heartbeats(leader) as errors, RawClient.to(bootstrap) as watcher:
            while clock() < SESSION_MS - 1_500:
                time.sleep(0.5)
                assert follower.sync().error_code == E.NONE
                assert follower.join().generation_id == leader.generation
                wrong = follower.heartbeat(generation_id=leader.generation + 5)
                assert wrong == E.ILLEGAL_GENERATION
            assert set(errors) == {E.NONE}
            assert_near(gone_at(follower, clock, watcher, SESSION_MS + SLACK_MS), SESSION_MS)
        assert leader.heartbeat() == E.REBALANCE_IN_PROGRESS


@row
def commits_refresh_the_session(bootstrap: str, name: str) -> None:
    """A session is refreshed by accepted commits; refused ones do not count."""
    with (
        members(bootstrap, name, "a", "b", session_ms=SESSION_MS) as [a, b],
        RawClient.to(bootstrap) as watcher,
    ):
        create_topic(watcher, name)
        form([a, b])
        clock = Clock()
        while clock() < SESSION_MS + 2_000:
            assert a.commit(name, 0, 1) == E.NONE
            if clock() < SESSION_MS - 1_500:
                assert b.commit(name, 0, 1, generation_id_or_member_epoch=77) == E.ILLEGAL_GENERATION
            time.sleep(0.4)
        shown = describe(watcher, name)
        assert {x.group_instance_id for x in shown.members} == {"a"}
        assert a.commit(name, 0, 2) == E.NONE  # accepted in PreparingRebalance


@row
def heartbeats_in_a_rebalance_refresh_the_session(bootstrap: str, name: str) -> None:
    """A session is refreshed by heartbeats that are answered REBALANCE_IN_PROGRESS, too."""
    with members(bootstrap, name, "a", "b", "new") as [a, b, new], RawClient.to(bootstrap) as watcher:
        for x in (a, b):
            x.session_ms = SESSION_MS
        form([a, b])
        clock = Clock()
        new.send_join()
        until_rebalance(a)
        with heartbeats(a) as errors:
            gone_at(b, clock, watcher, SESSION_MS + SLACK_MS)
            clock.sleep_until(SESSION_MS + 2_000)
        assert set(errors) == {E.REBALANCE_IN_PROGRESS}
        assert {x.group_instance_id for x in describe(watcher, name).members} == {"a", "new"}


@row
def return_starts_the_clock_with_the_old_timeout(bootstrap: str, name: str) -> None:
    """A static rejoin starts the clock anew, but with the *old* timeout until the first heartbeat."""
    with members(bootstrap, name, "a", "b", "c", session_ms=SESSION_MS) as [a, b, c]:
        form([a, b, c])
        a.session_ms = 60_000
        with heartbeats(a), RawClient.to(bootstrap) as watcher, contextlib.ExitStack() as stack:
            clock = Clock()
            clock.sleep_until(3_000)
            silent = stack.enter_context(successor(b, session_ms=60_000))
            beating = stack.enter_context(successor(c, session_ms=60_000))
            for x in (silent, beating):
                assert x.join().error_code == E.NONE
                assert x.sync().error_code == E.NONE
            clock = Clock()
            assert beating.heartbeat() == E.NONE
            assert_near(gone_at(silent, clock, watcher, SESSION_MS + SLACK_MS), SESSION_MS)
            clock.sleep_until(SESSION_MS + SLACK_MS)  # long enough for the other, were it by the old timeout
            left = {x.group_instance_id for x in describe(watcher, name).members}
            assert left == {"a", "c"}


@row
def parked_joins_do_not_expire(bootstrap: str, name: str) -> None:
    """Parked Joins and Syncs do not expire, even with their socket closed."""
    with members(bootstrap, name, "a", "b", "c", "new") as [a, b, c, new], RawClient.to(bootstrap) as watcher:
        for x in (b, c):
            x.session_ms = SESSION_MS
        form([a, b, c])
        new.session_ms = SESSION_MS
        new.send_join()
        until_rebalance(a)
        b.send_join()
        c.send_join()
        assert c.main.is_silent(0.3)
        c.close()
        with heartbeats(a):
            time.sleep((SESSION_MS + 2_000) / 1000)
            shown = {x.group_instance_id for x in describe(watcher, name).members}
        assert shown == {"a", "b", "c", "new"}
        a.send_join()
        assert {x.receive_join().error_code for x in (a, b, new)} == {E.NONE}


@row
def parked_syncs_do_not_expire(bootstrap: str, name: str) -> None:
    """A parked Sync keeps its member's session alive until it is answered."""
    with members(bootstrap, name, "a", "b") as group:
        for x in group:
            x.session_ms = SESSION_MS
        leader = join_all(group)
        follower = next(x for x in group if x is not leader)
        follower.send_sync()
        with heartbeats(leader):
            assert follower.main.is_silent((SESSION_MS + 2_000) / 1000)
        assert leader.sync({follower.member_id: b"late"}).error_code == E.NONE
        assert follower.receive_sync().assignment == b"late"


@row
def expired_group_is_empty(bootstrap: str, name: str) -> None:
    """All expired: Empty; a return is a new member, and the generation is two higher."""
    with members(bootstrap, name, "a", "b", session_ms=SESSION_MS) as [a, b]:
        generation = form([a, b]).generation
        with RawClient.to(bootstrap) as watcher:
            deadline = time.monotonic() + (SESSION_MS + SLACK_MS) / 1000
            while describe(watcher, name).group_state != "Empty":
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert a.heartbeat() == E.UNKNOWN_MEMBER_ID
        assert a.join().error_code == E.UNKNOWN_MEMBER_ID
        assert a.join("").generation_id == generation + 2


# --- the echo of a return ------------------------------------------------------------------------

ECHO_MS = 3_000


@row
def echo_of_a_return_before_sync(bootstrap: str, name: str) -> None:
    """The echo: the old member.id still owed its Sync, and the pod returns in Stable. It gets its
    assignment, yet one rebalance timeout after the join completed the whole group rebalances;
    nobody is evicted.
    """
    with members(bootstrap, name, "a", "b", "c", rebalance_ms=ECHO_MS) as group:
        leader = join_all(group)
        clock = Clock()
        died, other = [x for x in group if x is not leader]
        died.close()
        other.send_sync()
        plan = {x.member_id: (x.instance or "").encode() for x in group}
        assert leader.sync(plan).error_code == E.NONE
        assert other.receive_sync().error_code == E.NONE
        with successor(died) as back:
            assert back.join().generation_id == leader.generation
            assert back.sync().assignment == (died.instance or "").encode()
            assert back.heartbeat() == E.NONE
            while leader.heartbeat() == E.NONE:
                assert clock() < ECHO_MS + SLACK_MS, "no echo"
                time.sleep(0.02)
            assert_near(clock(), ECHO_MS)
            assert leader.heartbeat() == E.REBALANCE_IN_PROGRESS
            for x in (leader, other, back):
                x.send_join()
            assert {x.receive_join().error_code for x in (leader, other, back)} == {E.NONE}
            assert len(next(x for x in (leader, other, back) if x.is_leader).joined.members) == 3


@row
def no_echo_of_a_return_in_completing(bootstrap: str, name: str) -> None:
    """No echo if the pod returns in CompletingRebalance (or Preparing-)."""
    with members(bootstrap, name, "a", "b", rebalance_ms=ECHO_MS) as group:
        leader = join_all(group)
        died = next(x for x in group if x is not leader)
        died.close()
        with successor(died) as back:
            back.send_join()
            until_rebalance(leader)
            leader.send_join()
            assert {x.receive_join().error_code for x in (leader, back)} == {E.NONE}
            sync_all([leader, back], {})
            clock = Clock()
            while clock() < ECHO_MS + 1_500:
                assert [leader.heartbeat(), back.heartbeat()] == [E.NONE, E.NONE]
                time.sleep(0.1)


# --- a static member that is away during a rebalance ----------------------------------------------

AWAY_MS = 3_000


@row
def join_waits_for_the_away_one_then_evicts_it(bootstrap: str, name: str) -> None:
    """A static member away during a rebalance: the join waits for the group's largest rebalance
    timeout; it stays a member and in the leader's list, but is evicted, with another rebalance,
    when it misses Sync within another rebalance timeout. An absent leader loses the lead.
    """
    with members(bootstrap, name, "a", "b", "c", rebalance_ms=1_000) as group:
        group[2].rebalance_ms = AWAY_MS
        leader = form(group)
        here = [x for x in group if x is not leader]
        generation = leader.generation
        newcomer = Member(bootstrap, name, "new", rebalance_ms=1_000)
        with newcomer, RawClient.to(bootstrap) as watcher:
            clock = Clock()
            newcomer.send_join()
            until_rebalance(here[0])
            for x in here:
                x.send_join()
            answers = [x.receive_join() for x in (*here, newcomer)]
            assert_near(clock(), AWAY_MS)
            assert {x.generation_id for x in answers} == {generation + 1}
            listed = {x.group_instance_id for y in answers for x in y.members}
            assert listed == {"a", "b", "c", "new"}
            assert leader.heartbeat() == E.ILLEGAL_GENERATION
            new_leader = next(x for x in (*here, newcomer) if x.is_leader)
            assert new_leader is not leader
            clock = Clock()
            sync_all([*here, newcomer], {})
            until = gone_at(leader, clock, watcher, AWAY_MS + SLACK_MS)
            assert_near(until, AWAY_MS)
            assert new_leader.heartbeat() == E.REBALANCE_IN_PROGRESS
            assert leader.heartbeat() == E.UNKNOWN_MEMBER_ID


@row
def join_waits_for_the_away_one_until_its_session_ends(bootstrap: str, name: str) -> None:
    """The join waits for an absent static member until its session expires, if that comes first."""
    with members(bootstrap, name, "a", "b") as [a, b]:
        b.session_ms = SESSION_MS
        form([a, b])
        clock = Clock()
        with Member(bootstrap, name, "new") as newcomer:
            newcomer.send_join()
            until_rebalance(a)
            a.send_join()
            assert {x.receive_join().error_code for x in (a, newcomer)} == {E.NONE}
            assert_near(clock(), SESSION_MS)
            leader = a if a.is_leader else newcomer
            assert {x.group_instance_id for x in leader.joined.members} == {"a", "new"}


@row
def leader_that_does_not_sync_is_evicted_with_the_others(bootstrap: str, name: str) -> None:
    """A leader that does not Sync is evicted with all others who did not."""
    with members(bootstrap, name, "a", "b", "c", rebalance_ms=AWAY_MS) as group:
        leader = join_all(group)
        clock = Clock()
        patient, also_gone = [x for x in group if x is not leader]
        patient.send_sync()
        answer = patient.receive_sync()
        assert_near(clock(), AWAY_MS)
        assert answer.error_code == E.REBALANCE_IN_PROGRESS
        assert patient.join().error_code == E.NONE
        assert {x.group_instance_id for x in patient.joined.members} == {patient.instance}
        assert leader.heartbeat() == E.UNKNOWN_MEMBER_ID
        assert also_gone.heartbeat() == E.UNKNOWN_MEMBER_ID


@row
def group_that_nobody_joins_stays_preparing(bootstrap: str, name: str) -> None:
    """If *nobody* joins, the group stays in PreparingRebalance (and keeps its static members)."""
    with members(bootstrap, name, "a", "b", "c", rebalance_ms=AWAY_MS) as group:
        form(group)
        with RawClient.to(bootstrap) as watcher:
            assert remove(watcher, name, "c") == [E.NONE]
            clock = Clock()
            while clock() < AWAY_MS + 2_500:
                shown = describe(watcher, name)
                assert shown.group_state == "PreparingRebalance"
                assert {x.group_instance_id for x in shown.members} == {"a", "b"}
                time.sleep(0.1)
        for x in group[:2]:
            x.send_join()
        assert {x.receive_join().error_code for x in group[:2]} == {E.NONE}


@row
def dynamic_member_that_misses_the_join_is_removed(bootstrap: str, name: str) -> None:
    """A dynamic member that has not rejoined within the rebalance timeout is removed."""
    with members(bootstrap, name, None, "a", rebalance_ms=AWAY_MS) as [dynamic, a]:
        form([dynamic, a])
        with Member(bootstrap, name, "new", rebalance_ms=AWAY_MS) as newcomer:
            clock = Clock()
            newcomer.send_join()
            until_rebalance(a)
            a.send_join()
            assert {x.receive_join().error_code for x in (a, newcomer)} == {E.NONE}
            assert_near(clock(), AWAY_MS)
            leader = a if a.is_leader else newcomer
            assert {x.group_instance_id for x in leader.joined.members} == {"a", "new"}
            assert dynamic.heartbeat() == E.UNKNOWN_MEMBER_ID


# --- group.initial.rebalance.delay.ms --------------------------------------------------------------

DELAY_MS = int(GROUP_CONFIG["group.initial.rebalance.delay.ms"])


def first_join_ms(bootstrap: str, group: str, rebalance_ms: int) -> float | None:
    """How long the first generation takes with a second member that comes half a delay later.

    None: on a busy machine it came too late for that generation.
    """
    with members(bootstrap, group, "a", "b", rebalance_ms=rebalance_ms) as [a, b]:
        clock = Clock()
        a.send_join()
        clock.sleep_until(DELAY_MS / 2)
        b.send_join()
        first = a.receive_join()
        if a.is_leader and len(first.members) == 1:
            return None
        assert {first.generation_id, b.receive_join().generation_id} == {1}
        assert len((a if a.is_leader else b).joined.members) == 2
        return clock()


def first_joins_ms(bootstrap: str, group: str, rebalance_ms: int) -> Iterator[float]:
    """How long it took in each of some attempts in which the second member came in time."""
    attempts = (first_join_ms(bootstrap, f"{group}-{i}", rebalance_ms) for i in range(30))
    return (took for took in attempts if took is not None)


@row
def initial_delay_is_extended_by_newcomers(bootstrap: str, name: str) -> None:
    """The initial delay: each newcomer extends it by a whole one; it holds for Empty groups only."""
    assert next(first_joins_ms(bootstrap, name, 60_000)) >= 2 * DELAY_MS - 10
    with members(bootstrap, name + "-empty", "a", "late") as [a, late]:
        form([a])
        late.send_join()
        until_rebalance(a)
        a.send_join()
        assert {x.receive_join().generation_id for x in (a, late)} == {2}


@row
def initial_delay_is_extended_up_to_the_rebalance_timeout(bootstrap: str, name: str) -> None:
    """Newcomers extend the delay up to the largest rebalance timeout; its first part is always waited."""
    # A late answer proves nothing on a busy machine, an early one does: so there are some attempts.
    assert any(took < 2 * DELAY_MS - 10 for took in first_joins_ms(bootstrap, name, DELAY_MS * 4 // 3))
    with members(bootstrap, name + "-alone", "a", rebalance_ms=10) as [a]:
        clock = Clock()
        assert a.join().error_code == E.NONE
        assert clock() >= DELAY_MS - 10


@row
def classic_session_ends_the_membership_of_a_consumer_group(bootstrap: str, name: str) -> None:
    """In a group of the consumer protocol a member of the classic one has its own session timeout, which
    heartbeats start anew and commits do not.
    """
    with RawClient.to(bootstrap) as client:
        if client.version_of(m.OffsetCommitRequest) < 10:  # before Kafka 4.1
            return
        create_topic(client, name)
    data = {"range": subscription(name)}
    with Beater(bootstrap, name, name) as b, Member(bootstrap, name, "a", protocols=data) as a:
        b.take(b.join())
        a.session_ms = SESSION_MS
        assert a.join().error_code == a.sync().error_code == E.NONE
        clock = Clock()
        clock.sleep_until(SESSION_MS / 2)
        a.heartbeat()

        def is_removed() -> bool:
            b.send()
            a.commit(name, 0, 1)
            return len(b.described().members) < 2

        left_ms = SESSION_MS * 1.5 + SLACK_MS - clock()
        wait_until(is_removed, "the member is removed", left_ms / 1000, every_s=0.1)
        assert_near(clock(), SESSION_MS * 1.5)


# --- running them --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], Future[None]]]:
    """Every row that was asked for, started: on each broker, all at once, one thread each; and once, since
    pytest-xdist runs the tests of each broker at another time, and a row's names are those of the process.
    """
    wanted = [
        (str(item.callspec.params["target"]), str(item.callspec.params["name"]))
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_timed_row.__name__
    ]
    rows = {r.__name__: r for r in ROWS}
    brokers = {target: request.getfixturevalue(FIXTURES[target]) for target, _ in wanted}
    for target, broker in brokers.items():
        CEILINGS[parse_address(broker.bootstrap)[1]] = ceilings(target)
    with ThreadPoolExecutor(len(wanted)) as pool:
        yield {
            (target, name): pool.submit(rows[name], brokers[target].bootstrap, f"t-{os.getpid()}-{name}")
            for target, name in wanted
        }


@pytest.mark.parametrize("target", list(FIXTURES))
@pytest.mark.parametrize("name", [r.__name__ for r in ROWS])
def test_timed_row(outcomes: dict[tuple[str, str], Future[None]], target: str, name: str) -> None:
    """The outcome of one row; what it says stands in the scenario of that name."""
    outcomes[target, name].result(timeout=WAIT_S)
