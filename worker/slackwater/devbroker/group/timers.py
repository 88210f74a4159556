"""Timers in virtual time: nothing here reads a clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Callback = Callable[[], None]
Key = tuple[str, ...]


class Timers:
    """Keyed one-shot timers. Scheduling a key again replaces what it had.

    ``now_ms`` is the time last given to :meth:`advance`; it never runs backwards. Timers due at
    the same time fire in the order in which they were scheduled.
    """

    def __init__(self) -> None:
        self.now_ms: float = 0.0
        self._active: dict[Key, tuple[float, int, Callback]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0

    def schedule(self, key: Key, delay_ms: float, callback: Callback) -> None:
        """Calls ``callback`` once, ``delay_ms`` after ``now_ms``, unless replaced or cancelled."""
        self._count += 1
        deadline_ms = self.now_ms + max(delay_ms, 0)
        self._active[key] = (deadline_ms, self._count, callback)
        heapq.heappush(self._heap, (deadline_ms, self._count, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._active):
            self._heap = [(at, count, key) for key, (at, count, _) in self._active.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: Key) -> None:
        """Forgets the key's timer; nothing happens when it has none."""
        self._active.pop(key, None)

    def clear(self) -> None:
        """Forgets every timer."""
        self._active.clear()
        self._heap.clear()

    def deadline_ms(self, key: Key) -> float | None:
        """When the key's timer is due, or None."""
        timer = self._active.get(key)
        return None if timer is None else timer[0]

    def next_deadline_ms(self) -> float | None:
        """When the earliest timer is due, or None."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def advance(self, now_ms: float) -> None:
        """Moves time on and fires what is due at ``now_ms`` or before, also what that schedules."""
        self.now_ms = max(self.now_ms, now_ms)
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= self.now_ms:
            _, _, key = heapq.heappop(self._heap)
            _, _, callback = self._active.pop(key)
            callback()

    def _is_current(self, entry: tuple[float, int, Key]) -> bool:
        timer = self._active.get(entry[2])
        return timer is not None and timer[1] == entry[1]
