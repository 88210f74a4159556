"""What a worker reports at GET /status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.status.group_status import Skip

_IN_THE_GROUP = ("joining", "running", "handing-over", "draining")


@dataclass(frozen=True)
class StoppedPartition:
    """A partition that its worker has stopped reading until a person decides where to continue.

    Attributes:
        partition: the partition.
        reason: `LogTruncated` or `TopicRecreated`.
        message: what happened, and what to do.
    """

    partition: TopicPartition
    reason: str
    message: str


@dataclass(frozen=True)
class RestartTimes:
    """The times of a worker's last return: wall clock of the machine concerned, in ms; None if not yet, or
    unknown.

    Attributes:
        drain_ms: the previous process began to drain.
        served_until_ms: the previous process's last commit.
        started_ms: this process began.
        joined_ms: it was in the group.
        first_record_ms: it processed records of all partitions that it had by then.
        trace: the trace of the restart, as the header traceparent; "" without traces.
    """

    drain_ms: int | None = None
    served_until_ms: int | None = None
    started_ms: int | None = None
    joined_ms: int | None = None
    first_record_ms: int | None = None
    trace: str = ""


@dataclass(frozen=True)
class StandbyStatus:
    """What a worker reports in phase `standby`.

    Attributes:
        since_ms: since when it has been in standby.
        handed_over: whether it was the member before, and another pod took over from it.
        prefetched_partitions: the number of partitions that it reads ahead.
        told: whether it has been told to take over, and is about to.
        reason: why it did not take over when it was last told; "" if it was not.
    """

    since_ms: int
    handed_over: bool = False
    prefetched_partitions: int = 0
    told: bool = False
    reason: str = ""


@dataclass(frozen=True)
class TakeoverStatus:
    """The last takeover of a worker's process. Times are wall clock, in ms; None if not yet, or if there was
    none.

    Attributes:
        predecessor: the pod that it took over from.
        asked_ms: it asked its predecessor.
        drain_ms: the predecessor began to drain, by the predecessor's clock.
        committed_ms: the predecessor had committed, by the predecessor's clock.
        answered_ms: it received the answer.
        joined_ms: it was in the group.
        first_record_ms: its handler received the first record.
        generation_before: the generation that the predecessor reported; -1 without one.
        generation: the generation that it joined.
        forced: whether it took over without the predecessor's answer.
        pauses_ms: for each partition, from the predecessor's last rows in the sink to its own first.
        waiting_ms: for how long the partitions have been waiting by now that have no rows of it yet.
        written_ms: the last of its partitions got its first rows; None before that, and from older workers.
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
    waiting_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    written_ms: int | None = None

    @property
    def phases_ms(self) -> dict[str, int]:
        """The durations of its phases, in ms, where known.

        drain: from the predecessor's begin to its commit; answer: from the commit to the arrival of the
        answer; join: to its membership; first_record: to the first record at the handler; write: to the
        first rows of its last partition.
        """
        answered_ms = self.answered_ms if self.answered_ms is not None else self.asked_ms
        marks = (
            ("drain", self.drain_ms, self.committed_ms),
            ("answer", self.committed_ms, self.answered_ms),
            ("join", answered_ms, self.joined_ms),
            ("first_record", self.joined_ms, self.first_record_ms),
            ("write", self.first_record_ms, self.written_ms),
        )
        return {
            phase: max(0, end - begin) for phase, begin, end in marks if begin is not None and end is not None
        }

    @property
    def pause_ms(self) -> int | None:
        """The longest time without new rows of one of its partitions so far, in ms; None if unknown."""
        return max([*self.pauses_ms.values(), *self.waiting_ms.values()], default=None)


@dataclass(frozen=True)
class WorkerCounts:
    """What a worker's process has counted since it began.

    Attributes:
        records: records of committed batches, with those that were dead-lettered.
        dead_letters: records that were dead-lettered.
        handler_failures: calls of the handler that raised.
    """

    records: int = 0
    dead_letters: int = 0
    handler_failures: int = 0

    def since(self, earlier: WorkerCounts) -> WorkerCounts:
        """What was counted after `earlier`, a count of the same process."""
        return WorkerCounts(
            max(0, self.records - earlier.records),
            max(0, self.dead_letters - earlier.dead_letters),
            max(0, self.handler_failures - earlier.handler_failures),
        )


@dataclass(frozen=True)
class WorkerStatus:
    """A worker's /status. Times are wall clock, in ms.

    Attributes:
        phase: the phase (docs/reference/worker.md, "HTTP").
        generation: the group generation that it joined last; -1 before.
        member_id: the member id that Kafka assigned to it.
        is_leader: whether it leads the group, as far as it knows.
        assignment: the partitions that it holds.
        lag: the lag of the partitions where it is known, in records.
        error: what has failed; "" if nothing has.
        started_ms: when its process began.
        joined_ms: when it was first in the group; None before.
        waiting_since_ms: since when it has been warm and waiting to join; None if it is not.
        running_since_ms: since when it has been in phase `running`; None if it is not.
        last_gap_ms: for how long its slowest partition was not read around its last restart; None if
            unknown.
        restart: the times of that restart; None for the first process of its name, as far as it knows.
        returned: whether its last join was a return without a rebalance.
        generations: the last generations it joined, oldest first: (generation, whether it was the second
            phase of a cooperative rebalance, when).
        rebalance_ms: when its last rebalance began and ended for it; the end is None while it is in
            progress.
        process: the token of its process, which requests to it are signed for; "" from an older version.
        pod: the pod that it runs in, as it knows it.
        holder: the pod that is the member, by Kafka's client.id; "" if unknown.
        standby: its report about its standby; None if it is not in standby.
        takeover: its last takeover; None if its process has made none.
        stopped: the partitions that it holds and has stopped reading.
        skipped: the last records that it has skipped.
        counts: what its process has counted; None from an older version.
        uid: the uid of the pod that was asked; "" before it is set.
        at_ms: when the pod was asked.
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
    counts: WorkerCounts | None = None
    uid: str = ""
    at_ms: int = 0

    @property
    def running(self) -> bool:
        """Whether it is in the group and processes records."""
        return self.phase == "running" and self.generation >= 0

    @property
    def is_member(self) -> bool:
        """Whether it is in the group, even if it is about to leave."""
        return self.phase in _IN_THE_GROUP and self.generation >= 0

    @property
    def served_until_ms(self) -> int | None:
        """The last commit of the previous process, where known."""
        return self.restart.served_until_ms if self.restart is not None else None
