"""What a worker says of itself at GET /status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.kafka.structs import TopicPartition

_IN_THE_GROUP = ("joining", "running", "handing-over", "draining")


@dataclass(frozen=True)
class StoppedPartition:
    """A partition that its worker reads nothing more of until a person has decided where to go on.

    Attributes:
        partition: which one.
        reason: `LogTruncated` or `TopicRecreated`.
        message: what happened and what to do.
    """

    partition: TopicPartition
    reason: str
    message: str


@dataclass(frozen=True)
class Skip:
    """Records that were gone from the log before a worker read them.

    Attributes:
        partition: whose.
        from_offset: the first offset that was skipped.
        to_offset: where the worker went on.
        cause: why they are gone: `retention`, which is also DeleteRecords.
        at_ms: when it was noticed (wall clock).
    """

    partition: TopicPartition
    from_offset: int
    to_offset: int
    cause: str
    at_ms: int

    @property
    def records(self) -> int:
        """How many offsets; a compacted log may have had fewer records."""
        return self.to_offset - self.from_offset

    def __str__(self) -> str:
        return f"{self.partition}: {self.records} records, offsets {self.from_offset} to {self.to_offset - 1}"


@dataclass(frozen=True)
class RestartTimes:
    """When what happened at a worker's last return: wall clock of the machine it happened on, ms.

    None: not yet, or not known.

    Attributes:
        drain_ms: the process before began to drain.
        served_until_ms: that process's last commit.
        started_ms: this process began.
        joined_ms: it was in the group.
        first_record_ms: all partitions that it had got by then were served again.
    """

    drain_ms: int | None = None
    served_until_ms: int | None = None
    started_ms: int | None = None
    joined_ms: int | None = None
    first_record_ms: int | None = None


@dataclass(frozen=True)
class StandbyStatus:
    """What a worker says of itself in phase `standby`.

    Attributes:
        since_ms: since when it has stood by.
        handed_over: whether it was the member itself before, and another took over from it.
        prefetched_partitions: how many partitions it reads ahead.
        told: whether it has been told to take over, and is about to.
        reason: why it did not when it was told last; "".
    """

    since_ms: int
    handed_over: bool = False
    prefetched_partitions: int = 0
    told: bool = False
    reason: str = ""


@dataclass(frozen=True)
class TakeoverStatus:
    """The last takeover of a worker's process. Times are wall clock, ms; None: not yet, or there was none.

    Attributes:
        predecessor: the pod that it took over from.
        asked_ms: it asked its predecessor.
        drain_ms: the predecessor began to drain, by its own clock.
        committed_ms: the predecessor had committed, by its own clock.
        answered_ms: it had the answer.
        joined_ms: it was in the group.
        first_record_ms: its first record went to the handler.
        generation_before: the generation that the predecessor told, -1 where it told none.
        generation: the generation that it joined.
        forced: whether it took over without the predecessor's answer.
        pauses_ms: for each partition how long it was not served.
    """

    predecessor: str = ""
    asked_ms: int | None = None
    drain_ms: int | None = None
    committed_ms: int | None = None
    answered_ms: int | None = None
    joined_ms: int | None = None
    first_record_ms: int | None = None
    generation_before: int = -1
    generation: int = -1
    forced: bool = False
    pauses_ms: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def phases_ms(self) -> dict[str, int]:
        """How long its phases took, as far as that is known.

        drain: from the predecessor's begin to its commit; answer: from the commit to its answer's arrival;
        join: to the place in the group; first_record: to the first record at the handler.
        """
        answered_ms = self.answered_ms if self.answered_ms is not None else self.asked_ms
        marks = (
            ("drain", self.drain_ms, self.committed_ms),
            ("answer", self.committed_ms, self.answered_ms),
            ("join", answered_ms, self.joined_ms),
            ("first_record", self.joined_ms, self.first_record_ms),
        )
        return {
            phase: max(0, end - begin) for phase, begin, end in marks if begin is not None and end is not None
        }

    @property
    def pause_ms(self) -> int | None:
        """The longest time that one of its partitions was not served, None when not known."""
        return max(self.pauses_ms.values(), default=None)


@dataclass(frozen=True)
class WorkerStatus:
    """A worker's /status. Times are wall clock, ms.

    Attributes:
        phase: as in docs/worker.md, "HTTP".
        generation: the group generation that it joined last, -1 before.
        member_id: Kafka's id of this incarnation.
        is_leader: whether it leads the group, as far as it knows.
        assignment: the partitions it holds.
        lag: records behind the committed offset, of the partitions where that is known.
        error: what has failed, "" if nothing has.
        started_ms: when its process began.
        joined_ms: when it was in the group first, None before.
        waiting_since_ms: since when it has been warm and waits to join, None when it does not.
        running_since_ms: since when it has been in phase `running`, None when it is not.
        last_gap_ms: how long its slowest partition was not served around its last restart, None if unknown.
        restart: the moments of that restart; None: the first process of its name, as far as it knows.
        returned: whether its last join was a return without a rebalance.
        generations: the last generations it joined, oldest first: (generation, whether it was the second half
            of a cooperative rebalance, when).
        rebalance_ms: when its last rebalance began and ended for it; the end is None while it goes on.
        process: the token of its process's start, which requests to it are signed for; "": an older version.
        pod: the pod that it runs in, as it knows it.
        holder: the pod that is the member, as Kafka's client.id told it; "" where it does not know.
        standby: what it says of standing by; None while it does not.
        takeover: its last takeover; None: its process has made none.
        stopped: the partitions that it holds and reads nothing more of.
        skipped: the last records that it has skipped.
        uid: the uid of the pod that was asked; "" before that is noted.
        at_ms: when it was asked.
    """

    phase: str
    generation: int = -1
    member_id: str = ""
    is_leader: bool = False
    assignment: frozenset[TopicPartition] = frozenset()
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    error: str = ""
    started_ms: int | None = None
    joined_ms: int | None = None
    waiting_since_ms: int | None = None
    running_since_ms: int | None = None
    last_gap_ms: int | None = None
    restart: RestartTimes | None = None
    returned: bool = False
    generations: tuple[tuple[int, bool, int], ...] = ()
    rebalance_ms: tuple[int, int | None] | None = None
    process: str = ""
    pod: str = ""
    holder: str = ""
    standby: StandbyStatus | None = None
    takeover: TakeoverStatus | None = None
    stopped: tuple[StoppedPartition, ...] = ()
    skipped: tuple[Skip, ...] = ()
    uid: str = ""
    at_ms: int = 0

    @property
    def running(self) -> bool:
        """Whether it is in the group and handles records."""
        return self.phase == "running" and self.generation >= 0

    @property
    def is_member(self) -> bool:
        """Whether it is in the group, be it about to leave it."""
        return self.phase in _IN_THE_GROUP and self.generation >= 0

    @property
    def served_until_ms(self) -> int | None:
        """The last commit of the process before this one, where that is known."""
        return self.restart.served_until_ms if self.restart is not None else None
