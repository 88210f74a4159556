"""The programs of a node that Debian packages: containerd, runc, CNI plugins, buildah, mmdebstrap, nft."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = {
    "buildah": "buildah",
    "containerd": "containerd",
    "conntrack": "conntrack",  # kube-proxy ends connections to pods that are gone
    "ctr": "containerd",
    "gcc": "gcc",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nft": "nftables",
    "runc": "runc",
    "socat": "socat",
}
"""Program -> the package that has it."""
CNI_PLUGINS = Path("/usr/lib/cni")
_CNI_PACKAGE = "containernetworking-plugins"


class NodeUnavailable(RuntimeError):
    """A node cannot run on this machine; the message says what is missing and what to do."""


def installed() -> None:
    """Installs what is missing, if this process may. Raises :class:`NodeUnavailable`."""
    if os.geteuid() != 0:
        raise NodeUnavailable("a node makes mounts, networks and cgroups: run `make node` as root")
    missing = _missing()
    if missing and shutil.which("apt-get"):
        _apt("update", "--quiet")
        _apt("install", "--yes", "--no-install-recommends", *missing)
        missing = _missing()
    if missing:
        raise NodeUnavailable(
            f"not on this machine: {', '.join(missing)} (names of Debian's packages). Install them."
        )


def _missing() -> list[str]:
    packages = {package for program, package in PACKAGES.items() if shutil.which(program) is None}
    if not (CNI_PLUGINS / "bridge").exists():
        packages.add(_CNI_PACKAGE)
    return sorted(packages)


def _apt(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise NodeUnavailable(f"apt-get {arguments[0]} failed:\n{done.stderr[-2000:]}")
