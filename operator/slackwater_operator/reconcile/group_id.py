"""A group.id that others use, too: nothing is begun then, so that nobody's workers or offsets are touched."""

from __future__ import annotations

from slackwater_operator.decide.ownership import listed
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.objects import apply_sets
from slackwater_operator.reconcile.sets import Span
from slackwater_operator.reconcile.world import World

REASON = "GroupIdInUse"


def note_group_id(draft: Draft) -> bool:
    """Notes that somebody else has the group.id. Whether nothing may be done for that.

    A set that is there stays as it is: its workers may be the user's way to another group.id. Only
    spec.suspend ends them.
    """
    why = in_use(draft.world)
    if not why:
        return False
    assert draft.world.group is not None
    draft.trouble(REASON, why)
    draft.decided("membership", "wait", why)
    draft.hindered = True
    if draft.world.group.spec.suspend:
        draft.spans = {suffix: Span(one.start, 0) for suffix, one in draft.spans.items()}
        draft.acts += apply_sets(draft, None)
    return True


def in_use(world: World) -> str:
    """Who has the group.id that this ConsumerGroup names, in words; "": nobody else."""
    assert world.group is not None
    group_id, sharing = world.group.group_id, world.sharing
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
    others = [one for one in world.foreign_members if one.owner]
    if others and not world.pods:
        return (
            f"workers of another ConsumerGroup are in the group {group_id}: {listed(others)}; nothing of "
            "this one runs before they have left it. If they are of another Kubernetes cluster, or of "
            f"another operator's namespaces: {advice}"
        )
    return ""
