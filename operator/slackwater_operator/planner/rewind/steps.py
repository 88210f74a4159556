"""Plans a rewind: checks the request, stops the workers, runs the Job, and starts the workers again.

Each step begins when the status holds the one before: `status.rewind` is written, and only a later
reconciliation that reads it from the API server acts. So an operator that starts in the middle continues, no
request is carried out twice, and nothing is stopped where an older CustomResourceDefinition does not keep the
field.

While the request is checked, all else goes on. While the group is stopped, its template, scaling and
takeovers wait; the workers then start with the wanted revision, once that has passed its preflight.
spec.suspend keeps its effect before, during and after.
"""

from __future__ import annotations

from dataclasses import replace

from slackwater.times import duration
from slackwater_operator.api.v1alpha1.status.rewind import (
    CHECKING,
    DONE,
    FAILED,
    REFUSED,
    REWINDING,
    REWOUND,
    STARTING,
    STOPPING,
    WITHDRAWN,
    RewindStatus,
)
from slackwater_operator.model import names
from slackwater_operator.model.names import short_hash
from slackwater_operator.planner.actions import ApplyObject, DeleteObject
from slackwater_operator.planner.objects import key_for, with_applied_hash, workers_template
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rollout.revision import leaves_kafka
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.job_runs import JobRun, overdue, why_failed
from slackwater_operator.policies.membership.ownership import listed
from slackwater_operator.policies.rewind import (
    CHECK_MS,
    RUN_MS,
    START_MS,
    RequestError,
    arguments_of,
    check_request,
)
from slackwater_operator.specs.rewind_job import rewind_job
from slackwater_operator.specs.statefulset import termination_grace_ms

_STOP_MARGIN_MS = 60_000
"""How long the members may take to be gone beyond the end of the workers and of their sessions."""

_LONGEST_REQUEST = 4_000
"""The longest request, in characters. The status and the Job's arguments hold it."""

_AGAIN = "to ask again, change the annotation; a word that begins with # is enough, such as #2"


def asked(snapshot: GroupSnapshot) -> str:
    """The request that the annotation holds, as the status stores it: a long one is cut, and stays distinct
    by its hash; "" without one."""
    request = _value(snapshot)
    if len(request) <= _LONGEST_REQUEST:
        return request
    return f"{request[:100]}... ({len(request)} characters, {short_hash(request)})"


def advance(context: PlanningContext) -> None:
    """Advances the rewind by one step. Call it before template and number of workers are decided."""
    snapshot, rewind = context.snapshot, context.snapshot.memory.rewind
    context.rewind = rewind
    if rewind is None or rewind.phase == DONE:
        _drop_jobs(context, but=None)
        if asked(snapshot) and (rewind is None or rewind.request != asked(snapshot)):
            _accept(context)
        elif rewind is not None and rewind.request == asked(snapshot):
            _note_problem(context, rewind)
        return
    context.busy = True
    if rewind.phase == CHECKING:
        _check(context, rewind)
    elif rewind.phase == STOPPING:
        _await_stop(context, rewind)
    elif rewind.phase == REWINDING:
        _run(context, rewind)
    else:
        _await_start(context, rewind)


def _accept(context: PlanningContext) -> None:
    """Notes a new request, or why it is refused."""
    snapshot = context.snapshot
    now_ms, request = snapshot.now_ms, asked(snapshot)
    new = RewindStatus(request, CHECKING, now_ms, now_ms)
    kafka = snapshot.kafka
    if snapshot.statefulset is None:
        _refuse(context, new, "the group has not had workers yet, so there is nothing to write again")
        return
    if request != _value(snapshot):
        _refuse(context, new, "it is too long: name fewer partitions, or whole topics as flights:TIME")
        return
    try:
        arguments_of(request)
        if kafka is None or not kafka.partitions:
            context.rewind_waits = "the partitions of the topics are not known: Kafka has not answered"
            return
        check_request(request, kafka.partitions, kafka.ends)
    except RequestError as error:
        if snapshot.fresh:
            _refuse(context, new, str(error))
        else:  # the records, or the topic, may be newer than the last observation
            context.needs_fresh = context.busy = True
        return
    context.rewind, context.busy = new, True
    context.decided("rewind", "check", f"{request}: requested by {names.REWIND}")


