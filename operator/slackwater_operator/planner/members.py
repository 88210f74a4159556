"""Who joins the group and who is taken out of it."""

from __future__ import annotations

from slackwater_operator.planner.actions import OpenGate, RemoveMembers
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.policies.rollout.gate import decide_gate
from slackwater_operator.policies.rollout.member_removal import RemovalDecision, decide_removal

GATE_PATIENCE_MS = 120_000
"""How long a warm worker waits for the rest of its batch."""


def remove_orphans(context: PlanningContext, replicas: int) -> RemovalDecision:
    """Removes the members that a scale-down has left over, once their pods are gone.

    A removal is a rebalance, so that it waits for a restart or takeover to be over; and for a StatefulSet,
    without which nobody can tell whose pods are still to come back.
    """
    snapshot, derived = context.snapshot, context.derived
    assert snapshot.group is not None
    count = max(replicas, derived.replicas)
    wanted = [snapshot.group.instance_id(ordinal) for ordinal in range(count)]
    decision = decide_removal(
        derived.group,
        ours=snapshot.own_members,
        wanted=wanted,
        alive=[one.member for one in snapshot.pods],
        doubtful=snapshot.doubtful_members,
    )
    if decision.remove or decision.waiting_for:
        context.busy = True
    if not decision.remove or snapshot.statefulset is None or _moving(context):
        return decision
    if not snapshot.fresh:
        context.needs_fresh = True
        return decision
    context.acts.append(RemoveMembers(decision.remove))
    context.decided("membership", f"remove {', '.join(decision.remove)}", decision.reason)
    context.tell("MembersRemoved", decision.reason)
    return decision


def open_gates(context: PlanningContext) -> None:
    """Lets warm newcomers join, all of a batch together; while a member is being moved they wait."""
    snapshot, derived = context.snapshot, context.derived
    decision = decide_gate(
        derived.group, derived.workers, now_ms=snapshot.now_ms, patience_ms=GATE_PATIENCE_MS
    )
    if decision.reason:
        context.busy = True
    moving = _moving(context)
    let_in = tuple(one for one in decision.open if not moving or one in moving)
    serving = [snapshot.pod(one) for one in let_in]
    pods = [one for one in serving if one is not None and one.ip and not one.deleting]
    if pods:
        context.acts.append(OpenGate(tuple((one.name, one.ip, one.port) for one in pods)))
        context.decided("gate", "open", decision.reason)
        context.tell("GateOpened", decision.reason)


def _moving(context: PlanningContext) -> frozenset[str]:
    """The members that are being restarted or taken over."""
    assert context.snapshot.group is not None
    found = {context.snapshot.member_of(one.name) for one in context.rollout.under_way}
    if context.rollout.moving is not None:
        found.add(context.snapshot.group.instance_id(context.rollout.moving.ordinal))
    return frozenset(found)
