"""Names and labels of a group's objects, and which pod belongs to which member."""

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
REWIND_APP = "slackwater-rewind"
MAINTENANCE_APP = "slackwater-maintenance"
MANAGER = "slackwater-operator"

RESTARTED_AT = f"{DOMAIN}/restartedAt"
"""Annotation of a ConsumerGroup: a new value restarts all workers."""
PAUSED = f"{DOMAIN}/paused"
"""Annotation of a ConsumerGroup: "true" has the effect of spec.rollout.paused."""
RETRY = f"{DOMAIN}/retry"
"""Annotation of a ConsumerGroup: a new value retries a failed revision."""
ADOPTED_FROM = f"{DOMAIN}/adopted-from"
"""Of a StatefulSet: the uid of the deleted ConsumerGroup whose it was, which workers of then tell Kafka."""
REVISION_NUMBER = f"{DOMAIN}/revision-number"
"""Annotation of the ConfigMap that keeps a revision's spec: a later revision has a larger number."""
PROMOTE = f"{DOMAIN}/promote"
"""Annotation of a ConsumerGroup: a new value whose first word is the number of the rollout's present step, or
`all`, completes that step, or all."""
ABORT = f"{DOMAIN}/abort"
"""Annotation of a ConsumerGroup: the revision that is not to be rolled out; its rollout goes back."""
REWIND = f"{DOMAIN}/rewind"
"""Annotation of a ConsumerGroup: from where its records are written again."""
MAINTAIN = f"{DOMAIN}/maintain"
"""Annotation of a ConsumerGroup: a new value maintains all tables of spec.maintenance now."""
TAKEOVER = f"{DOMAIN}/takeover"
"""Annotation of a worker's pod: "true" if its template has the key for takeovers, so that it can
hand over."""
HEALTH_PORT = f"{DOMAIN}/health-port"
"""Annotation of a pod whose worker listens on another port than `PORT`: local processes share an address."""
FINALIZER = f"{DOMAIN}/kafka-group"

CONTAINER = "worker"
CONFIG_VOLUME = "slackwater"
CONFIG_FOLDER = "/etc/slackwater"
CONFIG_KEY = "worker.yaml"
CONFIG_FILE = f"{CONFIG_FOLDER}/{CONFIG_KEY}"
SECRETS_FOLDER = f"{CONFIG_FOLDER}/kafka"
REGISTRY_FOLDERS = {"value": "registry", "key": "key-registry"}
"""The folders of CONFIG_FOLDER with the Secrets of the schema registries, by the column that they are for."""
TEMPORARY_VOLUME = "tmp"
PORT_NAME = "health"
PORT = 8080
ORDINAL_VARIABLE = "SLACKWATER_ORDINAL"
INSTANCE_ID_VARIABLE = "SLACKWATER_INSTANCE_ID"
POD_NAME_VARIABLE = "SLACKWATER_POD_NAME"
GROUP_UID_VARIABLE = "SLACKWATER_GROUP_UID"
"""The uid that a worker writes into its subscription, so that its membership can be told from
another group's."""
POD_IP_VARIABLE = "SLACKWATER_POD_IP"
HEALTH_HOST_VARIABLE = "SLACKWATER_HEALTH_HOST"
"""Overrides the address that a worker listens on; nothing sets it in a pod."""

POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
"""The pod's ordinal, `spec.ordinals.start` included; the StatefulSet controller sets it
(Kubernetes 1.28)."""

TAKEOVER_KEY = "key"
"""The key of the takeover Secret's data."""
KEY_PATH = "takeover/key"
"""The key's path in the worker's volume."""
KEY_FILE = f"{CONFIG_FOLDER}/{KEY_PATH}"

SETS = ("", "a", "b")
"""The suffixes of a group's StatefulSets: none for a group that has only used Restart, and two for
takeovers.

A group has one StatefulSet, or two while pods are taken over, from one suffix to the other.
"""

HASH_CHARACTERS = 10
_MAX_LABEL = 63


