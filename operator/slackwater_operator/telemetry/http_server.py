"""The operator's HTTP: `/healthz`, `/readyz`, `/metrics`, and pages for people.

No authentication: nothing in it is secret, and nothing can be changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web

from slackwater.runtime.telemetry import html
from slackwater.runtime.telemetry.http_limits import ANSWER_S, REFUSAL, REQUEST_S, Places
from slackwater_operator.telemetry.metrics import CONTENT_TYPE, OperatorMetrics

Verdict = tuple[bool, str]
"""Whether all is well, and what to say."""


class HealthServer:
    """The HTTP server; serves until it is closed."""

    def __init__(
        self,
        metrics: OperatorMetrics,
        healthy: Callable[[], Verdict],
        ready: Callable[[], Verdict],
        overview: Callable[[], bytes],
        group: Callable[[str, str], bytes | None],
    ) -> None:
        """Does nothing yet.

        Args:
            metrics: what is scraped.
            healthy: whether this process should live on.
            ready: whether it does what it should: leads with full caches, or waits.
            overview: the page of all groups.
            group: the page of the group in a namespace with a name; None: there is no such group.
        """
        self._metrics = metrics
        self._healthy = healthy
        self._ready = ready
        self._overview = overview
        self._group = group
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listens.

        Args:
            host: an address of this machine; "": all, IPv4 and IPv6.
            port: 0: any; `port` says which.

        Raises:
            OSError: the address cannot be had.
        """
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_text)
        app.router.add_get("/", self._overview_page)
        app.router.add_get("/groups/{namespace}/{name}", self._group_page)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        places = Places()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Limited(server(), places), host or None, port, reuse_address=True
            )
        except BaseException:
            await self.close()
            raise
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stops listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._healthy())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._ready())

    async def _metrics_text(self, _: web.Request) -> web.Response:
        text = await asyncio.to_thread(self._metrics.text)
        return _last(web.Response(body=text, headers={"Content-Type": CONTENT_TYPE}))

    async def _overview_page(self, _: web.Request) -> web.Response:
        return _page(self._overview())

    async def _group_page(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        body = self._group(namespace, name)
        if body is None:
            text = f"there is no ConsumerGroup {name} in namespace {namespace}, or another replica leads\n"
            return _last(web.Response(status=404, text=text))
        return _page(body)


def _page(body: bytes) -> web.Response:
    return _last(web.Response(body=body, headers={"Content-Type": html.CONTENT_TYPE, **html.HEADERS}))


def _answer(verdict: Verdict) -> web.Response:
    well, text = verdict
    return _last(web.Response(status=200 if well else 503, text=text + "\n"))


def _last(response: web.Response) -> web.Response:
    """Has the connection closed after the answer: one deadline is for one request."""
    response.force_close()
    return response


class _Limited(asyncio.Protocol):
    """A connection that has a place, and a deadline for its request and the answer together.

    aiohttp has none for a request's head: a client that sends a byte now and then would stay connected.
    """

    def __init__(self, inner: asyncio.Protocol, places: Places) -> None:
        self._inner, self._places = inner, places
        self._host: str | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        connection = cast(asyncio.Transport, transport)
        host = str((connection.get_extra_info("peername") or ("",))[0])
        if not self._places.take(host):
            connection.write(REFUSAL)
            connection.close()
            return
        self._host = host
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(REQUEST_S + ANSWER_S, connection.abort)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._host is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._host is not None else None

    def pause_writing(self) -> None:
        if self._host is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._host is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._host is None:
            return
        self._places.leave(self._host)
        self._host = None
        if self._deadline is not None:
            self._deadline.cancel()
        self._inner.connection_lost(exc)
