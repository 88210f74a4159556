"""A group.id that others use, too: nothing is begun then, so that nobody's workers or offsets are touched."""

from __future__ import annotations

from slackwater_operator.model.statefulsets import Ordinals
from slackwater_operator.planner.objects import apply_sets
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.snapshot import GROUP_ID_IN_USE, GroupSnapshot
from slackwater_operator.policies.group_id_contest import MARGIN_MS, gives_way
from slackwater_operator.policies.ownership import listed
from slackwater_operator.specs.statefulset import GRACE_BEYOND_DRAIN_MS

_ADVICE = (
    "a group.id must belong to one ConsumerGroup only: delete one of the two, and create it again with "
    "another spec.groupId"
)


def note_group_id(context: PlanningContext) -> bool:
    """Notes that somebody else has the group.id. Whether nothing may be done for that.

    A set that is there stays as it is: its workers may be on another Kafka. Those that are in one group with
    the owner's are stopped; nobody is removed from that group, since a member of the same name may be the
    owner's by now. spec.suspend ends the workers in any case.
    """
    snapshot = context.snapshot
    assert snapshot.group is not None
    leaves = _leaves(snapshot)
    why = leaves or in_use(snapshot)
    if not why:
        return False
    context.trouble(GROUP_ID_IN_USE, why)
    context.decided("membership", "wait", why)
    context.hindered, context.gives_way = True, bool(leaves)
    if leaves or snapshot.group.spec.suspend:
        _stop_workers(context)
    return True


def _stop_workers(context: PlanningContext) -> None:
    if context.gives_way and any(span.replicas for span in context.spans.values()):
        context.report(GROUP_ID_IN_USE, context.troubles[-1].message, warning=True)
    context.spans = {suffix: Ordinals(span.start, 0) for suffix, span in context.spans.items()}
    context.change_rollout(under_way=(), moving=None, ended_ms=None)
    context.acts += apply_sets(context, None)


def in_use(snapshot: GroupSnapshot) -> str:
    """Who has the group.id that this ConsumerGroup names, in words; "": nobody else."""
    assert snapshot.group is not None
    group_id, sharing = snapshot.group.group_id, snapshot.sharing
    if sharing.ahead:
        return (
            f"ConsumerGroup {sharing.ahead[0]} already uses the group.id {group_id} on this Kafka cluster; "
            f"no worker of this ConsumerGroup runs until that one is deleted: {_ADVICE}"
        )
    if sharing.unclear:
        return (
            f"ConsumerGroup {sharing.unclear[0]} has the same group.id {group_id}, and Kafka has not "
            f"reported yet whether both use one cluster; if they do, {_ADVICE}"
        )
    others = [one for one in snapshot.foreign_members if one.owner]
    if others and not snapshot.pods:
        return (
            f"workers of another ConsumerGroup are in the group {group_id}: {listed(others)}; no worker of "
            "this ConsumerGroup runs until they have left. If they belong to another Kubernetes cluster, "
            f"or to namespaces of another operator: {_ADVICE}"
        )
    return ""


def _leaves(snapshot: GroupSnapshot) -> str:
    """Why this one's workers leave the group where they, too, have run in; "": they do not."""
    contest, sharing = snapshot.measured.contest, snapshot.sharing
    assert snapshot.group is not None
    if contest is None:
        return ""
    rivals = [member for member in contest.rivals if member.owner not in sharing.behind_uids]
    if sharing.ahead:
        owner = f"ConsumerGroup {sharing.ahead[0]} uses it on this Kafka cluster"
    else:
        why = gives_way(
            contest,
            snapshot.uid,
            exclusive=snapshot.memory.kafka is not None and snapshot.memory.kafka.exclusive,
            behind=sharing.behind_uids,
            patience_ms=_patience_ms(snapshot),
        )
        if not why:
            return ""
        owner = f"workers of it are in the group: {listed(rivals)}; and {why}"
    return (
        f"another ConsumerGroup has the group.id {snapshot.group.group_id}: {owner}. The workers of this "
        f"ConsumerGroup are stopped, and start again some minutes after the others have left: {_ADVICE}"
    )


def _patience_ms(snapshot: GroupSnapshot) -> int:
    """How long the members of one that gives way may be seen: its workers end, then their sessions do. The
    other one's settings are not known; ours stand for them."""
    assert snapshot.group is not None
    grace_ms = snapshot.group.spec.delivery.drain_timeout_ms + GRACE_BEYOND_DRAIN_MS
    return grace_ms + snapshot.group.session_timeout_ms + MARGIN_MS
