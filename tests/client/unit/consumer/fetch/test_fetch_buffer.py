"""What was fetched and not yet handed over: order, limits, pauses, jumps, unreadable batches."""

from __future__ import annotations

import pytest

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.fetch.buffer import Chunk, FetchBuffer
from slackwater.kafka.consumer.iteration import RecordIterator
from slackwater.kafka.errors import CorruptRecordError
from slackwater.kafka.protocol.subscription import EARLIEST, Subscription
from slackwater.kafka.records import BatchBuilder, RecordColumns, stamp_crc
from slackwater.kafka.structs import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(base: int, count: int, codec: str = "none", size: int = 1) -> bytes:
    builder = BatchBuilder(codec, 1_000_000)
    for number in range(count):
        assert builder.append(1_000 + number, None, b"%d" % (base + number) * size, [])
    return builder.build(base_offset=base)


class Bench:
    def __init__(self) -> None:
        self.subscription = Subscription()
        self.subscription.assign_by_user([A, B])
        for tp in (A, B):
            self.subscription.seek(tp, 0)
        self.room = 0
        self.buffer = FetchBuffer(self.subscription, check_crcs=True, on_room=self._on_room)

    def _on_room(self) -> None:
        self.room += 1

    def add(self, tp: TopicPartition, base: int, count: int, data: bytes | None = None) -> None:
        version = self.subscription.get(tp).version
        self.buffer.add(Chunk(tp, batch(base, count) if data is None else data, base, base + count, version))

    def collect(self, limit: int = 1_000) -> dict[TopicPartition, list[int]]:
        collected = self.buffer.collect(limit)
        return {tp: [record.offset for record in rows.records(*tp)] for tp, rows in collected.items()}

    def position(self, tp: TopicPartition) -> int | None:
        return self.subscription.get(tp).position


def test_records_come_in_order_within_the_limit_and_move_the_position() -> None:
    bench = Bench()
    bench.add(A, 0, 5)
    bench.add(B, 0, 3)
    bench.add(A, 5, 5)
    assert bench.collect(7) == {A: [0, 1, 2, 3, 4], B: [0, 1]}
    assert (bench.position(A), bench.position(B)) == (5, 2)
    assert bench.room == 1
    assert bench.collect(2) == {B: [2], A: [5]}
    assert bench.collect() == {A: [6, 7, 8, 9]}
    assert bench.collect() == {}
    assert bench.buffer.total_bytes == 0
    assert bench.buffer.held_bytes(A) == 0


def test_all_that_waits_is_given_at_once_however_small_its_pieces() -> None:
    """Else a topic of small batches would come by the one: as many polls as batches."""
    bench = Bench()
    for base in range(0, 30, 3):
        bench.add(A, base, 3)
    assert bench.collect(20) == {A: list(range(20))}
    assert bench.position(A) == 20
    assert bench.collect(20) == {A: list(range(20, 30))}
    assert bench.position(A) == 30


def test_what_stands_before_an_unreadable_piece_is_given_first() -> None:
    bench = Bench()
    bench.add(A, 0, 3)
    bench.add(A, 3, 3)
    broken = bytearray(batch(6, 3))
    broken[-1] ^= 1
    bench.add(A, 6, 3, bytes(broken))
    bench.add(A, 9, 3)
    assert bench.collect() == {A: list(range(6))}
    with pytest.raises(CorruptRecordError):
        bench.collect()
    assert bench.position(A) == 6


def test_paused_partitions_keep_their_place() -> None:
    bench = Bench()
    bench.add(A, 0, 2)
    bench.add(B, 0, 2)
    bench.subscription.get(A).paused = True
    assert bench.collect() == {B: [0, 1]}
    assert bench.collect() == {}
    assert not bench.buffer.has_ready()
    bench.subscription.get(A).paused = False
    assert bench.collect() == {A: [0, 1]}


def test_a_jump_makes_what_was_fetched_before_it_stale() -> None:
    bench = Bench()
    bench.add(A, 0, 5)
    assert bench.collect(2) == {A: [0, 1]}
    bench.subscription.seek(A, 100)
    assert bench.collect() == {}
    assert (bench.position(A), bench.buffer.total_bytes) == (100, 0)
    bench.add(B, 0, 2)
    bench.subscription.remove([B])
    bench.buffer.drop_stale()
    assert (len(bench.buffer), bench.buffer.total_bytes) == (0, 0)


