"""Plans the end of a ConsumerGroup that is being deleted, with its Kafka group (spec.deletionPolicy: Delete).

Without that policy there is no finalizer and nothing to plan: Kubernetes' garbage collector deletes the
objects, and the controller removes the members from the Kafka group when the pods are gone.
"""

from __future__ import annotations

from slackwater.kafka.group_states import DEAD
from slackwater_operator.model import names
from slackwater_operator.model.names import FINALIZER
from slackwater_operator.planner.actions import (
    Action,
    DeleteKafkaGroup,
    DeleteObject,
    EmitEvent,
    Plan,
    RemoveMembers,
    SetFinalizers,
    WriteStatus,
)
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.planner.status import status_of_deletion, to_write
from slackwater_operator.policies.membership.ownership import listed
from slackwater_operator.specs.statefulset import termination_grace_ms

DELETE = "Delete"
_SESSION_MARGIN_MS = 30_000
"""Allows for a broker that detects expired sessions late, and for clocks that differ."""


def wanted_finalizers(snapshot: GroupSnapshot) -> tuple[str, ...] | None:
    """The finalizers that the ConsumerGroup should have; None when it has them."""
    assert snapshot.group is not None
    others = tuple(finalizer for finalizer in snapshot.finalizers if finalizer != FINALIZER)
    wanted = (*others, FINALIZER) if snapshot.group.spec.deletion_policy == DELETE else others
    return None if sorted(wanted) == sorted(snapshot.finalizers) else wanted


def end(snapshot: GroupSnapshot) -> Plan:
    """The remaining actions for a ConsumerGroup that is being deleted."""
    if FINALIZER not in snapshot.finalizers:
        waits = f"the finalizers {', '.join(snapshot.finalizers)} block it" if snapshot.finalizers else ""
        return _plan(snapshot, [], waits)
    if snapshot.group is None or snapshot.group.spec.deletion_policy != DELETE:
        return _plan(snapshot, [_release(snapshot)])
    if _orphaned(snapshot):
        return _keep(snapshot, "the workers were orphaned (--cascade=orphan), and go on")
    if snapshot.rewind_jobs or snapshot.rewind_pods:  # its commit would bring the Kafka group back
        jobs = [job for job in snapshot.rewind_jobs if not job.deleting]
        return _plan(snapshot, [DeleteObject("batch/v1", "Job", job.name, job.uid) for job in jobs])
    left = [statefulset for statefulset in snapshot.sets.values() if not statefulset.deleting]
    if left:
        return _plan(
            snapshot,
            [
                DeleteObject("apps/v1", "StatefulSet", statefulset.name, statefulset.uid)
                for statefulset in left
            ],
        )
    if snapshot.sets or snapshot.pods:
        return _plan(snapshot, [])
    return _delete_group(snapshot)


def _orphaned(snapshot: GroupSnapshot) -> bool:
    """Whether the objects are to be left over; the garbage collector may have removed their owner already."""
    left = (live for (kind, _), live in snapshot.live.items() if kind == "StatefulSet")
    return "orphan" in snapshot.finalizers or any(names.is_orphan(live, snapshot.name) for live in left)


def _delete_group(snapshot: GroupSnapshot) -> Plan:
    """Removes the members, deletes the Kafka group, and releases the resource. The pods are gone.

    A Kafka group whose group.id this ConsumerGroup does not have is not queried.
    """
    assert snapshot.group is not None
    if snapshot.sharing.ahead:
        return _keep(
            snapshot, f"ConsumerGroup {snapshot.sharing.ahead[0]} uses the same group.id, and had it first"
        )
    if not snapshot.has_group_id:
        return _keep(snapshot, "this ConsumerGroup has never used it, or has left it to another one")
    group = snapshot.kafka_group
    if group is None:
        waits = (
            "the brokers do not respond; to delete the resource without the Kafka group, remove the "
            f"finalizer {FINALIZER}"
        )
        return _plan(snapshot, [EmitEvent("DeletionWaits", waits, warning=True)])
    if group.state == DEAD:
        return _plan(snapshot, [_release(snapshot)])
    ours = tuple(sorted(snapshot.own_members))
    if ours:
        if not snapshot.fresh:
            return Plan(status=snapshot.status, needs_fresh=True, busy=True, wake_ms=snapshot.now_ms + 1_000)
        return _plan(snapshot, [RemoveMembers(ours, snapshot.member_ids(ours))])
    if snapshot.foreign_members:
        return _keep(
            snapshot,
            f"{listed(snapshot.foreign_members)} is a member, but not a worker of this ConsumerGroup",
        )
    if group.members and snapshot.now_ms < _patience_ends_ms(snapshot):
        waits = (
            f"{listed(group.members)} may belong to another application, and is not removed; Kafka group "
            f"{snapshot.group.group_id} is deleted when that member's session has timed out"
        )
        return _plan(snapshot, [EmitEvent("DeletionWaits", waits, warning=True)])
    if group.members:
        return _keep(
            snapshot, f"{listed(group.members)} is still a member, and may belong to another application"
        )
    if snapshot.sharing.behind:
        return _keep(snapshot, f"ConsumerGroup {snapshot.sharing.behind[0]} has the same group.id")
    return _plan(snapshot, [DeleteKafkaGroup(), _release(snapshot)])


def _patience_ends_ms(snapshot: GroupSnapshot) -> int:
    """Until when to wait for members that may be ours (wall clock, ms): their processes have ended, so their
    sessions expire."""
    assert snapshot.group is not None
    grace_ms = termination_grace_ms(snapshot.group)
    return snapshot.deleted_ms + grace_ms + snapshot.session_timeout_ms + _SESSION_MARGIN_MS


def _keep(snapshot: GroupSnapshot, why: str) -> Plan:
    """Releases the resource and keeps the Kafka group with its offsets."""
    assert snapshot.group is not None
    kept = f"Kafka group {snapshot.group.group_id} and its offsets are not deleted: {why}"
    return _plan(snapshot, [EmitEvent("GroupKept", kept, warning=True), _release(snapshot)])


def _release(snapshot: GroupSnapshot) -> SetFinalizers:
    return SetFinalizers(tuple(finalizer for finalizer in snapshot.finalizers if finalizer != FINALIZER))


def _plan(
    snapshot: GroupSnapshot,
    actions: list[Action],
    waits: str = "its workers and its Kafka group are deleted first",
) -> Plan:
    """A plan with these actions, and then the status unless the resource is about to be deleted.

    If a request of the deletion keeps failing, the status says so, and is written first.
    """
    failures = "; ".join(message for _, message in snapshot.problems)
    status = status_of_deletion(snapshot, failures or waits)
    gone = any(isinstance(action, SetFinalizers) for action in actions)
    changed = to_write(snapshot, status) if failures or not gone else None
    written = (WriteStatus(changed),) if changed is not None else ()
    ordered = (*written, *actions) if failures else (*actions, *written)
    return Plan(ordered, status, busy=True, wake_ms=snapshot.now_ms + 1_000)
