"""The cluster as one peer: bootstrap, metadata, coordinators, one connection a purpose."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

import pytest

from slackwater.kafka.errors import (
    GroupAuthorizationFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaTimeoutError,
    NoBrokersAvailable,
)
from slackwater.kafka.net import Cluster, Purpose
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol.metadata import ANY_NODE
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.waiting import WAIT_S, wait_until_async
from tests.support.wire.scripted import Peer, scripted_broker


class FakeBrokers:
    """Brokers on loopback ports that know each other, count what they are asked, and obey a test's wishes."""

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        self.asked: Counter[str] = Counter()
        self.connections: Counter[int] = Counter()
        self.versions: dict[str, tuple[int, int]] = {}
        self.coordinator_errors: list[int] = []
        self.metadata_gate: asyncio.Event | None = None
        self.parked: set[int] = set()
        self.topics: list[list[str] | None] = []
        self.topic_errors: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def running(self, *nodes: int) -> AsyncIterator[str]:
        async with contextlib.AsyncExitStack() as stack:
            for node in nodes:
                self.ports[node] = await stack.enter_async_context(scripted_broker(partial(self.serve, node)))
            yield ",".join(f"127.0.0.1:{self.ports[node]}" for node in nodes)

    async def serve(self, node: int, peer: Peer) -> None:
        self.connections[node] += 1
        await peer.negotiate(**self.versions)
        while True:
            header, body = await peer.receive()
            self.asked[type(body).__name__.removesuffix("Request")] += 1
            if isinstance(body, m.MetadataRequest):
                await self.metadata(peer, header, body)
            elif isinstance(body, m.FindCoordinatorRequest):
                await peer.answer(header, self.coordinator_answer(body))
            elif isinstance(body, m.JoinGroupRequest):
                self.parked.add(node)
                await peer.gone()
            elif isinstance(body, m.HeartbeatRequest):
                await peer.answer(header, m.HeartbeatResponse(throttle_time_ms=node))

    async def metadata(self, peer: Peer, header: object, body: m.MetadataRequest) -> None:
        self.topics.append(None if body.topics is None else [t.name or "" for t in body.topics])
        if self.metadata_gate is not None:
            await self.metadata_gate.wait()
        brokers = [
            m.MetadataResponseBroker(node_id=n, host="127.0.0.1", port=p) for n, p in self.ports.items()
        ]
        topics = [
            m.MetadataResponseTopic(name=t.name, error_code=self.topic_errors.get(t.name or "", 0))
            for t in body.topics or []
        ]
        answer = m.MetadataResponse(brokers=brokers, controller_id=1, topics=topics)
        await peer.answer(header, answer)  # type: ignore[arg-type]

    def coordinator_answer(self, body: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
        code = self.coordinator_errors.pop(0) if self.coordinator_errors else 0
        node = max(self.ports)
        if not body.coordinator_keys:
            return m.FindCoordinatorResponse(
                error_code=code, node_id=node, host="127.0.0.1", port=self.ports[node]
            )
        return m.FindCoordinatorResponse(
            coordinators=[
                m.FindCoordinatorResponseCoordinator(
                    key=key, node_id=node, host="127.0.0.1", port=self.ports[node], error_code=code
                )
                for key in body.coordinator_keys
            ]
        )


@contextlib.asynccontextmanager
async def cluster_of(bootstrap: str, **options: object) -> AsyncIterator[Cluster]:
    cluster = Cluster(bootstrap, rng=random.Random(1), retry_backoff_ms=5, reconnect_backoff_ms=5, **options)  # type: ignore[arg-type]
    try:
        yield cluster
    finally:
        await cluster.close()


async def test_start_takes_the_metadata_in_and_keeps_the_bootstrap_connection() -> None:
    brokers = FakeBrokers()
    async with brokers.running(1) as bootstrap, cluster_of(bootstrap) as cluster:
        await cluster.start()
        assert set(cluster.metadata.brokers) == {1}
        answer = await cluster.send(1, m.HeartbeatRequest(group_id="g"))
        assert answer.throttle_time_ms == 1
        assert brokers.connections[1] == 1


async def test_a_bootstrap_server_that_is_down_is_passed_over() -> None:
    brokers = FakeBrokers()
    async with brokers.running(1, 2) as bootstrap:
        async with scripted_broker(Peer.gone) as dead:  # type: ignore[arg-type]
            pass
        async with cluster_of(f"127.0.0.1:{dead},{bootstrap}") as cluster:
            await cluster.start()
            assert set(cluster.metadata.brokers) == {1, 2}


async def test_no_broker_names_every_address_and_what_it_said() -> None:
    async with scripted_broker(Peer.gone) as dead:  # type: ignore[arg-type]
        pass

    async def hang_up(peer: Peer) -> None:
        await peer.receive()

    async with scripted_broker(hang_up) as rude, cluster_of(f"127.0.0.1:{dead},127.0.0.1:{rude}") as cluster:
        with pytest.raises(NoBrokersAvailable) as raised:
            await cluster.start(timeout_ms=50)
    assert f"127.0.0.1:{dead}: " in str(raised.value)
    assert f"127.0.0.1:{rude} closed the connection" in str(raised.value)


async def test_start_goes_on_until_a_broker_comes_up() -> None:
    brokers = FakeBrokers()
    async with brokers.running(1) as bootstrap:
        tries = 0

        async def flaky(host: str, port: int, settings: object) -> object:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise KafkaConnectionError(f"{host}:{port}: not yet")
            from slackwater.kafka.net import open_connection

            return await open_connection(host, port, settings)  # type: ignore[arg-type]

        async with cluster_of(bootstrap, connect=flaky) as cluster:
            await cluster.start(timeout_ms=5_000)
    assert tries == 4


async def test_a_parked_join_delays_neither_heartbeat_nor_metadata() -> None:
    brokers = FakeBrokers()
    async with brokers.running(1) as bootstrap, cluster_of(bootstrap) as cluster:
        await cluster.start()
        join = asyncio.create_task(cluster.send(1, m.JoinGroupRequest(group_id="g"), purpose=Purpose.GROUP))
        await wait_until_async(lambda: brokers.parked, "the parked join")
        async with asyncio.timeout(WAIT_S):
            await cluster.send(1, m.HeartbeatRequest(group_id="g"), purpose=Purpose.FETCH)
            await cluster.refresh()
        assert not join.done()
        assert brokers.connections[1] == 3
        await cluster.close()
        with pytest.raises(KafkaConnectionError):
            await join


async def test_callers_at_the_same_time_share_one_connection_attempt() -> None:
    brokers = FakeBrokers()
    async with brokers.running(1) as bootstrap, cluster_of(bootstrap) as cluster:
        await cluster.start()
        beat = m.HeartbeatRequest(group_id="g")
        tasks = [asyncio.create_task(cluster.send(1, beat, purpose=Purpose.GROUP)) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == ["CancelledError"] + [
            "HeartbeatResponse"
        ] * 4
        assert brokers.connections[1] == 2


async def test_refreshes_are_shared_unless_the_topics_have_changed() -> None:
    brokers = FakeBrokers()
    async with brokers.running(1) as bootstrap, cluster_of(bootstrap) as cluster:
        await cluster.start()
        brokers.topics.clear()
        brokers.metadata_gate = asyncio.Event()
        cluster.track(["a"])
        first = [asyncio.create_task(cluster.refresh()) for _ in range(3)]
        await wait_until_async(lambda: brokers.topics, "the metadata request")
        cluster.track_also(["b"])
        second = [asyncio.create_task(cluster.refresh()) for _ in range(3)]
        brokers.metadata_gate.set()
        await asyncio.gather(*first, *second)
        assert brokers.topics == [["a"], ["a", "b"]]
        cluster.track([], all_topics=True)
        await cluster.refresh()
        assert brokers.topics[-1] is None


async def test_metadata_is_refreshed_at_its_age() -> None:
    brokers = FakeBrokers()
    async with brokers.running(1) as bootstrap, cluster_of(bootstrap, metadata_max_age_ms=10) as cluster:
        refreshed = asyncio.Event()
        await cluster.start()
        cluster.on_metadata.append(lambda _: refreshed.set())
        await asyncio.wait_for(refreshed.wait(), WAIT_S)


async def test_when_all_known_brokers_are_gone_it_bootstraps_again() -> None:
    old, new = FakeBrokers(), FakeBrokers()
    async with new.running(7) as bootstrap:
        async with old.running(1) as gone, cluster_of(f"{gone},{bootstrap}") as cluster:
            cluster.bootstrap_servers = cluster.bootstrap_servers[:1]
            await cluster.start()
            assert set(cluster.metadata.brokers) == {1}
        async with cluster_of(f"{gone},{bootstrap}") as again:
            again.metadata.update(
                m.MetadataResponse(
                    brokers=[m.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=old.ports[1])]
                ),
                0,
            )
            await again.refresh()
            assert set(again.metadata.brokers) == {7}


async def test_a_broker_with_a_new_address_gets_a_new_connection() -> None:
    brokers, moved = FakeBrokers(), FakeBrokers()
    async with brokers.running(1) as bootstrap, moved.running(1), cluster_of(bootstrap) as cluster:
        await cluster.start()
        await cluster.send(1, m.HeartbeatRequest(group_id="g"), purpose=Purpose.GROUP)
        brokers.ports[1] = moved.ports[1]
        await cluster.refresh()
        await cluster.send(1, m.HeartbeatRequest(group_id="g"), purpose=Purpose.GROUP)
        assert moved.connections[1] == 1


async def test_a_broker_that_is_not_known_is_a_retriable_error() -> None:
    brokers = FakeBrokers()
    async with brokers.running(1) as bootstrap, cluster_of(bootstrap) as cluster:
        await cluster.start()
        with pytest.raises(KafkaConnectionError, match="broker 9 is not in the cluster's metadata"):
            await cluster.send(9, m.HeartbeatRequest())
        assert (await cluster.send(ANY_NODE, m.HeartbeatRequest())).throttle_time_ms == 1


@pytest.mark.parametrize("batched", [True, False])
async def test_coordinators_are_found_remembered_and_forgotten(batched: bool) -> None:
    brokers = FakeBrokers()
    if not batched:
        brokers.versions["FindCoordinator"] = (0, 3)
    async with brokers.running(1, 2) as bootstrap, cluster_of(bootstrap) as cluster:
        await cluster.start()
        assert await cluster.coordinators(["a", "b", "a"]) == {"a": 2, "b": 2}
        assert brokers.asked["FindCoordinator"] == (1 if batched else 2)
        assert await cluster.coordinator("a") == 2
        assert brokers.asked["FindCoordinator"] == (1 if batched else 2)
        cluster.forget_coordinator("a")
        assert await cluster.coordinator("a") == 2
        assert brokers.asked["FindCoordinator"] == (2 if batched else 3)


async def test_a_coordinator_that_is_not_there_yet_is_asked_for_again() -> None:
    brokers = FakeBrokers()
    brokers.coordinator_errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    async with brokers.running(1) as bootstrap, cluster_of(bootstrap) as cluster:
        await cluster.start()
        assert await cluster.coordinator("g") == 1
        brokers.coordinator_errors = [ErrorCode.INVALID_REPLICATION_FACTOR] * 50
        cluster.forget_coordinator("g")
        with pytest.raises(KafkaTimeoutError, match="INVALID_REPLICATION_FACTOR") as gave_up:
            await cluster.coordinator("g", timeout_ms=30)
        assert gave_up.value.retriable
        brokers.coordinator_errors = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
        cluster.forget_coordinator("g")
        with pytest.raises(GroupAuthorizationFailedError, match="'g'"):
            await cluster.coordinator("g")


async def test_nothing_is_asked_after_close() -> None:
    brokers = FakeBrokers()
    async with brokers.running(1) as bootstrap, cluster_of(bootstrap) as cluster:
        await cluster.start()
        await cluster.close()
        with pytest.raises(IllegalStateError):
            await cluster.refresh()
        with pytest.raises(IllegalStateError):
            await cluster.send(1, m.HeartbeatRequest())
        await cluster.close()


def test_backoff_doubles_up_to_its_limit_with_a_fifth_of_jitter() -> None:
    backoff = Backoff(50, 1_000, random.Random(3))
    plain = [0, 50, 100, 200, 400, 800, 1_000, 1_000]
    for failures, expected in enumerate(plain):
        delays = [backoff.delay_ms(failures) for _ in range(200)]
        assert min(delays) >= expected * 0.8
        assert max(delays) <= min(expected * 1.2, 1_000)
        assert expected == 0 or max(delays) - min(delays) > expected * 0.15
    assert backoff.delay_ms(10_000) <= 1_000


async def test_a_topic_that_cannot_be_used_is_said_once_for_each_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unknown, forbidden = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    brokers = FakeBrokers()
    async with brokers.running(1) as bootstrap:
        cluster = Cluster(bootstrap)
        cluster.track(["good", "made", "misspelt"])
        # "made" does not exist at first, and is made by being asked for.
        for made, misspelt in [
            (unknown, unknown),
            (0, unknown),
            (0, unknown),
            (0, forbidden),
            (0, forbidden),
            (0, 0),
            (0, forbidden),
        ]:
            brokers.topic_errors = {"made": made, "misspelt": misspelt}
            await cluster.refresh()
        await cluster.close()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    causes = [ErrorCode.name_of(code) for code in (unknown, forbidden, forbidden)]
    assert [line.split(" (")[0] for line in said] == [
        f"Metadata of topic 'misspelt': {cause}" for cause in causes
    ]
