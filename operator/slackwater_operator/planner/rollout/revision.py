"""Chooses the StatefulSet's template: the wanted revision once its preflight has passed, or an earlier one.

Announces the rebalance that the revision itself causes (other topics, another assignor) before the rollout
begins. The note stays in the status until the rollout is over, so that the rebalance counts as planned even
for an operator that becomes leader in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slackwater_operator.api.v1alpha1.status.rollout import ROLLING_BACK, Failed, Tries
from slackwater_operator.model import names
from slackwater_operator.planner.actions import ApplyObject, DeleteObject
from slackwater_operator.planner.objects import key_for, with_applied_hash
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.snapshot import GROUP_ID_IN_USE, GroupSnapshot, JobSnapshot
from slackwater_operator.policies.membership.joins_and_removals import RemovalDecision
from slackwater_operator.policies.rollout.preflight import (
    LONGEST_RETRY_MS,
    PreflightDecision,
    PreflightView,
    decide_preflight,
    retry_delay_ms,
)
from slackwater_operator.policies.rollout.rebalance_causes import expected_rebalance, goes_back_to_classic
from slackwater_operator.policies.topics import missing_topics_message
from slackwater_operator.specs.preflight_job import preflight_job
from slackwater_operator.specs.statefulset import template_hash

# Beyond spec.rollout.preflight.timeout, the Job's own limit (activeDeadlineSeconds): for a Job that the Job
# controller does not process.
_GRACE_MS = 60_000

PREFLIGHT_SAYS = "preflight: "
"""The prefix of a failure's reason where the preflight failed."""


@dataclass(frozen=True)
class Chosen:
    """The StatefulSet's template as chosen.

    Attributes:
        template: the template to apply; None leaves it as it is (or there is none yet).
        waiting: why the wanted template is not applied yet; "" if it is, or is rejected.
        rejected: why the wanted template is not tried (again); "" if it is.
        preparing: whether its first preflight runs, or is about to: its outcome is a matter of time.
    """

    template: Mapping[str, Any] | None = None
    waiting: str = ""
    rejected: str = ""
    preparing: bool = False

    def waits(self, removal: RemovalDecision) -> str:
        """Why no worker of a former revision is replaced now; "" if one may be."""
        if removal.remove or removal.waiting_for:
            return f"waits until former members are removed: {removal.reason}"
        if self.waiting and not self.rejected:
            return f"a newer revision is about to replace it: {self.waiting}"
        return ""


def choose(context: PlanningContext) -> Chosen:
    """Chooses the template, and creates and deletes preflight Jobs."""
    snapshot = context.snapshot
    assert snapshot.revision is not None
    wanted, there = snapshot.revision, snapshot.statefulset
    chosen = _choose(context)
    # The Job is no longer needed: its outcome is in the status, or its template in the StatefulSet.
    applied = there is not None and there.template == wanted.hash
    over = applied or bool(chosen.rejected) or snapshot.memory.rollout.passed == wanted.hash
    newest = None if over else _newest_job(context)
    for job in snapshot.jobs:
        if job is not newest and not job.deleting:
            context.acts.append(DeleteObject("batch/v1", "Job", job.name, job.uid))
    live = there.template if there is not None else None
    context.template_changes = chosen.template is not None and template_hash(chosen.template) != live
    return chosen


def _choose(context: PlanningContext) -> Chosen:
    snapshot, rollout = context.snapshot, context.rollout
    assert snapshot.revision is not None
    wanted, there = snapshot.revision, snapshot.statefulset
    if rollout.failed is not None and rollout.failed.template != wanted.hash:
        return Chosen(waiting=f"the rollback from revision {rollout.failed.template} is completed first")
    if rollout.failed is not None:
        return _rejected(context, rollout.failed)
    if there is not None and there.template == wanted.hash:
        return Chosen(wanted.template)
    if there is not None and context.rewind is not None and context.rewind.stops:
        return Chosen(waiting="the rewind is completed first")
    source = snapshot.arrangement.source
    if source is not None and source.template == wanted.hash:  # it becomes the target as soon as possible
        return Chosen(waiting="the takeover in progress is completed first")
    if there is not None and snapshot.rollout_policy.paused:
        return Chosen(waiting="the rollout is paused")
    if snapshot.sharing_next.ahead or snapshot.sharing_next.unclear:
        return _in_use(context)
    if there is not None and _elsewhere(snapshot):
        return _other_kafka(context)
    return _preflight(context)


