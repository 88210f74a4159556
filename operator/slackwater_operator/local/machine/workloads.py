"""Stands in for the StatefulSet and Job controllers: creates the pods of a run, and counts them.

Only what the operator's objects need: StatefulSets with updateStrategy OnDelete and
podManagementPolicy Parallel, Jobs of one pod that is tried once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from slackwater_operator.kubernetes.object_api import Object
from slackwater_operator.local.machine.objects import LocalObjects
from slackwater_operator.model.names import POD_INDEX_LABEL, short_hash
from slackwater_operator.planner.snapshot import STATEFULSET_REVISION_LABEL

NODE = "localhost"
_POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
_JOB_LABEL = "batch.kubernetes.io/job-name"
_CONCERNED = ("StatefulSet", "Job", "Pod")
_ENDED = ("Succeeded", "Failed")


class Workloads:
    """Reconciles all StatefulSets and Jobs after each change, at most once an iteration of the event loop."""

    def __init__(self, objects: LocalObjects, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        """Follows the objects from now on.

        Args:
            objects: the run's.
            loop: the event loop, once an object has changed.
        """
        self._objects, self._loop = objects, loop
        self._due = False
        self._deadlines: dict[str, asyncio.TimerHandle] = {}  # by the Job's uid
        objects.on_change(self._changed)

    def close(self) -> None:
        """Stops reconciling."""
        self._due = True
        for handle in self._deadlines.values():
            handle.cancel()

    def _changed(self, change: str, obj: Object) -> None:
        if obj["kind"] in _CONCERNED and not self._due:
            self._due = True
            self._loop().call_soon(self.look)

    def look(self) -> None:
        """Reconciles all StatefulSets and Jobs now."""
        self._due = False
        for statefulset in self._objects.of_kind("StatefulSet"):
            self._keep_set(statefulset)
        for job in self._objects.of_kind("Job"):
            self._keep_job(job)

    # --- StatefulSets ------------------------------------------------------------------------------------

    def _keep_set(self, live: Object) -> None:
        metadata, spec = live["metadata"], live["spec"]
        revision = self._revision(live)
        start = int((spec.get("ordinals") or {}).get("start") or 0)
        wanted = {
            f"{metadata['name']}-{ordinal}": ordinal
            for ordinal in range(start, start + int(spec.get("replicas", 1)))
        }
        pods = {pod["metadata"]["name"]: pod for pod in self._objects.owned_by("Pod", metadata["uid"])}
        for name, pod in pods.items():
            if name not in wanted:
                self._objects.delete_now(pod)
        for name, ordinal in wanted.items():
            # One of that name that is still ending has the name until it is gone.
            if self._objects.read("Pod", metadata["namespace"], name) is None:
                self._create(_pod_of_set(live, name, ordinal, revision))
        pods = {pod["metadata"]["name"]: pod for pod in self._objects.owned_by("Pod", metadata["uid"])}
        ready = sum(_is_ready(pod) for pod in pods.values())
        status = {
            "observedGeneration": metadata["generation"],
            "replicas": len(pods),
            "readyReplicas": ready,
            "updateRevision": revision,
            "currentRevision": (live.get("status") or {}).get("currentRevision") or revision,
        }
        self._objects.set_status(
            "StatefulSet", metadata["namespace"], metadata["name"], metadata["uid"], status
        )

    def _create(self, pod: Object) -> None:
        self._objects.put(pod)

    def _revision(self, live: Object) -> str:
        """The name of the ControllerRevision that keeps the set's template; made where it is missing."""
        metadata, template = live["metadata"], live["spec"]["template"]
        name = f"{metadata['name']}-{short_hash(template)}"
        if self._objects.read("ControllerRevision", metadata["namespace"], name) is None:
            kept = {"spec": {"template": {**template, "$patch": "replace"}}}
            self._objects.put(
                {
                    "apiVersion": "apps/v1",
                    "kind": "ControllerRevision",
                    "metadata": _owned(live, name),
                    "data": kept,
                }
            )
        return name

    # --- Jobs --------------------------------------------------------------------------------------------

    def _keep_job(self, job: Object) -> None:
        metadata, status = job["metadata"], job.get("status") or {}
        uid = metadata["uid"]
        if status.get("conditions"):
            return
        pods = self._objects.owned_by("Pod", uid)
        if not pods:
            if status.get("started"):  # its pod was taken away
                self._finish(job, "Failed", "BackoffLimitExceeded")
                return
            self._create(_pod_of_job(job))
            self._set_job_status(job, {"started": True})
            self._limit(job)
            return
        phase = (pods[0].get("status") or {}).get("phase")
        if phase in _ENDED:
            done = phase == "Succeeded"
            self._finish(job, "Complete" if done else "Failed", "" if done else "BackoffLimitExceeded")

    def _limit(self, job: Object) -> None:
        limit_s = job["spec"].get("activeDeadlineSeconds")
        if limit_s:
            self._deadlines[job["metadata"]["uid"]] = self._loop().call_later(limit_s, self._overdue, job)

    def _overdue(self, job: Object) -> None:
        metadata = job["metadata"]
        live = self._objects.read("Job", metadata["namespace"], metadata["name"])
        if live is None or live["metadata"]["uid"] != metadata["uid"]:
            return
        if not (live.get("status") or {}).get("conditions"):
            self._finish(live, "Failed", "DeadlineExceeded")
            for pod in self._objects.owned_by("Pod", metadata["uid"]):
                self._objects.delete_now(pod)

    def _finish(self, job: Object, condition: str, reason: str) -> None:
        handle = self._deadlines.pop(job["metadata"]["uid"], None)
        if handle is not None:
            handle.cancel()
        entry = {"type": condition, "status": "True", "lastTransitionTime": self._objects.stamp()}
        entry |= {"reason": reason} if reason else {}
        counted = {"succeeded": 1} if condition == "Complete" else {"failed": 1}
        self._set_job_status(job, {"started": True, **counted, "conditions": [entry]})

    def _set_job_status(self, job: Object, status: Mapping[str, Any]) -> None:
        metadata = job["metadata"]
        self._objects.set_status("Job", metadata["namespace"], metadata["name"], metadata["uid"], status)


def _pod_of_set(live: Object, name: str, ordinal: int, revision: str) -> Object:
    labels = {
        STATEFULSET_REVISION_LABEL: revision,
        _POD_NAME_LABEL: name,
        POD_INDEX_LABEL: str(ordinal),
    }
    return _pod(live, name, labels)


def _pod_of_job(job: Object) -> Object:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    return _pod(job, f"{name}-{uid[-5:]}", {_JOB_LABEL: name})


def _pod(owner: Object, name: str, labels: Mapping[str, str]) -> Object:
    """A pod of the owner's template, on this machine."""
    template = owner["spec"]["template"]
    given = template.get("metadata") or {}
    metadata = {
        **_owned(owner, name),
        "labels": {**(given.get("labels") or {}), **labels},
        "annotations": dict(given.get("annotations") or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**template["spec"], "nodeName": NODE},
        "status": {"phase": "Pending"},
    }


def _owned(owner: Object, name: str) -> Object:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    return {"name": name, "namespace": owner["metadata"]["namespace"], "ownerReferences": [reference]}


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
