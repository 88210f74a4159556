"""An OCI registry on this machine, to push to what a release pushes to a public one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.controlplane import build
from tests.support.processes import ServerProcess, listens, reserve_ports

_START_S = 30.0


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """`HOST:PORT` of a registry (go-containerregistry's) that keeps its blobs and its log in `folder`."""
    (port,) = reserve_ports(1)
    address = f"{host}:{port}"
    process = ServerProcess(
        "the registry",
        [str(build.crane()), "registry", "serve", "--address", address, "--disk", str(folder)],
        log=folder / "registry.log",
    )
    process.await_ready(lambda: listens(port, host), _START_S)
    try:
        yield address
    finally:
        process.kill()
