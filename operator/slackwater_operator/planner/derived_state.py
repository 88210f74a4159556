"""State that is derived from a snapshot: the wanted workers, their state, whether the group is settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GroupView, WorkerView
from slackwater_operator.planner.snapshot import GroupSnapshot, PodSnapshot
from slackwater_operator.policies.membership.lost_nodes import PlacedWorker, advice, lost_workers
from slackwater_operator.policies.rollout.stability import unsettled


@dataclass(frozen=True)
class DerivedState:
    """A snapshot in the form that the policies use: members, each with the pod that serves it.

    Attributes:
        replicas: the number of members that the StatefulSets have now; 0 without a StatefulSet.
        names: the members' names.
        workers: the members' workers, in that order. A worker has its member's name.
        held: the partitions that each worker reports to hold.
        orphans: members of the group that are, or may be, ours but are not among `names`.
        group: the group; None when the broker did not respond.
        unsettled: why the group is not settled; "" when it is.
        lost: the pods whose node is lost, or may be.
    """

    replicas: int
    names: tuple[str, ...]
    workers: tuple[WorkerView, ...]
    held: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    orphans: tuple[str, ...] = ()
    group: GroupView | None = None
    unsettled: str = ""
    lost: tuple[PlacedWorker, ...] = ()

    def worker(self, name: str) -> WorkerView | None:
        """The worker of a member; None if the member is not wanted."""
        return next((worker for worker in self.workers if worker.name == name), None)

    @property
    def running(self) -> int:
        """The number of workers that are in the group and process records."""
        return sum(worker.running for worker in self.workers)

    @property
    def away(self) -> str:
        """A worker that does not respond with its node, or fails, and what is known of it; "" without one."""
        if self.lost:
            return f"{self.lost[0].pod} on node {self.lost[0].node} stopped responding"
        failing = (worker for worker in self.workers if not worker.running and worker.trouble)
        return next((f"{worker.pod or worker.name}: {worker.trouble}" for worker in failing), "")

    @property
    def generation(self) -> int:
        """The newest generation of any worker; -1 without any."""
        return max((worker.generation for worker in self.workers), default=-1)


def derive(snapshot: GroupSnapshot) -> DerivedState:
    """Derives the state. Requires `snapshot.group`."""
    assert snapshot.group is not None
    names = tuple(snapshot.group.instance_id(ordinal) for ordinal in range(snapshot.replicas))
    lag = lag_of(snapshot)
    workers = tuple(worker_view(snapshot, name, snapshot.pod(name), lag) for name in names)
    ours = sorted(snapshot.own_members | snapshot.doubtful_members)
    held = {}
    for name in names:
        pod = snapshot.pod(name)
        status = snapshot.worker(pod) if pod is not None else None
        if status is not None:
            held[name] = status.assignment
    lost = _lost(snapshot)
    return DerivedState(
        replicas=snapshot.replicas,
        names=names,
        workers=workers,
        held=held,
        orphans=tuple(member for member in ours if member not in set(names)),
        group=snapshot.kafka_group,
        unsettled=_unsettled(snapshot, workers, held, lost),
        lost=lost,
    )


def _lost(snapshot: GroupSnapshot) -> tuple[PlacedWorker, ...]:
    """The pods whose node is lost or may be, including pods that should have been deleted by now."""
    group = snapshot.kafka_group
    placed = [
        PlacedWorker(
            pod.name,
            pod.node,
            ready=pod.ready,
            node_lost=pod.node_lost,
            silent=snapshot.silent(pod),
            is_member=pod.member in group.instance_ids if group is not None else None,
            deleted_ms=pod.deleted_ms,
        )
        for pod in snapshot.pods
    ]
    return lost_workers(placed, now_ms=snapshot.now_ms)


def lag_of(snapshot: GroupSnapshot) -> Mapping[TopicPartition, int | None]:
    """The lag of each partition, None where it is unknown."""
    return snapshot.kafka.lag if snapshot.kafka is not None else {}


def worker_view(
    snapshot: GroupSnapshot, member: str, pod: PodSnapshot | None, lag: Mapping[TopicPartition, int | None]
) -> WorkerView:
    """A member's worker in one of its pods; a worker that is not alive where the pod is None."""
    # The time away counts from the end of the process that was in the group, not of later ones that failed.
    restart = next(
        (
            restart
            for restart in snapshot.memory.rollout.under_way
            if pod is not None and restart.name == pod.name
        ),
        None,
    )
    ended_ms = restart.ended_ms if restart is not None else _ended_ms(snapshot, member)
    if pod is None:
        lacking = (why for name, why in snapshot.not_created.items() if snapshot.member_of(name) == member)
        return WorkerView(member, ended_ms=ended_ms, trouble=next(lacking, ""))
    worker = WorkerView(
        name=member,
        alive=pod.started,
        revision=pod.revision,
        ended_ms=ended_ms if ended_ms is not None else pod.ended_ms,
        failures=pod.restarts,
        uid=pod.uid,
        terminating=pod.deleting,
        trouble=_kept(snapshot, pod) or pod.trouble,
        pod=pod.name,
        can_hand_over=pod.can_hand_over,
    )
    status = snapshot.worker(pod) if pod.started else None
    if status is None:
        return worker
    own = [lag.get(partition) for partition in status.assignment]
    known = [lag_of_partition for lag_of_partition in own if lag_of_partition is not None]
    return replace(
        worker,
        phase=status.phase,
        generation=status.generation,
        leader=status.is_leader,
        running_since_ms=status.running_since_ms,
        lag=sum(known) if len(known) == len(own) else None,
        waiting_since_ms=status.waiting_since_ms,
        trouble=status.error or (status.standby.reason if status.standby is not None else "") or pod.trouble,
        holder=pod.name if status.is_member else status.holder,
        standby_since_ms=status.standby.since_ms if status.standby is not None else None,
        handed_over=status.standby is not None and status.standby.handed_over,
        member_id=status.member_id,
        unwritten=len(status.takeover.waiting_ms) if status.takeover is not None else 0,
    )