def _in_use(context: PlanningContext) -> Chosen:
    """Keeps the workers where they are: another ConsumerGroup has the group.id on the cluster that the spec
    names now."""
    sharing, group = context.snapshot.sharing_next, context.snapshot.group
    assert group is not None
    other = (*sharing.ahead, *sharing.unclear)[0]
    why = (
        f"ConsumerGroup {other} already uses the group.id {group.group_id} at "
        f"{group.spec.kafka.bootstrap_servers}; the workers keep their configuration"
    )
    context.needs_attention(
        GROUP_ID_IN_USE, f"{why}: set spec.kafka.bootstrapServers back", stalls=bool(sharing.ahead)
    )
    return Chosen(waiting=why)


def leaves_kafka(snapshot: GroupSnapshot) -> bool:
    """Whether the spec names other bootstrap servers than the last workers used, and these are not known to
    belong to the same Kafka cluster. What is observed then says nothing about the cluster of the spec."""
    assert snapshot.group is not None
    running, wanted = snapshot.running, snapshot.group.spec.kafka
    if running is None or running.bootstrap_servers == wanted.bootstrap_servers:
        return False
    return not snapshot.cluster_id or snapshot.cluster_id != snapshot.next_id


def _elsewhere(snapshot: GroupSnapshot) -> bool:
    """Whether the spec names another Kafka cluster than the workers use."""
    here = snapshot.kafka.cluster_id if snapshot.kafka is not None else ""
    return bool(here and snapshot.next_id and snapshot.pods) and here != snapshot.next_id


