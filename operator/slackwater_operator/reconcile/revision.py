"""Which template the StatefulSet gets: the wanted one once its preflight has passed, or a former one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slackwater_operator.build import names
from slackwater_operator.build.preflight_job import preflight_job
from slackwater_operator.build.statefulset import template_hash
from slackwater_operator.decide.preflight import (
    LONGEST_RETRY_MS,
    PreflightDecision,
    PreflightView,
    decide_preflight,
    retry_delay_ms,
)
from slackwater_operator.decide.topics import said_of_missing
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.drift import marked
from slackwater_operator.reconcile.memory import ROLLING_BACK, Failed, Tries
from slackwater_operator.reconcile.objects import key_for
from slackwater_operator.reconcile.plan import ApplyObject, DeleteObject
from slackwater_operator.reconcile.world import JobSeen, World

# What the Job itself may take is spec.rollout.preflight.timeout (its activeDeadlineSeconds); this is for a
# Job that nothing works on, such as where the Job controller is away.
_GRACE_MS = 60_000

PREFLIGHT_SAYS = "preflight: "
"""What the reason of a failure begins with where it was the preflight's."""


@dataclass(frozen=True)
class Chosen:
    """What the StatefulSet's template is to be.

    Attributes:
        template: the template to apply; None: it stays as it is (or there is none yet).
        waiting: why the wanted one is not applied yet; "" when it is, or is not to be.
        rejected: why the wanted one is not tried (again); "" when it is.
    """

    template: Mapping[str, Any] | None = None
    waiting: str = ""
    rejected: str = ""


def choose(draft: Draft) -> Chosen:
    """Decides on the template, and has the preflight made."""
    world = draft.world
    assert world.revision is not None
    wanted, there = world.revision, world.statefulset
    chosen = _choose(draft)
    # The Job's outcome is in the status now, or its template in the StatefulSet: it has done its work.
    over = (there is not None and there.template == wanted.hash) or bool(chosen.rejected)
    keep = "" if over else names.preflight_job(world.name, wanted.hash)
    for job in world.jobs:
        if job.name != keep and not job.deleting:
            draft.acts.append(DeleteObject("batch/v1", "Job", job.name, job.uid))
    live = there.template if there is not None else None
    draft.template_changes = chosen.template is not None and template_hash(chosen.template) != live
    return chosen


def _choose(draft: Draft) -> Chosen:
    world, rollout = draft.world, draft.rollout
    assert world.revision is not None
    wanted, there = world.revision, world.statefulset
    if rollout.failed is not None and rollout.failed.template != wanted.hash:
        return Chosen(waiting=f"the way back from revision {rollout.failed.template} goes first")
    if rollout.failed is not None:
        return _rejected(draft, rollout.failed)
    if there is not None and there.template == wanted.hash:
        return Chosen(wanted.template)
    left = world.arrangement.left
    if left is not None and left.template == wanted.hash:  # it is filled as soon as that may be
        return Chosen(waiting="the takeover under way is ended first")
    if there is not None and world.rollout_policy.paused:
        return Chosen(waiting="the rollout is paused")
    if world.sharing_next.ahead or world.sharing_next.unclear:
        return _in_use(draft)
    if there is not None and _elsewhere(world):
        return _other_kafka(draft)
    return _preflight(draft)


def _in_use(draft: Draft) -> Chosen:
    """Where the spec leads to now, somebody else has the group.id: the workers stay where they are."""
    sharing, group = draft.world.sharing_next, draft.world.group
    assert group is not None
    other = (*sharing.ahead, *sharing.unclear)[0]
    why = (
        f"ConsumerGroup {other} has the group.id {group.group_id} at {group.spec.kafka.bootstrap_servers}; "
        "the workers stay where they are"
    )
    draft.trouble("GroupIdInUse", f"{why}: set spec.kafka.bootstrapServers back")
    return Chosen(waiting=why)


def _elsewhere(world: World) -> bool:
    """Whether the spec leads to another Kafka cluster than the one that the workers are on."""
    here = world.kafka.cluster_id if world.kafka is not None else ""
    return bool(here and world.next_id and world.pods) and here != world.next_id


def _other_kafka(draft: Draft) -> Chosen:
    """A roll would have some workers here and some there: only all together can go to another cluster."""
    world = draft.world
    assert world.group is not None
    assert world.kafka is not None
    why = (
        f"spec.kafka.bootstrapServers ({world.group.spec.kafka.bootstrap_servers}) leads to another Kafka "
        f"cluster (id {world.next_id}) than the workers are on (id {world.kafka.cluster_id})"
    )
    advice = "set spec.suspend until all workers have ended, or set bootstrapServers back"
    draft.trouble("OtherKafka", f"{why}; to move the group there, {advice}")
    return Chosen(waiting=why)


def _rejected(draft: Draft, failed: Failed) -> Chosen:
    """The wanted template has failed: the former one, if that is to be gone back to, or what there is.

    Where members were taken over, the former one is that of the set that is left: nothing is to be applied.
    """
    assert draft.world.group is not None
    takes_over = draft.world.group.spec.rollout.takes_over
    there = draft.world.statefulset
    if there is not None and there.template == failed.template:
        good = draft.world.good_template if len(draft.world.sets) == 1 else None
        if draft.rollout.phase == ROLLING_BACK and good is not None and not takes_over:
            return Chosen(good, rejected=failed.reason)
        assert draft.world.revision is not None
        return Chosen(draft.world.revision.template, rejected=failed.reason)
    return Chosen(rejected=failed.reason)


