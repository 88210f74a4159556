"""Runs what a submission must pass, and says what it cost in CPU time; too much fails it.

It runs before anything is installed: Python's standard library alone. CPU time is that of every process,
also of servers that outlive the command that started them. It is scaled to a machine of normal speed by a
yardstick, which is read three times, so that the same change passes or fails on any machine. What `make
verify` needs is built beside the linting. Tests do not run beside other parts: that would cost a quarter more
CPU time, and would take as long.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support.waiting import NORMAL_TURN_NS, turn_ns  # noqa: E402

BUDGET_MIN = 20.0
TOLERATED = 1.25
"""Times the budget."""
LISTED = 30
_TURNS = 5_000_000
"""Of the yardstick."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): what loses its parent becomes a child of this process."""
_LEFT_S = 30.0
"""How long a server may take to end after the commands."""


@dataclass
class Part:
    """A command. ``cpu_s``: of it and all that it waited for. ``code``: None until it has ended."""

    name: str
    command: list[str]
    output: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    code: int | None = None


@dataclass
class Gate:
    """Runs parts one after another, or side by side. ``folder``: for their output."""

    folder: Path
    parts: list[Part] = field(default_factory=list)
    turns_ns: list[float] = field(default_factory=list)
    servers_s: float = 0.0

    def run(self, commands: dict[str, list[str]]) -> bool:
        """Runs these side by side; whether all ended with 0. The first prints as it goes, the others at their
        end."""
        started = time.monotonic()
        new = [Part(name, command) for name, command in commands.items()]
        for part in new:
            if part is not new[0]:
                part.output = self.folder / f"{part.name}.txt"
            with Path(part.output or os.devnull).open("wb") as output:
                to = None if part.output is None else output
                part.process = subprocess.Popen(part.command, cwd=ROOT, stdout=to, stderr=to)
        self.parts += new
        while any(part.code is None for part in new):
            self._reap(os.wait4(-1, 0), new, started)
        return not any(part.code for part in new)

    def read_yardstick(self) -> None:
        """Reads it on every core at once, as the tests use them: cores that share a cache slow each other."""
        cores = os.cpu_count() or 1
        with ProcessPoolExecutor(cores) as pool:
            self.turns_ns.append(statistics.median(pool.map(turn_ns, [_TURNS] * cores)))

    def _reap(self, ended: tuple[int, int, object], parts: Iterable[Part], started: float = 0.0) -> None:
        pid, status, usage = ended
        used = usage.ru_utime + usage.ru_stime  # type: ignore[attr-defined]
        part = next((part for part in parts if part.process is not None and part.process.pid == pid), None)
        if part is None:
            self.servers_s += used
            return
        part.cpu_s, part.wall_s = used, time.monotonic() - started
        part.code = part.process.returncode = os.waitstatus_to_exitcode(status)  # type: ignore[union-attr]
        if part.output is not None:
            print(f"--- {part.name}:\n{part.output.read_text(errors='replace')}", flush=True)
        print(f"--- {part.name} ended with {part.code} after {part.wall_s:.0f} s", flush=True)

    def await_servers(self) -> None:
        """Counts what still runs; what does not end by itself is killed."""
        deadline = time.monotonic() + _LEFT_S
        while True:
            try:
                ended = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if ended[0]:
                self._reap(ended, ())
            elif time.monotonic() < deadline:
                time.sleep(0.1)
            else:
                listed = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
                for pid in map(int, listed):
                    print(f"gate: killed process {pid}, which had not ended", flush=True)
                    os.kill(pid, signal.SIGKILL)

    def report(self) -> bool:
        """Prints the costs; whether they are within the budget."""
        scale = NORMAL_TURN_NS / statistics.median(self.turns_ns)
        print(f"\n{'part':10}{'CPU min':>9}{'wall min':>10}   code")
        for part in self.parts:
            print(f"{part.name:10}{part.cpu_s / 60:9.2f}{part.wall_s / 60:10.2f}   {part.code}")
        print(f"{'servers':10}{self.servers_s / 60:9.2f}")
        self._list_tests()
        used = (sum(part.cpu_s for part in self.parts) + self.servers_s) / 60
        turns = ", ".join(f"{turn:.0f}" for turn in self.turns_ns)
        print(
            f"\n{used:.1f} CPU minutes. A turn of a Python loop takes {turns} ns, so a normal machine takes "
            f"{used * scale:.1f}. The budget is {BUDGET_MIN:g}, {BUDGET_MIN * TOLERATED:g} fails.",
            flush=True,
        )
        if used * scale > BUDGET_MIN * TOLERATED:
            print("gate: the tests cost too much; see docs/design/testing.md, 'Cost'", flush=True)
            return False
        return True

    def _list_tests(self) -> None:
        rows = [
            json.loads(line) for log in self.folder.glob("*.jsonl") for line in log.read_text().splitlines()
        ]
        print(f"\nThe {LISTED} dearest of {len(rows)} tests, CPU seconds:")
        for name, used in sorted(rows, key=lambda row: -row[1])[:LISTED]:
            print(f"{used:8.1f}  {name}")


def main() -> int:
    """0 where every part passed within the budget."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="slackwater-gate-") as name:
        gate = Gate(Path(name))
        logs = {part: f"ARGS=--cpu-log={name}/{part}.jsonl" for part in ("test", "verify")}
        passed = gate.run({"set-up": ["make", ".venv/.dev"]})
        passed = passed and gate.run({"lint": ["make", "lint"], "parts": ["make", "verify-parts"]})
        if passed:
            for part, log in logs.items():
                gate.read_yardstick()
                passed = gate.run({part: ["make", part, log]}) and passed
            passed = gate.run({"sbom": ["make", "sbom"]}) and passed
        gate.await_servers()
        gate.read_yardstick()
        cheap = gate.report()
    return 0 if passed and cheap else 1


if __name__ == "__main__":
    sys.exit(main())
