"""The shell blocks of the pages that need no cluster run as a reader would paste them, in an empty folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.docs.blocks import ROOT, blocks, why_not_run
from tests.support.docs.scripts import SCRIPTS
from tests.support.processes import OwnedProcess, reserve_ports
from tests.support.waiting import HANG_S

CHECKS = {
    "docs/reference/devbroker.md": ("sent 2 records to flights", "UA  2", '"topics"'),
    "docs/tutorials/first-consumer.md": ("generation 1", "readers-0", "b'B6' b'5'"),
    "docs/tutorials/first-pipeline.md": (
        "1000 rows",
        "1 passed",
        r"orders\.dlq: 1, replayed: 0",
        "1000 None",
        "1001 EUR",
    ),
}
"""Page -> what the output of its commands must contain, as regular expressions."""


def _with_its_programs(page: str) -> object:
    curl = "curl " in (ROOT / page).read_text(encoding="utf-8")
    return pytest.param(page, marks=pytest.mark.parts("curl") if curl else ())


@pytest.mark.parametrize("page", [_with_its_programs(page) for page in SCRIPTS])
def test_the_tutorial_runs(page: str, tmp_path: Path) -> None:
    port, control_port = map(str, reserve_ports(2))
    lines = ["set -e -m -o pipefail"]
    for block in blocks("sh", "python", "yaml", "dockerfile"):
        if block.page != page:
            continue
        text = block.text.replace("9092", port).replace("9093", control_port)
        text = text.replace("replicas: 2", "replicas: 1")  # each costs as much as all commands of a page
        if block.title:
            (tmp_path / block.title).write_text(text, encoding="utf-8")
        elif block.language == "sh" and not why_not_run(block) and "kubectl" not in text:
            lines.append(text)
    script = tmp_path / "script.sh"
    script.write_text("\n".join(lines), encoding="utf-8")
    output = run(script)
    for expected in CHECKS[page]:
        assert re.search(expected, output), output
    if page.endswith("devbroker.md"):
        return
    if page.endswith("first-consumer.md"):
        assert re.findall(r"^generation (\d+)", output, re.MULTILINE) == ["1", "1"]
    else:
        log = (tmp_path / "run.log").read_text(encoding="utf-8")
        assert set(re.findall(r"Stable \| generation (\d+)", log)) == {"1"}, log


def end_session(leader: int) -> None:
    """Kills what the script has started and not ended: a background job has a process group of its own."""
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def run(script: Path) -> str:
    """The output of the script. It must end well; whatever it has left running ends with it."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("worker", "operator")),
    }
    environment.pop("SLACKWATER_BOOTSTRAP", None)
    with (script.parent / "output.txt").open("w+b") as file:
        process = OwnedProcess(["bash", str(script)], env=environment, output=file, cwd=script.parent)
        try:
            code = process.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            end_session(process.pid)
            process.kill()
    output = (script.parent / "output.txt").read_text(encoding="utf-8", errors="replace")
    logs = [log.read_text(encoding="utf-8", errors="replace") for log in script.parent.glob("*.log")]
    assert code == 0, "\n".join([output, *logs])
    return output
