"""What a node changes on the machine, and the one way to undo it.

A process of its own waits for the end of the one that runs the node, however that ends, and undoes
everything: :class:`Guard`. What was there before is in :data:`RECORD`, so that a later run undoes what a run
left whose guard was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

RUN = Path("/run/slackwater-node")
"""Sockets and what else must have a short path."""
RECORD = RUN / "before.json"
SOCKET = RUN / "containerd.sock"
CNI_STATE = RUN / "ipam"
BRIDGE = "slackwater0"
ADDRESS = "10.245.0.1"
"""Of the machine, on the pods' bridge: the API server, Kafka, DNS and the kubelet listen here."""
PODS = "10.245.0.0/24"
SYSCTLS = {
    "net.ipv4.ip_forward": "1",
    # Two pods of one bridge that speak by a Service: the answer must pass the rules, too.
    "net.bridge.bridge-nf-call-iptables": "1",
    "fs.inotify.max_user_instances": "1024",
}
CHANGED_BY_KUBELET = ("vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops")
_FOLDERS = ("/var/lib/cni", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods")
"""Made by kubelet and containerd, whatever their settings are."""
_PROCESSORS = Path("/sys/devices/system/node")
_CGROUPS = ("kubepods", "k8s.io")
_KILL_TIMEOUT_S = 30.0


class Guard:
    """Makes the bridge and sets the sysctls; undoes this, and what the node has made since, at the end.

    A context manager. ``directory``: the node's files, whose mounts are undone, too. ``lock``: what
    :func:`exclusive` gave; it is held until all is undone.
    """

    def __init__(self, directory: Path, lock: int) -> None:
        self._directory, self._lock = directory, lock

    def __enter__(self) -> Self:
        undo()
        _write_record(self._directory)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.node.host"],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
            start_new_session=True,
            pass_fds=[self._lock],
        )
        try:
            _make_network()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def more_processors(times: int) -> Iterator[None]:
    """A kubelet that starts meanwhile counts each processor ``times`` times: the examples' requests fit then.

    It reads them once, by the NUMA nodes of sysfs; each of these has all processors of the machine here.
    """
    fake = RUN / "processors"
    for number in range(times):
        node = fake / f"node{number}"
        (node / "hugepages").mkdir(parents=True)
        (node / "meminfo").write_text(f"Node {number} MemTotal: 1048576 kB\n")
        (node / "distance").write_text(" ".join(["10"] * times))
        for cpu in Path("/sys/devices/system/cpu").glob("cpu[0-9]*"):
            (node / cpu.name).symlink_to(cpu)
    subprocess.run(["mount", "--bind", str(fake), str(_PROCESSORS)], check=True)
    try:
        yield
    finally:
        _output("umount", str(_PROCESSORS))


def observe() -> dict[str, object]:
    """What a node may change, as it is now."""
    return {
        "sysctls": _sysctls(),
        "links": [name for name in _links() if name == BRIDGE or name.startswith("veth")],
        "namespaces": _network_namespaces(),
        "nft": [table for table in _output("nft", "list", "tables").splitlines() if "kube-proxy" in table],
        "iptables": _iptables_rules(),
        "mounts": [mount for mount in _mounts() if mount.startswith((str(RUN), str(_PROCESSORS), *_FOLDERS))],
        "cgroups": [str(folder) for folder in _cgroups()],
        "folders": [folder for folder in (*_FOLDERS, str(RUN)) if Path(folder).exists()],
        "shims": _shims(),
    }


def undo() -> None:
    """Undoes what a node has left, by :data:`RECORD`; nothing where there is none."""
    if not RECORD.exists():
        return
    record = json.loads(RECORD.read_text())
    _end_processes()
    unmount(record["directory"], str(RUN), "/var/lib/kubelet", str(_PROCESSORS.parent))
    for name in set(_network_namespaces()) - set(record["namespaces"]):
        _output("ip", "netns", "delete", name)
    for name in _links_of_bridge():
        _output("ip", "link", "delete", name)
    _output("ip", "link", "delete", BRIDGE)
    for family in ("ip", "ip6"):
        _output("nft", "delete", "table", family, "kube-proxy")
    for folder in _cgroups():
        with contextlib.suppress(OSError):
            folder.rmdir()
    for made in set(_FOLDERS) - set(record["folders"]):
        shutil.rmtree(made, ignore_errors=True)
    for name, value in record["sysctls"].items():
        _set_sysctl(name, value)
    shutil.rmtree(RUN, ignore_errors=True)


