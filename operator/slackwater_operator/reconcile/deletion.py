"""The end of a group whose Kafka group is to be deleted with it (spec.deletionPolicy: Delete).

Without that policy there is no finalizer, and nothing to do here: the garbage collector takes the objects,
and the controller takes the members out of the group when the pods are gone.
"""

from __future__ import annotations

from slackwater_operator.build.names import FINALIZER
from slackwater_operator.decide.view import DEAD
from slackwater_operator.reconcile.plan import (
    Action,
    DeleteKafkaGroup,
    DeleteObject,
    EmitEvent,
    Plan,
    RemoveMembers,
    SetFinalizers,
)
from slackwater_operator.reconcile.world import World

DELETE = "Delete"


def wanted_finalizers(world: World) -> tuple[str, ...] | None:
    """The finalizers that the ConsumerGroup should have; None when it has them."""
    assert world.group is not None
    others = tuple(one for one in world.finalizers if one != FINALIZER)
    wanted = (*others, FINALIZER) if world.group.spec.deletion_policy == DELETE else others
    return None if sorted(wanted) == sorted(world.finalizers) else wanted


def end(world: World) -> Plan:
    """What is left to do for a ConsumerGroup that is being deleted."""
    if FINALIZER not in world.finalizers:
        return Plan(status=world.status)
    if world.group is None or world.group.spec.deletion_policy != DELETE:
        return _plan(world, [_release(world)])
    left = [one for one in world.sets.values() if not one.deleting]
    if left:
        return _plan(world, [DeleteObject("apps/v1", "StatefulSet", one.name, one.uid) for one in left])
    if world.sets or world.pods:
        return _plan(world, [])
    return _delete_group(world)


def _delete_group(world: World) -> Plan:
    """The pods are gone: the members are removed, the group is deleted, the resource may go."""
    assert world.group is not None
    group = world.kafka_group
    if group is None:
        waits = (
            f"the brokers do not answer; to delete it without Kafka's group, remove the finalizer {FINALIZER}"
        )
        return _plan(world, [EmitEvent("DeletionWaits", waits, warning=True)])
    if group.state == DEAD:
        return _plan(world, [_release(world)])
    ours = tuple(sorted(one for one in group.instance_ids if world.group.ordinal(one) is not None))
    if ours:
        if not world.fresh:
            return Plan(status=world.status, needs_fresh=True, busy=True, wake_ms=world.now_ms + 1_000)
        return _plan(world, [RemoveMembers(ours)])
    if group.members:
        others = f"Kafka's group {world.group.group_id} has other members, and is not deleted"
        return _plan(world, [EmitEvent("GroupKept", others, warning=True), _release(world)])
    return _plan(world, [DeleteKafkaGroup(), _release(world)])


def _release(world: World) -> SetFinalizers:
    return SetFinalizers(tuple(one for one in world.finalizers if one != FINALIZER))


def _plan(world: World, actions: list[Action]) -> Plan:
    return Plan(tuple(actions), world.status, busy=True, wake_ms=world.now_ms + 1_000)
