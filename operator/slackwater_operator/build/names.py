"""What a group's objects are called, how they are labelled, and which pod is which member."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from slackwater_operator.resources import API_VERSION, KIND, ConsumerGroup

DOMAIN = "slackwater.dev"
GROUP_LABEL = f"{DOMAIN}/group"
REVISION_LABEL = f"{DOMAIN}/revision"
NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"

WORKER_APP = "slackwater-worker"
PREFLIGHT_APP = "slackwater-preflight"
MANAGER = "slackwater-operator"

RESTARTED_AT = f"{DOMAIN}/restartedAt"
"""Annotation of a ConsumerGroup: a new value restarts all workers."""
PAUSED = f"{DOMAIN}/paused"
"""Annotation of a ConsumerGroup: "true" is spec.rollout.paused."""
RETRY = f"{DOMAIN}/retry"
"""Annotation of a ConsumerGroup: a new value tries a revision again that failed."""
FINALIZER = f"{DOMAIN}/kafka-group"

CONTAINER = "worker"
CONFIG_VOLUME = "slackwater"
CONFIG_FOLDER = "/etc/slackwater"
CONFIG_KEY = "worker.yaml"
CONFIG_FILE = f"{CONFIG_FOLDER}/{CONFIG_KEY}"
SECRETS_FOLDER = f"{CONFIG_FOLDER}/kafka"
TEMPORARY_VOLUME = "tmp"
PORT_NAME = "health"
PORT = 8080
INSTANCE_ID_VARIABLE = "SLACKWATER_INSTANCE_ID"
HEALTH_HOST_VARIABLE = "SLACKWATER_HEALTH_HOST"

HASH_CHARACTERS = 10
_MAX_LABEL = 63


def short_hash(value: Any) -> str:
    """The same ten characters for the same JSON value, whatever the order of its keys.

    Args:
        value: what JSON can write.
    """
    written = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(written.encode()).hexdigest()[:HASH_CHARACTERS]


def statefulset(name: str) -> str:
    """The StatefulSet of the group `name`."""
    return name


def service(name: str) -> str:
    """The headless Service of the group `name`."""
    return name


def disruption_budget(name: str) -> str:
    """The PodDisruptionBudget of the group `name`."""
    return name


def service_account(name: str) -> str:
    """The ServiceAccount of the group `name`."""
    return name


def pod_monitor(name: str) -> str:
    """The PodMonitor of the group `name`."""
    return name


def config_map(name: str, config_hash: str) -> str:
    """The ConfigMap of the group `name` that holds the configuration with that hash."""
    return f"{name}-{config_hash}"


def preflight_job(name: str, revision: str) -> str:
    """The Job that tries a revision. A Job's name becomes a label of its pod: 63 characters at most, so that
    a long name is cut; the revision, which the whole name is part of, keeps it unique."""
    ending = f"-preflight-{revision}"
    return name[: _MAX_LABEL - len(ending)].rstrip("-") + ending


def pod(name: str, ordinal: int) -> str:
    """The pod of that ordinal in the group `name`."""
    return f"{name}-{ordinal}"


def member_of(pod_name: str) -> str:
    """The group.instance.id of a pod's worker: its name (`SLACKWATER_INSTANCE_ID`)."""
    return pod_name


def selector(name: str) -> dict[str, str]:
    """The labels by which the group's workers are found. They can't change: a StatefulSet's selector is
    immutable."""
    return {GROUP_LABEL: name, NAME_LABEL: WORKER_APP}


def selector_text(name: str) -> str:
    """The selector as the scale subresource and list requests want it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector(name).items()))


def labels(name: str, *, app: str = WORKER_APP) -> dict[str, str]:
    """The labels of each object of the group `name`.

    Args:
        name: the group's name.
        app: `PREFLIGHT_APP` for the preflight's pod, which no selector must find.
    """
    return {
        NAME_LABEL: app,
        INSTANCE_LABEL: name,
        MANAGED_BY_LABEL: MANAGER,
        GROUP_LABEL: name,
    }


def owner_reference(group: ConsumerGroup) -> dict[str, Any]:
    """What makes an object go when the group goes (garbage collection) and known as the group's."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": group.name,
        "uid": group.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_owned(manifest: dict[str, Any], uid: str) -> bool:
    """Whether an object belongs to the ConsumerGroup with that uid."""
    references = manifest.get("metadata", {}).get("ownerReferences") or []
    return any(one.get("uid") == uid and one.get("controller") for one in references)


def metadata(group: ConsumerGroup, name: str, *, app: str = WORKER_APP) -> dict[str, Any]:
    """The metadata of an object of the group."""
    return {
        "name": name,
        "namespace": group.namespace,
        "labels": labels(group.name, app=app),
        "ownerReferences": [owner_reference(group)],
    }
