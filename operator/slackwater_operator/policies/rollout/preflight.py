"""Reads the state of a preflight Job, and decides what it means for the rollout.

The Job runs the new template with `slackwater worker --config FILE --preflight`: it imports the handler,
connects to the brokers and does not join the group. Its pod runs once (backoffLimit 0). If the revision is
at fault, one failure decides. If its environment is (brokers away, a missing topic, no node, no image, no
Secret, a quota, an eviction, a signal from outside), another Job follows after a back-off.

The outcome is that of the container `worker`. An admission webhook may add containers to the pod (Istio,
Linkerd, Dapr): one that still runs keeps the pod and its Job from ending, and how it ends says nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater.kafka.untrusted import json_object, one_line
from slackwater.times import duration
from slackwater_operator.api.times import time_ms
from slackwater_operator.api.v1alpha1.status.values import mapping, objects
from slackwater_operator.model import names
from slackwater_operator.policies.backoff import delay_ms
from slackwater_operator.policies.object_events import (
    ObjectEvent,
    cut,
    job_pod_not_created,
    not_pulled,
    outlived_by,
    pod_held_up,
    pod_rejected,
)

FIRST_RETRY_MS = 10_000
LONGEST_RETRY_MS = 300_000
"""The cap of the back-off between preflights, each of which starts a pod."""
BLOCKED_AFTER_MS = 20_000
"""How long a preflight's pod may be held up before people are told."""

TIMEOUT_MS = 300_000
"""How long a preflight may take, including the image pull."""

_LONGEST = 500
ENVIRONMENT = 5
"""The exit code of a preflight that blames its environment alone (`slackwater.runtime.errors`)."""
_EXIT_CODES = {
    2: "bad configuration or handler",
    3: "fenced",
    4: "the sink or the handler failed",
    -9: "killed, possibly because it ran out of memory",
}
_FROM_OUTSIDE = (-9, -15)
"""SIGKILL and SIGTERM: nothing in a preflight's pod sends them but its limit of memory (OOMKilled)."""


@dataclass(frozen=True)
class PreflightView:
    """A preflight as it was observed.

    Attributes:
        created_ms: when its Job was created; None without a Job.
        succeeded: whether it has succeeded: its container `worker`, whatever else is in the pod.
        failed: whether it has failed finally.
        exit_code: its container's exit code, negative for a signal; None while unknown.
        last_line: the last line that it logged (or its termination message); "" without one.
        waiting: what prevents, or prevented, its pod from running (`Unschedulable: ...`, `ImagePullBackOff:
            ...`, `FailedMount: ...`, `FailedCreate: ...`); "" when it runs.
        environment: for a failed one, whether its environment is at fault and not the revision.
        kept: which containers keep its pod running although its own has ended; "" if none does.
        unseen: whether it failed, and its pod went, before the operator observed the group: how its container
            ended is not known.
    """

    created_ms: int | None
    succeeded: bool = False
    failed: bool = False
    exit_code: int | None = None
    last_line: str = ""
    waiting: str = ""
    environment: bool = False
    kept: str = ""
    unseen: bool = False


@dataclass(frozen=True)
class PreflightDecision:
    """What the preflight means for the rollout.

    Attributes:
        action: `start` (there is no Job yet), `wait`, `pass`, `fail` or `timeout` (a failure as well).
        reason: one sentence for users.
        again: for a failure, whether another try may pass without a change of the revision.
        blocked: what has prevented it from running for long; "" if nothing.
    """

    action: str
    reason: str
    again: bool = False
    blocked: str = ""

    @property
    def failed(self) -> bool:
        """Whether the new revision must not be rolled out."""
        return self.action in ("fail", "timeout")


