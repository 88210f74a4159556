"""What a group looked like over time: a sample every quarter of a second, by Kafka and the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

EVERY_S = 0.25
S = TypeVar("S")


@dataclass(frozen=True)
class Sample:
    """One moment. What could not be read is None (the API server or Kafka was away).

    ``replicas``: the members that the StatefulSets have; ``pods``: the members that have a pod; ``ready``:
    those that have one that is ready;
    ``state``, ``members``: Kafka's, the members by their group.instance.id.
    """

    at_ms: int
    replicas: int | None
    pods: frozenset[str] | None
    ready: frozenset[str] | None
    state: str | None
    members: frozenset[str] | None


class Sampler(Generic[S]):
    """Samples from a thread of its own while it is entered; ``samples`` may be read at any time."""

    def __init__(self, sample: Callable[[], S], every_s: float) -> None:
        self._sample, self._every_s = sample, every_s
        self.samples: list[S] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            self.samples.append(self._sample())
            due = max(due + self._every_s, time.monotonic())


class Recorder(Sampler[Sample]):
    """Of a group."""

    def __init__(self, sample: Callable[[], Sample]) -> None:
        super().__init__(sample, EVERY_S)

    def replicas(self) -> list[int]:
        """The StatefulSet's replicas, each change once: [3, 8, 3]."""
        replicas = [sample.replicas for sample in self.samples if sample.replicas is not None]
        return [value for i, value in enumerate(replicas) if i == 0 or replicas[i - 1] != value]

    def orphaned_ms(self) -> int:
        """The longest time that a member without a pod stayed in the group after its pod was gone."""
        longest, since = 0, None
        for sample in self.samples:
            if sample.pods is None or sample.members is None:
                continue
            if sample.members - sample.pods:
                since = sample.at_ms if since is None else since
                longest = max(longest, sample.at_ms - since)
            else:
                since = None
        return longest


def now_ms() -> int:
    """Wall clock, as the workers' events have it."""
    return time.time_ns() // 1_000_000
