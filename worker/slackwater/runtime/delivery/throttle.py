"""When the next batch may begin. No I/O, no clock of its own."""

from __future__ import annotations

LONGEST_GATHER_MS = 50.0


class Pace:
    """Keeps batches apart, from beginning to beginning, as Spark's `processingTime` trigger does.

    The first batch, and any after a pause of ``interval_ms``, begins with the first record. ``interval_ms``:
    0 for no pace.

    A rest ends ``gather_ms`` before the next batch is due. Partitions are paused while it lasts, and are not
    fetched then: what the client holds of them is what had come soon after the last batch began.
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
