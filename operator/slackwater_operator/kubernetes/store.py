"""A cache of the API server's objects, filled by the watches. Reconciliations read it, not the API server.

Used on one event loop only. What it gives out is shared: don't change it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slackwater_operator.kubernetes.errors import KubeError, from_answer
from slackwater_operator.kubernetes.object_api import MANAGER, Object

GROUP_LABEL = "slackwater.dev/group"


class Key(NamedTuple):
    """A ConsumerGroup's namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Unread:
    """Why the Store does not have all objects of a namespace.

    Attributes:
        namespace: which one; "": all.
        status: of the API server's answer to what it refused; 0: no answer, or not everything has come yet.
        reason: Kubernetes' reason in CamelCase, or `NotSynchronized`.
        access: what was refused: `list pods, jobs.batch; watch pods`; "": nothing was.
        answer: what the API server said.
    """

    namespace: str
    status: int = 0
    reason: str = "NotSynchronized"
    access: str = ""
    answer: str = field(default="not all objects have arrived from the watches yet", compare=False)

    def __str__(self) -> str:
        where = f"namespace {self.namespace}" if self.namespace else "all namespaces"
        if self.status == 403:
            return f"the operator may not {self.access} in {where}"
        return f"{self.access or 'read'} in {where}: {self.answer}"

    def error(self) -> KubeError:
        """The error of whoever needs these objects."""
        return from_answer(self.status, {"reason": self.reason, "message": str(self)}, "the caches")


@dataclass
class _Held:
    """The objects of one group, by kind and name."""

    by_kind: dict[str, dict[str, Object]] = field(default_factory=dict)


GROUP, POD, STATEFUL_SET, JOB = "ConsumerGroup", "Pod", "StatefulSet", "Job"
CONFIG_MAP, SERVICE, BUDGET, SERVICE_ACCOUNT = (
    "ConfigMap",
    "Service",
    "PodDisruptionBudget",
    "ServiceAccount",
)
KINDS = (GROUP, POD, STATEFUL_SET, JOB, CONFIG_MAP, SERVICE, BUDGET, SERVICE_ACCOUNT)


