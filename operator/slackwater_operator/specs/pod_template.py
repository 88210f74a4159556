"""The pod of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slackwater_operator.api.v1alpha1 import pod_template_overlay as overlay
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names
from slackwater_operator.specs import takeover_secret
from slackwater_operator.specs.config_map import config_map
from slackwater_operator.specs.security import volume_sources

GRACE_BEYOND_DRAIN_MS = 15_000
"""What a worker may take after its drain: the last commit, closing, and a slow machine."""

COMMAND = ["slackwater", "worker", "--config", names.CONFIG_FILE]

_START_LIMIT_S = 300


@dataclass(frozen=True)
class Revision:
    """What a worker is started from.

    Attributes:
        hash: names it: of the template, and so of the configuration, too.
        template: the pod template, `slackwater.dev/revision` among its labels.
        config_map: the ConfigMap that it mounts.
    """

    hash: str
    template: dict[str, Any]
    config_map: dict[str, Any]


def revision(group: ConsumerGroup, *, worker_image: str) -> Revision:
    """What the group's workers should be started from now.

    What needs no restart (spec.replicas, scaling, rollout, suspend, deletionPolicy) is no part of it.

    Args:
        group: the resource.
        worker_image: the image where spec.pipeline.image names none.

    Raises:
        FieldError: a field cannot be used in a pod (a relative path).
    """
    configuration = config_map(group)
    template = _laid_over(group, worker_image, configuration["metadata"]["name"])
    hash_ = names.short_hash(template)
    template["metadata"]["labels"][names.REVISION_LABEL] = hash_
    return Revision(hash_, template, configuration)


def _laid_over(group: ConsumerGroup, worker_image: str, config_map_name: str) -> dict[str, Any]:
    own = {"metadata": _metadata(group), "spec": _pod_spec(group, worker_image, config_map_name)}
    return overlay.lay(own, group.spec.template)


def _metadata(group: ConsumerGroup) -> dict[str, Any]:
    result: dict[str, Any] = {
        "labels": names.labels(group.name),
        "annotations": {"kubectl.kubernetes.io/default-container": names.CONTAINER},
    }
    restarted_at = group.metadata.annotations.get(names.RESTARTED_AT)
    if group.spec.rollout.takes_over:
        result["annotations"][names.TAKEOVER] = "true"
    if restarted_at:
        result["annotations"][names.RESTARTED_AT] = str(restarted_at)
    return result


def _pod_spec(group: ConsumerGroup, worker_image: str, config_map_name: str) -> dict[str, Any]:
    grace_ms = group.spec.delivery.drain_timeout_ms + GRACE_BEYOND_DRAIN_MS
    return {
        "serviceAccountName": names.service_account(group.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": -(-grace_ms // 1000),
        # What the Pod Security Standard `restricted` wants.
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": _affinity(group.name),
        "topologySpreadConstraints": [_spread(group.name)],
        "containers": [_container(group, group.spec.pipeline.image or worker_image)],
        "volumes": [
            _configuration(group, config_map_name),
            {"name": names.TEMPORARY_VOLUME, "emptyDir": {}},
        ],
    }


def _container(group: ConsumerGroup, image: str) -> dict[str, Any]:
    return {
        "name": names.CONTAINER,
        "image": image,
        "command": list(COMMAND),
        "workingDir": "/tmp",  # Spark writes to where it is started
        "env": [
            *_identity(group),
            from_pod(names.POD_IP_VARIABLE, "status.podIP"),
            {"name": "HOME", "value": "/tmp"},
        ],
        "ports": [{"name": names.PORT_NAME, "containerPort": names.PORT, "protocol": "TCP"}],
        **_probes(),
        # A worker says why it ended; of one that could not, the end of the log tells.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": names.CONFIG_VOLUME, "mountPath": names.CONFIG_FOLDER, "readOnly": True},
            {"name": names.TEMPORARY_VOLUME, "mountPath": "/tmp"},
        ],
    }


def _identity(group: ConsumerGroup) -> list[dict[str, Any]]:
    """Which member the worker is, in which pod (`flights-3` in `flights-b-3`), and of which ConsumerGroup.

    The pod's name has its set in it, so that the member's is put together from the ordinal; that variable
    must come before the one that refers to it.
    """
    return [
        from_pod(names.ORDINAL_VARIABLE, f"metadata.labels['{names.POD_INDEX_LABEL}']"),
        {"name": names.INSTANCE_ID_VARIABLE, "value": f"{group.name}-$({names.ORDINAL_VARIABLE})"},
        from_pod(names.POD_NAME_VARIABLE, "metadata.name"),
        {"name": names.GROUP_UID_VARIABLE, "value": group.metadata.uid},
    ]


def from_pod(variable: str, field: str) -> dict[str, Any]:
    """A variable with the value of a field of its pod."""
    return {"name": variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}


def _probes() -> dict[str, Any]:
    """Startup and readiness are asked every second, so that a worker that is back is known to be within
    one; liveness seldom, since a restart costs more than a minute of doubt."""
    return {
        "startupProbe": _probe("/healthz", period_s=1, timeout_s=2, failures=_START_LIMIT_S),
        "livenessProbe": _probe("/healthz", period_s=10, timeout_s=5, failures=6),
        "readinessProbe": _probe("/readyz", period_s=1, timeout_s=2, failures=3),
    }


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": names.PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
        "successThreshold": 1,
    }


def _affinity(name: str) -> dict[str, Any]:
    """Workers rather on different nodes, so that a node takes as few along as possible."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": names.selector(name)},
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _spread(name: str) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(name)},
    }


def _configuration(group: ConsumerGroup, config_map_name: str) -> dict[str, Any]:
    """Configuration and Secrets in one volume: a mount inside a read-only mount can't be relied on."""
    config = {
        "name": config_map_name,
        "items": [{"key": names.CONFIG_KEY, "path": names.CONFIG_KEY}],
    }
    sources = [{"configMap": config}, *volume_sources(group.spec.kafka.security)]
    if group.spec.rollout.takes_over:
        sources.append(takeover_secret.volume_source(group.name))
    return {"name": names.CONFIG_VOLUME, "projected": {"defaultMode": 0o444, "sources": sources}}
