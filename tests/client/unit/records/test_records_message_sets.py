"""Message sets (magic 0 and 1): written by other people's clients, and by hand where those cannot."""

from __future__ import annotations

import random
import struct

import lz4.frame
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AioBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder as PyBuilder

from slackwater.kafka import records
from slackwater.kafka.records.compression import CODECS
from tests.support.records.parsing import LOG_APPEND_TIME, message, wrapper

OLD_CODECS = ("none", "gzip", "snappy", "lz4")


pytestmark = pytest.mark.usefixtures("parser")


def read(data: bytes, fetch_offset: int = 0) -> list[tuple[int, int, int, bytes | None, bytes | None]]:
    decoded = records.decode(data, fetch_offset=fetch_offset)
    return [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value) for r in decoded.records("t", 0)]


# Neither of them writes lz4 in magic 0; Java does.
@pytest.mark.parametrize("builder", [AioBuilder, PyBuilder])
@pytest.mark.parametrize(
    ("magic", "codec"),
    [(magic, codec) for magic in (0, 1) for codec in OLD_CODECS if (magic, codec) != (0, "lz4")],
)
def test_message_sets_of_other_clients(magic: int, codec: str, builder: type) -> None:
    rng = random.Random(magic)
    rows = [(n, 1_400_000_000_000 + n, rng.choice([None, b"key"]), rng.randbytes(n)) for n in range(30)]
    build = builder(magic=magic, compression_type=CODECS[codec], batch_size=1 << 16)
    for offset, time_ms, key, value in rows:
        if builder is AioBuilder:
            build.append(offset, timestamp=time_ms, key=key, value=value)
        else:
            build.append(offset, timestamp=time_ms, key=key, value=value, headers=[])
    expected = [(o, t if magic else -1, 0 if magic else -1, k, v) for o, t, k, v in rows]
    # They leave the offset of a wrapper to the broker.
    data = bytearray(build.build())
    if codec != "none":
        data[:8] = struct.pack(">q", 29)
    assert read(bytes(data)) == expected
    assert read(bytes(data), 17) == expected[17:]


def test_the_old_lz4_header_is_read_in_magic_0_only() -> None:
    frame = bytearray(lz4.frame.compress(message(3, 0, b"v"), store_size=False, block_linked=False))
    frame[6] ^= 0x55
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(bytes(frame))
    old = message(3, 0, bytes(frame), attributes=CODECS["lz4"])
    assert read(old) == [(3, -1, -1, None, b"v")]
    later = message(3, 1, bytes(frame), attributes=CODECS["lz4"])
    with pytest.raises(records.CorruptBatchError, match="offset 3"):
        read(later)


@pytest.mark.parametrize("store_size", [False, True])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("block_size", [lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB])
def test_old_lz4_headers_of_every_form(
    store_size: bool, linked: bool, checksums: bool, block_size: int
) -> None:
    content = message(3, 0, bytes(200_000))
    frame = bytearray(
        lz4.frame.compress(
            content,
            store_size=store_size,
            block_linked=linked,
            content_checksum=checksums,
            block_checksum=checksums,
            block_size=block_size,
        )
    )
    frame[14 if store_size else 6] ^= 0xFF
    assert read(message(3, 0, bytes(frame), attributes=CODECS["lz4"])) == [(3, -1, -1, None, bytes(200_000))]


@pytest.mark.parametrize("magic", [0, 1])
def test_snappy_without_its_stream_header(magic: int) -> None:
    import cramjam

    raw = bytes(cramjam.snappy.compress_raw(message(0, magic, b"v" * 99)))
    assert read(message(0, magic, raw, attributes=CODECS["snappy"]))[0][4] == b"v" * 99


def test_relative_offsets_count_back_from_the_wrapper() -> None:
    inner = message(0, 1, b"a") + message(4, 1, b"b") + message(5, 1, b"c")
    assert [row[0] for row in read(wrapper(105, 1, "gzip", inner))] == [100, 104, 105]
    assert [row[0] for row in read(wrapper(105, 1, "gzip", inner), 105)] == [105]
    with pytest.raises(records.CorruptBatchError, match="relative offset 5"):
        read(wrapper(4, 1, "gzip", inner))


def test_a_wrapper_of_offset_0_means_what_it_holds() -> None:
    inner = message(0, 1, b"a") + message(1, 1, b"b")
    assert [row[0] for row in read(wrapper(0, 1, "snappy", inner))] == [0, 1]


