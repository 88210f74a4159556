"""Pages whose blocks of shell run in order, in an empty folder, beside a dev broker of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.processes import OwnedProcess

SCRIPTS = (
    "docs/reference/devbroker.md",
    "docs/tutorials/first-consumer.md",
    "docs/tutorials/first-pipeline.md",
    "docs/tutorials/first-table-of-changes.md",
)
"""They run in tests/project/integration/docs."""

DOCUMENTED_PORTS = ("9092", "9093")

ON_THE_CONTROL_PLANE = {
    "docs/how-to/operate/operate.md": ("kubectl get cg",),
    "docs/how-to/operate/scale-by-lag.md": ("explain flights",),
    "docs/how-to/operate/find-out-why.md": ("events --for",),
    "docs/how-to/operate/roll-by-steps.md": ("create secret generic prometheus-token",),
    "docs/reference/events.md": ("events --for",),
    "docs/tutorials/first-group.md": ("slackwater restart", "events --for"),
    "docs/how-to/install/uninstall.md": ("delete cg --all",),
}
"""Page -> a part of each block that tests/e2e/operations/test_docs_commands.py runs, in this order."""

NOT_ON_THE_CONTROL_PLANE = (
    ("README.md", "helm install", "tests/e2e/chart/test_chart_install.py installs the chart"),
    ("docs/how-to/install/install.md", "kubectl slackwater --help", "follows pip install"),
    ("docs/tutorials/first-group.md", "kubectl apply -f flights.yaml", "node/test_node_tutorial.py does"),
    ("docs/tutorials/first-group.md", "kubectl delete cg flights", "node/test_node_tutorial.py does"),
    ("docs/tutorials/first-pipeline.md", "kubectl apply -f group.yaml", "as in first-group.md"),
    (
        "docs/how-to/install/uninstall.md",
        "delete crd",
        "the definition is shared by all tests of the session",
    ),
    ("docs/how-to/install/uninstall.md", "--cascade=orphan", "operations/test_scenario_deletion.py does"),
    ("docs/how-to/install/uninstall.md", "custom-columns", "only prints; test_blocks.py checks its form"),
    ("docs/how-to/install/uninstall.md", "finalizers", "removes a finalizer by hand"),
    ("docs/how-to/operate/move-a-group.md", "kubectl", "operations/test_docs_moves.py runs them"),
    ("docs/how-to/operate/rotate-credentials.md", "kubectl", "operations/test_docs_moves.py runs it"),
)
"""(page, part of a block with kubectl, why it does not run there)."""


def with_ports(text: str, ports: Sequence[int]) -> str:
    """A block of shell with these ports in place of those that the pages name."""
    for documented, port in zip(DOCUMENTED_PORTS, ports, strict=True):
        text = text.replace(documented, str(port))
    return text


def run(script: Path, environment: Mapping[str, str], limit_s: float) -> tuple[int, str]:
    """Runs a script of shell in its own folder; what it has left running ends with it.

    Returns:
        Its exit code (-1: it did not end in time), and all that it printed.
    """
    with (script.parent / "output.txt").open("w+b") as file:
        process = OwnedProcess(["bash", str(script)], env=environment, output=file, cwd=script.parent)
        try:
            code = process.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            _end_session(process.pid)
            process.kill()
    return code, (script.parent / "output.txt").read_text(encoding="utf-8", errors="replace")


def _end_session(leader: int) -> None:
    """Kills what the script has started and not ended: a background job has a process group of its own."""
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
