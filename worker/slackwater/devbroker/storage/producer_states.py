"""The states of a partition's idempotent producers (KIP-98).

A broker keeps the last five batches of every producer id, answers a repeated one with the offset
it already has, and refuses a gap. The rules are those of Kafka's ``ProducerAppendInfo`` and
``ProducerStateEntry``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from slackwater.kafka.records import BatchHeader
from slackwater.kafka.wire.errors import ErrorCode

RETAINED_BATCHES = 5
_SEQUENCES = 2**31


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """A batch in the log: its sequence numbers, offset and timestamp."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    max_timestamp_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[AppendedBatch]


class ProducerError(Exception):
    """A batch that must not be appended; ``code`` is the error for the producer."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ProducerStates:
    """The producers of one partition. It is rebuilt by :meth:`appended` when the log is read."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """Checks a batch before it is appended.

        ``None``: append it. An :class:`AppendedBatch`: it is already there, answer with that
        offset. Raises :class:`ProducerError` with INVALID_PRODUCER_EPOCH for an older epoch and
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap. A producer id that this partition has never seen
        may start anywhere.
        """
        known = self._producers.get(header.producer_id)
        if header.producer_id < 0 or known is None:
            return None
        who = f"producer {header.producer_id}"
        if header.producer_epoch < known.epoch:
            raise ProducerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{who} has epoch {known.epoch}, the batch has {header.producer_epoch}",
            )
        first = header.base_sequence
        if header.producer_epoch > known.epoch:
            if first != 0:
                raise ProducerError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{who} starts epoch {header.producer_epoch} at sequence {first}, not at 0",
                )
            return None
        last = _last_sequence(header)
        for batch in known.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        expected = (known.batches[-1].last_sequence + 1) % _SEQUENCES
        if first != expected:
            raise ProducerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{who} sent sequence {first}, expected {expected}",
            )
        return None

    def appended(self, header: BatchHeader, base_offset: int) -> None:
        """Records a batch that is in the log at ``base_offset``."""
        if header.producer_id < 0:
            return
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            known = _Producer(header.producer_epoch, deque(maxlen=RETAINED_BATCHES))
            self._producers[header.producer_id] = known
        known.batches.append(
            AppendedBatch(header.base_sequence, _last_sequence(header), base_offset, header.max_timestamp_ms)
        )


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES
