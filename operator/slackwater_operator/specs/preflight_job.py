"""The preflight Job: it tries a new revision before the first worker is restarted with it."""

from __future__ import annotations

from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names
from slackwater_operator.specs.job_template import job_template
from slackwater_operator.specs.statefulset import COMMAND, Revision

KEEP_FINISHED_S = 3_600
"""When Kubernetes deletes a finished Job that the operator has not deleted."""

ATTEMPT = "slackwater.dev/attempt"
"""Annotation of a preflight Job: how many Jobs have tried the revision, including this one."""
FAILURE = "slackwater.dev/failure"
"""Annotation of a preflight Job: why the previous Job failed; the first Job has none."""


def preflight_job(
    group: ConsumerGroup, revision: Revision, *, attempt: int = 1, retry: str = "", failure: str = ""
) -> dict[str, Any]:
    """A Job with one pod of the revision, run with `--preflight`.

    The pod imports the handler and connects to the brokers, and does not join the group (`job_template`).

    The back-off between two Jobs is derived from the annotations: a status loses fields that its
    CustomResourceDefinition does not name, as that of an older version.

    Args:
        group: the resource.
        revision: what to try; its ConfigMap must have been applied.
        attempt: how many Jobs have tried the revision, including this one.
        retry: the value of the ConsumerGroup's annotation slackwater.dev/retry; "" without one.
        failure: why the previous Job failed; "" for the first one.
    """
    annotations = {ATTEMPT: str(attempt), names.RETRY: retry, FAILURE: failure}
    deadline_s = -(-group.spec.rollout.preflight.timeout_ms // 1000)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **names.metadata(
                group, names.preflight_job(group.name, revision.hash, attempt), app=names.PREFLIGHT_APP
            ),
            "annotations": {name: value for name, value in annotations.items() if value},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_s,
            "ttlSecondsAfterFinished": KEEP_FINISHED_S,
            "template": job_template(
                group, revision.template, app=names.PREFLIGHT_APP, command=[*COMMAND, "--preflight"]
            ),
        },
    }
