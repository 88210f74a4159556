"""The Jobs of a rewind: one checks the request while the workers run, the other carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names
from slackwater_operator.specs.job_template import job_template

COMMAND = ["slackwater", "rewind", "--config", names.CONFIG_FILE]


def rewind_job(
    group: ConsumerGroup,
    template: Mapping[str, Any],
    *,
    key: str,
    starts: Sequence[str],
    limit_ms: int,
    check: bool,
) -> dict[str, Any]:
    """A Job with one pod that runs `slackwater rewind` once.

    Kubernetes does not delete it when it has finished: its outcome must not be lost while no operator runs.

    Args:
        group: the resource.
        template: the workers' pod template, which names the table's configuration.
        key: identifies the rewind in the Job's name.
        starts: the arguments of `slackwater rewind`.
        limit_ms: how long it may take.
        check: only check the request, and change nothing.
    """
    command = [*COMMAND, *(["--check"] if check else []), "--", *starts]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": names.metadata(
            group, names.rewind_job(group.name, key, check=check), app=names.REWIND_APP
        ),
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": -(-limit_ms // 1000),
            "template": job_template(group, template, app=names.REWIND_APP, command=command),
        },
    }
