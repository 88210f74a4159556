"""kopf in a thread and a loop of its own: it cancels all tasks of its loop that were started after it.

It stores nothing on the objects and posts nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import kopf

from slackwater_operator.kubernetes.access import Access

logger = logging.getLogger(__name__)

RETRY_S = 2.0
STOP_TIMEOUT_S = 2.0
PREFIX = "slackwater.dev"


class EndlessBackoff:
    """Seconds between the attempts of a request: short at first, then for ever the same.

    kopf gives up, and ends, where they end; one that has no end and no length is what it repeats for ever.
    """

    def __iter__(self) -> Iterator[float]:
        """0.1, 0.3, 1, 2, 2, 2, ..."""
        yield from (0.1, 0.3, 1.0)
        while True:
            yield RETRY_S


class KopfThread:
    """One run of kopf."""

    def __init__(
        self, registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, namespace: str | None = None
    ) -> None:
        """Does nothing yet.

        Args:
            registry: the handlers, which are called on kopf's thread.
            settings: kopf's.
            namespace: which to watch; None: all.
        """
        self._registry = registry
        self._settings = settings
        self._namespace = namespace
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Until kopf ends (which is logged), or this is cancelled: then it is stopped."""
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                asyncio.run(self._operate(lambda: _call(loop, over.set)))
                if not self._stop.is_set():
                    logger.error("kopf has stopped; restarting it")
            except Exception as error:
                logger.error("kopf has stopped; restarting it: %s", error or type(error).__name__)
            finally:
                _call(loop, over.set)

        threading.Thread(target=work, name="kopf", daemon=True).start()
        try:
            await over.wait()
        finally:
            self._stop.set()
            if not over.is_set():
                await _within(over, STOP_TIMEOUT_S)

    def ask(self, callback: Callable[[], object]) -> None:
        """Has kopf's loop call it."""
        if self._loop is not None:
            _call(self._loop, callback)

    async def _operate(self, ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            tasks = await kopf.spawn_tasks(
                registry=self._registry,
                settings=self._settings,
                standalone=True,
                clusterwide=self._namespace is None,
                namespaces=[self._namespace] if self._namespace is not None else [],
                stop_flag=self._stop,
                identity="slackwater",  # type: ignore[arg-type]  # a NewType that kopf keeps for itself
            )
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and task.exception():
                    logger.error("a task of kopf has stopped: %s", task.exception())
            # Said now: kopf takes 5 s and more to end what is left, and that may hang.
            ended()
            await kopf.run_tasks(tasks)
        finally:
            self._loop = None


def log_in(registry: kopf.OperatorRegistry, access: Access) -> None:
    """Registers how kopf reaches the API server."""

    async def login(**_: Any) -> kopf.AiohttpSession:
        session = access.session(timeout_s=None)
        return kopf.AiohttpSession(server=access.server, aiohttp_session=session)

    kopf.on.login(registry=registry)(login)


def quiet_settings() -> kopf.OperatorSettings:
    """kopf's settings for one that writes nothing to the API server."""
    made = kopf.OperatorSettings()
    made.scanning.disabled = True  # no list and watch of CRDs and namespaces
    made.posting.enabled = False
    made.persistence.finalizer = f"{PREFIX}/kopf"
    made.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    made.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=PREFIX)
    made.process.ultimate_exiting_timeout = None
    made.networking.request_timeout = 30.0
    made.networking.connect_timeout = 5.0
    made.networking.error_backoffs = EndlessBackoff()
    return made


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        logger.debug("the event loop has stopped")


async def _within(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        logger.warning("kopf did not stop within %g s", timeout_s)
