"""Frames: a four-byte length, a header, a body.

Headers: request v1 and response v0 for plain versions, request v2 and response v1 for flexible
ones (KIP-482). The response to ApiVersions always has header v0, whatever its version, so that a
client can read it before it knows what the broker speaks (KIP-511).
"""

from __future__ import annotations

import struct
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
    """Who asks what: correlation ids pair answers with requests on one connection."""

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
    """Passes over the tagged fields of a flexible request's header."""
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
