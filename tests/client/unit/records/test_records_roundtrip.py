"""Batches written and read back, by us and by other people's code."""

from __future__ import annotations

import random
import shutil
import sys
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.memory_records import MemoryRecords
from kafka.record.memory_records import MemoryRecordsBuilder

from slackwater.kafka import records
from slackwater.kafka.records import BatchBuilder, _implementation, _parser_py
from slackwater.kafka.records.compression import CODECS
from tests.support.records.parsing import PARSERS

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def rows(count: int, seed: int = 7) -> list[Row]:
    rng = random.Random(seed)
    made: list[Row] = []
    for _ in range(count):
        key = None if rng.random() < 0.2 else rng.randbytes(rng.randrange(12))
        value = None if rng.random() < 0.1 else rng.randbytes(rng.randrange(300))
        headers = [
            (rng.choice(["a", "grün", "trace-id"]), rng.choice([None, b"", rng.randbytes(5)]))
            for _ in range(rng.choice([0, 0, 0, 2]))
        ]
        made.append((1_360_000_000_000 + rng.randrange(-5_000, 10_000), key, value, headers))
    return made


def batch(content: list[Row], codec: str = "none", base_offset: int = 0) -> bytes:
    builder = BatchBuilder(codec, max_bytes=1 << 24)
    for row in content:
        assert builder.append(*row)
    return builder.build(base_offset=base_offset)


def content_of(decoded: records.RecordColumns) -> list[Row]:
    return [(r.timestamp, r.key, r.value, r.headers) for r in decoded.records("t", 3)]


def test_the_compiled_parser_is_loaded_where_there_is_a_compiler() -> None:
    if shutil.which("cc") or shutil.which("gcc"):
        assert _implementation.COMPILED
        assert "slackwater.kafka.records._parser" in sys.modules


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_written_reads_back(parser: Any, codec: str) -> None:
    first, second = rows(40, 1), rows(25, 2)
    data = batch(first, codec, 100) + batch(second, codec, 140)
    decoded = records.decode(data, fetch_offset=100)
    assert content_of(decoded) == first + second
    assert [r.offset for r in decoded.records("t", 3)] == list(range(100, 165))
    assert decoded.next_offset == 165


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_reads_what_we_write(parser: Any, codec: str) -> None:
    content = rows(30)
    theirs = MemoryRecords(batch(content, codec)).next_batch()
    assert theirs.validate_crc()
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in theirs] == content


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_what_kafka_python_writes(parser: Any, codec: str) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=CODECS[codec], batch_size=1 << 20)
    content = rows(30)
    for timestamp, key, value, headers in content:
        builder.append(timestamp=timestamp, key=key, value=value, headers=headers)
    builder.close()
    assert content_of(records.decode(bytes(builder.buffer()), fetch_offset=0)) == content


@pytest.mark.parts("parser")
def test_both_parsers_write_the_same_bytes() -> None:

    for timestamp, key, value, headers in rows(200):
        compiled, pure = PARSERS["compiled"].RecordEncoder(), _parser_py.RecordEncoder()
        for encoder in (compiled, pure):
            encoder.append(timestamp - 1_360_000_000_000, 5, key, value, headers)
        assert compiled.getvalue() == pure.getvalue()


def test_a_fetch_from_the_middle_of_a_batch_leaves_the_start_out(parser: Any) -> None:
    content = rows(10)
    decoded = records.decode(batch(content, "lz4", 50), fetch_offset=57)
    assert content_of(decoded) == content[7:]
    assert decoded.first_offset == 57


def test_an_incomplete_batch_at_the_end_is_left_out(parser: Any) -> None:
    whole, cut = batch(rows(4), base_offset=0), batch(rows(4), base_offset=4)
    for size in (1, 11, 60, len(cut) - 1):
        decoded = records.decode(whole + cut[:size], fetch_offset=0)
        assert (len(decoded), decoded.next_offset) == (4, 4)


def test_slices_know_where_to_go_on(parser: Any) -> None:
    content = rows(10)
    decoded = records.decode(batch(content[:6]) + batch(content[6:], "gzip", 6), fetch_offset=0)
    middle = decoded.slice(4, 8)
    assert content_of(middle) == content[4:8]
    assert (middle.first_offset, middle.next_offset) == (4, 8)
    assert (len(decoded.slice(8, 99)), decoded.slice(8, 99).next_offset) == (2, 10)
    assert len(decoded.slice(5, 5)) == 0
    assert middle.record(1, "t", 3).offset == 5
    with pytest.raises(IndexError):
        middle.record(4, "t", 3)


def test_the_brokers_time_of_append_overrides_every_timestamp(parser: Any) -> None:
    data = bytearray(batch(rows(3)))
    data[22] |= 0x08
    data[35:43] = (1_400_000_000_123).to_bytes(8, "big")
    stamped = records.stamp_crc(data)
    read = records.decode(stamped, fetch_offset=0).records("t", 0)
    assert {(r.timestamp, r.timestamp_type) for r in read} == {(1_400_000_000_123, 1)}


def test_transaction_markers_move_the_position_and_are_not_delivered(parser: Any) -> None:
    marker = bytearray(batch([(0, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00", [])], base_offset=2))
    marker[22] |= 0x30
    data = batch(rows(2)) + records.stamp_crc(marker)
    decoded = records.decode(data, fetch_offset=0)
    assert (len(decoded), decoded.next_offset) == (2, 3)


def test_arrow_and_records_are_views_of_the_same(parser: Any) -> None:
    content = rows(50)
    data = batch(content[:20], "zstd", 0) + batch(content[20:], "none", 20)
    decoded = records.decode(data, fetch_offset=3).slice(2, 40)
    table = pa.Table.from_batches([decoded.to_arrow("flights", 7)])
    table.validate(full=True)
    assert table.schema == records.ARROW_SCHEMA
    expected = [
        {
            "topic": "flights",
            "partition": 7,
            "offset": r.offset,
            "timestamp": r.timestamp,
            "key": r.key,
            "value": r.value,
            "headers": [{"key": k, "value": v} for k, v in r.headers],
        }
        for r in decoded.records("flights", 7)
    ]
    actual = table.set_column(3, "timestamp", table["timestamp"].cast(pa.int64())).to_pylist()
    assert actual == expected


def test_no_records_make_an_empty_table(parser: Any) -> None:
    decoded = records.decode(b"", fetch_offset=9)
    assert (len(decoded), decoded.next_offset, decoded.first_offset) == (0, 9, 9)
    assert decoded.to_arrow("t", 0).num_rows == 0


def test_a_full_builder_says_so_and_the_first_record_always_fits() -> None:
    builder = BatchBuilder("none", max_bytes=500)
    assert builder.append(0, None, b"x" * 1000)
    assert not builder.append(0, None, b"y")
    assert builder.count == 1


def test_an_unknown_codec_is_refused_by_name() -> None:
    with pytest.raises(records.UnsupportedRecordFormatError, match="brotli.*gzip"):
        BatchBuilder("brotli")


@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_a_record_that_is_most_of_its_fetch_is_not_copied_for_arrow(key: bytes | None) -> None:
    value = bytes(range(256)) * 1024
    builder = records.BatchBuilder("zstd", 1 << 20)
    assert builder.append(1_000, key, value, [])
    decoded = records.decode(builder.build(), fetch_offset=0)
    table = decoded.to_arrow("t", 0)
    assert (table["key"].to_pylist(), table["value"].to_pylist()) == ([key], [value])
    assert table["value"].buffers()[2].size == decoded.payload_bytes > len(value)