def _check(context: PlanningContext, rewind: RewindStatus) -> None:
    """Waits for the Job that checks the request while the workers run."""
    snapshot = context.snapshot
    job = _job(snapshot, rewind, check=True)
    _drop_jobs(context, but=job)
    if rewind.request != asked(snapshot):
        _end(context, rewind, WITHDRAWN, "the annotation was changed before the workers were stopped")
        return
    if job is None:
        if snapshot.now_ms - rewind.since_ms > CHECK_MS:
            _refuse(context, rewind, "the Job that checks it could not be created, or was deleted")
            return
        _start_job(context, rewind, limit_ms=CHECK_MS, check=True)
        return
    given_up = overdue(job, now_ms=snapshot.now_ms, limit_ms=CHECK_MS, start_ms=CHECK_MS)
    if job.view.unseen:
        _run_again(context, rewind, job)
    elif job.view.failed:
        _refuse(context, rewind, why_failed(job))
    elif given_up and not job.view.succeeded:
        _refuse(context, rewind, f"the Job that checks it was given up: {given_up}")
    elif not job.view.succeeded:
        context.rewind_waits = job.view.waiting
    elif held := _held(context):
        context.rewind_waits = held
    else:
        message = f"{rewind.request}: the workers are stopped for the rewind"
        context.rewind = replace(rewind, phase=STOPPING, since_ms=snapshot.now_ms)
        context.emit_after("Rewinding", message)
        context.decided("rewind", "stop", message)


def _held(context: PlanningContext) -> str:
    """Why the workers are not stopped yet; "" if nothing is in the way."""
    rollout = context.rollout
    if rollout.moving is not None or len(context.snapshot.sets) > 1:
        return "the rollout by takeover is completed first"
    if rollout.under_way:
        return f"{', '.join(restart.name for restart in rollout.under_way)} is restarting"
    if context.snapshot.maintenance_pods:  # it would commit to the table beside the rewind
        return f"waits for the end of {', '.join(context.snapshot.maintenance_pods)}"
    return ""


def _await_stop(context: PlanningContext, rewind: RewindStatus) -> None:
    """Keeps the workers stopped until nobody is in the group."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    _drop_jobs(context, but=None)
    if rewind.request != asked(snapshot):
        _end(context, rewind, WITHDRAWN, "the annotation was changed before anything was removed")
        return
    context.rewinding = True
    group = snapshot.kafka_group
    pods = [pod.name for pod in snapshot.pods]
    asked_to_stop = not any(statefulset.replicas for statefulset in snapshot.sets.values())
    if asked_to_stop and not pods and group is not None and not group.members:
        if not snapshot.fresh:
            context.needs_fresh = True
            return
        context.rewind = replace(rewind, phase=REWINDING, since_ms=snapshot.now_ms)
        return
    waits_for = ", ".join(pods[:3]) or (listed(group.members) if group is not None else "an answer of Kafka")
    context.rewind_waits = f"waits for the end of {waits_for}" if pods else f"waits for {waits_for}"
    if group is not None and group.members and not pods:
        context.rewind_waits = f"{waits_for} is still a member of the Kafka group"
    longest_ms = termination_grace_ms(snapshot.group) + snapshot.session_timeout_ms + _STOP_MARGIN_MS
    if snapshot.now_ms - rewind.since_ms > longest_ms:
        why = f"the group could not be stopped in {duration(longest_ms)}: {context.rewind_waits}"
        context.rewinding = False
        _end(context, rewind, FAILED, f"{why}; nothing was removed")


def _run(context: PlanningContext, rewind: RewindStatus) -> None:
    """Runs the Job, and waits for its end and for that of its pod.

    No worker starts while a pod of it may still work: that would remove rows of the new workers.
    """
    context.rewinding = True
    snapshot = context.snapshot
    now_ms, job, pods = snapshot.now_ms, _job(snapshot, rewind, check=False), snapshot.rewind_pods
    _drop_jobs(context, but=job)
    over = job is None or job.deleting or job.view.succeeded or job.view.failed
    if over and pods:
        context.rewind_waits = (
            f"waits for the end of {', '.join(pods)}; if its node is lost, delete the pod with --force once "
            "the node is off"
        )
        return
    if job is None and (rewind.message or now_ms - rewind.since_ms > START_MS):
        lost = "its Job is gone, so its outcome is not known (it could not be created, or was deleted)"
        _end(context, rewind, FAILED, f"{rewind.message or lost}. It can be asked for again safely")
    elif job is None:
        _start_job(context, rewind, limit_ms=RUN_MS, check=False)
    elif job.deleting:
        context.rewind_waits = f"waits for the end of Job {job.name}"
    elif job.view.succeeded:
        done = job.output or "the rows are removed and the offsets are set"
        kept = f"; {job.view.kept}, so the operator deletes the Job" if job.view.kept else ""
        _end(context, rewind, REWOUND, f"{done}{kept}")
    elif job.view.unseen:
        _run_again(context, rewind, job)
    elif job.view.failed:
        _end(context, rewind, FAILED, why_failed(job))
    elif given_up := overdue(job, now_ms=now_ms, limit_ms=RUN_MS, start_ms=START_MS):
        context.rewind = replace(rewind, message=f"Job {job.name} was given up: {given_up}")
        context.acts.append(DeleteObject("batch/v1", "Job", job.name, job.uid))
    else:
        context.rewind_waits = job.view.waiting


def _await_start(context: PlanningContext, rewind: RewindStatus) -> None:
    """Waits until as many workers are asked for as before."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    _drop_jobs(context, but=None)
    if rewind.request == asked(snapshot):
        _note_problem(context, rewind)
    none_start = snapshot.group.spec.suspend or not snapshot.memory.desired_replicas or leaves_kafka(snapshot)
    if snapshot.replicas or none_start:
        context.rewind = replace(rewind, phase=DONE, since_ms=snapshot.now_ms)


