"""The gate counts the CPU time of all that its commands start, and fails above its budget."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[4]
BURN = "import time\nwhile time.process_time() < 0.3: pass"
SERVER = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}], start_new_session=True)"


@pytest.mark.parametrize(
    ("command", "budget_min", "passes"),
    [
        ([sys.executable, "-c", BURN], 1.0, True),
        ([sys.executable, "-c", BURN], 0.001, False),
        ([sys.executable, "-c", SERVER], 0.001, False),
        (["false"], 1.0, False),
    ],
    ids=["within", "above", "above by a server that outlives its command", "a command that fails"],
)
def test_a_run_passes_by_its_commands_and_its_cost(
    tmp_path: Path, command: list[str], budget_min: float, passes: bool
) -> None:
    # In a process of its own, since the gate waits for every child of its process.
    script = f"""
import ctypes, importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("gate", {str(ROOT / ".ci" / "gate.py")!r})
gate = sys.modules["gate"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gate)
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
gate.BUDGET_MIN = {budget_min}
run = gate.Gate(pathlib.Path({str(tmp_path)!r}), turns_ns=[gate.NORMAL_TURN_NS])
passed = run.run({{"first": {command!r}, "second": [sys.executable, "-c", "print('from the second')"]}})
run.await_servers()
sys.exit(0 if run.report() and passed else 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == (0 if passes else 1), done.stdout + done.stderr
    assert "from the second" in done.stdout
