"""What a group keeps and loses when its coordinator moves or restarts.

On real brokers three of them run, and the one that coordinates is stopped by SIGTERM; the dev broker
moves its coordinator by its control port, and is also killed and started again. All rows prepare
their groups first, then the coordinator moves once, then each row looks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.conformance.brokers import ceilings
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.kafka.brokers import GROUP_CONFIG
from tests.support.waiting import HANG_S, wait_until
from tests.support.wire.beater import Beater
from tests.support.wire.rawclient import (
    CEILINGS,
    ConnectionClosed,
    Member,
    RawClient,
    create_topic,
    describe,
    form,
    join_all,
    members,
    remove,
    subscription,
    successor,
    until_rebalance,
)

Running = Generator[None, str, None]
Row = Callable[[str, str], Running]
ROWS: list[Row] = []


def row(function: Row) -> Row:
    """Marks a row: it prepares, yields while the coordinator moves, gets the new address, and checks."""
    ROWS.append(function)
    return function


def moved(member: Member, bootstrap: str) -> Member:
    """The same member, which keeps its ids, with connections to the new coordinator."""
    back = Member(bootstrap, member.group, member.instance, protocols=member.protocols)
    back.member_id, back.generation, back.joined = member.member_id, member.generation, member.joined
    back.session_ms, back.rebalance_ms, back.leader = member.session_ms, member.rebalance_ms, member.leader
    return back


@row
def stable_group_goes_on(bootstrap: str, name: str) -> Running:
    """Known member.ids go on heartbeating, same generation, no rebalance; offsets stay; a pod that
    returns gets its assignment back.
    """
    with members(bootstrap, name, "a", "b", "c") as group, RawClient.to(bootstrap) as client:
        create_topic(client, name, 1)
        leader = form(group)
        assert leader.commit(name, 0, 42, "kept") == E.NONE
        address = yield
        with contextlib.ExitStack() as stack:
            back = [stack.enter_context(moved(x, address)) for x in group]
            assert [x.heartbeat() for x in back] == [E.NONE] * 3
            follower = next(x for x in back if not x.is_leader)
            pod = stack.enter_context(successor(follower))
            assert pod.join().generation_id == leader.generation
            assert pod.sync().assignment == (pod.instance or "").encode()
            assert follower.heartbeat() == E.FENCED_INSTANCE_ID
            assert pod.commit(name, 0, 43) == E.NONE


@row
def consumer_group_goes_on(bootstrap: str, name: str) -> Running:
    """Of the consumer protocol: epochs, assignments, a member that is away, and offsets stay."""
    with RawClient.to(bootstrap) as client:
        if client.version_of(m.OffsetCommitRequest) < 10:  # before Kafka 4.1
            yield
            return
        create_topic(client, name, 2)
    with Beater(bootstrap, name, name, "a") as a, Beater(bootstrap, name, name) as b:
        a.take(a.join())
        b.take(b.join())

        def shared() -> bool:
            a.settle()
            b.settle()
            return len(a.held) == len(b.held) == 1 and a.epoch == b.epoch

        wait_until(shared)
        assert a.commit(a.epoch) == E.NONE
        assert a.send(member_epoch=-2).error_code == E.NONE
        address = yield
        with Beater(address, name, name) as b2, Beater(address, name, name, "a") as a2:
            b2.member_id, b2.epoch = b.member_id, b.epoch
            assert b2.take(b2.send()) is None
            assert a2.take(a2.join()) == a.held
            assert (a2.epoch, b2.epoch) == (a.epoch, b.epoch)
            assert a2.fetch(a2.member_id, a2.epoch) == E.NONE


@row
def mixed_group_goes_on(bootstrap: str, name: str) -> Running:
    """With a member of the classic protocol: its generation, its assignment."""
    with RawClient.to(bootstrap) as client:
        if client.version_of(m.OffsetCommitRequest) < 10:  # before Kafka 4.1
            yield
            return
        create_topic(client, name)
    data = {"range": subscription(name)}
    with Member(bootstrap, name, "a", protocols=data) as a, Beater(bootstrap, name, name) as b:
        b.take(b.join())
        assert a.join().error_code == a.sync().error_code == E.NONE

        def settled() -> bool:
            b.settle()
            return b.epoch == a.generation or a.join().generation_id == b.epoch

        wait_until(settled)
        address = yield
        with moved(a, address) as a2, Beater(address, name, name) as b2:
            assert (a2.heartbeat(), a2.sync().error_code) == (E.NONE, E.NONE)
            b2.member_id, b2.epoch = b.member_id, b.epoch
            assert b2.take(b2.send()) is None
            assert {each.member_type for each in b2.described().members} == {0, 1}


@row
def rebalance_in_flight_is_forgotten(bootstrap: str, name: str) -> Running:
    """A rebalance in flight is forgotten: its members get ILLEGAL_GENERATION (new ones
    UNKNOWN_MEMBER_ID) and its generation number is used again.
    """
    with members(bootstrap, name, "a", "b", "new") as [a, b, new]:
        generation = form([a, b]).generation
        join_all([a, b, new])
        assert a.generation > generation
        address = yield
        with moved(a, address) as a2, moved(b, address) as b2, moved(new, address) as new2:
            assert a2.heartbeat() == E.ILLEGAL_GENERATION
            assert new2.heartbeat() == E.UNKNOWN_MEMBER_ID
            assert a2.heartbeat(generation_id=generation) == E.NONE
            a2.generation = b2.generation = generation
            new2.send_join("")
            until_rebalance(a2)
            a2.send_join()
            b2.send_join()
            assert {x.receive_join().generation_id for x in (a2, b2, new2)} == {generation + 1}


@row
def removal_is_undone(bootstrap: str, name: str) -> Running:
    """A removal is stored only with the next leader's Sync: a coordinator that moves before brings
    the member back.
    """
    with members(bootstrap, name, "a", "b") as [a, b], RawClient.to(bootstrap) as client:
        form([a, b])
        assert remove(client, name, "b") == [E.NONE]
        assert b.heartbeat() == E.UNKNOWN_MEMBER_ID
        address = yield
        with moved(a, address) as a2, moved(b, address) as b2:
            assert [a2.heartbeat(), b2.heartbeat()] == [E.NONE, E.NONE]
            shown = {x.group_instance_id for x in describe(a2.side, name).members}
            assert shown == {"a", "b"}


@row
def removal_is_kept_after_a_sync(bootstrap: str, name: str) -> Running:
    """After the next leader's Sync a removal stays."""
    with members(bootstrap, name, "a", "b") as [a, b], RawClient.to(bootstrap) as client:
        form([a, b])
        assert remove(client, name, "b") == [E.NONE]
        a.join()
        assert a.sync({a.member_id: b"all"}).error_code == E.NONE
        address = yield
        with moved(a, address) as a2, moved(b, address) as b2:
            assert a2.heartbeat() == E.NONE
            assert b2.heartbeat() == E.UNKNOWN_MEMBER_ID


