"""What parser tests need: the choice of the parser, and batches and message sets written byte by byte."""

from __future__ import annotations

import struct
import zlib
from types import ModuleType
from typing import Any

from slackwater.kafka.records import (
    HEADER_BYTES,
    _implementation,
    _parser_py,
    batch as batch_module,
    builder,
    columns,
    legacy,
    stamp_crc,
    transactions,
)
from slackwater.kafka.records.batch import HEADER, LOG_OVERHEAD_BYTES
from slackwater.kafka.records.compression import CODECS, compress

PARSERS: dict[str, Any] = {"pure": _parser_py}
try:
    from slackwater.kafka.records import _parser
except ImportError:  # no C compiler
    USUAL = "pure"
else:
    USUAL, PARSERS["compiled"] = "compiled", _parser

_USERS: tuple[ModuleType, ...] = (
    _implementation,
    batch_module,
    builder,
    columns,
    legacy,
    transactions,
)
_NAMES = (
    "ColumnBuffers", "ConsumerRecord", "RecordEncoder", "gather", "make_records", "parse_batches",
    "parse_messages", "parse_records", "scan_batches", "scan_messages",
)  # fmt: skip


def use_parser(name: str) -> Any:
    """From now on ``decode`` and ``BatchBuilder`` use this parser, ``compiled`` or ``pure``; returns it."""
    parser = PARSERS[name]
    used = set()
    for module in _USERS:
        for attribute in _NAMES:
            if hasattr(module, attribute):
                setattr(module, attribute, getattr(parser, attribute))
                used.add(attribute)
    if used != set(_NAMES):
        raise RuntimeError(f"nobody uses {set(_NAMES) - used}")
    return parser


LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"
"""The keys of transaction markers."""
_MESSAGE_MAGIC_POSITION = 16


def message(
    offset: int,
    magic: int,
    value: bytes | None,
    *,
    key: bytes | None = None,
    attributes: int = 0,
    time_ms: int = 5,
) -> bytes:
    """A message of magic 0 or 1 with its checksum."""
    body = struct.pack(">bB", magic, attributes) + (struct.pack(">q", time_ms) if magic else b"")
    for content in (key, value):
        body += struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(
    offset: int, magic: int, codec: str, content: bytes, *, time_ms: int = 5, attributes: int = 0
) -> bytes:
    """A message whose value is ``content``, compressed."""
    folded = compress(CODECS[codec], content)
    return message(offset, magic, folded, attributes=CODECS[codec] | attributes, time_ms=time_ms)


def batch(
    body: bytes,
    count: int,
    *,
    base_offset: int = 0,
    last_delta: int | None = None,
    attributes: int = 0,
    base_ms: int = 0,
    max_ms: int = 0,
    producer_id: int = -1,
) -> bytes:
    """A batch of magic 2 around ``body`` as it stands, with its checksum."""
    made = bytearray(HEADER_BYTES + len(body))
    HEADER.pack_into(
        made, 0, base_offset, len(made) - LOG_OVERHEAD_BYTES, 3, 2, 0, attributes,
        max(count - 1, 0) if last_delta is None else last_delta, base_ms, max_ms, producer_id, 0, 0, count,
    )  # fmt: skip
    made[HEADER_BYTES:] = body
    return stamp_crc(made)


def with_right_checksums(data: bytes) -> bytes:
    """``data`` with the checksum of every batch and outer message set right, as far as it can be walked."""
    out = bytearray(data)
    at = 0
    while at + _MESSAGE_MAGIC_POSITION < len(out):
        size = LOG_OVERHEAD_BYTES + struct.unpack_from(">i", out, at + 8)[0]
        end = at + size
        if size <= _MESSAGE_MAGIC_POSITION or end > len(out):
            break
        if out[at + _MESSAGE_MAGIC_POSITION] >= 2:
            if size > HEADER_BYTES:
                out[at:end] = stamp_crc(out[at:end])
        else:
            struct.pack_into(">I", out, at + 12, zlib.crc32(out[at + _MESSAGE_MAGIC_POSITION : end]))
        at = end
    return bytes(out)