def _other_kafka(context: PlanningContext) -> Chosen:
    """Keeps the workers where they are: a rollout would split the group between two clusters."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    assert snapshot.kafka is not None
    why = (
        f"spec.kafka.bootstrapServers ({snapshot.group.spec.kafka.bootstrap_servers}) belongs to another "
        f"Kafka cluster (id {snapshot.next_id}) than the workers use (id {snapshot.kafka.cluster_id})"
    )
    advice = "set spec.suspend to true until all workers have stopped, or change bootstrapServers back"
    context.needs_attention("OtherKafka", f"{why}; to move the group there, {advice}", stalls=True)
    return Chosen(waiting=why)


def _rejected(context: PlanningContext, failed: Failed) -> Chosen:
    """The choice where the wanted template has failed: the previous template for a rollback, else the
    present one.

    In a rollout by takeover the source StatefulSet still has the previous template, so nothing is applied.
    """
    assert context.snapshot.group is not None
    takes_over = context.snapshot.group.spec.rollout.takes_over
    there = context.snapshot.statefulset
    if there is not None and there.template == failed.template:
        good = context.snapshot.good_template if len(context.snapshot.sets) == 1 else None
        if context.rollout.phase == ROLLING_BACK and good is not None and not takes_over:
            return Chosen(good, rejected=failed.reason)
        assert context.snapshot.revision is not None
        return Chosen(context.snapshot.revision.template, rejected=failed.reason)
    return Chosen(rejected=failed.reason)


def forget_failure(context: PlanningContext) -> None:
    """Drops outcomes of preflights that no longer count, and a failure (`GroupSnapshot.failed`). Call it
    first."""
    there, revision, tries = context.snapshot.statefulset, context.snapshot.revision, context.rollout.tries
    assert revision is not None
    applied = there is not None and there.template == revision.hash
    over = applied or (tries is not None and tries.template != revision.hash)
    passed = "" if applied or context.rollout.passed != revision.hash else revision.hash
    context.change_rollout(failed=context.snapshot.failed, tries=None if over else tries, passed=passed)


def retry_of(context: PlanningContext) -> str:
    """The value of the annotation that requests a retry."""
    return str(context.snapshot.annotations.get(names.RETRY, ""))


def _preflight(context: PlanningContext) -> Chosen:
    """Tries the wanted template with a Job; chooses it once the Job has passed."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    assert snapshot.revision is not None
    settings = snapshot.group.spec.rollout.preflight
    if not settings.enabled or context.rollout.passed == snapshot.revision.hash:
        return Chosen(snapshot.revision.template)
    job = _newest_job(context)
    tries = _tries(context, job)
    if tries is not None and (job is None or job.deleting):
        context.needs_attention("PreflightFailed", _tried(tries))
    if job is not None and job.deleting:
        context.busy = True
        return Chosen(waiting="the previous preflight is still being deleted", preparing=tries is None)
    if tries is not None and job is None and not _due(context, tries):
        context.wake(tries.again_ms)
        return Chosen(waiting=_tried(tries))
    decision = decide_preflight(
        job.view if job is not None else PreflightView(None),
        now_ms=snapshot.now_ms,
        timeout_ms=settings.timeout_ms + _GRACE_MS,
    )
    if job is not None and decision.failed and (decision.again or _noted(context, job)):
        tries = _failed_again(context, decision, job)
        if not _due(context, tries):
            context.wake(tries.again_ms)
            return Chosen(waiting=_tried(tries))
        decision = decide_preflight(PreflightView(None), now_ms=snapshot.now_ms)
    if decision.action == "start" and not leaves_kafka(snapshot):
        if snapshot.kafka_group is None:
            # It would fail because of the brokers.
            waiting = "the preflight waits for the brokers to respond"
            return Chosen(waiting=waiting, preparing=tries is None)
        missing = snapshot.kafka.missing if snapshot.kafka is not None else ()
        if missing:
            # It would fail because of them, and begins by itself when they exist.
            return Chosen(waiting=f"the preflight waits: {missing_topics_message(missing)}")
    new = context.decided("preflight", decision.action, decision.reason)
    if decision.failed:
        context.change_rollout(
            failed=Failed(snapshot.revision.hash, f"{PREFLIGHT_SAYS}{decision.reason}", retry_of(context))
        )
        context.emit_after(
            "PreflightFailed", f"revision {snapshot.revision.hash}: {decision.reason}", warning=True
        )
        return Chosen(rejected=decision.reason)
    if decision.blocked:
        context.needs_attention("PreflightBlocked", f"revision {snapshot.revision.hash}: {decision.blocked}")
    if tries is not None and decision.action == "wait":
        context.needs_attention("PreflightFailed", _tried(tries))
    if decision.action == "pass":
        # Kept, since the Job may end as failed while takeovers wait: a container of an injector outlives it.
        context.change_rollout(passed=snapshot.revision.hash)
        if new:  # not again while the takeovers wait
            context.emit_after("PreflightPassed", f"revision {snapshot.revision.hash}: {decision.reason}")
        return Chosen(snapshot.revision.template)
    if decision.action == "start":
        context.acts += key_for(context, snapshot.revision.template)  # a preflight mounts the key as well
        manifest = preflight_job(
            snapshot.group,
            snapshot.revision,
            attempt=tries.attempts + 1 if tries is not None else 1,
            retry=retry_of(context),
            failure=tries.reason if tries is not None else "",
        )
        context.acts.append(ApplyObject(with_applied_hash(manifest)))
    context.busy = True
    return Chosen(waiting=decision.reason or "the preflight is running", preparing=tries is None)


def _newest_job(context: PlanningContext) -> JobSnapshot | None:
    """The Job that tries the wanted template, or tried it last; None without one."""
    assert context.snapshot.revision is not None
    jobs = context.snapshot.jobs_of(context.snapshot.revision.hash)
    left = [job for job in jobs if not job.deleting]
    return next(reversed(left or jobs), None)


