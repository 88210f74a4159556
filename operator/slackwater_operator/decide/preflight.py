"""What a preflight Job's state means for the rollout.

The Job runs the new template with `slackwater worker --config FILE --preflight`: it imports the handler,
reaches the brokers and joins nothing. Its pod is tried once (backoffLimit 0), so one failure is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slackwater.kafka.untrusted import json_object, one_line

TIMEOUT_MS = 300_000
"""How long a preflight may take, image pull included."""

_LONGEST = 500
_EXIT_CODES = {
    2: "bad configuration or handler",
    3: "fenced",
    4: "the sink or the handler failed",
    -9: "killed, perhaps for want of memory",
}


@dataclass(frozen=True)
class PreflightView:
    """A preflight as it was observed.

    Attributes:
        created_ms: when its Job was made; None: there is none yet.
        succeeded: whether it has ended well.
        failed: whether it has failed for good.
        exit_code: its container's exit code, negative for a signal, None while unknown.
        last_line: the last line that it logged (or its termination message), "" when there is none.
        waiting: why its pod does not run yet (`Unschedulable: ...`, `ImagePullBackOff`), "" when it does.
    """

    created_ms: int | None
    succeeded: bool = False
    failed: bool = False
    exit_code: int | None = None
    last_line: str = ""
    waiting: str = ""


@dataclass(frozen=True)
class PreflightDecision:
    """What to make of it.

    Attributes:
        action: `start` (there is no Job yet), `wait`, `pass`, `fail` or `timeout` (which is a failure, too).
        reason: one sentence for people.
    """

    action: str
    reason: str

    @property
    def failed(self) -> bool:
        """Whether the new revision must not be rolled out."""
        return self.action in ("fail", "timeout")


def preflight_view(
    job: Mapping[str, Any] | None, pod: Mapping[str, Any] | None = None, log: str = ""
) -> PreflightView:
    """Reads a Job (batch/v1), its pod and its log (the tail is enough) as the API server gives them.

    A pod that is gone, or has not been made yet, is None.
    """
    if job is None:
        return PreflightView(None)
    status = _mapping(job.get("status"))
    held = {one.get("type"): one for one in _items(status.get("conditions")) if one.get("status") == "True"}
    done = held.get("Complete") is not None or bool(status.get("succeeded"))
    # FailureTarget comes as soon as the outcome is certain, Failed when the pods are gone (Kubernetes 1.31).
    failed = held.get("Failed") or held.get("FailureTarget")
    exit_code, message, waiting = _container(pod)
    line = _last_line(message) or _last_line(log)
    if failed is not None and not line and exit_code is None:
        line = str(failed.get("message") or failed.get("reason") or "")
    created_ms = time_ms(_mapping(job.get("metadata")).get("creationTimestamp"))
    gone = failed is not None or (bool(exit_code) and not done)
    return PreflightView(created_ms if created_ms is not None else 0, done, gone, exit_code, line, waiting)


def decide_preflight(seen: PreflightView, *, now_ms: int, timeout_ms: int = TIMEOUT_MS) -> PreflightDecision:
    """Decides whether the new revision may be rolled out."""
    if seen.created_ms is None:
        return PreflightDecision("start", "the new revision has not been tried yet")
    if seen.succeeded:
        return PreflightDecision("pass", "the preflight of the new revision has passed")
    if seen.failed:
        return PreflightDecision("fail", f"the preflight failed: {_why(seen)}")
    if now_ms - seen.created_ms > timeout_ms:
        why = seen.waiting or seen.last_line or "it has not come to its end"
        return PreflightDecision("timeout", f"the preflight took more than {timeout_ms // 1000} s: {why}")
    return PreflightDecision("wait", f"the preflight runs{f' ({seen.waiting})' if seen.waiting else ''}")


def _why(seen: PreflightView) -> str:
    if seen.exit_code is None:
        return seen.last_line or seen.waiting or "its pod left no trace"
    code = f"signal {-seen.exit_code}" if seen.exit_code < 0 else f"exit code {seen.exit_code}"
    meaning = _EXIT_CODES.get(seen.exit_code, "")
    if seen.last_line:
        return f"{seen.last_line} ({code})"
    return f"{code}{f': {meaning}' if meaning else ''}; it logged nothing"


def _container(pod: Mapping[str, Any] | None) -> tuple[int | None, str, str]:
    """The exit code, the termination message and why it waits, of the container `worker`, or of one
    before it."""
    status = _mapping((pod or {}).get("status"))
    waiting = _unscheduled(status)
    started = [*_items(status.get("initContainerStatuses")), *_items(status.get("containerStatuses"))]
    for container in started:
        state = _mapping(container.get("state"))
        ended = _mapping(state.get("terminated"))
        if ended.get("exitCode"):
            code = int(ended["exitCode"])
            return (128 - code if 128 < code < 160 else code), str(ended.get("message") or ""), ""
        held = _mapping(state.get("waiting"))
        reason = str(held.get("reason") or "")
        if reason and reason not in ("ContainerCreating", "PodInitializing"):
            waiting = f"{reason}: {_last_line(str(held.get('message') or ''))}".rstrip(": ")
    return None, "", waiting


def _unscheduled(status: Mapping[str, Any]) -> str:
    for one in _items(status.get("conditions")):
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return f"{one.get('reason') or 'Unschedulable'}: {one.get('message') or ''}".rstrip(": ")
    return ""


def _last_line(text: str) -> str:
    """The last line that is not empty; of a JSON line (`worker events`), its message."""
    for line in reversed(text.splitlines()):
        if line.strip():
            return one_line(_message(line.strip()), _LONGEST)
    return ""


def _message(line: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        told = json_object(line)
    except ValueError:
        return line
    message = told.get("message") or told.get("error")
    return str(message) if message else line


def time_ms(text: object) -> int | None:
    """A Kubernetes time (RFC 3339) in ms since 1970; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
