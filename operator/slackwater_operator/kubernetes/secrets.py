"""The versions of the Secrets that groups name: read by name and metadata only, a few a second.

Without a right to list or watch Secrets, of which there are many in a cluster that are none of our business.
"""

from __future__ import annotations

import asyncio
import logging

from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeConfigError, KubeError
from slackwater_operator.kubernetes.store import Store

logger = logging.getLogger(__name__)

ROUND_S = 30.0
MOST_A_SECOND = 5.0
FORGET_S = 900.0
NEVER = float("-inf")


class SecretVersions:
    """Keeps `Store.secret_version` up to date."""

    def __init__(self, kube: Kube, store: Store, *, round_s: float = ROUND_S) -> None:
        """Does nothing yet.

        Args:
            kube: the way to the API server.
            store: whose turns ask for Secrets.
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
            wanted = self._store.wanted_secrets(FORGET_S)
            looked_s = {one: looked_s.get(one, NEVER) for one in wanted}
            fresh = [one for one in wanted if looked_s[one] == NEVER]
            oldest = [min(looked_s, key=lambda one: looked_s[one])] if looked_s else []
            if not fresh:
                due_s = looked_s[oldest[0]] + self._round_s if oldest else float("inf")
                if await self._asked_within(max(due_s - loop.time(), 1 / MOST_A_SECOND)):
                    continue
            for one in fresh or oldest:
                await self._look(*one)
                looked_s[one] = loop.time()

    async def _asked_within(self, timeout_s: float) -> bool:
        """Whether one that is new was asked for in that time."""
        try:
            async with asyncio.timeout(None if timeout_s == float("inf") else timeout_s):
                await self._wanted.wait()
        except TimeoutError:
            return False
        self._wanted.clear()
        return True

    async def _look(self, namespace: str, name: str) -> None:
        try:
            found = await self._kube.get("v1", "Secret", namespace, name, metadata_only=True)
        except (KubeError, KubeConfigError) as error:
            if str(error) not in self._problems:
                self._problems.add(str(error))
                logger.warning("Secret %s/%s: %s", namespace, name, error)
            return
        version = str(found["metadata"].get("resourceVersion", "")) if found else ""
        self._store.put_secret_version(namespace, name, version)
