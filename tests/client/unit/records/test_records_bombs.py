"""A few kilobytes that unfold to gigabytes: refused at the declared limit, and never taking more memory."""

from __future__ import annotations

import tracemalloc

import pytest

from slackwater.kafka import records
from slackwater.kafka.records import _parser_py
from slackwater.kafka.records.compression import CODECS, compress
from tests.support.records.bombs import BOMBS, CODEC_ROOM, LIMIT, MIB, bomb, in_batch, in_two_wrappers
from tests.support.records.parsing import batch


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_the_option_that_would_accept_it(name: str) -> None:
    data = bomb(name)
    tracemalloc.start()
    try:
        with pytest.raises(records.CorruptBatchError, match=rf"{LIMIT}.*fetch\.max\.decom") as caught:
            records.decode(data, fetch_offset=0, max_decompressed_bytes=LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.offset == 7
    assert peak < LIMIT * 9 // 8 + CODEC_ROOM


def test_a_bomb_in_a_wrapper_in_a_wrapper_is_never_unfolded() -> None:
    data = in_two_wrappers()
    tracemalloc.start()
    try:
        with pytest.raises(records.CorruptBatchError, match="compressed once more") as caught:
            records.decode(data, fetch_offset=0, max_decompressed_bytes=LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.offset == 7
    assert peak < CODEC_ROOM


def test_snappy_that_only_claims_to_be_large_takes_nothing() -> None:
    lie = b"\x80\x80\x80\x03" + bytes(40)  # 6 MiB in 40 bytes
    tracemalloc.start()
    try:
        with pytest.raises(records.CorruptBatchError, match="claim"):
            records.decode(in_batch("snappy", lambda: lie)(), fetch_offset=0, max_decompressed_bytes=LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_that_only_together_are_too_large_come_in_turns(codec: str) -> None:
    encoder = _parser_py.RecordEncoder()
    encoder.append(0, 0, None, bytes(LIMIT * 5 // 16), [])
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
    with pytest.raises(records.CorruptBatchError, match="unfolds"):
        records.decode(data, fetch_offset=0, max_decompressed_bytes=needed - 1)
    with pytest.raises(records.CorruptBatchError, match="unfolds"):
        records.decode(data, fetch_offset=0, max_decompressed_bytes=len(body) - 1)
