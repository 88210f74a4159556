"""Record batches (magic 2) at the edges of what the format allows."""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import pytest

from slackwater.kafka import records
from slackwater.kafka.records.batch import HEADER_BYTES
from slackwater.kafka.records.compression import CODECS, compress
from tests.support.records.parsing import ABORT, COMMIT, batch

FAR = (1 << 63) - 1


pytestmark = pytest.mark.usefixtures("parser")


def body(parser: Any, rows: list[tuple[int, int, bytes | None, bytes | None, Any]]) -> bytes:
    encoder = parser.RecordEncoder()
    for row in rows:
        encoder.append(*row)
    return bytes(encoder.getvalue())


@pytest.mark.parametrize("codec", CODECS.values())
def test_an_empty_batch_that_compaction_left_is_passed(parser: Any, codec: int) -> None:
    """A cleaner keeps the header of a producer's last batch; the codec in it means nothing (KIP-98)."""
    empty = batch(b"", 0, base_offset=10, last_delta=6, attributes=codec)
    full = batch(body(parser, [(0, 0, None, b"v", [])]), 1, base_offset=20)
    decoded = records.decode(empty + full, fetch_offset=12)
    assert [r.offset for r in decoded.records("t", 0)] == [20]
    alone = records.decode(empty, fetch_offset=12)
    assert (len(alone), alone.next_offset) == (0, 17)


def test_gaps_that_compaction_left(parser: Any) -> None:
    holes = batch(
        body(parser, [(0, 2, None, b"a", []), (0, 7, None, b"b", [])]), 2, base_offset=10, last_delta=9
    )
    decoded = records.decode(holes, fetch_offset=10)
    assert [r.offset for r in decoded.records("t", 0)] == [12, 17]
    assert decoded.next_offset == 20
    assert decoded.slice(0, 1).next_offset == 17
    behind = records.decode(holes, fetch_offset=18)
    assert (len(behind), behind.next_offset) == (0, 20)


def test_numbers_of_every_length(parser: Any) -> None:
    for bits in range(64):
        for delta in {(1 << bits) - 1, -(1 << bits), -((1 << bits) - 1)}:
            data = batch(body(parser, [(delta, 0, None, None, [])]), 1)
            assert records.decode(data, fetch_offset=0).records("t", 0)[0].timestamp == delta


def test_times_wrap_as_javas_do(parser: Any) -> None:
    data = batch(body(parser, [(2, 0, None, None, [])]), 1, base_ms=FAR)
    assert records.decode(data, fetch_offset=0).records("t", 0)[0].timestamp == -FAR


def test_the_largest_offsets(parser: Any) -> None:
    data = batch(
        body(parser, [(0, 0x7FFFFFFF, b"", b"", [])]), 1, base_offset=FAR - 0x80000000, last_delta=0x7FFFFFFF
    )
    decoded = records.decode(data, fetch_offset=0)
    assert decoded.first_offset == FAR - 1
    assert decoded.next_offset == FAR


def test_headers_with_null_and_empty_values_and_odd_names(parser: Any) -> None:
    headers = [("", None), ("a", b""), ("a", None), ("ß" * 100, b"x" * 1000)]
    data = batch(body(parser, [(0, 0, None, None, headers)]), 1)
    assert records.decode(data, fetch_offset=0).records("t", 0)[0].headers == headers


