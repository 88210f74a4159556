"""The key that signs a group's takeovers: created once, read by name when it is needed."""

from __future__ import annotations

import base64
import secrets

from slackwater.runtime.takeover.signing import read_key
from slackwater_operator.kubernetes.errors import KubeConflict
from slackwater_operator.kubernetes.object_api import Object, ObjectApi
from slackwater_operator.kubernetes.store import Store
from slackwater_operator.model import names
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.specs.worker_config import KEY_BYTES, takeover_secret


class NoKey(Exception):
    """There is no usable key. The message says what to do.

    Attributes:
        reason: one word in CamelCase.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TakeoverKeys:
    """The groups' keys, kept in memory once they were read."""

    def __init__(self, kube: ObjectApi, store: Store) -> None:
        self._kube, self._store = kube, store
        self._known: dict[tuple[str, str], bytes] = {}

    async def create(self, snapshot: GroupSnapshot, name: str) -> None:
        """Makes the Secret with a random key, if there is none; one that is there stays as it is.

        Args:
            snapshot: whose group it is for.
            name: the Secret.

        Raises:
            NoKey: there is one of that name, but not the group's, or without a key.
            KubeError: the API server refused it, or is away.
        """
        assert snapshot.group is not None
        manifest = takeover_secret(snapshot.group, secrets.token_hex(KEY_BYTES))
        manifest["metadata"]["name"] = name
        try:
            made = await self._kube.create(manifest)
        except KubeConflict:
            await self._read(snapshot, name)
            return
        self._keep(snapshot, made)

    async def key(self, snapshot: GroupSnapshot, *, again: bool = False) -> bytes:
        """The key of the group's takeover Secret.

        Args:
            snapshot: whose group it is.
            again: read it even if it is known: somebody may have put another Secret in its place.

        Raises:
            NoKey: there is no such Secret, or one that is not the group's, or without a key.
            KubeError: the API server does not tell.
        """
        name = names.takeover_secret(snapshot.name)
        known = self._known.get((snapshot.namespace, name))
        return known if known is not None and not again else await self._read(snapshot, name)

    async def _read(self, snapshot: GroupSnapshot, name: str) -> bytes:
        self._known.pop((snapshot.namespace, name), None)
        secret = await self._kube.get("v1", "Secret", snapshot.namespace, name)
        if secret is None:
            self._store.put_secret_version(snapshot.namespace, name, "")
            raise NoKey("NoTakeoverKey", f"Secret {name} does not exist; the operator creates it again")
        # The operator may not change Secrets, so one that was left over is taken as it is.
        if not (names.is_owned(secret, snapshot.uid) or names.is_orphan(secret, snapshot.name)):
            taken = f"Secret {name} exists and does not belong to this ConsumerGroup; delete or rename it"
            raise NoKey("NameTaken", taken)
        return self._keep(snapshot, secret)

    def _keep(self, snapshot: GroupSnapshot, secret: Object) -> bytes:
        name = secret["metadata"]["name"]
        self._store.put_secret_version(
            snapshot.namespace, name, str(secret["metadata"].get("resourceVersion", ""))
        )
        try:
            written = base64.b64decode((secret.get("data") or {})[names.TAKEOVER_KEY], validate=True)
            key = read_key(written.decode("ascii"))
        except (KeyError, ValueError):  # of these are what b64decode and decode raise
            wrong = (
                f"Secret {name} has no key of {KEY_BYTES} bytes in hex under {names.TAKEOVER_KEY!r}; "
                "delete the Secret (the operator creates it again), and then the pods that were started "
                "with it"
            )
            raise NoKey("NoTakeoverKey", wrong) from None
        self._known[snapshot.namespace, name] = key
        return key