def test_absolute_offsets_in_magic_0() -> None:
    inner = message(7, 0, b"a") + message(9, 0, b"b")
    decoded = records.decode(wrapper(9, 0, "gzip", inner), fetch_offset=8)
    assert [r.offset for r in decoded.records("t", 0)] == [9]
    assert decoded.next_offset == 10


def test_whose_time_it_is() -> None:
    inner = message(0, 1, b"a", time_ms=11) + message(1, 1, b"b", time_ms=12, attributes=LOG_APPEND_TIME)
    created = wrapper(1, 1, "gzip", inner, time_ms=99)
    assert [row[1:3] for row in read(created)] == [(11, 0), (12, 0)]
    appended = wrapper(1, 1, "gzip", inner, time_ms=99, attributes=LOG_APPEND_TIME)
    assert [row[1:3] for row in read(appended)] == [(99, 1), (99, 1)]
    plain = message(0, 1, b"a", time_ms=11) + message(1, 1, b"b", time_ms=12, attributes=LOG_APPEND_TIME)
    assert [row[1:3] for row in read(plain)] == [(11, 0), (12, 1)]


def test_plain_messages_of_both_kinds_side_by_side() -> None:
    data = b"".join(message(n, n % 3 % 2, b"%d" % n) for n in range(20))
    assert [(row[0], row[1]) for row in read(data)] == [(n, 5 if n % 3 % 2 else -1) for n in range(20)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ("once more", "compressed once more"),
        ("another magic", "several magics|another magic"),
        ("a later one", "several magics"),
        ("nothing", "no message"),
        ("null", "without a value"),
        ("a false checksum", "checksum"),
        ("a long key", "do not fit"),
        ("too small", "too small"),
        ("zstd", "knows no zstd"),
    ],
)
def test_what_cannot_be_in_a_wrapper(magic: int, inside: str, reason: str) -> None:
    good = message(0, magic, b"v")
    damaged = bytearray(good)
    damaged[-1] ^= 1
    long_key = bytearray(good)
    long_key[18 + 8 * magic : 22 + 8 * magic] = struct.pack(">i", 1 << 20)
    content = {
        "once more": wrapper(0, magic, "gzip", good),
        "another magic": message(0, 1 - magic, b"v"),
        "a later one": good + message(1, 2, b"v"),
        "a false checksum": bytes(damaged),
        "a long key": bytes(long_key),
        "too small": struct.pack(">qiIbB", 0, 7, 0, magic, 0) + bytes(20),
    }.get(inside, b"")
    if inside == "null":
        data = message(8, magic, None, attributes=CODECS["gzip"])
    else:
        data = wrapper(8, magic, "zstd" if inside == "zstd" else "gzip", content)
    with pytest.raises(records.CorruptBatchError, match=f"offset 8.*({reason})"):
        read(data)


def test_what_stands_before_a_damaged_message_is_given_first() -> None:
    damaged = bytearray(message(2, 1, b"v"))
    damaged[-1] ^= 1
    data = message(0, 1, b"v") + message(1, 1, b"v") + bytes(damaged) + message(3, 1, b"v")
    decoded = records.decode(data, fetch_offset=0)
    assert (len(decoded), decoded.next_offset) == (2, 2)
    with pytest.raises(records.CorruptBatchError, match="offset 2.*checksum"):
        records.decode(data, fetch_offset=2)
    assert [row[0] for row in read(data[-len(damaged) :])] == [3]
    assert len(records.decode(data, fetch_offset=0, check_crc=False)) == 4


def test_a_last_message_that_is_cut_off_is_left_out() -> None:
    whole = message(0, 1, b"v")
    for size in range(1, len(whole)):
        decoded = records.decode(whole + message(1, 1, b"v")[:size], fetch_offset=0)
        assert (len(decoded), decoded.next_offset) == (1, 1)
        # Within a wrapper, too: nobody has ever had such a message whole.
        assert len(read(wrapper(0, 1, "gzip", whole + message(1, 1, b"v")[:size]))) == 1


def test_a_wrapper_below_the_fetch_offset_gives_nothing_and_is_passed() -> None:
    data = wrapper(5, 1, "gzip", message(0, 1, b"a")) + wrapper(9, 1, "gzip", message(0, 1, b"b"))
    decoded = records.decode(data, fetch_offset=6)
    assert [r.offset for r in decoded.records("t", 0)] == [9]
    assert decoded.next_offset == 10