def _tries(context: PlanningContext, job: JobSnapshot | None) -> Tries | None:
    """The preflights of the wanted template that failed because of their environment.

    The annotations of the following Job count; without a Job the status does, which an older CRD may not
    keep.
    """
    tries, revision = context.rollout.tries, context.snapshot.revision
    assert revision is not None
    if job is not None and not job.deleting:
        failures = job.attempt - 1
        return Tries(revision.hash, job.failure, failures, 0, job.retry) if failures else None
    return tries if tries is not None and tries.template == revision.hash else None


def _due(context: PlanningContext, tries: Tries) -> bool:
    """Whether another preflight may start. A clock that was set back does not lengthen the wait."""
    now_ms = context.snapshot.now_ms
    waits = now_ms < tries.again_ms <= now_ms + LONGEST_RETRY_MS
    return not waits or tries.retry != retry_of(context)


def _noted(context: PlanningContext, job: JobSnapshot) -> Tries | None:
    """What the status has stored about a Job that failed because of its environment; None if it is about
    another Job.

    The pod and the Events that showed the cause may be gone by now.
    """
    tries, revision = context.rollout.tries, context.snapshot.revision
    assert revision is not None
    known = tries is not None and (tries.template, tries.attempts) == (revision.hash, job.attempt)
    return tries if known else None


def _failed_again(context: PlanningContext, decision: PreflightDecision, job: JobSnapshot) -> Tries:
    """Notes a preflight that failed because of its environment; its Job stays until the next one is due."""
    snapshot, noted = context.snapshot, _noted(context, job)
    assert snapshot.revision is not None
    assert snapshot.group is not None
    if noted is not None:
        context.needs_attention("PreflightFailed", _tried(noted))
        return noted
    # The pod may fail before the Job controller marks the Job as failed, or that controller may be down.
    longest_ms = snapshot.group.spec.rollout.preflight.timeout_ms + _GRACE_MS
    over_ms = min(snapshot.now_ms, (job.view.created_ms or 0) + longest_ms)
    ended_ms = job.ended_ms if job.ended_ms is not None else over_ms
    again_ms = ended_ms + retry_delay_ms(job.attempt, f"{snapshot.uid}/{snapshot.revision.hash}")
    tries = Tries(snapshot.revision.hash, decision.reason, job.attempt, again_ms, job.retry)
    context.change_rollout(tries=tries)
    context.decided("preflight", "again", decision.reason)
    context.needs_attention("PreflightFailed", _tried(tries))
    return tries


def _tried(tries: Tries) -> str:
    """The message for users, without figures that change with each try, so that the condition
    stays the same."""
    return (
        f"revision {tries.template}: {tries.reason}; it is tried again within {LONGEST_RETRY_MS // 60_000} "
        f"min, or as soon as the annotation {names.RETRY} changes"
    )


def announce_rebalance(context: PlanningContext, template: str) -> None:
    """Notes why the group is about to rebalance, if a rollout to the wanted revision causes that.

    Args:
        context: the plan.
        template: the hash of the template that is rolled out. Topics and assignors of another one than the
            wanted revision are unknown.
    """
    snapshot = context.snapshot
    if snapshot.group is None or snapshot.revision is None:
        return
    group, wanted = context.derived.group, template == snapshot.revision.hash
    to_consumer = snapshot.group.spec.kafka.consumer_protocol if wanted else None
    why = expected_rebalance(
        group,
        _topics(snapshot) if wanted else None,
        snapshot.group.assignors if wanted else (),
        back_to_classic=goes_back_to_classic(group, snapshot.foreign_members, to_consumer),
    )
    if not why or why == context.rollout.expected_rebalance:
        return
    context.change_rollout(expected_rebalance=why)
    context.emit_after("RebalanceExpected", f"revision {template} causes a rebalance: {why}")
    context.decided("rollout", "announce", f"a rebalance is expected: {why}")


def _topics(snapshot: GroupSnapshot) -> frozenset[str] | None:
    """The topics that the wanted revision consumes; None if unknown."""
    assert snapshot.group is not None
    if snapshot.group.spec.topics:
        return frozenset(snapshot.group.spec.topics)
    return (
        frozenset(partition.topic for partition in snapshot.kafka.partitions)
        if snapshot.kafka is not None
        else None
    )
