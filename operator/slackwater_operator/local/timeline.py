"""What happened, from the workers' events: generations, rebalances, who held which partition, restart gaps.

Pure: events in, figures out. All times are wall clock ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.local.events import WorkerEvent


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


@dataclass(frozen=True)
class Restart:
    """A worker's return after its process had ended.

    Attributes:
        instance: the worker.
        ended_ms: when its old process ended.
        joined_ms: when the new one was in the group.
        generation: the generation that it joined.
        same_generation: whether that is the one that it was in before: no rebalance.
        session_timeout_ms: the session that it had to be back in, None where it did not say.
        gap_ms: from its last commit to its first record, None before that record came.
        partition_gap_ms: the longest that one of its partitions waited likewise, which includes the time that
            the partition had nothing to read; None before a record came.
    """

    instance: str
    ended_ms: int
    joined_ms: int
    generation: int
    same_generation: bool
    session_timeout_ms: int | None = None
    gap_ms: int | None = None
    partition_gap_ms: int | None = None

    @property
    def away_ms(self) -> int:
        """How long it was away: from the old process's end until the new one was in the group."""
        return self.joined_ms - self.ended_ms

    @property
    def session_share(self) -> float | None:
        """The share of the session that the gap used; without a gap, that it was away."""
        if not self.session_timeout_ms:
            return None
        return (self.gap_ms if self.gap_ms is not None else self.away_ms) / self.session_timeout_ms


@dataclass
class _Restarting:
    """A restart whose figures are still coming in."""

    restart: Restart
    last_commit_ms: int | None = None
    first_record_ms: int | None = None


@dataclass
class _Hold:
    """A span of time in which a worker held a partition; `end_ms` None: it still does."""

    instance: str
    begin_ms: int
    end_ms: int | None = None


