"""containerd with runc and the bridge plugin. Its images are kept from run to run."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from tests.support.node.debian import CNI_PLUGINS, NodeUnavailable
from tests.support.node.host import ADDRESS, BRIDGE, CNI_STATE, PODS, RUN, SOCKET
from tests.support.node.images import FOLDER, PAUSE, Build, made, pause
from tests.support.processes import ServerProcess

NAMESPACE = "k8s.io"
TASKS = RUN / "containerd" / "io.containerd.runtime.v2.task" / NAMESPACE
"""A folder with ``config.json`` for each container that runs."""

_UNUSED = ("btrfs", "zfs", "aufs", "devmapper")
_CONFIG = """\
version = 2
root = "{root}"
state = "{run}/containerd"
disabled_plugins = [{unused}]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE no score below the own one can be set (a pod's pause container would get -998).
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{run}/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{run}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
# No ipMasq and no port mappings: pods reach nobody but this machine, and no rule of iptables is made.
_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "slackwater-node",
    "plugins": [
        {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(CNI_STATE),
                "ranges": [[{"subnet": PODS, "gateway": ADDRESS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


class Containerd:
    """containerd of this node; its log is ``directory/containerd.log``. Made by :meth:`start`."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "containerd.log"
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Starts it; returns when it answers. Raises :class:`NodeUnavailable`."""
        config = RUN / "containerd.toml"
        unused = ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in _UNUSED)
        root = FOLDER / "containerd"
        config.write_text(
            _CONFIG.format(root=root, run=RUN, unused=unused, socket=SOCKET, pause=PAUSE, plugins=CNI_PLUGINS)
        )
        (RUN / "cni").mkdir(exist_ok=True)
        (RUN / "cni" / "10-slackwater.conflist").write_text(json.dumps(_NETWORK))
        self._process = ServerProcess(
            "containerd", ["containerd", "--config", str(config)], log=self._log, failure=NodeUnavailable
        )
        self._process.await_ready(lambda: self._ctr("version", check=False).returncode == 0, 60, every_s=0.05)
        self._remove_containers()
        self.load(pause())

    def load(self, *builds: Build) -> None:
        """Brings images in, as if they had been pulled; built first where they are not there."""
        there = self._ctr("images", "list").stdout
        digests = {words[0]: words[2] for line in there.splitlines()[1:] if len(words := line.split()) > 2}
        for build in builds:
            archive = made(build)
            mark = FOLDER / "loaded" / archive.stem
            if build.name in digests and mark.exists() and mark.read_text() == digests[build.name]:
                continue
            started = time.monotonic()
            self._ctr("images", "import", str(archive))
            there = self._ctr("images", "list", f"name=={build.name}").stdout
            mark.parent.mkdir(exist_ok=True)
            mark.write_text(there.splitlines()[1].split()[2])
            print(f"node: {build.name} imported in {time.monotonic() - started:.1f} s", flush=True)

    def tag(self, name: str, other: str) -> None:
        """The image has another name, too."""
        self._ctr("images", "tag", "--force", name, other)

    def remove(self, *names: str) -> None:
        """The node does not have these images any more, and must pull them."""
        for name in names:
            self._ctr("images", "remove", "--sync", name, check=False)  # it may not be there

    def events(self) -> subprocess.Popen[str]:
        """``ctr events``: a line for each start and end of a task."""
        return subprocess.Popen(
            _command("events"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )

    def close(self) -> None:
        """SIGTERM, and SIGKILL when that takes too long. The containers go on; the host's guard ends them."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _remove_containers(self) -> None:
        """Those of a run before: the guard has ended their processes, containerd still has their records."""
        for name in self._ctr("containers", "list", "--quiet").stdout.split():
            self._ctr("tasks", "delete", "--force", name, check=False)
            self._ctr("containers", "delete", name, check=False)

    def _ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(_command(*arguments), capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise NodeUnavailable(f"ctr {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done


def _command(*arguments: str) -> list[str]:
    return ["ctr", "--address", str(SOCKET), "--namespace", NAMESPACE, *arguments]
