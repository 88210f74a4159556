"""Converts Kubernetes objects to the types of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slackwater.kafka.untrusted import one_line
from slackwater_operator.api.times import time_ms
from slackwater_operator.model import names
from slackwater_operator.planner.snapshot import (
    STATEFULSET_REVISION_LABEL,
    JobSnapshot,
    Manifest,
    PodSnapshot,
    RevisionRecord,
    StatefulSetSnapshot,
)
from slackwater_operator.policies.job_runs import JobRun
from slackwater_operator.policies.object_events import ObjectEvent, not_pulled, outlived_by, pod_rejected
from slackwater_operator.policies.rollout.preflight import preflight_view
from slackwater_operator.specs.preflight_job import ATTEMPT, FAILURE
from slackwater_operator.specs.statefulset import template_hash

_LONGEST_FAILURE = 1_000
_NO_TROUBLE = ("ContainerCreating", "PodInitializing", "Completed")


def is_worker(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is a worker's, not the preflight's."""
    return _labels(pod).get(names.NAME_LABEL) == names.WORKER_APP


def pod_snapshot(pod: Mapping[str, Any]) -> PodSnapshot:
    """A worker's pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or []}
    container: Mapping[str, Any] = next(
        (
            container
            for container in status.get("containerStatuses") or []
            if container.get("name") == names.CONTAINER
        ),
        {},
    )
    state, last = container.get("state") or {}, container.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated")
    before = (each.get("state") or {} for each in status.get("initContainerStatuses") or [])
    pull = next(filter(None, map(not_pulled, (*before, state))), "") if not state.get("running") else ""
    name, group = metadata["name"], _labels(pod).get(names.GROUP_LABEL, "")
    ordinal = names.ordinal_of(group, name)
    return PodSnapshot(
        name=name,
        uid=metadata.get("uid", ""),
        member=names.member_of(group, name),
        suffix=names.set_of(group, name),
        ordinal=-1 if ordinal is None else ordinal,
        revision=_labels(pod).get(STATEFULSET_REVISION_LABEL, ""),
        template=_labels(pod).get(names.REVISION_LABEL, ""),
        phase=status.get("phase", "Pending"),
        ready=_ready(conditions, container),
        deleting=bool(metadata.get("deletionTimestamp")),
        node_lost=_node_lost(conditions, status),
        deleted_ms=time_ms(metadata.get("deletionTimestamp")),
        evicted=conditions.get("DisruptionTarget", {}).get("status") == "True",
        started=state.get("running") is not None,
        restarts=int(container.get("restartCount") or 0),
        held_up="" if state.get("running") else _held_up(pod, conditions) or pull,
        trouble=_outlived(pod)
        or _unscheduled(conditions)
        or pod_rejected(pod)
        or pull
        or _trouble(state, last),
        ended_ms=time_ms(ended.get("finishedAt")) if ended else None,
        ip=status.get("podIP", ""),
        node=(pod.get("spec") or {}).get("nodeName", ""),
        can_hand_over=names.can_hand_over({"metadata": metadata}),
        port=names.health_port(metadata),
    )


def _node_lost(conditions: Mapping[Any, Mapping[str, Any]], status: Mapping[str, Any]) -> bool:
    """The node controller sets Ready to False, and leaves ContainersReady as the kubelet wrote it last; with
    readiness gates Ready may be False for their sake."""
    own = {"Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"}
    others = [
        kind
        for kind, condition in conditions.items()
        if kind not in own and condition.get("status") == "False"
    ]
    ready, containers = conditions.get("Ready", {}), conditions.get("ContainersReady", {})
    marked = ready.get("status") == "False" and containers.get("status") == "True" and not others
    return marked or status.get("reason") == "NodeLost" or status.get("phase") == "Unknown"


def _ready(conditions: Mapping[Any, Mapping[str, Any]], worker: Mapping[str, Any]) -> bool:
    """Whether a worker is ready: its pod is, or only another container of it is not."""
    if conditions.get("Ready", {}).get("status") == "True":
        return True
    others = conditions.get("ContainersReady", {}).get("status") == "False"
    return others and bool(worker.get("ready")) and (worker.get("state") or {}).get("running") is not None


def _outlived(pod: Mapping[str, Any]) -> str:
    """What keeps a pod that is being deleted running although its worker has ended; "" if nothing does."""
    return outlived_by(pod) if pod["metadata"].get("deletionTimestamp") else ""


def _unscheduled(conditions: Mapping[Any, Mapping[str, Any]]) -> str:
    """Why a pod has no node; "" where it has one, or may get one."""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") != "False":
        return ""
    return f"{scheduled.get('reason', 'Unschedulable')}: {scheduled.get('message', '')}".rstrip(": ")


def _held_up(pod: Mapping[str, Any], conditions: Mapping[Any, Mapping[str, Any]]) -> str:
    """Why Kubernetes keeps a pod that does not run from running, whatever its template; "" if it does not."""
    finalizers = pod["metadata"].get("finalizers") or []
    if pod["metadata"].get("deletionTimestamp") and finalizers:
        return f"it has ended, but its pod is kept by {', '.join(map(str, finalizers))}; remove the finalizer"
    if outlived := _outlived(pod):
        return outlived
    target = conditions.get("DisruptionTarget", {})
    if target.get("status") == "True":
        return f"{target.get('reason') or 'Evicted'}: {target.get('message') or ''}".rstrip(": ")
    return _unscheduled(conditions) or pod_rejected(pod)


def _trouble(state: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Why the worker's container does not run, or how it ended last; "" where nothing is wrong."""
    ended = _ending(state.get("terminated") or last.get("terminated") or {})
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason and reason not in _NO_TROUBLE:
        message = ended or waiting.get("message", "")
        return f"{reason}: {message}" if message else str(reason)
    return ended


