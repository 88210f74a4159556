"""CPU time and memory of a process and its descendants, sampled while it runs (Linux)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

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


def report_of(module: str, arguments: Sequence[str], folder: Path) -> tuple[dict[str, Any], Watch]:
    """Runs ``module`` in a process of its own. Returns the JSON of its last line, and what was sampled.
    Raises RuntimeError with what it has logged, which is in ``folder``."""
    log_file = folder / "process.log"
    with log_file.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        watch = Watch(process.pid)
        out, _ = process.communicate()
        watch.stop()
    if process.returncode:
        raise RuntimeError(f"{module} failed:\n{log_file.read_text()[-3000:]}")
    return json.loads(out.splitlines()[-1]), watch


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
