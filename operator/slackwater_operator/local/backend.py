"""The operator's own controller over objects in memory and processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from slackwater_operator.controller.controller import Controller
from slackwater_operator.controller.execution.credentials import options
from slackwater_operator.controller.session import Session
from slackwater_operator.kafka.clusters import Clusters
from slackwater_operator.kubernetes.object_api import Object
from slackwater_operator.kubernetes.store import Key, Store
from slackwater_operator.local.objects import LocalObjects
from slackwater_operator.local.pods import PROGRAM, Pods
from slackwater_operator.local.processes import EventSink
from slackwater_operator.local.settings import RunSettings
from slackwater_operator.local.workloads import Workloads
from slackwater_operator.telemetry.metrics import Metrics

_TOLD_AGAIN_MS = 60_000
_LOOK_S = 0.02


class LocalBackend:
    """One ConsumerGroup with its objects, its pods and the controller. Used on one event loop."""

    def __init__(
        self,
        name: str,
        *,
        folder: Path,
        settings: RunSettings,
        environment: Mapping[str, str],
        on_event: EventSink,
        on_notice: Callable[[str], None],
        on_failure: Callable[[OSError], None],
        clusters: Clusters | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Runs nothing yet.

        Args:
            name: the ConsumerGroup's.
            folder: for the pods' files and logs.
            settings: how the run behaves.
            environment: the variables of the workers' processes.
            on_event: called with each event of a worker.
            on_notice: called with what the controller posts as Events on Kubernetes.
            on_failure: called where a process cannot be started.
            clusters: the Kafka clusters; None: real ones. Closed by `close`.
            program: what runs in place of the image's `slackwater`.
        """
        self.key = Key("", name)
        self.objects = LocalObjects(SYSTEM_CLOCK.wall_ms)
        self.store = Store()
        self.objects.feed(self.store)
        self.clusters = clusters or Clusters(options(self.objects))
        self._workloads = Workloads(self.objects)
        self.pods = Pods(
            self.objects,
            folder=folder,
            environment=environment,
            on_event=on_event,
            on_failure=on_failure,
            program=program,
        )
        self._controller = Controller(
            self.objects,
            self.store,
            _Notices(on_notice),
            Metrics(),
            settings.of_controller(),
            clusters=self.clusters,
        )
        self._running: asyncio.Task[None] | None = None

    @property
    def resource(self) -> Object | None:
        """The ConsumerGroup; None: there is none (any more)."""
        return self.objects.read(KIND, *self.key)

    @property
    def session(self) -> Session | None:
        """What the controller knows of the group."""
        return self._controller.session(self.key)

    @property
    def status(self) -> Mapping[str, Any]:
        """The group's status as the controller has planned it last; empty before the first plan."""
        session = self.session
        return session.plan.status if session is not None and session.plan is not None else {}

    def begin(self) -> asyncio.Task[None]:
        """Starts the controller; its task, which ends only by an error."""
        self._running = asyncio.create_task(self._controller.run(), name="controller")
        return self._running

    async def delete(self, leave_s: float) -> bool:
        """Deletes the ConsumerGroup as `kubectl delete` does, and waits for its end: the pods', and that of
        its members in Kafka's group.

        Args:
            leave_s: how long the latter may take after the former.

        Returns:
            Whether the members were taken out of the group, as far as is known.
        """
        await self.objects.delete(API_VERSION, KIND, *self.key)
        while any(True for _ in self.objects.of_kind("Pod")):
            await asyncio.sleep(_LOOK_S)
        try:
            async with asyncio.timeout(leave_s):
                while self.session is not None:
                    if self._running is None or self._running.done():
                        return False
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Ends the controller, and all processes that are left."""
        self._workloads.close()
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running
        await self.pods.close()
        await self.clusters.close()


class _Notices:
    """An `EventRecorder` that tells what is news at once; the same again within a minute is not."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: dict[str, int] = {}

    def post(
        self,
        regarding: Object,
        reason: str,
        message: str,
        *,
        kind: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Tells it."""
        text, now_ms = f"{reason}: {message}", SYSTEM_CLOCK.wall_ms()
        if now_ms - self._told.get(text, 0) >= _TOLD_AGAIN_MS:
            self._told[text] = now_ms
            self._tell(text)