@pytest.mark.parametrize("framing", ["raw", "xerial", "xerial in blocks"])
def test_snappy_in_each_framing(parser: Any, framing: str) -> None:
    plain = body(parser, [(0, n, None, b"v" * 5000, []) for n in range(20)])
    if framing == "raw":
        folded = bytes(cramjam.snappy.compress_raw(plain))
    elif framing == "xerial":
        folded = compress(CODECS["snappy"], plain)
    else:
        folded = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
        for start in range(0, len(plain), 32 * 1024):
            block = bytes(cramjam.snappy.compress_raw(plain[start : start + 32 * 1024]))
            folded += struct.pack(">i", len(block)) + block
    decoded = records.decode(batch(folded, 20, attributes=CODECS["snappy"]), fetch_offset=0)
    assert [r.value for r in decoded.records("t", 0)] == [b"v" * 5000] * 20


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_stream_of_several_members_is_read_to_its_end(parser: Any, codec: str) -> None:
    plain = body(parser, [(0, n, None, b"v", []) for n in range(6)])
    folded = compress(CODECS[codec], plain[:20]) + compress(CODECS[codec], plain[20:])
    assert len(records.decode(batch(folded, 6, attributes=CODECS[codec]), fetch_offset=0)) == 6


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_named(parser: Any, codec: int) -> None:
    with pytest.raises(records.UnsupportedRecordFormatError, match=f"codec {codec}"):
        records.decode(batch(b"\0" * 7, 1, attributes=codec), fetch_offset=0)


def marker(parser: Any, key: bytes | None, offset: int, producer_id: int = 9, count: int = 1) -> bytes:
    content = body(parser, [(0, 0, key, bytes(6), [])]) if count else b""
    return batch(content, count, base_offset=offset, attributes=0x30, producer_id=producer_id)


def transactional(parser: Any, offset: int, producer_id: int = 9) -> bytes:
    rows = [(0, 0, None, b"%d" % offset, [])]
    return batch(body(parser, rows), 1, base_offset=offset, attributes=0x10, producer_id=producer_id)


def offsets(data: bytes, aborted: list[tuple[int, int]] | None, fetch_offset: int = 0) -> list[int]:
    decoded = records.decode(data, fetch_offset=fetch_offset, aborted=aborted)
    return [r.offset for r in decoded.records("t", 0)]


def test_an_abort_marker_ends_a_transaction_and_the_next_one_counts(parser: Any) -> None:
    data = b"".join(
        [
            transactional(parser, 0),
            transactional(parser, 1, 8),
            marker(parser, ABORT, 2),
            transactional(parser, 3),
            marker(parser, COMMIT, 4),
            marker(parser, COMMIT, 5, 8),
            transactional(parser, 6),
            marker(parser, ABORT, 7),
        ]
    )
    assert offsets(data, [(9, 6), (9, 0)]) == [1, 3]
    assert offsets(data, []) == offsets(data, None) == [0, 1, 3, 6]
    assert records.decode(data, fetch_offset=0, aborted=[(9, 0), (9, 6)]).next_offset == 8


def test_a_transaction_that_began_before_the_fetch(parser: Any) -> None:
    data = transactional(parser, 50) + marker(parser, ABORT, 51)
    assert offsets(data, [(9, 3)], 50) == []
    assert records.decode(data, fetch_offset=50, aborted=[(9, 3)]).next_offset == 52


def test_batches_outside_of_the_transaction_are_kept(parser: Any) -> None:
    plain = batch(body(parser, [(0, 0, None, b"p", [])]), 1, base_offset=1, producer_id=9)
    no_producer = batch(body(parser, [(0, 0, None, b"p", [])]), 1, base_offset=2)
    data = transactional(parser, 0) + plain + no_producer + marker(parser, ABORT, 3)
    assert offsets(data, [(9, 0)]) == [1, 2]


def test_an_aborted_batch_is_never_unfolded(parser: Any) -> None:
    bomb = batch(b"no gzip at all", 1, attributes=0x11, producer_id=9)
    assert offsets(bomb + marker(parser, ABORT, 1), [(9, 0)]) == []
    with pytest.raises(records.CorruptBatchError):
        offsets(bomb, [])


@pytest.mark.parametrize(
    ("key", "aborts"), [(ABORT, True), (COMMIT, False), (b"\0\1\0\0\7", True), (b"\0\0\0\5", False)]
)
def test_which_markers_end_an_abort(parser: Any, key: bytes, aborts: bool) -> None:
    data = transactional(parser, 0) + marker(parser, key, 1) + transactional(parser, 2)
    assert offsets(data, [(9, 0)]) == ([2] if aborts else [])