def forget_failure(draft: Draft) -> None:
    """Forgets a failure that counts no longer (`World.failed`). To be called first."""
    there, revision, tries = draft.world.statefulset, draft.world.revision, draft.rollout.tries
    assert revision is not None
    over = tries is not None and (
        tries.template != revision.hash or (there is not None and there.template == revision.hash)
    )
    draft.change_rollout(failed=draft.world.failed, tries=None if over else tries)


def retry_of(draft: Draft) -> str:
    """The value of the annotation that asks for another try."""
    return str(draft.world.annotations.get(names.RETRY, ""))


def _preflight(draft: Draft) -> Chosen:
    """Has the wanted template tried by a Job; gives it once that has passed."""
    world = draft.world
    assert world.group is not None
    assert world.revision is not None
    settings = world.group.spec.rollout.preflight
    if not settings.enabled:
        return Chosen(world.revision.template)
    name = names.preflight_job(world.name, world.revision.hash)
    job = next((one for one in world.jobs if one.name == name), None)
    tries = _tries(draft)
    if tries is not None and (job is None or job.deleting):
        draft.trouble("PreflightFailed", _tried(tries))
    if job is not None and job.deleting:
        draft.busy = True
        return Chosen(waiting="the preflight before is still being deleted")
    if tries is not None and job is None and not _due(draft, tries):
        draft.wake(tries.again_ms)
        return Chosen(waiting=_tried(tries))
    decision = decide_preflight(
        job.view if job is not None else PreflightView(None),
        now_ms=world.now_ms,
        timeout_ms=settings.timeout_ms + _GRACE_MS,
    )
    if decision.action == "start" and world.kafka_group is None:
        # It would fail for the broker's sake, and the revision would count as failed.
        return Chosen(waiting="the preflight waits for the brokers to answer")
    missing = world.kafka.missing if world.kafka is not None else ()
    if decision.action == "start" and missing:
        # It would fail for them, and begins by itself when they are there.
        return Chosen(waiting=f"the preflight waits: {said_of_missing(missing)}")
    if decision.failed and decision.again:
        assert job is not None
        return _try_again(draft, decision, job, tries)
    new = draft.decided("preflight", decision.action, decision.reason)
    if decision.failed:
        draft.change_rollout(
            failed=Failed(world.revision.hash, f"{PREFLIGHT_SAYS}{decision.reason}", retry_of(draft))
        )
        draft.tell("PreflightFailed", f"revision {world.revision.hash}: {decision.reason}", warning=True)
        return Chosen(rejected=decision.reason)
    if decision.blocked:
        draft.trouble("PreflightBlocked", f"revision {world.revision.hash}: {decision.blocked}")
    elif tries is not None and decision.action == "wait":
        draft.trouble("PreflightFailed", _tried(tries))
    if decision.action == "pass":
        if new:  # takeovers may have to wait with it
            draft.tell("PreflightPassed", f"revision {world.revision.hash}: {decision.reason}")
        return Chosen(world.revision.template)
    if decision.action == "start":
        draft.acts += key_for(draft, world.revision.template)  # a preflight reads the key, too
        draft.acts.append(ApplyObject(marked(preflight_job(world.group, world.revision))))
    draft.busy = True
    return Chosen(waiting=decision.reason or "the preflight runs")


def _tries(draft: Draft) -> Tries | None:
    """The preflights of the wanted template that failed for their environment."""
    tries, revision = draft.rollout.tries, draft.world.revision
    assert revision is not None
    return tries if tries is not None and tries.template == revision.hash else None


def _due(draft: Draft, tries: Tries) -> bool:
    """Whether another preflight may start; a clock that was put back makes nobody wait for longer."""
    now_ms = draft.world.now_ms
    waits = now_ms < tries.again_ms <= now_ms + LONGEST_RETRY_MS
    return not waits or tries.retry != retry_of(draft)


def _try_again(draft: Draft, decision: PreflightDecision, job: JobSeen, before: Tries | None) -> Chosen:
    """The preflight failed for its environment: its Job is deleted, and another is made after a back-off."""
    world = draft.world
    assert world.revision is not None
    attempts = before.attempts + 1 if before is not None else 1
    again_ms = world.now_ms + retry_delay_ms(attempts, f"{world.uid}/{world.revision.hash}")
    tries = Tries(world.revision.hash, decision.reason, attempts, again_ms, retry_of(draft))
    draft.change_rollout(tries=tries)
    draft.decided("preflight", "again", decision.reason)
    draft.acts.append(DeleteObject("batch/v1", "Job", job.name, job.uid))
    draft.trouble("PreflightFailed", _tried(tries))
    if before is None:
        message = f"revision {world.revision.hash}: {decision.reason}; it is tried again"
        draft.tell("PreflightFailed", message, warning=True)
    draft.busy = True
    return Chosen(waiting=_tried(tries))


def _tried(tries: Tries) -> str:
    """For people. Without figures that change with each try, so that the condition stays the same."""
    return (
        f"revision {tries.template}: {tries.reason}; it is tried again within "
        f"{LONGEST_RETRY_MS // 60_000} min, or at once when the annotation {names.RETRY} changes"
    )
