"""One connection to one broker: versions agreed once, every answer paired with its request.

A broker answers the requests of one connection in their order, one at a time (Kafka protocol guide,
"Network"), so several may be under way, and the answer that comes must be to the oldest of them.
Whatever breaks that order (an unknown correlation id, a frame that does not decode, bytes left over,
an answer that does not come in time) makes the connection useless: it is closed, and all that was
asked on it fails with a retriable error.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from slackwater.kafka.errors import KafkaConnectionError, KafkaTimeoutError, UnsupportedVersionError
from slackwater.kafka.net.framing import FrameReader
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError, ErrorCode
from slackwater.kafka.wire.frame import RequestHeader, decode_response, encode_request
from slackwater.kafka.wire.primitives import Buffer, Reader
from slackwater.kafka.wire.schema import Request, Response

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

_MAX_CORRELATION_ID = 0x7FFFFFFF


class RequestTimeoutError(KafkaConnectionError, KafkaTimeoutError):
    """A broker did not answer in time, and the connection was closed. The request may have been done."""


@dataclass(frozen=True, slots=True)
class ByVersion(Generic[R]):
    """A request whose fields depend on the version: ``make(version)`` builds it once that is known.

    For the few messages where an older form needs other fields than a newer one (FindCoordinator,
    OffsetFetch, LeaveGroup, DeleteTopics).
    """

    api: type[Request[R]]
    make: Callable[[int], Request[R]]


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What a connection needs to know. ``max_frame_bytes`` bounds a single answer."""

    client_id: str = "slackwater"
    client_software_name: str = "slackwater"
    client_software_version: str = "0.1.0"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    max_frame_bytes: int = 256 * 1024 * 1024


@dataclass(slots=True)
class _Pending:
    """A request whose answer is still to come."""

    what: str
    correlation_id: int
    future: asyncio.Future[Any]
    decode: Callable[[Buffer], Any]
    timer: asyncio.TimerHandle | None = None


def api_name(api: type[Request[Any]]) -> str:
    """The name of an API as Kafka writes it, ``JoinGroup``."""
    return api.__name__.removesuffix("Request")


