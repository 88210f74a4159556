"""The codecs of record batches, with a limit on the decompressed size.

A few kilobytes can decompress to gigabytes, so every decoder is given a limit and stops there.
Source of the formats: KIP-57 (lz4 frame), KIP-110 (zstd), xerial's snappy stream.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import zstandard

from slackwater.kafka.records.errors import RecordError, UnsupportedRecordFormatError

Buffer = bytes | bytearray | memoryview

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Codec names, as producers' ``compression.type`` spells them, and their numbers in a batch."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_INT32 = struct.Struct(">i")
_STEP_BYTES = 1 << 20
_MAX_STEP_BYTES = 8 << 20
_ZSTD_LEAST_WINDOW_BYTES = 8 << 20
"""Every zstd decoder should take windows of this size (RFC 8878, 3.1.1.1.2)."""
_ZSTD_LARGEST_WINDOW_BYTES = 1 << 27
_SNAPPY_MAX_RATIO = 22
"""Snappy's densest element makes 64 bytes of 3."""
_LZ4_MAGIC_BYTES = 4
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_FIRST_BYTES = 512
"""What a member's decoder is given first; an empty member has 20 bytes."""
_GZIP_MOST_BYTES = 1 << 16


class DecompressionError(RecordError):
    """Compressed bytes that cannot be read, or that decompress to more than the limit."""


def too_large(limit: int) -> DecompressionError:
    """The error about bytes that decompress to more than `limit`."""
    return DecompressionError(
        f"it unfolds to more than {limit} bytes; raise fetch.max.decompressed.bytes to accept that"
    )


