"""Stands in for the kubelet: each pod's worker is a process of this machine.

The process gets the pod's environment and the files of its volume; paths beneath the mount are those of the
pod's folder. All pods share the address 127.0.0.1: each worker listens on a port of its own, which the pod
carries as an annotation.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.kubernetes.object_api import Object
from slackwater_operator.local.machine.events import WorkerEvent
from slackwater_operator.local.machine.objects import DELETED, LocalObjects
from slackwater_operator.local.machine.processes import EventSink, WorkerProcess
from slackwater_operator.local.machine.worker import Worker
from slackwater_operator.model import names

PROGRAM = (sys.executable, "-m", "slackwater.cli")
"""What runs in place of the image's `slackwater`."""
ADDRESS = "127.0.0.1"
_TERMINATION_VARIABLE = "SLACKWATER_TERMINATION_LOG"
_ONLY_IN_CONTAINERS = ("HOME",)  # that of the user has their caches
_UNCAUGHT = 1
"""Python's exit code for an exception that nothing caught, such as at an import; a worker's own codes come
with a message."""
_SOURCES = ("ConfigMap", "Secret")
_LABEL_FIELD = re.compile(r"metadata\.labels\['(.+)'\]")
_VARIABLE = re.compile(r"\$\(([A-Za-z_]\w*)\)")


