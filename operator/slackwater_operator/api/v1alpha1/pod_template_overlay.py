"""Merges spec.template over the operator's own pod template.

The rules are those of a strategic merge patch: mappings are merged, lists whose entries have a name are
merged by it, other lists are replaced, and `null` removes a field of the operator's. Fields that the operator
depends on can be neither changed nor removed; a `null` there, or in a field that the operator does not set,
counts as absent, as in Kubernetes. The API server checks whether the result is a valid pod; this module knows
the names of a pod's fields, so that an error for a misspelled one suggests the correct name.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater.fields import FieldError, describe, join, nearest

PATH = "spec.template"

MAX_DEPTH = 64
"""How deep a template may nest, in mappings and lists. Those of Kubernetes' fields nest less than 20 deep."""

WORKER = "worker"
_DOMAIN = "slackwater.dev/"

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "ports": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
}
"""The lists that are merged, each with the field that identifies an entry."""
_WHOLE_ENTRIES = frozenset({"env", "volumes", "ports", "volumeMounts"})
"""Lists whose entries replace one another wholly: `value` beside `valueFrom`, or two kinds of volume, would
be refused."""

POD_FIELDS = frozenset({
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig",
    "dnsPolicy", "enableServiceLinks", "ephemeralContainers", "evictionResponders", "hostAliases", "hostIPC",
    "hostNetwork", "hostPID", "hostUsers", "hostname", "hostnameOverride", "imagePullSecrets",
    "initContainers", "nodeName",
    "nodeSelector", "os", "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates",
    "resourceClaims", "resources", "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates",
    "schedulingGroup", "securityContext", "serviceAccount", "serviceAccountName", "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
})  # fmt: skip
CONTAINER_FIELDS = frozenset({
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name",
    "ports", "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules",
    "securityContext", "startupProbe", "stdin", "stdinOnce", "terminationMessagePath",
    "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts", "workingDir",
})  # fmt: skip

OWNED_POD_FIELDS = {
    "restartPolicy": "a StatefulSet always restarts its pods",
    "terminationGracePeriodSeconds": "set spec.delivery.drainTimeout; the pod gets 15 s more",
    "hostname": "a worker's host name is its pod's",
    "subdomain": "it is the name of the group's Service",
    "setHostnameAsFQDN": "a worker's host name is its pod's",
    "ephemeralContainers": "use kubectl debug on a running pod",
    "nodeName": "all workers would run on one node; use nodeSelector or affinity",
    "activeDeadlineSeconds": "workers run until they are stopped",
}
OWNED_CONTAINER_FIELDS = {
    "image": "set spec.pipeline.image",
    "command": "Slackwater sets how the worker is started",
    "args": "Slackwater sets how the worker is started",
    "stdin": "a worker does not read standard input",
    "stdinOnce": "a worker does not read standard input",
    "tty": "a worker's output is read line by line",
    "lifecycle": "a worker drains when it is stopped, and its heartbeats must continue meanwhile",
    "restartPolicy": "a StatefulSet always restarts its pods",
    "restartPolicyRules": "a StatefulSet always restarts its pods",
}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
OWNED_PROBE_FIELDS = ("httpGet", "exec", "tcpSocket", "grpc")
OWNED_VARIABLES = (
    "SLACKWATER_ORDINAL",
    "SLACKWATER_INSTANCE_ID",
    "SLACKWATER_POD_NAME",
    "SLACKWATER_GROUP_UID",
    "SLACKWATER_POD_IP",
    "SLACKWATER_HEALTH_HOST",
)
OWNED_LABELS = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "apps.kubernetes.io/pod-index",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
)
OWNED_FOLDER = "/etc/slackwater"
OWNED_VOLUME = "slackwater"
OWNED_PORT, OWNED_PORT_NUMBER = "health", 8080

_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)
"""A number with a unit, as Kubernetes reads it (k8s.io/apimachinery/pkg/api/resource)."""
_QUANTITIES = ("limits", "requests", "overhead")
"""Fields of a pod that map resources to quantities."""
_ONE_QUANTITY = ("sizeLimit", "divisor")

