"""Reads the Events about objects of a group that do not come up, and only about those.

Each object is asked about at most every few seconds. Events are a help for people: an API server that refuses
to list them costs the cause in a message, and nothing else.
"""

from __future__ import annotations

import logging
from typing import Any

from slackwater_operator.api.times import time_ms
from slackwater_operator.controller.session import Session
from slackwater_operator.controller.snapshots.object_parsing import (
    event_seen,
    job_run,
    job_snapshot,
    pod_of_job,
)
from slackwater_operator.kubernetes.errors import KubeError, KubeForbidden
from slackwater_operator.kubernetes.events import API_VERSION, KIND
from slackwater_operator.kubernetes.object_api import ObjectApi
from slackwater_operator.model.statefulsets import StatefulSetSnapshot
from slackwater_operator.planner.snapshot import JobSnapshot, Manifest, PodSnapshot
from slackwater_operator.policies.job_runs import JobRun
from slackwater_operator.policies.object_events import ObjectEvent, job_pod, pod_not_created
from slackwater_operator.policies.rollout.preflight import PreflightView

log = logging.getLogger(__name__)

_EVERY_MS = 5_000
_AFTER_MS = 3_000
"""A pod is usually made, and runs, within this time: nobody asks before."""
_KEPT_MS = 60_000
"""How long the Events about an object that nobody asks for again are remembered."""
OBJECTS_KEPT = 64
"""Of so many objects of a group they are remembered."""
EVENTS_KEPT = 100
"""So many Events about an object are remembered, the newest."""
_NAMESPACES_KEPT = 1_000


class ObjectEvents:
    """The Events about a group's StatefulSets, preflight Jobs, and the pods of these."""

    def __init__(self, kube: ObjectApi) -> None:
        """Takes the way to the API server."""
        self._kube = kube
        self._failed: dict[str, int] = {}  # by namespace the HTTP status that was logged last

    async def jobs(
        self, session: Session, jobs: list[Manifest], pods: list[Manifest], *, now_ms: int
    ) -> tuple[JobSnapshot, ...]:
        """The preflight Jobs, each with what the Events say of why it does not run."""
        return tuple([await self._job(session, job, pods, now_ms) for job in jobs])

    async def job_runs(
        self, session: Session, jobs: list[Manifest], pods: list[Manifest], *, now_ms: int
    ) -> tuple[JobRun, ...]:
        """The same for the Jobs of rewinds and of maintenance."""
        result = []
        for job in jobs:
            of_job, of_pod = await self._causes(session, job, pods, job_run(job, pods).view, now_ms)
            result.append(job_run(job, pods, job_events=of_job, pod_events=of_pod, since_ms=session.began_ms))
        return tuple(result)

    async def not_created(
        self,
        session: Session,
        sets: list[StatefulSetSnapshot],
        pods: tuple[PodSnapshot, ...],
        *,
        now_ms: int,
    ) -> dict[str, str]:
        """Why pods of StatefulSets cannot be created, by the pod's name, as far as that is known.

        Forgets what was remembered of objects that nobody has asked about for a while.
        """
        _forget_old(session, now_ms)
        there = {pod.name for pod in pods}
        missing = {
            pod: statefulset
            for statefulset in sets
            if not statefulset.deleting
            for ordinal in range(statefulset.start, statefulset.start + statefulset.replicas)
            if (pod := f"{statefulset.name}-{ordinal}") not in there
        }
        since = {pod: session.missing_ms.get(pod, now_ms) for pod in missing}
        session.missing_ms = since
        found_causes = {}
        for pod, statefulset in missing.items():
            if now_ms - since[pod] >= _AFTER_MS:
                events = await self._about(session, "StatefulSet", statefulset.name, now_ms)
                cause = pod_not_created(events, pod)
                if cause:
                    found_causes[pod] = cause
        return found_causes

    async def _job(self, session: Session, job: Manifest, pods: list[Manifest], now_ms: int) -> JobSnapshot:
        of_job, of_pod = await self._causes(session, job, pods, job_snapshot(job, pods).view, now_ms)
        return job_snapshot(job, pods, job_events=of_job, pod_events=of_pod, since_ms=session.began_ms)

    async def _causes(
        self, session: Session, job: Manifest, pods: list[Manifest], view: PreflightView, now_ms: int
    ) -> tuple[tuple[ObjectEvent, ...], tuple[ObjectEvent, ...]]:
        """The Events about a Job and about its pod, if that does not run."""
        began_ms = time_ms(job["metadata"].get("creationTimestamp")) or 0
        if view.succeeded or view.exit_code is not None or now_ms - began_ms < _AFTER_MS:
            return (), ()
        pod = pod_of_job(job, pods)
        if pod is not None and (view.waiting or (pod.get("status") or {}).get("phase") == "Running"):
            return (), ()
        of_job = await self._about(session, "Job", job["metadata"]["name"], now_ms)
        name = pod["metadata"]["name"] if pod is not None else job_pod(of_job)
        of_pod = await self._about(session, "Pod", name, now_ms) if name else ()
        return of_job, of_pod

    async def _about(self, session: Session, kind: str, name: str, now_ms: int) -> tuple[ObjectEvent, ...]:
        """The Events about an object, as they were a few seconds ago at most."""
        asked_ms, events = session.object_events.get((kind, name), (0, ()))
        if now_ms - asked_ms < _EVERY_MS:
            return events
        selector, namespace = f"regarding.kind={kind},regarding.name={name}", session.key[0]
        listed: list[dict[str, Any]] = []
        try:
            listed = await self._kube.list(API_VERSION, KIND, namespace, field_selector=selector)
            self._failed.pop(namespace, None)
        except KubeError as error:
            self._log_once(namespace, error)
        newest = sorted(map(event_seen, listed), key=lambda event: event.at_ms)[-EVENTS_KEPT:]
        session.object_events.pop((kind, name), None)
        session.object_events[kind, name] = (now_ms, tuple(newest))
        for oldest in list(session.object_events)[:-OBJECTS_KEPT]:
            del session.object_events[oldest]
        return tuple(newest)

    def _log_once(self, namespace: str, error: KubeError) -> None:
        """Logs why Events of a namespace cannot be listed: once, until they can, or the answer is another."""
        if self._failed.get(namespace) == error.status:
            return
        self._failed.pop(namespace, None)
        self._failed[namespace] = error.status
        for oldest in list(self._failed)[:-_NAMESPACES_KEPT]:
            del self._failed[oldest]
        advice = ""
        if isinstance(error, KubeForbidden):
            advice = "; grant the operator's ServiceAccount the verb list on events in events.k8s.io there"
        log.warning(
            "namespace %s: Events cannot be listed, so no message says why a pod is not created or does not "
            "start: %s%s",
            namespace,
            error,
            advice,
        )


def _forget_old(session: Session, now_ms: int) -> None:
    """Forgets the Events that were asked for long ago; also those of before the clock was put back."""
    session.object_events = {
        key: (at_ms, events)
        for key, (at_ms, events) in session.object_events.items()
        if abs(now_ms - at_ms) <= _KEPT_MS
    }
