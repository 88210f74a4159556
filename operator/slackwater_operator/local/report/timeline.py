"""Computes generations, rebalances, partition owners, restarts and takeovers from the workers' events.

A member may have two processes: a process holds a partition, its member owns it. Pure: events in, figures
out. All times are wall clock ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.local.machine.events import WorkerEvent
from slackwater_operator.local.report.returns import ObservedTakeover, Restart, Returns

__all__ = ["Generation", "ObservedTakeover", "Restart", "Timeline", "longest"]


@dataclass(frozen=True)
class Generation:
    """A generation of the group.

    Attributes:
        number: its number.
        first_seen_ms: when the first worker joined it.
        follow_up: whether it is the second half of a cooperative rebalance (KIP-429): the join was asked for
            by a member that had just revoked. It counts as one with the generation before it.
    """

    number: int
    first_seen_ms: int
    follow_up: bool


@dataclass
class _Hold:
    """A span of time in which a process of a member held a partition; `end_ms` None: it still does."""

    instance: str
    begin_ms: int
    end_ms: int | None = None


class Timeline:
    """Computes the figures from the events of all workers, which must come in their order."""

    def __init__(self) -> None:
        self._generations: dict[int, Generation] = {}
        self._holds: dict[TopicPartition, list[_Hold]] = defaultdict(list)
        self._returns = Returns()
        # By process: what it holds, and what it gave up to hand it over.
        self._open: dict[tuple[str, TopicPartition], _Hold] = {}
        self._handing: dict[str, list[TopicPartition]] = {}

    def take(self, event: WorkerEvent) -> None:
        """Takes an event in."""
        match event.event:
            case "joined":
                self._join(event)
            case "assigned":
                for partition in event.partitions():
                    self._hold(event, partition)
            case "revoked" | "lost":
                for partition in event.partitions():
                    self._release(event.process, partition, event.ts_ms)
            case "first_records":
                self._returns.first_records(event)
            case "takeover":
                self._returns.takeover_completed(event)
            case "drained":
                self._release_all(event.process, event.ts_ms)
            case "handover":  # from now on it serves nobody, but is the member still
                self._handing[event.process] = self._release_all(event.process, event.ts_ms)
            case "phase" if event.data.get("phase") == "running":  # perhaps its successor did not come
                for partition in self._handing.pop(event.process, ()):
                    self._hold(event, partition)
            case "handed_over":
                self._fenced(event.process, event.ts_ms)
            case "exited":
                self._release_all(event.process, event.ts_ms)
                self._handing.pop(event.process, None)
                self._returns.exited(event)
            case "removed":  # by the supervisor
                self._returns.removed(event.instance)

    @property
    def generation(self) -> int:
        """The newest generation seen, -1 before the first."""
        return max(self._generations, default=-1)

    def generations(self, since_ms: int = 0, until_ms: int | None = None) -> list[Generation]:
        """The generations first seen in a span of time, oldest first."""
        generations = sorted(self._generations.values(), key=lambda generation: generation.number)
        return [
            generation for generation in generations if _within(generation.first_seen_ms, since_ms, until_ms)
        ]

    def rebalances(self, since_ms: int = 0, until_ms: int | None = None) -> int:
        """How many rebalances began in a span; one with its cooperative follow-up counts as one.

        A follow-up whose first half nobody saw counts itself.
        """
        count = 0
        before: Generation | None = None
        for generation in sorted(self._generations.values(), key=lambda generation: generation.number):
            second_half = (
                generation.follow_up and before is not None and before.number == generation.number - 1
            )
            if not second_half and _within(generation.first_seen_ms, since_ms, until_ms):
                count += 1
            before = generation
        return count

    def restarts(self, since_ms: int = 0, until_ms: int | None = None) -> list[Restart]:
        """The returns whose old process ended in a span, in the order of their return."""
        restarts = self._returns.restarts()
        return [restart for restart in restarts if _within(restart.ended_ms, since_ms, until_ms)]

    def takeovers(self, since_ms: int = 0, until_ms: int | None = None) -> list[ObservedTakeover]:
        """The takeovers whose successor joined in a span, in the order of their joins."""
        return [
            takeover
            for takeover in self._returns.takeovers()
            if _within(takeover.joined_ms, since_ms, until_ms)
        ]

    def owner(self, partition: TopicPartition) -> str | None:
        """The member whose process holds a partition now."""
        open_ = [hold for hold in self._holds.get(partition, ()) if hold.end_ms is None]
        return max(open_, key=lambda hold: hold.begin_ms).instance if open_ else None

    def unowned_ms(self, since_ms: int, until_ms: int) -> dict[TopicPartition, int]:
        """The longest time in a span for which no live process held each partition.

        The time before a partition was held for the first time does not count.
        """
        return {
            partition: _longest_gap(holds, since_ms, until_ms) for partition, holds in self._holds.items()
        }

    def _join(self, event: WorkerEvent) -> None:
        number = int(event.data.get("generation", -1))
        follow_up = bool(event.data.get("follow_up", False))
        known = self._generations.get(number)
        if known is None:
            self._generations[number] = Generation(number, event.ts_ms, follow_up)
        else:
            first = min(known.first_seen_ms, event.ts_ms)
            self._generations[number] = Generation(number, first, known.follow_up or follow_up)
        before = self._returns.joined(event)
        if before:
            self._fenced(before, event.ts_ms)

    def _fenced(self, process: str, at_ms: int) -> None:
        """A process is fenced by another one of its member."""
        self._release_all(process, at_ms)
        self._handing.pop(process, None)
        self._returns.fenced(process)

    def _hold(self, event: WorkerEvent, partition: TopicPartition) -> None:
        key = event.process, partition
        if key not in self._open:
            self._open[key] = _Hold(event.instance, event.ts_ms)
            self._holds[partition].append(self._open[key])

    def _release(self, process: str, partition: TopicPartition, at_ms: int) -> None:
        hold = self._open.pop((process, partition), None)
        if hold is not None:
            hold.end_ms = max(at_ms, hold.begin_ms)

    def _release_all(self, process: str, at_ms: int) -> list[TopicPartition]:
        """Ends all holds of a process; returns their partitions."""
        held = [partition for holder, partition in self._open if holder == process]
        for partition in held:
            self._release(process, partition, at_ms)
        return held


def longest(unowned: Mapping[TopicPartition, int]) -> int:
    """The longest of the times that `Timeline.unowned_ms` gives, 0 without any."""
    return max(unowned.values(), default=0)


def _longest_gap(holds: Iterable[_Hold], since_ms: int, until_ms: int) -> int:
    """The longest part of a span that no hold covers. The holds may overlap and come in any order."""
    ordered = sorted(holds, key=lambda hold: hold.begin_ms)
    longest_ms = 0
    covered_ms = max(since_ms, ordered[0].begin_ms)
    for hold in ordered:
        longest_ms = max(longest_ms, min(hold.begin_ms, until_ms) - covered_ms)
        covered_ms = max(covered_ms, until_ms if hold.end_ms is None else hold.end_ms)
    return max(longest_ms, until_ms - covered_ms)


def _within(at_ms: int, since_ms: int, until_ms: int | None) -> bool:
    return at_ms >= since_ms and (until_ms is None or at_ms <= until_ms)
