"""Plans who is in the Kafka group: a group.id that others use, new workers, and members that are left over.

Nothing is started for a ConsumerGroup whose group.id belongs to another one, so that neither workers nor
offsets of the other are affected.
"""

from __future__ import annotations

from collections.abc import Collection

from slackwater_operator.model.statefulsets import Ordinals
from slackwater_operator.planner.actions import AnnounceRebalance, OpenGate, RemoveMembers
from slackwater_operator.planner.objects import apply_sets
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.snapshot import GROUP_ID_IN_USE, GroupSnapshot
from slackwater_operator.policies.membership.group_id import MARGIN_MS, gives_way
from slackwater_operator.policies.membership.joins_and_removals import (
    RemovalDecision,
    decide_gate,
    decide_removal,
)
from slackwater_operator.policies.membership.ownership import listed
from slackwater_operator.specs.statefulset import termination_grace_ms

_ADVICE = (
    "a group.id must belong to one ConsumerGroup only: delete one of the two, and create it again with "
    "another spec.groupId"
)


def note_group_id(context: PlanningContext) -> bool:
    """Reports that another ConsumerGroup has the group.id. Returns whether planning ends there.

    Existing StatefulSets are left as they are: their workers may be on another Kafka cluster. Workers in one
    group with the owner's are stopped. No member is removed from that group, since a member of the same name
    may belong to the owner by now. spec.suspend stops the workers in any case.
    """
    snapshot = context.snapshot
    assert snapshot.group is not None
    leaves = _leaves(snapshot)
    why = leaves or in_use(snapshot)
    if not why:
        return False
    context.needs_attention(GROUP_ID_IN_USE, why, stalls=bool(leaves or snapshot.sharing.ahead))
    context.decided("membership", "wait", why)
    context.hindered, context.gives_way = True, bool(leaves)
    if leaves or snapshot.group.spec.suspend:
        _stop_workers(context)
    return True


def _stop_workers(context: PlanningContext) -> None:
    if context.gives_way and any(span.replicas for span in context.spans.values()):
        context.emit_before(GROUP_ID_IN_USE, context.troubles[-1].message, warning=True)
    context.spans = {suffix: Ordinals(span.start, 0) for suffix, span in context.spans.items()}
    context.change_rollout(under_way=(), moving=None)
    context.acts += apply_sets(context, None)


def in_use(snapshot: GroupSnapshot) -> str:
    """Who has the group.id that this ConsumerGroup names, in words; "" if nobody else."""
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
    others = [member for member in snapshot.foreign_members if member.owner]
    if others and not snapshot.pods:
        return (
            f"workers of another ConsumerGroup are in the group {group_id}: {listed(others)}; no worker of "
            "this ConsumerGroup runs until they have left. If they belong to another Kubernetes cluster, "
            f"or to namespaces of another operator: {_ADVICE}"
        )
    return ""


def _leaves(snapshot: GroupSnapshot) -> str:
    """Why this ConsumerGroup's workers leave the group that they share with others; "" if they stay."""
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
    """How long the members of a group that gives way may remain: its workers end, then their sessions expire.

    The other group's settings are unknown; ours are used in their place.
    """
    assert snapshot.group is not None
    grace_ms = termination_grace_ms(snapshot.group)
    return grace_ms + snapshot.session_timeout_ms + MARGIN_MS


GATE_PATIENCE_MS = 120_000
"""How long a warm worker waits for the rest of its batch."""


def remove_orphans(context: PlanningContext, replicas: int) -> RemovalDecision:
    """Removes the members that a scale-down has left over, once their pods are gone.

    A removal causes a rebalance, so it waits for the end of a restart or takeover. It also waits for a
    StatefulSet: without one it is not known whose pods are still to return.
    """
    snapshot, derived = context.snapshot, context.derived
    assert snapshot.group is not None
    count = max(replicas, derived.replicas)
    wanted = [snapshot.group.instance_id(ordinal) for ordinal in range(count)]
    decision = decide_removal(
        derived.group,
        ours=snapshot.own_members,
        wanted=wanted,
        alive=[pod.member for pod in snapshot.pods],
        doubtful=snapshot.doubtful_members,
    )
    if decision.remove or decision.waiting_for:
        context.busy = True
    if not decision.remove or snapshot.statefulset is None or _moving(context):
        return decision
    if not snapshot.fresh:
        context.needs_fresh = True
        return decision
    context.acts.append(RemoveMembers(decision.remove, snapshot.member_ids(decision.remove)))
    _announce(context)
    context.decided("membership", f"remove {', '.join(decision.remove)}", decision.reason)
    context.emit_after("MembersRemoved", decision.reason)
    return decision


def open_gates(context: PlanningContext) -> None:
    """Permits warm new workers to join, all of a batch at once. They wait while a member is being moved."""
    snapshot, derived = context.snapshot, context.derived
    decision = decide_gate(
        derived.group, derived.workers, now_ms=snapshot.now_ms, patience_ms=GATE_PATIENCE_MS
    )
    if decision.reason:
        context.busy = True
    moving = _moving(context)
    let_in = tuple(member for member in decision.open if not moving or member in moving)
    serving = [snapshot.pod(member) for member in let_in]
    pods = [pod for pod in serving if pod is not None and pod.ip and not pod.deleting]
    if pods:
        context.acts.append(OpenGate(tuple((pod.name, pod.ip, pod.port) for pod in pods)))
        _announce(context)
        context.decided("gate", "open", decision.reason)
        context.emit_after("GateOpened", decision.reason)


def announce_step(context: PlanningContext) -> None:
    """Announces a step down, before the pods that it removes are stopped."""
    group, step = context.snapshot.group, context.step
    assert group is not None
    if step is not None and step[1] < step[0]:
        _announce(context, {group.instance_id(ordinal) for ordinal in range(step[1], step[0])})


def _announce(context: PlanningContext, removed: Collection[str] = ()) -> None:
    """``removed``: the members that a step down removes."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    if not snapshot.group.spec.kafka.consumer_protocol:
        return
    running = [snapshot.pod(worker.name) for worker in context.derived.workers if worker.running]
    members = {pod.member: (pod.name, pod.ip, pod.port) for pod in running if pod is not None and pod.ip}
    if members:
        pods = tuple(address for member, address in members.items() if member not in removed)
        leaving = tuple(address for member, address in members.items() if member in removed)
        context.acts.append(AnnounceRebalance(pods, leaving))


def _moving(context: PlanningContext) -> frozenset[str]:
    """The members that are being restarted or taken over."""
    assert context.snapshot.group is not None
    members = {context.snapshot.member_of(restart.name) for restart in context.rollout.under_way}
    if context.rollout.moving is not None:
        members.add(context.snapshot.group.instance_id(context.rollout.moving.ordinal))
    return frozenset(members)
