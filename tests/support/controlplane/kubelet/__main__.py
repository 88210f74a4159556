"""A kubelet that runs pods as processes of this machine, and the binder that gives them nodes.

It runs as a process of its own, for one API server and any number of nodes::

    python -m tests.support.controlplane.kubelet --kubeconfig FILE --directory DIR --images FILE --node NAME

``docs/design/controlplane.md`` says what it does as a real one, and what it doesn't.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import itertools
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.controlplane.api import STRATEGIC_MERGE_PATCH, ApiError, Json, path_of
from tests.support.controlplane.async_api import AsyncApi, Change
from tests.support.controlplane.kubelet.network import NoRange, PodNetwork
from tests.support.controlplane.kubelet.node import NodeContext, now
from tests.support.controlplane.kubelet.pod_runner import PodRunner
from tests.support.controlplane.kubelet.processes import CODE, SHARED, STAGE
from tests.support.controlplane.kubelet.server import KubeletServer

PODS, NODES = path_of("v1", "pods"), path_of("v1", "nodes")


class Kubelet:
    """Follows pods and nodes of one API server; ``names`` are its nodes."""

    def __init__(self, context: NodeContext, names: Sequence[str]) -> None:
        self._context = context
        self._names = set(names)
        self._runners: dict[str, PodRunner] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unbound: dict[str, Json] = {}
        self._off: set[str] = set()
        self._placed: dict[str, str] = {}  # pod's uid -> node, of those that have not ended
        self._turn = itertools.count()
        self._port = 0

    async def run(self, ended: asyncio.Event) -> None:
        """Until ``ended`` is set; then every pod's processes are killed."""
        server = KubeletServer(self._context, self._runners, self.switch_off)
        self._port = await server.start()
        for name in sorted(self._names):
            await self._register(name)
        following = [
            asyncio.create_task(self._follow_pods()),
            asyncio.create_task(self._follow_nodes()),
            asyncio.create_task(self._follow_sources("configmaps")),
            asyncio.create_task(self._follow_sources("secrets")),
        ]
        stopping = asyncio.create_task(ended.wait())
        done, _ = await asyncio.wait([*following, stopping], return_when=asyncio.FIRST_COMPLETED)
        for runner in self._runners.values():
            runner.switch_off()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in [*following, stopping]:
            task.cancel()
        await server.stop()
        for task in done - {stopping}:
            task.result()  # a watch never ends but by a mistake of ours

    # --- nodes ------------------------------------------------------------------------------------

    async def _register(self, name: str) -> None:
        api = self._context.api
        body: Json = {
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            },
            "spec": {"podCIDR": self._context.network.cidr},
        }
        try:
            await api.insist("POST", NODES, body)
        except ApiError as exc:
            if exc.reason != "AlreadyExists":
                raise
        merge = "application/merge-patch+json"
        await api.insist("PATCH", f"{NODES}/{name}/status", {"status": self._status()}, content_type=merge)
        # Admission taints a new node not-ready, and there is no controller here to take that away.
        await api.insist("PATCH", f"{NODES}/{name}", {"spec": {"taints": None}}, content_type=merge)

    def _status(self) -> Json:
        resources = {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "runs pods as processes",
            "lastHeartbeatTime": now(),
            "lastTransitionTime": now(),
        }
        return {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": {"kubeletVersion": "v1.35.4-processes", "operatingSystem": "linux"},
        }

    async def _follow_nodes(self) -> None:
        async for change in self._context.api.watch(NODES):
            if change.type == "LISTED":
                for name in self._names - {document["metadata"]["name"] for document in change.items}:
                    self.switch_off(name)
            elif change.type == "DELETED":
                self.switch_off(change.object["metadata"]["name"])
            if self._unbound:
                await self._bind_waiting()

    def switch_off(self, name: str) -> None:
        """Kills what runs on a node, and says nothing of it."""
        self._off.add(name)
        for runner in list(self._runners.values()):
            if runner.node == name:
                runner.switch_off()

    # --- binding ----------------------------------------------------------------------------------

    async def _bind_waiting(self) -> None:
        waiting = list(self._unbound)
        # Asked for: a change of a node that was made before the pod was may not have come by the watch yet.
        listed = await self._context.api.insist("GET", NODES)
        nodes = {node["metadata"]["name"]: node for node in listed["items"]}
        for uid in waiting:
            # Taken out first: another task may be here while this one waits for the API server.
            pod = self._unbound.pop(uid, None)
            if pod is not None and not await self._bind(pod, nodes):
                self._unbound[uid] = pod
                await self._say_no_room(pod, len(nodes))

    async def _bind(self, pod: Json, nodes: Mapping[str, Json]) -> bool:
        """Gives the pod the next node that takes pods; False when there is none."""
        if pod["metadata"]["uid"] in self._placed:  # another task was quicker
            return True
        wanted = pod["spec"].get("nodeSelector", {})
        free = [name for name in sorted(nodes) if self._takes_pods(nodes[name], wanted)]
        if not free:
            return False
        meta = pod["metadata"]
        node = free[next(self._turn) % len(free)]
        body = {
            "metadata": {"name": meta["name"], "uid": meta["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._placed[meta["uid"]] = node  # before another task counts
        try:
            path = path_of("v1", "pods", meta["namespace"], meta["name"], "binding")
            await self._context.api.insist("POST", path, body)
        except ApiError:  # deleted or bound meanwhile
            self._placed.pop(meta["uid"], None)
        return True

    async def _say_no_room(self, pod: Json, nodes: int) -> None:
        """As the scheduler says it."""
        meta, conditions = pod["metadata"], pod.get("status", {}).get("conditions", [])
        if any(condition["type"] == "PodScheduled" for condition in conditions):
            return
        said: Json = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": f"0/{nodes} nodes are available",
            "lastTransitionTime": now(),
        }
        pod["status"] = {**pod.get("status", {}), "conditions": [*conditions, said]}
        body = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [said]}}
        with contextlib.suppress(ApiError):  # deleted meanwhile
            path = path_of("v1", "pods", meta["namespace"], meta["name"], "status")
            await self._context.api.insist("PATCH", path, body, content_type=STRATEGIC_MERGE_PATCH)

    def _takes_pods(self, node: Json, wanted: Json) -> bool:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
        return (
            name in self._names - self._off
            and not node["spec"].get("unschedulable")
            and not node["spec"].get("taints")
            and list(self._placed.values()).count(name) < _room(node)
            and all(labels.get(key) == value for key, value in wanted.items())
        )

    # --- pods -------------------------------------------------------------------------------------

    async def _follow_pods(self) -> None:
        async for change in self._context.api.watch(PODS):
            if change.type == "LISTED":
                self._take_list(change)
            elif change.type == "DELETED":
                self._pod_gone(change.object["metadata"]["uid"])
            else:
                self._on_pod_change(change.object)

    def _take_list(self, change: Change) -> None:
        present = {document["metadata"]["uid"] for document in change.items}
        for uid in [*self._runners, *self._unbound, *self._placed]:
            if uid not in present:
                self._pod_gone(uid)
        for pod in change.items:
            self._on_pod_change(pod)

    def _pod_gone(self, uid: str) -> None:
        self._unbound.pop(uid, None)
        self._free(uid)
        if uid in self._runners:
            self._runners[uid].gone()

    def _free(self, uid: str) -> None:
        """The pod takes no room any more."""
        if self._placed.pop(uid, None) is not None and self._unbound:
            self._spawn(self._bind_waiting())

    def _on_pod_change(self, pod: Json) -> None:
        uid, spec = pod["metadata"]["uid"], pod["spec"]
        if spec.get("nodeName") and not _ended(pod):
            self._placed[uid] = spec["nodeName"]
        elif spec.get("nodeName"):
            self._free(uid)
        if not spec.get("nodeName"):
            if uid not in self._unbound and not spec.get("schedulingGates"):
                self._unbound[uid] = pod
                self._spawn(self._bind_waiting())
            return
        self._unbound.pop(uid, None)
        if uid in self._runners:
            self._runners[uid].update(pod)
        elif spec["nodeName"] in self._names - self._off and not _finished(pod):
            self._run(uid, pod)

    def _run(self, uid: str, pod: Json) -> None:
        try:
            runner = PodRunner(self._context, pod)
        except NoRange as exc:
            print(f"{pod['metadata']['name']} stays Pending: {exc}", flush=True)
            return
        self._runners[uid] = runner
        self._spawn(self._life_of(uid, runner))

    async def _life_of(self, uid: str, runner: PodRunner) -> None:
        try:
            await runner.run()
        except Exception:
            traceback.print_exc()
        finally:
            self._runners.pop(uid, None)

    async def _follow_sources(self, kind: str) -> None:
        async for change in self._context.api.watch(path_of("v1", kind), metadata_only=True):
            for document in change.items or (change.object,):
                meta = document.get("metadata", {})
                for runner in list(self._runners.values()):
                    if runner.namespace == meta.get("namespace"):
                        await self._tell(runner, kind, meta["name"])

    async def _tell(self, runner: PodRunner, kind: str, name: str) -> None:
        try:
            await runner.source_changed(kind, name)
        except (ApiError, OSError):  # the pod or its namespace is going away
            print(f"{runner.namespace}/{runner.name}: {kind} {name}: {traceback.format_exc()}", flush=True)

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _room(node: Json) -> int:
    """How many pods it takes."""
    return int(node.get("status", {}).get("allocatable", {}).get("pods", "0"))


