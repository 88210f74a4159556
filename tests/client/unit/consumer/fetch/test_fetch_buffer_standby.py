"""What is fetched ahead of an assignment: kept and not handed over, and skipped to any offset."""

from __future__ import annotations

import pytest

from slackwater.kafka.consumer.fetch.buffer import Chunk, FetchBuffer
from slackwater.kafka.errors import CorruptRecordError
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.records import BatchBuilder, measure, set_base_offset, stamp_crc
from slackwater.kafka.structs import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(base: int, count: int, *, epoch: int = 3, aborted: int | None = None) -> bytes:
    """``aborted``: the producer whose transaction it is part of."""
    builder = BatchBuilder("none", 1_000_000)
    for number in range(count):
        assert builder.append(1_000 + number, None, b"%d" % (base + number), [])
    if aborted is None:
        data = bytearray(builder.build())
    else:
        data = bytearray(builder.build(producer_id=aborted, producer_epoch=0, base_sequence=0))
        data[22] |= 0x10  # transactional
        stamp_crc(data)
    set_base_offset(data, 0, base, epoch)
    return bytes(data)


def abort_marker(base: int, producer: int) -> bytes:
    builder = BatchBuilder("none", 1_000)
    assert builder.append(1_000, b"\0\0\0\0", b"\0\0\0\0\0\0", [])
    data = bytearray(builder.build(producer_id=producer, producer_epoch=0, base_sequence=-1))
    data[22] |= 0x30  # transactional, control
    stamp_crc(data)
    set_base_offset(data, 0, base, 3)
    return bytes(data)


class Bench:
    """A consumer in standby that has 10 to 14 (epoch 3) and 15 to 19 (epoch 4) in one chunk, 20 to 24 in
    another."""

    def __init__(self) -> None:
        self.subscription = Subscription()
        self.subscription.stand_by(["t"], None)
        self.room = 0
        self.buffer = FetchBuffer(self.subscription, check_crcs=True, on_room=self._on_room)
        self.subscription.fetch_ahead(A, 10)
        self.ahead = self.subscription.prefetched[A]
        self.add(10, batch(10, 5) + batch(15, 5, epoch=4))
        self.add(20, batch(20, 5, epoch=4))

    def _on_room(self) -> None:
        self.room += 1

    def add(
        self, offset: int, data: bytes, tp: TopicPartition = A, aborted: list[tuple[int, int]] | None = None
    ) -> None:
        extent, version = measure(data, offset), self.subscription.prefetched[tp].version
        self.buffer.add(Chunk(tp, data, offset, extent.next_offset, version, aborted, extent.epochs))

    def skip(self, offset: int) -> None:
        self.buffer.skip_to({self.ahead: offset})

    def adopt(self) -> None:
        self.subscription.end_standby()
        self.subscription.add([A])
        self.subscription.adopt(self.subscription.get(A))

    def collect(self) -> list[int]:
        collected = self.buffer.collect(1_000)
        assert set(collected) <= {A}
        return [record.offset for rows in collected.values() for record in rows.records(*A)]

    def rest(self) -> list[int]:
        offsets: list[int] = []
        while more := self.collect():
            offsets += more
        return offsets


@pytest.mark.parametrize(
    ("offset", "chunks", "epoch"),
    [
        (10, 2, -1),  # where it is: the record before was never fetched
        (11, 2, 3),
        (14, 2, 3),  # inside a batch
        (15, 2, 3),  # the record before is the last of the older epoch
        (16, 2, 4),
        (19, 2, 4),  # one before the chunk's end
        (20, 1, 4),  # at its end
        (21, 1, 4),
        (24, 1, 4),
        (25, 0, 4),  # where fetching goes on
        (26, 0, -1),  # beyond all that was fetched
    ],
)
def test_prefetched_records_are_skipped_up_to_an_offset(offset: int, chunks: int, epoch: int) -> None:
    bench = Bench()
    bench.skip(offset)
    assert (len(bench.buffer), bench.room) == (chunks, int(chunks < 2))
    assert (bench.ahead.position, bench.ahead.leader_epoch) == (offset, epoch)
    # A second time changes nothing: the epoch is known from the first.
    bench.skip(offset)
    assert (len(bench.buffer), bench.ahead.leader_epoch) == (chunks, epoch)
    bench.adopt()
    assert bench.rest() == list(range(offset, 25))
    assert bench.subscription.get(A).position == max(offset, 25)
    assert (bench.buffer.total_bytes, bench.buffer.held_bytes(A)) == (0, 0)


