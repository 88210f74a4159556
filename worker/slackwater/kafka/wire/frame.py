"""Frames: a four-byte length, a header, a body; and :class:`FrameReader`, which cuts a byte stream into them.

Headers: request v1 and response v0 for plain versions, request v2 and response v1 for flexible
ones (KIP-482). The response to ApiVersions always has header v0, whatever its version, so that a
client can read it before it knows which versions the broker speaks (KIP-511).

:class:`FrameReader` copies each byte at most once. Small frames are read together into a staging buffer and
copied out. A frame that does not fit the staging buffer gets a buffer of its own, which the socket then fills
directly.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.primitives import Buffer, Reader, Writer
from slackwater.kafka.wire.schema import Message

_LENGTH = struct.Struct(">i")
API_VERSIONS_KEY = 18

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """A request's API, version and client; its correlation id pairs the answer with it."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def frame_size(prefix: Buffer, max_bytes: int) -> int:
    """The size in bytes of the frame whose first four bytes are ``prefix``.

    Raises :class:`DecodeError` when it is negative or larger than ``max_bytes``: such a stream
    cannot be read on.
    """
    size: int = _LENGTH.unpack_from(prefix)[0]
    if not 0 <= size <= max_bytes:
        raise DecodeError(f"frame of {size} bytes; between 0 and {max_bytes} are allowed")
    return size


def _framed(writer: Writer) -> list[Buffer]:
    parts = writer.parts()
    return [_LENGTH.pack(sum(len(part) for part in parts)), *parts]


def encode_request(header: RequestHeader, body: Message) -> list[Buffer]:
    """A whole request frame as buffers. Raises :class:`~.errors.EncodeError`."""
    writer = Writer()
    writer.int16(header.api_key)
    writer.int16(header.api_version)
    writer.int32(header.correlation_id)
    if header.client_id is None:
        writer.int16(-1)
    else:
        writer.text(header.client_id, compact=False)
    if header.api_version >= body.flexible:
        writer.uvarint(0)
    body.write_to(writer, header.api_version)
    return _framed(writer)


def decode_request_header(reader: Reader) -> RequestHeader:
    """Reads the part of the header that all versions share; raises :class:`DecodeError`.

    What a flexible version puts behind it is for :func:`skip_request_tags`, once the caller has
    found the message by its key.
    """
    api_key, api_version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    size = reader.int16()
    return RequestHeader(api_key, api_version, correlation_id, None if size == -1 else reader.text(size))


def skip_request_tags(reader: Reader, header: RequestHeader, message: type[Message]) -> None:
    """Skips the tagged fields of a flexible request's header."""
    if header.api_version >= message.flexible:
        reader.skip_tagged_fields()


def encode_response(header: RequestHeader, body: Message) -> list[Buffer]:
    """A whole response frame to the request of ``header``, as buffers."""
    writer = Writer()
    writer.int32(header.correlation_id)
    if header.api_version >= body.flexible and header.api_key != API_VERSIONS_KEY:
        writer.uvarint(0)
    body.write_to(writer, header.api_version)
    return _framed(writer)


def decode_response(
    payload: Buffer, api_key: int, version: int, message: type[M], room_bytes: int | None = None
) -> tuple[int, M]:
    """The correlation id and the body of a response frame (its length taken off).

    ``room_bytes`` is what its objects may take (:class:`~.primitives.Reader`). Raises :class:`DecodeError`,
    also for bytes left over behind the body, and :class:`~.errors.MemoryLimitError`.
    """
    reader = Reader(payload, room_bytes)
    correlation_id = reader.int32()
    if version >= message.flexible and api_key != API_VERSIONS_KEY:
        reader.skip_tagged_fields()
    body = message.read_from(reader, version)
    if reader.remaining:
        raise DecodeError(f"{reader.remaining} bytes left over after {message.__name__} v{version}")
    return correlation_id, body


_CORRELATION_ID = struct.Struct(">i")
_PREFIX_BYTES = 8
"""The length and the correlation id: enough to tell whether a request awaits the frame."""

_MAX_FRAME_BYTES = 0x7FFFFFFF
STAGING_BYTES = 64 * 1024

_UNFILLED = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)
"""``bytearray(size)`` fills it with zeros first, which took as long as the copy out of the socket."""


class FrameReader:
    """Cuts the bytes received by :meth:`buffer` and :meth:`advance` into frames.

    ``on_header(correlation_id, size)`` is called once a frame's first eight bytes are there, before memory
    is allocated for it, and may raise to refuse the frame; ``on_frame(payload)`` when it is complete
    (``payload`` is without the length, belongs to the receiver, and is not changed afterwards).
    """

    def __init__(
        self,
        on_header: Callable[[int, int], None],
        on_frame: Callable[[Buffer], None],
    ) -> None:
        self._on_header = on_header
        self._on_frame = on_frame
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._staged = 0
        self._large: bytearray | None = None
        self._filled = 0

    @property
    def partial(self) -> bool:
        """Whether a frame is incomplete."""
        return self._large is not None or self._staged > 0

    @property
    def begun(self) -> bytes:
        """The first bytes of a frame that has begun and whose length is not known yet."""
        return bytes(self._staging[: min(self._staged, _PREFIX_BYTES)]) if self._large is None else b""

    def buffer(self) -> memoryview:
        """The buffer for the next bytes of the stream; never empty."""
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return self._staging[self._staged :]

    def advance(self, size: int) -> None:
        """Says that ``size`` bytes were put into :meth:`buffer`.

        Raises :class:`DecodeError` for a frame whose length is negative or too small for a response, and
        whatever the callbacks raise. After that the stream cannot be read on.
        """
        if self._large is None:
            self._staged += size
            self._cut()
            return
        self._filled += size
        if self._filled == len(self._large):
            payload, self._large = self._large, None
            self._on_frame(payload)

    def _cut(self) -> None:
        pos = 0
        while self._large is None and self._staged - pos >= _PREFIX_BYTES:
            body = pos + 4
            size = frame_size(self._staging[pos:body], _MAX_FRAME_BYTES)
            if size < _CORRELATION_ID.size:
                raise DecodeError(f"response frame of {size} bytes, too short for a correlation id")
            self._on_header(_CORRELATION_ID.unpack_from(self._staging, body)[0], size)
            if body + size <= self._staged:
                self._on_frame(bytes(self._staging[body : body + size]))
                pos = body + size
            elif size + 4 > STAGING_BYTES:
                self._begin_large(body, size)
                pos = self._staged
            else:
                break
        self._staging[: self._staged - pos] = self._staging[pos : self._staged]
        self._staged -= pos

    def _begin_large(self, start: int, size: int) -> None:
        self._large = _UNFILLED(None, size)
        self._filled = self._staged - start
        self._large[: self._filled] = self._staging[start : self._staged]
