"""The machine is as before after a node, also when its process is killed with pods running.

Comes before test_node.py, whose node lives until the end: there is one at a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.controlplane.build import ROOT, kubectl
from tests.support.node import host
from tests.support.node.images import PAUSE
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_node_is_undone_with_a_pod_running(number: signal.Signals) -> None:
    before = host.observe()
    with tempfile.TemporaryDirectory(prefix="slackwater-node-", dir="/var/tmp") as name:
        kubeconfig = Path(name) / "plane" / "kubeconfig"
        node = subprocess.Popen(
            [sys.executable, "-m", "tests.support.node.node", name],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            assert node.stdout is not None
            wait_until(lambda: "KUBECONFIG" in node.stdout.readline(), "the node is ready")  # type: ignore[union-attr]
            run = [str(kubectl()), f"--kubeconfig={kubeconfig}"]
            subprocess.run([*run, "run", "waits", f"--image={PAUSE}"], check=True)
            ready = ["wait", "pod/waits", "--for=condition=Ready", "--timeout=120s"]
            subprocess.run([*run, *ready], check=True)
            assert host.observe() != before
            os.kill(node.pid, number)
            node.wait(120)
        finally:
            node.kill()
            node.wait()
        with host.exclusive():  # the next node starts when this one is undone
            assert host.observe() == before
