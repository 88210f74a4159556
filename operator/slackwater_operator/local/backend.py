"""The operator's own controller over objects in memory and processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND, ConsumerGroup
from slackwater_operator.controller.controller import Controller
from slackwater_operator.controller.execution.credentials import identity, options
from slackwater_operator.controller.session import Session
from slackwater_operator.controller.settings import Settings
from slackwater_operator.controller.snapshots.builder import wanted
from slackwater_operator.kafka.clusters import Clusters
from slackwater_operator.kubernetes.object_api import Object
from slackwater_operator.kubernetes.store import Key, Store
from slackwater_operator.local.machine.objects import LocalObjects
from slackwater_operator.local.machine.pods import PROGRAM, Pods
from slackwater_operator.local.machine.processes import EventSink
from slackwater_operator.local.machine.workloads import Workloads
from slackwater_operator.local.report.views import RunError
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.telemetry.metrics import OperatorMetrics

_TOPICS_READABLE_S = 10.0
_REPEAT_MS = 60_000
_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """How a run behaves: as the controller, which looks as often as the run is shown.

    Attributes:
        worker_image: no image is pulled; a template has to name one.
        max_failures: how many times in a row a worker may fail without a commit before the run is given up.
    """

    worker_image: str = "local"
    pod_monitors: bool = False
    round_ms: int = 500
    worker_poll_ms: int = 1_000
    stale_ms: int = 5_000
    max_failures: int = 5


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
        self._workloads = Workloads(self.objects, asyncio.get_running_loop)
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
            OperatorMetrics(),
            settings,
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

    async def check_topics(self, group: ConsumerGroup, *, every_ms: int) -> None:
        """Asks the broker until all topics can be read; a new topic may have no leaders yet.

        Args:
            group: the resource.
            every_ms: the time between two requests.

        Raises:
            RunError: the broker does not answer, a topic is missing, or one cannot be read after 10 s.
        """
        loop = asyncio.get_running_loop()
        cluster = identity(group.spec.kafka, "", self.store)
        request = wanted(self.key, group, group.spec.kafka)
        until_s = loop.time() + _TOPICS_READABLE_S
        while True:
            result = await self.clusters.observe(cluster, [request])
            observed = result.snapshots.get(self.key)
            if observed is None:
                raise RunError(f"{result.problem}; start it, or correct spec.kafka.bootstrapServers")
            problem = _problem_of(observed, group)
            if not problem:
                return
            if observed.missing or loop.time() >= until_s:
                raise RunError(f"{group.spec.kafka.bootstrap_servers}: {problem}")
            await asyncio.sleep(every_ms / 1000)

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
            await asyncio.sleep(_POLL_S)
        try:
            async with asyncio.timeout(leave_s):
                while self.session is not None:
                    if self._running is None or self._running.done():
                        return False
                    await asyncio.sleep(_POLL_S)
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
    """An `EventRecorder` that passes on each text at most once a minute."""

    def __init__(self, on_notice: Callable[[str], None]) -> None:
        self._on_notice = on_notice
        self._posted: dict[str, int] = {}

    def post(
        self,
        regarding: Object,
        reason: str,
        message: str,
        *,
        kind: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Passes it on."""
        text, now_ms = f"{reason}: {message}", SYSTEM_CLOCK.wall_ms()
        if now_ms - self._posted.get(text, 0) >= _REPEAT_MS:
            self._posted[text] = now_ms
            self._on_notice(text)


def _problem_of(observed: KafkaSnapshot, group: ConsumerGroup) -> str:
    """Why the topics cannot be read; "" if they can."""
    if observed.problems:
        return "; ".join(observed.problems)
    no_partitions = not observed.partitions and not group.spec.topic_pattern
    return "the topics have no partitions" if no_partitions else ""
