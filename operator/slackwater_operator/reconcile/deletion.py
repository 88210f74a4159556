"""The end of a group whose Kafka group is to be deleted with it (spec.deletionPolicy: Delete).

Without that policy there is no finalizer, and nothing to do here: the garbage collector takes the objects,
and the controller takes the members out of the group when the pods are gone.
"""

from __future__ import annotations

from slackwater_operator.build.names import FINALIZER
from slackwater_operator.build.pod_template import GRACE_BEYOND_DRAIN_MS
from slackwater_operator.decide.ownership import listed
from slackwater_operator.decide.view import DEAD
from slackwater_operator.reconcile.plan import (
    Action,
    DeleteKafkaGroup,
    DeleteObject,
    EmitEvent,
    Plan,
    RemoveMembers,
    SetFinalizers,
    WriteStatus,
)
from slackwater_operator.reconcile.status import status_of_deletion
from slackwater_operator.reconcile.world import World

DELETE = "Delete"
_SESSION_MARGIN_MS = 30_000
"""For a broker that looks for ended sessions late, and for clocks that differ."""


def wanted_finalizers(world: World) -> tuple[str, ...] | None:
    """The finalizers that the ConsumerGroup should have; None when it has them."""
    assert world.group is not None
    others = tuple(one for one in world.finalizers if one != FINALIZER)
    wanted = (*others, FINALIZER) if world.group.spec.deletion_policy == DELETE else others
    return None if sorted(wanted) == sorted(world.finalizers) else wanted


def end(world: World) -> Plan:
    """What is left to do for a ConsumerGroup that is being deleted."""
    if FINALIZER not in world.finalizers:
        waits = f"the finalizers {', '.join(world.finalizers)} keep it" if world.finalizers else ""
        return _plan(world, [], waits)
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
    if world.sharing.ahead:
        return _keep(world, f"ConsumerGroup {world.sharing.ahead[0]} had that group.id first, and uses it")
    ours = tuple(sorted(world.own_members))
    if ours:
        if not world.fresh:
            return Plan(status=world.status, needs_fresh=True, busy=True, wake_ms=world.now_ms + 1_000)
        return _plan(world, [RemoveMembers(ours)])
    if world.foreign_members:
        return _keep(
            world, f"{listed(world.foreign_members)} is in it, but is no worker of this ConsumerGroup"
        )
    if group.members and world.now_ms < _patience_ends_ms(world):
        waits = (
            f"{listed(group.members)} may be a worker of this ConsumerGroup or somebody else's, and is left "
            f"alone; Kafka's group {world.group.group_id} is deleted when its session has ended"
        )
        return _plan(world, [EmitEvent("DeletionWaits", waits, warning=True)])
    if group.members:
        return _keep(
            world, f"{listed(group.members)} is still in it, and is not known to be of this ConsumerGroup"
        )
    if world.sharing.behind:
        return _keep(world, f"ConsumerGroup {world.sharing.behind[0]} names that group.id, too")
    if world.memory.kafka is None and not world.memory.rollout.good:
        return _keep(world, "this ConsumerGroup has never used it")
    return _plan(world, [DeleteKafkaGroup(), _release(world)])


def _patience_ends_ms(world: World) -> int:
    """Until when members that may be ours are waited for: their processes are gone, so their sessions end."""
    assert world.group is not None
    grace_ms = world.group.spec.delivery.drain_timeout_ms + GRACE_BEYOND_DRAIN_MS
    return world.deleted_ms + grace_ms + world.group.session_timeout_ms + _SESSION_MARGIN_MS


def _keep(world: World, why: str) -> Plan:
    """The resource goes, Kafka's group and its offsets stay."""
    assert world.group is not None
    kept = f"Kafka's group {world.group.group_id} and its offsets are not deleted: {why}"
    return _plan(world, [EmitEvent("GroupKept", kept, warning=True), _release(world)])


def _release(world: World) -> SetFinalizers:
    return SetFinalizers(tuple(one for one in world.finalizers if one != FINALIZER))


def _plan(
    world: World, actions: list[Action], waits: str = "its workers and its Kafka group go first"
) -> Plan:
    """What is to be done, and then the status, where the resource is not about to be gone."""
    status = status_of_deletion(world, waits)
    gone = any(isinstance(one, SetFinalizers) for one in actions)
    written = (WriteStatus(status),) if status != world.status and not gone else ()
    return Plan((*actions, *written), status, busy=True, wake_ms=world.now_ms + 1_000)
