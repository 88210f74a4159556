"""Which workers may join the Kafka group now, and which static members are removed from it.

Joins: each new member causes a rebalance, and all that join during one rebalance cause one together. New
workers therefore warm up first and wait for permission, which a batch gets at once.

Removals: the broker keeps a static member that has not left until its session expires, and nobody reads its
partitions until then. LeaveGroup with its instance id removes it (KIP-345); many ids in one request cause
one rebalance. A live process would join again, so its pod goes first. A member's name does not identify its
owner: another group, also one of another cluster, may use the same names. Only members that are known to
belong to this ConsumerGroup are removed (`policies.membership.ownership`). The broker stores a removal with
the next leader's SyncGroup only; if the coordinator moves before, the member is back. A removal is
therefore repeated until DescribeGroups no longer lists the member.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slackwater_operator.model.group import GroupView, WorkerView


@dataclass(frozen=True)
class GateDecision:
    """The workers that may join.

    Attributes:
        open: the workers that may join now, all at once; empty if none may yet.
        reason: one sentence for users; "" if no worker waits.
    """

    open: tuple[str, ...]
    reason: str


def decide_gate(
    group: GroupView | None, workers: Sequence[WorkerView], *, now_ms: int, patience_ms: int
) -> GateDecision:
    """Decides whether the waiting workers may join.

    Args:
        group: the group; None when the broker did not respond.
        workers: the wanted workers.
        now_ms: the time.
        patience_ms: how long a warm worker waits for the others of its batch.
    """
    waiting = sorted(
        (worker for worker in workers if worker.waiting_since_ms is not None), key=lambda worker: worker.name
    )
    if not waiting:
        return GateDecision((), "")
    names = tuple(worker.name for worker in waiting)
    listed = ", ".join(names)
    if group is None:
        return GateDecision((), f"waiting to join: {listed}; the broker did not report the group's state")
    if not (group.stable or group.memberless):
        return GateDecision((), f"waiting to join: {listed}; the group is {group.state}")
    late = sorted(worker.name for worker in workers if _on_its_way(worker, group))
    since = min(worker.waiting_since_ms for worker in waiting if worker.waiting_since_ms is not None)
    if late and now_ms - since < patience_ms:
        return GateDecision((), f"waiting to join: {listed}; {', '.join(late)} is still starting")
    if late:
        return GateDecision(names, f"{listed} may join without {', '.join(late)}: not warm after too long")
    return GateDecision(names, f"all started workers join at once: {listed}")


def _on_its_way(worker: WorkerView, group: GroupView) -> bool:
    """Whether it is a new worker that will wait for permission but does not yet."""
    if worker.waiting_since_ms is not None or worker.name in group.instance_ids:
        return False
    return worker.phase in ("", "starting", "warming") or not worker.alive


@dataclass(frozen=True)
class RemovalDecision:
    """The members to remove by one LeaveGroup.

    Attributes:
        remove: their instance ids, in order; empty if none is removed now.
        waiting_for: processes that have to end first.
        reason: one sentence for users.
    """

    remove: tuple[str, ...]
    waiting_for: tuple[str, ...]
    reason: str


def decide_removal(
    group: GroupView | None,
    *,
    ours: Collection[str],
    wanted: Collection[str],
    alive: Collection[str],
    doubtful: Collection[str] = (),
) -> RemovalDecision:
    """Decides which orphaned static members to remove.

    Args:
        group: the group; None when the broker did not respond.
        ours: the group's instance ids that are known to be ours; others are not removed.
        wanted: the wanted workers.
        alive: the workers whose pod exists, in any state.
        doubtful: the group's instance ids that have the form of ours, but may belong to somebody else.
    """
    if group is None:
        return RemovalDecision((), (), "the broker did not say who is in the group")
    surplus = group.instance_ids & set(ours) - set(wanted)
    leaving = sorted(set(alive) - set(wanted))
    unknown = sorted(set(doubtful) - set(ours) - set(wanted) - set(alive))
    if not surplus and unknown:
        reason = (
            f"{', '.join(unknown)} is not a current worker, and may belong to another application; it "
            "is removed when its session times out"
        )
        return RemovalDecision((), tuple(leaving), reason)
    if not surplus:
        return RemovalDecision((), tuple(leaving), "no static member is left over")
    names = ", ".join(sorted(surplus))
    if leaving:
        reason = (
            f"{names} is no longer a worker; it is removed from the group when {', '.join(leaving)} has "
            "stopped"
        )
        return RemovalDecision((), tuple(leaving), reason)
    return RemovalDecision(
        tuple(sorted(surplus)), (), f"{names} is no longer a worker, and its process has stopped"
    )