class Store:
    """A cache of the groups and of the objects with their label.

    A group's own object is found by its kind; the others by `slackwater.dev/group` in the same namespace.
    Of a Pod only `metadata`, `status` and `spec.nodeName` are kept, of a Job `metadata`, `status`,
    `spec.suspend` and `spec.template`, of a ConfigMap `metadata`; of the others all but `managedFields`. Of a
    group's these are kept that `owns_spec`.
    """

    def __init__(self) -> None:
        self._groups: dict[Key, _Held] = {}
        self._callbacks: list[Callable[[Key], None]] = []
        self._owner: dict[tuple[str, str, str], Key] = {}  # (kind, namespace, name) -> its group
        self._secrets: dict[tuple[str, str], str] = {}
        self._wanted_secrets: dict[tuple[str, str], float] = {}
        self.on_wanted_secret: Callable[[], None] = lambda: None
        """Called where a Secret is asked for that was not before."""
        self._synced = asyncio.Event()
        self._unread: dict[str, Unread] = {}

    @property
    def synced(self) -> bool:
        """Whether every namespace was listed once, but those that are `unread`.

        Before that, what is missing may only not have been seen.
        """
        return self._synced.is_set()

    @synced.setter
    def synced(self, is_so: bool) -> None:
        if is_so:
            self._synced.set()
        else:
            self._synced.clear()

    async def wait_synced(self) -> None:
        """Waits until `synced`."""
        await self._synced.wait()

    def unread(self, namespace: str) -> Unread | None:
        """Why objects of that namespace may be missing or outdated; None: all are here."""
        return self._unread.get(namespace) or self._unread.get("")

    def all_unread(self) -> list[Unread]:
        """The namespaces whose objects are not all here, in order of their names."""
        return [self._unread[namespace] for namespace in sorted(self._unread)]

    def set_unread(self, namespace: str, unread: Unread | None) -> None:
        """Says whether all objects of a namespace ("": of all) are here; None: they are."""
        if unread is not None:
            self._unread[namespace] = unread
        elif self._unread.pop(namespace, None) is not None:
            for key in [key for key in self._groups if namespace in ("", key.namespace)]:
                self._tell(key)

    # --- for reconciliations -----------------------------------------------------------------------------

    def groups(self) -> list[Key]:
        """The ConsumerGroups, in order of their names."""
        return sorted(key for key, held in self._groups.items() if GROUP in held.by_kind)

    def group(self, key: Key) -> Object | None:
        """The ConsumerGroup, or None where there is none of that name."""
        return self._one(key, GROUP)

    def pods(self, key: Key) -> list[Object]:
        """Its pods (the preflight's, too), in order of their names."""
        return self._all(key, POD)

    def jobs(self, key: Key) -> list[Object]:
        """Its Jobs."""
        return self._all(key, JOB)

    def configmaps(self, key: Key) -> list[Object]:
        """Its ConfigMaps, without their data."""
        return self._all(key, CONFIG_MAP)

    def statefulsets(self, key: Key) -> list[Object]:
        """All StatefulSets with the group's label, in order of their names; whose they are is for the caller
        to see."""
        return self._all(key, STATEFUL_SET)

    def statefulset_named(self, namespace: str, name: str) -> Object | None:
        """The StatefulSet of that name, if it has a group's label, whichever group's."""
        owner = self._owner.get((STATEFUL_SET, namespace, name))
        return self._groups[owner].by_kind[STATEFUL_SET][name] if owner is not None else None

    def service(self, key: Key) -> Object | None:
        """The Service of the group's name, if it has the group's label."""
        return self._one(key, SERVICE)

    def pdb(self, key: Key) -> Object | None:
        """The PodDisruptionBudget of the group's name, if it has the group's label."""
        return self._one(key, BUDGET)

    def service_account(self, key: Key) -> Object | None:
        """The ServiceAccount of the group's name, if it has the group's label."""
        return self._one(key, SERVICE_ACCOUNT)

    def secret_version(self, namespace: str, name: str) -> str | None:
        """The Secret's resourceVersion; empty: there is no such Secret; None: not known (yet).

        Asking is what makes the operator look: Secrets are read by name and not watched, so that it needs no
        right to list them. An answer is up to a minute old, with hundreds of Secrets some minutes.
        """
        secret = (namespace, name)
        if secret not in self._wanted_secrets:
            self.on_wanted_secret()
        self._wanted_secrets[secret] = time.monotonic()
        return self._secrets.get(secret)

    def on_change(self, callback: Callable[[Key], None]) -> None:
        """Calls `callback(key)` on the loop whenever an object of this group has come, changed or gone."""
        self._callbacks.append(callback)

    # --- written by watches, and by whoever has just written to the API server -------------------------

    def put(self, obj: Object) -> bool:
        """Takes an object from the API server. False if it was known already.

        Whoever has written an object puts the answer here, so that its next reconciliation sees its own
        write. An object that is older than the one held is left out: the resourceVersions of a resource grow
        (KEP-5504, Kubernetes 1.35; etcd's revision before that).
        """
        kind, key = str(obj.get("kind", "")), key_of(obj)
        if kind not in KINDS or key is None:
            return False
        name = str(obj["metadata"]["name"])
        if kind != POD and _is_gone(obj["metadata"]):  # the watch may have said so before this answer
            return self.drop(kind, key.namespace, name, str(obj["metadata"].get("uid", "")))
        owner = self._owner.get((kind, key.namespace, name))
        if owner is not None and not _newer(obj, self._groups[owner].by_kind[kind][name]):
            return False
        if owner is not None and owner != key:  # its label was changed
            self.drop(kind, key.namespace, name)
        self._owner[(kind, key.namespace, name)] = key
        self._groups.setdefault(key, _Held()).by_kind.setdefault(kind, {})[name] = slim(obj)
        self._tell(key)
        return True

    def drop(self, kind: str, namespace: str, name: str, uid: str = "") -> bool:
        """Forgets an object that is gone; with `uid` only if it is that one. False: it was not here."""
        key = self._owner.get((kind, namespace, name))
        if key is None:
            return False
        group = self._groups[key]
        held = group.by_kind[kind]
        if uid and held[name]["metadata"].get("uid") != uid:
            return False
        del self._owner[(kind, namespace, name)], held[name]
        if not held:
            del group.by_kind[kind]
        if not group.by_kind:
            del self._groups[key]
        self._tell(key)
        return True

    def put_secret_version(self, namespace: str, name: str, version: str) -> None:
        """What the Secret's resourceVersion is; empty: there is none."""
        self._secrets[(namespace, name)] = version

    def wanted_secrets(self, max_age_s: float) -> list[tuple[str, str]]:
        """The Secrets that were asked for within that time; what is known of the others is forgotten."""
        since = time.monotonic() - max_age_s
        self._wanted_secrets = {secret: at for secret, at in self._wanted_secrets.items() if at >= since}
        self._secrets = {
            secret: self._secrets[secret] for secret in self._wanted_secrets if secret in self._secrets
        }
        return list(self._wanted_secrets)

    def held(self, kind: str, namespace: str | None = None) -> dict[tuple[str, str], tuple[str, str]]:
        """(namespace, name) -> (uid, resourceVersion) of the objects of that kind; None: everywhere."""
        return {
            (key.namespace, name): _version(obj)
            for key, group in self._groups.items()
            if namespace in (None, key.namespace)
            for name, obj in group.by_kind.get(kind, {}).items()
        }

    def held_one(self, kind: str, namespace: str, name: str) -> tuple[str, str] | None:
        """(uid, resourceVersion) of an object; None: it is not here."""
        key = self._owner.get((kind, namespace, name))
        return _version(self._groups[key].by_kind[kind][name]) if key else None

    # --- inside ---------------------------------------------------------------------------------------------

    def _one(self, key: Key, kind: str) -> Object | None:
        held = self._groups.get(key)
        return held.by_kind.get(kind, {}).get(key.name) if held else None

    def _all(self, key: Key, kind: str) -> list[Object]:
        held = self._groups.get(key)
        objects = held.by_kind.get(kind, {}) if held else {}
        return [objects[name] for name in sorted(objects)]

    def _tell(self, key: Key) -> None:
        for callback in self._callbacks:
            callback(key)


