"""The codecs of record batches, with a bound on what comes out.

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


class DecompressionError(RecordError):
    """Compressed bytes that cannot be read, or that unfold to more than the limit."""


def _too_large(limit: int) -> DecompressionError:
    return DecompressionError(
        f"it unfolds to more than {limit} bytes; raise fetch.max.decompressed.bytes to accept that"
    )


def _gunzip(data: Buffer, limit: int) -> bytes:
    decoder = zlib.decompressobj(wbits=31)
    out = decoder.decompress(data, limit + 1)
    if len(out) > limit:
        raise _too_large(limit)
    if not decoder.eof:
        raise DecompressionError("the gzip stream is cut off")
    return out


def _unsnap(data: Buffer, limit: int) -> bytes:
    raw = bytes(data)
    if not raw.startswith(_XERIAL_MAGIC):
        return _unsnap_block(raw, limit)
    blocks = []
    position, left = _XERIAL_HEADER_BYTES, limit
    while position + _INT32.size <= len(raw):
        size = _INT32.unpack_from(raw, position)[0]
        position += _INT32.size
        if size < 0 or position + size > len(raw):
            raise DecompressionError("a snappy block is cut off")
        blocks.append(_unsnap_block(raw[position : position + size], left))
        left -= len(blocks[-1])
        position += size
    return b"".join(blocks)


def _unsnap_block(block: bytes, limit: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > limit:
        raise _too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(block))


def _unlz4(data: Buffer, limit: int) -> bytes:
    decoder = lz4.frame.LZ4FrameDecompressor()
    # In steps: the decoder takes the memory of a whole step before it knows how little is needed.
    step = max(4 * len(data), _STEP_BYTES)
    chunks = [decoder.decompress(data, max_length=min(step, limit + 1))]
    size = len(chunks[0])
    while not decoder.eof and size <= limit and not decoder.needs_input:
        chunks.append(decoder.decompress(b"", max_length=min(step, limit + 1 - size)))
        size += len(chunks[-1])
    if size > limit:
        raise _too_large(limit)
    if not decoder.eof:
        raise DecompressionError("the lz4 frame is cut off")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _unzstd(data: Buffer, limit: int) -> bytes:
    chunks, size = [], 0
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        while chunk := reader.read(_STEP_BYTES):
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


_DECODERS: dict[int, Callable[[Buffer, int], bytes]] = {1: _gunzip, 2: _unsnap, 3: _unlz4, 4: _unzstd}


def decompress(codec: int, data: Buffer, limit_bytes: int) -> bytes:
    """``data`` unfolded by the codec of that number.

    Raises :class:`DecompressionError` for bytes that the codec refuses or that unfold to more than
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
    """``data`` folded by the codec of that number (0: as it is)."""
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
