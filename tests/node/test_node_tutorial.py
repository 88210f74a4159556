"""docs/tutorials/first-group.md, pasted block by block from its first command to its last, on the node.

The images of the product are in the registry and not on the node, as on a fresh one. Before it come the
topics, the claim and the operator that the page asks for. `docker` is buildah here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node.conftest import Report
from tests.support.controlplane import until
from tests.support.controlplane.build import ROOT, kubectl
from tests.support.docs.blocks import Block, blocks
from tests.support.node import images
from tests.support.node.images import REGISTRY
from tests.support.node.site import NodeSite, flight
from tests.support.site import Group

pytestmark = [pytest.mark.node, pytest.mark.timeout(1500)]

PAGE = "docs/tutorials/first-group.md"
BLOCK_S = 900
RECORDS = 500


class Reader:
    """Pastes blocks into a shell in a copy of what the page uses of the repository."""

    def __init__(self, site: NodeSite, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "examples", folder / "examples")
        programs = folder / "bin"
        programs.mkdir()
        site.node.registry.docker(programs)
        config = folder / "kubeconfig"
        config.write_bytes(site.plane.kubeconfig.read_bytes())
        path = [programs, Path(sys.executable).parent, kubectl().parent]
        self._environment = {
            **site.plane.environment(config),
            "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("worker", "operator")),
        }
        self.paste(f"kubectl config set-context --current --namespace {site.namespace}")

    def take(self, block: Block) -> str:
        """Writes the block's file, or runs its commands; what they print."""
        if block.title:
            (self.folder / block.title).write_text(block.text)
            return ""
        return self.paste(block.text)

    def paste(self, text: str) -> str:
        """What the commands print. Each must succeed."""
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=self.folder, env=self._environment,
            capture_output=True, text=True, timeout=BLOCK_S,
        )  # fmt: skip
        print(f"$ {text}{done.stdout}{done.stderr}", flush=True)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def test_the_first_group_as_pasted(site: NodeSite, report: Report, tmp_path: Path) -> None:
    home = NodeSite(site.node, site.secured, "tutorial", site.operator_namespace, site.folder / "tutorial")
    home.prepare()
    home.fresh_topic("flights", 6)
    home.fresh_topic("flights.dlq", 1)
    spark = images.product()["worker-spark"]
    home.node.registry.push(spark, spark.name.replace("docker.io", REGISTRY))
    home.node.containerd.remove(spark.name, images.spark_users().name)
    group = Group(home, "flights", 6, home.folder / "flights")
    reader = Reader(home, tmp_path)
    pages = [block for block in blocks("dockerfile", "sh", "yaml") if block.page == PAGE]
    assert [block.title for block in pages if block.title] == ["flights.Containerfile", "flights.yaml"]
    ready_s = first_s = 0.0
    for block in pages:
        started = time.monotonic()
        said = reader.take(block)
        if "kubectl apply" in block.text:
            ready_s = time.monotonic() - started
            with group.load(rate=200, value=flight) as load:
                until(lambda: group.handled_count() > 0, "the first record in its file", 120)
                first_s = time.monotonic() - started
                until(lambda: load.sent >= RECORDS, "the records")
                produced = load.stop()
            group.await_handled(produced)
            assert group.verify(produced).exact
        if "slackwater restart" in block.text:
            assert said.split()[0] == said.split()[-1], f"another generation: {said}"
    until(lambda: not group.pods(), "the last block deletes the group")
    report.add(
        "[the tutorial](../tutorials/first-group.md) pasted block by block, the Spark image pulled",
        f"installed in {site.install_s:.1f} s; Ready {ready_s:.0f} s after `kubectl apply`, the first record "
        f"in its file {first_s:.0f} s after it; a restart of 2 workers in the same generation",
    )
