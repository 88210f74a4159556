"""A real Kubernetes node on this machine: the control plane of the tests with a real scheduler, kube-proxy,
CoreDNS, containerd and kubelet.

As a program it serves until Ctrl-C and says where its kubeconfig is::

    python -m tests.support.node.node [DIRECTORY]
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.controlplane.build import NodeBinaries, ToolsUnavailable, node_binaries
from tests.support.controlplane.cluster import ControlPlaneUnavailable, PodNetwork
from tests.support.node.containerd import Containerd
from tests.support.node.debian import NodeUnavailable, installed
from tests.support.node.host import ADDRESS, PODS, SOCKET, Guard, exclusive, more_processors
from tests.support.node.images import Build
from tests.support.node.pods import NodePods
from tests.support.node.registry import registry
from tests.support.processes import ServerProcess

NAME = "node-1"
SERVICES = "10.97.0.0/24"
DOMAIN = "cluster.local"
_READY_TIMEOUT_S = 180.0
_PROCESSORS = 5
"""How many times each processor counts. `orders/secured.yaml` alone requests eight, the operators more."""
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


class Node:
    """The node and its control plane; a context manager.

    ``plane``: kubectl, helm, the API. ``pods``: what the containers did. ``directory``: its files.
    ``registry``: what it pulls from.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = contextlib.ExitStack()
        self._parts: dict[str, ServerProcess] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def load(self, *builds: Build) -> None:
        """Brings images onto the node, as if they had been pulled."""
        self.containerd.load(*builds)

    def log(self, part: str) -> str:
        """What ``kubelet``, ``scheduler``, ``proxy``, ``coredns`` or ``containerd`` has written."""
        return (self.directory / f"{part}.log").read_text(errors="replace")

    # --- starting ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        installed()
        programs = node_binaries()
        self.directory.mkdir(parents=True, exist_ok=True)
        # Undone in the reverse order: the parts end first, then the guard undoes what they have left.
        lock = self._stack.enter_context(exclusive())
        self._stack.enter_context(Guard(self.directory, lock))
        self.containerd = Containerd(self.directory)
        self._stack.callback(self.containerd.close)
        self.containerd.start()
        self.pods = self._stack.enter_context(
            NodePods(self.containerd, self.directory / "pod-logs", self.directory / "kept-logs")
        )
        self.registry = self._stack.enter_context(registry(self.directory / "registry"))
        network = PodNetwork(ADDRESS, SERVICES)
        self.plane = self._stack.enter_context(
            ControlPlane.start(self.directory / "plane", nodes=(), network=network)
        )
        self._stack.callback(self._end_parts)
        with more_processors(_PROCESSORS):
            self._launch_parts(programs)
            until(self._ready, f"{NAME} ready", _READY_TIMEOUT_S)

    def _launch_parts(self, programs: NodeBinaries) -> None:
        kubeconfig = self.plane.user_kubeconfig("scheduler", "system:kube-scheduler")
        self._launch(
            "scheduler",
            [
                str(programs.scheduler),
                f"--kubeconfig={kubeconfig}",
                "--leader-elect=false",
                "--secure-port=0",
            ],
        )
        kubeconfig = self.plane.user_kubeconfig("kubelet", f"system:node:{NAME}", ["system:nodes"])
        self._launch(
            "kubelet",
            [
                str(programs.kubelet), f"--config={self._kubelet_config()}", f"--kubeconfig={kubeconfig}",
                f"--root-dir={self.directory / 'kubelet'}", f"--cert-dir={self.directory / 'kubelet-pki'}",
                f"--hostname-override={NAME}", f"--node-ip={ADDRESS}", "--v=2",
            ],
        )  # fmt: skip
        self._launch("proxy", [str(programs.proxy), f"--config={self._proxy_config()}"])
        self._launch("coredns", [str(programs.coredns), "-conf", str(self._corefile())])

    def _launch(self, part: str, command: Sequence[str]) -> None:
        self._parts[part] = ServerProcess(
            part, list(command), env=_ENVIRONMENT, log=self.directory / f"{part}.log", cwd=self.directory,
            failure=NodeUnavailable,
        )  # fmt: skip

    def _end_parts(self) -> None:
        for owned in self._parts.values():
            owned.kill()

    def _ready(self) -> bool:
        for process in self._parts.values():
            process.check_running()
        node = self.plane.api.get(path_of("v1", "nodes", name=NAME))
        if node is None or node["spec"].get("taints"):
            return False
        conditions = node["status"].get("conditions", [])
        return any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)

    # --- configurations ---------------------------------------------------------------------------------

    def _kubelet_config(self) -> Path:
        serving = self.plane.authority.issue(
            "kubelet-serving", server_names=[NAME], server_addresses=[ADDRESS]
        )
        return self._write(
            "kubelet.yaml",
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "address": ADDRESS,
                "failCgroupV1": False,
                "cgroupDriver": "cgroupfs",
                "failSwapOn": False,
                "containerRuntimeEndpoint": f"unix://{SOCKET}",
                "authentication": {
                    "anonymous": {"enabled": False},
                    "webhook": {"enabled": True},
                    "x509": {"clientCAFile": str(self.plane.ca)},
                },
                "authorization": {"mode": "Webhook"},
                "tlsCertFile": str(serving.certificate),
                "tlsPrivateKeyFile": str(serving.key),
                "clusterDNS": [ADDRESS],
                "clusterDomain": DOMAIN,
                "resolvConf": "/etc/resolv.conf",
                "podLogsDir": str(self.directory / "pod-logs"),
                "volumePluginDir": str(self.directory / "volume-plugins"),
                "makeIPTablesUtilChains": False,
                "serializeImagePulls": False,
                "nodeStatusUpdateFrequency": "5s",
                "evictionHard": {
                    "memory.available": "100Mi",
                    "nodefs.available": "1%",
                    "imagefs.available": "1%",
                },
                "imageGCHighThresholdPercent": 99,
                "imageGCLowThresholdPercent": 98,
            },
        )

    def _proxy_config(self) -> Path:
        kubeconfig = self.plane.user_kubeconfig("proxy", "system:kube-proxy")
        return self._write(
            "proxy.yaml",
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "nftables",
                "bindAddress": ADDRESS,
                "clientConnection": {"kubeconfig": str(kubeconfig)},
                "hostnameOverride": NAME,
                "clusterCIDR": PODS,
                # The machine's table of connections is left as it is.
                "conntrack": {
                    "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
                },
                "healthzBindAddress": f"{ADDRESS}:10256",
                "metricsBindAddress": f"{ADDRESS}:10249",
                "nftables": {"syncPeriod": "30s", "minSyncPeriod": "100ms"},
            },
        )  # fmt: skip

    def _corefile(self) -> Path:
        kubeconfig = self.plane.user_kubeconfig("dns", "coredns", ["system:masters"])
        path = self.directory / "Corefile"
        path.write_text(
            f".:53 {{\n  bind {ADDRESS}\n  errors\n  cache 5\n"
            f"  kubernetes {DOMAIN} {{\n    kubeconfig {kubeconfig}\n    pods insecure\n    ttl 2\n  }}\n}}\n"
        )
        return path

    def _write(self, name: str, document: dict[str, Any]) -> Path:
        path = self.directory / name
        path.write_text(yaml.safe_dump(document))
        return path


def main(arguments: list[str] | None = None) -> int:
    """Serves until Ctrl-C or SIGTERM; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    with contextlib.ExitStack() as stack:
        directory = Path(given[0]) if given else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            node = stack.enter_context(Node(directory.resolve()))
        except (NodeUnavailable, ControlPlaneUnavailable, ToolsUnavailable) as exc:
            print(f"node: {exc}", file=sys.stderr)
            return 1
        print(f"export KUBECONFIG={node.plane.kubeconfig}", flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
