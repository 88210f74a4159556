"""What the worst compressed bytes cost to decompress: empty members, frames and blocks, and bombs.

Prints milliseconds of CPU time for one, two and four MB of each, as the median of three rounds. Where the
time is linear, each column is twice the one before. The last is nanoseconds for each byte of the largest.
"""

from __future__ import annotations

import contextlib
import statistics
import struct
import time
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import zstandard

from benchmarks import without_arguments
from slackwater.kafka.records.compression import CODECS, DecompressionError, compress, decompress

_ROUNDS = 3
_MB = 1_000_000
_SIZES = (_MB, 2 * _MB, 4 * _MB)
_LIMIT_BYTES = 256 << 20
_ZEROS = bytes(1 << 20)
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SKIPPABLE_FRAME = struct.pack("<II", 0x184D2A50, 0)


def _gzip(content: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(content) + packer.flush()


def _snappy_block(content: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(content))
    return struct.pack(">i", len(block)) + block


def _lz4_blocks(content: bytes, size: int) -> bytes:
    """One frame whose blocks all hold ``content`` as it is."""
    start = lz4.frame.LZ4FrameCompressor(block_linked=False).begin()
    block = struct.pack("<I", 0x80000000 | len(content)) + content
    return bytes(start) + block * (size // len(block)) + bytes(4)


def _zstd(content: bytes, *, window_log: int = 10) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(content) + packer.flush()


def _repeated(part: bytes, start: bytes = b"") -> Callable[[int], bytes]:
    return lambda size: start + part * (size // len(part))


def inputs() -> dict[tuple[str, str], Callable[[int], bytes]]:
    """By codec and shape: makes about so many bytes."""
    return {
        ("gzip", "empty members"): _repeated(_gzip(b"")),
        ("gzip", "members of one byte"): _repeated(_gzip(b"x")),
        ("gzip", "members of 1 kB"): _repeated(_gzip(bytes(range(256)) * 4)),
        ("gzip", "bomb"): _repeated(_gzip(_ZEROS)),
        ("snappy", "empty blocks"): _repeated(_snappy_block(b""), _XERIAL_HEADER),
        ("snappy", "blocks of one byte"): _repeated(_snappy_block(b"x"), _XERIAL_HEADER),
        ("snappy", "empty streams"): _repeated(_XERIAL_HEADER),
        ("snappy", "bomb"): _repeated(_snappy_block(_ZEROS), _XERIAL_HEADER),
        ("lz4", "blocks of one byte"): lambda size: _lz4_blocks(b"x", size),
        ("lz4", "bomb"): lambda size: compress(CODECS["lz4"], _ZEROS * (size // 4200)),
        ("zstd", "empty frames"): _repeated(_zstd(b"")),
        ("zstd", "skippable frames"): _repeated(_SKIPPABLE_FRAME, _zstd(b"")),
        ("zstd", "frames of one byte"): _repeated(_zstd(b"x")),
        ("zstd", "windows of 8 MiB and of 1 kB"): _repeated(_zstd(b"x", window_log=23) + _zstd(b"x")),
        ("zstd", "bomb"): _repeated(_zstd(_ZEROS)),
    }


def milliseconds(codec: str, data: bytes) -> float:
    """How long it takes, refused or not."""
    began = time.process_time()
    with contextlib.suppress(DecompressionError):
        decompress(CODECS[codec], data, _LIMIT_BYTES)
    return (time.process_time() - began) * 1000


def main() -> None:
    print(f"{'codec, shape':<40}" + "".join(f"{size // _MB:>9} MB" for size in _SIZES) + f"{'ns/byte':>10}")
    for (codec, shape), make in inputs().items():
        taken = [
            statistics.median(milliseconds(codec, make(size)) for _ in range(_ROUNDS)) for size in _SIZES
        ]
        cells = "".join(f"{ms:>9.1f} ms" for ms in taken)
        print(f"{codec + ', ' + shape:<40}{cells}{taken[-1] * 1e6 / _SIZES[-1]:>10.1f}", flush=True)


if __name__ == "__main__":
    without_arguments(main, __doc__)
