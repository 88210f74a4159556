"""When a batch may begin, and how many records it takes. No I/O, no clock."""

from __future__ import annotations

LONGEST_GATHER_MS = 50.0


class BatchInterval:
    """Decides when the next batch may begin. No I/O, no clock of its own.

    Batches begin at least ``interval_ms`` apart, as with Spark's `processingTime` trigger; 0: no interval.
    The first batch, and any after a pause of ``interval_ms``, begins with the first record.

    A rest ends ``gather_ms`` before the next batch is due. Partitions are paused during a rest and are not
    fetched: what the client holds of them arrived soon after the last batch began.
    """

    def __init__(self, interval_ms: float) -> None:
        self._interval_ms = interval_ms
        self.gather_ms = min(LONGEST_GATHER_MS, interval_ms / 10)
        self._rests_until_ms: float | None = None

    @property
    def resting(self) -> bool:
        """Whether nothing is to be taken before :meth:`end`."""
        return self._rests_until_ms is not None

    def began(self, now_ms: float, *, pressing: bool) -> None:
        """A batch begins. ``pressing``: what is still to be read is not to be kept waiting."""
        rests = not pressing and self._interval_ms > 0
        self._rests_until_ms = now_ms + self._interval_ms - self.gather_ms if rests else None

    def rest_ms(self, now_ms: float) -> float:
        """How long nothing is to be fetched yet."""
        return 0.0 if self._rests_until_ms is None else max(0.0, self._rests_until_ms - now_ms)

    def end(self) -> None:
        """The rest is over."""
        self._rests_until_ms = None


FIRST_RECORDS = 5_000
"""Of the first batch, when it is not known what a handler needs for each record. The time never makes a batch
smaller than that: most of a small batch's time does not depend on its size, so that smaller and smaller ones
would be tried in vain, and a worker on a busy machine would end at one record a batch."""
_GROWTH = 4
"""A batch has at most so many times the records of the one before: what it costs is measured on the way."""


class BatchSize:
    """Decides how many records a batch may have, so that one takes about ``target_ms``.

    Where records are waiting, large batches cost the least for each record: calls of the handler, files and
    commits are per batch. Where none are waiting, a batch has what is there, and this limit plays no role.
    """

    def __init__(self, target_ms: float, most_records: int, most_bytes: int) -> None:
        """``most_bytes``: of the records of one batch, as columns."""
        self._target_ms, self._most_records, self._most_bytes = target_ms, most_records, most_bytes
        self._first = min(FIRST_RECORDS, most_records)
        self.records = self._first
        """The most that the next batch may have."""
        self._limit = most_records
        """The same after a batch that failed for its size. It grows slowly again: to try what is too large
        costs more than to be one eighth below."""

    def committed(self, records: int, size_bytes: int, ms: float) -> None:
        """A batch was handled and written in ``ms``, without the time in which it waited for another."""
        # A batch that is not full says nothing of larger ones, unless it took too long.
        if not records or (records < self.records // 2 and ms <= self._target_ms):
            return
        self._limit = min(self._most_records, self._limit + self._limit // 8 + 1)
        fitting = max(self._first, records * min(_GROWTH, self._target_ms / max(ms, 1.0)))
        if size_bytes:
            fitting = min(fitting, records * self._most_bytes / size_bytes)
        self.records = max(1, int(min(fitting, self._limit)))

    def too_large(self, records: int) -> None:
        """A batch of ``records`` cannot be written because of its size."""
        self._limit = max(1, records // 2)
        self.records = min(self.records, self._limit)

    def failed(self) -> None:
        """A batch has failed as a whole: it may have been too large."""
        self.records = min(self.records, self._first)
