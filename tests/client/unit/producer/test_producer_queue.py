"""Sequence numbers against a broker that checks them as Kafka's does, through every kind of failure.

The queue has no clock and no network, so whole lives of a producer run here in virtual time.
"""

from __future__ import annotations

import random

import pytest

from slackwater.kafka.errors import KafkaConnectionError, KafkaTimeoutError, for_code
from slackwater.kafka.producer.batch import ProducerBatch, ProducerIdAndEpoch
from slackwater.kafka.producer.queue import PartitionQueue, add_to_sequence
from slackwater.kafka.records import BatchBuilder, decode, iter_batches
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import ErrorCode

TP = TopicPartition("t", 0)
LOST = KafkaConnectionError("connection lost")
REMEMBERED = 5


class Log:
    """One partition of a broker: its producer state, by Kafka's ``ProducerAppendInfo``."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.state: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        """producer id -> epoch and the last batches: first and last sequence, base offset."""
        self.refuse: set[bytes] = set()

    def produce(self, data: bytes) -> tuple[int, int]:
        """Error code and base offset."""
        head = next(iter_batches(data))
        values = [record.value or b"" for record in decode(data, fetch_offset=0).records("t", 0)]
        last = add_to_sequence(head.base_sequence, head.record_count - 1)
        epoch, known = self.state.get(head.producer_id, (-1, []))
        if self.refuse & set(values):
            return ErrorCode.INVALID_RECORD, -1
        if head.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if head.producer_epoch > epoch >= 0:
            if head.base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            known = []
        for first, end, offset in known:
            if (first, end) == (head.base_sequence, last):
                return ErrorCode.NONE, offset
        if known and add_to_sequence(known[-1][1], 1) != head.base_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = len(self.values)
        self.values += values
        kept = [*known, (head.base_sequence, last, offset)][-REMEMBERED:]
        self.state[head.producer_id] = (head.producer_epoch, kept)
        return ErrorCode.NONE, offset


def make_queue(max_in_flight: int = 5) -> PartitionQueue:
    queue = PartitionQueue(TP, idempotent=True, max_in_flight=max_in_flight)
    queue.set_identity(ProducerIdAndEpoch(7, 0))
    return queue


def begun(max_in_flight: int = 5) -> PartitionQueue:
    """A queue whose first batch, of number 0, is stored."""
    queue = make_queue(max_in_flight)
    batch = add(queue, "first")
    assert take(queue) is batch
    queue.succeeded(batch)
    return queue


def add(queue: PartitionQueue, *values: str, now: float = 0.0, deadline: float = 1e9) -> ProducerBatch:
    batch = ProducerBatch(TP, BatchBuilder("none", 1 << 16), now, deadline)
    for value in values:
        batch.builder.append(1, None, value.encode(), None)
    batch.closed = True
    queue.waiting.append(batch)
    return batch


def take(queue: PartitionQueue, now: float = 0.0) -> ProducerBatch | None:
    return queue.take(now, 0.0, at_once=False)


def take_all(queue: PartitionQueue, now: float = 0.0) -> list[ProducerBatch]:
    batches = []
    while (batch := take(queue, now)) is not None:
        batches.append(batch)
    return batches


def refused(queue: PartitionQueue, batch: ProducerBatch, code: int) -> bool:
    return queue.gap(batch, code, for_code(code), 0.0)


def test_batches_are_numbered_in_order_and_bounded() -> None:
    queue = begun()
    for n in range(7):
        add(queue, *"ab"[: 1 + n % 2])
    taken = take_all(queue)
    assert [batch.base_sequence for batch in taken] == [1, 2, 4, 5, 7]
    queue.succeeded(taken[0])
    assert [batch.base_sequence for batch in take_all(queue)] == [8]


def test_the_first_batch_of_an_epoch_goes_alone() -> None:
    """A broker that knows nothing of a producer takes any number, and so the second without the first."""
    queue = make_queue()
    a, b = add(queue, "a"), add(queue, "b")
    assert take_all(queue) == [a]
    queue.succeeded(a)
    assert take_all(queue) == [b]
    plain = PartitionQueue(TP, idempotent=False, max_in_flight=5)
    a, b = add(plain, "a"), add(plain, "b")
    assert take_all(plain) == [a, b]


def test_an_open_batch_lingers_and_a_full_one_does_not() -> None:
    queue = begun()
    batch = add(queue, "a", now=100.0)
    batch.closed = False
    assert queue.due_ms(5.0, at_once=False) == 105.0
    assert queue.due_ms(5.0, at_once=True) == 0.0
    assert queue.take(104.9, 5.0, at_once=False) is None
    assert queue.take(105.0, 5.0, at_once=False) is batch
    assert batch.closed
    first = add(queue, "b", now=200.0)
    first.closed = False
    add(queue, "c", now=200.0).closed = False
    assert queue.take(200.0, 5.0, at_once=False) is first


def test_without_a_producer_id_nothing_goes_out() -> None:
    queue = PartitionQueue(TP, idempotent=True, max_in_flight=5)
    add(queue, "a")
    assert queue.needs_identity
    assert take(queue) is None
    queue.set_identity(ProducerIdAndEpoch(7, 0))
    assert take(queue) is not None


def test_a_retry_is_the_same_bytes_alone_and_first() -> None:
    queue = begun()
    for value in "abc":
        add(queue, value)
    a, b, c = take_all(queue)
    bytes_of_a = a.payload()
    queue.to_retry(a, LOST, 50.0)
    assert take(queue, 49.0) is None
    queue.to_retry(b, LOST, 60.0)
    queue.to_retry(c, LOST, 60.0)
    add(queue, "d")
    assert take(queue, 50.0) is a
    assert a.payload() is bytes_of_a
    assert a.attempts == 2
    assert take(queue, 99.0) is None
    queue.succeeded(a)
    assert take_all(queue, 99.0) == [b]
    queue.succeeded(b)
    assert [batch.base_sequence for batch in take_all(queue, 99.0)] == [c.base_sequence, 4]


def test_out_of_order_behind_a_failed_one_is_only_a_retry() -> None:
    queue = begun()
    add(queue, "a")
    add(queue, "b")
    a, b = take_all(queue)
    queue.to_retry(a, LOST, 0.0)
    assert refused(queue, b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert take(queue) is a
    queue.succeeded(a)
    assert take(queue) is b
    assert (b.identity.epoch, b.base_sequence) == (0, 2)


def test_a_batch_given_up_makes_the_rest_go_on_in_the_next_epoch() -> None:
    queue, log = make_queue(), Log()
    log.refuse = {b"b"}
    a, b, c, d = (add(queue, value) for value in "abcd")
    assert take_all(queue) == [a]
    assert log.produce(a.payload()) == (0, 0)
    queue.succeeded(a)
    assert take_all(queue) == [b, c, d]
    assert log.produce(b.payload())[0] == ErrorCode.INVALID_RECORD
    queue.given_up(b)
    late = add(queue, "e")
    for batch in (c, d):
        code, _ = log.produce(batch.payload())
        assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert take(queue) is None
        assert refused(queue, batch, code)
    for number, batch in enumerate((c, d, late)):
        assert take(queue) is batch
        assert (batch.identity.epoch, batch.base_sequence) == (1, number)
        assert log.produce(batch.payload())[0] == 0
        queue.succeeded(batch)
    assert log.values == [b"a", b"c", b"d", b"e"]


def test_a_broker_that_lost_our_state_gets_a_new_epoch() -> None:
    queue = begun()
    add(queue, "a")
    add(queue, "b")
    a, b = take_all(queue)
    assert refused(queue, a, ErrorCode.UNKNOWN_PRODUCER_ID)
    assert take(queue) is None
    assert refused(queue, b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert take_all(queue) == [a]
    queue.succeeded(a)
    assert take_all(queue) == [b]
    assert [(x.identity.epoch, x.base_sequence) for x in (a, b)] == [(1, 0), (1, 1)]


def test_other_errors_are_not_gaps() -> None:
    queue = make_queue()
    batch = add(queue, "a")
    take(queue)
    assert not refused(queue, batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    plain = PartitionQueue(TP, idempotent=False, max_in_flight=5)
    batch = add(plain, "a")
    assert take(plain) is batch
    assert batch.base_sequence == -1
    assert not refused(plain, batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_after_the_last_epoch_a_new_producer_id_is_needed() -> None:
    queue = make_queue()
    queue.set_identity(ProducerIdAndEpoch(7, 0x7FFF))
    batch = add(queue, "a")
    take(queue)
    queue.given_up(batch)
    assert queue.needs_identity


def test_sequence_numbers_wrap() -> None:
    assert add_to_sequence(0x7FFFFFFF, 1) == 0
    assert add_to_sequence(0x7FFFFFFE, 5) == 3


def test_expiry_tells_everyone_and_skips_no_number_silently() -> None:
    queue = begun()
    in_flight = add(queue, "a", deadline=10.0)
    to_retry = add(queue, "b", deadline=10.0)
    take_all(queue)
    waiting = add(queue, "c", deadline=10.0)
    later = add(queue, "d", deadline=20.0)
    queue.to_retry(to_retry, LOST, 99.0)
    assert queue.next_deadline_ms() == 10.0
    assert queue.expire(9.9) == []
    assert queue.expire(10.0) == [in_flight, to_retry, waiting]
    for batch in (in_flight, to_retry, waiting):
        assert isinstance(batch.error, KafkaTimeoutError)
    assert "connection lost" in str(to_retry.error)
    assert queue.next_deadline_ms() == 20.0
    assert take(queue, 15.0) is None, "the first batch may be stored yet"
    queue.succeeded(in_flight)
    assert take(queue, 15.0) is later
    assert (later.identity.epoch, later.base_sequence) == (1, 0)


def test_a_batch_that_never_left_costs_no_epoch() -> None:
    queue = make_queue()
    gone = add(queue, "a", deadline=10.0)
    kept = add(queue, "b", deadline=20.0)
    assert queue.expire(10.0) == [gone]
    assert take(queue, 10.0) is kept
    assert (kept.identity.epoch, kept.base_sequence) == (0, 0)


@pytest.mark.parametrize("seed", range(150))
def test_every_record_once_and_in_order_through_random_failures(seed: int) -> None:
    """Requests and answers get lost, records are refused, deadlines pass, the broker forgets the producer."""
    rng = random.Random(seed)
    queue, log = make_queue(rng.randint(1, 5)), Log()
    sent: list[bytes] = []
    pending: list[tuple[ProducerBatch, tuple[int, int] | None]] = []
    batches: list[ProducerBatch] = []
    now = 0.0
    while len(sent) < 60 or queue:
        now += rng.random()
        if len(sent) < 60 and rng.random() < 0.5:
            values = [f"{len(sent) + n}" for n in range(rng.randint(1, 3))]
            sent += [value.encode() for value in values]
            batches.append(add(queue, *values, now=now, deadline=now + rng.choice([3.0, 1e9])))
            if rng.random() < 0.03:
                log.refuse.add(values[-1].encode())
        queue.expire(now)
        while rng.random() < 0.8 and (batch := take(queue, now)) is not None:
            # The connection may die before the request arrives, or before the answer comes back.
            answer = None if rng.random() < 0.15 else log.produce(batch.payload())
            pending.append((batch, None if rng.random() < 0.15 else answer))
        while pending and rng.random() < 0.6:
            batch, outcome = pending.pop(0)
            if outcome is None:
                queue.to_retry(batch, LOST, now + rng.random())
                lost, pending = pending, []
                for other, _ in lost:
                    queue.to_retry(other, LOST, now + rng.random())
            elif outcome[0] == 0:
                queue.succeeded(batch)
                batch.finish(offset=outcome[1])
            elif not refused(queue, batch, outcome[0]):
                assert outcome[0] == ErrorCode.INVALID_RECORD
                queue.given_up(batch)
                batch.finish(error=for_code(outcome[0]))
    stored = log.values
    assert len(stored) == len(set(stored)), "stored twice"
    assert [int(v) for v in stored] == sorted(int(v) for v in stored), "out of order"
    for batch in batches:
        assert batch.finished.is_set()
        if batch.error is None:
            expected = [r.value or b"" for r in decode(batch.payload(), fetch_offset=0).records("t", 0)]
            at = batch.base_offset
            assert stored[at : at + batch.count] == expected
