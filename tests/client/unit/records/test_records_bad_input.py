"""Bytes that are not what they should be: refused, never read past, never a memory bomb."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from slackwater.kafka import records
from slackwater.kafka.records import BatchBuilder
from slackwater.kafka.records.compression import CODECS
from tests.support.records.parsing import PARSERS

NO_TIME = None


def batch(codec: str = "none", count: int = 5, base_offset: int = 0) -> bytearray:
    builder = BatchBuilder(codec)
    for index in range(count):
        builder.append(1000 + index, b"key", b"value-%d" % index, [("h", b"1")])
    return bytearray(builder.build(base_offset=base_offset))


@pytest.mark.parametrize("codec", CODECS)
def test_any_flipped_byte_under_the_checksum_is_noticed(codec: str) -> None:
    good = batch(codec)
    for position in range(21, len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x40
        with pytest.raises(records.CorruptBatchError, match="offset 0"):
            records.decode(bad, fetch_offset=0)


def test_what_stands_before_a_corrupt_batch_is_delivered_first() -> None:
    bad = batch(base_offset=5)
    bad[-1] ^= 1
    data = bytes(batch()) + bytes(bad)
    decoded = records.decode(data, fetch_offset=0)
    assert (len(decoded), decoded.next_offset) == (5, 5)
    with pytest.raises(records.CorruptBatchError) as caught:
        records.decode(data, fetch_offset=5)
    assert caught.value.offset == 5


def test_a_later_format_is_named() -> None:
    later = batch()
    later[16] = 3
    with pytest.raises(records.UnsupportedRecordFormatError, match="magic 3"):
        records.decode(later, fetch_offset=0)


@pytest.mark.parametrize("claims", ["any number", "one too many"])
def test_a_header_that_claims_too_many_records_takes_no_memory(claims: str) -> None:
    lying = batch()
    count = (len(lying) - records.HEADER_BYTES) // 7 + 1 if claims == "one too many" else 2**31 - 1
    lying[57:61] = count.to_bytes(4, "big")
    with pytest.raises(records.CorruptBatchError, match="cannot fit"):
        records.decode(records.stamp_crc(lying), fetch_offset=0)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_cut_off_compressed_data_is_refused(codec: str) -> None:
    good = batch(codec, count=50)
    short = bytearray(good[:-4])
    short[8:12] = (len(short) - 12).to_bytes(4, "big")
    with pytest.raises(records.CorruptBatchError):
        records.decode(records.stamp_crc(short), fetch_offset=0)


def both(payload: bytes, count: int) -> list[Any]:
    """What each parser makes of ``payload``: the columns, or that it refused."""
    outcomes: list[Any] = []
    for parser in (PARSERS["compiled"], PARSERS["pure"]):
        columns = parser.ColumnBuffers(count)
        try:
            stop = parser.parse_records(payload, 0, len(payload), count, 10, 5, NO_TIME, 0, columns, 0)
        except ValueError:
            outcomes.append("refused")
        else:
            outcomes.append(
                [
                    (r.offset, r.timestamp, r.key, r.value, r.headers)
                    for r in parser.make_records("t", 0, 0, 0, payload, columns, 0, stop)
                ]
            )
    return outcomes


@pytest.mark.parts("parser")
@settings(max_examples=400)
@given(st.binary(max_size=60), st.integers(0, 6))
def test_both_parsers_agree_on_garbage(payload: bytes, count: int) -> None:
    compiled, pure = both(payload, count)
    assert compiled == pure


@pytest.mark.parts("parser")
def test_both_parsers_agree_on_damaged_records() -> None:
    rng = random.Random(11)
    good = bytes(batch(count=8)[61:])
    refused = 0
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        compiled, pure = both(bytes(bad), 8)
        assert compiled == pure
        refused += compiled == "refused"
    assert 0 < refused < 3000


def with_columns(parser: Any, payload: bytes, **changed: int) -> Any:
    """The first record of ``payload`` with numbers in its columns that no parser wrote."""
    columns = parser.ColumnBuffers(1)
    assert parser.parse_records(payload, 0, len(payload), 1, 10, 5, NO_TIME, 0, columns, 0) == 1
    for column, number in changed.items():
        getattr(columns, column)[0] = number
    return parser.make_records("t", 0, 0, 0, payload, columns, 0, 1)[0]


@pytest.mark.parametrize("start", [-(2**31), -1_000_000, -4, -1, 0, 1, 1_000_000, 2**31 - 1])
def test_headers_that_start_outside_of_the_payload_are_refused(parser: Any, start: int) -> None:
    payload = bytes(batch(count=1)[61:])
    # 0 and 1 stand for the end of the payload, and one byte behind it.
    position = len(payload) + start if start in (0, 1) else start
    with pytest.raises(ValueError, match="a record is cut off"):
        _ = with_columns(parser, payload, header_start=position).headers


@pytest.mark.parametrize("count", [-(2**31), -1, 5, 2**31 - 1])
def test_headers_of_an_impossible_number_are_refused(parser: Any, count: int) -> None:
    payload = bytes(batch(count=1)[61:])
    assert with_columns(parser, payload).headers == [("h", b"1")]
    with pytest.raises(ValueError, match="headers"):
        _ = with_columns(parser, payload, header_count=count).headers


def test_no_headers_are_read_where_a_record_has_none(parser: Any) -> None:
    payload = bytes(batch(count=1)[61:])
    assert with_columns(parser, payload, header_start=-1, header_count=0).headers == []
    assert parser.make_records("t", 0, 0, 0, b"", parser.ColumnBuffers(1), 0, 1)[0].headers == []


def test_headers_in_an_empty_payload_are_refused(parser: Any) -> None:
    columns = parser.ColumnBuffers(1)
    columns.header_count[0] = 1
    with pytest.raises(ValueError, match="a record is cut off"):
        _ = parser.make_records("t", 0, 0, 0, b"", columns, 0, 1)[0].headers


@pytest.mark.parametrize("start", [-5, 10**6])
@pytest.mark.parametrize("field", ["key", "value"])
def test_a_field_outside_of_the_payload_is_refused(parser: Any, field: str, start: int) -> None:
    record = with_columns(parser, bytes(batch(count=1)[61:]), **{f"{field}_start": start})
    with pytest.raises(ValueError, match="a field outside of its payload"):
        _ = getattr(record, field)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_garbage_in_place_of_a_fetch_ends_in_a_record_error_or_nothing(data: bytes) -> None:
    try:
        decoded = records.decode(data, fetch_offset=0)
    except records.RecordError:
        return
    assert len(decoded) == 0


def test_an_unreadable_batch_says_where_to_go_on() -> None:
    bad = batch(count=5, base_offset=50)
    bad[-1] ^= 1
    with pytest.raises(records.CorruptBatchError) as caught:
        records.decode(bad, fetch_offset=52)
    assert (caught.value.offset, caught.value.last_offset) == (50, 54)
    short = batch(count=5, base_offset=50)
    short[57:61] = (4).to_bytes(4, "big")
    with pytest.raises(records.CorruptBatchError) as caught:
        records.decode(records.stamp_crc(short), fetch_offset=52)
    assert (caught.value.offset, caught.value.last_offset) == (50, 54)