def preflight_view(
    job: Mapping[str, Any] | None,
    pod: Mapping[str, Any] | None = None,
    log: str = "",
    *,
    job_events: Sequence[ObjectEvent] = (),
    pod_events: Sequence[ObjectEvent] = (),
    since_ms: int = 0,
) -> PreflightView:
    """Reads a Job (batch/v1), its pod and the end of its log as the API server returns them.

    A pod that is gone, or was not created yet, is None; the Events then show the cause.

    Args:
        job: the Job.
        pod: its pod.
        log: the end of the pod's log.
        job_events: the Events about the Job.
        pod_events: the Events about its pod, even if that is gone.
        since_ms: since when the operator has observed the group (wall clock, ms).
    """
    if job is None:
        return PreflightView(None)
    status = mapping(job.get("status"))
    held = {
        condition.get("type"): condition
        for condition in objects(status.get("conditions"))
        if condition.get("status") == "True"
    }
    exit_code, message, waiting, injected = _container(job, pod)
    started = "running" in _worker(pod) or "terminated" in _worker(pod)
    passed = started and exit_code == 0
    done = passed or held.get("Complete") is not None or bool(status.get("succeeded"))
    # FailureTarget comes as soon as the outcome is certain, Failed when the pods are gone (Kubernetes 1.31).
    failed = None if passed else held.get("Failed") or held.get("FailureTarget")
    if not waiting and exit_code is None and not started and not done:
        waiting = job_pod_not_created(job_events) or pod_held_up(pod_events)
    line = _last_line(message) or _last_line(log)
    # A container of an injector may have kept its pod up to the time limit, whatever the outcome.
    unseen = (
        pod is None
        and failed is not None
        and (time_ms(failed.get("lastTransitionTime")) or since_ms) < since_ms
    )
    if unseen:
        line = "it ended while no operator ran, and its pod is gone, so its outcome is not known"
    if failed is not None and not line and exit_code is None:
        line = pod_rejected(pod) or str(failed.get("message") or failed.get("reason") or "")
    created_ms = time_ms(mapping(job.get("metadata")).get("creationTimestamp"))
    gone = failed is not None or (bool(exit_code) and not done)
    # Its pod was deleted, evicted, or lost with its node.
    lost = pod is None and failed is not None and failed.get("reason") == "BackoffLimitExceeded"
    disrupted = lost or _condition(pod, "DisruptionTarget") == "True"
    late = failed is not None and failed.get("reason") == "DeadlineExceeded"
    killed = (
        exit_code in _FROM_OUTSIDE
        and not late
        and mapping(_worker(pod).get("terminated")).get("reason") != "OOMKilled"
    )
    return PreflightView(
        created_ms if created_ms is not None else 0,
        done,
        gone,
        exit_code,
        line,
        waiting,
        environment=disrupted
        or unseen
        or killed
        or injected
        or exit_code == ENVIRONMENT
        or (exit_code is None and bool(waiting or pod_rejected(pod))),
        kept=outlived_by(pod),
        unseen=unseen,
    )


def decide_preflight(
    observed: PreflightView, *, now_ms: int, timeout_ms: int = TIMEOUT_MS
) -> PreflightDecision:
    """Decides whether the new revision may be rolled out."""
    if observed.created_ms is None:
        return PreflightDecision("start", "the new revision has not been tried yet")
    if observed.succeeded:
        kept = f"; {observed.kept}, so the operator deletes the Job" if observed.kept else ""
        return PreflightDecision("pass", f"the preflight of the new revision has passed{kept}")
    if observed.failed:
        return PreflightDecision(
            "fail", f"the preflight failed: {failure_of(observed)}", again=observed.environment
        )
    if now_ms - observed.created_ms > timeout_ms:
        why = observed.waiting or observed.last_line or "it has not come to its end"
        reason = f"the preflight took more than {duration(timeout_ms)}: {why}"
        return PreflightDecision("timeout", reason, again=observed.environment)
    lasts = now_ms - observed.created_ms >= BLOCKED_AFTER_MS
    return PreflightDecision(
        "wait",
        f"the preflight is running{f' ({observed.waiting})' if observed.waiting else ''}",
        blocked=observed.waiting if lasts else "",
    )