def unmount(*folders: str) -> None:
    """Takes away every mount in these folders, the innermost first."""
    for mount in reversed(_mounts()):
        if mount.startswith(tuple(f"{folder}/" for folder in folders)):
            _output("umount", "--lazy", mount)


def _write_record(directory: Path) -> None:
    RUN.mkdir(parents=True)
    observed = observe()
    kept = {name: observed[name] for name in ("sysctls", "namespaces", "folders")}
    RECORD.write_text(json.dumps({"directory": str(directory), **kept}))


def _make_network() -> None:
    _output("modprobe", "br_netfilter")  # in many kernels it is built in
    for command in (
        ["ip", "link", "add", BRIDGE, "type", "bridge"],
        ["ip", "address", "add", f"{ADDRESS}/{PODS.partition('/')[2]}", "dev", BRIDGE],
        ["ip", "link", "set", BRIDGE, "up"],
    ):
        subprocess.run(command, check=True)
    for name, value in SYSCTLS.items():
        _set_sysctl(name, value)


# --- processes ------------------------------------------------------------------------------------------


def _end_processes() -> None:
    """Kills the containers' processes and their shims: they outlive containerd."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while pids := {*_shims(), *_contained()}:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            print(f"node: processes that do not end: {sorted(pids)}", file=sys.stderr)
            return
        time.sleep(0.05)


def _shims() -> list[int]:
    """The shims (and containerd) of this node: their arguments name its socket or its configuration."""
    marks = (str(SOCKET).encode(), str(RUN / "containerd.toml").encode())
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"containerd" in Path(os.fsdecode(words[0])).name.encode() and any(w in marks for w in words):
                pids.append(int(folder.name))
    return pids


def _contained() -> set[int]:
    return {int(pid) for folder in _cgroups() for pid in _text(folder / "cgroup.procs").split()}


def _cgroups() -> list[Path]:
    """The cgroups of pods and containers, the innermost first."""
    tops = [Path(top) / name for top in Path("/sys/fs/cgroup").glob("*") for name in _CGROUPS]
    return [Path(folder) for top in tops if top.is_dir() for folder, _, _ in os.walk(top, topdown=False)]


# --- what is there ----------------------------------------------------------------------------------------


def _sysctls() -> dict[str, str]:
    values = {}
    for name in (*SYSCTLS, *CHANGED_BY_KUBELET):
        path = _sysctl_path(name)
        if path.exists():
            values[name] = path.read_text().strip()
    return values


def _set_sysctl(name: str, value: str) -> None:
    path = _sysctl_path(name)
    if path.exists() and path.read_text().strip() != value:
        path.write_text(value)


def _sysctl_path(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def _links() -> list[str]:
    return [path.name for path in Path("/sys/class/net").iterdir()]


def _links_of_bridge() -> list[str]:
    folder = Path("/sys/class/net") / BRIDGE / "brif"
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def _network_namespaces() -> list[str]:
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob("cni-*")) if folder.exists() else []


def _mounts() -> list[str]:
    return [line.split()[4] for line in _text(Path("/proc/self/mountinfo")).splitlines()]


def _iptables_rules() -> list[str]:
    tables = ("nat", "filter", "mangle")
    rules = [rule for table in tables for rule in _output("iptables", "-t", table, "-S").splitlines()]
    return [rule for rule in rules if "KUBE-" in rule or "CNI-" in rule]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextlib.contextmanager
def exclusive() -> Iterator[int]:
    """One node on a machine at a time; waits for the other one's end. Gives the lock's file descriptor."""
    with Path("/run/slackwater-node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def main() -> None:
    """Waits for the end of stdin, which is that of the process that runs the node; then undoes everything."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    undo()


if __name__ == "__main__":
    main()