def test_what_was_decoded_while_the_partition_jumped_is_not_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.add(A, 0, 5)
    decoded = bench.buffer._decoded

    def jump(chunk: Chunk) -> RecordColumns | None:
        columns = decoded(chunk)
        bench.subscription.seek(A, 100)
        return columns

    monkeypatch.setattr(bench.buffer, "_decoded", jump)
    assert bench.collect() == {}
    assert (bench.position(A), bench.buffer.total_bytes) == (100, 0)


def test_records_below_the_position_are_left_out_and_their_batch_counts_as_read() -> None:
    bench = Bench()
    bench.subscription.seek(A, 3)
    version = bench.subscription.get(A).version
    bench.buffer.add(Chunk(A, batch(0, 5), 3, 5, version))
    assert bench.collect() == {A: [3, 4]}


def test_a_batch_that_cannot_be_read_comes_after_what_stands_before_it() -> None:
    bench = Bench()
    broken = bytearray(batch(3, 3))
    broken[-1] ^= 1
    bench.add(A, 0, 6, batch(0, 3) + bytes(broken))
    bench.add(A, 6, 2)
    before = bench.subscription.get(A).version
    assert bench.collect() == {A: [0, 1, 2]}
    # What was fetched behind the broken batch must not be handed over before it.
    assert bench.subscription.get(A).version != before
    assert bench.position(A) == 3
    assert bench.collect() == {}
    bench.add(A, 3, 3, bytes(broken))
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="t-0 at offset 3") as caught:
            bench.collect()
        assert caught.value.offset == 3
    bench.subscription.seek(A, 6)
    bench.add(A, 6, 2)
    assert bench.collect() == {A: [6, 7]}


def test_iteration_commits_no_further_than_it_gave() -> None:
    bench = Bench()
    iterator, config = RecordIterator(), ConsumerConfig()
    seeks: list[tuple[TopicPartition, int]] = []

    def following() -> int | None:
        record = iterator.next(bench.subscription, lambda tp, offset: seeks.append((tp, offset)))
        return None if record is None else record.offset

    bench.add(A, 0, 4)
    iterator.load(bench.buffer.collect(10), bench.subscription, config)
    assert bench.position(A) == 0
    assert (following(), bench.position(A)) == (0, 1)
    bench.subscription.get(A).paused = True
    assert following() is None
    assert seeks == [(A, 1)]
    bench.add(B, 0, 2)
    iterator.load(bench.buffer.collect(10), bench.subscription, config)
    assert following() == 0
    bench.subscription.seek(B, 50)
    assert (following(), bench.position(B)) == (None, 50)


def test_a_batch_that_unfolds_beyond_the_limit_is_refused_with_the_option_to_raise() -> None:
    bench = Bench()
    builder = BatchBuilder("lz4", 1_000_000)
    assert builder.append(1_000, None, bytes(100_000), [])
    folded = builder.build()
    bench.buffer = FetchBuffer(
        bench.subscription, check_crcs=True, max_decompressed_bytes=50_000, on_room=bench._on_room
    )
    bench.add(A, 0, 1, folded)
    with pytest.raises(CorruptRecordError, match=r"fetch\.max\.decompressed") as caught:
        bench.collect()
    assert (caught.value.topic_partition, caught.value.offset) == (A, 0)


@pytest.mark.parametrize(("aborted", "given"), [(None, {A: [0, 1, 2]}), ([], {A: [0, 1, 2]}), ([(7, 0)], {})])
def test_records_of_aborted_transactions_are_passed_over(
    aborted: list[tuple[int, int]] | None, given: dict[TopicPartition, list[int]]
) -> None:
    bench = Bench()
    builder = BatchBuilder("none", 1_000_000)
    for _ in range(3):
        assert builder.append(1_000, None, b"x", [])
    data = bytearray(builder.build(producer_id=7, producer_epoch=0, base_sequence=0))
    data[22] |= 0x10  # transactional
    stamp_crc(data)
    bench.buffer.add(Chunk(A, bytes(data), 0, 3, bench.subscription.get(A).version, aborted))
    assert bench.collect() == given
    assert (bench.position(A), bench.buffer.total_bytes) == (3, 0)


