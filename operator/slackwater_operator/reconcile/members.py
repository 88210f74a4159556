"""Who joins the group and who is taken out of it."""

from __future__ import annotations

from slackwater_operator.decide.gate import decide_gate
from slackwater_operator.decide.membership import RemovalDecision, decide_removal
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.plan import OpenGate, RemoveMembers

GATE_PATIENCE_MS = 120_000
"""How long a warm worker waits for the rest of its batch."""


def remove_orphans(draft: Draft, replicas: int) -> RemovalDecision:
    """Removes the members that a scale-down has left over, once their pods are gone.

    A removal is a rebalance, so that it waits for a restart or takeover to be over; and for a StatefulSet,
    without which nobody can tell whose pods are still to come back.
    """
    world, look = draft.world, draft.look
    assert world.group is not None
    count = max(replicas, look.replicas)
    wanted = [world.group.instance_id(ordinal) for ordinal in range(count)]
    decision = decide_removal(
        look.group,
        ours=world.own_members,
        wanted=wanted,
        alive=[one.member for one in world.pods],
        doubtful=world.doubtful_members,
    )
    if decision.remove or decision.waiting_for:
        draft.busy = True
    if not decision.remove or world.statefulset is None or _moving(draft):
        return decision
    if not world.fresh:
        draft.needs_fresh = True
        return decision
    draft.acts.append(RemoveMembers(decision.remove))
    draft.decided("membership", f"remove {', '.join(decision.remove)}", decision.reason)
    draft.tell("MembersRemoved", decision.reason)
    return decision


def open_gates(draft: Draft) -> None:
    """Lets warm newcomers join, all of a batch together; while a member is being moved they wait."""
    world, look = draft.world, draft.look
    decision = decide_gate(look.group, look.workers, now_ms=world.now_ms, patience_ms=GATE_PATIENCE_MS)
    if decision.reason:
        draft.busy = True
    moving = _moving(draft)
    let_in = tuple(one for one in decision.open if not moving or one in moving)
    serving = [world.pod(one) for one in let_in]
    pods = [one for one in serving if one is not None and one.ip and not one.deleting]
    if pods:
        draft.acts.append(OpenGate(tuple((one.name, one.ip) for one in pods)))
        draft.decided("gate", "open", decision.reason)
        draft.tell("GateOpened", decision.reason)


def _moving(draft: Draft) -> frozenset[str]:
    """The members that are being restarted or taken over."""
    assert draft.world.group is not None
    found = {draft.world.member_of(one.name) for one in draft.rollout.under_way}
    if draft.rollout.moving is not None:
        found.add(draft.world.group.instance_id(draft.rollout.moving.ordinal))
    return frozenset(found)