def _ended(pod: Json) -> bool:
    """Whether its containers have run to their end."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _finished(pod: Json) -> bool:
    """The same before this kubelet saw it (and it isn't deleted)."""
    return _ended(pod) and not pod["metadata"].get("deletionTimestamp")


def _start_watchdog(directory: Path, cidr: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["sh", str(Path(__file__).with_name("watchdog.sh")), str(directory), cidr, str(SHARED)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _share_machine() -> IO[str]:
    """Holds the lock that says that a kubelet runs; the last one's watchdog cleans up."""
    STAGE.mkdir(parents=True, exist_ok=True)
    CODE.mkdir(exist_ok=True)
    held = (SHARED / "lock").open("a")
    fcntl.flock(held, fcntl.LOCK_SH)
    return held


async def serve(options: argparse.Namespace) -> None:
    """Runs the kubelet until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    directory: Path = options.directory
    (directory / "pids").mkdir(parents=True, exist_ok=True)
    shared = _share_machine()
    network = PodNetwork()
    watchdog = _start_watchdog(directory, network.cidr)
    api = AsyncApi(options.kubeconfig)
    context = NodeContext(api, directory, options.images, network, options.back_off_s)
    try:
        await Kubelet(context, options.node).run(ended)
    finally:
        await api.close()
        shared.close()
        watchdog.communicate()


def main(arguments: list[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.controlplane.kubelet")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="for logs, volumes and the socket")
    parser.add_argument("--images", type=Path, required=True, help="the file of an ImageRegistry")
    parser.add_argument("--back-off-s", type=float, default=10.0)
    parser.add_argument("--node", nargs="+", required=True, help="the nodes to be")
    options = parser.parse_args(arguments)
    missing = [name for name in ("unshare", "nsenter", "mount", "ip") if shutil.which(name) is None]
    if missing:
        print(f"kubelet: needs {', '.join(missing)} (util-linux, iproute2)", file=sys.stderr)
        return 1
    asyncio.run(serve(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
