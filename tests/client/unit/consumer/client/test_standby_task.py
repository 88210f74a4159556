"""What a standby keeps: the coordinator, and connections to it, through moves, losses and refusals."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from slackwater.kafka.consumer.standby import StandbyConnections
from slackwater.kafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    TopicAuthorizationFailedError,
    for_code,
)
from slackwater.kafka.net import Purpose
from slackwater.kafka.net.coordinators import Coordinators
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.support.virtual_time import steady
from tests.support.waiting import WAIT_S, wait_until_async


class FakeCluster:
    """Brokers 1 and 2; ``coordinates`` is the coordinator in truth, ``known`` what is remembered."""

    def __init__(self) -> None:
        self.metadata = ClusterMetadata()
        self.coordinates = 1
        self.known: int | None = None
        self.open: dict[tuple[int, Purpose], int] = {}
        self.opened: list[tuple[int, Purpose]] = []
        self.down: set[int] = set()
        self.refused: KafkaError | None = None
        self.refreshes = 0
        self.failing: deque[KafkaError] = deque()
        self.topic_error = 0
        self.confirmed = 0
        self.news = asyncio.Event()

    async def refresh(self) -> None:
        self.refreshes += 1
        if self.failing:
            raise self.failing.popleft()
        topics = [m.MetadataResponseTopic(name="t", error_code=self.topic_error)]
        brokers = [m.MetadataResponseBroker(node_id=n) for n in (1, 2)]
        self.metadata.update(m.MetadataResponse(brokers=brokers, topics=topics), 0)

    async def coordinator(self, group: str, timeout_ms: int) -> int:
        if self.refused is not None:
            raise self.refused
        if self.known is None:
            self.known = self.coordinates
        return self.known

    async def connection(self, node: int, purpose: Purpose) -> Any:
        if node in self.down:
            raise KafkaConnectionError(f"broker {node} is away")
        if (node, purpose) not in self.open:
            self.open[node, purpose] = 1
            self.opened.append((node, purpose))
        return node, purpose

    async def confirm_coordinator(self, group: str, connection: Any, timeout_ms: int) -> int:
        assert timeout_ms == 1_000
        if connection[0] in self.down:
            raise KafkaConnectionError("not answered")
        self.known = self.coordinates
        if connection[1] is Purpose.GENERAL:
            self.confirmed += 1
            self.news.set()
        return self.known

    def forget_coordinator(self, group: str) -> None:
        self.known = None


class Bench:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.standby = StandbyConnections(
            self.cluster, "g", ["t"], steady(1), answer_ms=1_000, every_s=0.005,  # type: ignore[arg-type]
        )  # fmt: skip
        self.task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self.task = asyncio.create_task(self.standby.run())
        async with asyncio.timeout(WAIT_S):
            await asyncio.shield(self.standby.ready)

    async def looks_again(self, times: int = 2) -> None:
        """Waits until all has been found good that many times more."""
        goal = self.cluster.confirmed + times
        async with asyncio.timeout(WAIT_S):
            while self.cluster.confirmed < goal:
                self.cluster.news.clear()
                await self.cluster.news.wait()

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


BOTH = [(1, Purpose.GROUP), (1, Purpose.GENERAL)]
BOTH_OF_2 = [(2, Purpose.GROUP), (2, Purpose.GENERAL)]


async def test_a_standby_is_ready_with_metadata_coordinator_and_both_connections() -> None:
    bench = Bench()
    await bench.begin()
    assert (bench.cluster.opened, bench.cluster.refreshes) == (BOTH, 1)
    await bench.looks_again()
    assert (bench.cluster.opened, bench.cluster.refreshes) == (BOTH, 1), "they are kept"
    await bench.end()


async def test_a_connection_that_is_lost_is_opened_again() -> None:
    bench = Bench()
    await bench.begin()
    del bench.cluster.open[1, Purpose.GROUP]
    await bench.looks_again()
    assert bench.cluster.opened == [*BOTH, (1, Purpose.GROUP)]
    await bench.end()


async def test_a_standby_follows_the_coordinator() -> None:
    """It also follows when the former coordinator is alive and no connection is lost."""
    bench = Bench()
    await bench.begin()
    bench.cluster.coordinates = 2
    await bench.looks_again()
    assert (bench.cluster.opened, bench.cluster.known) == ([*BOTH, *BOTH_OF_2], 2)
    await bench.end()


async def test_connections_to_a_former_coordinator_do_not_make_a_standby_ready() -> None:
    bench = Bench()
    bench.cluster.known, bench.cluster.coordinates = 1, 2
    await bench.begin()
    assert bench.cluster.opened == [BOTH[0], *BOTH_OF_2]
    await bench.end()


async def test_a_standby_asks_another_broker_when_the_coordinator_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    await bench.begin()
    bench.cluster.down, bench.cluster.coordinates = {1}, 2
    await bench.looks_again()
    assert bench.cluster.opened == [*BOTH, *BOTH_OF_2]
    assert bench.standby.last_error is None
    assert caplog.text.count("in standby") == 1
    await bench.end()


async def test_a_standby_waits_while_an_error_is_retriable() -> None:
    bench = Bench()
    bench.cluster.failing.extend([KafkaConnectionError("nobody there")] * 3)
    await bench.begin()
    assert (bench.cluster.refreshes, bench.standby.last_error) == (4, None)
    await bench.end()


@pytest.mark.parametrize("where", ["topic", "group"])
async def test_a_fatal_error_ends_a_standby_before_it_is_ready(where: str) -> None:
    bench = Bench()
    if where == "topic":
        bench.cluster.topic_error = E.TOPIC_AUTHORIZATION_FAILED
    else:
        bench.cluster.refused = for_code(E.GROUP_AUTHORIZATION_FAILED)
    kind = TopicAuthorizationFailedError if where == "topic" else GroupAuthorizationFailedError
    with pytest.raises(kind):
        await bench.begin()
    assert bench.task is not None
    await bench.task


async def test_a_topic_that_is_not_there_yet_keeps_nobody_from_standing_by() -> None:
    bench = Bench()
    bench.cluster.topic_error = E.UNKNOWN_TOPIC_OR_PARTITION
    await bench.begin()
    await bench.end()


async def test_a_ready_standby_survives_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    await bench.begin()
    bench.cluster.refused = for_code(E.GROUP_AUTHORIZATION_FAILED)
    await wait_until_async(lambda: bench.standby.last_error is not None, "an error")
    assert str(bench.standby.last_error) in caplog.text
    bench.cluster.refused = None
    await bench.looks_again()
    assert bench.standby.last_error is None
    await bench.end()


async def test_a_caller_that_waits_for_a_standby_is_told_of_its_end() -> None:
    bench = Bench()
    bench.cluster.down = {1}
    waiting = asyncio.create_task(bench.begin())
    await wait_until_async(lambda: bench.standby.last_error is not None, "an error")
    await bench.end()
    with pytest.raises(IllegalStateError, match="has ended"):
        await waiting


async def test_the_answer_over_a_connection_is_remembered_and_an_error_changes_nothing() -> None:
    answers = deque(
        [
            m.FindCoordinatorResponseCoordinator(key="g", node_id=0, host="h", port=1),
            m.FindCoordinatorResponseCoordinator(key="g", error_code=E.COORDINATOR_NOT_AVAILABLE),
            m.FindCoordinatorResponseCoordinator(key="g", node_id=2, host="h", port=3),
        ]
    )
    asked: list[str] = []

    async def anyone(request: Any) -> m.FindCoordinatorResponse:
        asked.append("anyone")
        return m.FindCoordinatorResponse(coordinators=[answers.popleft()])

    async def over_this(request: Any) -> m.FindCoordinatorResponse:
        asked.append("this")
        return m.FindCoordinatorResponse(coordinators=[answers.popleft()])

    metadata = ClusterMetadata()
    coordinators = Coordinators(anyone, metadata, steady(1))
    assert await coordinators.wait_for("g", 1_000) == 0
    assert isinstance(await coordinators.ask_again("g", over_this), CoordinatorNotAvailableError)
    assert await coordinators.wait_for("g", 1_000) == 0
    assert await coordinators.ask_again("g", over_this) == 2
    assert await coordinators.wait_for("g", 1_000) == 2
    assert asked == ["anyone", "this", "this"]
    assert metadata.brokers[2].port == 3
