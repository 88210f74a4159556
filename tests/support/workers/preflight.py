"""`slackwater worker --preflight` as the process that a Job runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import WAIT_S


@dataclass
class Preflight:
    """A preflight that has ended."""

    code: int
    events: list[dict[str, Any]]
    stderr: str
    termination_message: str

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        """The event of each check by the check's name."""
        return {event["name"]: event for event in self.events if event["event"] == "check"}

    @property
    def failed(self) -> set[str]:
        """The names of the checks that failed."""
        return {name for name, event in self.checks.items() if not event["ok"]}


def run_preflight(folder: Path, config: Mapping[str, Any]) -> Preflight:
    """Runs a preflight of the configuration; ``folder`` is for its files."""
    file, termination_log = folder / "worker.json", folder / "termination-log"
    file.write_text(json.dumps(config))
    termination_log.unlink(missing_ok=True)
    ended = subprocess.run(
        [sys.executable, "-m", "slackwater.cli", "worker", "--config", str(file), "--preflight"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "SLACKWATER_TERMINATION_LOG": str(termination_log)},
    )
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    message = termination_log.read_text() if termination_log.exists() else ""
    return Preflight(ended.returncode, events, ended.stderr, message)
