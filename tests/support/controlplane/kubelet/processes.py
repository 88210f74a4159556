"""A container as a process: in a mount and a host name namespace of its own, its output in a file.

Needs root. Mount points that the host does not have are made there and written down in
:data:`MOUNT_POINTS`; the last kubelet of the machine removes them (see ``watchdog.sh``).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SHARED = Path("/run/slackwater-kubelets")
"""What the kubelets of the machine share: the lock that each holds, and the list of mount points."""
MOUNT_POINTS = SHARED / "mount-points"
STAGE = SHARED / "stage"
"""Where a container's namespace sees the volumes' folder while it mounts: a mount at /tmp may hide it."""
CODE = SHARED / "code"
"""The same for this checkout, which is shown at its own place again where a mount hides it."""
ROOT = Path(__file__).resolve().parents[4]

_ENTER = """
set -e
readlink /proc/self/ns/mnt > "$4"
mount --bind "$4" "$4"
echo "$1" > /proc/sys/kernel/hostname
n=$2; dir=$3; stage=$6; code=$8
mount --bind "$5" "$stage"
mount --bind "$7" "$code"
shift 8
while [ "$n" -gt 0 ]; do
  # Inside another volume: its mount point is made there, not on the host.
  if [ ! -e "$2" ]; then if [ -d "$1" ]; then mkdir -p "$2"; else touch "$2"; fi; fi
  mount --bind "$1" "$2"
  if [ "$3" = ro ]; then mount -o remount,bind,ro "$2"; fi
  shift 3; n=$((n-1))
done
umount "$stage" "$code"
cd "$dir"
exec "$@"
"""


@dataclass(frozen=True)
class Mount:
    """``source`` of the host shown at ``target`` of the container."""

    source: Path
    target: str
    read_only: bool = False


class ContainerProcess:
    """A process that has been started. All it has started dies with it, as in a container."""

    def __init__(
        self, process: subprocess.Popen[bytes], pid_file: Path, on_exit: Callable[[int, int], None]
    ) -> None:
        self._on_exit = on_exit
        self.pid = process.pid
        self._process = process
        self._pid_file = pid_file
        self._ended = asyncio.get_running_loop().create_future()
        self._descriptor = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._signal_group(signal.SIGKILL)  # before its number is free for another one
        code = self._process.wait()
        self._kill_escaped()
        with contextlib.suppress(FileNotFoundError):
            self._pid_file.resolve().unlink()
        self._pid_file.unlink(missing_ok=True)
        code = code if code >= 0 else 128 - code
        self._on_exit(self.pid, code)
        if not self._ended.done():
            self._ended.set_result(code)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.done()

    async def wait(self) -> int:
        """Its exit code; 128 + n if signal n ended it."""
        return int(await asyncio.shield(self._ended))

    def terminate(self) -> None:
        """SIGTERM to the first process, as a container's."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all of it; nothing when it has ended."""
        if self.running:
            self._signal_group(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """A signal to the group."""
        self._signal_group(number)

    def _kill_escaped(self) -> None:
        """Kills what has left the process group (``setsid``): it is still in the mount namespace.

        The namespace's number is not enough: it is free when the last process has ended, and the kernel gives
        it to the next container, which may be there before this one is reaped. The mount of the file that
        the number stands in is in this one's namespace only.
        """
        with contextlib.suppress(FileNotFoundError):
            namespace, mark = self._pid_file.read_text().strip(), self._pid_file.readlink().name
            for entry in Path("/proc").iterdir():
                with contextlib.suppress(OSError):
                    if (
                        entry.name.isdigit()
                        and str((entry / "ns/mnt").readlink()) == namespace
                        and mark in (entry / "mountinfo").read_text()
                    ):
                        os.kill(int(entry.name), signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    mounts: Sequence[Mount],
    hostname: str,
    directory: str,
    log: Path,
    pid_folder: Path,
    volume_folder: Path,
    on_exit: Callable[[int, int], None],
) -> ContainerProcess:
    """Starts ``command``. ``on_exit`` gets its pid and its exit code (127: there is no such command)."""
    for mount in mounts:
        if not any(_inside(mount.target, other.target) for other in mounts):
            _make_mount_point(mount)
    log.parent.mkdir(parents=True, exist_ok=True)
    if any(_inside(str(ROOT), mount.target) for mount in mounts):
        mounts = [*mounts, Mount(CODE, str(ROOT))]
    # By the order of their depth, so that a mount inside another one is not hidden by it.
    ordered = sorted(mounts, key=lambda mount: mount.target.count("/"))
    triples = [
        text
        for mount in ordered
        for text in (_staged(mount.source, volume_folder), mount.target, "ro" if mount.read_only else "rw")
    ]
    namespace_file = pid_folder / f"starting-{uuid.uuid4().hex}"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [
                _program("unshare"), "--mount", "--uts", "--propagation", "private",
                "sh", "-c", _ENTER, "sh", hostname, str(len(ordered)), directory, str(namespace_file),
                str(volume_folder), str(STAGE), str(ROOT), str(CODE), *triples, *command,
            ],
            env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, cwd="/",
        )  # fmt: skip
    pid_file = pid_folder / str(process.pid)
    pid_file.symlink_to(namespace_file.name)
    return ContainerProcess(process, pid_file, on_exit)


def _staged(source: Path, volume_folder: Path) -> str:
    if source.is_relative_to(volume_folder):
        return str(STAGE / source.relative_to(volume_folder))
    return str(source)


async def run_inside(
    pid: int, command: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> tuple[int, str]:
    """Runs ``command`` in a container's namespaces: its exit code (124: took too long), its output."""
    process = await asyncio.create_subprocess_exec(
        _program("nsenter"), "--target", str(pid), "--mount", "--uts", "--", *command,
        env=dict(environment), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        return 124, f"not within {timeout_s:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode or 0, output.decode(errors="replace")


def _program(name: str) -> str:
    executable = shutil.which(name)
    if executable is None:
        raise FileNotFoundError(
            f"the process kubelet needs `{name}` (util-linux: apt-get install util-linux)"
        )
    return executable


def _inside(path: str, folder: str) -> bool:
    return path.rstrip("/").startswith(folder.rstrip("/") + "/")


def _make_mount_point(mount: Mount) -> None:
    target = Path(mount.target)
    if target.exists():
        return
    missing = [parent for parent in (target, *target.parents) if not parent.exists()]
    with MOUNT_POINTS.open("a") as listed:
        fcntl.flock(listed, fcntl.LOCK_EX)
        listed.writelines(f"{path}\n" for path in reversed(missing))
    target.parent.mkdir(parents=True, exist_ok=True)
    if mount.source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
