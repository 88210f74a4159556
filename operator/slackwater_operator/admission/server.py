"""The HTTPS server that the API server sends its reviews to: a server for kopf, with limits.

kopf's own `WebhookServer` limits neither connections nor time, and restarts for each new certificate. This
one has the limits of the other HTTP ports, and serves a new certificate from the next connection on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from slackwater.runtime.telemetry.http_limits import ANSWER_S, REQUEST_S, Places
from slackwater_operator.admission.certificates import Material

logger = logging.getLogger(__name__)

MOST_REQUEST_BYTES = 8 * 1024 * 1024
"""A review holds the object before and after; the API server takes objects of 3 MiB at most."""
CHECK_S = 3.0
"""For the check of one object, which takes milliseconds."""
_ACCEPT_AGAIN_S = 1.0
_BACKLOG = 128

Review = dict[str, Any]
"""An AdmissionReview of admission.k8s.io/v1."""
Reviewer = Callable[..., Awaitable[Any]]
"""kopf's function that answers a review."""


def tls_context(material: Material) -> ssl.SSLContext:
    """What serves the material's certificate. The key is in memory only.

    Raises:
        ssl.SSLError: certificate and key do not fit each other, or are no PEM.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    descriptor = os.memfd_create("slackwater-webhook", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(material.key + material.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context


class WebhookServer:
    """Serves reviews while kopf iterates over it.

    Attributes:
        tls: serves the certificate; may be replaced at any time, by any thread.
        port: it listens on; 0 before it does.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext,
        on_failure: Callable[[], None],
        *,
        check_s: float = CHECK_S,
    ) -> None:
        """Does nothing yet.

        Args:
            host: an address of this machine; "": all.
            port: 0: any.
            tls: serves the certificate.
            on_failure: called when a check failed, so that its object was admitted unchecked.
            check_s: how long a check may take.
        """
        self.tls = tls
        self.port = 0
        self._host, self._wanted_port = host, port
        self._on_failure, self._check_s = on_failure, check_s
        self._places = Places()

    async def __call__(self, review: Reviewer) -> AsyncIterator[Any]:
        """Serves until it is closed.

        Args:
            review: answers a review.

        Yields:
            once, an empty client configuration: the chart has the real one.

        Raises:
            OSError: the address cannot be had.
        """

        async def handle(request: web.Request) -> web.Response:
            return await self._handle(review, request)

        app = web.Application(client_max_size=MOST_REQUEST_BYTES)
        app.router.add_post("/validate", handle)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        connections: set[asyncio.Task[None]] = set()
        listener: socket.socket | None = None
        try:
            listener = _listener(self._host, self._wanted_port)
            self.port = int(listener.getsockname()[1])
            accepting = asyncio.create_task(self._accept(listener, runner, connections))
            connections.add(accepting)
            yield {}
            await accepting
        finally:
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            if listener is not None:
                listener.close()
            self.port = 0
            await runner.cleanup()

    async def _accept(
        self, listener: socket.socket, runner: web.AppRunner, connections: set[asyncio.Task[None]]
    ) -> None:
        """Takes connections for as long as there are places. Before TLS: a handshake takes memory, too."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("admission webhook: no connection can be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            host = str(address[0])
            if not self._places.take(host):
                connection.close()
                continue
            task = asyncio.create_task(self._serve(connection, host, runner))
            connections.add(task)
            task.add_done_callback(connections.discard)

    async def _serve(self, connection: socket.socket, host: str, runner: web.AppRunner) -> None:
        """One connection, which has one deadline for its request and the answer together."""
        assert runner.server is not None
        lost = asyncio.Event()
        inner = runner.server()
        transport: asyncio.WriteTransport | None = None
        try:
            async with asyncio.timeout(REQUEST_S + self._check_s + ANSWER_S):
                made, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: _Connection(inner, lost.set),
                    connection,
                    ssl=self.tls,
                    ssl_handshake_timeout=REQUEST_S,
                    ssl_shutdown_timeout=REQUEST_S,
                )
                # uvloop's transports are no subclass of asyncio's.
                transport = cast(asyncio.WriteTransport, made)
                await lost.wait()
        except (OSError, TimeoutError) as error:
            logger.debug("admission webhook: connection from %s: %s", host, error)
        finally:
            if transport is not None:
                transport.abort()
            else:
                connection.close()
            self._places.leave(host)

    async def _handle(self, review: Reviewer, request: web.Request) -> web.Response:
        try:
            asked = json.loads(await request.text())
            uid = asked["request"]["uid"]
            for version in ("object", "oldObject"):
                # kopf would remember every uid that it hears of, for ever.
                ((asked["request"].get(version) or {}).get("metadata") or {}).pop("uid", None)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            return _last(web.Response(status=400, text=f"not an AdmissionReview: {type(error).__name__}\n"))
        try:
            async with asyncio.timeout(self._check_s):
                answer = await review(asked, headers=dict(request.headers))
        except Exception as error:
            logger.exception(
                "admission webhook: a ConsumerGroup was admitted unchecked: %s", error or type(error).__name__
            )
            self._on_failure()
            answer = admitted(uid)
        return _last(web.json_response(answer))


class _Connection(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol, and reports when the connection is lost."""

    def __init__(self, inner: asyncio.Protocol, lost: Callable[[], object]) -> None:
        self._inner, self._lost = inner, lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        self._lost()


def admitted(uid: str) -> Review:
    """The answer that admits an object."""
    response = {"uid": uid, "allowed": True}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _last(response: web.Response) -> web.Response:
    """Has the connection closed after the answer: one deadline is for one request."""
    response.force_close()
    return response


def _listener(host: str, port: int) -> socket.socket:
    """Listens; on IPv4 and IPv6 where no host is given and the machine has both."""
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    else:
        try:
            listener = socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
        except (OSError, ValueError):  # a machine without IPv6
            listener = socket.create_server(("", port), backlog=_BACKLOG)
    listener.setblocking(False)
    return listener
