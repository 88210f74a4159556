"""A few kilobytes that unfold to gigabytes: refused at the declared limit, and never taking more memory."""

from __future__ import annotations

import functools
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import zstandard

from slackwater.kafka import records
from slackwater.kafka.records import _parser_py
from slackwater.kafka.records.compression import CODECS, compress
from tests.support.records.parsing import batch, message, wrapper
from tests.support.waiting import HANG_S

MIB = 1 << 20
LIMIT = 16 * MIB
UNFOLDED = 160 * MIB
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


def _in_batch(codec: str, body: Callable[[], bytes], count: int = 1) -> Callable[[], bytes]:
    return lambda: batch(body(), count, attributes=CODECS[codec], base_offset=7)


def _in_wrapper(magic: int, codec: str, body: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: message(7, magic, body(), attributes=CODECS[codec])


def _in_two_wrappers() -> bytes:
    inner = wrapper(0, 1, "gzip", message(0, 1, bytes(UNFOLDED)))
    return wrapper(7, 1, "gzip", inner * 3)


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": _in_batch("gzip", lambda: _gzip(1)),
    "gzip in members": _in_batch("gzip", lambda: _gzip(20)),
    "snappy": _in_batch("snappy", lambda: _snappy(1)),
    "snappy in blocks": _in_batch("snappy", lambda: _snappy(20)),
    "lz4": _in_batch("lz4", _lz4),
    "zstd": _in_batch("zstd", lambda: _zstd(1)),
    "zstd in frames": _in_batch("zstd", lambda: _zstd(20)),
    "zstd with a wide window": _in_batch("zstd", _wide_zstd),
    "tiny records": _in_batch("gzip", _tiny_records, LIMIT // 2 // 7),
    "magic 0, gzip": _in_wrapper(0, "gzip", lambda: _gzip(1)),
    "magic 0, lz4": _in_wrapper(0, "lz4", _lz4),
    "magic 1, gzip": _in_wrapper(1, "gzip", lambda: _gzip(1)),
    "magic 1, snappy": _in_wrapper(1, "snappy", lambda: _snappy(20)),
    "magic 1, lz4": _in_wrapper(1, "lz4", _lz4),
    "magic 1, tiny messages": _in_wrapper(1, "gzip", lambda: _tiny_messages(1)),
}


@functools.cache
def bomb(name: str) -> bytes:
    return BOMBS[name]()


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_the_option_that_would_accept_it(name: str) -> None:
    data = bomb(name)
    tracemalloc.start()
    try:
        with pytest.raises(
            records.CorruptRecordError, match=r"offset 7.*16777216.*fetch\.max\.decompressed\.bytes"
        ):
            records.decode(data, fetch_offset=0, max_decompressed_bytes=LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < LIMIT * 9 // 8 + CODEC_ROOM


_CHILD = """
import sys
from pathlib import Path
from slackwater.kafka import records

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

data = Path(sys.argv[1]).read_bytes()
before = peak()
try:
    records.decode(data, fetch_offset=0, max_decompressed_bytes=int(sys.argv[2]))
except records.CorruptRecordError:
    print(peak() - before)
"""


@pytest.mark.parametrize(
    "name",
    [
        "gzip in members",
        "snappy",
        "lz4",
        "zstd in frames",
        "zstd with a wide window",
        "magic 1, lz4",
        "tiny records",
    ],
)
def test_a_bomb_takes_no_more_of_the_machine_than_the_limit(name: str, tmp_path: Path) -> None:
    """What the codecs' own libraries take, too."""
    (tmp_path / "bomb").write_bytes(bomb(name))
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "bomb"), str(LIMIT)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S)
    assert int(completed.stdout) < LIMIT * 9 // 8 + CODEC_ROOM


def test_a_bomb_in_a_wrapper_in_a_wrapper_is_never_unfolded() -> None:
    data = _in_two_wrappers()
    tracemalloc.start()
    try:
        with pytest.raises(records.CorruptRecordError, match="offset 7.*compressed once more"):
            records.decode(data, fetch_offset=0, max_decompressed_bytes=LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < CODEC_ROOM


def test_snappy_that_only_claims_to_be_large_takes_nothing() -> None:
    lie = b"\x80\x80\x80\x07" + bytes(40)  # 14 MiB in 40 bytes
    tracemalloc.start()
    try:
        with pytest.raises(records.CorruptRecordError, match="claim"):
            records.decode(_in_batch("snappy", lambda: lie)(), fetch_offset=0, max_decompressed_bytes=LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_that_only_together_are_too_large_come_in_turns(codec: str) -> None:
    encoder = _parser_py.RecordEncoder()
    encoder.append(0, 0, None, bytes(5 * MIB), [])
    body = compress(CODECS[codec], encoder.getvalue())
    data = b"".join(batch(body, 1, base_offset=n, attributes=CODECS[codec]) for n in range(7))
    position, turns = 0, []
    while position < 7:
        decoded = records.decode(
            data[len(data) // 7 * position :], fetch_offset=position, max_decompressed_bytes=LIMIT
        )
        turns.append(len(decoded))
        position = decoded.next_offset
    assert turns == [3, 3, 1]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_limit_itself_is_allowed(codec: str) -> None:
    encoder = _parser_py.RecordEncoder()
    encoder.append(0, 0, None, bytes(3 * MIB), [])
    body = encoder.getvalue()
    data = batch(compress(CODECS[codec], body), 1, attributes=CODECS[codec])
    needed = len(body) + 40
    assert len(records.decode(data, fetch_offset=0, max_decompressed_bytes=needed)) == 1
    with pytest.raises(records.CorruptRecordError, match="unfolds"):
        records.decode(data, fetch_offset=0, max_decompressed_bytes=needed - 1)
    with pytest.raises(records.CorruptRecordError, match="unfolds"):
        records.decode(data, fetch_offset=0, max_decompressed_bytes=len(body) - 1)