def short_hash(value: Any) -> str:
    """Ten characters of a SHA-256 hash: the same for the same JSON value, whatever the order of its keys.

    Args:
        value: anything that JSON can represent.
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
    """The other groups that may have a StatefulSet of the same name as the group `name`: `flights-a` and
    `flights-b` for `flights`, and vice versa."""
    suffixes = [f"-{suffix}" for suffix in SETS if suffix]
    shorter = [name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix) and name != suffix]
    return (*(f"{name}{suffix}" for suffix in suffixes), *shorter)


def takeover_secret(name: str) -> str:
    """The Secret of the group `name` with the key that signs takeover requests."""
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


def revision_record(name: str, revision: str) -> str:
    """The ConfigMap that keeps the spec of a revision of the group `name`."""
    return f"{name}-revision-{revision}"


def config_map(name: str, config_hash: str) -> str:
    """The ConfigMap of the group `name` that holds the configuration with that hash."""
    return f"{name}-{config_hash}"


def preflight_job(name: str, revision: str, attempt: int = 1) -> str:
    """The Job that tries a revision, for the first time or again.

    A Job's name becomes a label of its pod, with at most 63 characters, so a long name is cut. The revision
    stays in it and is derived from the whole name, so the result is unique.
    """
    ending = f"-preflight-{revision}{f'-{attempt}' if attempt > 1 else ''}"
    return name[: _MAX_LABEL - len(ending)].rstrip("-") + ending


def rewind_job(name: str, request: str, *, check: bool = False) -> str:
    """The Job of a rewind, or the one that checks it before.

    Args:
        name: the group's name, which is cut where the whole is too long for a label.
        request: identifies the rewind: a hash of the group's request and its time.
        check: whether it is the Job that checks.
    """
    ending = f"-rewind-{request}{'-check' if check else ''}"
    return name[: _MAX_LABEL - len(ending)].rstrip("-") + ending


def maintenance_job(name: str, key: str) -> str:
    """The Job that maintains a table once.

    Args:
        name: the group's name, which is cut where the whole is too long for a label.
        key: identifies the run: a hash of the table and the time.
    """
    ending = f"-maintenance-{key}"
    return name[: _MAX_LABEL - len(ending)].rstrip("-") + ending


def pod(name: str, ordinal: int, suffix: str = "") -> str:
    """The pod of that ordinal in the set `suffix` of the group `name`."""
    return f"{statefulset(name, suffix)}-{ordinal}"


def member_of(group_name: str, pod_name: str) -> str:
    """The group.instance.id of a pod's worker: `flights-b-3` and `flights-3` are the member `flights-3` of
    the group `flights` (in the pod: `SLACKWATER_INSTANCE_ID`).

    The group's name is needed, since `flights-a-3` is the member `flights-a-3` of a group called
    `flights-a`. A name that is not a pod of the group is returned unchanged.
    """
    split = _split(group_name, pod_name)
    return pod_name if split is None else f"{group_name}-{split[1]}"


def set_of(group_name: str, pod_name: str) -> str:
    """The suffix (`SETS`) of a pod's StatefulSet; "" also for a name that is not a pod of the group."""
    split = _split(group_name, pod_name)
    return "" if split is None else split[0]


def ordinal_of(group_name: str, pod_name: str) -> int | None:
    """The ordinal of a pod or member; None for a name that is not one of the group's."""
    split = _split(group_name, pod_name)
    return None if split is None else split[1]


@lru_cache(maxsize=65_536)  # called several times for each pod in a reconciliation
def _split(group_name: str, pod_name: str) -> tuple[str, int] | None:
    """A pod's suffix and ordinal."""
    suffixes = "|".join(suffix for suffix in SETS if suffix)
    match = re.fullmatch(rf"{re.escape(group_name)}-(?:({suffixes})-)?(0|[1-9][0-9]*)", pod_name)
    return (match[1] or "", int(match[2])) if match else None


def can_hand_over(pod_manifest: dict[str, Any]) -> bool:
    """Whether the worker in a pod has the key for takeovers; one that was started with strategy Restart has
    not."""
    annotations = pod_manifest.get("metadata", {}).get("annotations") or {}
    return str(annotations.get(TAKEOVER, "")) == "true"


def health_port(metadata: dict[str, Any]) -> int:
    """The port of the HTTP server in a pod with that metadata."""
    port = str((metadata.get("annotations") or {}).get(HEALTH_PORT, ""))
    return int(port) if port.isascii() and port.isdigit() and 0 < int(port) < 65_536 else PORT


def selector(name: str) -> dict[str, str]:
    """The labels that select the group's workers. They cannot change: a StatefulSet's selector is
    immutable."""
    return {GROUP_LABEL: name, NAME_LABEL: WORKER_APP}


def selector_text(name: str) -> str:
    """The selector in the form of the scale subresource and of list requests."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector(name).items()))


def labels(name: str, *, app: str = WORKER_APP) -> dict[str, str]:
    """The labels of each object of the group `name`.

    Args:
        name: the group's name.
        app: another one than `WORKER_APP` for the pod of a Job, which no selector may match.
    """
    return {
        NAME_LABEL: app,
        INSTANCE_LABEL: name,
        MANAGED_BY_LABEL: MANAGER,
        GROUP_LABEL: name,
    }


def owner_reference(group: ConsumerGroup) -> dict[str, Any]:
    """The owner reference that marks an object as the group's, and deletes it with the group (garbage
    collection)."""
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


def is_orphan(manifest: dict[str, Any], group: str) -> bool:
    """Whether a deleted ConsumerGroup of that name has left the object over (`kubectl delete
    --cascade=orphan`): it has the labels of one, and no owner."""
    metadata = manifest.get("metadata", {})
    of_group = {MANAGED_BY_LABEL: MANAGER, GROUP_LABEL: group}.items() <= (
        metadata.get("labels") or {}
    ).items()
    return of_group and not metadata.get("ownerReferences")


def group_uid_of(manifest: dict[str, Any]) -> str:
    """The uid that the workers of a StatefulSet tell Kafka; "" for another object."""
    pod = ((manifest.get("spec") or {}).get("template") or {}).get("spec") or {}
    variables = (each for container in pod.get("containers") or () for each in container.get("env") or ())
    return next((str(each.get("value")) for each in variables if each.get("name") == GROUP_UID_VARIABLE), "")


def metadata(group: ConsumerGroup, name: str, *, app: str = WORKER_APP) -> dict[str, Any]:
    """The metadata of an object of the group."""
    return {
        "name": name,
        "namespace": group.namespace,
        "labels": labels(group.name, app=app),
        "ownerReferences": [owner_reference(group)],
    }
