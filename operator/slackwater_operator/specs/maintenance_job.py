"""The Job that maintains a table once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.api.v1alpha1.spec.maintenance import Maintenance
from slackwater_operator.model import names
from slackwater_operator.specs.job_template import job_template

COMMAND = ["slackwater", "maintain", "--config", names.CONFIG_FILE, "--output", "json"]

_GRACE_S = 5
"""There is nothing to drain: what is not committed is of no use, and a rewind may wait for the pod's end."""


def maintenance_job(
    group: ConsumerGroup,
    template: Mapping[str, Any],
    entry: Maintenance,
    *,
    table: str,
    key: str,
    limit_ms: int,
) -> dict[str, Any]:
    """A Job with one pod that runs `slackwater maintain` once.

    Kubernetes does not delete it when it has finished: its outcome must not be lost while no operator runs.

    Args:
        group: the resource.
        template: the workers' pod template, which names the tables' configuration.
        entry: the entry of spec.maintenance.
        table: the table's name or path.
        key: identifies the run in the Job's name.
        limit_ms: how long it may take.
    """
    command = [
        *COMMAND,
        f"--table={table}",
        f"--target-file-size={_size(entry.compact_to)}",
        f"--expire-after={_duration(entry.expire_after_ms)}",
        *(f"--cluster-by={column}" for column in entry.cluster_by),
    ]
    pod = job_template(group, template, app=names.MAINTENANCE_APP, command=command)
    pod["spec"]["terminationGracePeriodSeconds"] = _GRACE_S
    if entry.resources:
        (worker,) = pod["spec"]["containers"]
        worker["resources"] = entry.resources
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": names.metadata(group, names.maintenance_job(group.name, key), app=names.MAINTENANCE_APP),
        "spec": {"backoffLimit": 0, "activeDeadlineSeconds": -(-limit_ms // 1000), "template": pod},
    }


def _size(bytes_: int) -> str:
    mebibytes = bytes_ >> 20
    return "1Gi" if mebibytes == 1024 else f"{mebibytes}Mi"


def _duration(ms: int) -> str:
    hours, rest_ms = divmod(ms, 3_600_000)
    return f"{hours}h{rest_ms}ms" if rest_ms else f"{hours}h"
