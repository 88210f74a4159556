"""Reads why Kubernetes does not start a pod: from Events about a pod that is not created, or waits; from the
status of one that a node has rejected or evicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slackwater.kafka.untrusted import one_line
from slackwater_operator.model import names

_LONGEST = 500
_CREATED = "SuccessfulCreate"
_FAILED_CREATE = "FailedCreate"
_STARTED = "Started"
_CREATED_POD = "Created pod: "


@dataclass(frozen=True)
class ObjectEvent:
    """An Event (events.k8s.io/v1) about an object.

    Attributes:
        reason: in CamelCase: `FailedCreate`, `FailedScheduling`, `FailedMount`.
        note: the message.
        warning: whether its type is Warning.
        at_ms: when it last occurred (wall clock, ms); 0 if unknown.
    """

    reason: str
    note: str
    warning: bool = False
    at_ms: int = 0


def pod_not_created(events: Iterable[ObjectEvent], pod: str) -> str:
    """Why a StatefulSet's controller cannot create a pod; "" if it can, or has not reported why.

    Args:
        events: the Events about the StatefulSet.
        pod: the pod's name.
    """
    about = [event for event in events if f"od {pod} " in event.note]  # "create Pod NAME in StatefulSet ..."
    newest = max(about, key=lambda event: event.at_ms, default=None)
    if newest is None or newest.reason != _FAILED_CREATE:
        return ""
    _, _, error = newest.note.partition("failed error: ")
    return cut(error or newest.note)


def job_pod(events: Iterable[ObjectEvent]) -> str:
    """The name of the last pod that a Job's controller created, from the Events about the Job; ""
    if unknown."""
    created = [event for event in events if event.reason == _CREATED and event.note.startswith(_CREATED_POD)]
    newest = max(created, key=lambda event: event.at_ms, default=None)
    return newest.note[len(_CREATED_POD) :].strip() if newest is not None else ""


def job_pod_not_created(events: Iterable[ObjectEvent]) -> str:
    """Why a Job's controller cannot create its pod; "" if it did, or has not reported why."""
    kept = [event for event in events if event.reason in (_FAILED_CREATE, _CREATED)]
    newest = max(kept, key=lambda event: event.at_ms, default=None)
    if newest is None or newest.reason != _FAILED_CREATE:
        return ""
    return cut(f"{newest.reason}: {newest.note}")


def pod_held_up(events: Iterable[ObjectEvent]) -> str:
    """What prevents a pod from running: the newest warning about it that names a cause; "" once
    it has run."""
    kept = [
        event
        for event in events
        if event.reason == _STARTED or (event.warning and not event.note.startswith("Error: "))
    ]
    newest = max(kept, key=lambda event: event.at_ms, default=None)
    if newest is not None and not newest.warning:
        return ""
    return cut(f"{newest.reason}: {newest.note}") if newest is not None else ""


_INVALID = " is invalid: "
"""In an error of a pod's creation: its template breaks the API's own rules."""


def is_of_the_namespace(error: str) -> bool:
    """Whether the error of a pod's creation is no fault of its template: a quota, a policy or a webhook that
    refuses it, a ServiceAccount that is missing. The preflight's pod has been created from the template."""
    return _INVALID not in error


def is_of_quota(error: str) -> bool:
    """Whether a ResourceQuota refuses a pod: another pod's end may leave room for it."""
    return "exceeded quota" in error or "failed quota" in error


_PULLS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
_WRONG_IMAGE = ("not found", "manifest unknown", "name unknown", "does not exist", "no match for platform")
"""In the answer of a registry that does not have the image. containerd's `code = Unknown` says nothing."""
_NOT_GIVEN = ("denied", "unauthorized", "forbidden", "authorize", "may require")
"""In the answer of a registry, or of its login, that does not give the image with these credentials.
containerd and Docker then guess that it "does not exist or may require authorization"."""


def not_pulled(state: Mapping[str, Any]) -> str:
    """Why a container's image cannot be pulled although its name may be right: its registry does not answer,
    or not in time, or refuses for the moment, or does not accept the credentials, which another Secret or the
    registry mends without another revision. "" if that is not so.

    A kubelet before Kubernetes 1.31 says nothing while it backs off: that is no evidence of a wrong name.
    """
    waiting = state.get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    not_given = any(part in message.lower() for part in _NOT_GIVEN)
    if reason not in _PULLS or (not not_given and any(part in message.lower() for part in _WRONG_IMAGE)):
        return ""
    advice = "; check the imagePullSecrets of spec.template or of the ServiceAccount" if not_given else ""
    return cut(f"{reason}: {message}".rstrip(": ")) + advice


def pod_rejected(pod: Mapping[str, Any] | None) -> str:
    """Why a node has rejected, evicted or ended a pod (`Evicted: ...`, `OutOfcpu: ...`, `NodeShutdown`); ""
    if it has not. Only a kubelet or a controller gives a failed pod a reason."""
    status = (pod or {}).get("status") or {}
    reason = str(status.get("reason") or "")
    if status.get("phase") != "Failed" or reason in ("", "DeadlineExceeded"):
        return ""
    return cut(f"{reason}: {status.get('message') or ''}".rstrip(": "))


def outlived_by(pod: Mapping[str, Any] | None) -> str:
    """Which containers of a pod still run although its container `worker` has ended; "" if none does.

    Containers that an admission webhook has added (a service mesh's proxy) end only when they are told to.
    """
    running, ended = [], False
    for container in ((pod or {}).get("status") or {}).get("containerStatuses") or []:
        state = container.get("state") or {}
        if container.get("name") == names.CONTAINER:
            ended = state.get("terminated") is not None
        elif state.get("running") is not None:
            running.append(str(container.get("name")))
    if not ended or not running:
        return ""
    more = "s" if len(running) > 1 else ""
    return cut(
        f"its worker has ended, but its pod is kept running by the container{more} {', '.join(running)}"
    )


def cut(text: str) -> str:
    """The text on one line, at most 500 characters."""
    return one_line(" ".join(text.split()), _LONGEST)
