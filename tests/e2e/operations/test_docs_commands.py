"""The kubectl blocks of the documentation, pasted into a shell beside a running group `flights`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.controlplane import ControlPlane
from tests.support.controlplane.build import kubectl
from tests.support.docs.blocks import ROOT, blocks, why_not_run
from tests.support.docs.scripts import NOT_ON_THE_CONTROL_PLANE, ON_THE_CONTROL_PLANE
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(600)]
COMMAND_S = 150


@pytest.mark.long
def test_the_commands_of_the_guides_work(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str, tmp_path: Path
) -> None:
    with ClusterSite(control_plane, kafka, namespace) as site, site.operator():
        group = site.group("flights", partitions=4, replicas=2)
        before = group.await_settled(2)
        group.await_condition("RolledOut")
        shell = Shell(control_plane, namespace, tmp_path)
        for page, parts in ON_THE_CONTROL_PLANE.items():
            texts = [block.text for block in blocks("sh") if block.page == page and not why_not_run(block)]
            assert texts, page
            for part in parts:
                [text] = [text for text in texts if part in text]
                output = shell(text)
                if "kubectl slackwater restart" in text:
                    assert output.split()[0] == output.split()[-1] == str(before), output


def test_each_kubectl_block_is_run_there_or_says_why_not() -> None:
    for block in blocks("sh"):
        if "kubectl" not in block.text or why_not_run(block):
            continue
        parts = ON_THE_CONTROL_PLANE.get(block.page, ())
        elsewhere = [part for page, part, _ in NOT_ON_THE_CONTROL_PLANE if page == block.page]
        assert any(part in block.text for part in (*parts, *elsewhere)), (
            f"{block}: add it to one of the lists"
        )


class Shell:
    """Runs a block as a reader would paste it, with the group's namespace as the context's."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self._folder, self._namespace = folder, namespace
        config = folder / "kubeconfig"
        config.write_bytes(plane.kubeconfig.read_bytes())
        path = [Path(sys.executable).parent, kubectl().parent]
        self._environment = {
            **plane.environment(config),
            "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("worker", "operator")),
        }
        self(f"kubectl config set-context --current --namespace {namespace}")

    def __call__(self, text: str) -> str:
        """What the block prints. Each of its commands must succeed. `-w` is left out."""
        text = text.replace("-n flights", f"-n {self._namespace}").replace(" -w ", " ")
        ended = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout
