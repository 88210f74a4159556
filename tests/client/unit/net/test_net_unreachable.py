"""How long a client tries to reach a first broker, in virtual time; name look-ups that nobody waits for."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any, NoReturn

import pytest

from slackwater.kafka.errors import KafkaConnectionError, NoBrokersAvailable
from slackwater.kafka.net import Cluster, name_lookup
from slackwater.kafka.net.connection_settings import ConnectionSettings
from tests.support.virtual_time import run_virtually

LIMITS: dict[str, Any] = {"timeout_ms": 30_000, "unreachable_timeout_ms": 2_000}


async def refused(host: str, port: int, settings: ConnectionSettings) -> NoReturn:
    raise KafkaConnectionError(f"{host}:{port}: Connection refused")


async def silent(host: str, port: int, settings: ConnectionSettings) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def slow_broker(host: str, port: int, settings: ConnectionSettings) -> NoReturn:
    """Accepts the connection within a second, and never answers."""
    await asyncio.sleep(1)
    settings.addresses.reached = True
    return await silent(host, port, settings)


def tried_for_ms(connect: Any, **limits: Any) -> float:
    async def start() -> float:
        cluster = Cluster("a:1,b:2", connect=connect)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(NoBrokersAvailable):
            await cluster.start(**limits)
        await cluster.close()
        return (loop.time() - began) * 1000

    took: float = run_virtually(start())
    return took


@pytest.mark.parametrize("connect", [refused, silent])
def test_what_cannot_be_reached_is_given_up_early_where_a_person_waits(connect: Any) -> None:
    assert 500 < tried_for_ms(connect, **LIMITS) <= 2_001


@pytest.mark.parametrize("connect", [refused, silent])
def test_others_wait_for_a_cluster_that_starts(connect: Any) -> None:
    assert 28_000 < tried_for_ms(connect, timeout_ms=30_000) <= 30_001


def test_a_broker_that_accepts_the_connection_has_the_whole_time() -> None:
    assert 29_999 <= tried_for_ms(slow_broker, **LIMITS) <= 30_001


class Resolver:
    """In place of the system's: answers when :attr:`answers` is set, and counts what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []
        monkeypatch.setattr(socket, "getaddrinfo", self._getaddrinfo)

    def _getaddrinfo(self, host: str, port: int, **_: Any) -> list[name_lookup.AddressInfo]:
        self.asked.append(host)
        self.answers.wait()
        if host == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host == "a..b":
            raise UnicodeError("label empty")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]


async def test_callers_share_a_look_up_and_may_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(monkeypatch)
    first, second = (asyncio.create_task(name_lookup.look_up("broker", 9092)) for _ in range(2))
    await asyncio.sleep(0)
    assert name_lookup.is_running("broker", 9092)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    resolver.answers.set()
    assert [address[4] for address in await second] == [("192.0.2.1", 9092)]
    assert resolver.asked == ["broker"]
    assert not name_lookup.is_running("broker", 9092)
    assert await name_lookup.look_up("broker", 9092), "asked anew"
    assert resolver.asked == ["broker", "broker"]


@pytest.mark.parametrize("name", ["unknown", "a..b"])
async def test_a_name_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    Resolver(monkeypatch).answers.set()
    with pytest.raises(socket.gaierror):
        await name_lookup.look_up(name, 9092)