def test_a_marker_that_compaction_emptied_ends_nothing(parser: Any) -> None:
    data = transactional(parser, 0) + marker(parser, ABORT, 1, count=0) + transactional(parser, 2)
    assert offsets(data, [(9, 0)]) == []


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_a_marker_that_says_nothing_is_corrupt(parser: Any, key: bytes | None) -> None:
    data = transactional(parser, 0) + marker(parser, key, 1)
    with pytest.raises(records.CorruptBatchError, match="offset 1.*marker"):
        records.decode(data, fetch_offset=1, aborted=[(9, 0)])


def small(parser: Any, offset: int, *, attributes: int = 0, epoch: int = 3) -> bytearray:
    rows = [(0, n, b"k", b"%d" % (offset + n), []) for n in range(2)]
    made = bytearray(batch(body(parser, rows), 2, base_offset=offset, attributes=attributes, max_ms=offset))
    made[12:16] = struct.pack(">i", epoch)
    return made


def test_many_small_batches_are_read_as_one_large_one(parser: Any) -> None:
    data = b"".join(
        small(parser, 2 * n, epoch=n // 50, attributes=0x08 if n // 30 % 2 else 0) for n in range(200)
    )
    decoded = records.decode(data, fetch_offset=7)
    read = decoded.records("t", 0)
    assert [(r.offset, r.value) for r in read] == [(n, b"%d" % n) for n in range(7, 400)]
    assert [r.leader_epoch for r in read] == [n // 100 for n in range(7, 400)]
    assert [(r.timestamp_type, r.timestamp) for r in read] == [
        (1, n // 2 * 2) if n // 60 % 2 else (0, 0) for n in range(7, 400)
    ]
    assert decoded.next_offset == 400
    extent = records.measure(data, 7)
    assert (extent.next_offset, extent.whole) == (400, True)
    assert extent.epochs == [(100, 0), (200, 1), (300, 2), (400, 3)]


@pytest.mark.parametrize("bad", [0, 1, 9])
@pytest.mark.parametrize("way", ["checksum", "records", "count", "length"])
def test_small_batches_before_a_bad_one_are_given(parser: Any, bad: int, way: str) -> None:
    parts = [small(parser, 2 * n) for n in range(10)]
    batch = parts[bad]
    if way == "checksum":
        batch[-1] ^= 1
    elif way == "records":
        batch[HEADER_BYTES] ^= 0x06
        parts[bad] = bytearray(records.stamp_crc(batch))
    elif way == "count":
        batch[57:61] = struct.pack(">i", 1)
        parts[bad] = bytearray(records.stamp_crc(batch))
    else:
        batch[8:12] = struct.pack(">i", 12)
    data = b"".join(parts)
    if bad:
        decoded = records.decode(data, fetch_offset=0)
        assert [r.offset for r in decoded.records("t", 0)] == list(range(2 * bad))
        assert decoded.next_offset == 2 * bad
    with pytest.raises(records.CorruptBatchError) as caught:
        records.decode(b"".join(parts[bad:]), fetch_offset=2 * bad)
    assert caught.value.offset == 2 * bad
    extent = records.measure(data, 0)
    assert (extent.next_offset, extent.whole) == ((2 * bad, False) if way == "length" else (20, True))


def test_transactional_batches_among_others_are_still_left_out(parser: Any) -> None:
    plain = [bytes(small(parser, n)) for n in (0, 2)]
    data = plain[0] + transactional(parser, 20) + bytes(small(parser, 30)) + marker(parser, ABORT, 40)
    assert offsets(data, [(9, 20)]) == [0, 1, 30, 31]
    assert offsets(data, None) == [0, 1, 20, 30, 31]


def test_the_position_never_goes_back(parser: Any) -> None:
    """Not even to the place that a batch which cannot be read claims to have."""
    unreadable = batch(b"\x0c" + bytes(5) + b"\x02", 1, base_offset=1, last_delta=90)
    decoded = records.decode(bytes(small(parser, 10)) + unreadable, fetch_offset=10)
    assert [r.offset for r in decoded.records("t", 0)] == [10, 11]
    assert decoded.next_offset == 12
