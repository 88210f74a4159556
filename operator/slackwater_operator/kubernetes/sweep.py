"""Compares the Store with the API server, by the objects' metadata.

Three things that watches don't give: when everything has been listed once (`Store.synced`); which objects
vanished while a stream was down; and objects that a stream has missed for whatever reason. A difference
between two systems that both move is no proof: each is looked up by name before it is believed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from slackwater_operator.kubernetes import kinds
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeConfigError, KubeError
from slackwater_operator.kubernetes.store import GROUP, GROUP_LABEL, KINDS, Store, key_of

logger = logging.getLogger(__name__)

Name = tuple[str, str]
Version = tuple[str, str]
"""(uid, resourceVersion)"""

SWEEP_EVERY_S = 120.0
AFTER_LIST_S = 1.0
RETRY_S = 2.0
PATIENCE_S, LONGEST_S = 20.0, 120.0
"""How long nothing may come from the first lists of the watches, and how long they may take; what has not
come by then is fetched by name."""


class Sweep:
    """Repeats the comparison."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        namespaces: Sequence[str],
        *,
        every_s: float = SWEEP_EVERY_S,
        on_missed: Callable[[], None] = lambda: None,
    ) -> None:
        """Does nothing yet.

        Args:
            kube: the way to the API server.
            store: what the watches fill.
            namespaces: which ones; none: all.
            every_s: how often.
            on_missed: called where a watch has not told of something for a whole round.
        """
        self._kube = kube
        self._store = store
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._every_s = every_s
        self._on_missed = on_missed
        self._changed = asyncio.Event()
        self._anew: set[str] = set()
        self._wake = asyncio.Event()
        self._behind: dict[tuple[str, Name], Version] = {}
        store.on_change(lambda _: self._changed.set())

    def listed_anew(self, kind: str) -> None:
        """A watch has listed again: objects may have been deleted meanwhile. Compared a second later."""
        if self._store.synced and kind not in self._anew:
            self._anew.add(kind)
            asyncio.get_running_loop().call_later(AFTER_LIST_S, self._wake.set)

    async def run(self) -> None:
        """Sweeps until it is cancelled."""
        await self._first()
        while True:
            try:
                async with asyncio.timeout(self._every_s):
                    await self._wake.wait()
                which: Sequence[str] = sorted(self._anew)
            except TimeoutError:
                which = KINDS
            self._wake.clear()
            self._anew.clear()
            for kind in which:
                await self._until_done(kind)

    async def once(self, kind: str) -> None:
        """Compares one kind, and corrects the Store where it differs.

        Raises:
            KubeError: the API server could not be asked; nothing was taken to be gone.
        """
        before = self._store.held(kind)
        listed = await self._listed(kind)
        for name, (uid, _) in before.items():
            if name not in listed or listed[name][0] != uid:
                await self._verify(kind, name)
        held = self._store.held(kind)
        behind = {
            name: version
            for name, version in listed.items()
            if held.get(name) != version and held.get(name) == before.get(name)
        }
        for name, version in behind.items():
            if self._behind.get((kind, name)) == version:
                logger.warning("%s %s/%s: the watch missed a change", kind, *name)
                await self._verify(kind, name)
                self._on_missed()
        self._behind = {key: version for key, version in self._behind.items() if key[0] != kind}
        self._behind |= {(kind, name): version for name, version in behind.items()}

    async def _first(self) -> None:
        """Sets `synced` when all objects that existed at the start are in the Store."""
        missing: list[tuple[str, Name]] = []
        for kind in KINDS:
            missing += [(kind, name) for name in await self._until_listed(kind)]
        missing.reverse()  # in the order of the lists, so that the last is what is waited for
        await self._until_come(missing)
        absent = [key for key in missing if not self._holds(*key)]
        if absent:
            logger.warning("%d objects have not arrived from the watches; fetching them", len(absent))
        for kind, name in absent:
            await self._until_verified(kind, name)
        self._store.synced = True
        logger.info("the caches are synchronized: %d ConsumerGroups", len(self._store.groups()))

    async def _until_come(self, missing: list[tuple[str, Name]]) -> None:
        """Takes what has come off the end of `missing`, until nothing is left, or nothing comes any more."""
        loop = asyncio.get_running_loop()
        over_s = loop.time() + LONGEST_S
        while True:
            while missing and self._holds(*missing[-1]):
                missing.pop()
            if not missing:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(min(PATIENCE_S, over_s - loop.time())):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _holds(self, kind: str, name: Name) -> bool:
        return self._store.held_one(kind, *name) is not None

    async def _listed(self, kind: str) -> dict[Name, Version]:
        selector = "" if kind == GROUP else GROUP_LABEL
        versions: dict[Name, Version] = {}
        for namespace in self._namespaces:
            for obj in await self._kube.list(
                kinds.api_version_of(kind), kind, namespace, selector, metadata_only=True
            ):
                metadata = obj["metadata"]
                name = (str(metadata.get("namespace", "")), str(metadata["name"]))
                versions[name] = (str(metadata["uid"]), str(metadata["resourceVersion"]))
        return versions

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

    async def _until_listed(self, kind: str) -> dict[Name, Version]:
        problem = ""
        while True:
            try:
                return await self._listed(kind)
            except (KubeError, KubeConfigError) as error:
                if str(error) != problem:
                    logger.warning("%s; retrying", error)
                problem = str(error)
                await asyncio.sleep(RETRY_S)

    async def _until_verified(self, kind: str, name: Name) -> None:
        while True:
            try:
                return await self._verify(kind, name)
            except (KubeError, KubeConfigError) as error:
                logger.warning("%s; retrying", error)
                await asyncio.sleep(RETRY_S)

    async def _until_done(self, kind: str) -> None:
        """A sweep that fails is left to the next one, but for one that is due since a watch listed anew."""
        try:
            await self.once(kind)
        except (KubeError, KubeConfigError) as error:
            logger.warning("%s could not be compared with the cache: %s", kind, error)
            self.listed_anew(kind)
