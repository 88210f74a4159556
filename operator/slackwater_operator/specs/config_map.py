"""The ConfigMap with a worker's configuration: one per revision, immutable."""

from __future__ import annotations

import json
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.api.v1alpha1.fields import FieldError
from slackwater_operator.model import names
from slackwater_operator.specs.security import worker_section
from slackwater_operator.specs.worker_config import worker_config

JOIN_GATE_MS = 600_000
"""How long a warm newcomer waits to be let in before it joins by itself: for an operator that is gone."""


def config_map(group: ConsumerGroup) -> dict[str, Any]:
    """The ConfigMap of the group's configuration as it is now; its name has the configuration's hash.

    Raises:
        FieldError: a path is relative, which means nothing in a pod.
    """
    document = pod_config(group)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(group, names.config_map(group.name, names.short_hash(document))),
        "immutable": True,
        # JSON is YAML, and read quicker (a worker that returns is in a hurry).
        "data": {names.CONFIG_KEY: json.dumps(document, indent=2) + "\n"},
    }


def pod_config(group: ConsumerGroup) -> dict[str, Any]:
    """The configuration of a worker that runs in a pod.

    Raises:
        FieldError: a path is relative, which means nothing in a pod.
    """
    pipeline = group.spec.pipeline
    if not pipeline.sink.path.startswith(("/", "file:///")):
        raise FieldError(
            "spec.pipeline.sink.path",
            f"{pipeline.sink.path!r} is relative, which means nothing in a pod; give an absolute path on a "
            "volume that spec.template mounts",
        )
    for index, folder in enumerate(pipeline.handler_path or ()):
        if not folder.startswith("/"):
            raise FieldError(
                f"spec.pipeline.handlerPath[{index}]",
                f"{folder!r} is relative, which means nothing in a pod; give the folder's absolute path in "
                "the image, such as /app",
            )
    document = worker_config(
        group,
        handler_path=pipeline.handler_path or (),
        sink_path=pipeline.sink.path,
        join_gate_ms=JOIN_GATE_MS,
        health_host="::",  # all addresses: probes use the pod's, kubectl port-forward uses loopback
        health_port=names.PORT,
        takeover_key_file=names.KEY_FILE if group.spec.rollout.takes_over else "",
    )
    section = worker_section(group.spec.kafka.security)
    return {**document, "security": section} if section else document
