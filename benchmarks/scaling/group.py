"""A consumer group in virtual time: records produced, workers that read them, and what a change of their
number costs. The rule that decides the number is exchangeable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot

TICK_MS = 1_000
START_MS = 1_000_000_000


@dataclass(frozen=True)
class Site:
    """What the group has to work with.

    Attributes:
        partitions: the number of partitions.
        capacity_per_s: records that one worker reads a second, of all its partitions together.
        warm_up_ms: from the decision until a new worker joins.
        generation_ms: how long a generation takes to form; a step takes two (revoke, then assign).
        drain_ms: how long a worker that leaves, or gives partitions up, still works on what it has read.
    """

    partitions: int = 24
    capacity_per_s: float = 100.0
    warm_up_ms: int = 10_000
    generation_ms: int = 2_000
    drain_ms: int = 1_000


@dataclass(frozen=True)
class Load:
    """What is produced, and what goes wrong.

    Attributes:
        name: as the table shows it.
        produced_per_s: records a second, by the time since the start in s.
        hours: for how long.
        weights: each partition's part of the records; None for equal parts.
        stopped: whether the worker of that number does not read at that time (in s), though it is a member.
    """

    name: str
    produced_per_s: Callable[[float], float]
    hours: float = 2.0
    weights: tuple[float, ...] | None = None
    stopped: Callable[[int, float], bool] = lambda worker, second: False


@dataclass
class Change:
    """A number of workers that was decided."""

    at_ms: int
    before: int
    after: int
    reason: str


class ScalingRule(Protocol):
    """Decides the number of workers of a simulated group."""

    def decide(self, group: SimulatedGroup) -> tuple[int, str]:
        """The number of workers to have now, and why. Called once a tick."""

    def stepped(self, took_ms: int, lost_partition_ms: int) -> None:
        """Notes that the group is settled after a change, and for how long partitions were not read."""


@dataclass
class SimulatedGroup:
    """One group under a load, in the hands of a rule.

    A change of the number takes effect in the group when the new workers have warmed up, or the surplus has
    drained. Only partitions that change their owner stand unread then: from the end of the first generation,
    in which they are revoked, to the end of the second one, in which they are assigned.
    """

    site: Site
    load: Load
    rule: ScalingRule
    replicas: int = 1
    now_ms: int = START_MS
    changes: list[Change] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    worker_ticks: int = 0
    unread_partition_ms: int = 0

    def __post_init__(self) -> None:
        number = self.site.partitions
        self.topic = tuple(TopicPartition("t", partition) for partition in range(number))
        weights = self.load.weights or (1.0,) * number
        self._weights = [weight / sum(weights) for weight in weights]
        self._ends = [0.0] * number
        self._positions = [0.0] * number
        self.readers = self.replicas
        self._owners = [partition % self.readers for partition in range(number)]
        self._unread_until_ms = [0] * number
        self._joins: list[tuple[int, int]] = []  # (when, how many workers the group then has)
        self._stable_from_ms = 0
        self._lost_ms = 0
        self._began_ms: int | None = None
        self.settled_since_ms: int | None = self.now_ms

    def run(self) -> SimulatedGroup:
        """Goes through the whole load. Returns the group."""
        for _ in range(round(self.load.hours * 3_600_000 / TICK_MS)):
            self.now_ms += TICK_MS
            self._produce()
            self._join()
            self._consume()
            self.lags.append(self.total_lag)
            self.worker_ticks += self.replicas
            wanted, reason = self.rule.decide(self)
            if wanted != self.replicas:
                self._change(wanted, reason)
        return self

    @property
    def second(self) -> float:
        """The time since the start, in s."""
        return (self.now_ms - START_MS) / 1000

    @property
    def stable(self) -> bool:
        """Whether no generation is being formed."""
        return self.now_ms >= self._stable_from_ms

    @property
    def lag(self) -> list[int]:
        """Each partition's records that were not read yet."""
        return [int(end) - int(done) for end, done in zip(self._ends, self._positions, strict=True)]

    @property
    def total_lag(self) -> int:
        """Records not read yet."""
        return sum(self.lag)

    def snapshot(self) -> KafkaSnapshot:
        """What the broker would say."""
        members = tuple(
            MemberView(f"m-{worker}", f"w-{worker}", frozenset(self._partitions_of(worker)), True)
            for worker in range(self.readers)
        )
        state = "PreparingRebalance" if not self.stable else "Stable" if members else "Empty"
        ends = dict(zip(self.topic, map(int, self._ends), strict=True))
        done = dict(zip(self.topic, map(int, self._positions), strict=True))
        return KafkaSnapshot(self.now_ms, GroupView(state, members), self.topic, ends, done)

    def _partitions_of(self, worker: int) -> list[TopicPartition]:
        return [tp for tp, owner in zip(self.topic, self._owners, strict=True) if owner == worker]

    def _produce(self) -> None:
        made = self.load.produced_per_s(self.second) * TICK_MS / 1000
        for partition, share in enumerate(self._weights):
            self._ends[partition] += made * share

    def _consume(self) -> None:
        readable: dict[int, list[int]] = {}
        for partition, owner in enumerate(self._owners):
            if self._unread_until_ms[partition] <= self.now_ms:
                readable.setdefault(owner, []).append(partition)
        for owner, own in readable.items():
            if self.load.stopped(owner, self.second):
                continue
            left = self.site.capacity_per_s * TICK_MS / 1000
            own.sort(key=lambda partition: self._ends[partition] - self._positions[partition])
            for index, partition in enumerate(own):
                take = min(left / (len(own) - index), self._ends[partition] - self._positions[partition])
                self._positions[partition] += take
                left -= take

    def _change(self, wanted: int, reason: str) -> None:
        self.changes.append(Change(self.now_ms, self.replicas, wanted, reason))
        wait_ms = self.site.warm_up_ms if wanted > self.replicas else self.site.drain_ms
        self._joins = [(at_ms, min(number, wanted)) for at_ms, number in self._joins]  # a pod that goes again
        self._joins.append((self.now_ms + wait_ms, wanted))
        self.replicas = wanted
        self.settled_since_ms = None
        if self._began_ms is None:
            self._began_ms = self.now_ms

    def _join(self) -> None:
        while self._joins and self._joins[0][0] <= self.now_ms:
            self._rebalance(self._joins.pop(0)[1])
        if self._began_ms is not None and self.stable and not self._joins:
            self.settled_since_ms = self.now_ms
            self.rule.stepped(self.now_ms - self._began_ms, self._lost_ms)
            self._began_ms, self._lost_ms = None, 0

    def _rebalance(self, workers: int) -> None:
        """Two generations: those that have too many partitions give some up, then others get them."""
        if workers == self.readers:
            return
        before, self.readers = list(self._owners), workers
        self._owners = sticky(before, workers)
        unread_ms = self.site.drain_ms + self.site.generation_ms
        for partition, owner in enumerate(self._owners):
            if owner != before[partition]:
                self._unread_until_ms[partition] = self.now_ms + unread_ms
                self._lost_ms += unread_ms
                self.unread_partition_ms += unread_ms
        self._stable_from_ms = self.now_ms + 2 * self.site.generation_ms


def sticky(owners: list[int], workers: int) -> list[int]:
    """Balanced owners, with as few changes as possible."""
    least, more = divmod(len(owners), max(workers, 1))
    held: list[list[int]] = [[] for _ in range(workers)]
    free: list[int] = []
    for partition, owner in enumerate(owners):
        (held[owner] if owner < workers else free).append(partition)
    rooms = sorted(range(workers), key=lambda worker: -len(held[worker]))
    allowed = {worker: least + (1 if rank < more else 0) for rank, worker in enumerate(rooms)}
    for worker in range(workers):
        while len(held[worker]) > allowed[worker]:
            free.append(held[worker].pop())
    result = list(owners)
    for worker in range(workers):
        while len(held[worker]) < allowed[worker]:
            held[worker].append(free.pop())
        for partition in held[worker]:
            result[partition] = worker
    return result