class Pods:
    """Runs a process for each pod of a run."""

    def __init__(
        self,
        objects: LocalObjects,
        *,
        folder: Path,
        environment: Mapping[str, str],
        on_event: EventSink,
        on_failure: Callable[[OSError], None],
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Follows the pods from now on.

        Args:
            objects: the run's.
            folder: for the pods' files (`pods/`) and logs (`logs/`).
            environment: the variables that every process gets.
            on_event: called with each event of a worker, and with our own (`spawned`, `exited`).
            on_failure: called where a process cannot be started.
            program: what runs in place of the image's `slackwater`.
        """
        self.objects, self.folder, self.program = objects, folder, tuple(program)
        self.environment, self.on_event, self.on_failure = environment, on_event, on_failure
        self.sources_changed = asyncio.Event()
        self._pods: dict[str, _Pod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        objects.on_change(self._changed)

    @property
    def workers(self) -> list[Worker]:
        """The workers of all pods but the preflights', by ordinal; those that are ending, too."""
        workers = [pod.worker for pod in self._pods.values() if pod.worker.ordinal >= 0]
        return sorted(workers, key=lambda worker: (worker.ordinal, worker.pod))

    def find(self, pod: str) -> Worker | None:
        """The worker in the pod of that name."""
        return next((running.worker for running in self._pods.values() if running.worker.pod == pod), None)

    def kill(self, pod: str) -> None:
        """Ends a pod's process with SIGKILL, as a crash would.

        Raises:
            KeyError: there is no such pod, or it has no process now.
        """
        worker = self.find(pod)
        if worker is None or worker.process is None:
            raise KeyError(pod)
        worker.process.kill()

    def kill_all(self) -> None:
        """Ends all processes at once."""
        for pod in self._pods.values():
            if pod.worker.process is not None:
                pod.worker.process.kill()

    async def close(self) -> None:
        """Ends all processes at once, and waits for their end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _changed(self, change: str, obj: Object) -> None:
        if obj["kind"] in _SOURCES:
            self.sources_changed.set()
            for running in self._pods.values():
                running.refresh()
        if obj["kind"] != "Pod":
            return
        uid = obj["metadata"]["uid"]
        pod = self._pods.get(uid)
        if change == DELETED:
            if pod is not None:
                pod.update(obj, deleted=True)
        elif pod is not None:
            pod.update(obj, deleted=bool(obj["metadata"].get("deletionTimestamp")))
        else:
            self._begin(uid, obj)

    def _begin(self, uid: str, obj: Object) -> None:
        pod = self._pods[uid] = _Pod(self, obj)
        task = self._tasks[uid] = asyncio.create_task(pod.run(), name=f"pod {pod.worker.pod}")
        task.add_done_callback(lambda done: self._over(uid, done))

    def _over(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._pods[uid], self._tasks[uid]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_failure(error if isinstance(error, OSError) else OSError(str(error)))


class _Pod:
    """One pod, from its making to its end."""

    def __init__(self, pods: Pods, obj: Object) -> None:
        self._pods, self._objects, self._obj = pods, pods.objects, obj
        metadata = obj["metadata"]
        self._where = ("Pod", metadata["namespace"], metadata["name"], metadata["uid"])
        self._folder = pods.folder / "pods" / metadata["name"]
        self._restarts = obj["spec"].get("restartPolicy", "Always") == "Always"
        self._container = next(
            container for container in obj["spec"]["containers"] if container["name"] == names.CONTAINER
        )
        self._variables = _variables(self._container.get("env") or [], obj)
        labels = metadata.get("labels") or {}
        self.worker = Worker(
            self._variables.get(names.INSTANCE_ID_VARIABLE, metadata["name"]),
            int(labels.get(names.POD_INDEX_LABEL, -1)),
            metadata["name"],
            str(labels.get(names.REVISION_LABEL, "")),
        )
        self._deleted = asyncio.Event()
        self._state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
        self._last: dict[str, Any] = {}
        self._phase = "Pending"

    def update(self, obj: Object, *, deleted: bool) -> None:
        """The object has changed."""
        self._obj = obj
        if deleted:
            self.worker.stopping = True
            self._deleted.set()

    def refresh(self) -> None:
        """Rewrites the files of changed Secrets; the configuration stays as at the start."""
        files = self._files() if self.worker.process is not None else None
        for path, data in (files or {}).items():
            file = self._folder / path
            if path != names.CONFIG_KEY and file.read_bytes() != data:
                beside = file.with_name(f".{file.name}")
                beside.touch(mode=0o600)
                beside.write_bytes(data)
                beside.replace(file)

    async def run(self) -> None:
        """Runs the pod until it is deleted and its process has ended."""
        try:
            if await self._unless_deleted(self._make_files()):
                await self._keep_running()
        except OSError as error:  # nothing that is tried again would heal it
            message = f"{error.filename or names.CONTAINER}: {error.strerror or error}"
            self._report({"waiting": {"reason": "CreateContainerError", "message": message}})
            self._pods.on_failure(error)
        try:
            await self._deleted.wait()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._objects.remove(*self._where)

    async def _keep_running(self) -> None:
        """Restarts the process until the pod is deleted; runs it once if the restart policy says so."""
        worker = self.worker
        while not self._deleted.is_set():
            await self._process()
            if self._deleted.is_set() or not self._restarts:
                return
            wait_ms = worker.next_start_ms - SYSTEM_CLOCK.wall_ms()
            if wait_ms > 0:
                message = f"back-off {wait_ms} ms restarting failed container {names.CONTAINER}"
                self._report({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
                await self._unless_deleted(asyncio.sleep(wait_ms / 1000))

    async def _unless_deleted(self, work: Any) -> bool:
        """Whether `work` came to its end before the pod was deleted."""
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(self._deleted.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
            return bool(tasks[0].done())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- its process -------------------------------------------------------------------------------------

    async def _process(self) -> None:
        """Runs one process, from start to end."""
        worker = self.worker
        note = self._folder / "termination-log"
        note.write_bytes(b"")
        process = WorkerProcess(
            worker.pod,
            [*self._pods.program, *self._arguments()],
            logs=self._pods.folder / "logs",
            environment={**self._pods.environment, **self._variables, _TERMINATION_VARIABLE: str(note)},
            on_event=self._take,
            on_exit=lambda ended: None,
            instance=worker.name,
        )
        await process.start()
        worker.started(process)
        self._phase = "Running"
        self._report({"running": {"startedAt": self._objects.stamp()}})
        spawned = {"pid": process.pid, "revision": worker.revision}
        self._pods.on_event(WorkerEvent(SYSTEM_CLOCK.wall_ms(), "spawned", worker.name, spawned, worker.pod))
        liveness = asyncio.create_task(self._end_if_hung(process), name=f"liveness of {worker.pod}")
        try:
            if not await self._unless_deleted(process.wait()):
                grace_s = self._obj["metadata"].get("deletionGracePeriodSeconds", 0)
                await process.stop(int(grace_s * 1000))
        finally:
            liveness.cancel()
            if process.alive:  # cancelled
                process.kill()
                await process.wait()
        self._ended(process, note)

    async def _end_if_hung(self, process: WorkerProcess) -> None:
        """Ends the process when its liveness probe has failed as often in a row as the pod allows."""
        probe = self._container.get("livenessProbe")
        failures = 0
        while probe and failures < probe["failureThreshold"]:
            await asyncio.sleep(probe["periodSeconds"])
            if self.worker.progress.port is not None:  # it listens
                lives = await _answers(self.worker.progress.port, probe)
                failures = 0 if lives else failures + 1
        if probe:
            self.worker.progress.error = f"{probe['httpGet']['path']} did not answer"
            await process.stop(int(self._obj["spec"].get("terminationGracePeriodSeconds", 30) * 1000))

    def _arguments(self) -> list[str]:
        """The container's command without the program, with the paths of the pod's folder."""
        command = [str(argument) for argument in self._container["command"]]
        return [self._path(argument) for argument in command[1:]]

    def _ended(self, process: WorkerProcess, note: Path) -> None:
        worker = self.worker
        code, at_ms = (
            process.exit_code if process.exit_code is not None else -1,
            process.ended_ms or SYSTEM_CLOCK.wall_ms(),
        )
        worker.ended(code, at_ms)
        with contextlib.suppress(OSError):
            worker.last_error = worker.last_error or note.read_text(errors="replace").strip()
            if code == _UNCAUGHT and not worker.last_error:
                worker.last_error = process.last_line()
        if not self._restarts:
            self._phase = "Failed" if code else "Succeeded"
        ended = {
            "exitCode": code if code >= 0 else 128 - code,
            "reason": "Completed" if code == 0 else "Error",
            "finishedAt": self._objects.stamp(),
            "message": worker.last_error,
        }
        self._last = {"terminated": ended}
        fields = {"code": code, "error": worker.last_error}
        self._pods.on_event(WorkerEvent(at_ms, "exited", worker.name, fields, worker.pod))
        self._report({"terminated": ended})

    def _take(self, event: WorkerEvent) -> None:
        progress = self.worker.progress
        before = (progress.port, self._ready)
        progress.take(event)
        if progress.port != before[0]:
            self._objects.annotate(*self._where, {names.HEALTH_PORT: str(progress.port)})
        if before != (progress.port, self._ready) or event.event == "phase":
            self._report(self._state)
        self._pods.on_event(event)

    @property
    def _ready(self) -> bool:
        """Whether GET /readyz of its worker succeeds."""
        progress = self.worker.progress
        return progress.phase == "running" and progress.generation >= 0

    # --- what it shows -----------------------------------------------------------------------------------

    def _report(self, state: dict[str, Any]) -> None:
        self._state = state
        running = self.worker.process is not None
        ready = "True" if running and self._ready else "False"
        container = {
            "name": names.CONTAINER,
            "restartCount": max(0, self.worker.restarts),
            "ready": ready == "True",
            "state": state,
            "lastState": self._last,
        }
        conditions = {"PodScheduled": "True", "Initialized": "True", "ContainersReady": ready, "Ready": ready}
        status = {
            "phase": self._phase,
            "podIP": ADDRESS if running and self.worker.progress.port else "",
            "conditions": [{"type": kind, "status": value} for kind, value in conditions.items()],
            "containerStatuses": [container],
        }
        kind, namespace, name, uid = self._where
        self._objects.set_status(kind, namespace, name, uid, status)

    # --- its files ---------------------------------------------------------------------------------------

    async def _make_files(self) -> None:
        """Writes the files of its volume; waits for a ConfigMap or Secret that is not there yet."""
        while True:
            self._pods.sources_changed.clear()
            files = self._files()
            if files is not None:
                break
            await self._pods.sources_changed.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        for path, data in files.items():
            file = self._folder / path
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.touch(mode=0o600)
            file.write_bytes(self._localized(data) if path == names.CONFIG_KEY else data)

    def _files(self) -> dict[str, bytes] | None:
        """The contents by path; None where a source is missing."""
        volume = next(
            volume for volume in self._obj["spec"]["volumes"] if volume["name"] == names.CONFIG_VOLUME
        )
        files: dict[str, bytes] = {}
        for projection in volume["projected"]["sources"]:
            kind, field = ("Secret", "secret") if "secret" in projection else ("ConfigMap", "configMap")
            source = projection[field]
            live = self._objects.read(kind, self._obj["metadata"]["namespace"], source["name"])
            if live is None:
                return None
            for item in source["items"]:
                value = (live.get("data") or {}).get(item["key"])
                if value is None:
                    return None
                files[item["path"]] = base64.b64decode(value) if kind == "Secret" else value.encode()
        return files

    def _localized(self, data: bytes) -> bytes:
        """A worker's configuration with the paths of this machine, and a free port of loopback."""
        document = _with_paths(json.loads(data), self._path)
        document["health"] = {"host": ADDRESS, "port": 0}
        return json.dumps(document, indent=2).encode() + b"\n"

    def _path(self, value: str) -> str:
        """A path beneath the volume's mount as it is on this machine; any other value as it is."""
        mount = f"{names.CONFIG_FOLDER}/"
        return str((self._folder / value.removeprefix(mount)).resolve()) if value.startswith(mount) else value


async def _answers(port: int, probe: Mapping[str, Any]) -> bool:
    """Whether a process that listens on ``port`` passes the HTTP ``probe`` of its pod."""
    writer = None
    try:
        async with asyncio.timeout(probe["timeoutSeconds"]):
            reader, writer = await asyncio.open_connection(ADDRESS, port)
            writer.write(f"GET {probe['httpGet']['path']} HTTP/1.0\r\n\r\n".encode())
            return b" 200 " in await reader.readline()
    except (OSError, ValueError):  # ValueError: a line without end
        return False
    finally:
        if writer is not None:
            writer.close()


def _with_paths(value: Any, path: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_paths(item, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_paths(item, path) for item in value]
    return path(value) if isinstance(value, str) else value


def _variables(env: Sequence[Mapping[str, Any]], pod: Object) -> dict[str, str]:
    """A container's environment, as a kubelet computes it from values and fields of the pod."""
    values: dict[str, str] = {}
    for variable in env:
        if variable["name"] in _ONLY_IN_CONTAINERS:
            continue
        if "value" in variable:
            expanded = _VARIABLE.sub(lambda match: values.get(match[1], match[0]), str(variable["value"]))
            values[variable["name"]] = expanded
            continue
        field = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
        value = _field(field, pod)
        if value is not None:
            values[variable["name"]] = value
    return values


def _field(path: str, pod: Object) -> str | None:
    """A field of the pod that the downward API knows; None for others."""
    metadata = pod["metadata"]
    label = _LABEL_FIELD.fullmatch(path)
    if label is not None:
        return str((metadata.get("labels") or {}).get(label[1], ""))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "status.podIP": ADDRESS,
    }
    return known.get(path)
