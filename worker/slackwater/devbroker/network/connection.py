"""One client's connection: reads frames, sends answers, handles one request at a time.

Kafka's broker takes no further request from a connection before the last one is answered, so a parked
JoinGroup blocks the requests behind it. Here the socket is not even read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Protocol, cast

from slackwater.kafka.wire.errors import WireError
from slackwater.kafka.wire.frame import RequestHeader, decode_request_header, encode_response, frame_size
from slackwater.kafka.wire.primitives import Buffer, Reader
from slackwater.kafka.wire.schema import Response

log = logging.getLogger(__name__)

_LENGTH_BYTES = 4
_INITIAL_BYTES = 64 * 1024
_GROW_AT_ONCE_BYTES = 2 * 1024 * 1024
"""The buffer grows to this size at once; beyond it only as the bytes of a frame arrive."""
_KEEP_BYTES = 16 * 1024 * 1024
_MAX_PARTS = 512


class BadRequest(Exception):
    """A request that cannot be answered: the connection is closed, and the reason logged."""


class Exchange:
    """One request and its answer. Its handler calls one of the methods once, at once or later."""

    __slots__ = ("_connection", "_done", "header", "on_reply")

    def __init__(self, connection: ClientConnection, header: RequestHeader) -> None:
        self.header = header
        self.on_reply: Callable[[Response], Response | None] | None = None
        self._connection = connection
        self._done = False

    @property
    def client_host(self) -> str:
        """The client's address as Kafka shows it, ``/127.0.0.1``."""
        return f"/{self._connection.peer[0]}"

    @property
    def local_address(self) -> tuple[str, int]:
        """This broker's address that the client connected to."""
        return self._connection.local

    @property
    def peer(self) -> str:
        """The client's ``host:port``, for log lines."""
        return self._connection.peer_name

    @property
    def done(self) -> bool:
        """Whether it is answered or its connection is closed."""
        return self._done or self._connection.closed

    def reply(self, response: Response, version: int | None = None) -> None:
        """Answers. ``version`` differs from the request's only for ApiVersions. Late calls do nothing."""
        if self._done:
            return
        if self.on_reply is not None:
            changed = self.on_reply(response)
            if changed is None:
                self.drop("a fault was injected")
                return
            response = changed
        self._done = True
        header = self.header
        if version is not None:
            header = RequestHeader(header.api_key, version, header.correlation_id, header.client_id)
        # The caller may be handling another client's request, which an error here must not affect.
        self.guard(lambda: self._connection.answered(encode_response(header, response)))

    def no_reply(self) -> None:
        """The request wants no answer (Produce with acks=0)."""
        if not self._done:
            self._done = True
            self._connection.answered([])

    def guard(self, work: Callable[[], None]) -> None:
        """Runs ``work`` for this request; an error closes the connection and does not reach the caller."""
        self._connection.guard(work)

    def drop(self, reason: str) -> None:
        """Closes the connection without an answer."""
        self._done = True
        self._connection.fail(reason)


class RequestHandler(Protocol):
    """Receives the requests of a broker's connections."""

    def connected(self, connection: ClientConnection) -> None:
        """A client has connected."""

    def disconnected(self, connection: ClientConnection) -> None:
        """A client's connection has ended."""

    def handle(self, exchange: Exchange, reader: Reader) -> None:
        """Handles a request. ``reader`` is positioned behind the first part of the header; its bytes are
        valid until the exchange is done. Raises :class:`BadRequest` or WireError to close the connection."""


