"""A group.id that others use, too: nothing is begun then, so that nobody's workers or offsets are touched."""

from __future__ import annotations

from slackwater_operator.model.statefulsets import Span
from slackwater_operator.planner.objects import apply_sets
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.ownership import listed

REASON = "GroupIdInUse"


def note_group_id(context: PlanningContext) -> bool:
    """Notes that somebody else has the group.id. Whether nothing may be done for that.

    A set that is there stays as it is: its workers may be the user's way to another group.id. Only
    spec.suspend ends them.
    """
    why = in_use(context.snapshot)
    if not why:
        return False
    assert context.snapshot.group is not None
    context.trouble(REASON, why)
    context.decided("membership", "wait", why)
    context.hindered = True
    if context.snapshot.group.spec.suspend:
        context.spans = {suffix: Span(one.start, 0) for suffix, one in context.spans.items()}
        context.acts += apply_sets(context, None)
    return True


def in_use(snapshot: GroupSnapshot) -> str:
    """Who has the group.id that this ConsumerGroup names, in words; "": nobody else."""
    assert snapshot.group is not None
    group_id, sharing = snapshot.group.group_id, snapshot.sharing
    advice = (
        "a group.id must belong to one ConsumerGroup only: delete one of the two, and create it again with "
        "another spec.groupId"
    )
    if sharing.ahead:
        return (
            f"ConsumerGroup {sharing.ahead[0]} already uses the group.id {group_id} on this Kafka cluster; "
            f"no worker of this ConsumerGroup runs until that one is deleted: {advice}"
        )
    if sharing.unclear:
        return (
            f"ConsumerGroup {sharing.unclear[0]} has the same group.id {group_id}, and Kafka has not "
            f"reported yet whether both use one cluster; if they do, {advice}"
        )
    others = [one for one in snapshot.foreign_members if one.owner]
    if others and not snapshot.pods:
        return (
            f"workers of another ConsumerGroup are in the group {group_id}: {listed(others)}; no worker of "
            "this ConsumerGroup runs until they have left. If they belong to another Kubernetes cluster, "
            f"or to namespaces of another operator: {advice}"
        )
    return ""
