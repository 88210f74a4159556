"""The preflight Job: it tries a new revision before the first worker is restarted with it."""

from __future__ import annotations

import copy
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names
from slackwater_operator.specs.statefulset import COMMAND, Revision, from_pod

KEEP_FINISHED_S = 3_600
"""When Kubernetes deletes a finished Job that the operator has not deleted."""

_ONLY_FOR_WORKERS = ("startupProbe", "livenessProbe", "readinessProbe", "ports", "lifecycle")
_MEMBER_VARIABLES = (names.ORDINAL_VARIABLE, names.INSTANCE_ID_VARIABLE)

ATTEMPT = "slackwater.dev/attempt"
"""Annotation of a preflight Job: how many Jobs have tried the revision, including this one."""
FAILURE = "slackwater.dev/failure"
"""Annotation of a preflight Job: why the previous Job failed; the first Job has none."""


def preflight_job(
    group: ConsumerGroup, revision: Revision, *, attempt: int = 1, retry: str = "", failure: str = ""
) -> dict[str, Any]:
    """A Job with one pod of the revision, run with `--preflight`.

    The pod imports the handler and connects to the brokers, and does not join the group. It mounts what a
    worker mounts, including the takeover Secret: create that Secret before the Job, or the pod waits for it.

    The Job has its own labels, so that no Service and no PodDisruptionBudget selects its pod. Containers
    besides the worker's are left out, since the Job would wait for them to end; init containers stay.

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
            "template": _template(group, revision),
        },
    }


def _template(group: ConsumerGroup, revision: Revision) -> dict[str, Any]:
    template = copy.deepcopy(revision.template)
    template["metadata"]["labels"].update(names.labels(group.name, app=names.PREFLIGHT_APP))
    pod = template["spec"]
    pod["restartPolicy"] = "Never"
    worker = next(container for container in pod["containers"] if container["name"] == names.CONTAINER)
    pod["containers"] = [worker]
    for name in _ONLY_FOR_WORKERS:
        worker.pop(name, None)
    worker["command"] = [*COMMAND, "--preflight"]
    # A Job's pod has no ordinal and is not a member: its instance id is its own name.
    worker["env"] = [variable for variable in worker["env"] if variable["name"] not in _MEMBER_VARIABLES]
    worker["env"].insert(0, from_pod(names.INSTANCE_ID_VARIABLE, "metadata.name"))
    return template