def _ending(ended: Mapping[str, Any]) -> str:
    code = ended.get("exitCode")
    if not code:
        return ""
    how = f"exit code {code}" if not ended.get("signal") else f"signal {ended['signal']}"
    reason = ended.get("reason", "")
    said = str(ended.get("message") or "").strip()
    named = f"{reason}, {how}" if reason not in ("", "Error") else how
    return f"{named}: {said}" if said else named


def event_seen(event: Mapping[str, Any]) -> ObjectEvent:
    """An Event (events.k8s.io/v1), whichever API it was written by."""
    series = event.get("series") or {}
    stamps = (
        series.get("lastObservedTime"),
        event.get("deprecatedLastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return ObjectEvent(
        reason=str(event.get("reason") or ""),
        note=str(event.get("note") or ""),
        warning=event.get("type") == "Warning",
        at_ms=max((at for at in map(time_ms, stamps) if at is not None), default=0),
    )


def statefulset_snapshot(live: Manifest, suffix: str = "") -> StatefulSetSnapshot:
    """One of the group's StatefulSets; `suffix` says which."""
    metadata, spec, status = live["metadata"], live["spec"], live.get("status") or {}
    seen_newest = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    return StatefulSetSnapshot(
        name=metadata.get("name", ""),
        suffix=suffix,
        uid=metadata["uid"],
        start=int((spec.get("ordinals") or {}).get("start") or 0),
        replicas=int(spec.get("replicas", 1)),
        existing=int(status.get("replicas") or 0),
        template=template_hash(spec.get("template") or {}),
        update_revision=status.get("updateRevision", "") if seen_newest else "",
        deleting=bool(metadata.get("deletionTimestamp")),
        created_ms=time_ms(metadata.get("creationTimestamp")) or 0,
        manifest=live,
    )


def pod_of_job(job: Manifest, pods: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The pod of a preflight Job, if it is there."""
    name = job["metadata"]["name"]
    return next((pod for pod in pods if _labels(pod).get("batch.kubernetes.io/job-name") == name), None)


def job_snapshot(
    job: Manifest,
    pods: Iterable[Mapping[str, Any]],
    *,
    job_events: Sequence[ObjectEvent] = (),
    pod_events: Sequence[ObjectEvent] = (),
    since_ms: int = 0,
) -> JobSnapshot:
    """A preflight Job, with its pod if that is there, and the Events about both; `since_ms` as of
    `preflight_view`."""
    metadata = job["metadata"]
    annotations = metadata.get("annotations") or {}
    attempt = str(annotations.get(ATTEMPT, ""))
    return JobSnapshot(
        name=metadata["name"],
        uid=metadata["uid"],
        view=preflight_view(
            job, pod_of_job(job, pods), job_events=job_events, pod_events=pod_events, since_ms=since_ms
        ),
        deleting=bool(metadata.get("deletionTimestamp")),
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 7 else 1,
        retry=str(annotations.get(names.RETRY, "")),
        failure=one_line(str(annotations.get(FAILURE, "")), _LONGEST_FAILURE),
        ended_ms=_failed_ms(job),
    )


def of_app(objects: Iterable[Manifest], app: str) -> list[Manifest]:
    """The Jobs or pods with that name label, such as `names.REWIND_APP`."""
    return [obj for obj in objects if _labels(obj).get(names.NAME_LABEL) == app]


def unfinished(pods: Iterable[Manifest]) -> tuple[str, ...]:
    """The names of those pods of Jobs whose container `worker` has not ended."""
    ended = ("Succeeded", "Failed")
    return tuple(
        sorted(
            pod["metadata"]["name"]
            for pod in pods
            if (pod.get("status") or {}).get("phase") not in ended and not outlived_by(pod)
        )
    )


def job_run(
    job: Manifest,
    pods: Iterable[Mapping[str, Any]],
    *,
    job_events: Sequence[ObjectEvent] = (),
    pod_events: Sequence[ObjectEvent] = (),
    since_ms: int = 0,
) -> JobRun:
    """A Job of a rewind or of maintenance, with its pod if that is there, and the Events about both;
    `since_ms` as of `preflight_view`."""
    metadata, pod = job["metadata"], pod_of_job(job, pods)
    states = [
        container.get("state") or {}
        for container in ((pod or {}).get("status") or {}).get("containerStatuses") or []
        if container.get("name") == names.CONTAINER
    ]
    said = [str((state.get("terminated") or {}).get("message") or "") for state in states]
    return JobRun(
        name=metadata["name"],
        uid=metadata["uid"],
        view=preflight_view(job, pod, job_events=job_events, pod_events=pod_events, since_ms=since_ms),
        output=one_line(next(iter(said), "").strip(), _LONGEST_FAILURE),
        started=any("running" in state or "terminated" in state for state in states),
        deleting=bool(metadata.get("deletionTimestamp")),
    )


def _failed_ms(job: Manifest) -> int | None:
    """When a Job failed; None: it has not, or that is not known."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("type") in ("Failed", "FailureTarget") and condition.get("status") == "True":
            return time_ms(condition.get("lastTransitionTime"))
    return None


def good_template(controller_revision: Manifest | None) -> Manifest | None:
    """The pod template that a StatefulSet's ControllerRevision keeps; None where it keeps none.

    It holds a patch of the StatefulSet: `{"spec": {"template": {..., "$patch": "replace"}}}`.
    """
    template = ((controller_revision or {}).get("data") or {}).get("spec", {}).get("template")
    if not isinstance(template, Mapping):
        return None
    kept = {key: value for key, value in template.items() if not key.startswith("$")}
    metadata = {key: value for key, value in (kept.get("metadata") or {}).items() if value is not None}
    return {**kept, "metadata": metadata}


def _labels(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    return (obj.get("metadata") or {}).get("labels") or {}


def revision_of(configmap: Manifest) -> RevisionRecord | None:
    """The revision that a ConfigMap keeps; None if it keeps none."""
    metadata = configmap["metadata"]
    revision = (metadata.get("labels") or {}).get(names.REVISION_LABEL)
    if not revision:
        return None
    number = str((metadata.get("annotations") or {}).get(names.REVISION_NUMBER, ""))
    return RevisionRecord(
        metadata["name"],
        str(metadata.get("uid", "")),
        str(revision),
        int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0,
    )
