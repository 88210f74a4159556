"""The Job that tries a new revision before any worker is restarted with it."""

from __future__ import annotations

import copy
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names
from slackwater_operator.specs.pod_template import COMMAND, Revision, from_pod

KEEP_FINISHED_S = 3_600
"""For an operator that is gone before it could delete the Job."""

_ONLY_FOR_WORKERS = ("startupProbe", "livenessProbe", "readinessProbe", "ports", "lifecycle")
_MEMBERS_VARIABLES = (names.ORDINAL_VARIABLE, names.INSTANCE_ID_VARIABLE)


ATTEMPT = "slackwater.dev/attempt"
"""Annotation of a preflight Job: how many Jobs have tried the revision, this one among them."""
FAILURE = "slackwater.dev/failure"
"""Annotation of a preflight Job: why the Job before it failed; left out of the first one."""


def preflight_job(
    group: ConsumerGroup, revision: Revision, *, attempt: int = 1, retry: str = "", failure: str = ""
) -> dict[str, Any]:
    """One pod of the revision with `--preflight`: it imports the handler and reaches the brokers, and joins
    nothing. It reads what a worker reads, the takeover key too: whoever applies the Job has to have made
    that Secret before, or the pod waits for it as a worker's would.

    It has labels of its own, so that no Service and no budget finds it. Containers beside the worker's
    are left out, since the Job would wait for them to end; init containers stay.

    Its annotations are what the back-off between two of them is derived from: a status may lose what its
    CustomResourceDefinition does not name.

    Args:
        group: the resource.
        revision: what to try; its ConfigMap must have been applied.
        attempt: how many Jobs have tried the revision, this one among them.
        retry: the value of the ConsumerGroup's annotation slackwater.dev/retry; "": it has none.
        failure: why the Job before it failed; "": there was none.
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
    worker = next(one for one in pod["containers"] if one["name"] == names.CONTAINER)
    pod["containers"] = [worker]
    for name in _ONLY_FOR_WORKERS:
        worker.pop(name, None)
    worker["command"] = [*COMMAND, "--preflight"]
    # A Job's pod has no ordinal, and is no member: it goes by its own name.
    worker["env"] = [one for one in worker["env"] if one["name"] not in _MEMBERS_VARIABLES]
    worker["env"].insert(0, from_pod(names.INSTANCE_ID_VARIABLE, "metadata.name"))
    return template
