"""Who joins the group and who is taken out of it."""

from __future__ import annotations

from slackwater_operator.build.names import member_of
from slackwater_operator.decide.gate import decide_gate
from slackwater_operator.decide.membership import RemovalDecision, decide_removal
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.plan import OpenGate, RemoveMembers

GATE_PATIENCE_MS = 120_000
"""How long a warm worker waits for the rest of its batch."""


def remove_orphans(draft: Draft, replicas: int) -> RemovalDecision:
    """Removes the members that a scale-down has left over, once their pods are gone.

    A removal is a rebalance, so that it waits for a restart to be over; and for a StatefulSet, without which
    nobody can tell whose pods are still to come back.
    """
    world, look = draft.world, draft.look
    assert world.group is not None
    count = max(replicas, look.replicas)
    wanted = [member_of(world.group.instance_id(ordinal)) for ordinal in range(count)]
    members = look.group.instance_ids if look.group is not None else frozenset()
    decision = decide_removal(
        look.group,
        ours=[one for one in members if world.group.ordinal(one) is not None],
        wanted=wanted,
        alive=[member_of(one.name) for one in world.pods],
    )
    if decision.remove or decision.waiting_for:
        draft.busy = True
    if not decision.remove or world.statefulset is None or draft.rollout.under_way:
        return decision
    if not world.fresh:
        draft.needs_fresh = True
        return decision
    draft.acts.append(RemoveMembers(decision.remove))
    draft.decided("membership", f"remove {', '.join(decision.remove)}", decision.reason)
    draft.tell("MembersRemoved", decision.reason)
    return decision


def open_gates(draft: Draft) -> None:
    """Lets warm newcomers join, all of a batch together; while a worker is being restarted they wait."""
    world, look = draft.world, draft.look
    decision = decide_gate(look.group, look.workers, now_ms=world.now_ms, patience_ms=GATE_PATIENCE_MS)
    if decision.reason:
        draft.busy = True
    restarting = {one.name for one in draft.rollout.under_way}
    let_in = tuple(one for one in decision.open if not restarting or one in restarting)
    if not let_in:
        return
    pods = [one for one in world.pods if member_of(one.name) in let_in and one.ip and not one.deleting]
    if pods:
        draft.acts.append(OpenGate(tuple((one.name, one.ip) for one in pods)))
        draft.decided("gate", "open", decision.reason)
        draft.tell("GateOpened", decision.reason)