class _Unfolded:
    """Collects a decoder's output step by step, at most ``limit`` bytes; a single step is not copied."""

    __slots__ = ("_limit", "_value", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._value: bytes | bytearray = b""
        self.size = 0

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > self._limit:
            self._value = b""
            raise too_large(self._limit)
        if not self._value:
            self._value = chunk
            return
        if isinstance(self._value, bytes):
            self._value = bytearray(self._value)
        self._value += chunk

    def step(self, packed_bytes: int) -> int:
        """The size of the next step: one step for usual batches, one byte more than allowed at the limit."""
        usual = min(max(4 * packed_bytes, _STEP_BYTES), _MAX_STEP_BYTES)
        return min(usual, self._limit + 1 - self.size)

    def value(self) -> bytes | bytearray:
        return self._value


def _gunzip(data: Buffer, limit: int) -> bytes | bytearray:
    """Members follow each other; what does not begin as a member ends them (Java's GZIPInputStream).

    A decoder copies what it leaves of its input, so a member is given little at first, and twice as much each
    time: all copies together are at most a multiple of ``data``, however many members there are.
    """
    view, out, position = memoryview(data), _Unfolded(limit), 0
    while True:
        decoder = zlib.decompressobj(wbits=31)
        size = _GZIP_FIRST_BYTES
        while not decoder.eof:
            given = view[position : position + size]
            chunk = decoder.decompress(given, out.step(len(view)))
            out.add(chunk)
            if not chunk and not given and not decoder.eof:
                raise DecompressionError("the gzip stream is cut off")
            # At the end of a member, unconsumed_tail may repeat what is in unused_data.
            left = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            position += len(given) - len(left)
            size = min(2 * size, _GZIP_MOST_BYTES)
        if view[position : position + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            return out.value()


def _unsnap(data: Buffer, limit: int) -> bytes | bytearray:
    raw = bytes(data)
    if not raw.startswith(_XERIAL_MAGIC):
        return _unsnap_block(raw, limit, limit)
    out = _Unfolded(limit)
    position = 0
    while position < len(raw):
        if raw.startswith(_XERIAL_MAGIC, position):  # one stream may follow another, as in Java
            position += _XERIAL_HEADER_BYTES
            if position > len(raw):
                raise DecompressionError("the snappy stream is cut off")
            continue
        size = _INT32.unpack_from(raw, position)[0] if position + _INT32.size <= len(raw) else -1
        position += _INT32.size
        if size < 0 or position + size > len(raw):
            raise DecompressionError("a snappy block is cut off")
        out.add(_unsnap_block(raw[position : position + size], limit - out.size, limit))
        position += size
    return out.value()


def _unsnap_block(block: bytes, room: int, limit: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise DecompressionError(f"{len(block)} bytes of snappy claim to be {size}")
    if size > room:
        raise too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(block))


def _unlz4(data: Buffer, limit: int) -> bytes | bytearray:
    decoder = lz4.frame.LZ4FrameDecompressor()
    out = _Unfolded(limit)
    rest: Buffer = data
    while True:
        out.add(decoder.decompress(rest, max_length=out.step(len(data))))
        if decoder.eof:
            return out.value()
        if decoder.needs_input:
            raise DecompressionError("the lz4 frame is cut off")
        rest = b""


def with_right_lz4_checksum(data: Buffer) -> bytes:
    """An lz4 frame of magic 0 with its header as it should be.

    Kafka's clients once put a checksum there that covers the frame's magic number, too (KAFKA-3160), and
    libraries refuse the frame for it. So in magic 0, Java does not look at it, and neither does this.
    """
    raw = bytes(data)
    if len(raw) < _LZ4_MAGIC_BYTES + 2:
        raise DecompressionError("the lz4 frame is cut off")
    flags, block_size = raw[_LZ4_MAGIC_BYTES], raw[_LZ4_MAGIC_BYTES + 1] >> 4 & 0x07
    content_size = 0
    if flags & 0x08:
        content_size = int.from_bytes(raw[_LZ4_MAGIC_BYTES + 2 : _LZ4_MAGIC_BYTES + 10], "little")
    if block_size < lz4.frame.BLOCKSIZE_MAX64KB or flags & 0x01 or content_size > 0x7FFFFFFF:
        raise DecompressionError("an lz4 frame with a dictionary, or with a header that cannot be")
    like = lz4.frame.LZ4FrameCompressor(
        block_size=block_size,
        block_linked=not flags & 0x20,
        block_checksum=bool(flags & 0x10),
        content_checksum=bool(flags & 0x04),
    )
    header: bytes = like.begin(source_size=content_size)
    if header[: _LZ4_MAGIC_BYTES + 2] != raw[: _LZ4_MAGIC_BYTES + 2]:
        raise DecompressionError("this is no lz4 frame")
    return header + raw[len(header) :]


def _unzstd(data: Buffer, limit: int) -> bytes | bytearray:
    # A decoder takes the memory of the whole window that a frame asks for.
    window = min(max(limit, _ZSTD_LEAST_WINDOW_BYTES), _ZSTD_LARGEST_WINDOW_BYTES)
    if zstandard.get_frame_parameters(data).window_size > window:
        raise too_large(limit)
    decoder = zstandard.ZstdDecompressor(max_window_size=window)
    out = _Unfolded(limit)
    with decoder.stream_reader(data, read_across_frames=True) as reader:
        while chunk := reader.read(out.step(len(data))):
            out.add(chunk)
    return out.value()


_DECODERS: dict[int, Callable[[Buffer, int], bytes | bytearray]] = {
    1: _gunzip,
    2: _unsnap,
    3: _unlz4,
    4: _unzstd,
}


def decompress(codec: int, data: Buffer, limit_bytes: int) -> bytes | bytearray:
    """``data`` decompressed by the codec of that number.

    Raises :class:`DecompressionError` for bytes that the codec refuses or that decompress to more than
    ``limit_bytes``, :class:`UnsupportedRecordFormatError` for a codec that does not exist.
    """
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise UnsupportedRecordFormatError(f"compression codec {codec} does not exist")
    try:
        return decoder(data, limit_bytes)
    except DecompressionError:
        raise
    except (zlib.error, cramjam.DecompressionError, RuntimeError, zstandard.ZstdError, EOFError) as exc:
        raise DecompressionError(str(exc)) from exc


def compress(codec: int, data: Buffer) -> bytes:
    """``data`` compressed by the codec of that number (0: unchanged)."""
    if codec == 0:
        return bytes(data)
    if codec == 1:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == 2:
        block = bytes(cramjam.snappy.compress_raw(data))
        # The xerial stream that Java writes: magic, version 1, compatible with 1, then sized blocks.
        return _XERIAL_MAGIC + _INT32.pack(1) + _INT32.pack(1) + _INT32.pack(len(block)) + block
    if codec == 3:
        # KIP-57: Java reads independent blocks only, and blocks are linked by default (from 64 KiB on).
        packed: bytes = lz4.frame.compress(data, store_size=False, block_linked=False)
        return packed
    if codec == 4:
        return zstandard.ZstdCompressor(level=3, write_content_size=True).compress(data)
    raise UnsupportedRecordFormatError(f"compression codec {codec} does not exist")