@row
def removal_of_all_is_kept(bootstrap: str, name: str) -> Running:
    """A group that has become Empty is stored as such."""
    with members(bootstrap, name, "a") as [a], RawClient.to(bootstrap) as client:
        generation = form([a]).generation
        assert remove(client, name, "a") == [E.NONE]
        address = yield
        with moved(a, address) as a2:
            assert a2.heartbeat() == E.UNKNOWN_MEMBER_ID
            assert describe(a2.side, name).group_state == "Empty"
            assert a2.join("").generation_id == generation + 2


@row
def return_in_a_rebalance_is_undone(bootstrap: str, name: str) -> Running:
    """A static rejoin during a rebalance is stored only with the leader's Sync: a coordinator that
    moves before restores the old member.id and fences the rightful pod, until it rejoins with an
    empty one.
    """
    with members(bootstrap, name, "a", "b", "new") as [a, b, new], contextlib.ExitStack() as stack:
        generation = form([a, b]).generation
        new.send_join()
        until_rebalance(a)
        pod = stack.enter_context(successor(b))
        pod.send_join()
        assert pod.main.is_silent(0.3)
        a.send_join()
        assert {x.receive_join().error_code for x in (a, pod, new)} == {E.NONE}
        assert b.heartbeat() == E.FENCED_INSTANCE_ID
        address = yield
        pod2 = stack.enter_context(moved(pod, address))
        assert pod2.heartbeat() == E.FENCED_INSTANCE_ID
        b2 = stack.enter_context(moved(b, address))
        assert b2.heartbeat() == E.NONE
        assert pod2.join("").generation_id == generation
        assert pod2.heartbeat() == E.NONE


@row
def return_in_stable_is_kept(bootstrap: str, name: str) -> Running:
    """A static rejoin in Stable is stored at once."""
    with members(bootstrap, name, "a", "b") as [a, b], contextlib.ExitStack() as stack:
        form([a, b])
        pod = stack.enter_context(successor(b))
        assert pod.join().error_code == E.NONE
        address = yield
        pod2 = stack.enter_context(moved(pod, address))
        assert pod2.heartbeat() == E.NONE
        assert stack.enter_context(moved(b, address)).heartbeat() == E.FENCED_INSTANCE_ID


@row
def parked_requests_are_answered(bootstrap: str, name: str) -> Running:
    """SIGTERM: parked requests get NOT_COORDINATOR (a killed broker just closes the connection)."""
    with members(bootstrap, name, "a", "b") as [a, b]:
        form([a])
        b.send_join()
        until_rebalance(a)
        with members(bootstrap, name + "-sync", "a", "b") as pair:
            leader = join_all(pair)
            follower = next(x for x in pair if x is not leader)
            follower.send_sync()
            assert follower.main.is_silent(0.2)
            yield
            for parked in (b, follower):
                with contextlib.suppress(ConnectionClosed):
                    assert parked.main.receive().error_code == E.NOT_COORDINATOR


