"""Rows of several fetches as one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slackwater.kafka.records import BatchBuilder, RecordColumns, concat, decode


def rows(base: int, count: int, codec: str = "none", epoch: int = 0) -> RecordColumns:
    builder = BatchBuilder(codec, 1_000_000)
    for number in range(base, base + count):
        key = None if number % 3 == 0 else b"key-%d" % number
        headers = [("number", b"%d" % number)] if number % 2 else []
        assert builder.append(1_000 + number, key, b"value-%d" % number, headers)
    data = bytearray(builder.build(base_offset=base))
    data[12:16] = epoch.to_bytes(4, "big")  # the leader epoch, which brokers write
    return decode(data, fetch_offset=base)


def parts() -> Iterator[RecordColumns]:
    yield rows(10, 3)
    yield rows(13, 5, "gzip", epoch=1).slice(0, 4)
    yield rows(20, 4).slice(1, 4)


def test_each_record_is_what_it_was() -> None:
    whole = concat(list(parts()))
    apart = [record for part in parts() for record in part.records("t", 1)]
    together = whole.records("t", 1)
    assert len(whole) == len(together) == 10
    assert [record.offset for record in together] == [10, 11, 12, 13, 14, 15, 16, 21, 22, 23]
    for ours, theirs in zip(together, apart, strict=True):
        assert ours.key == theirs.key
        assert ours.value == theirs.value
        assert list(ours.headers) == list(theirs.headers)
        assert (ours.timestamp, ours.leader_epoch) == (theirs.timestamp, theirs.leader_epoch)
    assert whole.to_arrow("t", 1).to_pylist() == [
        row for part in parts() for row in part.to_arrow("t", 1).to_pylist()
    ]


@pytest.mark.parametrize(("stop", "following"), [(0, 10), (3, 13), (5, 15), (7, 21), (9, 23), (10, 24)])
def test_a_slice_knows_where_to_go_on(stop: int, following: int) -> None:
    whole = concat(list(parts()))
    assert whole.slice(0, stop).next_offset == following
    assert len(whole.slice(0, stop)) == stop


def test_one_part_is_itself() -> None:
    only = rows(0, 3)
    assert concat([only]) is only


def test_parts_without_rows_add_only_where_to_go_on() -> None:
    whole = concat([rows(0, 2), rows(2, 3).slice(3, 3)])
    assert (len(whole), whole.next_offset) == (2, 5)
