"""Which static members to remove once a scale-down has left them without a process.

A static member that does not leave is kept by the broker until its session expires, and its partitions
stand still all that time. LeaveGroup with its instance id removes it (KIP-345), and many ids in one request
cost one rebalance. But removal does not stop a live process, which would only join again: the process goes
first. Nor does a member's name identify its owner: another group, also one of another cluster, may give its
workers the same names. Only members known to be of this group (`policies.ownership`) are removed. A removal
is stored only with the next leader's Sync: a coordinator that moves before brings the member back, so removal
is repeated until the group no longer lists the member.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slackwater_operator.model.group import GroupView


@dataclass(frozen=True)
class RemovalDecision:
    """Whom to remove by one LeaveGroup.

    Attributes:
        remove: instance ids, in order; empty: nobody now.
        waiting_for: processes that have to end first.
        reason: one sentence for people.
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
        group: the group, None when the broker did not say.
        ours: which of the group's instance ids are known to be workers of ours; others are left alone.
        wanted: the workers that should be.
        alive: the workers whose process (pod) is there, in whatever state.
        doubtful: which of the group's instance ids are called as workers of ours, but may be somebody else's.
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
