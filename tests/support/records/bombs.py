"""A few kilobytes that unfold to gigabytes, of every codec and format."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import zstandard

from slackwater.kafka.records import _parser_py
from slackwater.kafka.records.compression import CODECS, compress
from tests.support.records.parsing import batch, message, wrapper

MIB = 1 << 20
LIMIT = 8 * MIB
UNFOLDED = 64 * MIB
CODEC_ROOM = 20 * MIB
"""What codecs need for themselves: zstd a window of 8 MiB, each a step of at most as much."""


def _gzip(members: int) -> bytes:
    packed = b""
    for _ in range(members):
        packer = zlib.compressobj(1, wbits=31)
        packed += packer.compress(bytes(UNFOLDED // members)) + packer.flush()
    return packed


def _snappy(blocks: int) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(UNFOLDED // blocks)))
    if blocks == 1:
        return block
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * blocks


def _lz4() -> bytes:
    return bytes(lz4.frame.compress(bytes(UNFOLDED), store_size=False, block_linked=False))


def _zstd(frames: int) -> bytes:
    return compress(CODECS["zstd"], bytes(UNFOLDED // frames)) * frames


def _wide_zstd() -> bytes:
    """Small, but its decoder is to keep a window of 128 MiB."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(b"\0" * 1000) + packer.flush()


def _tiny_records() -> bytes:
    """Within the limit by its bytes; what is noted of each record is not."""
    encoder = _parser_py.RecordEncoder()
    encoder.append(0, 0, None, None, [])
    return compress(CODECS["gzip"], encoder.getvalue() * (LIMIT // 2 // 7))


def _tiny_messages(magic: int) -> bytes:
    return compress(
        CODECS["gzip"], message(0, magic, None) * (LIMIT * 3 // 4 // len(message(0, magic, None)))
    )


def in_batch(codec: str, body: Callable[[], bytes], count: int = 1) -> Callable[[], bytes]:
    """Makes a batch with the compressed ``body``."""
    return lambda: batch(body(), count, attributes=CODECS[codec], base_offset=7)


def _in_wrapper(magic: int, codec: str, body: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: message(7, magic, body(), attributes=CODECS[codec])


def in_two_wrappers() -> bytes:
    """A message set whose messages are compressed once more."""
    inner = wrapper(0, 1, "gzip", message(0, 1, bytes(UNFOLDED)))
    return wrapper(7, 1, "gzip", inner * 3)


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": in_batch("gzip", lambda: _gzip(1)),
    "gzip in members": in_batch("gzip", lambda: _gzip(20)),
    "snappy": in_batch("snappy", lambda: _snappy(1)),
    "snappy in blocks": in_batch("snappy", lambda: _snappy(20)),
    "lz4": in_batch("lz4", _lz4),
    "zstd": in_batch("zstd", lambda: _zstd(1)),
    "zstd in frames": in_batch("zstd", lambda: _zstd(20)),
    "zstd with a wide window": in_batch("zstd", _wide_zstd),
    "tiny records": in_batch("gzip", _tiny_records, LIMIT // 2 // 7),
    "magic 0, gzip": _in_wrapper(0, "gzip", lambda: _gzip(1)),
    "magic 0, lz4": _in_wrapper(0, "lz4", _lz4),
    "magic 1, gzip": _in_wrapper(1, "gzip", lambda: _gzip(1)),
    "magic 1, snappy": _in_wrapper(1, "snappy", lambda: _snappy(20)),
    "magic 1, lz4": _in_wrapper(1, "lz4", _lz4),
    "magic 1, tiny messages": _in_wrapper(1, "gzip", lambda: _tiny_messages(1)),
}


@functools.cache
def bomb(name: str) -> bytes:
    """One of :data:`BOMBS`."""
    return BOMBS[name]()