_KEPT = frozenset({
    "metadata", "spec", "labels", "annotations", *MERGE_KEYS, *PROBES, *OWNED_POD_FIELDS,
    *OWNED_CONTAINER_FIELDS, *OWNED_PROBE_FIELDS, *OWNED_LABELS,
})  # fmt: skip
"""The fields of the operator's template that a `null` does not remove."""


def lay(own: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """The operator's pod template with spec.template merged over it.

    Args:
        own: the operator's template.
        template: spec.template.

    Raises:
        FieldError: as `check`.
    """
    check(template)
    result: dict[str, Any] = _merged(own, template)
    return result


def normalized(value: Any, path: str = PATH, depth: int = 0) -> Any:
    """A copy of a value of spec.template, without the fields that are null.

    Raises:
        FieldError: it nests deeper than `MAX_DEPTH`, or a part of it has no JSON type.
    """
    if depth > MAX_DEPTH:
        raise FieldError(
            PATH, f"nests more than {MAX_DEPTH} levels deep, so it is no pod template; correct it"
        )
    if isinstance(value, Mapping):
        return {
            key: normalized(item, join(path, str(key)), depth + 1)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list | tuple):
        return [normalized(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise FieldError(
        path, f"must be text, a number, a boolean, a list or a mapping, but is {describe(value)}"
    )


def check(template: Mapping[str, Any]) -> None:
    """Refuses a template that cannot be merged, or that changes what the operator needs.

    Raises:
        FieldError: names the field under spec.template.
    """
    template = normalized(template)
    _known(template, ("metadata", "spec"), PATH)
    metadata = _mapping(template.get("metadata"), f"{PATH}.metadata")
    _known(metadata, ("labels", "annotations"), f"{PATH}.metadata")
    for kind in ("labels", "annotations"):
        _check_texts(_mapping(metadata.get(kind), f"{PATH}.metadata.{kind}"), f"{PATH}.metadata.{kind}")
    pod = _mapping(template.get("spec"), f"{PATH}.spec")
    _known(pod, POD_FIELDS, f"{PATH}.spec")
    _not_owned(pod, OWNED_POD_FIELDS, f"{PATH}.spec")
    for path, container in _entries(pod, "initContainers", f"{PATH}.spec"):
        _known(container, CONTAINER_FIELDS, path)
    for path, container in _entries(pod, "containers", f"{PATH}.spec"):
        _known(container, CONTAINER_FIELDS, path)
        if container.get("name") == WORKER:
            _check_worker(container, path)
    for path, volume in _entries(pod, "volumes", f"{PATH}.spec"):
        if volume.get("name") == OWNED_VOLUME:
            raise FieldError(
                path, "is the volume of the worker's configuration; give your volume another name"
            )
    for name in ("imagePullSecrets", "hostAliases"):
        _entries(pod, name, f"{PATH}.spec")
    check_quantities(pod, f"{PATH}.spec")


def _check_worker(container: Mapping[str, Any], path: str) -> None:
    _not_owned(container, OWNED_CONTAINER_FIELDS, path)
    for where, variable in _entries(container, "env", path):
        if variable.get("name") in OWNED_VARIABLES:
            raise FieldError(where, "is set by Slackwater; remove it")
    for where, mount in _entries(container, "volumeMounts", path):
        target = posixpath.normpath("/" + mount["mountPath"].lstrip("/")).rstrip("/") + "/"
        if target.startswith(OWNED_FOLDER + "/") or (OWNED_FOLDER + "/").startswith(target):
            raise FieldError(
                where,
                f"would hide {OWNED_FOLDER}, which contains the worker's configuration; use another "
                "mountPath",
            )
    for where, port in _entries(container, "ports", path):
        if port.get("name") == OWNED_PORT or port.get("containerPort") == OWNED_PORT_NUMBER:
            raise FieldError(
                where,
                f"{OWNED_PORT} ({OWNED_PORT_NUMBER}) is used by the worker; use another name and number",
            )
    for name in PROBES:
        probe = _mapping(container.get(name), f"{path}.{name}")
        for handler in OWNED_PROBE_FIELDS:
            if handler in probe:
                raise FieldError(
                    f"{path}.{name}.{handler}",
                    "is set by Slackwater, because a worker reports its own health; set only times and "
                    "thresholds",
                )


def check_quantities(value: Any, path: str) -> None:
    """Refuses quantities that the API server would: its error names neither the field nor the value.

    Args:
        value: a part of a pod template.
        path: its path.

    Raises:
        FieldError: names the field.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            name = item.get("name", index) if isinstance(item, Mapping) else index
            check_quantities(item, f"{path}[{name}]")
    if not isinstance(value, Mapping):
        return
    for name, item in value.items():
        where = join(path, str(name))
        if name in _QUANTITIES and isinstance(item, Mapping):
            for resource, quantity in item.items():
                _check_quantity(quantity, join(where, str(resource)))
        elif name in _ONE_QUANTITY:
            _check_quantity(item, where)
        else:
            check_quantities(item, where)


def _check_quantity(value: Any, path: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and _QUANTITY.fullmatch(value)):
        return
    raise FieldError(
        path,
        f"{describe(value)} is no quantity of Kubernetes; write a number with at most one unit, such as "
        "500m, 2, 1Gi (1024 Mi) or 1G (1000 M)",
    )


def _check_texts(values: Mapping[str, Any], path: str) -> None:
    for key, value in values.items():
        if str(key).startswith(_DOMAIN) or key in OWNED_LABELS:
            raise FieldError(f"{path}[{key}]", "is set by Slackwater; use another name")
        if not isinstance(value, str):
            raise FieldError(f"{path}[{key}]", f"must be text, but is {describe(value)}")


def _not_owned(value: Mapping[str, Any], owned: Mapping[str, str], path: str) -> None:
    for name, advice in owned.items():
        if name in value:
            raise FieldError(join(path, name), f"is set by Slackwater; remove it ({advice})")


def _known(value: Mapping[str, Any], known: Sequence[str] | frozenset[str], path: str) -> None:
    for name in value:
        if name not in known:
            raise FieldError(join(path, str(name)), f"unknown field; {nearest(str(name), sorted(known))}")


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FieldError(path, f"must be a mapping, but is {describe(value)}")
    return value


def _entries(parent: Mapping[str, Any], name: str, path: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The entries of a list that is merged by a key, each with its path."""
    value, key = parent.get(name), MERGE_KEYS[name]
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise FieldError(join(path, name), f"must be a list, but is {describe(value)}")
    result: dict[str, Mapping[str, Any]] = {}
    for index, entry in enumerate(value):
        where = f"{join(path, name)}[{index}]"
        known_by = _mapping(entry, where).get(key)
        if not isinstance(known_by, str) or not known_by:
            raise FieldError(f"{where}.{key}", "is missing; it identifies the entry")
        if f"{join(path, name)}[{known_by}]" in result:
            raise FieldError(f"{where}.{key}", f"{known_by!r} is used twice; remove one")
        result[f"{join(path, name)}[{known_by}]"] = entry
    return list(result.items())


def _merged(own: Any, over: Any, name: str = "") -> Any:
    if isinstance(own, Mapping) and isinstance(over, Mapping):
        result = normalized(own)
        for key, value in over.items():
            if value is not None:
                result[key] = _merged(own.get(key), value, key)
            elif key not in _KEPT and not key.startswith(_DOMAIN):
                result.pop(key, None)
        return result
    if isinstance(own, Sequence) and not isinstance(own, str) and name in MERGE_KEYS:
        return _merged_list(own, over, name)
    return normalized(over)


def _merged_list(own: Sequence[Any], over: Sequence[Any], name: str) -> list[Any]:
    """The operator's entries in their order, then the new ones."""
    key = MERGE_KEYS[name]
    given = {entry[key]: entry for entry in over}
    result = []
    for entry in own:
        laid = given.pop(entry[key], None)
        if laid is None or name in _WHOLE_ENTRIES:
            result.append(normalized(entry if laid is None else laid))
        else:
            result.append(_merged(entry, laid))
    return result + [normalized(entry) for entry in given.values()]