@row
def session_starts_anew(bootstrap: str, name: str) -> Running:
    """Sessions start anew in full: a member that was silent before the move has a whole session more."""
    session_s = 10
    with members(bootstrap, name, "a", "b", session_ms=1_000 * session_s) as group:
        leader = form(group)
        silent = next(x for x in group if x is not leader)
        formed = time.monotonic()
        time.sleep(4.0)  # so that its old session ends well before the new one
        address = yield
        with moved(leader, address) as leader2:
            while time.monotonic() - formed < session_s + 1:
                assert leader2.heartbeat() == E.NONE
                time.sleep(0.2)
            shown = {x.member_id for x in describe(leader2.side, name).members}
            assert silent.member_id in shown


LAST = session_starts_anew.__name__
"""Its clock runs from its preparation to the move: so the others are prepared before it."""


def _kafka_stop(version: str, broker: str) -> Iterator[tuple[str, Callable[[], str]]]:
    with KafkaCluster(3, GROUP_CONFIG, version=version) as cluster:
        CEILINGS.update((port, ceilings(broker)) for port in cluster.ports.values())
        first = cluster.await_coordinator("any")

        def move() -> str:
            cluster.stop(first)
            return cluster.address(cluster.await_coordinator("any", other_than=first))

        yield cluster.address(first), move


def _devbroker_move() -> Iterator[tuple[str, Callable[[], str]]]:
    with DevBroker(GROUP_CONFIG) as broker:

        def move() -> str:
            broker.control("POST", "/coordinator/move", {"down_ms": 3_000})
            with RawClient.to(broker.bootstrap) as client:
                assert client.request(m.FindCoordinatorRequest(key="any"), 3).error_code == (
                    E.COORDINATOR_NOT_AVAILABLE
                )
                while client.request(m.FindCoordinatorRequest(key="any"), 3).error_code != E.NONE:
                    time.sleep(0.02)
            return broker.bootstrap

        yield broker.bootstrap, move


def _devbroker_kill() -> Iterator[tuple[str, Callable[[], str]]]:
    with DevBroker(GROUP_CONFIG) as broker:

        def move() -> str:
            broker.kill()
            broker.start()
            return broker.bootstrap

        yield broker.bootstrap, move


Move = Callable[[], Iterator[tuple[str, Callable[[], str]]]]
MOVES: dict[str, Move] = {
    "kafka-4.4-stop": functools.partial(_kafka_stop, "4.4.0", "kafka-4.4"),
    "kafka-4.3-stop": functools.partial(_kafka_stop, "4.3.0", "kafka-4.3"),
    "kafka-3.9-stop": functools.partial(_kafka_stop, "3.9.1", "kafka-3.9"),
    "kafka-2.8-stop": functools.partial(_kafka_stop, "2.8.2", "kafka-2.8"),
    "devbroker-move": _devbroker_move,
    "devbroker-kill": _devbroker_kill,
}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[dict[str, Future[None]]]]]:
    """For each kind of move that was asked for, side by side: the outcome of every row."""
    wanted = {
        str(item.callspec.params["move"]): None
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_moved_coordinator.__name__
    }
    with (
        contextlib.ExitStack() as brokers,
        ThreadPoolExecutor(len(ROWS) * len(wanted)) as checks,
        ThreadPoolExecutor(len(wanted)) as moves,
    ):
        yield {move: moves.submit(run_rows, move, brokers, checks) for move in wanted}


def run_rows(move: str, brokers: contextlib.ExitStack, checks: ThreadPoolExecutor) -> dict[str, Future[None]]:
    """Prepares every row, moves the coordinator, and lets the rows go on."""
    bootstrap, do_move = brokers.enter_context(contextlib.contextmanager(MOVES[move])())
    rows = {r.__name__: r(bootstrap, f"m-{os.getpid()}-{r.__name__}") for r in ROWS}
    with ThreadPoolExecutor(len(rows)) as pool:
        list(pool.map(next, (prepared for name, prepared in rows.items() if name != LAST)))
    next(rows[LAST])
    address = do_move()
    return {name: checks.submit(go_on, prepared, address) for name, prepared in rows.items()}


def go_on(prepared: Running, address: str) -> None:
    with contextlib.suppress(StopIteration):
        prepared.send(address)
        raise AssertionError("a row yields once")


@pytest.mark.parametrize(
    "move", [pytest.param(n, marks=() if n.startswith("devbroker") else pytest.mark.long) for n in MOVES]
)
@pytest.mark.parametrize("name", [r.__name__ for r in ROWS])
def test_moved_coordinator(
    outcomes: dict[str, Future[dict[str, Future[None]]]], move: str, name: str
) -> None:
    """The outcome of one row; what it says stands in the scenario of that name."""
    outcomes[move].result(timeout=HANG_S)[name].result(timeout=HANG_S)
