"""The webhook's HTTPS server: a check that fails admits; size, time and number of requests are limited."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from slackwater.runtime.telemetry.http_limits import MOST_OF_ONE_HOST
from slackwater_operator.admission.certificates import Material, Renewal, renewed
from slackwater_operator.admission.server import MOST_REQUEST_BYTES, WebhookServer, tls_context
from tests.support.waiting import HANG_S

HOST = "localhost"
REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u1"}}
Reviewer = Callable[..., Awaitable[dict[str, Any]]]


def material() -> Material:
    return renewed(None, Renewal.EVERYTHING, HOST, time.time_ns() // 1_000_000)


async def refuse(asked: dict[str, Any], **_: Any) -> dict[str, Any]:
    return {"response": {"uid": asked["request"]["uid"], "allowed": False, "status": {"message": "no"}}}


class Served:
    """A server that runs, and requests to it."""

    def __init__(self, served: Material, *, check_s: float = 3.0) -> None:
        self.failures = 0
        self.material = served
        self.server = WebhookServer("127.0.0.1", 0, tls_context(served), self._failed, check_s=check_s)

    def _failed(self) -> None:
        self.failures += 1

    async def post(self, body: bytes, path: str = "/validate") -> tuple[int, bytes]:
        trusted = ssl.create_default_context(cadata=self.material.authorities.decode())
        url = f"https://127.0.0.1:{self.server.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=body, ssl=trusted, server_hostname=HOST) as response,
        ):
            return response.status, await response.read()

    async def review(self, asked: object = REVIEW) -> dict[str, Any]:
        status, body = await self.post(json.dumps(asked).encode())
        assert status == 200
        answer: dict[str, Any] = json.loads(body)["response"]
        return answer


@contextlib.asynccontextmanager
async def serving(reviewer: Reviewer, *, check_s: float = 3.0) -> AsyncIterator[Served]:
    served = Served(material(), check_s=check_s)
    ready = asyncio.Event()

    async def serve() -> None:
        async for _ in served.server(reviewer):
            ready.set()

    task = asyncio.create_task(serve())
    await ready.wait()
    try:
        yield served
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_server_returns_the_reviewers_answer() -> None:
    async with serving(refuse) as served:
        assert await served.review() == {"uid": "u1", "allowed": False, "status": {"message": "no"}}
        assert served.failures == 0


async def test_a_check_that_fails_admits_and_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(*_: Any, **__: Any) -> dict[str, Any]:
        raise RuntimeError("a bug")

    async with serving(fails) as served:
        assert await served.review() == {"uid": "u1", "allowed": True}
        assert served.failures == 1
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage() == "admission webhook: a ConsumerGroup was admitted unchecked: a bug"


async def test_a_check_that_takes_too_long_admits() -> None:
    async def hangs(*_: Any, **__: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(hangs, check_s=0.01) as served:
        assert (await served.review())["allowed"] is True
        assert served.failures == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"[]", b"{}", b'{"request": 1}', b"\xff", b"[" * 100_000, b'{"request": {"object": 1}}'],
)
async def test_a_body_that_is_no_review_is_a_bad_request(body: bytes) -> None:
    async with serving(refuse) as served:
        status, text = await served.post(body)
        assert (status, text.split(b":")[0]) == (400, b"not an AdmissionReview")
        assert served.failures == 0


async def test_a_review_that_is_too_large_is_not_read() -> None:
    async with serving(refuse) as served:
        assert (await served.post(b"x" * (MOST_REQUEST_BYTES + 1)))[0] == 413
        filler = "x" * (MOST_REQUEST_BYTES - 1_000)
        assert (await served.review({"request": {"uid": "u2", "filler": filler}}))["uid"] == "u2"


async def test_no_other_path_is_served() -> None:
    async with serving(refuse) as served:
        assert (await served.post(b"{}", "/"))[0] == 404


async def test_kopf_is_not_told_uids_which_it_would_keep_for_ever() -> None:
    asked = []

    async def remember(review: dict[str, Any], **_: Any) -> dict[str, Any]:
        asked.append(review["request"])
        return {"response": {}}

    objects = {"object": {"metadata": {"name": "a", "uid": "1"}}, "oldObject": None}
    async with serving(remember) as served:
        await served.review({"request": {"uid": "u1", **objects}})
    assert asked == [{"uid": "u1", "object": {"metadata": {"name": "a"}}, "oldObject": None}]


async def test_a_new_certificate_is_served_from_the_next_connection_on() -> None:
    async with serving(refuse) as served:
        await served.review()
        served.material = material()
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await served.review()
        served.server.tls = tls_context(served.material)
        await served.review()


async def test_silent_connections_leave_places_for_the_api_server() -> None:
    """One host has a share of the places; who has none is told so at once, before any handshake."""
    async with serving(refuse) as served:
        port = served.server.port
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_OF_ONE_HOST)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        # From another host there is a place.
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        assert not reader.at_eof()
        for _, held in [*idle, (reader, writer)]:
            held.close()

        async def answered() -> bool:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                return not (await served.review())["allowed"]
            return False

        async with asyncio.timeout(HANG_S):
            while not await answered():
                await asyncio.sleep(0.01)


async def test_the_server_stops_with_open_connections() -> None:
    async with serving(refuse) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        await asyncio.sleep(0)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