class Timeline:
    """Takes the events of all workers in the order in which they came."""

    def __init__(self) -> None:
        self._generations: dict[int, Generation] = {}
        self._holds: dict[TopicPartition, list[_Hold]] = defaultdict(list)
        self._open: dict[tuple[str, TopicPartition], _Hold] = {}
        self._joined: dict[str, int] = {}
        self._ended: dict[str, tuple[int, int]] = {}
        self._restarts: list[_Restarting] = []
        self._returning: dict[str, _Restarting] = {}

    def take(self, event: WorkerEvent) -> None:
        """Takes an event in."""
        match event.event:
            case "joined":
                self._join(event)
            case "assigned":
                for partition in event.partitions():
                    self._hold(event.instance, partition, event.ts_ms)
            case "revoked" | "lost":
                for partition in event.partitions():
                    self._release(event.instance, partition, event.ts_ms)
            case "first_records":
                self._first_records(event)
            case "drained":
                self._release_all(event)
            case "exited":
                self._release_all(event)
                generation = self._joined.pop(event.instance, -1)
                if generation >= 0 or event.instance not in self._ended:
                    self._ended[event.instance] = (event.ts_ms, generation)
                self._returning.pop(event.instance, None)
            case "removed":  # from the group, by the supervisor: what comes back is a new member
                self._ended.pop(event.instance, None)

    @property
    def generation(self) -> int:
        """The newest generation seen, -1 before the first."""
        return max(self._generations, default=-1)

    def generations(self, since_ms: int = 0, until_ms: int | None = None) -> list[Generation]:
        """The generations first seen in a span of time, oldest first."""
        found = sorted(self._generations.values(), key=lambda one: one.number)
        return [one for one in found if _within(one.first_seen_ms, since_ms, until_ms)]

    def rebalances(self, since_ms: int = 0, until_ms: int | None = None) -> int:
        """How many rebalances began in a span; one with its cooperative follow-up counts as one.

        A follow-up whose first half nobody saw counts itself.
        """
        count = 0
        before: Generation | None = None
        for one in sorted(self._generations.values(), key=lambda one: one.number):
            second_half = one.follow_up and before is not None and before.number == one.number - 1
            if not second_half and _within(one.first_seen_ms, since_ms, until_ms):
                count += 1
            before = one
        return count

    def restarts(self, since_ms: int = 0, until_ms: int | None = None) -> list[Restart]:
        """The returns whose old process ended in a span, in the order of their return."""
        found = [_finished(one) for one in self._restarts]
        return [one for one in found if _within(one.ended_ms, since_ms, until_ms)]

    def owner(self, partition: TopicPartition) -> str | None:
        """The worker that holds a partition now."""
        open_ = [one for one in self._holds.get(partition, ()) if one.end_ms is None]
        return max(open_, key=lambda one: one.begin_ms).instance if open_ else None

    def unowned_ms(self, since_ms: int, until_ms: int) -> dict[TopicPartition, int]:
        """The longest time in a span that each partition stood without a live process that holds it.

        The time before a partition was held for the first time does not count.
        """
        return {
            partition: _longest_gap(holds, since_ms, until_ms) for partition, holds in self._holds.items()
        }

    def _join(self, event: WorkerEvent) -> None:
        number = int(event.data.get("generation", -1))
        follow_up = bool(event.data.get("follow_up", False))
        seen = self._generations.get(number)
        if seen is None:
            self._generations[number] = Generation(number, event.ts_ms, follow_up)
        else:
            first = min(seen.first_seen_ms, event.ts_ms)
            self._generations[number] = Generation(number, first, seen.follow_up or follow_up)
        self._joined[event.instance] = number
        ended = self._ended.pop(event.instance, None)
        if ended is None or ended[1] < 0:
            return
        at_ms, before = ended
        restart = Restart(event.instance, at_ms, event.ts_ms, number, number == before)
        self._restarts.append(_Restarting(restart))
        self._returning[event.instance] = self._restarts[-1]

    def _first_records(self, event: WorkerEvent) -> None:
        one = self._returning.get(event.instance)
        gap = event.data.get("gap_ms")
        if one is None or not isinstance(gap, int | float) or event.data.get("restart") is False:
            return  # of a partition that another worker had served before: a rebalance's doing
        restart = one.restart
        one.first_record_ms = min(one.first_record_ms or event.ts_ms, event.ts_ms)
        one.last_commit_ms = max(one.last_commit_ms or 0, event.ts_ms - int(gap))
        one.restart = replace(
            restart,
            session_timeout_ms=_whole(event.data, "session_timeout_ms", restart.session_timeout_ms),
            partition_gap_ms=max(restart.partition_gap_ms or 0, int(gap)),
        )

    def _hold(self, instance: str, partition: TopicPartition, at_ms: int) -> None:
        if (instance, partition) not in self._open:
            hold = _Hold(instance, at_ms)
            self._holds[partition].append(hold)
            self._open[instance, partition] = hold

    def _release(self, instance: str, partition: TopicPartition, at_ms: int) -> None:
        hold = self._open.pop((instance, partition), None)
        if hold is not None:
            hold.end_ms = max(at_ms, hold.begin_ms)

    def _release_all(self, event: WorkerEvent) -> None:
        for instance, partition in list(self._open):
            if instance == event.instance:
                self._release(instance, partition, event.ts_ms)


def longest(unowned: Mapping[TopicPartition, int]) -> int:
    """The longest of the times that `Timeline.unowned_ms` gives, 0 without any."""
    return max(unowned.values(), default=0)


def gaps_for_budget(restarts: Iterable[Restart]) -> list[int]:
    """How long each restart kept a worker away, as the session's budget sees it, in ms.

    From the process's end to the new one's join: the old process sends heartbeats while it drains, and the
    join starts the session anew.
    """
    return [one.away_ms for one in restarts]


def _finished(one: _Restarting) -> Restart:
    """The restart with the gap that is known so far: from the worker's last commit to its first record."""
    restart = one.restart
    if one.first_record_ms is None or one.last_commit_ms is None:
        return restart
    gap = max(0, one.first_record_ms - one.last_commit_ms)
    return replace(restart, gap_ms=gap)


def _longest_gap(holds: Iterable[_Hold], since_ms: int, until_ms: int) -> int:
    """The longest part of a span that no hold covers. The holds may overlap and come in any order."""
    ordered = sorted(holds, key=lambda one: one.begin_ms)
    longest_ms = 0
    covered_ms = max(since_ms, ordered[0].begin_ms)
    for hold in ordered:
        longest_ms = max(longest_ms, min(hold.begin_ms, until_ms) - covered_ms)
        covered_ms = max(covered_ms, until_ms if hold.end_ms is None else hold.end_ms)
    return max(longest_ms, until_ms - covered_ms)


def _within(at_ms: int, since_ms: int, until_ms: int | None) -> bool:
    return at_ms >= since_ms and (until_ms is None or at_ms <= until_ms)


def _whole(data: Mapping[str, object], name: str, default: int | None) -> int | None:
    value = data.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
