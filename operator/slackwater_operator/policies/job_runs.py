"""What is observed of a Job that runs a command of the worker's image once: a rewind, or a maintenance."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slackwater.times import duration
from slackwater_operator.policies.rollout.preflight import PreflightView, failure_of

GRACE_MS = 60_000
"""Beyond the Job's own limit (activeDeadlineSeconds): for a Job that the Job controller does not process."""


@dataclass(frozen=True)
class JobRun:
    """A Job, as it was observed.

    Attributes:
        name: its name.
        uid: its uid.
        view: its progress or outcome.
        output: what a successful one has reported; "" without that.
        started: whether its container runs, or has run.
        deleting: whether it has a deletionTimestamp.
    """

    name: str
    uid: str
    view: PreflightView
    output: str = ""
    started: bool = False
    deleting: bool = False


def overdue(job: JobRun, *, now_ms: int, limit_ms: int, start_ms: int) -> str:
    """Why a Job that has not ended is given up; "" while it is not.

    Args:
        job: the Job.
        now_ms: wall clock.
        limit_ms: its own time limit.
        start_ms: how long its pod may take to start.
    """
    took_ms = now_ms - (job.view.created_ms or 0)
    if took_ms > limit_ms + GRACE_MS:
        return f"it took more than {duration(limit_ms)}"
    if not job.started and took_ms > start_ms:
        waiting = job.view.waiting or "its pod was not created"
        return f"its pod did not start within {duration(start_ms)}: {waiting}"
    return ""


def why_failed(job: JobRun) -> str:
    """Why a Job has failed."""
    return re.sub(r"^slackwater [a-z]+: error: ", "", failure_of(job.view))
