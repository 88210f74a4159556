"""kopf's watches fill the Store.

kopf is used for what it is good at: list, watch, start again after whatever happens to a stream. There are
only `on.event` handlers, which hand each object over to the operator's loop. Each namespace has a kopf of its
own: one that is refused something does not concern the others.

What kopf does not tell is what vanished while a stream was down (it lists again and reports what is there):
`sweep.py` finds that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import kopf

from slackwater_operator.kubernetes import kinds
from slackwater_operator.kubernetes.access import Access
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeConfigError, KubeError, KubeForbidden
from slackwater_operator.kubernetes.kopf_thread import KopfThread, log_in, quiet_settings
from slackwater_operator.kubernetes.object_api import Object
from slackwater_operator.kubernetes.store import GROUP, GROUP_LABEL, KINDS, Store, Unread, slim
from slackwater_operator.kubernetes.sweep import Sweep

logger = logging.getLogger(__name__)

RETRY_S = 2.0
CHECK_EVERY_S = 10.0
PULSE_EVERY_S = 5.0
SLOW_S = 30.0
"""How long the other namespaces wait for one whose objects have not all come."""
SECRETS_ROUND_S = 30.0
SECRETS_A_SECOND = 5.0
FORGET_SECRET_S = 900.0
NEVER_S = float("-inf")


class Watches:
    """Fills the Store from the API server: each namespace's watches and sweeps, and the Secrets' versions."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        *,
        namespaces: Sequence[str] = (),
        on_unread: Callable[[str, Unread | None], None] = lambda namespace, unread: None,
    ) -> None:
        """Does nothing yet.

        Args:
            kube: for the requests of the sweeps and of the Secrets' versions.
            store: what to fill; `synced` is set once all is there but what cannot be read.
            namespaces: which to watch; none: all.
            on_unread: called with a namespace ("": all) and what cannot be read in it, or None: all can be.
        """
        self._kube = kube
        self._store = store
        self._on_unread = on_unread
        self._secrets = SecretVersions(kube, store)
        which: Sequence[str | None] = tuple(dict.fromkeys(namespaces)) or (None,)
        self._namespaces = [
            _Namespace(kube, store, namespace, partial(on_unread, namespace or "")) for namespace in which
        ]

    async def run(self) -> None:
        """Watches until it is cancelled. Where kopf ends, it is started again."""
        self._store.synced = False
        await self._until_served(self._tell_undiscovered)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._sync())
            tasks.create_task(self._secrets.run())
            for namespace in self._namespaces:
                tasks.create_task(namespace.sweep.run())
                tasks.create_task(namespace.pulse())

    def silent_s(self) -> float:
        """How long a loop of kopf has not answered; 0 where none need run (there is no CRD yet)."""
        return max(namespace.silent_s() for namespace in self._namespaces)

    async def _sync(self) -> None:
        """Sets `synced` when each namespace was tried; a slow one is not waited for where another is read."""
        loop = asyncio.get_running_loop()
        slow_s = loop.time() + SLOW_S
        trying = [asyncio.create_task(namespace.sweep.tried.wait()) for namespace in self._namespaces]
        while trying and (loop.time() < slow_s or len(self._store.all_unread()) == len(self._namespaces)):
            _, left = await asyncio.wait(trying, timeout=1.0)
            trying = list(left)
        self._store.synced = True
        logger.info("the caches are synchronized: %d ConsumerGroups", len(self._store.groups()))

    async def _watch(self) -> None:
        while True:
            await self._until_served()
            await _until_first(self._until_deleted(), *[namespace.watch() for namespace in self._namespaces])
            await asyncio.sleep(RETRY_S)

    async def _until_deleted(self) -> None:
        """Waits until the CRD is deleted: kopf would not see the next one."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                if not await self._kube.served(kinds.api_version_of(GROUP), GROUP, fresh=True):
                    logger.error("the CRD of %s was deleted", GROUP)
                    return
            except (KubeError, KubeConfigError) as error:
                logger.debug("%s", error)

    def _tell_undiscovered(self, error: KubeError | None) -> None:
        """Reports that the API server does not tell which kinds it has; None: it does."""
        for namespace in [each.name for each in self._namespaces]:
            unread = Unread(namespace)
            if error is not None:
                access = f"get {kinds.base(kinds.api_version_of(GROUP))} (the ClusterRole system:discovery)"
                unread = Unread(namespace, error.status, error.reason, access, error.answer)
            self._store.set_unread(namespace, unread)
            self._on_unread(namespace, unread if error is not None else None)

    async def _until_served(self, tell: Callable[[KubeError | None], None] = lambda error: None) -> None:
        """Waits until the CRD is served: kopf looks for the kinds once, and misses a CRD that comes later.

        `tell` is called with an error that names a missing right, once it came twice in a row: an API server
        that has just started forbids everything for a moment. With None after that.
        """
        problem, forbidden = "", 0
        while True:
            try:
                if await self._kube.served(kinds.api_version_of(GROUP), GROUP, fresh=True):
                    if forbidden > 1:
                        tell(None)
                    return
                text = f"the API server does not know {GROUP}: install the CRD (crds/)"
            except (KubeError, KubeConfigError) as error:
                text = str(error)
                forbidden += isinstance(error, KubeForbidden)
                if forbidden == 2:
                    tell(error)
            if text != problem:
                logger.warning("%s; waiting for it", text)
            problem = text
            await asyncio.sleep(RETRY_S)


class _Namespace:
    """The watches and the sweep of one namespace (None: of all), with a kopf of their own.

    What ends one kopf, or makes it begin anew, does not concern the other namespaces.
    """

    def __init__(
        self, kube: Kube, store: Store, namespace: str | None, on_unread: Callable[[Unread | None], None]
    ) -> None:
        self._access, self._store, self._namespace = kube.access, store, namespace
        self.name = namespace or ""
        self._stale = asyncio.Event()
        self.sweep = Sweep(kube, store, namespace, on_stale=self._stale.set, on_unread=on_unread)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kopf: KopfThread | None = None
        self._pulse_at_s = NEVER_S

    async def watch(self) -> None:
        """Watches the kinds that can be read, until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._stale.clear()
            if readable := self.sweep.readable:
                await self._watch(readable)
                await asyncio.sleep(RETRY_S)
            else:
                await self._stale.wait()

    async def _watch(self, readable: Sequence[str]) -> None:
        """Watches until kopf ends, or until it must begin anew."""
        registry = _registry(self._access, self._hand_over, readable)
        self._pulse_at_s = asyncio.get_running_loop().time()
        self._kopf = KopfThread(registry, settings(), self._namespace)
        try:
            await _until_first(self._kopf.run(), self._until_stale())
        finally:
            self._kopf = None

    async def _until_stale(self) -> None:
        await self._stale.wait()
        logger.warning("restarting the watches of %s", self._namespace or "all namespaces")

    def silent_s(self) -> float:
        """How long kopf's loop has not answered; 0 where it need not run."""
        if self._kopf is None or self._loop is None:
            return 0.0
        return self._loop.time() - self._pulse_at_s

    async def pulse(self) -> None:
        """Asks kopf's loop to answer, again and again."""
        loop = asyncio.get_running_loop()

        def answered() -> None:
            self._pulse_at_s = loop.time()

        while True:
            if self._kopf is not None:
                self._kopf.ask(lambda: loop.call_soon_threadsafe(answered))
            await asyncio.sleep(PULSE_EVERY_S)

    def _hand_over(self, change: str | None, obj: Object) -> None:
        """On kopf's thread: what is slow is done here."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._take, change, slim(obj))
        except RuntimeError:
            logger.debug("the operator's event loop has stopped")

    def _take(self, change: str | None, obj: Object) -> None:
        if change == "DELETED":
            metadata = obj["metadata"]
            self._store.drop(obj["kind"], metadata.get("namespace", ""), metadata["name"], metadata["uid"])
            return
        if change is None:
            self.sweep.listed_anew(obj["kind"])
        self._store.put(obj)


async def _until_first(*works: Coroutine[Any, Any, None]) -> None:
    """Waits until one is over; cancels the others, and waits for their end."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


