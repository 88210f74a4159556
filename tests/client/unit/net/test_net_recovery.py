"""Brokers that misbehave or are gone: the request goes elsewhere, the client starts again from bootstrap."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slackwater.kafka.errors import KafkaConnectionError, KafkaError
from slackwater.kafka.net import Cluster, RequestTimeoutError
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.frame import RequestHeader
from tests.support.wire.scripted import Peer, frame, scripted_broker


class Site:
    """Two brokers; what one answers to Metadata is damaged in a way that a test chooses."""

    def __init__(self, damage: str = "") -> None:
        self.damage = damage
        self.ports: dict[int, int] = {}
        self.asked: list[int] = []
        self.connections: list[int] = []
        self.rebootstraps = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with scripted_broker(self._broker(1)) as first, scripted_broker(self._broker(2)) as second:
            self.ports = {1: first, 2: second}
            yield

    def _broker(self, node: int):  # type: ignore[no-untyped-def]
        async def serve(peer: Peer) -> None:
            self.connections.append(node)
            await peer.negotiate()
            while True:
                header, body = await peer.receive()
                self.asked.append(node)
                answer = self.answer(body)
                if node == 1 and self.damage:
                    await peer.send(damaged(self.damage, header, answer))
                    if "hangs up" not in self.damage:
                        await peer.gone()
                    return
                await peer.answer(header, answer)

        return serve

    def answer(self, body: object) -> m.MetadataResponse | m.FindCoordinatorResponse:
        if isinstance(body, m.FindCoordinatorRequest):
            port = self.ports[2]
            coordinators = [
                m.FindCoordinatorResponseCoordinator(key=key, node_id=2, host="127.0.0.1", port=port)
                for key in body.coordinator_keys
            ]
            return m.FindCoordinatorResponse(coordinators=coordinators)
        if self.rebootstraps:
            self.rebootstraps -= 1
            return m.MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        brokers = [
            m.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
            for node, port in self.ports.items()
        ]
        return m.MetadataResponse(brokers=brokers, controller_id=1)


def damaged(how: str, header: RequestHeader, answer: m.MetadataResponse | m.FindCoordinatorResponse) -> bytes:
    good = frame(header, answer)
    other = RequestHeader(header.api_key, header.api_version, header.correlation_id + 1, None)
    return {
        "wrong correlation id": frame(other, answer),
        "bytes left over": (len(good) - 4 + 3).to_bytes(4, "big") + good[4:] + b"abc",
        "negative length": b"\xff\xff\xff\xfe" + good[4:],
        "huge length": b"\x7f\xff\xff\xff" + good[4:],
        "half an answer": good[: len(good) // 2],
        "half an answer, then hangs up": good[: len(good) // 2],
        "hangs up": b"",
    }[how]


@asynccontextmanager
async def cluster_of(bootstrap: str, **options: object) -> AsyncIterator[Cluster]:
    options = {"request_timeout_ms": 3_000, "reconnect_backoff_ms": 5, "retry_backoff_ms": 5, **options}
    cluster = Cluster(bootstrap, rng=random.Random(1), **options)  # type: ignore[arg-type]
    try:
        yield cluster
    finally:
        await cluster.close()


async def _knows_both(cluster: Cluster, site: Site, *, first: int) -> None:
    """The cluster has met both brokers, and asks ``first`` next: it alone is connected."""
    damage, site.damage = site.damage, ""
    await cluster.start()
    assert set(cluster.metadata.brokers) == {1, 2}
    await cluster.connection(first)
    site.damage = damage
    site.asked.clear()


@pytest.mark.parametrize(
    "damage", ["wrong correlation id", "bytes left over", "negative length", "huge length"]
)
async def test_an_answer_that_cannot_be_read_closes_the_connection_and_the_request_goes_elsewhere(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(damage)
    async with site.running(), cluster_of(f"127.0.0.1:{site.ports[1]}") as cluster:
        await _knows_both(cluster, site, first=1)
        bad = await cluster.connection(1)
        await cluster.refresh()
        assert site.asked == [1, 2]
        assert bad.closed
        assert "sent an invalid response" in str(bad.error)
        warnings = [record for record in caplog.records if "closing the connection to" in record.getMessage()]
        assert len(warnings) == 1
        assert await cluster.coordinator("g") == 2


@pytest.mark.parametrize("damage", ["hangs up", "half an answer, then hangs up"])
async def test_a_broker_that_hangs_up_on_a_request_is_passed_over(damage: str) -> None:
    site = Site(damage)
    async with site.running(), cluster_of(f"127.0.0.1:{site.ports[1]}") as cluster:
        await _knows_both(cluster, site, first=1)
        bad = await cluster.connection(1)
        await cluster.refresh()
        assert bad.closed
        assert site.asked == [1, 2]


async def test_half_an_answer_poisons_the_connection_when_its_time_is_over() -> None:
    site = Site("half an answer")
    async with site.running(), cluster_of(f"127.0.0.1:{site.ports[1]}", request_timeout_ms=1_000) as cluster:
        await _knows_both(cluster, site, first=1)
        bad = await cluster.connection(1)
        waiting = bad.send(m.HeartbeatRequest(group_id="g"), timeout_ms=60_000)
        with pytest.raises(RequestTimeoutError, match="Metadata v13 .* within 1000 ms"):
            await cluster.refresh()
        assert bad.closed
        with pytest.raises(KafkaConnectionError, match="Heartbeat v4 .* was not answered"):
            await waiting
        await cluster.refresh()


async def test_bad_bootstrap_servers_are_reported_and_the_others_are_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **more: Any) -> Any:
        if host == "no-such-name.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return plain(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    async with scripted_broker(Peer.gone) as dead:  # type: ignore[arg-type]
        pass
    site = Site()
    async with site.running():
        bad = f"no-such-name.invalid:9092,127.0.0.1:{dead},[::1]:{dead}"
        warnings: set[str] = set()
        for seed in range(6):
            caplog.clear()
            async with cluster_of(f"{bad},127.0.0.1:{site.ports[2]}") as cluster:
                cluster.rng.seed(seed)
                await cluster.start()
                assert set(cluster.metadata.brokers) == {1, 2}
                cluster.metadata.brokers = {}
                cluster.rng.seed(seed)
                await cluster.refresh()
            lines = [
                record.getMessage() for record in caplog.records if "cannot be used" in record.getMessage()
            ]
            assert len(lines) == len(set(lines)), "told again"
            warnings.update(lines)
        assert {line.split(": ")[1] for line in warnings} == set(bad.split(","))


@pytest.mark.parametrize("seed", range(4))
async def test_a_bootstrap_server_that_says_nothing_does_not_hold_up_the_others(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.kafka.net.cluster.PATIENCE_S", 0.01)
    site = Site()
    async with (
        site.running(),
        scripted_broker(Peer.gone) as mute,  # type: ignore[arg-type]
        cluster_of(f"127.0.0.1:{mute},127.0.0.1:{site.ports[2]}") as cluster,
    ):
        cluster.rng.seed(seed)
        async with asyncio.timeout(cluster.settings.request_timeout_ms / 1000 / 2):
            await cluster.start()
        assert set(cluster.metadata.brokers) == {1, 2}


async def test_without_recovery_the_known_brokers_are_all_there_is() -> None:
    old, new = Site(), Site()
    async with new.running():
        async with old.running():
            gone = old.answer(m.MetadataRequest())
        bootstrap = f"127.0.0.1:{new.ports[1]}"
        async with cluster_of(bootstrap, metadata_recovery_strategy="none") as cluster:
            cluster.metadata.update(gone, 0)  # type: ignore[arg-type]
            for _ in range(3):
                with pytest.raises(KafkaConnectionError):
                    await cluster.refresh()
            assert new.connections == []


async def test_a_broker_that_asks_for_it_makes_the_client_start_anew() -> None:
    site = Site()
    async with site.running(), cluster_of(f"127.0.0.1:{site.ports[2]}") as cluster:
        await _knows_both(cluster, site, first=1)
        await cluster.coordinator("g")
        before = await cluster.connection(1)
        site.rebootstraps = 1
        await cluster.refresh()
        assert before.closed, "connections to the brokers that were"
        assert set(cluster.metadata.brokers) == {1, 2}
        asked = len(site.asked)
        await cluster.coordinator("g")
        assert len(site.asked) == asked + 1, "the coordinator is looked up anew"


async def test_a_cluster_that_goes_on_asking_for_it_is_a_retriable_error() -> None:
    site = Site()
    async with site.running(), cluster_of(f"127.0.0.1:{site.ports[2]}") as cluster:
        await _knows_both(cluster, site, first=1)
        site.rebootstraps = 10
        with pytest.raises(KafkaError, match="reports no broker") as raised:
            await cluster.refresh()
        assert raised.value.retriable


async def test_after_too_long_without_metadata_the_client_starts_anew() -> None:
    """KIP-1102: the brokers can be reached, and still there is no metadata."""
    good, stuck = Site(), Site("half an answer")
    async with good.running(), stuck.running():
        stuck.ports[2] = stuck.ports[1]
        bootstrap = f"127.0.0.1:{good.ports[1]}"
        async with cluster_of(
            bootstrap, request_timeout_ms=300, metadata_recovery_rebootstrap_trigger_ms=750
        ) as cluster:
            cluster.metadata.update(stuck.answer(m.MetadataRequest()), 0)  # type: ignore[arg-type]
            began = asyncio.get_running_loop().time()
            failures = 0
            while good.connections == []:
                assert failures < 50
                try:
                    await cluster.refresh()
                except RequestTimeoutError:
                    failures += 1
            assert failures >= 2
            assert asyncio.get_running_loop().time() - began >= 0.75
            assert {broker.port for broker in cluster.metadata.brokers.values()} == set(good.ports.values())