class ClientConnection(asyncio.BufferedProtocol):
    """Reads frames into a reused buffer and handles its client's requests in order."""

    def __init__(self, handler: RequestHandler, max_frame_bytes: int) -> None:
        self._handler = handler
        self._max_frame_bytes = max_frame_bytes
        self._buffer = memoryview(bytearray(_INITIAL_BYTES))
        self._start = 0
        self._end = 0
        self._busy = False
        self._write_paused = False
        self._read_paused = False
        self._processing = False
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self.closed = False
        self.active = False
        """Whether anything was received or sent since this was last set to false."""
        self.was_idle = False
        self.peer: tuple[str, int] = ("?", 0)
        self.local: tuple[str, int] = ("?", 0)

    @property
    def peer_name(self) -> str:
        """``host:port`` of the client."""
        return f"{self.peer[0]}:{self.peer[1]}"

    @property
    def idle(self) -> bool:
        """Whether no request is being handled and no answer is being sent."""
        waiting = self._transport.get_write_buffer_size() if self._transport else 0
        return self.closed or (not self._busy and not waiting)

    # -- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._fd = transport.get_extra_info("socket").fileno()
        self.peer = (transport.get_extra_info("peername") or self.peer)[:2]
        self.local = (transport.get_extra_info("sockname") or self.local)[:2]
        self._handler.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed and self._end - self._start and not self._busy:
            log.warning(
                "connection from %s ended inside a frame (%d bytes)", self.peer_name, self._end - self._start
            )
        self.closed = True
        self._handler.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.active = True
        self._process()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._process()

    # -- requests -----------------------------------------------------------------------------

    def _process(self) -> None:
        """Handles the frames that are complete, until one is parked or the client does not read."""
        if self._processing:
            return
        self._processing = True
        try:
            while not (self._busy or self._write_paused or self.closed):
                frame = self._next_frame()
                if frame is None:
                    break
                self._busy = True
                self._handle(frame)
        finally:
            self._processing = False
        self._set_reading(not (self._busy or self._write_paused))

    def _next_frame(self) -> memoryview | None:
        """The next whole frame, a view of the buffer. ``None`` (and room for it) if incomplete."""
        have = self._end - self._start
        if have < _LENGTH_BYTES:
            self._make_room(_LENGTH_BYTES)
            return None
        try:
            size = frame_size(self._buffer[self._start : self._start + _LENGTH_BYTES], self._max_frame_bytes)
        except WireError as exc:
            self.fail(str(exc))
            return None
        if have < _LENGTH_BYTES + size:
            self._make_room(_LENGTH_BYTES + size)
            return None
        first = self._start + _LENGTH_BYTES
        self._start = first + size
        return self._buffer[first : self._start]

    def _make_room(self, wanted: int) -> None:
        """Moves the unread bytes to the front, into a larger buffer if ``wanted`` bytes do not fit."""
        have = self._end - self._start
        capacity = len(self._buffer)
        if wanted > capacity:
            at_once = max(_GROW_AT_ONCE_BYTES, 2 * have)
            capacity = max(capacity, min(wanted, at_once))
        elif capacity > _KEEP_BYTES >= wanted:
            capacity = _INITIAL_BYTES if wanted <= _INITIAL_BYTES else wanted
        if capacity != len(self._buffer):
            grown = memoryview(bytearray(capacity))
            grown[:have] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = grown, 0, have
        elif have == 0 or self._start + wanted > capacity or self._end == capacity:
            self._buffer[:have] = self._buffer[self._start : self._end]
            self._start, self._end = 0, have

    def _handle(self, frame: memoryview) -> None:
        def take() -> None:
            reader = Reader(frame)
            header = decode_request_header(reader)
            self._handler.handle(Exchange(self, header), reader)

        self.guard(take)

    def guard(self, work: Callable[[], None]) -> None:
        """Runs ``work``; an error closes this connection and nothing else."""
        try:
            work()
        except (WireError, BadRequest) as exc:
            self.fail(str(exc))
        except Exception:
            log.exception("connection from %s closed: the broker failed on its request", self.peer_name)
            self._close()

    def answered(self, parts: list[Buffer]) -> None:
        """Ends the request being handled; ``parts`` is the frame to send, if any."""
        if self.closed:
            return
        self.active = True
        if parts:
            self._send(parts)
        self._busy = False
        if not self._processing:
            self._process()

    def _send(self, parts: list[Buffer]) -> None:
        """Sends by one gathering write if nothing is queued; passes the rest to the transport."""
        transport = self._transport
        assert transport is not None
        sent = 0
        if len(parts) <= _MAX_PARTS and not transport.get_write_buffer_size():
            try:
                sent = os.writev(self._fd, parts)
            except BlockingIOError:
                sent = 0
            except OSError:
                transport.abort()
                return
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
                continue
            transport.write(memoryview(part)[sent:] if sent else part)
            sent = 0

    def _set_reading(self, wanted: bool) -> None:
        if self.closed or self._transport is None or wanted != self._read_paused:
            return
        self._read_paused = not wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- the end ------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Closes the connection with one log line; answers already given are still sent."""
        if not self.closed:
            log.warning("connection from %s closed: %s", self.peer_name, reason)
        self._close()

    def _close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """Closes the connection quietly, once what is queued was sent."""
        self._close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
