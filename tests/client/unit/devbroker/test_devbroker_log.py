"""The log on disk: appending, reading, searching by time, rolling, and what a crash leaves."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from slackwater.devbroker.storage.partition import AppendResult, PartitionLog
from slackwater.kafka.records import decode, iter_batches, verify_crc
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.wire.rawdata import batch as make_batch


def open_partition(folder: Path, *, segment_bytes: int = 1 << 30, interval: int = 4096) -> PartitionLog:
    partition = PartitionLog(folder, "t", 0, segment_bytes=segment_bytes, index_interval_bytes=interval)
    partition.load()
    return partition


def append(partition: PartitionLog, values: Sequence[bytes], **options: object) -> AppendResult:
    batch = bytearray(make_batch(values, **options))  # type: ignore[arg-type]
    return partition.append(memoryview(batch), produce_version=9, max_batch_bytes=1 << 20)


def values_of(data: bytes, offset: int) -> list[bytes | None]:
    return [record.value for record in decode(data, fetch_offset=offset).records("t", 0)]


def read_all(partition: PartitionLog, offset: int = 0, max_bytes: int = 1 << 20) -> list[bytes | None]:
    values: list[bytes | None] = []
    while offset < partition.end_offset:
        data = partition.read(offset, max_bytes, at_least_one=True)
        columns = decode(data, fetch_offset=offset)
        values += [record.value for record in columns.records("t", 0)]
        assert columns.next_offset > offset
        offset = columns.next_offset
    return values


def test_batches_get_offsets_and_the_leader_epoch(tmp_path: Path) -> None:
    partition = open_partition(tmp_path)
    assert [append(partition, [b"a", b"b"]).base_offset, append(partition, [b"c"]).base_offset] == [0, 2]
    data = partition.read(0, 1 << 20, at_least_one=True)
    headers = list(iter_batches(data))
    assert [(h.base_offset, h.last_offset, h.leader_epoch) for h in headers] == [(0, 1, 0), (2, 2, 0)]
    assert all(verify_crc(data, header) for header in headers)
    assert partition.end_offset == 3


@pytest.mark.parametrize("interval", [0, 200, 4096, 1 << 20])
@pytest.mark.parametrize("segment_bytes", [300, 5000, 1 << 30])
def test_every_offset_can_be_read_whatever_the_index_and_the_segments(
    tmp_path: Path, interval: int, segment_bytes: int
) -> None:
    partition = open_partition(tmp_path, segment_bytes=segment_bytes, interval=interval)
    sent: list[bytes] = []
    for number in range(60):
        batch = [f"{number}-{i}".encode() * (1 + number % 7) for i in range(1 + number % 4)]
        append(partition, batch)
        sent += batch
    for again in (partition, open_partition(tmp_path, segment_bytes=segment_bytes, interval=interval)):
        assert again.end_offset == len(sent)
        for offset in range(len(sent)):
            assert values_of(again.read(offset, 1, at_least_one=True), offset)[0] == sent[offset]
        assert read_all(again, 5, max_bytes=700) == sent[5:]
    if segment_bytes == 300:
        assert len(list(tmp_path.glob("*.log"))) > 20


def test_a_read_keeps_to_its_limit_but_for_the_first_batch(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, interval=0)
    for _ in range(10):
        append(partition, [b"x" * 1000])
    batch_bytes = len(partition.read(0, 1, at_least_one=True))
    assert partition.read(0, batch_bytes - 1, at_least_one=False) == b""
    assert len(partition.read(0, batch_bytes, at_least_one=False)) == batch_bytes
    assert len(partition.read(0, 3 * batch_bytes + 5, at_least_one=False)) == 3 * batch_bytes
    assert len(partition.read(8, 1 << 20, at_least_one=False)) == 2 * batch_bytes
    assert partition.bytes_from(8) == 2 * batch_bytes
    assert partition.bytes_from(10) == 0


def test_the_end_of_one_segment_is_the_beginning_of_the_next(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, segment_bytes=150)
    for number in range(5):
        append(partition, [b"%d" % number * 50])
    names = sorted(path.name for path in tmp_path.glob("*.log"))
    assert names == [f"{number:020d}.log" for number in range(5)]
    assert partition.read(5, 1000, at_least_one=True) == b""


def test_offsets_by_time_are_those_of_the_first_record_at_or_after_it(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, segment_bytes=400, interval=100)
    times = [50, 10, 70, 70, 20, 90, 30, 60, 90, 40]
    for at in range(0, len(times), 2):
        append(partition, [b"v", b"w"], timestamps=times[at : at + 2], compression="gzip")
    for wanted in range(0, 100, 5):
        expected = next(((o, t) for o, t in enumerate(times) if t >= wanted), None)
        assert partition.offset_for_time(wanted) == expected, wanted
    assert partition.max_timestamp() == (5, 90)


def test_an_empty_log_has_no_times(tmp_path: Path) -> None:
    partition = open_partition(tmp_path)
    assert partition.offset_for_time(0) is None
    assert partition.max_timestamp() is None
    assert partition.read(0, 100, at_least_one=True) == b""


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda b: b.__setitem__(len(b) - 1, b[-1] ^ 1), ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b.__setitem__(16, 1), ErrorCode.INVALID_RECORD),
        (lambda b: b.__setitem__(16, 0), ErrorCode.INVALID_RECORD),
        (lambda b: b.__delitem__(slice(len(b) - 5, None)), ErrorCode.INVALID_RECORD),
        (lambda b: b.__setitem__(slice(8, 12), b"\xff\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b.extend(make_batch([b"second"])), ErrorCode.INVALID_RECORD),
        (lambda b: b.clear(), ErrorCode.INVALID_RECORD),
    ],
    ids=["checksum", "magic 1", "magic 0", "cut short", "negative length", "two batches", "nothing"],
)
def test_bad_batches_are_refused_and_leave_no_trace(tmp_path: Path, damage: object, error: ErrorCode) -> None:
    partition = open_partition(tmp_path)
    append(partition, [b"good"])
    batch = bytearray(make_batch([b"one", b"two"]))
    damage(batch)  # type: ignore[operator]
    result = partition.append(memoryview(batch), produce_version=9, max_batch_bytes=1 << 20)
    assert (result.error, result.base_offset) == (error, -1)
    assert result.message
    assert read_all(partition) == [b"good"]


@pytest.mark.parametrize("cut", [1, 5, 60, 61, 100])
def test_a_torn_batch_at_the_end_is_cut_off(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    partition = open_partition(tmp_path)
    append(partition, [b"kept"])
    append(partition, [b"torn" * 30])
    path = next(tmp_path.glob("*.log"))
    size = path.stat().st_size
    os.truncate(path, size - cut)
    with caplog.at_level(logging.WARNING):
        again = open_partition(tmp_path)
    assert read_all(again) == [b"kept"]
    assert str(path) in caplog.text
    assert append(again, [b"next"]).base_offset == 1
    assert read_all(open_partition(tmp_path)) == [b"kept", b"next"]


def test_a_flipped_bit_in_the_last_segment_ends_the_log_there(tmp_path: Path) -> None:
    partition = open_partition(tmp_path)
    positions = []
    for number in range(4):
        positions.append(partition.size_bytes)
        append(partition, [b"%d" % number])
    path = next(tmp_path.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[positions[3] - 1] ^= 1
    path.write_bytes(data)
    again = open_partition(tmp_path)
    assert read_all(again) == [b"0", b"1"]
    assert path.stat().st_size == positions[2]


def test_segments_behind_a_damaged_one_are_set_aside_not_served(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, segment_bytes=150)
    for number in range(5):
        append(partition, [b"%d" % number * 50])
    os.truncate(sorted(tmp_path.glob("*.log"))[2], 30)
    again = open_partition(tmp_path, segment_bytes=150)
    assert again.end_offset == 2
    assert append(again, [b"new"]).base_offset == 2
    assert read_all(again) == [b"0" * 50, b"1" * 50, b"new"]
    assert len(list(tmp_path.glob("*.bad"))) == 2


def test_garbage_in_place_of_a_log_is_cut_off_whole(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(os.urandom(5000))
    partition = open_partition(tmp_path)
    assert partition.end_offset == 0
    assert append(partition, [b"a"]).base_offset == 0


def test_who_waits_hears_of_appends_and_of_the_end(tmp_path: Path) -> None:
    heard: list[object] = []

    class Listener:
        def grown(self, partition: PartitionLog, appended_bytes: int) -> None:
            heard.append((partition.end_offset, appended_bytes))

        def gone(self) -> None:
            heard.append("gone")

    partition = open_partition(tmp_path)
    partition.waiters[Listener()] = None
    append(partition, [b"x"])
    assert append(partition, [b"x"], producer_id=1, producer_epoch=0, base_sequence=5).base_offset == 1
    append(partition, [b"x"], producer_id=1, producer_epoch=0, base_sequence=5)  # a duplicate: nothing new
    size = partition.size_bytes // 2
    partition.mark_deleted()
    assert heard == [(1, size), (2, size), "gone"]