def retry_delay_ms(attempts: int, key: str) -> int:
    """The delay before the next preflight of a revision, in ms.

    Args:
        attempts: how many have failed because of their environment.
        key: identifies the group; the jitter is derived from it, so that groups with one cause do not start
            their pods at the same moment.
    """
    jitter = zlib.crc32(f"{key}/{attempts}".encode()) / 2**32
    return delay_ms(attempts, jitter, first_ms=FIRST_RETRY_MS, longest_ms=LONGEST_RETRY_MS)


def failure_of(observed: PreflightView) -> str:
    """Why a Job of one pod has failed, in words."""
    if observed.exit_code is None:
        if observed.waiting:
            return f"its pod did not start: {observed.waiting}"
        return observed.last_line or "its pod left no trace"
    code = f"signal {-observed.exit_code}" if observed.exit_code < 0 else f"exit code {observed.exit_code}"
    meaning = _EXIT_CODES.get(observed.exit_code, "")
    if observed.last_line:
        return f"{observed.last_line} ({code})"
    return f"{code}{f': {meaning}' if meaning else ''}; the log is empty"


def _container(job: Mapping[str, Any], pod: Mapping[str, Any] | None) -> tuple[int | None, str, str, bool]:
    """Exit code, termination message and reason to wait of the container `worker`, or of an init container
    that failed or waits before it; whether that is none of the Job's template."""
    status, worker = mapping((pod or {}).get("status")), _worker(pod)
    ended = mapping(worker.get("terminated"))
    if ended:
        return _exit_code(ended), str(ended.get("message") or ""), "", False
    waiting = _unscheduled(status)
    if "running" in worker:
        return None, "", waiting, False
    spec = mapping(mapping(mapping(job.get("spec")).get("template")).get("spec"))
    own = {container.get("name") for container in objects(spec.get("initContainers"))}
    for container in objects(status.get("initContainerStatuses")):
        state = mapping(container.get("state"))
        ended = mapping(state.get("terminated"))
        if ended.get("exitCode"):
            return _exit_code(ended), str(ended.get("message") or ""), "", container.get("name") not in own
        waiting = _waiting(state) or waiting
    return None, "", _waiting(worker) or waiting, False


def _exit_code(ended: Mapping[str, Any]) -> int:
    code = int(ended.get("exitCode") or 0)
    return 128 - code if 128 < code < 160 else code


def _waiting(state: Mapping[str, Any]) -> str:
    held = mapping(state.get("waiting"))
    reason = str(held.get("reason") or "")
    if reason in ("", "ContainerCreating", "PodInitializing"):
        return ""
    return not_pulled(state) or f"{reason}: {_last_line(str(held.get('message') or ''))}".rstrip(": ")


def _worker(pod: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The state of the container `worker`."""
    containers = objects(mapping((pod or {}).get("status")).get("containerStatuses"))
    states = (
        mapping(container.get("state"))
        for container in containers
        if container.get("name") == names.CONTAINER
    )
    return next(states, {})


def _condition(pod: Mapping[str, Any] | None, kind: str) -> str:
    conditions = objects(mapping((pod or {}).get("status")).get("conditions"))
    return next(
        (str(condition.get("status")) for condition in conditions if condition.get("type") == kind), ""
    )


def _unscheduled(status: Mapping[str, Any]) -> str:
    for condition in objects(status.get("conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return cut(
                f"{condition.get('reason') or 'Unschedulable'}: {condition.get('message') or ''}".rstrip(": ")
            )
    return ""


def _last_line(text: str) -> str:
    """The last line that is not empty; for a JSON line (`worker events`), its message."""
    for line in reversed(text.splitlines()):
        if line.strip():
            return one_line(_message(line.strip()), _LONGEST)
    return ""


def _message(line: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        record = json_object(line)
    except ValueError:
        return line
    message = record.get("message") or record.get("error")
    return str(message) if message else line
