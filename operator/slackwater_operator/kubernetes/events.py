"""Posts Kubernetes Events about a group (`kubectl describe` shows them), deduplicated, in the background.

An Event's name is made from what it says, so that it is found again after a restart of the operator: the
same again is counted in its `series` by a patch, at most once a minute. A group that says ever new things
is cut off at 25 Events, and one more every 30 seconds (client-go's burst, with a faster refill).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.kubernetes.errors import KubeConfigError, KubeConflict, KubeError, KubeUnavailable
from slackwater_operator.kubernetes.object_api import Object, micro_time

logger = logging.getLogger(__name__)

API_VERSION, KIND = "events.k8s.io/v1", "Event"
CONTROLLER = "slackwater.dev/operator"
NOTE_BYTES = 1024
AGAIN_S = 60.0
RETRY_S = 10.0
FORGET_S = 3600.0
"""The API server deletes Events after an hour."""
BURST, REFILL_S = 25, 30.0
MOST_KEPT = 20_000


class EventsApi(Protocol):
    """The requests of `Kube` that Events need."""

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        """The Event."""

    async def create(self, manifest: Object) -> Object:
        """Creates it, or `KubeConflict`."""

    async def patch(self, api_version: str, kind: str, namespace: str, name: str, body: Object) -> Object:
        """Merges into it."""


@dataclass
class _Said:
    """An Event that was posted, however often.

    Attributes:
        manifest: the Event.
        pending: how often since it was posted.
        count: how often in all; 0: not known (it was not posted by this process).
        next_at_s: when it may be posted (again).
        last_at_s: when it was last said.
    """

    manifest: Object
    pending: int = 0
    count: int = 0
    next_at_s: float = 0.0
    last_at_s: float = 0.0


@dataclass
class _Bucket:
    """How many more Events an object may have."""

    left: float = float(BURST)
    at_s: float = 0.0
    dropped: int = field(default=0)

    def take(self, now_s: float) -> bool:
        self.left = min(BURST, self.left + (now_s - self.at_s) / REFILL_S)
        self.at_s = now_s
        if self.left < 1:
            self.dropped += 1
            return False
        self.left -= 1
        return True


class Events:
    """Posts Events (events.k8s.io/v1) in the background: `post` from reconciliations, `run` as a task."""

    def __init__(
        self, api: EventsApi, *, instance: str, wall_ms: Callable[[], int] = SYSTEM_CLOCK.wall_ms
    ) -> None:
        """Does nothing yet.

        Args:
            api: the way to the API server.
            instance: this process, as `reportingInstance`.
            wall_ms: the clock for the Events' times; the pace goes by the event loop's.
        """
        self._api = api
        self._instance = instance[:128]
        self._wall_ms = wall_ms
        self._said: dict[str, _Said] = {}
        self._buckets: dict[str, _Bucket] = {}
        self._wake = asyncio.Event()

    def post(
        self,
        regarding: Object,
        reason: str,
        message: str,
        *,
        action: str = "",
        kind: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Posts an Event about an object. Returns at once and raises nothing.

        The same again within a minute is only counted, and posted when the minute is over.

        Args:
            regarding: the object it is about (apiVersion, kind and metadata with name, namespace, uid).
            reason: one word in CamelCase: `ScaledUp`, `RolloutStopped`.
            message: a sentence; what exceeds Kubernetes' 1024 bytes is cut off.
            action: what the operator did about it, in CamelCase; the reason where it is empty.
            kind: `Warning` for what needs a person.
        """
        now_s = asyncio.get_running_loop().time()
        manifest = self._manifest(regarding, reason, message, action or reason, kind)
        name = f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
        said = self._said.get(name)
        if said is None:
            if not self._admit(str(regarding["metadata"].get("uid", "")), now_s):
                return
            said = self._said[name] = _Said(manifest, next_at_s=now_s)
        said.pending += 1
        said.last_at_s = now_s
        self._wake.set()

    async def run(self) -> None:
        """Posts Events until it is cancelled."""
        while True:
            self._wake.clear()
            await self.flush()
            try:
                async with asyncio.timeout(self._until_next_s()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def flush(self) -> None:
        """Posts the Events that are due, one after another."""
        loop = asyncio.get_running_loop()
        for said in list(self._said.values()):
            if said.pending and said.next_at_s <= loop.time():
                await self._send(said)
        self._forget(loop.time())

    # --- inside ---------------------------------------------------------------------------------------------

    def _admit(self, uid: str, now_s: float) -> bool:
        bucket = self._buckets.setdefault(uid, _Bucket(at_s=now_s))
        if bucket.take(now_s) and len(self._said) < MOST_KEPT:
            return True
        if bucket.dropped == 1:
            logger.warning("too many different Events of object %s: some are dropped", uid)
        return False

    def _until_next_s(self) -> float | None:
        """Until the next may be posted; None: nothing waits."""
        due_s = [said.next_at_s for said in self._said.values() if said.pending]
        return max(min(due_s) - asyncio.get_running_loop().time(), 0.0) if due_s else None

    async def _send(self, said: _Said) -> None:
        loop = asyncio.get_running_loop()
        times, said.pending = said.pending, 0
        said.next_at_s = loop.time() + AGAIN_S
        try:
            await self._put(said, times)
        except KubeUnavailable as error:
            logger.debug("Event could not be posted, retrying: %s", error)
            said.pending += times
            said.next_at_s = loop.time() + max(RETRY_S, error.retry_after_s)
        except (KubeError, KubeConfigError) as error:
            logger.warning("Event could not be posted: %s", error)

    async def _put(self, said: _Said, times: int) -> None:
        namespace, name = said.manifest["metadata"]["namespace"], said.manifest["metadata"]["name"]
        if not said.count:
            try:
                await self._api.create({**said.manifest, "eventTime": self._stamp(), **self._series(times)})
                said.count = times
                return
            except KubeConflict:  # said before this process began
                event = await self._api.get(API_VERSION, KIND, namespace, name)
                said.count = int(((event or {}).get("series") or {}).get("count") or 1)
        try:
            await self._api.patch(API_VERSION, KIND, namespace, name, self._series(said.count + times))
            said.count += times
        except KubeError as error:
            if error.status != 404:
                raise
            said.count = 0  # an hour old, and deleted by the API server
            await self._api.create({**said.manifest, "eventTime": self._stamp(), **self._series(times)})
            said.count = times

    def _series(self, count: int) -> Object:
        """The Event's series; empty for the first: the API server refuses a series of 1."""
        return {"series": {"count": count, "lastObservedTime": self._stamp()}} if count > 1 else {}

    def _forget(self, now_s: float) -> None:
        over = [
            name
            for name, said in self._said.items()
            if now_s - said.last_at_s > (FORGET_S if not said.pending else 2 * FORGET_S)
        ]
        for name in over:
            del self._said[name]
        full = [
            uid
            for uid, bucket in self._buckets.items()
            if bucket.left + (now_s - bucket.at_s) / REFILL_S >= BURST
        ]
        for uid in full:
            del self._buckets[uid]

    def _manifest(self, regarding: Object, reason: str, message: str, action: str, kind: str) -> Object:
        metadata = regarding["metadata"]
        note = _cut(message)
        uid = str(metadata.get("uid", ""))
        digest = hashlib.sha256("\0".join((uid, kind, reason, action, note)).encode()).hexdigest()[:16]
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": f"{metadata['name']}.{digest}",
                "namespace": metadata.get("namespace") or "default",
            },
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": action[:128],
            "reason": reason[:128],
            "regarding": {
                "apiVersion": regarding["apiVersion"],
                "kind": regarding["kind"],
                "name": metadata["name"],
                "namespace": metadata.get("namespace", ""),
                "uid": uid,
            },
            "note": note,
            "type": kind,
        }

    def _stamp(self) -> str:
        return micro_time(self._wall_ms())


def _cut(message: str) -> str:
    """At most 1024 bytes of UTF-8 (events.k8s.io/v1: noteLengthLimit)."""
    data = message.encode()
    if len(data) <= NOTE_BYTES:
        return message
    return data[: NOTE_BYTES - 3].decode(errors="ignore") + "\u2026"
