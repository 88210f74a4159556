"""Detects lack of progress over several observations: stuck consumers, partitions without an owner, hot
partitions, idle topics, idle members.

Nothing is judged during a rebalance, or from unknown values. All times begin anew afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from slackwater.kafka.structs import TopicPartition
from slackwater.times import duration
from slackwater_operator.model.group import GroupView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.model.wording import enumerated

STUCK = "stuck"
UNASSIGNED = "unassigned"
HOT = "hot"
IDLE = "idle"
SPARE = "spare"
MARKERS = "markers"

STUCK_AFTER_MS = 300_000
"""How long a partition with lag may go without a commit: max.poll.interval.ms by its default, since the
group's own says how long one batch may take."""
UNASSIGNED_AFTER_MS = 600_000
"""How long a partition of a Stable group may have no owner: twice metadata.max.age.ms by its default, in
which a leader of the classic protocol finds new partitions."""
HOT_AFTER_MS = 60_000
"""How long a partition must ask for more than one worker."""
IDLE_AFTER_MS = 300_000
"""How long nothing must have been produced to a topic."""

_MARKERS = 2  # the lag that transaction markers leave: one for each transaction that ended last
_NAMED = 5


@dataclass(frozen=True)
class Stall:
    """A lack of progress.

    Attributes:
        kind: `stuck` (assigned, with lag, and no commit for long), `unassigned` (no member of a Stable group
            has it), `hot` (needs more than one worker),
            `idle` (a topic without new records and without lag, which is no fault), `spare` (members without
            partitions: more workers than partitions), `markers` (a lag of one or two that remains while
            nothing is produced: transaction markers, which are not records).
        partitions: the partitions concerned, in order.
        members: the members concerned, in order: the owner of a stuck partition, or those without
            partitions.
        message: one sentence for users, without figures that change all the time.
    """

    kind: str
    partitions: tuple[TopicPartition, ...] = ()
    members: tuple[str, ...] = ()
    message: str = ""


