"""Held against Apache Kafka's own code: its builder writes, its consumer's reader of a fetch reads."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from slackwater.kafka import records
from slackwater.kafka.records.compression import CODECS, compress
from tests.support.java.records import JavaRecords
from tests.support.records.parsing import batch
from tests.support.records.samples import CODECS_OF_MAGIC, decoded_rows, transaction_log, written

pytestmark = [pytest.mark.parts("java"), pytest.mark.usefixtures("parser")]

APPENDED_MS = 1_500_000_000_000
EVERY_KIND = [(magic, codec) for magic, codecs in CODECS_OF_MAGIC.items() for codec in codecs]


@pytest.fixture(scope="module")
def java() -> Iterator[JavaRecords]:
    with JavaRecords() as process:
        yield process


@pytest.mark.parametrize("append_time_ms", [None, APPENDED_MS])
@pytest.mark.parametrize(("magic", "codec"), EVERY_KIND)
def test_what_java_writes_reads_as_java_reads_it(
    java: JavaRecords, magic: int, codec: str, append_time_ms: int | None
) -> None:
    rng = random.Random(f"{magic} {codec}")
    for _ in range(4):
        rows = written(rng, rng.randrange(1, 20), base=rng.choice([0, 1, 1 << 40]), magic=magic)
        data = java.write(rows, magic=magic, codec=codec, append_time_ms=append_time_ms, epoch=4)
        for fetch_offset in {rows[0][0], rng.choice(rows)[0], rows[-1][0]}:
            theirs = java.read(data, fetch_offset=fetch_offset)
            ours = records.decode(data, fetch_offset=fetch_offset)
            assert theirs.error == ""
            assert decoded_rows(ours) == theirs.records
            assert ours.next_offset == theirs.next_offset
        assert [(row[0], row[3], row[4]) for row in decoded_rows(records.decode(data, fetch_offset=0))] == [
            (row[0], row[2], row[3]) for row in rows
        ]


def test_several_formats_in_one_fetch(java: JavaRecords) -> None:
    rng = random.Random(5)
    for _ in range(20):
        data, offset = b"", 0
        for _ in range(rng.randrange(1, 8)):
            magic, codec = rng.choice(EVERY_KIND)
            rows = written(rng, rng.randrange(1, 6), base=offset, magic=magic)
            time_ms = rng.choice([None, APPENDED_MS])
            data += java.write(rows, magic=magic, codec=codec, append_time_ms=time_ms)
            offset = rows[-1][0] + 1
        cut = data[: len(data) - rng.choice([0, 1, 30])]
        fetch_offset = rng.randrange(offset)
        theirs = java.read(cut, fetch_offset=fetch_offset)
        ours = records.decode(cut, fetch_offset=fetch_offset)
        assert decoded_rows(ours) == theirs.records
        # A broker would not send what ends before the offset that was asked for.
        assert ours.next_offset == max(theirs.next_offset, fetch_offset)


def test_aborted_transactions_are_left_out_as_java_leaves_them_out(java: JavaRecords) -> None:
    rng = random.Random(21)
    left_out = kept = 0
    for _ in range(40):
        log = transaction_log(java, rng, rng.randrange(2, 14))
        end = log.batches[-1][0] + 1
        for fetch_offset in (0, rng.randrange(end)):
            data, aborted = log.fetch(fetch_offset)
            rng.shuffle(aborted)
            theirs = java.read(data, fetch_offset=fetch_offset, aborted=aborted)
            ours = records.decode(data, fetch_offset=fetch_offset, aborted=aborted)
            everything = records.decode(data, fetch_offset=fetch_offset)
            assert (decoded_rows(ours), ours.next_offset) == (theirs.records, theirs.next_offset)
            assert ours.next_offset == everything.next_offset
            left_out += len(everything) - len(ours)
            kept += len(ours)
    assert left_out > 50
    assert kept > 50


def test_a_damaged_message_set_is_refused_where_java_refuses_it(java: JavaRecords) -> None:
    """And where Java, which looks at the checksums inside a wrapper only, gives a part or all of it."""
    rng = random.Random(9)
    refused = 0
    for _ in range(150):
        magic = rng.choice([0, 1])
        codec = rng.choice(CODECS_OF_MAGIC[magic])
        rows = written(rng, 3, base=10, magic=magic)
        data = bytearray(java.write(rows, magic=magic, codec=codec))
        data[rng.randrange(12, len(data))] ^= 1 << rng.randrange(8)
        theirs = java.read(bytes(data), fetch_offset=10)
        try:
            ours = records.decode(data, fetch_offset=10)
        except records.RecordError:
            refused += 1
            continue
        assert codec == "none"
        assert decoded_rows(ours) == theirs.records
        assert ours.next_offset == theirs.next_offset
    assert 100 < refused < 150


@pytest.mark.parametrize(("magic", "codec"), [(magic, codec) for magic, codec in EVERY_KIND if magic == 2])
def test_java_reads_what_we_write(java: JavaRecords, magic: int, codec: str) -> None:
    rows = written(random.Random(3), 20, base=0, magic=magic, gaps=False)
    builder = records.BatchBuilder(codec)
    for _, time_ms, key, value, headers in rows:
        assert builder.append(time_ms, key, value, headers)
    theirs = java.read(builder.build(), fetch_offset=0)
    assert [(row[0], row[1], *row[3:6]) for row in theirs.records] == rows


def _members(codec: str, parts: list[bytes]) -> bytes:
    return b"".join(compress(CODECS[codec], part) for part in parts)


def _pieces(body: bytes) -> dict[tuple[str, str], bytes]:
    """``body`` compressed in forms that no producer writes, and a broker may have all the same."""
    cut = [b"", b"", body[:40], b"", body[40:], b""]
    skipped = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    return {
        ("gzip", "members, some empty"): _members("gzip", cut),
        ("gzip", "something behind the last"): _members("gzip", [body]) + b"behind",
        ("gzip", "many empty members"): _members("gzip", [b""] * 3000 + [body]),
        ("snappy", "streams, some empty"): _members("snappy", cut),
        ("snappy", "empty streams"): _members("snappy", [body])[:16] * 20 + _members("snappy", [body]),
        ("lz4", "a frame behind the last"): _members("lz4", [body, body]),
        ("zstd", "frames, some empty"): _members("zstd", cut),
        ("zstd", "frames to skip"): skipped + _members("zstd", [body]) + skipped,
    }


@pytest.mark.parametrize(("codec", "form"), _pieces(bytes(60)))
def test_streams_that_follow_each_other_are_read_as_java_reads_them(
    java: JavaRecords, parser: Any, codec: str, form: str
) -> None:
    encoder = parser.RecordEncoder()
    for delta in range(6):
        encoder.append(delta, delta, b"k", b"v" * 30, [])
    data = batch(_pieces(encoder.getvalue())[codec, form], 6, base_offset=4, attributes=CODECS[codec])
    theirs = java.read(data, fetch_offset=4)
    assert theirs.error == ""
    assert len(theirs.records) == 6
    assert decoded_rows(records.decode(data, fetch_offset=4)) == theirs.records