def address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Connection(asyncio.BufferedProtocol):
    """One socket to one broker. Made by :func:`open_connection`; not to be shared between loops."""

    def __init__(self, host: str, port: int, settings: ConnectionSettings) -> None:
        self.host, self.port, self.settings = host, port, settings
        self.address = address(host, port)
        self.versions: dict[int, tuple[int, int]] = {}
        """API key -> lowest and highest version of the broker."""
        self.on_close: Callable[[Connection], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(settings.max_frame_bytes, self._check_header, self._take_frame)
        self._pending: deque[_Pending] = deque()
        self._correlation_id = 0
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self.error: KafkaConnectionError | None = None
        """Why the connection is closed; ``None`` while it is open."""
        self.last_used = self._loop.time()

    # -- for callers ---------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked here any more."""
        return self.error is not None

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer."""
        return len(self._pending)

    def version_of(self, api: type[Request[Any]], version_cap: int | None = None) -> int:
        """The version of ``api`` that this connection uses: the highest that both sides know.

        Raises :class:`UnsupportedVersionError` if they have none in common (below ``version_cap``).
        """
        name = api_name(api)
        if api.api_key not in self.versions:
            raise UnsupportedVersionError(f"the broker at {self.address} does not know {name}")
        low, high = self.versions[api.api_key]
        top = min(high, api.max_version if version_cap is None else min(version_cap, api.max_version))
        if top < max(low, api.min_version):
            raise UnsupportedVersionError(
                f"the broker at {self.address} speaks {name} v{low} to v{high}, "
                f"this client v{api.min_version} to v{api.max_version}"
                + ("" if version_cap is None else f", here up to v{version_cap}")
            )
        return top

    def send(
        self,
        request: Request[R] | ByVersion[R],
        *,
        timeout_ms: int | None = None,
        version_cap: int | None = None,
        answered: bool = True,
    ) -> asyncio.Future[R]:
        """Writes the request now, and gives a future of its answer.

        Requests reach the broker in the order of the calls. The future may be cancelled without harm
        to the others. ``timeout_ms`` counts from now, whatever is ahead in the queue; when it passes,
        the connection is closed, because behind an answer that does not come there is no other.
        ``answered=False`` (Produce with acks=0) is done at once with an empty answer.

        Raises :class:`UnsupportedVersionError`, :class:`~slackwater.kafka.wire.errors.EncodeError`
        (nothing was sent) and :class:`KafkaConnectionError` (closed before); the future fails with
        :class:`RequestTimeoutError` or :class:`KafkaConnectionError`, both retriable.
        """
        api = request.api if isinstance(request, ByVersion) else type(request)
        version = self.version_of(api, version_cap)
        body = request.make(version) if isinstance(request, ByVersion) else request

        def decode(payload: Buffer) -> Any:
            return decode_response(payload, api.api_key, version, api.response_type)[1]

        future = self._write(body, version, decode, timeout_ms, answered)
        if not answered:
            future.set_result(api.response_type())
        return future

    async def request(
        self,
        request: Request[R] | ByVersion[R],
        timeout_ms: int | None = None,
        version_cap: int | None = None,
    ) -> R:
        """:meth:`send`, and waits for the answer."""
        return await self.send(request, timeout_ms=timeout_ms, version_cap=version_cap)

    async def close(self, reason: str = "closed by this client") -> None:
        """Closes the socket; what was asked and not answered fails. May be called again."""
        self.fail(KafkaConnectionError(f"connection to {self.address}: {reason}"))
        if self._transport is not None:
            await self._lost

    def fail(self, error: KafkaConnectionError) -> None:
        """Closes the connection because of ``error``, which all pending requests fail with."""
        if self.error is not None:
            return
        self.error = error
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, deque()
        for one in pending:
            if one.timer is not None:
                one.timer.cancel()
            if not one.future.done():
                own = KafkaConnectionError(f"{one.what} to {self.address} was not answered: {error}")
                one.future.set_exception(own)
                one.future.exception()  # read here, so that an abandoned future is no warning
        if self.on_close is not None:
            self.on_close(self)

    # -- the versions of both sides -------------------------------------------------------------

    async def negotiate(self) -> None:
        """Asks the broker for its versions (KIP-35), once, before anything else.

        A broker that does not know our version of ApiVersions answers UNSUPPORTED_VERSION in the form
        of v0, and names the versions it does know (KIP-511); then we ask again in the highest of those.
        """
        version = m.ApiVersionsRequest.max_version
        response = await self._ask_versions(version)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = {api.api_key: api.max_version for api in response.api_keys}
            version = min(version - 1, known.get(m.ApiVersionsRequest.api_key, 0))
            response = await self._ask_versions(max(version, 0))
        if response.error_code != ErrorCode.NONE:
            name = ErrorCode.name_of(response.error_code)
            raise KafkaConnectionError(f"the broker at {self.address} refused ApiVersions: {name}")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    async def _ask_versions(self, version: int) -> m.ApiVersionsResponse:
        def decode(payload: Buffer) -> m.ApiVersionsResponse:
            head = Reader(payload)
            head.int32()
            refused = head.int16() == ErrorCode.UNSUPPORTED_VERSION
            form = 0 if refused else version
            return decode_response(payload, m.ApiVersionsRequest.api_key, form, m.ApiVersionsResponse)[1]

        body = m.ApiVersionsRequest(
            client_software_name=self.settings.client_software_name,
            client_software_version=self.settings.client_software_version,
        )
        response: m.ApiVersionsResponse = await self._write(body, version, decode, None, True)
        return response

    # -- the stream ---------------------------------------------------------------------------

    def _write(
        self,
        body: Request[Any],
        version: int,
        decode: Callable[[Buffer], Any],
        timeout_ms: int | None,
        answered: bool,
    ) -> asyncio.Future[Any]:
        if self.error is not None or self._transport is None:
            raise KafkaConnectionError(f"{self.error or f'connection to {self.address} is not open'}")
        correlation_id = self._correlation_id
        header = RequestHeader(body.api_key, version, correlation_id, self.settings.client_id)
        parts = encode_request(header, body)
        self._correlation_id = (correlation_id + 1) & _MAX_CORRELATION_ID
        what = f"{api_name(type(body))} v{version}"
        future: asyncio.Future[Any] = self._loop.create_future()
        self.last_used = self._loop.time()
        if answered:
            limit = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
            pending = _Pending(what, correlation_id, future, decode)
            pending.timer = self._loop.call_later(limit / 1000, self._expire, pending, limit)
            self._pending.append(pending)
        self._transport.writelines(parts)
        return future

    def _expire(self, pending: _Pending, limit_ms: int) -> None:
        error = RequestTimeoutError(f"{pending.what} to {self.address} was not answered within {limit_ms} ms")
        if not pending.future.done():
            pending.future.set_exception(error)
            pending.future.exception()
        self.fail(error)

    def _check_header(self, correlation_id: int) -> None:
        if not self._pending:
            raise DecodeError(f"an answer (correlation id {correlation_id}) that nothing was asked for")
        expected = self._pending[0].correlation_id
        if correlation_id != expected:
            raise DecodeError(f"an answer with correlation id {correlation_id} where {expected} was due")

    def _take_frame(self, payload: Buffer) -> None:
        pending = self._pending[0]
        try:
            answer = pending.decode(payload)
        except DecodeError as exc:
            raise DecodeError(f"the answer to {pending.what} does not decode: {exc}") from exc
        self._pending.popleft()
        if pending.timer is not None:
            pending.timer.cancel()
        if not pending.future.done():
            pending.future.set_result(answer)

    # -- asyncio.BufferedProtocol -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.error is not None:
            return
        try:
            self._reader.advance(nbytes)
        except DecodeError as exc:
            log.warning("closing the connection to %s: %s", self.address, exc)
            self.fail(KafkaConnectionError(f"{self.address} sent what cannot be read: {exc}"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        middle = " in the middle of an answer" if self._reader.partial else ""
        reason = f": {exc}" if exc else ""
        self.fail(KafkaConnectionError(f"{self.address} closed the connection{middle}{reason}"))
        if not self._lost.done():
            self._lost.set_result(None)


Connect = Callable[[str, int, ConnectionSettings], Awaitable[Connection]]
"""Opens a connection that is ready for requests, or raises :class:`KafkaConnectionError`."""


async def open_connection(host: str, port: int, settings: ConnectionSettings) -> Connection:
    """Connects in plain text and agrees on versions, within ``settings.connect_timeout_ms``.

    A name with several addresses is tried address by address (RFC 8305). Raises
    :class:`KafkaConnectionError` with the address and the reason.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(host, port, settings)
    try:
        async with asyncio.timeout(settings.connect_timeout_ms / 1000):
            await loop.create_connection(lambda: connection, host, port, happy_eyeballs_delay=0.25)
            await connection.negotiate()
    except TimeoutError as exc:
        connection.fail(KafkaConnectionError("connecting took too long"))
        raise KafkaConnectionError(
            f"{connection.address}: no Kafka broker answered within {settings.connect_timeout_ms} ms"
        ) from exc
    except OSError as exc:
        raise KafkaConnectionError(f"{connection.address}: {_reason(exc)}") from exc
    except BaseException as exc:
        connection.fail(KafkaConnectionError(f"connection to {connection.address} not completed: {exc!r}"))
        raise
    return connection


def _reason(exc: OSError) -> str:
    """Why a connection could not be made; asyncio replaces the system's words by "Connect call failed"."""
    if exc.errno is not None and exc.errno > 0:
        return os.strerror(exc.errno)
    return exc.strerror or str(exc)
