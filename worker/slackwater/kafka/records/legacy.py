"""Message sets: the formats before record batches, magic 0 (Kafka before 0.10) and magic 1 (before 0.11).

A broker answers Fetch v0-1 with magic 0 and v2-3 with magic 1, and any version with what old segments
hold. A message is offset, size, CRC-32 of all behind it, magic, attributes, a timestamp (magic 1), key and
value. Compressed messages are the value of one more message, the wrapper, which has the offset of the last of
them. Within it magic 0 has absolute offsets, magic 1 relative ones (KIP-31) and a timestamp type (KIP-32).
The rules where these left a choice are those of Java's ``AbstractLegacyRecordBatch``.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from slackwater.kafka.records._implementation import ColumnBuffers, parse_messages, scan_messages
from slackwater.kafka.records.batch import LOG_OVERHEAD_BYTES, MAX_OFFSET, BatchHeader, Buffer, end_of_run
from slackwater.kafka.records.compression import (
    CODECS,
    DecompressionError,
    decompress,
    with_right_lz4_checksum,
)
from slackwater.kafka.records.errors import CorruptBatchError

_CRC = struct.Struct(">I")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_CRC_POSITION = 12
_MAGIC_POSITION = 16
_ATTRIBUTES_POSITION = 17
_BODY_POSITION = 18
_TIMESTAMP_BYTES = 8
_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
NO_TIMESTAMP_TYPE = -1
"""The timestamp type of magic 0, which has no timestamps; Java's number for it, too."""


@dataclass(frozen=True, slots=True)
class OpenMessages:
    """Messages of one kind, decompressed in ``payload`` from ``start`` to ``end``.

    ``size_bytes`` is what of the fetched data they came from, ``next_offset`` where they end in the log.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    payload: Buffer
    start: int
    end: int
    count: int
    timestamp_type: int
    decompressed_bytes: int = 0
    relative_to: int = 0
    append_time_ms: int | None = None
    leader_epoch: int = -1

    def fill(self, columns: ColumnBuffers, row: int, fetch_offset: int) -> int:
        """Reads them into ``columns`` from ``row`` on, those below ``fetch_offset`` left out."""
        return parse_messages(
            self.payload, self.start, self.end, self.count, self.relative_to,
            self.append_time_ms, fetch_offset, columns, row,
        )  # fmt: skip


def open_messages(data: Buffer, header: BatchHeader, check_crc: bool, limit_bytes: int) -> OpenMessages:
    """The messages at ``header.position``: a run of uncompressed ones, or the content of one wrapper.

    The wrapper may decompress to ``limit_bytes``. Raises :class:`CorruptBatchError`.
    """
    if data[header.position + _ATTRIBUTES_POSITION] & _CODEC_MASK:
        return _open_wrapper(data, header, check_crc, limit_bytes)
    mask = _CODEC_MASK | _LOG_APPEND_TIME
    stop = end_of_run(data, header)
    count, end, last_offset, wrong = scan_messages(data, header.position, stop, mask, check_crc)
    if not count or last_offset >= MAX_OFFSET:
        raise CorruptBatchError(header.base_offset, wrong or f"it goes on to offset {last_offset}")
    return OpenMessages(
        header.base_offset, last_offset + 1, end - header.position,
        data, header.position, end, count, _timestamp_type(data, header),
    )  # fmt: skip


def _timestamp_type(data: Buffer, header: BatchHeader) -> int:
    if header.magic == 0:
        return NO_TIMESTAMP_TYPE
    return int(bool(data[header.position + _ATTRIBUTES_POSITION] & _LOG_APPEND_TIME))


def _open_wrapper(data: Buffer, header: BatchHeader, check_crc: bool, limit_bytes: int) -> OpenMessages:
    view = memoryview(data)[header.position : header.position + header.size]
    value = _wrapper_value(view, header, check_crc)
    payload = _unfold(value, header, view[_ATTRIBUTES_POSITION] & _CODEC_MASK, limit_bytes)
    count, end, last_inner, wrong = scan_messages(payload, 0, len(payload), _CODEC_MASK, check_crc)
    wrong = wrong or _stopped_by(payload, end)
    if wrong or not count:
        raise CorruptBatchError(header.base_offset, f"inside of it, {wrong or 'there is no message'}")
    if len(payload) and payload[_MAGIC_POSITION] != header.magic:
        raise CorruptBatchError(header.base_offset, "it holds messages of another magic than its own")
    timestamp_type = _timestamp_type(data, header)
    appended = _INT64.unpack_from(view, _BODY_POSITION)[0] if timestamp_type == 1 else None
    return OpenMessages(
        header.base_offset, header.base_offset + 1, header.size, payload, 0, end, count, timestamp_type,
        len(payload), _relative_to(header, last_inner), appended,
    )  # fmt: skip


def _wrapper_value(view: memoryview, header: BatchHeader, check_crc: bool) -> memoryview:
    """The compressed bytes of a wrapper, after checking its size and checksum."""
    if check_crc and zlib.crc32(view[_MAGIC_POSITION:]) != _CRC.unpack_from(view, _CRC_POSITION)[0]:
        raise CorruptBatchError(header.base_offset, "its checksum does not match its content")
    at = _BODY_POSITION + (_TIMESTAMP_BYTES if header.magic else 0)
    fields = []
    for _ in range(2):
        size = _INT32.unpack_from(view, at)[0] if at + _INT32.size <= len(view) else -2
        at += _INT32.size
        if size < -1 or size > len(view) - at:
            raise CorruptBatchError(header.base_offset, "a message's key and value do not fit it")
        fields.append(view[at : at + size] if size >= 0 else None)
        at += max(size, 0)
    if fields[1] is None:
        raise CorruptBatchError(header.base_offset, "a compressed message without a value")
    if at != len(view):
        raise CorruptBatchError(header.base_offset, "a message's key and value do not fit it")
    return fields[1]


def _unfold(value: memoryview, header: BatchHeader, codec: int, limit_bytes: int) -> bytes | bytearray:
    if codec == CODECS["zstd"]:
        raise CorruptBatchError(header.base_offset, f"magic {header.magic} knows no zstd")
    try:
        if codec == CODECS["lz4"] and header.magic == 0:
            return decompress(codec, with_right_lz4_checksum(value), limit_bytes)
        return decompress(codec, value, limit_bytes)
    except DecompressionError as exc:
        raise CorruptBatchError(header.base_offset, str(exc)) from exc


def _stopped_by(payload: Buffer, end: int) -> str:
    """Why the messages in a wrapper end before it does; "" where a last one is cut off, as Java lets it."""
    if len(payload) - end < _BODY_POSITION:
        return ""
    size = _INT32.unpack_from(payload, end + LOG_OVERHEAD_BYTES - _INT32.size)[0]
    if size > len(payload) - end - LOG_OVERHEAD_BYTES:
        return ""
    if payload[end + _ATTRIBUTES_POSITION] & _CODEC_MASK:
        return "a message is compressed once more"
    return "there are messages of several magics"


def _relative_to(header: BatchHeader, last_inner: int) -> int:
    """The number to add to offsets within a wrapper, which has the offset of its last message.

    librdkafka once sent wrappers with offset 0, which mean what they hold (Java makes the same exception).
    """
    if header.magic == 0 or header.base_offset == 0:
        return 0
    if not 0 <= last_inner <= header.base_offset:
        raise CorruptBatchError(
            header.base_offset, f"it holds a message with the relative offset {last_inner}"
        )
    return header.base_offset - last_inner