class SecretVersions:
    """Keeps `Store.secret_version` up to date, for the Secrets that groups name.

    They are read by name and as metadata only, a few a second: the operator has no right to list or watch
    Secrets.
    """

    def __init__(self, kube: Kube, store: Store, *, round_s: float = SECRETS_ROUND_S) -> None:
        """Does nothing yet.

        Args:
            kube: the way to the API server.
            store: names the Secrets that reconciliations need.
            round_s: how often each is looked up, as long as that is no more than 5 a second.
        """
        self._kube = kube
        self._store = store
        self._round_s = round_s
        self._wanted = asyncio.Event()
        self._problems: set[str] = set()
        store.on_wanted_secret = self._wanted.set

    async def run(self) -> None:
        """Until it is cancelled."""
        looked_s: dict[tuple[str, str], float] = {}
        loop = asyncio.get_running_loop()
        while True:
            wanted = self._store.wanted_secrets(FORGET_SECRET_S)
            looked_s = {secret: looked_s.get(secret, NEVER_S) for secret in wanted}
            fresh = [secret for secret in wanted if looked_s[secret] == NEVER_S]
            oldest = [min(looked_s, key=lambda secret: looked_s[secret])] if looked_s else []
            if not fresh:
                due_s = looked_s[oldest[0]] + self._round_s if oldest else float("inf")
                if await self._asked_within(max(due_s - loop.time(), 1 / SECRETS_A_SECOND)):
                    continue
            for secret in fresh or oldest:
                await self._look(*secret)
                looked_s[secret] = loop.time()

    async def _asked_within(self, timeout_s: float) -> bool:
        """Whether a new Secret was asked for in that time."""
        try:
            async with asyncio.timeout(None if timeout_s == float("inf") else timeout_s):
                await self._wanted.wait()
        except TimeoutError:
            return False
        self._wanted.clear()
        return True

    async def _look(self, namespace: str, name: str) -> None:
        try:
            secret = await self._kube.get("v1", "Secret", namespace, name, metadata_only=True)
        except (KubeError, KubeConfigError) as error:
            if str(error) not in self._problems:
                self._problems.add(str(error))
                logger.warning("Secret %s/%s: %s", namespace, name, error)
            return
        version = str(secret["metadata"].get("resourceVersion", "")) if secret else ""
        self._store.put_secret_version(namespace, name, version)


def _registry(
    access: Access, hand_over: Callable[[str | None, Object], None], which: Sequence[str]
) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def event(event: Any, **_: Any) -> None:
        hand_over(event["type"], event["object"])

    log_in(registry, access)
    for kind in which:
        kopf.on.event(*_selector(kind), registry=registry, id=kind)(event)
    return registry


def settings() -> kopf.OperatorSettings:
    """kopf's settings for the watches."""
    made = quiet_settings()
    made.watching.connect_timeout = 5.0
    made.watching.chunk_size = 250
    # A worker stays with its object for idle_timeout: about limit / timeout objects a second. Without a
    # limit a list of thousands makes as many tasks at once.
    made.queueing.worker_limit = 100
    made.queueing.idle_timeout = 0.05
    made.queueing.exit_timeout = 0.5
    for kind in KINDS:
        if kind != GROUP:
            made.watching.label_selectors[_selector(kind)] = GROUP_LABEL
    return made


def _selector(kind: str) -> tuple[str, str, str]:
    """kopf's selector of a kind: group, version, plural."""
    api_version = kinds.api_version_of(kind)
    group, _, version = api_version.rpartition("/")
    return group, version, str(kinds.plural_of(api_version, kind))
