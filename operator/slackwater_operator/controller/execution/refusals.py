"""What a refused or failed request means: a reason, a message with what to do, and a back-off."""

from __future__ import annotations

from datetime import UTC, datetime

from slackwater.kafka.untrusted import one_line
from slackwater_operator.api.v1alpha1.consumer_group import KIND
from slackwater_operator.kubernetes.errors import KubeConflict, KubeError, KubeForbidden, KubeUnavailable
from slackwater_operator.planner.actions import (
    Action,
    AdoptObject,
    ApplyObject,
    CreateSecret,
    DeleteObject,
    DeletePod,
    FillReplicas,
    OpenGate,
    ReleaseSpec,
    RequestTakeover,
    SetFinalizers,
    SetReplicas,
    WriteStatus,
)
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.backoff import LONGEST_MS, UNAVAILABLE_LONGEST_MS, Refusals

LONGEST_ANSWER = 700
"""How many characters of the API server's message a condition holds."""

KAFKA_FAILED, WORKER_FAILED = "KafkaRequestFailed", "WorkerRequestFailed"
WORKERS_LONGEST_MS = 10_000
"""The cap of the back-off for workers: a return or a takeover must end within a session."""
FORBIDDEN, QUOTA, REFUSED = "Forbidden", "QuotaExceeded", "Refused"

_MISSING = (
    404,
    408,
)  # the object is gone by now, or the server did not wait: the next reconciliation observes it
_NEEDED_FIRST = ("ConfigMap", "ServiceAccount")
_PODS_MAKERS = ("StatefulSet", "Job")
_BESIDE = ("Service", "PodDisruptionBudget", "PodMonitor", "Job")


def subject_of(snapshot: GroupSnapshot, action: Action) -> str:
    """What an action asks of the API server, in words; "" where it asks nothing of it."""
    match action:
        case ApplyObject():
            return f"apply {action.manifest['kind']} {action.manifest['metadata']['name']}"
        case AdoptObject():
            return f"adopt {action.kind} {action.name}"
        case SetReplicas():
            return f"scale StatefulSet {action.name}"
        case CreateSecret():
            return f"create Secret {action.name}"
        case RequestTakeover():
            return f"read the takeover Secret for {action.pod}"
        case DeleteObject():
            return f"delete {action.kind} {action.name}"
        case DeletePod():
            return f"delete Pod {action.name}"
        case WriteStatus():
            return f"write the status of {KIND} {snapshot.name}"
        case SetFinalizers():
            return f"set the finalizers of {KIND} {snapshot.name}"
        case FillReplicas():
            return f"set spec.replicas of {KIND} {snapshot.name}"
        case ReleaseSpec():
            return f"give up the spec of {KIND} {snapshot.name}"
    return ""


def needed_first(action: Action) -> bool:
    """Whether pods cannot be made without what this action makes."""
    if isinstance(action, CreateSecret):
        return True
    return isinstance(action, ApplyObject) and action.manifest["kind"] in _NEEDED_FIRST


def makes_pods(action: Action) -> bool:
    """Whether this action gives pods a template."""
    return isinstance(action, ApplyObject) and action.manifest["kind"] in _PODS_MAKERS


def beside(action: Action) -> bool:
    """Whether the rest of a plan can be done without this action."""
    if isinstance(action, ApplyObject):
        return action.manifest["kind"] in _BESIDE
    return isinstance(action, DeleteObject | SetFinalizers)


def note(
    refusals: Refusals, subject: str, error: KubeError, *, now_ms: int, jitter: float
) -> tuple[str, str] | None:
    """Notes a refused request. The news for people, as (reason, message); None where there are none.

    Args:
        refusals: the group's.
        subject: what was asked (`subject_of`).
        error: what the API server answered; it has a status.
        now_ms: wall clock.
        jitter: a random number from 0 to 1.
    """
    reason, message = problem(subject, error)
    passing = isinstance(error, KubeConflict | KubeUnavailable) or error.status in _MISSING
    news = refusals.refused(
        subject,
        reason,
        message,
        now_ms=now_ms,
        jitter=jitter,
        passing=passing,
        wait_ms=round(error.retry_after_s * 1000),
        longest_ms=UNAVAILABLE_LONGEST_MS if isinstance(error, KubeUnavailable) else LONGEST_MS,
    )
    return (reason, message) if news else None


def asks_worker(action: Action) -> bool:
    """Whether an action is a request to workers."""
    return isinstance(action, OpenGate | RequestTakeover)


def note_failure(
    failures: Refusals, action: Action, error: str, *, now_ms: int, jitter: float
) -> tuple[str, str] | None:
    """Notes an action that Kafka or a worker did not carry out. Returns what `note` returns.

    Such a failure may pass: it is shown, with its first time, only after several in a row.

    Args:
        failures: the group's.
        action: what failed.
        error: why, and what to do.
        now_ms: wall clock.
        jitter: a random number from 0 to 1.
    """
    reason = WORKER_FAILED if asks_worker(action) else KAFKA_FAILED
    since = datetime.fromtimestamp(failures.since_ms(action, now_ms=now_ms) // 1000, UTC)
    message = f"{one_line(error, LONGEST_ANSWER)} (failing since {since:%Y-%m-%dT%H:%M:%SZ})"
    news = failures.refused(
        action,
        reason,
        message,
        now_ms=now_ms,
        jitter=jitter,
        passing=True,
        longest_ms=WORKERS_LONGEST_MS if asks_worker(action) else LONGEST_MS,
    )
    return (reason, message) if news else None


def problem(subject: str, error: KubeError) -> tuple[str, str]:
    """The condition's reason and message of a refused request."""
    reason, advice = _reason(error)
    answer = one_line(" ".join(error.answer.split()), LONGEST_ANSWER)
    return reason, f"the API server refused to {subject} ({error.status}): {answer}; {advice}"


def _reason(error: KubeError) -> tuple[str, str]:
    """The reason, and what to do."""
    answer = error.answer
    if "exceeded quota" in answer or "failed quota" in answer:
        return QUOTA, "raise or free the namespace's ResourceQuota; the operator retries every minute"
    if "violates PodSecurity" in answer:
        return REFUSED, "correct spec.template, or change the namespace's Pod Security level"
    if "admission webhook" in answer or "ValidatingAdmissionPolicy" in answer or "failed calling" in answer:
        return REFUSED, "correct what the admission policy reports, or change that policy"
    if "is being terminated" in answer:
        return REFUSED, "the namespace is being deleted"
    if isinstance(error, KubeForbidden):
        return FORBIDDEN, (
            "grant the operator's ServiceAccount this permission (the chart's rbac.create and "
            "watchNamespaces)"
        )
    if isinstance(error, KubeConflict | KubeUnavailable) or error.status in _MISSING:
        return REFUSED, "the operator retries"
    return REFUSED, "correct what the API server reports, usually in spec.template"
