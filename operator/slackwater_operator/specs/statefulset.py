"""The StatefulSets of a group's workers, their pod template, and the revision that names the template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slackwater_operator.api.v1alpha1 import pod_template_overlay as overlay
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, parse
from slackwater_operator.model import names
from slackwater_operator.specs.revision_record import revision_source
from slackwater_operator.specs.worker_config import config_map, config_volume

GRACE_BEYOND_DRAIN_MS = 15_000
"""What a worker needs after its drain, at most: the last commit, closing, and a slow machine."""

COMMAND = ["slackwater", "worker", "--config", names.CONFIG_FILE]

_START_LIMIT_S = 300


@dataclass(frozen=True)
class Revision:
    """What a worker is started from.

    Attributes:
        hash: the revision's name: the hash of the template, which names the ConfigMap, and so of both.
        template: the pod template; its label `slackwater.dev/revision` is the hash.
        config_map: the ConfigMap that the template mounts.
        source: what it is made from (`revision_record.revision_source`); empty if that is not kept.
    """

    hash: str
    template: dict[str, Any]
    config_map: dict[str, Any]
    source: dict[str, Any] = field(default_factory=dict)


def read_resource(resource: Mapping[str, Any], *, worker_image: str) -> tuple[ConsumerGroup, Revision]:
    """Reads a ConsumerGroup of the API server, and the revision that it asks for.

    Args:
        resource: the object.
        worker_image: the image where spec.pipeline.image is not set.

    Raises:
        ResourceError, FieldError: the resource cannot be used; the text of the condition InvalidSpec.
    """
    group = parse(resource, name=f"ConsumerGroup {resource['metadata'].get('name', '')}")
    made = revision(group, worker_image=worker_image)
    return group, replace(made, source=revision_source(resource))


def revision(group: ConsumerGroup, *, worker_image: str) -> Revision:
    """The revision that the spec asks for.

    Fields that take effect without a restart (`revision_record.NOT_PART`) are not part of it;
    rollout.strategy is, since Takeover adds a key and an annotation to the pods.

    Args:
        group: the resource.
        worker_image: the image where spec.pipeline.image is not set.

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


def termination_grace_ms(group: ConsumerGroup) -> int:
    """How long a worker may take to end: `terminationGracePeriodSeconds` of its pod, in ms."""
    return group.spec.delivery.drain_timeout_ms + GRACE_BEYOND_DRAIN_MS


def _pod_spec(group: ConsumerGroup, worker_image: str, config_map_name: str) -> dict[str, Any]:
    return {
        "serviceAccountName": names.service_account(group.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": -(-termination_grace_ms(group) // 1000),
        # Required by the Pod Security Standard `restricted`.
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": _affinity(group.name),
        "topologySpreadConstraints": [_spread(group.name)],
        "containers": [_container(group, group.spec.pipeline.image or worker_image)],
        "volumes": [
            config_volume(group, config_map_name),
            {"name": names.TEMPORARY_VOLUME, "emptyDir": {}},
        ],
    }


def _container(group: ConsumerGroup, image: str) -> dict[str, Any]:
    return {
        "name": names.CONTAINER,
        "image": image,
        "command": list(COMMAND),
        "workingDir": "/tmp",  # Spark writes to its working directory
        "env": [
            *_identity(group),
            from_pod(names.POD_IP_VARIABLE, "status.podIP"),
            {"name": "HOME", "value": "/tmp"},
        ],
        "ports": [{"name": names.PORT_NAME, "containerPort": names.PORT, "protocol": "TCP"}],
        **_probes(),
        # A worker writes why it ended; if it could not, Kubernetes takes the end of the log.
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
    """The variables with the member (`flights-3`), its pod (`flights-b-3`) and the ConsumerGroup's uid.

    The member's name is composed of the group's name and the ordinal, since the pod's name contains the
    set's suffix. A variable must come after those that it refers to.
    """
    return [
        from_pod(names.ORDINAL_VARIABLE, f"metadata.labels['{names.POD_INDEX_LABEL}']"),
        {"name": names.INSTANCE_ID_VARIABLE, "value": f"{group.name}-$({names.ORDINAL_VARIABLE})"},
        from_pod(names.POD_NAME_VARIABLE, "metadata.name"),
        {"name": names.GROUP_UID_VARIABLE, "value": group.metadata.uid},
    ]


def from_pod(variable: str, field: str) -> dict[str, Any]:
    """An environment variable with the value of a field of the pod (downward API)."""
    return {"name": variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}


def _probes() -> dict[str, Any]:
    """Startup and readiness are checked every second, so that the operator notices a returned worker within
    one; liveness every 10 s and six times, since a needless restart costs more than a minute's delay."""
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
    """Prefers different nodes, so that the loss of a node affects as few workers as possible."""
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


def statefulset(
    group: ConsumerGroup, *, template: Mapping[str, Any], replicas: int, suffix: str = "", start: int = 0
) -> dict[str, Any]:
    """A StatefulSet of the group, for server-side apply.

    OnDelete: a new template restarts no pod; the rolling restart deletes pods one by one. Parallel: with
    OrderedReady, one pod that does not become ready would keep the others from returning within their
    sessions.

    Args:
        group: the resource.
        template: the pod template: that of a Revision, or an earlier one to go back to.
        replicas: how many pods are wanted. Never left out: an apply without a field that it owned before
            resets it, here to 1.
        suffix: which of the group's sets, one of `names.SETS`.
        start: the first pod's ordinal. The sets of takeovers always have it, for the same reason as
            `replicas`: reset to 0 it would replace the pods. The plain set, of a group that has only used
            Restart, has no `ordinals` where it is 0, so that an upgrade changes nothing in it.
    """
    spec: dict[str, Any] = {
        "replicas": replicas,
        "serviceName": names.service(group.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 10,
        "selector": {"matchLabels": names.selector(group.name)},
        "template": dict(template),
    }
    if suffix or start:
        spec["ordinals"] = {"start": start}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": names.metadata(group, names.statefulset(group.name, suffix)),
        "spec": spec,
    }


def template_hash(template: Mapping[str, Any]) -> str:
    """The revision in a pod template's label; "" without one."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    return str(labels.get(names.REVISION_LABEL, ""))
