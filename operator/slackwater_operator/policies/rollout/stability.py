"""Whether the group is settled: Stable, with exactly the wanted members, and every partition held."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GROUP_UNKNOWN, GroupView, WorkerView, terms_of


def unsettled(
    group: GroupView | None,
    workers: Collection[WorkerView],
    held: Mapping[str, Collection[TopicPartition]],
    partitions: Collection[TopicPartition],
    lost: Mapping[str, str] | None = None,
) -> str:
    """Why the group is not settled, in words; "" when it is.

    Settled means: the group is Stable; its members are exactly the wanted workers; all run in the same
    generation and hold what the broker reports; and every partition is held. Between the two phases of a
    cooperative rebalance a group is Stable as well, but nobody holds the revoked partitions.

    Args:
        group: the group; None when the broker did not respond.
        workers: the wanted workers.
        held: the partitions that each worker reports to hold.
        partitions: all partitions of the topics.
        lost: by pod on a lost node, the advice about it (`lost_nodes.advice`).
    """
    if group is None:
        return GROUP_UNKNOWN
    for worker in workers:
        if not worker.running and lost and worker.pod in lost:
            return lost[worker.pod]
        if not worker.running:
            return f"{worker.name} is {worker.phase or ('starting' if worker.alive else 'not started')}"
    if not workers:
        strangers = f" with {len(group.members)} members" if group.members else ""
        return "" if group.memberless else f"the group is still {group.state}{strangers}"
    if not group.stable:
        return group.situation
    names = {worker.name for worker in workers}
    missing = sorted(names - group.instance_ids)
    if missing:
        return f"{', '.join(missing)} is not in the group"
    others = [member for member in group.members if member.instance_id not in names]
    if others:
        listed = ", ".join(sorted(member.instance_id or member.member_id for member in others))
        return f"{listed} is in the group, but is not one of its workers"
    return _assignment(group, workers, held, partitions)


def _assignment(
    group: GroupView,
    workers: Collection[WorkerView],
    held: Mapping[str, Collection[TopicPartition]],
    partitions: Collection[TopicPartition],
) -> str:
    generations = sorted({worker.generation for worker in workers})
    if len(generations) > 1:
        return f"workers are in {terms_of(group).generation}s {', '.join(map(str, generations))}"
    for worker in workers:
        member = group.member(worker.name)
        if member is None or member.partitions != frozenset(held.get(worker.name, ())):
            return f"{worker.name} has not taken up all its assigned partitions yet"
    free = set(partitions) - {partition for member in group.members for partition in member.partitions}
    if free:
        first = ", ".join(str(partition) for partition in sorted(free)[:3])
        return f"{len(free)} partitions are not assigned to any member ({first})"
    return ""
