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
        "a group.id is for one ConsumerGroup: delete one of the two, and make it again with another "
        "spec.groupId"
    )
    if sharing.ahead:
        return (
            f"ConsumerGroup {sharing.ahead[0]} had the group.id {group_id} on this Kafka first; nothing of "
            f"this one runs before that one is gone: {advice}"
        )
    if sharing.unclear:
        return (
            f"ConsumerGroup {sharing.unclear[0]} has the group.id {group_id}, too, and Kafka has not told "
            f"yet whether both are on one cluster; if they are, {advice}"
        )
    others = [one for one in snapshot.foreign_members if one.owner]
    if others and not snapshot.pods:
        return (
            f"workers of another ConsumerGroup are in the group {group_id}: {listed(others)}; nothing of "
            "this one runs before they have left it. If they are of another Kubernetes cluster, or of "
            f"another operator's namespaces: {advice}"
        )
    return ""
