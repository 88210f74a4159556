"""A worker that reads a topic to its end: what its events tell of each batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pipeline.processes import Watch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Batch:
    """A committed batch. ``began``, ``ended``: wall clock, in seconds. ``ms``: time by phase."""

    records: int
    began: float
    ended: float
    ms: Mapping[str, float]


class Worker:
    """A worker's process; its events are read as they come."""

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        file = folder / "worker.json"
        file.write_text(json.dumps(config))
        self._log = (folder / "worker.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slackwater", "worker", "--config", str(file)],
            cwd=ROOT,
            env={**os.environ, "SLACKWATER_INSTANCE_ID": "bench-0"},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.watch = Watch(self.process.pid)
        self.batches: list[Batch] = []
        self.assigned = 0.0
        """When partitions were last assigned (wall clock, in seconds)."""
        self._changed = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "assigned":
                self.assigned = event["ts_ms"] / 1000
            if event["event"] == "batch":
                ended = event["ts_ms"] / 1000
                took = sum(ms for name, ms in event["ms"].items() if name not in DETAILS) / 1000
                with self._changed:
                    self.batches.append(Batch(event["records"], ended - took, ended, event["ms"]))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, done: Callable[[list[Batch]], bool]) -> list[Batch]:
        """The batches as soon as ``done`` says so. Raises RuntimeError where the worker ends before."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or done(self.batches))
            if not done(self.batches):
                raise RuntimeError(f"the worker has ended; see {self._log.name}")
            return list(self.batches)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.watch.stop()
        self._log.close()


DETAILS = ("arrow", "transform", "stage")
"""Phases within the phase `handling`."""


@contextmanager
def worker(config: Mapping[str, Any], folder: Path) -> Iterator[Worker]:
    """A worker that is ended with the block."""
    running = Worker(config, folder)
    try:
        yield running
    finally:
        running.close()


def config(bootstrap: str, topic: str, group: str, folder: Path, **fields: Any) -> dict[str, Any]:
    """A worker's configuration that writes Parquet into ``folder``."""
    return {
        "groupId": group,
        "topics": [topic],
        "bootstrapServers": bootstrap,
        "handlerPath": [str(ROOT)],
        "sink": {"format": "parquet", "path": str(folder / "out")},
        **fields,
    }
