"""CPU time and memory of a process and its descendants, sampled while it runs (Linux)."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from math import inf
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_EVERY_S = 0.1


class Watch:
    """Samples the processes below ``pid``, itself included, until :meth:`stop`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._samples: list[tuple[float, float]] = []
        """Wall clock in seconds, and CPU seconds until then."""
        self.most_mb = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def cpu_s(self, since: float, until: float) -> float:
        """CPU seconds between two times of the wall clock, as near as the samples are."""
        return self._at(until) - self._at(since)

    def _at(self, moment: float) -> float:
        return self._samples[max(0, bisect_right(self._samples, (moment, inf)) - 1)][1]

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            processes = tree(self._pid)
            self._samples.append((time.time(), sum(cpu for cpu, _ in processes)))
            self.most_mb = max(self.most_mb, sum(mb for _, mb in processes))


def tree(pid: int) -> list[tuple[float, float]]:
    """CPU seconds, with those of children that have ended, and resident MB of each process below ``pid``."""
    processes, left = [], [pid]
    while left:
        current = left.pop()
        try:
            fields = Path(f"/proc/{current}/stat").read_text().rpartition(")")[2].split()
            processes.append((sum(map(int, fields[11:15])) / _TICK, int(fields[21]) * _PAGE / 1e6))
            for thread in Path(f"/proc/{current}/task").iterdir():
                left += map(int, (thread / "children").read_text().split())
        except OSError:  # it has ended meanwhile
            continue
    return processes
