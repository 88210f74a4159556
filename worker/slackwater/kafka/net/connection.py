"""One connection to one broker: negotiates versions once and pairs every answer with its request.

A broker answers the requests of one connection in their order, one at a time (Kafka protocol guide,
"Network"), so several may be under way, and the answer that comes must be to the oldest of them.
Whatever breaks that order (an unknown correlation id, a frame that does not decode, bytes left over,
an answer that does not come in time) closes the connection, and all its requests fail with a retriable
error.

A broker that throttles (KIP-219) answers at once and says for how long it reads nothing more from the
connection. Requests made meanwhile are held in order. Each may be held up to its time limit, and has the same
limit again once it is written.

Where brokers limit how long a login counts (``connections.max.reauth.ms``, KIP-368), the connection logs in
again, at the first request after about nine tenths of that time: what is under way is answered first,
and what is asked meanwhile waits, since a broker takes nothing else between the steps of a login.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from slackwater.kafka.error_hints import needs_release
from slackwater.kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater.kafka.net.threads import answer_decoder
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError, ErrorCode, MemoryLimitError
from slackwater.kafka.wire.frame import FrameReader, RequestHeader, decode_response, encode_request
from slackwater.kafka.wire.limits import AnswerLimit, answer_limit, throttle_ms
from slackwater.kafka.wire.primitives import Buffer, Reader
from slackwater.kafka.wire.schema import Request, Response

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

_MAX_CORRELATION_ID = 0x7FFFFFFF
_TLS_ALERT = b"\x15\x03"
_ONLY_VERSIONS = 1
_LENGTH_BYTES = 4
_WARN_FROM_MS = 1_000
_ON_LOOP_BYTES = 4 * 1024 * 1024
"""An answer whose objects take more is decoded by another thread: this is a few thousand partitions, and
takes some 30 ms."""
_LOGIN_REQUESTS = (m.SaslHandshakeRequest, m.SaslAuthenticateRequest)


class RequestTimeoutError(KafkaConnectionError, KafkaTimeoutError):
    """A broker did not answer in time, and the connection was closed: the request may have been done. Or it
    throttles this client, and the request was never sent; then the message says so, and it stays open."""


@dataclass(frozen=True, slots=True)
class ByVersion(Generic[R]):
    """A request whose fields depend on the version: ``make(version)`` builds it once that is known.

    For the few messages where an older form needs other fields than a newer one (FindCoordinator,
    OffsetFetch, LeaveGroup, DeleteTopics).
    """

    api: type[Request[R]]
    make: Callable[[int], Request[R]]


@dataclass(slots=True)
class _Pending:
    """A request without an answer."""

    what: str
    correlation_id: int
    future: asyncio.Future[Any]
    decode: Callable[[Buffer, int | None], Any]
    limit_ms: int
    limit: AnswerLimit
    throttle_ms: Callable[[Any], int]
    timer: asyncio.TimerHandle | None = None
    sent_at: float = 0.0


class TlsFailure(KafkaConnectionError):
    """The TLS handshake failed, or an error ended the TLS session: ``reason``."""

    def __init__(self, message: str, reason: Exception) -> None:
        super().__init__(message)
        self.reason = reason


Login = Callable[["Connection"], Awaitable[float]]
"""Logs in on a connection: gives for how many ms that counts until it has to be done again
(``math.inf``: for ever). Raises :class:`~slackwater.kafka.errors.KafkaError`.
"""


def api_name(api: type[Request[Any]]) -> str:
    """The name of an API as Kafka writes it, ``JoinGroup``."""
    return api.__name__.removesuffix("Request")


def _undecodable(pending: _Pending, exc: DecodeError) -> DecodeError:
    return DecodeError(f"the response to {pending.what} cannot be decoded: {exc}")


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
        self.features: dict[str, int] = {}
        """The cluster's finalized features and their levels (KIP-584), as the broker knew them."""
        self.on_close: Callable[[Connection], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(self._check_header, self._take_frame)
        self._pending: deque[_Pending] = deque()
        self._decoding: list[_Pending] = []
        """Answered, and being decoded by another thread."""
        self._correlation_id = 0
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self.error: KafkaConnectionError | None = None
        """Why the connection is closed; ``None`` while it is open."""
        self._answers = 0
        self.node_id = -1
        """The broker's id, once it is known."""
        self.logins = 0
        """How often this connection has logged in."""
        self._login: Login | None = None
        self._login_due = math.inf
        self._relogin: asyncio.Task[None] | None = None
        self._held: list[tuple[_Pending | None, list[Buffer]]] = []
        self._muted: asyncio.TimerHandle | None = None
        self._throttle_logged = False
        self.last_used = self._loop.time()
        """When something was last written or answered, by the loop's clock."""
        self._drained: asyncio.Future[None] | None = None

    # -- for callers ---------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it is closed to requests."""
        return self.error is not None

    @property
    def attached(self) -> bool:
        """Whether it has a socket, which is closed with it."""
        return self._transport is not None

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer."""
        return len(self._pending) + len(self._held) + len(self._decoding)

    def version_of(self, api: type[Request[Any]], version_cap: int | None = None) -> int:
        """The version of ``api`` that this connection uses: the highest that both sides know.

        Raises :class:`UnsupportedVersionError` if they have none in common (below ``version_cap``).
        """
        name = api_name(api)
        if api.api_key not in self.versions:
            raise UnsupportedVersionError(
                f"the broker at {self.address} does not support {name}", advice=needs_release(name)
            )
        low, high = self.versions[api.api_key]
        top = min(high, api.max_version if version_cap is None else min(version_cap, api.max_version))
        if top < max(low, api.min_version):
            raise UnsupportedVersionError(
                f"the broker at {self.address} supports {name} v{low} to v{high}, this client "
                f"v{api.min_version} to v{api.max_version}"
                + ("" if version_cap is None else f", here up to v{version_cap}"),
                advice=needs_release(name),
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
        the connection is closed, because behind an answer that does not come there is no other. One that is
        still held because the broker throttles fails alone then.
        ``answered=False`` (Produce with acks=0) is done at once with an empty answer.

        Raises :class:`UnsupportedVersionError`, :class:`~slackwater.kafka.wire.errors.EncodeError`
        (nothing was sent) and :class:`KafkaConnectionError` (closed before); the future fails with
        :class:`RequestTimeoutError` or :class:`KafkaConnectionError`, both retriable.
        """
        api = request.api if isinstance(request, ByVersion) else type(request)
        version = self.version_of(api, version_cap)
        body = request.make(version) if isinstance(request, ByVersion) else request

        def decode(payload: Buffer, room_bytes: int | None) -> Any:
            return decode_response(payload, api.api_key, version, api.response_type, room_bytes)[1]

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
        """Closes the socket; requests without an answer fail. May be called again."""
        self.fail(KafkaConnectionError(f"connection to {self.address}: {reason}"))
        if self._transport is not None:
            await self._lost

    def fail(self, error: KafkaConnectionError) -> None:
        """Closes the connection because of ``error``, which all pending requests fail with."""
        if self.error is not None:
            return
        self.error = error
        if self._transport is not None:
            self.settings.traffic.closed()
            self._transport.abort()
        if self._relogin is not None and self._relogin is not asyncio.current_task(self._loop):
            self._relogin.cancel()
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        held = [request for request, _ in self._held if request is not None]
        pending, self._pending, self._held = [*self._decoding, *self._pending, *held], deque(), []
        self._decoding = []
        for request in pending:
            if request.timer is not None:
                request.timer.cancel()
            if not request.future.done():
                own = KafkaConnectionError(f"{request.what} to {self.address} was not answered: {error}")
                request.future.set_exception(own)
                request.future.exception()  # read here, so that an abandoned future logs no warning
        if self.on_close is not None:
            self.on_close(self)

    # -- the versions of both sides -------------------------------------------------------------

    async def negotiate(self) -> None:
        """Asks the broker for its versions (KIP-35), once, before anything else.

        A broker that does not know our version of ApiVersions answers UNSUPPORTED_VERSION in the form
        of v0, and names the versions it does know (KIP-511); then we ask again in the highest of those.
        """
        # v5 adds the cluster's id (KIP-1242), which is not sent; a broker before 4.4 would be asked twice.
        version = 4
        response = await self._ask_versions(version)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = {api.api_key: api.max_version for api in response.api_keys}
            version = min(version - 1, known.get(m.ApiVersionsRequest.api_key, 0))
            response = await self._ask_versions(max(version, 0))
        if response.error_code != ErrorCode.NONE:
            name = ErrorCode.name_of(response.error_code)
            raise KafkaConnectionError(f"the broker at {self.address} refused ApiVersions: {name}")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}

    async def _ask_versions(self, version: int) -> m.ApiVersionsResponse:
        def decode(payload: Buffer, room_bytes: int | None) -> m.ApiVersionsResponse:
            head = Reader(payload)
            head.int32()
            refused = head.int16() == ErrorCode.UNSUPPORTED_VERSION
            form = 0 if refused else version
            key = m.ApiVersionsRequest.api_key
            return decode_response(payload, key, form, m.ApiVersionsResponse, room_bytes)[1]

        body = m.ApiVersionsRequest(
            client_software_name=self.settings.client_software_name,
            client_software_version=self.settings.client_software_version,
        )
        response: m.ApiVersionsResponse = await self._write(body, version, decode, None, True)
        return response

    # -- logging in -----------------------------------------------------------------------------

    async def log_in(self, login: Login) -> None:
        """Logs in, now and again before the login expires. Raises what ``login`` raises."""
        self._login = login
        again, began = self.logins > 0, self._loop.time()
        try:
            lifetime_ms = await login(self)
        except KafkaError:
            self.settings.traffic.login_failed(again=again)
            raise
        self.settings.traffic.logged_in((self._loop.time() - began) * 1000, again=again)
        self.logins += 1
        self._login_due = self._loop.time() + lifetime_ms / 1000

    def _must_wait(self, body: Request[Any]) -> bool:
        """Whether a request has to wait for the end of a throttle or for a login.

        Starts the login when it is due."""
        if isinstance(body, _LOGIN_REQUESTS):
            return False
        if self._login is not None and self._relogin is None and self._loop.time() >= self._login_due:
            self._relogin = asyncio.create_task(self._log_in_again(self._login), name="log in again")
        return self._relogin is not None or self._muted is not None

    async def _log_in_again(self, login: Login) -> None:
        try:
            if self._pending or self._decoding:
                self._drained = self._loop.create_future()
                await self._drained
            await self.log_in(login)
        except KafkaError as exc:
            self.fail(KafkaConnectionError(f"{self.address}: reauthentication failed: {exc}"))
        except Exception as exc:
            self.fail(KafkaConnectionError(f"{self.address}: reauthentication failed: {exc!r}"))
        finally:
            self._relogin = None
        self._write_held()

    # -- throttling -----------------------------------------------------------------------------

    @property
    def throttled(self) -> bool:
        """Whether the broker throttles this client now."""
        return self._muted is not None

    def _mute(self, quiet_ms: int) -> None:
        until = self._loop.time() + quiet_ms / 1000
        if self._muted is not None:
            until = max(until, self._muted.when())
            self._muted.cancel()
        self._muted = self._loop.call_at(until, self._unmute)
        if quiet_ms >= _WARN_FROM_MS and not self._throttle_logged:
            self._throttle_logged = True
            log.warning(
                "%s throttles this client (%s) for %d ms, and may continue to do so: a quota is exceeded",
                self.address, self.settings.client_id, quiet_ms,
            )  # fmt: skip

    def _unmute(self) -> None:
        self._muted = None
        self._write_held()

    def _write_held(self) -> None:
        """Writes the held requests unless there is still a reason to hold them."""
        if self._relogin is not None or self._muted is not None or self.error is not None:
            return
        held, self._held = self._held, []
        for pending, parts in held:
            self._put(pending, parts)

    # -- the stream ---------------------------------------------------------------------------

    def _write(
        self,
        body: Request[Any],
        version: int,
        decode: Callable[[Buffer, int | None], Any],
        timeout_ms: int | None,
        answered: bool,
    ) -> asyncio.Future[Any]:
        if self.error is not None or self._transport is None:
            raise KafkaConnectionError(f"{self.error or f'connection to {self.address} is not open'}")
        held = self._must_wait(body)
        correlation_id = self._correlation_id
        header = RequestHeader(body.api_key, version, correlation_id, self.settings.client_id)
        parts = encode_request(header, body)
        self._correlation_id = (correlation_id + 1) & _MAX_CORRELATION_ID
        name = api_name(type(body))
        self.settings.requests[name] += 1
        what = f"{name} v{version}"
        future: asyncio.Future[Any] = self._loop.create_future()
        pending = None
        if answered:
            limit_ms = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms

            def quiet_ms(answer: Any) -> int:
                return throttle_ms(type(body), version, answer)

            limit = answer_limit(body, self.settings.receive_message_max_bytes)
            pending = _Pending(what, correlation_id, future, decode, limit_ms, limit, quiet_ms)
        if held:
            self._hold(pending, parts)
        else:
            self._put(pending, parts)
        return future

    def _hold(self, pending: _Pending | None, parts: list[Buffer]) -> None:
        self._held.append((pending, parts))
        if pending is not None:
            pending.timer = self._loop.call_later(pending.limit_ms / 1000, self._expire_held, pending)

    def _put(self, pending: _Pending | None, parts: list[Buffer]) -> None:
        assert self._transport is not None
        self.last_used = self._loop.time()
        if pending is not None:
            if pending.timer is not None:
                pending.timer.cancel()
            pending.timer = self._loop.call_later(pending.limit_ms / 1000, self._expire, pending)
            pending.sent_at = self.last_used
            self._pending.append(pending)
        # Lost already, and not told yet: Python 3.12 to 3.13.5 fail then, or keep it (python/cpython#136234).
        if not self._transport.is_closing():
            self._transport.writelines(parts)
        self.settings.traffic.sent(self.node_id, sum(map(len, parts)))

    def _expire_held(self, pending: _Pending) -> None:
        """Fails a held request. Nothing of it was written: the connection stays open unless a login hangs."""
        if self._relogin is not None:
            self._expire(pending)
            return
        self._held = [held for held in self._held if held[0] is not pending]
        if not pending.future.done():
            text = f"{pending.what} to {self.address} was not sent within {pending.limit_ms} ms"
            pending.future.set_exception(RequestTimeoutError(f"{text}: the broker throttles this client"))
            pending.future.exception()

    def _expire(self, pending: _Pending) -> None:
        limit_ms = pending.limit_ms
        error = RequestTimeoutError(f"{pending.what} to {self.address} was not answered within {limit_ms} ms")
        if not pending.future.done():
            pending.future.set_exception(error)
            pending.future.exception()
        self.fail(error)

    def _check_header(self, correlation_id: int, size: int) -> None:
        if not self._pending:
            raise DecodeError(f"a response (correlation id {correlation_id}) without a request")
        pending = self._pending[0]
        if size > pending.limit.size_bytes:
            raise DecodeError(
                f"the response to {pending.what} has {size} bytes; the limit is "
                f"{pending.limit.size_bytes}; {pending.limit.advice}"
            )
        if correlation_id != pending.correlation_id:
            raise DecodeError(
                f"a response with correlation id {correlation_id}, but {pending.correlation_id} was expected"
            )

    def _take_frame(self, payload: Buffer) -> None:
        """Decodes a small answer on the loop, and a large one on another thread, so that the loop can go on
        with heartbeats and other work."""
        pending = self._pending[0]
        try:
            answer = pending.decode(payload, _ON_LOOP_BYTES)
        except MemoryLimitError:
            self._answered(pending, payload)
            self._decoding.append(pending)
            decoding = self._loop.run_in_executor(answer_decoder(), pending.decode, payload, None)
            decoding.add_done_callback(functools.partial(self._decoded_by_thread, pending))
            return
        except DecodeError as exc:
            raise _undecodable(pending, exc) from exc
        self._answered(pending, payload)
        self._give(pending, answer)

    def _decoded_by_thread(self, pending: _Pending, decoding: asyncio.Future[Any]) -> None:
        if decoding.cancelled():
            return
        exc = decoding.exception()
        if self.error is not None:
            return  # the request has failed already
        if isinstance(exc, DecodeError):
            self._fail_unreadable(_undecodable(pending, exc))
        elif exc is not None:
            self.fail(KafkaConnectionError(f"{self.address}: {pending.what} could not be decoded: {exc!r}"))
            raise exc
        else:
            self._decoding.remove(pending)
            self._give(pending, decoding.result())

    def _answered(self, pending: _Pending, payload: Buffer) -> None:
        """Takes the oldest request off the queue; its answer may still have to be decoded."""
        self._pending.popleft()
        self._answers += 1
        self.last_used = self._loop.time()
        took_ms = (self.last_used - pending.sent_at) * 1000
        self.settings.traffic.received(self.node_id, len(payload) + _LENGTH_BYTES, took_ms)
        if pending.timer is not None:
            pending.timer.cancel()

    def _give(self, pending: _Pending, answer: Any) -> None:
        quiet_ms = pending.throttle_ms(answer)
        if quiet_ms:
            self._mute(quiet_ms)
        if not pending.future.done():
            pending.future.set_result(answer)
        if self._drained is not None and not self._pending and not self._decoding:
            self._drained.set_result(None)
            self._drained = None

    # -- asyncio.BufferedProtocol -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.settings.traffic.opened()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.error is not None:
            return
        try:
            self._reader.advance(nbytes)
        except DecodeError as exc:
            self._fail_unreadable(exc)

    def _fail_unreadable(self, exc: DecodeError) -> None:
        message = f"closing the connection to {self.address}: {exc}"
        self.settings.outages.failed(log, f"the connection to {self.address}", message, logging.WARNING)
        self.fail(KafkaConnectionError(f"{self.address} sent an invalid response: {exc}"))

    def _likely_reason(self, exc: Exception | None) -> str:
        """A likely reason why the broker has closed the connection; empty where none is known."""
        if self._reader.begun.startswith(_TLS_ALERT) and not self.versions:
            return ": this port speaks TLS; set security_protocol to SSL or SASL_SSL"
        if self._reader.partial:
            return " in the middle of a response"
        if not self._answers and self._transport and self._transport.get_extra_info("ssl_object"):
            return " before its first response; it may not have accepted this client's certificate (or none)"
        if exc is None and self._login is None and self._answers == _ONLY_VERSIONS and self._pending:
            return " at the first request; a port that requires a login does so: see security_protocol"
        return ""

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc else ""
        message = f"{self.address} closed the connection{self._likely_reason(exc)}{reason}"
        self.fail(
            TlsFailure(message, exc) if isinstance(exc, ssl.SSLError) else KafkaConnectionError(message)
        )
        if not self._lost.done():
            self._lost.set_result(None)


Connect = Callable[[str, int, ConnectionSettings], Awaitable[Connection]]
"""Opens a connection that is ready for requests, or raises :class:`KafkaConnectionError`."""
