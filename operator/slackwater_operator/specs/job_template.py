"""The pod template of a Job that runs the worker's image once, with the worker's configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names
from slackwater_operator.specs.statefulset import from_pod

_ONLY_FOR_WORKERS = ("startupProbe", "livenessProbe", "readinessProbe", "ports", "lifecycle")
_MEMBER_VARIABLES = (names.ORDINAL_VARIABLE, names.INSTANCE_ID_VARIABLE)


def job_template(
    group: ConsumerGroup, template: Mapping[str, Any], *, app: str, command: Sequence[str]
) -> dict[str, Any]:
    """A worker's pod template that runs another command once.

    The pod mounts what a worker mounts, including the takeover Secret: create that Secret before the Job, or
    the pod waits for it. It has its own labels, so that no Service and no PodDisruptionBudget selects it.
    Containers besides the worker's are left out, since the Job would wait for them to end; init containers
    stay.

    Args:
        group: the resource.
        template: the workers' pod template; not changed.
        app: the pod's name label.
        command: the command of the container `worker`.
    """
    made: dict[str, Any] = copy.deepcopy(dict(template))
    # A template that the API server has returned may have a creationTimestamp that is null.
    made["metadata"] = {name: value for name, value in made["metadata"].items() if value is not None}
    made["metadata"]["labels"].update(names.labels(group.name, app=app))
    pod = made["spec"]
    pod["restartPolicy"] = "Never"
    worker = next(container for container in pod["containers"] if container["name"] == names.CONTAINER)
    pod["containers"] = [worker]
    for name in _ONLY_FOR_WORKERS:
        worker.pop(name, None)
    worker["command"] = list(command)
    # A Job's pod has no ordinal and is not a member: its instance id is its own name.
    worker["env"] = [variable for variable in worker["env"] if variable["name"] not in _MEMBER_VARIABLES]
    worker["env"].insert(0, from_pod(names.INSTANCE_ID_VARIABLE, "metadata.name"))
    return made
