"""Computes restarts and takeovers of members from the workers' events.

Pure: events in, figures out. All times are wall clock ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.local.machine.events import WorkerEvent


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
            the partition had nothing to read, or waited for its turn; None before a record came.
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


@dataclass(frozen=True)
class ObservedTakeover:
    """A member that went from one process to another without having ended.

    Attributes:
        instance: the member.
        before: the process that was it.
        pod: the process that is it now.
        joined_ms: when that was in the group.
        generation: the generation that it joined.
        same_generation: whether that is the one that its predecessor was in: no rebalance.
        forced: whether its predecessor was not asked, or did not answer.
        pauses_ms: of each partition, from the predecessor's last rows in the sink to the successor's first,
            as the successor has reported it. Empty before that report.
    """

    instance: str
    before: str
    pod: str
    joined_ms: int
    generation: int
    same_generation: bool
    forced: bool = False
    pauses_ms: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def longest_ms(self) -> int | None:
        """The longest pause of a partition, None before any has come."""
        return max(self.pauses_ms.values(), default=None)


@dataclass
class _Pauses:
    """The pauses of a member's partitions, as they come in."""

    by_partition: dict[TopicPartition, int] = field(default_factory=dict)
    last_commit_ms: int = 0
    first_record_ms: int | None = None

    def take(self, partition: TopicPartition, at_ms: int, gap_ms: int) -> None:
        """A partition's first records: when, and how long after the last commit. The first time
        counts: a partition may go and come back later."""
        if partition in self.by_partition:
            return
        self.by_partition[partition] = gap_ms
        self.first_record_ms = min(self.first_record_ms or at_ms, at_ms)
        self.last_commit_ms = max(self.last_commit_ms, at_ms - gap_ms)

    @property
    def gap_ms(self) -> int | None:
        """From the member's last commit to its first record."""
        return None if self.first_record_ms is None else max(0, self.first_record_ms - self.last_commit_ms)

    @property
    def longest_ms(self) -> int | None:
        return max(self.by_partition.values(), default=None)


@dataclass
class _Restarting:
    restart: Restart
    pauses: _Pauses = field(default_factory=_Pauses)

    def so_far(self) -> Restart:
        return replace(self.restart, gap_ms=self.pauses.gap_ms, partition_gap_ms=self.pauses.longest_ms)


class Returns:
    """Computes restarts and takeovers from events, which must come in their order."""

    def __init__(self) -> None:
        # By process: the generation that it is in, and how it came.
        self._joined: dict[str, int] = {}
        self._restarting: dict[str, _Restarting] = {}
        self._taking: dict[str, int] = {}
        """The place in ``_takeovers`` of those that have not reported yet."""
        # By member: the process that joined as it last; when the one that was it ended, and its generation.
        self._process: dict[str, str] = {}
        self._ended: dict[str, tuple[int, int]] = {}
        self._restarts: list[_Restarting] = []
        self._takeovers: list[ObservedTakeover] = []

    def restarts(self) -> list[Restart]:
        """The restarts, in the order of their return."""
        return [restarting.so_far() for restarting in self._restarts]

    def takeovers(self) -> list[ObservedTakeover]:
        """The takeovers, in the order of their successors' joins."""
        return list(self._takeovers)

    def joined(self, event: WorkerEvent) -> str:
        """A process has joined. Gives the process that was the member before and is fenced by it, "" if there
        is none."""
        number = int(event.data.get("generation", -1))
        before = self._process.get(event.instance, "")
        self._process[event.instance] = event.process
        ended = self._ended.pop(event.instance, None)
        taken = before not in ("", event.process)
        if ended is not None and ended[1] >= 0:
            restart = Restart(event.instance, ended[0], event.ts_ms, number, number == ended[1])
            self._restarts.append(_Restarting(restart))
            self._restarting[event.process] = self._restarts[-1]
        elif taken:
            same = self._joined.get(before, number) == number  # its own event may have come already
            made = ObservedTakeover(event.instance, before, event.process, event.ts_ms, number, same)
            self._taking[event.process] = len(self._takeovers)
            self._takeovers.append(made)
            self.fenced(before)
        self._joined[event.process] = number
        return before if taken else ""

    def fenced(self, process: str) -> None:
        """A process is fenced by another: its end begins no restart."""
        self._joined.pop(process, None)

    def exited(self, event: WorkerEvent) -> None:
        """A process has ended."""
        self._restarting.pop(event.process, None)
        self._taking.pop(event.process, None)
        generation = self._joined.pop(event.process, -1)
        if self._process.get(event.instance, event.process) != event.process:
            return  # another process is the member: a predecessor, or a successor that has not joined yet
        if generation >= 0 or event.instance not in self._ended:
            self._ended[event.instance] = (event.ts_ms, generation)

    def removed(self, instance: str) -> None:
        """A member was removed from the group: its next join begins a new one."""
        self._ended.pop(instance, None)

    def first_records(self, event: WorkerEvent) -> None:
        """A partition is served again. One that was taken over has no gap here; its pause is reported."""
        gap, data = event.data.get("gap_ms"), event.data
        if not isinstance(gap, int | float) or data.get("restart") is False:
            return  # of a partition that another worker had served before: a rebalance caused that
        partition = _partition(str(data.get("partition", "")))
        restarting = self._restarting.get(event.process)
        if restarting is not None:
            restarting.pauses.take(partition, event.ts_ms, int(gap))
            session_ms = _whole(data, "session_timeout_ms", restarting.restart.session_timeout_ms)
            restarting.restart = replace(restarting.restart, session_timeout_ms=session_ms)

    def takeover_completed(self, event: WorkerEvent) -> None:
        """A successor has reported its takeover, which is complete."""
        at, data = self._taking.pop(event.process, None), event.data
        if at is None:
            return
        same = self._takeovers[at].same_generation
        if data.get("generation_before") is not None:
            same = data["generation_before"] == data.get("generation")
        pauses = data.get("pauses_ms")
        self._takeovers[at] = replace(
            self._takeovers[at],
            same_generation=same,
            forced=bool(data.get("forced", False)),
            pauses_ms={
                _partition(name): int(ms)
                for name, ms in sorted((pauses if isinstance(pauses, dict) else {}).items())
                if isinstance(ms, int | float)
            },
        )


def _partition(name: str) -> TopicPartition:
    """A partition by its name `topic-3`."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number) if number.isdecimal() else -1)


def _whole(data: Mapping[str, object], name: str, default: int | None) -> int | None:
    value = data.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
