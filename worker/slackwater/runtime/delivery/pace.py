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
"""Of the first batch, when it is not known what a handler needs for each record. The time makes no batch
smaller than that, but for a trial: most of a small batch's time does not depend on its size, so that smaller
and smaller ones would be tried in vain, and a worker on a busy machine would end at one record a batch."""
_GROWTH = 4
"""A batch has at most so many times the records of the one before: what it costs is measured on the way."""
_TRIAL_EVERY = 32
"""Of how many batches of the first size that took too long the first is followed by one of half the size: it
shows how much of the time does not depend on the size."""
_CHANGED = 1.5
"""Where a batch takes so many times longer than a larger one, something else has changed."""
_LEAST_SHARE = 0.1
"""Of a batch's time that is taken for that of its records."""


class BatchSize:
    """Decides how many records a batch may have, so that one takes about ``target_ms``.

    Where records are waiting, large batches cost the least for each record: calls of the handler, files and
    commits are per batch. Where none are waiting, a batch has what is there, and this limit plays no role.

    What a batch takes whatever its size is estimated from two of different sizes. If that is more than half
    of the target, as where a table's files are written anew with each batch, the records have the other half
    on top: fewer of them would make the batch hardly shorter.
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
        self._before: tuple[int, float] | None = None
        """Records and time of the batch before."""
        self._fixed_ms = 0.0
        """What a batch takes whatever its size, as far as it is known."""
        self._too_long = 0
        """How many batches of the first size have taken too long since one was tried with half of it."""

    def committed(self, records: int, size_bytes: int, ms: float) -> None:
        """A batch was handled and written in ``ms``, without the time in which it waited for another."""
        if not records:
            return
        self._learn(records, ms)
        # A batch that is not full says nothing of larger ones, unless it took too long.
        if records < self.records // 2 and ms <= self._target_ms:
            return
        self._limit = min(self._most_records, self._limit + self._limit // 8 + 1)
        left_ms = max(self._target_ms - self._fixed_ms, self._target_ms / 2)
        of_records_ms = max(ms - self._fixed_ms, ms * _LEAST_SHARE, 1.0)
        fitting = max(self._first, records * min(_GROWTH, left_ms / of_records_ms))
        if ms > self._target_ms and fitting == self._first == records:
            fitting = self._tried(fitting)
        if size_bytes:
            fitting = min(fitting, records * self._most_bytes / size_bytes)
        self.records = max(1, int(min(fitting, self._limit)))

    def _learn(self, records: int, ms: float) -> None:
        """Compares a batch with the one before."""
        before, self._before = self._before, (records, ms)
        (fewer, fewer_ms), (more, more_ms) = sorted([before or (records, ms), (records, ms)])
        if fewer_ms > _CHANGED * more_ms:
            self._fixed_ms = 0.0
        elif more >= 2 * fewer:
            each_ms = max(0.0, more_ms - fewer_ms) / (more - fewer)
            self._fixed_ms = max(0.0, min(fewer_ms, more_ms) - each_ms * fewer)
        self._fixed_ms = min(self._fixed_ms, ms)

    def _tried(self, fitting: float) -> float:
        """``fitting``, or half of it for a trial."""
        self._too_long += 1
        return fitting / 2 if self._too_long % _TRIAL_EVERY == 1 else fitting

    def too_large(self, records: int) -> None:
        """A batch of ``records`` cannot be written because of its size."""
        self._limit = max(1, records // 2)
        self.records = min(self.records, self._limit)

    def failed(self) -> None:
        """A batch has failed as a whole: it may have been too large."""
        self.records = min(self.records, self._first)