def _end(context: PlanningContext, rewind: RewindStatus, result: str, message: str) -> None:
    """Notes the result. Workers that were stopped start again."""
    phase = STARTING if rewind.has_stopped else DONE
    context.rewinding = False
    context.rewind = replace(
        rewind, phase=phase, since_ms=context.snapshot.now_ms, result=result, message=message
    )
    context.decided("rewind", result.lower(), f"{rewind.request}: {message}")
    reason = {REWOUND: "Rewound", WITHDRAWN: "RewindWithdrawn"}.get(result, f"Rewind{result}")
    context.emit_before(reason, f"{rewind.request}: {message}", warning=result in (REFUSED, FAILED))
    if rewind.request == asked(context.snapshot):
        _note_problem(context, context.rewind)


def _refuse(context: PlanningContext, rewind: RewindStatus, why: str) -> None:
    _end(context, rewind, REFUSED, f"{why}. Nothing was changed")


def _note_problem(context: PlanningContext, rewind: RewindStatus) -> None:
    """Notes a request that needs a person, as long as the annotation holds it."""
    message = f"annotation {names.REWIND} ({rewind.request}): {rewind.message.rstrip('.')}; {_AGAIN}"
    if rewind.result == REFUSED:
        context.needs_attention("RewindRefused", message)
    elif rewind.result == FAILED:
        context.needs_attention("RewindFailed", message)


def _job(snapshot: GroupSnapshot, rewind: RewindStatus, *, check: bool) -> JobRun | None:
    name = names.rewind_job(snapshot.name, _key(snapshot, rewind), check=check)
    return next((job for job in snapshot.rewind_jobs if job.name == name), None)


def _key(snapshot: GroupSnapshot, rewind: RewindStatus) -> str:
    """Identifies the rewind in the names of its Jobs; a long name of the group is cut there."""
    return short_hash([snapshot.uid, rewind.request, rewind.accepted_ms])


def _drop_jobs(context: PlanningContext, *, but: JobRun | None) -> None:
    """Deletes the Jobs that are not needed any more: their outcome is in the status."""
    for job in context.snapshot.rewind_jobs:
        if job is not but and not job.deleting:
            context.acts.append(DeleteObject("batch/v1", "Job", job.name, job.uid))


def _start_job(context: PlanningContext, rewind: RewindStatus, *, limit_ms: int, check: bool) -> None:
    snapshot = context.snapshot
    assert snapshot.group is not None
    template = workers_template(snapshot)
    context.acts += key_for(context, template)  # its pod mounts the key as well
    manifest = rewind_job(
        snapshot.group,
        template,
        key=_key(snapshot, rewind),
        starts=arguments_of(rewind.request),
        limit_ms=limit_ms,
        check=check,
    )
    context.acts.append(ApplyObject(with_applied_hash(manifest)))


def _run_again(context: PlanningContext, rewind: RewindStatus, job: JobRun) -> None:
    """Deletes a Job whose outcome is not known, so that another one is made: running it twice is safe."""
    context.rewind_waits = f"Job {job.name} is run again: {job.view.last_line}"
    if not job.deleting:
        context.rewind = replace(rewind, since_ms=context.snapshot.now_ms)
        context.acts.append(DeleteObject("batch/v1", "Job", job.name, job.uid))


def _value(snapshot: GroupSnapshot) -> str:
    return str(snapshot.annotations.get(names.REWIND, "")).strip()
