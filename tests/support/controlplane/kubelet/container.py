"""One container of a pod: started, probed, restarted with a back-off, stopped with grace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.controlplane.api import Json
from tests.support.controlplane.images import Image
from tests.support.controlplane.kubelet import processes
from tests.support.controlplane.kubelet.environment import (
    MissingReference,
    Objects,
    environment,
    expand,
    references,
)
from tests.support.controlplane.kubelet.node import NodeContext, now
from tests.support.controlplane.kubelet.probes import Target, act, watch

MAX_BACK_OFF_S = 300.0
RETRY_S = 0.5
MAX_MESSAGE_BYTES, MAX_LOG_BYTES, MAX_LOG_LINES = 4096, 2048, 80
"""Of a termination message; of a log that stands in for it."""
RECORD_EVENT = Callable[[str, str, str], None]
"""(type, reason, message)"""


@dataclass(frozen=True)
class PodFacts:
    """What a container needs of its pod. ``pod`` and ``mounts`` are asked for at each start."""

    context: NodeContext
    node: str
    address: str
    restart_policy: str
    grace_s: float
    pod: Callable[[], Json]
    mounts: Callable[[Json], list[processes.Mount]]
    fetch: Callable[[str, str], Awaitable[Json | None]]
    changed: Callable[[], None]
    event: RECORD_EVENT


class Container:
    """Runs ``spec`` until it shall not be restarted, or :meth:`stop`. ``initial``: an init container."""

    def __init__(self, spec: Json, facts: PodFacts, *, initial: bool = False) -> None:
        self.spec = spec
        self._initial = initial
        self.name: str = spec["name"]
        self._facts = facts
        self._state: Json = {"waiting": {"reason": "ContainerCreating"}}
        self._last: Json = {}
        self._back_off_s = 0.0
        self._stopping = False
        self._target: Target | None = None
        self.restarts = 0
        self.process: processes.ContainerProcess | None = None
        self.started = self.ready = False
        self.exit_code: int | None = None

    @property
    def status(self) -> Json:
        """As in ``status.containerStatuses``."""
        status: Json = {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": self.spec["image"],
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self._state,
            "lastState": self._last,
        }
        if self.process is not None:
            status["containerID"] = f"process://{self.process.pid}"
        return status

    # --- running ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Runs it, again and again as the restart policy says; the exit code of its last run."""
        while True:
            code = await self._run_once()
            if self._stopping or not self._restarts_after(code):
                self.exit_code = code
                return code
            if self._back_off_s:
                self._last = self._state
                self._wait_as("CrashLoopBackOff", f"back-off {self._back_off_s:g}s restarting")
                self._facts.event("Warning", "BackOff", f"Back-off restarting failed container {self.name}")
                await asyncio.sleep(self._back_off_s)
            # As the kubelet: the first restart at once, then 10 s, 20 s, ... 5 min.
            self._back_off_s = min(2 * self._back_off_s or self._facts.context.back_off_s, MAX_BACK_OFF_S)
            self._last = self._state if "terminated" in self._state else self._last
            self.restarts += 1

    def _restarts_after(self, code: int) -> bool:
        policy = self._facts.restart_policy
        if self._initial or policy == "OnFailure":  # an init container that has succeeded is done
            return code != 0 and policy != "Never"
        return policy == "Always"

    async def _run_once(self) -> int:
        image = await self._await_image()
        variables = await self._await_environment(image)
        self._launch(image, variables)
        assert self.process is not None
        started_at = now()
        self._state = {"running": {"startedAt": started_at}}
        probing = asyncio.create_task(self._probe())
        self._facts.changed()
        try:
            await self._post_start()
            code = await self.process.wait()
        finally:
            probing.cancel()
            self.process.kill()
        self.started = self.ready = False
        reason = "Completed" if code == 0 else "Error"
        ended: Json = {"exitCode": code, "reason": reason, "startedAt": started_at, "finishedAt": now()}
        if message := self._message(code):
            ended["message"] = message
        self._state = {"terminated": ended}
        self._facts.changed()
        return code

    async def _await_image(self) -> Image:
        while True:
            image = self._facts.context.image(self.spec["image"])
            if not image.missing:
                await self._facts.context.pull(self._facts.node, self.spec["image"], image)
                return image
            waits = self._state.get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff")
            self._wait_as("ImagePullBackOff" if waits else "ErrImagePull", f"no image {self.spec['image']}")
            await asyncio.sleep(RETRY_S)

    async def _await_environment(self, image: Image) -> dict[str, str]:
        while True:
            try:
                return await self._environment(image)
            except MissingReference as exc:
                self._wait_as("CreateContainerConfigError", str(exc))
            await asyncio.sleep(RETRY_S)

    async def _environment(self, image: Image) -> dict[str, str]:
        pod = self._facts.pod()
        objects: Objects = {
            reference: await self._facts.fetch(*reference) for reference in references(self.spec)
        }
        meta = pod["metadata"]
        about = {
            "POD_IP": self._facts.address,
            "POD_NAME": meta["name"],
            "POD_NAMESPACE": meta["namespace"],
        }
        own = environment(self.spec, pod, objects)
        return {
            **self._facts.context.base_environment(image),
            # In a pod they listen on all addresses; here all pods share those of the machine.
            **dict.fromkeys(("SLACKWATER_HEALTH_HOST", "SLACKWATER_HTTP_HOST"), self._facts.address),
            "HOSTNAME": meta["name"],
            **{name: expand(value, about) for name, value in image.env.items()},
            **own,
        }

    def _launch(self, image: Image, variables: Mapping[str, str]) -> None:
        facts, spec = self._facts, self.spec
        command = [expand(word, variables) for word in spec.get("command", [])]
        words = [expand(word, variables) for word in spec.get("args", [])]
        pod = facts.pod()
        self.process = processes.start(
            image.argv(command, words),
            environment=variables,
            mounts=facts.mounts(spec),
            hostname=pod["metadata"]["name"],
            directory=spec.get("workingDir", "/"),
            log=facts.context.log(pod, self.name, self.restarts),
            pid_folder=facts.context.pid_folder,
            volume_folder=facts.context.volume_folder(pod),
            on_exit=lambda pid, code: facts.context.journal("exited", pod, self.name, pid=pid, code=code),
        )
        facts.context.journal("started", pod, self.name, pid=self.process.pid)
        ports = {port["name"]: port["containerPort"] for port in spec.get("ports", []) if "name" in port}
        self._target = Target(self.process.pid, facts.address, ports, dict(variables))

    def _message(self, code: int) -> str:
        """What it has said of its end; its log's end where it said nothing and that is asked for."""
        context, pod = self._facts.context, self._facts.pod()
        said = _tail(context.termination(pod, self.name), MAX_MESSAGE_BYTES)
        falls_back = self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if said or not code or not falls_back:
            return said
        lines = _tail(context.log(pod, self.name, self.restarts), MAX_LOG_BYTES).splitlines(keepends=True)
        return "".join(lines[-MAX_LOG_LINES:])

    def _wait_as(self, reason: str, message: str) -> None:
        waiting = {"waiting": {"reason": reason, "message": message}}
        if self._state != waiting:
            self._state = waiting
            self._facts.changed()

    # --- probes -----------------------------------------------------------------------------------

    async def _probe(self) -> None:
        assert self._target is not None
        if "startupProbe" in self.spec:
            await watch(self.spec["startupProbe"], self._target, self._on_startup_probe)
        self.started = True
        self.ready = "readinessProbe" not in self.spec
        self._facts.changed()
        async with asyncio.TaskGroup() as group:
            if "readinessProbe" in self.spec:
                group.create_task(watch(self.spec["readinessProbe"], self._target, self._on_readiness_probe))
            if "livenessProbe" in self.spec:
                group.create_task(watch(self.spec["livenessProbe"], self._target, self._on_liveness_probe))

    async def _on_startup_probe(self, succeeded: bool, why: str) -> bool:
        if not succeeded:
            await self._fail_probe("Startup", why)
        return succeeded

    async def _on_readiness_probe(self, succeeded: bool, why: str) -> bool:
        if self.ready != succeeded:
            self.ready = succeeded
            if why:
                self._facts.event("Warning", "Unhealthy", f"Readiness probe failed: {why}")
            self._facts.changed()
        return False

    async def _on_liveness_probe(self, succeeded: bool, why: str) -> bool:
        if not succeeded:
            await self._fail_probe("Liveness", why)
        return False

    async def _fail_probe(self, which: str, why: str) -> None:
        self._facts.event("Warning", "Unhealthy", f"{which} probe failed: {why}")
        self._facts.event("Normal", "Killing", f"Container {self.name} failed {which.lower()} probe")
        # In a task of its own: the end of the process cancels the probes, which would cancel the stop.
        stopping = asyncio.create_task(self._stop_process(self._facts.grace_s))
        await asyncio.shield(stopping)

    # --- stopping ---------------------------------------------------------------------------------

    async def _post_start(self) -> None:
        handler = self.spec.get("lifecycle", {}).get("postStart")
        if handler and self._target is not None and self.process is not None:
            why = await act(handler, self._target, self._facts.grace_s)
            if why:
                self._facts.event("Warning", "FailedPostStartHook", why)
                await self._stop_process(self._facts.grace_s)

    async def stop(self, grace_s: float) -> None:
        """preStop, SIGTERM, and SIGKILL when ``grace_s`` is over; it will not be restarted."""
        self._stopping = True
        await self._stop_process(grace_s)

    async def _stop_process(self, grace_s: float) -> None:
        process = self.process
        if process is None or not process.running:
            return
        deadline = asyncio.get_running_loop().time() + grace_s
        handler = self.spec.get("lifecycle", {}).get("preStop")
        if handler and self._target is not None:
            # preStop runs inside the grace period.
            with contextlib.suppress(TimeoutError):
                why = await asyncio.wait_for(act(handler, self._target, grace_s), grace_s)
                if why:
                    self._facts.event("Warning", "FailedPreStopHook", why)
        process.terminate()
        try:
            # At least two seconds after SIGTERM, as the kubelet gives.
            left = max(deadline - asyncio.get_running_loop().time(), 2.0 if handler else 0.0)
            await asyncio.wait_for(process.wait(), left)
        except TimeoutError:
            process.kill()
            await process.wait()

    def kill(self) -> None:
        """SIGKILL, without a restart."""
        self._stopping = True
        if self.process is not None and self.process.running:
            self.process.kill()


def _tail(path: Path, most_bytes: int) -> str:
    try:
        return path.read_bytes()[-most_bytes:].decode(errors="replace")
    except FileNotFoundError:
        return ""
