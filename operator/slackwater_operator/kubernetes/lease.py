"""Elects a leader by a Lease (coordination.k8s.io/v1), by client-go's rules.

The holder renews every `renew_every_s`. It counts itself as leader only until `renew_deadline_s` after the
last renewal was *sent* (the API server can't have stored it earlier), whatever the API server does
meanwhile: each request ends by then. A candidate takes the Lease over when it has not seen it change for
the `leaseDurationSeconds` that the holder wrote: by its own monotonic clock, so that clocks that differ do
no harm. As the deadline is shorter than the lease, there is a moment without a leader, and none with two.

Time is the event loop's: a test runs it on a loop with virtual time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.kubernetes.errors import KubeConflict, KubeError
from slackwater_operator.kubernetes.object_api import Object, micro_time

logger = logging.getLogger(__name__)

API_VERSION, KIND = "coordination.k8s.io/v1", "Lease"
RELEASE_TIMEOUT_S = 2.0
WATCHDOG_CHECK_EVERY_S = 0.5
WATCHDOG_MARGIN_S = 1.0
"""For the loop to end the process itself, in order. Deadline and margin end before the Lease does."""


class LeaseApi(Protocol):
    """The requests of `Kube` that the Lease needs."""

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        """The Lease."""

    async def create(self, manifest: Object) -> Object:
        """Creates it, or `KubeConflict`."""

    async def replace(self, manifest: Object) -> Object:
        """Replaces the one with its resourceVersion, or `KubeConflict`."""


@dataclass(frozen=True, kw_only=True)
class LeaseSettings:
    """Which Lease, and its times.

    Attributes:
        namespace: of the Lease.
        name: of the Lease.
        identity: of this process; must be unique among live processes.
        lease_s: how long the others wait for a holder that does not renew.
        renew_deadline_s: how long the holder leads without having renewed.
        renew_every_s: how often it renews.
        look_every_s: how often a candidate looks, and how soon a renewal that failed is tried again.
        request_s: how long one request may take: a third of the deadline, so that one that hangs is not all.
    """

    namespace: str
    name: str
    identity: str
    lease_s: int = 15
    renew_deadline_s: float = 10.0
    renew_every_s: float = 2.0
    look_every_s: float = 1.0
    request_s: float = 3.0

    def __post_init__(self) -> None:
        """Checks that there can't be two leaders.

        Raises:
            ValueError: says which time is too long.
        """
        if not self.renew_every_s < self.renew_deadline_s < self.lease_s:
            raise ValueError(
                f"the Lease's renewal interval ({self.renew_every_s:g} s) must be shorter than its renewal "
                f"deadline ({self.renew_deadline_s:g} s), which must be shorter than its duration "
                f"({self.lease_s} s)"
            )


class LeaseLost(Exception):
    """This process is not the leader any more, and must end."""


class Lease:
    """The Lease for one process: `acquire`, then `hold` until the end, then `release`."""

    def __init__(
        self, api: LeaseApi, settings: LeaseSettings, *, wall_ms: Callable[[], int] = SYSTEM_CLOCK.wall_ms
    ) -> None:
        """Does nothing yet.

        Args:
            api: the way to the API server.
            settings: which Lease.
            wall_ms: the clock that people read in the Lease; nothing is decided by it.
        """
        self._api = api
        self._settings = settings
        self._wall_ms = wall_ms
        self._mine: Object | None = None
        self._sent_at_s = float("-inf")
        self._observed: tuple[str, str] = ("", "")
        self._observed_at_s = float("-inf")
        self.holder = ""
        """The holder, as observed last; empty: none."""

    @property
    def stored(self) -> Object:
        """The Lease as this process last wrote it; before that, its name."""
        return self._mine or self._manifest(transitions=0)

    @property
    def leads(self) -> bool:
        """Whether this process may act: it holds the Lease, and the deadline has not passed."""
        return self._mine is not None and self._now() < self.deadline_s

    @property
    def held(self) -> bool:
        """Whether it was taken and not given back or lost, even if the deadline has passed unnoticed."""
        return self._mine is not None

    @property
    def deadline_s(self) -> float:
        """Until when it leads without another renewal, on the loop's clock."""
        return self._sent_at_s + self._settings.renew_deadline_s

    async def acquire(self) -> None:
        """Waits until this process leads. What the API server refuses meanwhile is logged and tried again."""
        problem = ""
        while True:
            try:
                async with asyncio.timeout(self._settings.renew_deadline_s):
                    if await self._try():
                        logger.info("became leader: acquired Lease %s", self._name)
                        return
                problem = ""
            except (KubeError, TimeoutError) as error:
                text = str(error) or "no response in time"
                if text != problem:
                    logger.warning("Lease %s: %s; retrying", self._name, text)
                problem = text
            await asyncio.sleep(self._settings.look_every_s)

    async def hold(self) -> None:
        """Renews the Lease until it is lost.

        Raises:
            LeaseLost: it could not be renewed before the deadline, or somebody else has it.
        """
        try:
            while True:
                async with asyncio.timeout_at(self.deadline_s):
                    await asyncio.sleep(self._settings.renew_every_s)
                    await self._renew()
        except TimeoutError:
            self._mine = None
            raise LeaseLost(
                f"Lease {self._name} could not be renewed within {self._settings.renew_deadline_s:g} s"
            ) from None

    async def release(self) -> None:
        """Releases the Lease, so that another replica takes it at its next attempt. Takes 2 s at most."""
        mine, self._mine = self._mine, None
        if mine is None:
            return
        spec = {**mine["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._api.replace({**mine, "spec": spec})
            logger.info("released Lease %s", self._name)
        except (KubeError, TimeoutError) as error:
            logger.warning("Lease %s could not be released: %s", self._name, error or "no response in time")

    # --- inside ---------------------------------------------------------------------------------------------

    async def _get(self) -> Object | None:
        return await self._api.get(API_VERSION, KIND, self._settings.namespace, self._settings.name)

    async def _renew(self) -> None:
        """Tries until it is renewed; ended by the deadline, which the caller sets."""
        while True:
            sent_at_s = self._now()
            try:
                assert self._mine is not None
                renewed = {**self._mine, "spec": {**self._mine["spec"], "renewTime": self._stamp()}}
                async with asyncio.timeout(self._settings.request_s):
                    self._take(await self._api.replace(renewed), sent_at_s)
                return
            except TimeoutError:
                logger.warning("Lease %s could not be renewed: no response in time", self._name)
            except KubeConflict:
                if await self._still_mine():
                    continue  # somebody has only touched it: at once, with the new resourceVersion
            except KubeError as error:
                if error.status == 404 and await self._made(sent_at_s):
                    return
                logger.warning("Lease %s could not be renewed: %s", self._name, error)
            await asyncio.sleep(self._settings.look_every_s)

    async def _still_mine(self) -> bool:
        try:
            async with asyncio.timeout(self._settings.request_s):
                lease = await self._get()
        except (KubeError, TimeoutError) as error:
            logger.warning("Lease %s: %s", self._name, error or "no response in time")
            return False
        if lease is None:
            return False
        self.holder = _holder(lease)
        if self.holder != self._settings.identity:
            self._mine = None
            raise LeaseLost(f"Lease {self._name} is held by {self.holder or 'no replica'}")
        self._mine = lease
        return True

    async def _made(self, sent_at_s: float) -> bool:
        """Creates the Lease again, which was deleted while this process leads."""
        try:
            self._take(await self._api.create(self._manifest(transitions=0)), sent_at_s)
        except KubeConflict:
            await self._still_mine()
            return False
        except KubeError as error:
            logger.warning("Lease %s: %s", self._name, error)
            return False
        return True

    async def _try(self) -> bool:
        """Tries once to take the Lease. Whether this process holds it now."""
        lease = await self._get()
        sent_at_s = self._now()
        try:
            if lease is None:
                self._take(await self._api.create(self._manifest(transitions=0)), sent_at_s)
                return True
            if not self._free(lease):
                return False
            self._take(await self._api.replace(self._taken_over(lease)), sent_at_s)
        except KubeConflict:
            return False  # another candidate was faster
        return True

    def _free(self, lease: Object) -> bool:
        """Whether the Lease is free: released, held by this identity before, or expired."""
        spec = lease.get("spec") or {}
        holder = _holder(lease)
        if holder != self.holder:
            logger.info("Lease %s is held by %s", self._name, holder or "nobody")
        self.holder = holder
        version = str(lease["metadata"].get("resourceVersion", ""))
        if (holder, version) != self._observed:
            self._observed, self._observed_at_s = (holder, version), self._now()
        if holder in ("", self._settings.identity):
            return True
        duration_s = float(spec.get("leaseDurationSeconds") or self._settings.lease_s)
        return self._now() >= self._observed_at_s + duration_s

    def _taken_over(self, lease: Object) -> Object:
        """The Lease with this process as the holder; fields of others stay."""
        before = lease.get("spec") or {}
        transitions = int(before.get("leaseTransitions") or 0) + (_holder(lease) != self._settings.identity)
        return {**lease, "spec": {**before, **self._manifest(transitions=transitions)["spec"]}}

    def _manifest(self, *, transitions: int) -> Object:
        settings, now = self._settings, self._stamp()
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": settings.name, "namespace": settings.namespace},
            "spec": {
                "holderIdentity": settings.identity,
                "leaseDurationSeconds": settings.lease_s,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }

    def _take(self, stored: Object, sent_at_s: float) -> None:
        self._mine, self._sent_at_s = stored, sent_at_s
        self.holder = self._settings.identity

    def _stamp(self) -> str:
        return micro_time(self._wall_ms())

    @property
    def _name(self) -> str:
        return f"{self._settings.namespace}/{self._settings.name}"

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class LeaseWatchdog:
    """A thread that ends the process when the event loop hangs past the Lease's deadline. `stop` it before
    the loop ends in order.

    A blocked loop cannot notice that its time as leader is over, and would act when it continues; so would a
    process that was suspended. The thread reads the clock in its place.
    """

    def __init__(self, lease: Lease, exit_code: int, *, end: Callable[[int], None] = os._exit) -> None:
        """Starts the thread.

        Args:
            lease: its deadline counts while it is held.
            exit_code: of the process.
            end: ends the process.
        """
        self._lease = lease
        self._exit_code = exit_code
        self._end = end
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(WATCHDOG_CHECK_EVERY_S):
            late_s = time.monotonic() - self._lease.deadline_s
            if self._lease.held and late_s > WATCHDOG_MARGIN_S:
                message = (
                    f"the event loop does not respond: the Lease's renewal deadline passed {late_s:.1f} s "
                    "ago; exiting\n"
                )
                sys.stderr.write(message)
                sys.stderr.flush()
                self._end(self._exit_code)
                return


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
