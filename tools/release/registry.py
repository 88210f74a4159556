"""An OCI registry on this machine, to push to what a release pushes to a public one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.controlplane import build
from tests.support.processes import OwnedProcess, reserve_ports
from tests.support.waiting import wait_until

_START_S = 30.0


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """`HOST:PORT` of a registry (go-containerregistry's) that keeps its blobs and its log in `folder`."""
    (port,) = reserve_ports(1)
    address = f"{host}:{port}"
    with (folder / "registry.log").open("wb") as log:
        process = OwnedProcess(
            [str(build.crane()), "registry", "serve", "--address", address, "--disk", str(folder)], output=log
        )
        try:
            wait_until(lambda: _listens(host, port), "the registry", timeout_s=_START_S)
            yield address
        finally:
            process.kill()


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
