"""The registry ``registry.example``: what is pushed there, the node pulls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.controlplane.build import ROOT
from tests.support.node import images
from tests.support.node.host import ADDRESS, RUN
from tests.support.node.images import REGISTRY, Build
from tools.release.registry import serving

HOSTS = RUN / "certs.d"
"""containerd looks here for a registry's address at each pull."""
_HOST = """\
server = "{url}"
[host."{url}"]
  capabilities = ["pull", "resolve"]
"""
_DOCKER = """\
#!/bin/sh
PYTHONPATH={root} exec {python} -c 'import sys
from tests.support.node.images import docker
docker(sys.argv[1], sys.argv[2:])' {address} "$@"
"""


class Registry:
    """The registry that listens on ``address`` as long as :func:`registry` is entered."""

    def __init__(self, address: str) -> None:
        self.address = address

    def push(self, build: Build, name: str = "") -> str:
        """Pushes an image, under its own name or another one of this registry. Returns the name."""
        name = name or build.name
        images.push(build, f"{self.address}/{name.removeprefix(f'{REGISTRY}/')}")
        return name

    def docker(self, folder: Path) -> None:
        """Writes the program ``docker`` into ``folder``: build and push, by the tests' buildah."""
        program = folder / "docker"
        program.write_text(_DOCKER.format(root=ROOT, python=sys.executable, address=self.address))
        program.chmod(0o755)


@contextmanager
def registry(directory: Path) -> Iterator[Registry]:
    """A registry that keeps its blobs in ``directory``. The node's containerd pulls from it."""
    directory.mkdir()
    with serving(directory, ADDRESS) as address:
        place = HOSTS / REGISTRY
        place.mkdir(parents=True)
        host = (
            f'server = "http://{address}"\n[host."http://{address}"]\n  capabilities = ["pull", "resolve"]\n'
        )
        (place / "hosts.toml").write_text(host)
        yield Registry(address)
