"""The shell blocks of the pages that need no cluster run as a reader would paste them, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.docs.blocks import ROOT, blocks, why_not_run
from tests.support.docs.scripts import DOCUMENTED_PORTS, SCRIPTS, run, with_ports
from tests.support.processes import reserve_ports
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
    "docs/tutorials/first-table-of-changes.md": (
        "2 Ben Bonn 0.00",
        "4 Dan Trier 7.00\n5 Eve Jena 1.00\n30 Cleo Kiel 99.99\nsent 4",
        "sent 4 .*\n1 Ann Ulm 12.00\n4 Dan",
        "4 Dan Trier 7.00 True",
    ),
}
"""Page -> what the output of its commands must contain, as regular expressions."""


LONG = "docs/tutorials/first-table-of-changes.md"
"""As much computing as all others."""


def _with_its_programs(page: str) -> object:
    curl = "curl " in (ROOT / page).read_text(encoding="utf-8")
    marks = [pytest.mark.parts("curl")] if curl else []
    return pytest.param(page, marks=[*marks, pytest.mark.long] if page == LONG else marks)


@pytest.mark.parametrize("page", [_with_its_programs(page) for page in SCRIPTS])
def test_the_tutorial_runs(page: str, tmp_path: Path) -> None:
    ports = reserve_ports(len(DOCUMENTED_PORTS))
    lines = ["set -e -m -o pipefail"]
    for block in blocks("sh", "python", "yaml", "dockerfile"):
        if block.page != page:
            continue
        text = with_ports(block.text, ports)
        text = text.replace("replicas: 2", "replicas: 1")  # each costs as much as all commands of a page
        if block.title:
            (tmp_path / block.title).write_text(text, encoding="utf-8")
        elif block.language == "sh" and not why_not_run(block) and "kubectl" not in text:
            lines.append(text)
    shutil.copytree(ROOT / "examples" / "change-data", tmp_path / "change-data")
    script = tmp_path / "script.sh"
    script.write_text("\n".join(lines), encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("worker", "operator")),
    }
    environment.pop("SLACKWATER_BOOTSTRAP", None)
    code, output = run(script, environment, HANG_S)
    logs = [log.read_text(encoding="utf-8", errors="replace") for log in tmp_path.glob("*.log")]
    assert code == 0, "\n".join([output, *logs])
    for expected in CHECKS[page]:
        assert re.search(expected, output), output
    if page.endswith("devbroker.md") or page == LONG:  # whose rewind stops all workers
        return
    if page.endswith("first-consumer.md"):
        assert re.findall(r"^generation (\d+)", output, re.MULTILINE) == ["1", "1"]
    else:
        log = (tmp_path / "run.log").read_text(encoding="utf-8")
        assert set(re.findall(r"Stable \| generation (\d+)", log)) == {"1"}, log
