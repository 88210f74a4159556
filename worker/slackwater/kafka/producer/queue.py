"""The batches of one partition, in order, and their sequence numbers (KIP-98, KIP-360).

A broker stores a producer's batches of a partition only in the order of their sequence numbers, and
answers one that it has already with success, as long as it is among the last five. So:

* A batch keeps its number and its bytes until its outcome is known, however often it is sent.
* After a failure the oldest batch without an outcome is sent alone, and the others after it.
* A batch that is given up leaves a gap, which the broker would refuse to go past. No new batch is sent
  until the outcome of all that are under way is known; then the partition goes on with the next epoch,
  from sequence 0, which the broker takes as a new beginning. Each partition of an idempotent producer
  has its own epoch: the broker keeps the producer's state by partition.
* Until the broker has stored a first batch of an epoch, only one is sent: a broker without any state of the
  producer takes a batch of any number, and so would take the second without the first.
* OUT_OF_ORDER_SEQUENCE_NUMBER and UNKNOWN_PRODUCER_ID to the oldest batch say that the broker's state is
  not ours (it lost it, or there is such a gap) and that the batch is not stored: it gets a new number
  in the next epoch. To a later batch they mean only that an earlier one is missing.
* The oldest batch, refused as too large, is replaced by two of half its records, in the next epoch
  (KAFKA-3995). A later one waits until it is the oldest, so that the order stays.
* In a transaction nothing is sent after a batch that is given up: the transaction is aborted, and all
  partitions begin at 0 in an epoch that the coordinator gives. The two parts of a batch go on from its
  number: the broker has stored none that came after it.

No clock and no I/O: times are arguments, in monotonic ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from slackwater.kafka.errors import KafkaError, KafkaTimeoutError
from slackwater.kafka.producer.batch import NO_IDENTITY, NO_SEQUENCE, ProducerBatch, ProducerIdAndEpoch
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import ErrorCode

_MAX_EPOCH = 0x7FFF
_MAX_SEQUENCE = 0x7FFFFFFF

_GAP = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


def add_to_sequence(sequence: int, count: int) -> int:
    """Sequence numbers go back to 0 after 2^31 - 1."""
    return (sequence + count) & _MAX_SEQUENCE


class PartitionQueue:
    """Batches of one partition: those waiting, then those in flight. Not thread-safe by itself."""

    def __init__(
        self, tp: TopicPartition, *, idempotent: bool, max_in_flight: int, transactional: bool = False
    ) -> None:
        self.tp = tp
        self.waiting: deque[ProducerBatch] = deque()
        """Not numbered yet, oldest first; the last one may still be open."""
        self.under_way: deque[ProducerBatch] = deque()
        """Sent at least once and without an outcome, by sequence."""
        self.identity = NO_IDENTITY
        self.next_sequence = 0
        self._idempotent = idempotent
        self._transactional = transactional
        self._max_in_flight = max_in_flight
        self._begun = not idempotent
        self._gap = False
        self._gap_at = 0
        """In a transaction: the number of the oldest batch that is sent anew."""
        self._renumber: list[ProducerBatch] = []

    def __bool__(self) -> bool:
        return bool(self.waiting or self.under_way or self._renumber)

    def batches(self) -> Iterator[ProducerBatch]:
        """All batches without an outcome, oldest first."""
        yield from self._renumber
        yield from self.under_way
        yield from self.waiting

    @property
    def needs_identity(self) -> bool:
        """Whether it needs a (new) producer id before anything new can be sent."""
        return self._idempotent and self.identity == NO_IDENTITY

    def set_identity(self, identity: ProducerIdAndEpoch) -> None:
        """Gives the partition a producer id, whose sequence starts at 0."""
        self.identity, self.next_sequence = identity, 0
        self._begun = self._gap = False

    # -- sending ---------------------------------------------------------------------------------

    def due_ms(self, linger_ms: float, *, at_once: bool) -> float | None:
        """When :meth:`take` may return a batch; ``None``: not before an answer arrives."""
        if any(not batch.in_flight for batch in self.under_way):
            head = self.under_way[0]
            return None if head.in_flight else head.retry_at_ms
        if not self.waiting or self._gap or self.needs_identity:
            return None
        if len(self.under_way) >= (self._max_in_flight if self._begun else 1):
            return None
        head = self.waiting[0]
        if at_once or head.closed or len(self.waiting) > 1:
            return head.retry_at_ms
        return max(head.retry_at_ms, head.created_ms + linger_ms)

    def take(self, now_ms: float, linger_ms: float, *, at_once: bool) -> ProducerBatch | None:
        """The batch to send now, marked as in flight; ``None`` if there is none."""
        due = self.due_ms(linger_ms, at_once=at_once)
        if due is None or due > now_ms:
            return None
        if self.under_way and not self.under_way[0].in_flight:
            batch = self.under_way[0]
        else:
            batch = self.waiting.popleft()
            batch.closed = True
            if self._idempotent:
                batch.number(self.identity, self.next_sequence)
                self.next_sequence = add_to_sequence(self.next_sequence, batch.count)
            self.under_way.append(batch)
        batch.in_flight = True
        batch.attempts += 1
        return batch

    # -- outcomes --------------------------------------------------------------------------------

    def succeeded(self, batch: ProducerBatch) -> None:
        """Removes a batch that the broker has stored (or had stored before)."""
        batch.in_flight = False
        self._begun = True
        self._remove(batch)
        self._close_gap()

    def to_retry(self, batch: ProducerBatch, error: KafkaError, retry_at_ms: float) -> None:
        """Keeps a batch for another attempt; whether the failed one was stored may be unknown."""
        batch.in_flight = False
        batch.last_error = error
        batch.retry_at_ms = retry_at_ms
        if batch.finished.is_set():
            self.given_up(batch)

    def gap(self, batch: ProducerBatch, code: int, error: KafkaError, retry_at_ms: float) -> bool:
        """Handles an answer with a code of :data:`_GAP`; returns False for any other code."""
        if not self._idempotent or code not in _GAP:
            return False
        if batch.finished.is_set() or not self.under_way or batch is not self.under_way[0]:
            self.to_retry(batch, error, retry_at_ms)
            return True
        if self._transactional and not self._gap:
            return False
        batch.in_flight = False
        batch.last_error = error
        batch.retry_at_ms = retry_at_ms
        self.under_way.popleft()
        self._renumber.append(batch)
        self._gap = True
        self._close_gap()
        return True

    def split(self, batch: ProducerBatch, error: KafkaError, retry_at_ms: float) -> None:
        """Has the records of a batch that the broker refuses as too large sent in two."""
        if batch.finished.is_set() or batch is not self.under_way[0]:
            self.to_retry(batch, error, retry_at_ms)
            return
        self.under_way.popleft()
        if self._idempotent:
            if not self._gap:
                self._gap_at = batch.base_sequence
            self._renumber += batch.split()
            self._gap = True
            self._close_gap()
        else:
            self.waiting.extendleft(reversed(batch.split()))

    def given_up(self, batch: ProducerBatch) -> None:
        """Removes a batch for good. After a numbered batch the partition continues in the next epoch."""
        batch.in_flight = False
        numbered = batch.base_sequence != NO_SEQUENCE
        self._remove(batch)
        if self._idempotent and numbered and not self._transactional:
            self._gap = True
        self._close_gap()

    def expire(self, now_ms: float) -> list[ProducerBatch]:
        """Fails and returns the batches whose delivery deadline has passed.

        A batch in flight stays until its answer arrives (its number is still in use), the others are
        given up.
        """
        late = [b for b in self.batches() if b.deadline_ms <= now_ms and not b.finished.is_set()]
        for batch in late:
            cause = f"; last error: {batch.last_error}" if batch.last_error else ""
            waited = int(now_ms - batch.created_ms)
            batch.finish(
                error=KafkaTimeoutError(
                    f"{batch.count} record(s) to {batch.tp} were not acknowledged within delivery_timeout_ms "
                    f"({waited} ms, {batch.attempts} attempt(s)){cause}"
                )
            )
            if not batch.in_flight:
                self.given_up(batch)
        return late

    def next_deadline_ms(self) -> float | None:
        """The earliest delivery deadline among batches whose senders still wait."""
        return min((b.deadline_ms for b in self.batches() if not b.finished.is_set()), default=None)

    def _remove(self, batch: ProducerBatch) -> None:
        for place in (self.under_way, self.waiting, self._renumber):
            if batch in place:
                place.remove(batch)
                return

    def _close_gap(self) -> None:
        if not self._gap or self.under_way:
            return
        self._gap = False
        for batch in reversed(self._renumber):
            batch.base_sequence = NO_SEQUENCE
            self.waiting.appendleft(batch)
        self._renumber = []
        if self._transactional:
            self.next_sequence = self._gap_at
            return
        producer_id, epoch = self.identity
        self.set_identity(ProducerIdAndEpoch(producer_id, epoch + 1) if epoch < _MAX_EPOCH else NO_IDENTITY)
