"""The reports of a LocalRun's operations, and its snapshot for a UI."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka.structs import TopicPartition
from slackwater.times import duration
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.controller.session import Session
from slackwater_operator.local.machine.worker import Worker
from slackwater_operator.local.report.returns import ObservedTakeover, Restart
from slackwater_operator.local.report.timeline import Timeline
from slackwater_operator.model.group import CLASSIC_TERMS, Terms, terms


class RunError(Exception):
    """The run cannot go on: one line that says why and what to do."""


class OperationError(RunError):
    """An operation was refused, stopped, or not completed.

    Attributes:
        report: what had happened until then.
    """

    def __init__(self, message: str, report: OperationReport) -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True)
class OperationReport:
    """The cost of an operation.

    Attributes:
        kind: `start`, `scale-up`, `scale-down`, `rolling-restart`, `takeover`, `apply` or `kill`.
        text: what was done, in words.
        began_ms: when it began.
        ended_ms: when the group was settled again.
        outcome: "done", or why not.
        rebalances: how many there were; a cooperative one and its follow-up generation count as one.
        generations: the numbers of the generations that began.
        terms: what these are called.
        unowned_ms: the longest time for which no live process held each partition.
        restarts: the returns of workers, with their gaps.
        takeovers: the members that went from one process to another, with the pauses of their partitions.
        removed: static members that were removed from the group.
    """

    kind: str
    text: str
    began_ms: int
    ended_ms: int
    outcome: str
    rebalances: int
    generations: tuple[int, ...]
    unowned_ms: Mapping[TopicPartition, int]
    restarts: tuple[Restart, ...]
    removed: tuple[str, ...] = ()
    takeovers: tuple[ObservedTakeover, ...] = ()
    terms: Terms = CLASSIC_TERMS

    @property
    def longest_unowned_ms(self) -> int:
        """The longest time for which any partition was unowned."""
        return max(self.unowned_ms.values(), default=0)

    @property
    def summary(self) -> str:
        """The operation and its cost, in one line."""
        rebalances = f"{self.rebalances} {self.terms.rebalance}{'' if self.rebalances == 1 else 's'}"
        pauses = [takeover.longest_ms for takeover in self.takeovers if takeover.longest_ms is not None]
        paused = f", no partition paused for more than {duration(max(pauses))}" if pauses else ""
        took, unowned = duration(self.ended_ms - self.began_ms), duration(self.longest_unowned_ms)
        done = f"{self.text}: done in {took}, {rebalances}"
        return f"{done}, no partition unowned for more than {unowned}{paused}"


@dataclass
class Operation:
    """An operation in progress.

    Attributes:
        kind: as in its report.
        text: what is done, in words.
        began_ms: when it began.
        subjects: the workers that something is done to right now.
        status: what it waits for, in words.
        removed: static members removed so far.
    """

    kind: str
    text: str
    began_ms: int
    subjects: tuple[str, ...] = ()
    status: str = ""
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OperationView:
    """An immutable copy of an `Operation`."""

    kind: str
    text: str
    began_ms: int
    subjects: tuple[str, ...]
    status: str


@dataclass(frozen=True)
class DecisionView:
    """The last decision of a kind, as the status has it.

    Attributes:
        kind: `scaling`, `rollout`, `membership`, `gate`, `preflight` or `topics`.
        at_ms: when it was made first.
        reason: why, in words.
    """

    kind: str
    at_ms: int
    reason: str


@dataclass(frozen=True)
class Notice:
    """A message for the user: an operation, its subject and the reason."""

    ts_ms: int
    text: str


@dataclass(frozen=True)
class WorkerRow:
    """A worker as a UI shows it.

    Attributes:
        name: the member that it is, or is to be: its group.instance.id.
        pod: what its process is called.
        ordinal: its number.
        phase: its phase; `waiting` when it has no process now, `spawned` before its process says one.
        pid: its process, None when it has none.
        port: its health port, None when it has not said it.
        generation: the generation that it joined last, -1 before.
        leader: whether it leads the group.
        assignment: its partitions, in order.
        lag: how many records it is behind, None when unknown.
        revision: the revision of its pod's template.
        restarts: how many processes it has had after the first.
        last_exit: its last process's exit code, negative for a signal, None before.
        error: the message of its last error.
    """

    name: str
    pod: str
    ordinal: int
    phase: str
    pid: int | None
    port: int | None
    generation: int
    leader: bool
    assignment: tuple[TopicPartition, ...]
    lag: int | None
    revision: str
    restarts: int
    last_exit: int | None
    error: str


@dataclass(frozen=True)
class RunSnapshot:
    """A run's state at a moment, for a UI.

    Attributes:
        ts_ms: when.
        group_id: the group.
        group_state: the broker's name for its state; "" when it did not say.
        generation: the newest generation that a worker joined, -1 before.
        terms: what its number is called.
        replicas: how many workers should be.
        workers: the workers, by ordinal; on the way down those that are still there too, and of a member that
            is taken over both.
        partitions: all partitions.
        lag: each partition's lag, None when unknown.
        total_lag: the sum, None when one is unknown.
        ends: each partition's end offset, where known.
        positions: where the group stands in each, where known.
        owners: the member whose process holds each, None when none does.
        operation: what is being done, None when nothing is.
        decisions: the last decision of each kind.
        records: how many records the workers have been through (replays count again).
        out: how many rows they wrote.
        dead: how many went to the dead-letter topic.
        consumed_per_s: records committed a second over the last window, None when not measured yet.
        problems: what could not be observed, and why the group is Degraded or Stuck, in words.
    """

    ts_ms: int
    group_id: str
    group_state: str
    generation: int
    terms: Terms
    replicas: int
    workers: tuple[WorkerRow, ...]
    partitions: tuple[TopicPartition, ...]
    lag: Mapping[TopicPartition, int | None]
    total_lag: int | None
    ends: Mapping[TopicPartition, int]
    positions: Mapping[TopicPartition, int]
    owners: Mapping[TopicPartition, str | None]
    operation: OperationView | None
    decisions: Mapping[str, DecisionView]
    records: int
    out: int
    dead: int
    consumed_per_s: float | None
    problems: tuple[str, ...]


def take_snapshot(
    group: ConsumerGroup,
    replicas: int,
    session: Session | None,
    status: Mapping[str, Any],
    workers: list[Worker],
    timeline: Timeline,
    counts: Mapping[str, int],
    operation: Operation | None,
) -> RunSnapshot:
    """The run's present state, for a UI."""
    kafka = session.kafka if session is not None and not session.unanswered else None
    lag = kafka.lag if kafka else {}
    partitions = session.kafka.partitions if session is not None and session.kafka is not None else ()
    problems = (
        kafka.problems if kafka is not None else (session.kafka_problem,) if session is not None else ()
    )
    decisions = {
        decision["kind"]: DecisionView(decision["kind"], decision["at"], decision.get("reason", ""))
        for decision in status.get("decisions") or []
    }
    degraded = [
        f"{condition['reason']}: {condition['message']}"
        for condition in status.get("conditions") or []
        if condition["type"] in ("Degraded", "Stuck") and condition["status"] == "True"
    ]
    return RunSnapshot(
        ts_ms=SYSTEM_CLOCK.wall_ms(),
        group_id=group.group_id,
        group_state=kafka.group.state if kafka and kafka.group else "",
        generation=timeline.generation,
        terms=terms(consumer_protocol=group.spec.kafka.consumer_protocol),
        replicas=replicas,
        workers=tuple(_row(worker, lag) for worker in workers),
        partitions=partitions,
        lag=lag,
        total_lag=total_lag(lag.values()) if lag else None,
        ends=kafka.ends if kafka else {},
        positions=kafka.positions if kafka else {},
        owners={partition: timeline.owner(partition) for partition in partitions},
        operation=_operation(operation),
        decisions=decisions,
        records=counts["records"],
        out=counts["out"],
        dead=counts["dead"],
        consumed_per_s=session.autoscaler.consumed_per_s if session is not None else None,
        problems=(*(problem for problem in problems if problem), *degraded),
    )


def total_lag(lags: Collection[int | None]) -> int | None:
    """The sum of partitions' lags; None when one is unknown."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None


def _operation(doing: Operation | None) -> OperationView | None:
    if doing is None:
        return None
    return OperationView(doing.kind, doing.text, doing.began_ms, doing.subjects, doing.status)


def _row(worker: Worker, lag: Mapping[TopicPartition, int | None]) -> WorkerRow:
    progress = worker.progress
    return WorkerRow(
        name=worker.name,
        pod=worker.pod,
        ordinal=worker.ordinal,
        phase=progress.phase or ("spawned" if worker.process else "waiting"),
        pid=worker.process.pid if worker.process else None,
        port=progress.port,
        generation=progress.generation,
        leader=progress.leader,
        assignment=tuple(sorted(progress.assignment)),
        lag=total_lag([lag.get(partition) for partition in progress.assignment]),
        revision=worker.revision,
        restarts=max(0, worker.restarts),
        last_exit=worker.last_exit,
        error=progress.error or worker.last_error,
    )