def test_each_partition_is_skipped_on_its_own_and_repeatedly() -> None:
    bench = Bench()
    bench.subscription.fetch_ahead(B, 0)
    bench.add(0, batch(0, 5), B)
    for offset in (12, 12, 17, 20, 22):
        bench.skip(offset)
    assert bench.buffer.held_bytes(B) == len(batch(0, 5))
    bench.adopt()
    assert bench.rest() == [22, 23, 24]
    assert bench.buffer.held_bytes(B) == len(batch(0, 5)) == bench.buffer.total_bytes


def test_what_is_not_assigned_yet_is_kept_and_not_handed_over() -> None:
    bench = Bench()
    held = bench.buffer.total_bytes
    for _ in range(2):
        assert bench.collect() == []
        assert not bench.buffer.has_ready()
        # It is not what gives way to others, or it would be fetched over and over.
        assert bench.buffer.drop_paused(0) == set()
        bench.buffer.drop_stale()
        bench.subscription.add([])
    bench.subscription.end_standby()
    bench.subscription.add([A])
    assert (bench.collect(), bench.buffer.total_bytes, bench.room) == ([], held, 0)
    bench.subscription.adopt(bench.subscription.get(A))
    assert bench.buffer.has_ready()
    bench.subscription.get(A).paused = True
    assert bench.collect() == []
    bench.subscription.get(A).paused = False
    assert bench.rest() == list(range(10, 25))


@pytest.mark.parametrize(
    "how", ["kept no more", "fetched from elsewhere", "a later leader", "assigned and sought"]
)
def test_what_was_prefetched_is_dropped_once_it_is_stale(how: str) -> None:
    bench = Bench()
    if how == "kept no more":
        bench.subscription.keep_ahead([B])
    elif how == "fetched from elsewhere":
        bench.subscription.fetch_ahead(A, 5)
    elif how == "a later leader":
        bench.subscription.follow_ahead(bench.ahead, 4)
        bench.buffer.drop_stale()
        assert len(bench.buffer) == 2
        bench.subscription.follow_ahead(bench.ahead, 5)
    else:
        bench.subscription.end_standby()
        bench.subscription.add([A])
        bench.subscription.seek(A, 12)
    bench.buffer.drop_stale()
    assert (len(bench.buffer), bench.buffer.total_bytes, bench.room) == (0, 0, 1)


@pytest.mark.parametrize("offset", [10, 12, 15, 16, 18])
def test_aborted_transactions_end_although_their_beginning_is_skipped(offset: int) -> None:
    """Their markers are below the offset, and what the same producer committed after is not lost."""
    bench = Bench()
    bench.subscription.fetch_ahead(A, 10)
    bench.ahead = bench.subscription.prefetched[A]
    data = batch(10, 5, aborted=7) + abort_marker(15, 7) + batch(16, 4, aborted=7)
    bench.add(10, data, aborted=[(7, 10)])
    bench.skip(offset)
    bench.adopt()
    assert bench.rest() == list(range(max(offset, 16), 20))


def with_a_broken_batch() -> Bench:
    bench = Bench()
    bench.subscription.fetch_ahead(A, 10)
    bench.ahead = bench.subscription.prefetched[A]
    broken = bytearray(batch(10, 5))
    broken[-1] ^= 1
    bench.add(10, bytes(broken) + batch(15, 5))
    return bench


@pytest.mark.parametrize("offset", [15, 17])
def test_a_batch_that_was_skipped_need_not_be_readable(offset: int) -> None:
    """The member before has passed over it: what follows is fetched anew, and no record is lost to it."""
    bench = with_a_broken_batch()
    bench.skip(offset)
    bench.adopt()
    state = bench.subscription.get(A)
    version = state.version
    assert bench.rest() == []
    assert (state.position, state.version > version, len(bench.buffer)) == (offset, True, 0)


def test_an_unreadable_batch_that_is_not_skipped_is_reported() -> None:
    bench = with_a_broken_batch()
    bench.skip(14)
    bench.adopt()
    with pytest.raises(CorruptRecordError, match="seek to offset 15"):
        bench.collect()