def test_paused_partitions_give_way_youngest_first_and_only_as_far_as_needed() -> None:
    bench = Bench()
    for tp in (A, B):
        bench.add(tp, 0, 50)
        bench.subscription.get(tp).paused = True
    held_bytes = bench.buffer.held_bytes(A)
    assert bench.buffer.drop_paused(2 * held_bytes) == set()
    assert bench.buffer.drop_paused(held_bytes) == {B}
    assert (bench.buffer.held_bytes(A), bench.buffer.total_bytes) == (held_bytes, held_bytes)
    bench.subscription.get(A).paused = False
    assert bench.buffer.drop_paused(0) == set()
    assert bench.collect() == {A: list(range(50))}
    assert bench.position(B) == 0


def test_a_position_has_the_leader_epoch_of_the_record_before_it_for_commits() -> None:
    bench = Bench()
    version = bench.subscription.get(A).version
    epochs = [(3, 1), (5, 2)]
    bench.buffer.add(Chunk(A, batch(0, 5), 0, 5, version, None, epochs))
    bench.collect(2)
    assert [bench.subscription.epoch_before(A, offset) for offset in range(4)] == [-1, 1, 1, -1]
    bench.collect()
    assert [bench.subscription.epoch_before(A, offset) for offset in range(1, 6)] == [1, 1, 1, 2, 2]
    bench.subscription.reset(A, EARLIEST)
    assert bench.subscription.epoch_before(A, 5) == -1
    assert bench.subscription.epoch_before(TopicPartition("other", 0), 5) == -1


def _broken(what: str) -> tuple[bytes, dict[str, int]]:
    """A batch of offsets 3 to 5 that cannot be read, and the buffer's options."""
    data = bytearray(batch(3, 3))
    if what == "checksum":
        data[-1] ^= 1
        return bytes(data), {}
    if what == "magic":
        data[16] = 3
        return bytes(data), {}
    if what == "size":
        return bytes(batch(3, 3, "gzip")), {"max_decompressed_bytes": 5}
    data[22] |= {"codec": 7, "compression": 4}[what]
    stamp_crc(data)
    return bytes(data), {}


@pytest.mark.parametrize("what", ["checksum", "magic", "size", "codec", "compression"])
def test_the_error_of_an_unreadable_batch_names_its_place_and_has_its_bytes(what: str) -> None:
    bench = Bench()
    data, options = _broken(what)
    bench.buffer = FetchBuffer(bench.subscription, check_crcs=True, on_room=bench._on_room, **options)
    bench.subscription.seek(A, 4)
    version = bench.subscription.get(A).version
    bench.buffer.add(Chunk(A, data + batch(6, 2), 4, 8, version))
    with pytest.raises(CorruptRecordError) as caught:
        bench.collect()
    error = caught.value
    assert (error.topic_partition, error.position, error.batch) == (A, 4, data)
    assert (error.offset, error.last_offset, error.next_offset) == (3, 5, 6)


def test_a_damaged_header_does_not_reach_beyond_the_batch_that_follows() -> None:
    bench = Bench()
    data = bytearray(batch(0, 3))
    data[23:27] = (1_000_000).to_bytes(4, "big")  # last offset delta
    bench.buffer.add(Chunk(A, bytes(data) + batch(3, 2), 0, 5, bench.subscription.get(A).version))
    with pytest.raises(CorruptRecordError) as caught:
        bench.collect()
    assert caught.value.next_offset == 3


def test_what_many_partitions_decompress_to_is_handed_over_by_the_limit_of_one() -> None:
    bench = Bench()
    bench.buffer = FetchBuffer(
        bench.subscription, check_crcs=True, on_room=bench._on_room, max_decompressed_bytes=1_100
    )
    for tp in (A, B):
        for base in range(2):
            bench.add(tp, base, 1, batch(base, 1, "gzip", 1_000))
    assert [bench.collect() for _ in range(2)] == [{A: [0, 1]}, {B: [0, 1]}]
