"""The kubectl blocks of the documentation, pasted into a shell beside a running group `flights`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.controlplane import ControlPlane
from tests.support.docs.blocks import blocks, why_not_run
from tests.support.docs.scripts import NOT_ON_THE_CONTROL_PLANE, ON_THE_CONTROL_PLANE
from tests.support.docs.shell import Shell
from tests.support.kafka.certificates import Authority
from tests.support.site import ClusterSite


@pytest.mark.controlplane
@pytest.mark.long
def test_the_commands_of_the_guides_work(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    group = cluster.group("flights", partitions=4, replicas=2)
    before = group.await_settled(2)
    group.await_condition("RolledOut")
    shell = Shell(control_plane, namespace, tmp_path, {"-n flights": f"-n {namespace}"})
    (tmp_path / "ca.crt").write_text(Authority("prometheus-ca").pem)
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
