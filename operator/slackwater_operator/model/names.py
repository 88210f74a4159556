"""What a group's objects are called, how they are labelled, and which pod is which member."""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND, ConsumerGroup

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
TAKEOVER = f"{DOMAIN}/takeover"
"""Annotation of a worker's pod: "true" where its template gives it the key for takeovers, so that it can hand
over."""
HEALTH_PORT = f"{DOMAIN}/health-port"
"""Annotation of a pod whose worker listens on another port than `PORT`: processes of one machine share an
address."""
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
ORDINAL_VARIABLE = "SLACKWATER_ORDINAL"
INSTANCE_ID_VARIABLE = "SLACKWATER_INSTANCE_ID"
POD_NAME_VARIABLE = "SLACKWATER_POD_NAME"
GROUP_UID_VARIABLE = "SLACKWATER_GROUP_UID"
"""What a worker marks its membership with, so that nobody takes it for another group's."""
POD_IP_VARIABLE = "SLACKWATER_POD_IP"
HEALTH_HOST_VARIABLE = "SLACKWATER_HEALTH_HOST"
"""Overrides the address that a worker listens on; nothing sets it in a pod."""

POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
"""The ordinal, which the StatefulSet controller writes on each pod (Kubernetes 1.28), `spec.ordinals.start`
counted in."""

TAKEOVER_KEY = "key"
"""The key of the takeover Secret's data."""
KEY_PATH = "takeover/key"
"""Where that is in the worker's volume."""
KEY_FILE = f"{CONFIG_FOLDER}/{KEY_PATH}"

SETS = ("", "a", "b")
"""The suffixes of a group's StatefulSets: the plain one of a group that only ever used Restart, and the two
between which a takeover goes to and fro. One is there at rest, two while pods are taken over."""

HASH_CHARACTERS = 10
_MAX_LABEL = 63


def short_hash(value: Any) -> str:
    """The same ten characters for the same JSON value, whatever the order of its keys.

    Args:
        value: what JSON can write.
    """
    written = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(written.encode()).hexdigest()[:HASH_CHARACTERS]


def statefulset(name: str, suffix: str = "") -> str:
    """A StatefulSet of the group `name`; `suffix` is one of `SETS`."""
    return f"{name}-{suffix}" if suffix else name


def set_names(name: str) -> tuple[str, ...]:
    """The names of all StatefulSets that the group `name` may have, in the order of `SETS`."""
    return tuple(statefulset(name, suffix) for suffix in SETS)


def rivals(name: str) -> tuple[str, ...]:
    """The other groups that may have a StatefulSet of a name that the group `name` may have, too: `flights-a`
    and `flights-b` for `flights`, and the other way round."""
    suffixes = [f"-{suffix}" for suffix in SETS if suffix]
    shorter = [name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix) and name != suffix]
    return (*(f"{name}{suffix}" for suffix in suffixes), *shorter)


def takeover_secret(name: str) -> str:
    """The Secret of the group `name` with the key that a takeover's requests are signed with."""
    return f"{name}-takeover"


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


def preflight_job(name: str, revision: str, attempt: int = 1) -> str:
    """The Job that tries a revision, for the first time or again. A Job's name becomes a label of its pod: 63
    characters at most, so that a long name is cut; the revision, which the whole name is part of, keeps it
    unique."""
    ending = f"-preflight-{revision}{f'-{attempt}' if attempt > 1 else ''}"
    return name[: _MAX_LABEL - len(ending)].rstrip("-") + ending


def pod(name: str, ordinal: int, suffix: str = "") -> str:
    """The pod of that ordinal in the set `suffix` of the group `name`."""
    return f"{statefulset(name, suffix)}-{ordinal}"


def member_of(group_name: str, pod_name: str) -> str:
    """The group.instance.id of a pod's worker: `flights-b-3` and `flights-3` are the member `flights-3` of
    the group `flights` (`SLACKWATER_INSTANCE_ID` says the same in the pod).

    The group's name is needed, since `flights-a-3` is the member `flights-a-3` of a group called `flights-a`.
    A name that is none of the group's pods is given back as it is.
    """
    split = _split(group_name, pod_name)
    return pod_name if split is None else f"{group_name}-{split[1]}"


def set_of(group_name: str, pod_name: str) -> str:
    """Which of the group's sets (`SETS`) a pod is of; "" also for a name that is none of the group's pods."""
    split = _split(group_name, pod_name)
    return "" if split is None else split[0]


def ordinal_of(group_name: str, pod_name: str) -> int | None:
    """A pod's (or a member's) ordinal; None for a name that is none of the group's."""
    split = _split(group_name, pod_name)
    return None if split is None else split[1]


@lru_cache(maxsize=65_536)  # asked for each pod several times a turn
def _split(group_name: str, pod_name: str) -> tuple[str, int] | None:
    """A pod's set and ordinal."""
    suffixes = "|".join(suffix for suffix in SETS if suffix)
    match = re.fullmatch(rf"{re.escape(group_name)}-(?:({suffixes})-)?(0|[1-9][0-9]*)", pod_name)
    return (match[1] or "", int(match[2])) if match else None


def can_hand_over(pod_manifest: dict[str, Any]) -> bool:
    """Whether the worker in a pod has the key for takeovers: not in one that was started by Restart."""
    annotations = pod_manifest.get("metadata", {}).get("annotations") or {}
    return str(annotations.get(TAKEOVER, "")) == "true"


def health_port(metadata: dict[str, Any]) -> int:
    """Where the worker of a pod with that metadata answers."""
    port = str((metadata.get("annotations") or {}).get(HEALTH_PORT, ""))
    return int(port) if port.isascii() and port.isdigit() and 0 < int(port) < 65_536 else PORT


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
    return any(reference.get("uid") == uid and reference.get("controller") for reference in references)


def metadata(group: ConsumerGroup, name: str, *, app: str = WORKER_APP) -> dict[str, Any]:
    """The metadata of an object of the group."""
    return {
        "name": name,
        "namespace": group.namespace,
        "labels": labels(group.name, app=app),
        "ownerReferences": [owner_reference(group)],
    }
