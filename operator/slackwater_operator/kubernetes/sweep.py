"""Compares one namespace of the Store with the API server, by the objects' metadata.

Three things that watches don't give: when everything has been listed once; which objects vanished while a
stream was down; and objects that a stream has missed for whatever reason. A difference between two systems
that both move is no proof: each is looked up by name before it is believed.

A kind that cannot be listed or watched makes its namespace `unread` in the Store, until it can be. Each
namespace has a Sweep of its own, so that others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from slackwater_operator.kubernetes import kinds
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeError, KubeForbidden
from slackwater_operator.kubernetes.store import (
    GROUP,
    GROUP_LABEL,
    KINDS,
    Key,
    Store,
    Unread,
    compare,
    key_of,
)

logger = logging.getLogger(__name__)

Name = tuple[str, str]
Version = tuple[str, str]
"""(uid, resourceVersion)"""

SWEEP_EVERY_S = 120.0
AFTER_LIST_S = 1.0
PATIENCE_S, LONGEST_S = 20.0, 120.0
"""How long nothing may come from the first lists of the watches, and how long they may take; what has not
come by then is fetched by name."""
FORBIDDEN_RETRY_S, RETRY_S = 60.0, 10.0
"""The longest times until what was refused is tried again; the first is a second."""
ASK_AGAIN_S = 5.0
"""How often the API server is asked whether a right is there again: no event tells of it."""
VERBS = ("list", "watch", "get")


class Sweep:
    """Repeats the comparison.

    Attributes:
        readable: the kinds of which no list or watch was refused.
        tried: set when each kind was tried once.
    """

    def __init__(
        self,
        kube: Kube,
        store: Store,
        namespace: str | None = None,
        *,
        every_s: float = SWEEP_EVERY_S,
        on_stale: Callable[[], None] = lambda: None,
        on_unread: Callable[[Unread | None], None] = lambda _: None,
    ) -> None:
        """Sets the namespace `unread` in the Store; does nothing else yet.

        Args:
            kube: the way to the API server.
            store: what the watches fill.
            namespace: which one; None: all.
            every_s: how often.
            on_stale: called where a watch has not told of something for a whole round, or where `readable`
                has changed: the watches must begin anew.
            on_unread: called with what cannot be read, once that was refused twice in a row and whenever it
                changes; with None when all is in the Store again.
        """
        self._kube, self._store, self._namespace = kube, store, namespace
        self._every_s = every_s
        self._on_stale, self._on_unread = on_stale, on_unread
        self.readable: tuple[str, ...] = KINDS
        self.tried = asyncio.Event()
        self._complete: set[str] = set()
        self._refused: dict[str, Unread] = {}
        self._doubted: set[str] = set()
        self._failures = 0
        self._reported: Unread | None = None
        self._changed = asyncio.Event()
        self._anew: set[str] = set()
        self._wake = asyncio.Event()
        self._behind: dict[tuple[str, Name], Version] = {}
        store.on_change(self._on_change)
        store.set_unread(namespace or "", Unread(namespace or ""))

    def listed_anew(self, kind: str) -> None:
        """A watch has listed again: objects may have been deleted meanwhile. Compared a second later."""
        if kind in self._complete and kind not in self._anew:
            self._anew.add(kind)
            asyncio.get_running_loop().call_later(AFTER_LIST_S, self._wake.set)

    async def run(self) -> None:
        """Sweeps until it is cancelled."""
        loop = asyncio.get_running_loop()
        await self._fill()
        due_s, retry_s = loop.time() + self._every_s, self._retry_s()
        while True:
            try:
                ask_s = loop.time() + ASK_AGAIN_S if self._refused else due_s
                async with asyncio.timeout_at(min(due_s, retry_s, ask_s)):
                    await self._wake.wait()
            except TimeoutError:
                pass
            retry_s = loop.time() if await self._granted() else retry_s
            which = [kind for kind in KINDS if loop.time() >= due_s or kind in self._anew]
            self._wake.clear()
            self._anew.clear()
            for kind in which:
                if kind in self._complete:
                    await self._until_done(kind)
            if loop.time() >= retry_s or len(self._complete) + len(self._refused) < len(KINDS):
                await self._fill()
                retry_s = self._retry_s()
            if loop.time() >= due_s:
                due_s = loop.time() + self._every_s

    async def once(self, kind: str) -> None:
        """Compares one kind, and corrects the Store where it differs.

        Raises:
            KubeError: the API server could not be asked; nothing was taken to be gone.
        """
        before = self._held(kind)
        listed = await self._listed(kind)
        await self._verify_vanished(kind, before, listed)
        held = self._held(kind)
        behind = {
            name: version
            for name, version in listed.items()
            if held.get(name) != version and held.get(name) == before.get(name)
        }
        for name, version in behind.items():
            if self._behind.get((kind, name)) == version:
                logger.warning("%s %s/%s: the watch missed a change", kind, *name)
                await self._verify(kind, name)
                self._on_stale()
        self._behind = {key: version for key, version in self._behind.items() if key[0] != kind}
        self._behind |= {(kind, name): version for name, version in behind.items()}

    async def _fill(self) -> None:
        """Waits until the Store has what exists of each kind that is not complete; notes those that fail."""
        filling = [kind for kind in KINDS if kind not in self._complete]
        missing: list[tuple[str, Name, Version]] = []
        for kind in filling:
            try:
                before, listed = self._held(kind), await self._listed(kind)
                await self._verify_vanished(kind, before, listed)
            except KubeError as error:
                await self._refuse(kind, error)
                continue
            self._refused.pop(kind, None)
            missing += [(kind, name, version) for name, version in listed.items()]
        self._tell_readable()
        missing.reverse()  # in the order of the lists, so that the last is what is waited for
        await self._until_come(missing)
        await self._fetch(missing)
        self._complete |= {kind for kind in filling if kind not in self._refused}
        self._tell_readable()
        self._publish()
        self.tried.set()

    async def _fetch(self, missing: Sequence[tuple[str, Name, Version]]) -> None:
        absent = [(kind, name) for kind, name, version in missing if not self._has(kind, name, version)]
        if absent:
            logger.warning("%d objects have not arrived from the watches; fetching them", len(absent))
        for kind, name in absent:
            try:
                if kind not in self._refused:
                    await self._verify(kind, name)
            except KubeError as error:
                await self._refuse(kind, error)

    async def _refuse(self, kind: str, error: KubeError) -> None:
        """Notes that a kind cannot be read, with the rights that are missing."""
        missing = [verb for verb in VERBS if error.status == 403 and not await self._may(verb, kind)]
        access = "/".join(missing or VERBS[:1])
        refused = Unread(self._namespace or "", error.status, error.reason, access, error.answer)
        if self._refused.get(kind) != refused:
            logger.warning("%s; retrying", error)
        self._refused[kind] = refused

    def _publish(self) -> None:
        """Tells the Store, and whoever reports it, whether all objects are in the Store."""
        unread = self._unread()
        self._failures = self._failures + 1 if unread else 0
        self._store.set_unread(self._namespace or "", unread)
        if unread != self._reported and self._failures != 1:
            self._reported = unread
            self._on_unread(unread)

    def _unread(self) -> Unread | None:
        """The first kind that is refused, with the access to all that are refused for the same reason."""
        refused = [(kind, self._refused[kind]) for kind in KINDS if kind in self._refused]
        if not refused:
            return None
        first = refused[0][1]
        resources: dict[str, list[str]] = {}
        for kind, unread in refused:
            if unread.reason == first.reason:
                resources.setdefault(unread.access, []).append(kinds.resource_of(kind))
        return replace(
            first, access="; ".join(f"{verbs} {', '.join(resources[verbs])}" for verbs in resources)
        )

    async def _granted(self) -> bool:
        """Whether the first right that was missing is there again; one small request, where one was."""
        for kind, unread in self._refused.items():
            if unread.status == 403:
                return await self._may(unread.access.split("/")[0], kind)
        return False

    def _retry_s(self) -> float:
        """When what is refused is tried again, by the loop's clock."""
        if not self._failures:
            return float("inf")
        forbidden = any(unread.status == 403 for unread in self._refused.values())
        longest_s = FORBIDDEN_RETRY_S if forbidden else RETRY_S
        return asyncio.get_running_loop().time() + min(2.0 ** min(self._failures - 1, 10), longest_s)

    def _tell_readable(self) -> None:
        refused = {kind for kind, unread in self._refused.items() if unread.status and unread.access != "get"}
        readable = tuple([kind for kind in KINDS if kind not in refused])
        if readable != self.readable:
            self.readable = readable
            self._on_stale()

    async def _until_come(self, missing: list[tuple[str, Name, Version]]) -> None:
        """Takes what has come off the end of `missing`, until nothing is left, or nothing comes any more."""
        loop = asyncio.get_running_loop()
        over_s = loop.time() + LONGEST_S
        while True:
            while missing and self._has(*missing[-1]):
                missing.pop()
            if not missing:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(min(PATIENCE_S, over_s - loop.time())):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _on_change(self, key: Key) -> None:
        if self._namespace in (None, key.namespace):
            self._changed.set()

    def _held(self, kind: str) -> dict[Name, Version]:
        return self._store.held(kind, self._namespace)

    def _has(self, kind: str, name: Name, version: Version) -> bool:
        """Whether the Store has the object as it was listed, or newer."""
        held = self._store.held_one(kind, *name)
        return held is not None and compare(version[1], held[1]) <= 0

    async def _listed(self, kind: str) -> dict[Name, Version]:
        """The objects of a kind.

        Raises:
            KubeError: they cannot be listed, or not be watched.
        """
        selector = "" if kind == GROUP else GROUP_LABEL
        versions: dict[Name, Version] = {}
        for obj in await self._kube.list(
            kinds.api_version_of(kind), kind, self._namespace, selector, metadata_only=True
        ):
            metadata = obj["metadata"]
            name = (str(metadata.get("namespace", "")), str(metadata["name"]))
            versions[name] = (str(metadata["uid"]), str(metadata["resourceVersion"]))
        if not await self._may("watch", kind):
            raise KubeForbidden(403, "Forbidden", f"watching {kinds.resource_of(kind)} is forbidden")
        return versions

    async def _may(self, verb: str, kind: str) -> bool:
        """Whether the operator has a right; True where the API server does not tell."""
        try:
            return await self._kube.may(verb, kinds.api_version_of(kind), kind, self._namespace)
        except KubeError as error:
            logger.debug("%s", error)
            return True

    async def _verify_vanished(
        self, kind: str, before: dict[Name, Version], listed: dict[Name, Version]
    ) -> None:
        for name, (uid, _) in before.items():
            if name not in listed or listed[name][0] != uid:
                await self._verify(kind, name)

    async def _verify(self, kind: str, name: Name) -> None:
        """Reads the object, and updates the Store accordingly."""
        live = await self._kube.get(kinds.api_version_of(kind), kind, *name)
        key = key_of({**live, "kind": kind}) if live else None
        if live is None or key is None:
            if self._store.drop(kind, *name):
                logger.info("%s %s/%s was deleted without a watch event", kind, *name)
            return
        held = self._store.held_one(kind, *name)
        if held and held[0] != str(live["metadata"]["uid"]):
            self._store.drop(kind, *name, uid=held[0])
        self._store.put({**live, "apiVersion": kinds.api_version_of(kind), "kind": kind})

    async def _until_done(self, kind: str) -> None:
        """A sweep that fails is left to the next one, but for one that is due since a watch listed anew.

        One that is forbidden twice in a row makes the kind incomplete: an API server that has just started
        forbids everything for a moment.
        """
        try:
            await self.once(kind)
            self._doubted.discard(kind)
        except KubeError as error:
            logger.warning("%s could not be compared with the cache: %s", kind, error)
            if error.status == 403 and kind in self._doubted:
                self._doubted.discard(kind)
                self._complete.discard(kind)
            elif error.status == 403:
                self._doubted.add(kind)
            self.listed_anew(kind)