def _is_gone(metadata: Mapping[str, Any]) -> bool:
    """Whether this is the last version of an object: it is being deleted, and nothing delays that. A pod's
    grace period does."""
    return bool(metadata.get("deletionTimestamp")) and not metadata.get("finalizers")


def key_of(obj: Object) -> Key | None:
    """The group that an object belongs to; None where it belongs to none."""
    metadata = obj.get("metadata", {})
    namespace = str(metadata.get("namespace", ""))
    if obj.get("kind") == GROUP:
        return Key(namespace, str(metadata.get("name", "")))
    owner = (metadata.get("labels") or {}).get(GROUP_LABEL)
    return Key(namespace, str(owner)) if owner else None


def _version(obj: Object) -> tuple[str, str]:
    metadata = obj["metadata"]
    return str(metadata.get("uid", "")), str(metadata.get("resourceVersion", ""))


def _newer(new: Object, old: Object) -> bool:
    (new_uid, new_version), (old_uid, old_version) = _version(new), _version(old)
    order = compare(new_version, old_version)
    return order > 0 or (order == 0 and new_uid != old_uid)


def compare(a: str, b: str) -> int:
    """1 where resourceVersion `a` is newer than `b`, 0 where it is the same, -1 where it is older."""
    if a.isdecimal() and b.isdecimal():
        return (int(a) > int(b)) - (int(a) < int(b))
    return int(a != b)  # versions that can't be compared: the later word counts


_KEPT_SPEC: dict[str, tuple[str, ...]] = {POD: ("nodeName",), JOB: ("suspend", "template")}
_BULKY_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


def owns_spec(entry: Object) -> bool:
    """Whether an entry of a ConsumerGroup's `managedFields` makes the operator a manager of its spec."""
    own = entry.get("manager") == MANAGER and entry.get("operation") == "Update"
    return own and "f:spec" in (entry.get("fieldsV1") or {})


def slim(obj: Object) -> Object:
    """The object without unread fields; equal keys and short strings share memory."""
    kind = str(obj.get("kind", ""))
    kept = {name: value for name, value in obj.items() if name not in ("data", "binaryData")}
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    if _BULKY_ANNOTATION in (metadata.get("annotations") or {}):
        metadata["annotations"] = {
            name: value for name, value in metadata["annotations"].items() if name != _BULKY_ANNOTATION
        }
    kept["metadata"] = metadata
    if kind == GROUP and (own := [*filter(owns_spec, obj["metadata"].get("managedFields") or ())]):
        metadata["managedFields"] = own
    if kind in _KEPT_SPEC:
        spec = obj.get("spec") or {}
        kept["spec"] = {name: spec[name] for name in _KEPT_SPEC[kind] if name in spec}
    shared: Object = _shared(kept)
    return shared


_SHARED_DEPTH = 64
"""What an object has deeper inside is kept as it is: no object of a user may exhaust the stack."""


def _shared(value: Any, depth: int = 0) -> Any:
    if depth > _SHARED_DEPTH:
        return value
    if isinstance(value, dict):
        return {sys.intern(name): _shared(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shared(inner, depth + 1) for inner in value]
    if isinstance(value, str) and len(value) <= 40:
        return sys.intern(value)
    return value
