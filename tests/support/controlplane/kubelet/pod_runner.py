"""One pod: its volumes, its containers, its status, its graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.controlplane.api import STRATEGIC_MERGE_PATCH, ApiError, Json, path_of
from tests.support.controlplane.kubelet.container import RETRY_S, Container, PodFacts
from tests.support.controlplane.kubelet.environment import MissingReference
from tests.support.controlplane.kubelet.node import NodeContext, now
from tests.support.controlplane.kubelet.processes import Mount
from tests.support.controlplane.kubelet.volumes import UnsupportedVolume, Volumes

DEFAULT_GRACE_S = 30.0
TERMINATION = "/dev/termination-log"


class PodRunner:
    """Runs one pod (by uid) until its object is gone; :meth:`run` is its whole life."""

    def __init__(self, context: NodeContext, pod: Json) -> None:
        self.pod = pod
        self._context = context
        meta = pod["metadata"]
        self.namespace, self.name, self.uid = meta["namespace"], meta["name"], meta["uid"]
        self.node: str = pod["spec"]["nodeName"]
        self.address = context.network.take(self.uid)
        self._volumes = Volumes(context.volume_folder(pod), pod, self._fetch, self._issue_token)
        self._deleted, self._gone, self._changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._initialized = self._ended = self._failed = self._silent = False
        self._reported: Json = {}
        self._started_at = now()
        self._events: set[asyncio.Task[None]] = set()
        facts = self._facts()
        self._init = [Container(spec, facts, initial=True) for spec in pod["spec"].get("initContainers", [])]
        self._containers = [Container(spec, facts) for spec in pod["spec"]["containers"]]
        self.update(pod)

    def _facts(self) -> PodFacts:
        spec = self.pod["spec"]
        return PodFacts(
            context=self._context,
            node=self.node,
            address=self.address,
            restart_policy=spec.get("restartPolicy", "Always"),
            grace_s=float(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)),
            pod=lambda: self.pod | {"status": {**self.pod.get("status", {}), **self._addresses()}},
            mounts=self._mounts,
            fetch=self._fetch,
            changed=self._changed.set,
            event=self._record,
        )

    # --- what the kubelet tells it ----------------------------------------------------------------

    @property
    def containers(self) -> list[Container]:
        """Init containers first."""
        return [*self._init, *self._containers]

    def update(self, pod: Json) -> None:
        """The object has changed."""
        shown = [_labels_and_annotations(document) for document in (self.pod, pod)]
        self.pod = pod
        if shown[0] != shown[1]:
            self._keep(asyncio.get_running_loop().create_task(self._volumes.pod_changed(pod)))
        if pod["metadata"].get("deletionTimestamp"):
            self._deleted.set()

    def gone(self) -> None:
        """The object is gone (by force, or since we deleted it)."""
        self._gone.set()

    def switch_off(self) -> None:
        """Its node has lost its power: nothing of it runs, nothing is reported any more."""
        self._silent = True
        self._gone.set()

    async def source_changed(self, kind: str, name: str) -> None:
        """A ConfigMap or Secret of its namespace has changed."""
        await self._volumes.changed(kind, name)

    # --- its life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the object is gone."""
        reporting = asyncio.create_task(self._report_changes())
        working = asyncio.create_task(self._work())
        working.add_done_callback(self._tell_of_failure)
        deleted = asyncio.create_task(self._deleted.wait())
        gone = asyncio.create_task(self._gone.wait())
        try:
            # Once its containers have ended it waits for its deletion.
            await asyncio.wait({deleted, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                ending = asyncio.create_task(self._end_gracefully(working))
                await asyncio.wait({ending, gone}, return_when=asyncio.FIRST_COMPLETED)
                ending.cancel()
        finally:
            for container in self.containers:
                container.kill()
            for task in (working, reporting, deleted, gone):
                task.cancel()
            await asyncio.gather(working, reporting, deleted, gone, return_exceptions=True)
            await self._await_processes()
            self._volumes.remove()
            self._context.network.give_back(self.address)

    def _tell_of_failure(self, working: asyncio.Task[None]) -> None:
        if not working.cancelled() and (error := working.exception()) is not None:
            print(f"{self.namespace}/{self.name}: {''.join(traceback.format_exception(error))}", flush=True)

    async def _work(self) -> None:
        await self._make_volumes()
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._volumes.renew_tokens())
            for container in self._init:
                if await container.run() != 0:
                    self._failed = self._ended = True
                    break
                container.ready = True
            else:
                self._initialized = True
                await asyncio.gather(*(container.run() for container in self._containers))
                self._ended = True
            renewing.cancel()
        self._changed.set()

    async def _make_volumes(self) -> None:
        reported = ""
        while True:
            try:
                await self._volumes.make()
                return
            except (MissingReference, UnsupportedVolume, ApiError) as exc:
                if str(exc) != reported:
                    reported = str(exc)
                    self._record("Warning", "FailedMount", f"MountVolume.SetUp failed: {reported}")
                    self._changed.set()
            await asyncio.sleep(RETRY_S)

    async def _end_gracefully(self, working: asyncio.Task[None]) -> None:
        grace = float(self.pod["metadata"].get("deletionGracePeriodSeconds", DEFAULT_GRACE_S))
        await asyncio.gather(*(container.stop(grace) for container in self.containers))
        # Its containers' last states; one that waits (for an image, in a back-off) has none to come.
        await asyncio.wait({working}, timeout=0.05)
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await working
        self._ended = True
        await self._report()
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        with contextlib.suppress(ApiError):
            await self._context.api.insist("DELETE", self._path(), options)

    async def _await_processes(self) -> None:
        for container in self.containers:
            if container.process is not None:
                await container.process.wait()

    # --- status -----------------------------------------------------------------------------------

    async def _report_changes(self) -> None:
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._report()

    async def _report(self) -> None:
        status = self._status()
        if self._silent or status == self._reported:
            return
        body = {"metadata": {"uid": self.uid}, "status": status}
        try:
            await self._context.api.insist(
                "PATCH", self._path("status"), body, content_type=STRATEGIC_MERGE_PATCH
            )
            self._reported = status
        except ApiError as exc:
            if exc.status not in (404, 409, 422):  # gone, or another pod has the name by now
                print(f"status of {self.namespace}/{self.name}: {exc}", flush=True)

    def _status(self) -> Json:
        main = [container.status for container in self._containers]
        phase = phase_of(main, initialized=self._initialized, ended=self._ended, failed=self._failed)
        before = self._reported.get("conditions", [])
        return {
            "phase": phase,
            "startTime": self._started_at,
            **self._addresses(),
            "conditions": conditions(main, before, phase=phase, initialized=self._initialized, at=now()),
            "containerStatuses": main,
            **(
                {"initContainerStatuses": [container.status for container in self._init]}
                if self._init
                else {}
            ),
        }

    def _addresses(self) -> Json:
        return {
            "hostIP": "127.0.0.1",
            "hostIPs": [{"ip": "127.0.0.1"}],
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
        }

    # --- what its containers ask for --------------------------------------------------------------

    def _mounts(self, container: Json) -> list[Mount]:
        hosts = self._context.volume_folder(self.pod) / "etc-hosts"
        hosts.parent.mkdir(parents=True, exist_ok=True)
        hosts.write_text(f"127.0.0.1\tlocalhost\n{self.address}\t{self.name}\n")
        return [
            Mount(hosts, "/etc/hosts"),
            Mount(self._termination(container["name"]), container.get("terminationMessagePath", TERMINATION)),
            *(
                Mount(
                    self._volumes.path(volume_mount),
                    volume_mount["mountPath"],
                    volume_mount.get("readOnly", False),
                )
                for volume_mount in container.get("volumeMounts", [])
            ),
        ]

    def _termination(self, container: str) -> Path:
        """The file by which a container says why it ended."""
        path = self._context.termination(self.pod, container)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        path.chmod(0o666)
        return path

    async def _fetch(self, kind: str, name: str) -> Json | None:
        try:
            return await self._context.api.insist("GET", path_of("v1", kind, self.namespace, name))
        except ApiError as exc:
            if exc.status == 404:
                return None
            raise

    async def _issue_token(self, wanted: Json) -> str:
        account = self.pod["spec"].get("serviceAccountName", "default")
        reference = {"kind": "Pod", "apiVersion": "v1", "name": self.name, "uid": self.uid}
        spec: Json = {
            "expirationSeconds": wanted.get("expirationSeconds", 3600),
            "audiences": [wanted["audience"]] if "audience" in wanted else [],
            "boundObjectRef": reference,
        }
        path = path_of("v1", "serviceaccounts", self.namespace, account, "token")
        answer = await self._context.api.insist("POST", path, {"spec": spec})
        return str(answer["status"]["token"])

    def _path(self, subresource: str = "") -> str:
        return path_of("v1", "pods", self.namespace, self.name, subresource)

    def _record(self, kind: str, reason: str, message: str) -> None:
        self._keep(asyncio.get_running_loop().create_task(self._create_event(kind, reason, message)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def _create_event(self, kind: str, reason: str, message: str) -> None:
        involved: Mapping[str, str] = {
            "apiVersion": "v1", "kind": "Pod", "uid": self.uid,
            "namespace": self.namespace, "name": self.name,
        }  # fmt: skip
        body = {
            "metadata": {"name": f"{self.name}.{secrets.token_hex(8)}", "namespace": self.namespace},
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "kubelet", "host": self.node},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        with contextlib.suppress(ApiError, OSError, TimeoutError):
            await self._context.api.request("POST", path_of("v1", "events", self.namespace), body)


def _labels_and_annotations(pod: Json) -> tuple[object, object]:
    return pod["metadata"].get("labels"), pod["metadata"].get("annotations")


def phase_of(containers: Sequence[Json], *, initialized: bool, ended: bool, failed: bool) -> str:
    """``ended``: no container will run again. ``failed``: an init container did, for good."""
    if failed:
        return "Failed"
    if ended:
        codes = [container["state"].get("terminated", {}).get("exitCode", 137) for container in containers]
        return "Succeeded" if not any(codes) else "Failed"
    started = any(
        "waiting" not in container["state"] or container["restartCount"] for container in containers
    )
    return "Running" if initialized and started else "Pending"


def conditions(
    containers: Sequence[Json], before: Sequence[Json], *, phase: str, initialized: bool, at: str
) -> list[Json]:
    """The kubelet's own conditions; ``lastTransitionTime`` moves only when the status does."""
    unready = [container["name"] for container in containers if not container["ready"]]
    ready = initialized and not unready and phase == "Running"
    why: Json = {}
    if phase == "Succeeded":
        why = {"reason": "PodCompleted"}
    elif not ready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        why = {"reason": "ContainersNotReady", "message": message}
    wanted = [
        ("PodReadyToStartContainers", True, {}),
        ("Initialized", initialized, {} if initialized else {"reason": "ContainersNotInitialized"}),
        ("ContainersReady", ready, why),
        ("Ready", ready, why),
        ("PodScheduled", True, {}),
    ]
    conditions = []
    for kind, holds, reason in wanted:
        status = "True" if holds else "False"
        old = next((condition for condition in before if condition["type"] == kind), {})
        since = old.get("lastTransitionTime", at) if old.get("status") == status else at
        conditions.append({"type": kind, "status": status, "lastTransitionTime": since, **reason})
    return conditions
