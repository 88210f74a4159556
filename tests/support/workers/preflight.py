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
from unittest import mock

from slackwater.commands.worker import try_out
from tests.support.waiting import WAIT_S
from tests.support.workers.commands import run
from tests.support.workers.process import leaner


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
    """Runs a preflight of the configuration in a process of its own; ``folder`` is for its files."""
    file, termination_log = _written(folder, config)
    ended = subprocess.run(
        [sys.executable, "-m", "slackwater.cli", "worker", "--config", str(file), "--preflight"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, **leaner({"SLACKWATER_TERMINATION_LOG": str(termination_log)})},
    )
    return _read(ended, termination_log)


def preflight_here(folder: Path, config: Mapping[str, Any]) -> Preflight:
    """As :func:`run_preflight`, in this process."""
    file, termination_log = _written(folder, config)
    with mock.patch.dict(os.environ, {"SLACKWATER_TERMINATION_LOG": str(termination_log)}):
        return _read(run(folder, lambda: try_out(file)), termination_log)


def _written(folder: Path, config: Mapping[str, Any]) -> tuple[Path, Path]:
    file, termination_log = folder / "worker.json", folder / "termination-log"
    file.write_text(json.dumps(config))
    termination_log.unlink(missing_ok=True)
    return file, termination_log


def _read(ended: subprocess.CompletedProcess[str], termination_log: Path) -> Preflight:
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    message = termination_log.read_text() if termination_log.exists() else ""
    return Preflight(ended.returncode, events, ended.stderr, message)
