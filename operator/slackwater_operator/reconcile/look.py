"""What a world comes to: which workers there should be, how they are, and whether the group is settled."""

from __future__ import annotations

from dataclasses import dataclass, field

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.build.names import member_of
from slackwater_operator.decide.settled import unsettled
from slackwater_operator.decide.view import GroupView, WorkerView
from slackwater_operator.reconcile.world import PodSeen, World


@dataclass(frozen=True)
class Look:
    """A world as the decisions look at it.

    Attributes:
        replicas: how many workers the StatefulSet has now, 0 without one.
        names: their pods' names.
        workers: how they are, in that order. A worker is called by its pod.
        held: the partitions that each says it holds.
        leaving: pods that are to go: those from `replicas` on.
        strangers: our own members of the group that are not among `names`.
        group: the group, None when the broker did not say.
        unsettled: what keeps the group from being settled; "" when it is.
    """

    replicas: int
    names: tuple[str, ...]
    workers: tuple[WorkerView, ...]
    held: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    group: GroupView | None = None
    unsettled: str = ""

    def worker(self, name: str) -> WorkerView | None:
        """The worker in the pod of this name, if it should be."""
        return next((one for one in self.workers if one.name == name), None)

    @property
    def running(self) -> int:
        """How many of them are in the group and handle records."""
        return sum(one.running for one in self.workers)


def look(world: World) -> Look:
    """Derives what the decisions need. `world.group` must be there."""
    assert world.group is not None
    replicas = world.statefulset.replicas if world.statefulset is not None else 0
    names = tuple(world.group.instance_id(ordinal) for ordinal in range(replicas))
    lag = world.kafka.lag if world.kafka is not None else {}
    workers = tuple(_worker(world, name, lag) for name in names)
    group = world.kafka_group
    members = group.instance_ids if group is not None else frozenset()
    ours = sorted(one for one in members if world.group.ordinal(one) is not None)
    held = {}
    for pod in world.pods:
        told = world.worker(pod)
        if told is not None:
            held[member_of(pod.name)] = told.assignment
    return Look(
        replicas=replicas,
        names=names,
        workers=workers,
        held=held,
        leaving=tuple(sorted(one.name for one in world.pods if one.name not in names)),
        strangers=tuple(one for one in ours if one not in {member_of(name) for name in names}),
        group=group,
        unsettled=_unsettled(world, workers, held),
    )


def _worker(world: World, name: str, lag: dict[TopicPartition, int | None]) -> WorkerView:
    restart = next((one for one in world.memory.rollout.under_way if one.name == name), None)
    # Away counts from the end of the process that was in the group, not of those that failed since.
    ended_ms = restart.ended_ms if restart is not None else None
    pod = world.pod(name)
    if pod is None:
        return WorkerView(member_of(name), alive=False, phase="", ended_ms=ended_ms)
    told = world.worker(pod) if pod.started else None
    own = [lag.get(partition) for partition in told.assignment] if told is not None else []
    known = [one for one in own if one is not None]
    return WorkerView(
        name=member_of(name),
        alive=pod.started,
        phase=told.phase if told is not None else "",
        revision=pod.revision,
        generation=told.generation if told is not None else -1,
        leader=told.is_leader if told is not None else False,
        ended_ms=ended_ms if ended_ms is not None else pod.ended_ms,
        running_since_ms=told.running_since_ms if told is not None else None,
        lag=sum(known) if told is not None and len(known) == len(own) else None,
        waiting_since_ms=told.waiting_since_ms if told is not None else None,
        failures=pod.restarts,
        uid=pod.uid,
        terminating=pod.deleting,
        trouble=_trouble(pod, told.error if told is not None else ""),
    )


def _trouble(pod: PodSeen, error: str) -> str:
    return error or pod.trouble


def _unsettled(
    world: World, workers: tuple[WorkerView, ...], held: dict[str, frozenset[TopicPartition]]
) -> str:
    """What keeps the group from being settled: also pods that are still to go, or are on their way out."""
    going = sorted(one.name for one in world.pods if one.deleting or one.name not in _names(workers))
    if going:
        return f"{', '.join(going[:3])}{' and more' if len(going) > 3 else ''} is ending"
    partitions = world.kafka.partitions if world.kafka is not None else ()
    return unsettled(world.kafka_group, workers, held, partitions)


def _names(workers: tuple[WorkerView, ...]) -> set[str]:
    return {one.name for one in workers}