def _kept(snapshot: GroupSnapshot, pod: PodSnapshot) -> str:
    """What keeps a pod that should be gone by now; "" if nothing does."""
    overdue = pod.deleted_ms is not None and snapshot.now_ms > pod.deleted_ms
    return pod.held_up if overdue else ""


def _ended_ms(snapshot: GroupSnapshot, member: str) -> int | None:
    """When the previous pod ended, for a member whose restarted pod is gone or that moves to the other set by
    restart."""
    for restart in snapshot.memory.rollout.under_way:  # the pod is gone; only the note remains
        if snapshot.pod_named(restart.name) is None and snapshot.member_of(restart.name) == member:
            return restart.ended_ms
    moving = snapshot.memory.rollout.moving
    if moving is None or snapshot.group is None or snapshot.group.ordinal(member) != moving.ordinal:
        return None
    return moving.ended_ms


def _unsettled(
    snapshot: GroupSnapshot,
    workers: tuple[WorkerView, ...],
    held: dict[str, frozenset[TopicPartition]],
    lost: tuple[PlacedWorker, ...],
) -> str:
    """Why the group is not settled, including pods that are terminating or have to go.

    A pod beside the one that serves its member does not count: it is in standby, or has handed over.
    """
    names = {worker.name for worker in workers}
    serving = {worker.pod for worker in workers}
    going = sorted(
        pod.name
        for pod in snapshot.pods
        if pod.member not in names or (pod.name in serving and (pod.deleting or not _stays(snapshot, pod)))
    )
    stranded = advice([pod for pod in lost if pod.pod in going])
    if stranded:
        return stranded
    if going:
        kept = next((f": {pod.held_up}" for pod in snapshot.pods if pod.name in going and pod.held_up), "")
        return f"{', '.join(going[:3])}{' and more' if len(going) > 3 else ''} is terminating{kept}"
    partitions = snapshot.kafka.partitions if snapshot.kafka is not None else ()
    reason = advice(lost)
    return unsettled(snapshot.kafka_group, workers, held, partitions, {pod.pod: reason for pod in lost})


def _stays(snapshot: GroupSnapshot, pod: PodSnapshot) -> bool:
    """Whether the pod's StatefulSet still has its ordinal."""
    there = snapshot.sets.get(pod.suffix)
    return there is not None and pod.ordinal in there.span