class StallWatch:
    """Follows one group's partitions. In memory only: after a restart of the operator all times
    begin anew."""

    def __init__(self) -> None:
        """Starts without observations."""
        self.stuck_after_ms = STUCK_AFTER_MS
        self._tracks: dict[TopicPartition, _Track] = {}
        self._group: GroupView | None = None
        self._judged = False
        self._now_ms = 0
        self._partitions = 0

    def observe(
        self, snapshot: KafkaSnapshot | None, *, now_ms: int, hot: Collection[TopicPartition] = ()
    ) -> None:
        """Takes in an observation.

        Args:
            snapshot: the newest one; None when the cluster did not respond.
            now_ms: the time.
            hot: the partitions that need more than one worker (`ScalingDecision.skewed`,
                `Autoscaler.hot()`). If all of them do, none is hot: their number is then the limit.
        """
        self._now_ms = now_ms
        self._group = snapshot.group if snapshot is not None else None
        self._judged = self._group is not None and self._group.stable
        if snapshot is None or not self._judged:
            for track in self._tracks.values():
                track.begin(now_ms)
                track.free_since_ms = None
            return
        self._partitions = len(snapshot.partitions)
        for gone in self._tracks.keys() - set(snapshot.partitions):
            del self._tracks[gone]
        assert self._group is not None
        owners = {
            partition: member.instance_id or member.member_id
            for member in self._group.members
            for partition in member.partitions
        }
        every = len(set(hot)) == len(snapshot.partitions)
        for partition in snapshot.partitions:
            track = self._tracks.setdefault(partition, _Track(now_ms))
            track.take(
                snapshot.ends.get(partition),
                snapshot.positions.get(partition),
                owners.get(partition, ""),
                now_ms,
            )
            track.free_since_ms = _since(track.free_since_ms, partition not in owners, now_ms)
            track.hot_since_ms = _since(track.hot_since_ms, partition in hot and not every, now_ms)

    def stalls(self) -> tuple[Stall, ...]:
        """The lack of progress as of the last observation: at most one of each kind, in the order of
        `Stall.kind`."""
        if not self._judged:
            return ()
        kinds = (
            self._stuck(),
            self._unassigned(),
            self._hot(),
            self._idle(),
            self._spare(),
            self._with_markers(),
        )
        return tuple(stall for stall in kinds if stall is not None)

    def _stuck(self) -> Stall | None:
        partitions = [
            partition
            for partition, track in self._tracks.items()
            if track.owner
            and track.lag
            and not track.markers(self._now_ms, self.stuck_after_ms)
            and self._now_ms - track.moved_ms >= self.stuck_after_ms
        ]
        if not partitions:
            return None
        members = tuple(sorted({self._tracks[partition].owner for partition in partitions}))
        reason = (
            f"{_listed(partitions)} (assigned to {', '.join(members[:_NAMED])}) has lag, but no offset was "
            f"committed for more than {duration(self.stuck_after_ms)}; check that worker's log"
        )
        return Stall(STUCK, tuple(sorted(partitions)), members, reason)

    def _unassigned(self) -> Stall | None:
        free = {partition: track.free_since_ms for partition, track in self._tracks.items()}
        partitions = self._lasting(free, UNASSIGNED_AFTER_MS)
        if not partitions:
            return None
        reason = (
            f"{_listed(partitions)} is assigned to no member, though the group has been Stable for more than "
            f"{duration(UNASSIGNED_AFTER_MS)}; check that all its members subscribe to the topic and may "
            "describe it, and restart one worker: the group is then assigned anew"
        )
        return Stall(UNASSIGNED, tuple(sorted(partitions)), (), reason)

    def _lasting(self, since_ms: Mapping[TopicPartition, int | None], after_ms: int) -> list[TopicPartition]:
        """The partitions for which something has held for ``after_ms`` at least."""
        return [
            partition
            for partition, since in since_ms.items()
            if since is not None and self._now_ms - since >= after_ms
        ]

    def _hot(self) -> Stall | None:
        hot = {partition: track.hot_since_ms for partition, track in self._tracks.items()}
        partitions = self._lasting(hot, HOT_AFTER_MS)
        if not partitions:
            return None
        reason = (
            f"{_listed(partitions)} receives more records than one worker can process, and more workers do "
            "not help; distribute the keys, add partitions, or make the handler faster"
        )
        return Stall(HOT, tuple(sorted(partitions)), (), reason)

    def _idle(self) -> Stall | None:
        """All partitions of topics without new records and without lag."""
        busy = {
            partition.topic
            for partition, track in self._tracks.items()
            if track.lag != 0 or self._now_ms - track.produced_ms < IDLE_AFTER_MS
        }
        partitions = [partition for partition in self._tracks if partition.topic not in busy]
        if not partitions:
            return None
        topics = sorted({partition.topic for partition in partitions})
        return Stall(
            IDLE, tuple(sorted(partitions)), (), f"no records are produced to {', '.join(topics[:_NAMED])}"
        )

    def _spare(self) -> Stall | None:
        assert self._group is not None
        members = sorted(
            member.instance_id or member.member_id for member in self._group.members if not member.partitions
        )
        if not members or len(self._group.members) <= self._partitions:
            return None
        names = ", ".join(members[:_NAMED]) + (" and more" if len(members) > _NAMED else "")
        reason = (
            f"{len(self._group.members)} workers for {self._partitions} partitions: {names} has no "
            "partition; reduce the number of workers"
        )
        return Stall(SPARE, (), tuple(members), reason)

    def _with_markers(self) -> Stall | None:
        partitions = [
            partition
            for partition, track in self._tracks.items()
            if track.markers(self._now_ms, self.stuck_after_ms)
        ]
        if not partitions:
            return None
        reason = (
            f"{_listed(partitions)}: a constant lag of one or two while nothing is produced comes from "
            "transaction markers, which are not records"
        )
        return Stall(MARKERS, tuple(sorted(partitions)), (), reason)


@dataclass(slots=True)
class _Track:
    """A partition's last observation and its times, which begin when it is first observed."""

    began_ms: int
    end: int | None = None
    position: int | None = None
    owner: str = ""
    moved_ms: int = field(init=False)
    produced_ms: int = field(init=False)
    free_since_ms: int | None = None
    hot_since_ms: int | None = None

    def __post_init__(self) -> None:
        self.begin(self.began_ms)

    def begin(self, now_ms: int) -> None:
        """Restarts all times."""
        self.began_ms = self.moved_ms = self.produced_ms = now_ms
        self.hot_since_ms = None

    @property
    def lag(self) -> int | None:
        """Its lag; None if unknown."""
        if self.end is None or self.position is None:
            return None
        return max(0, self.end - self.position)

    def take(self, end: int | None, position: int | None, owner: str, now_ms: int) -> None:
        """Takes in offsets and owner. Unknown values and a new owner restart the times."""
        if end is None or position is None or owner != self.owner:
            self.begin(now_ms)
        else:
            if end != self.end:
                self.produced_ms = now_ms
            if position != self.position or not self.lag:
                self.moved_ms = now_ms
        self.end, self.position, self.owner = end, position, owner

    def markers(self, now_ms: int, after_ms: int) -> bool:
        """Whether its lag is of the kind that transaction markers leave."""
        lag = self.lag
        still = now_ms - max(self.moved_ms, self.produced_ms) >= after_ms
        return lag is not None and 0 < lag <= _MARKERS and still


def _since(before_ms: int | None, holds: bool, now_ms: int) -> int | None:
    """Since when something holds, which until now held since `before_ms`; None: it does not."""
    if not holds:
        return None
    return now_ms if before_ms is None else before_ms


def _listed(partitions: Collection[TopicPartition]) -> str:
    return enumerated([str(partition) for partition in sorted(partitions)], _NAMED)
