"""Runs every test but the longest, in lanes side by side, so that one works while another waits::

    python -m tests.lanes [--lane NAME] [ARGUMENTS OF PYTEST]

Arguments that select tests (a path below ``tests``, ``-k``, ``-m``, ``--lf``) start no lanes: one pytest runs
these tests at once. A test that is named with ``::`` runs even if it is marked ``long``.

The output of the last lane comes as it runs, that of the others when it has ended. The tests that failed are
listed at the end. No test is run twice: a test that passes only on the second try is a fault, of the test or
of what it tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED, NOTHING_SELECTED = 0, 1, 5
"""Exit codes of pytest; all others say that it did not get through."""
NOT_PREPARED = 70
"""What the tests of a lane need could not be made."""
INTERRUPTED = 130
SLOWEST = 15
"""How many of its slowest tests a lane lists at its end."""
_ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Step:
    """One process of a lane: a Python module with arguments. ``nice``: it goes behind the others, and has
    something like two fifths of what they have."""

    module: str
    arguments: tuple[str, ...] = ()
    nice: bool = False

    @property
    def is_pytest(self) -> bool:
        return self.module == "pytest"

    def command(self, more: Sequence[str] = ()) -> list[str]:
        return [
            *(["nice", "-n", "4"] if self.nice else []),
            sys.executable,
            "-m",
            self.module,
            *self.arguments,
            *more,
        ]


@dataclass(frozen=True)
class Lane:
    """Steps one after another. Tests that fail don't keep the next from being run."""

    name: str
    steps: tuple[Step, ...]


def _tests(marker: str, *arguments: str, nice: bool = False) -> Step:
    return Step(
        "pytest", ("-m", f"{marker} and not long and not node", f"--durations={SLOWEST}", *arguments), nice
    )


def lanes() -> list[Lane]:
    """The lanes of ``make test``. They take about the same time, so that no core is idle before the end."""
    programs = Step("tests.support.parts", ("kubectl", "controlplane", "prometheus"), nice=True)
    # With the scenarios go the others that share their control plane and Kafka, and the longest of the rest.
    sites = [f"tests/e2e/{folder}" for folder in ("rollouts", "faults", "operations", "chart")]
    commands = ["tests/integration/commands"]
    workers = [f"tests/integration/{folder}" for folder in ("worker", "takeover", "pipeline", "sinks")]
    computed = ("tests/unit", "tests/simulation", "tests/fuzz")
    elsewhere = (*computed, "tests/e2e", "tests/chaos", *commands, *workers)
    return [
        # On a Kubernetes control plane with an operator and workers.
        Lane("scenarios", (programs, _tests("controlplane", *sites))),
        # Workers with their pipelines and sinks; then what else is on a control plane.
        Lane(
            "workers",
            (
                _tests("not controlplane", *workers),
                programs,
                _tests("controlplane", "tests/e2e", *(f"--ignore={path}" for path in sites)),
            ),
        ),
        # The demo, local runs and preflights, as a user starts them.
        Lane("commands", (_tests("not controlplane", "tests/e2e", "tests/chaos", *commands),)),
        # What needs only a processor, behind the others.
        Lane("processor", (_tests("not controlplane", *computed, nice=True),)),
        # All others: the clients and the brokers.
        Lane("clients", (_tests("not controlplane", *(f"--ignore={path}" for path in elsewhere)),)),
    ]


@dataclass
class Run:
    """Runs lanes in the repository at ``root``; ``arguments`` go to each pytest. Prints to stdout."""

    root: Path
    arguments: Sequence[str] = ()
    _running: set[asyncio.subprocess.Process] = field(default_factory=set)
    _stopped: bool = False

    async def all(self, lanes: Sequence[Lane]) -> int:
        """The exit code: 0, 1 where tests failed, another of pytest's, or 130 after an INT or TERM."""
        with tempfile.TemporaryDirectory(prefix="slackwater-lanes-") as name, self._ended_by_signals():
            folder = Path(name)
            codes = await self._side_by_side(lanes, folder)
            bad = [code for code in codes if code not in (PASSED, NOTHING_SELECTED)]
            if failed := _failed(folder):
                print(f"--- failed: {len(failed)}", *failed, sep="\n  ", flush=True)
            if self._stopped:
                return INTERRUPTED
            return next((code for code in bad if code != FAILED), FAILED if bad else PASSED)

    async def _side_by_side(self, lanes: Sequence[Lane], folder: Path) -> list[int]:
        *others, last = lanes
        tasks = [asyncio.create_task(self._lane(lane, folder, hidden=True)) for lane in others]
        codes = await self._lane(last, folder)
        for lane, task in reversed(list(zip(others, tasks, strict=True))):
            codes += await task
            print(f"--- {lane.name}:\n{_output(folder, lane).read_text(errors='replace')}", flush=True)
        return codes

    async def _lane(self, lane: Lane, folder: Path, *, hidden: bool = False) -> list[int]:
        codes = []
        started = time.monotonic()
        with _output(folder, lane).open("wb") as output:
            for number, step in enumerate(lane.steps):
                cache = folder / f"{lane.name}-{number}"
                more = [*self.arguments, "-o", f"cache_dir={cache}"] if step.is_pytest else []
                code = await self._process(step.command(more), output if hidden else None)
                codes.append(code if step.is_pytest or not code else NOT_PREPARED)
                if self._stopped or codes[-1] == NOT_PREPARED:
                    break
        print(f"--- lane {lane.name} ended after {time.monotonic() - started:.0f} s", flush=True)
        return codes

    async def _process(self, command: Sequence[str], output: IO[bytes] | None) -> int:
        # A session of its own: a Ctrl-C reaches it by us, once.
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.root, stdout=output, stderr=output, start_new_session=True
        )
        self._running.add(process)
        if self._stopped:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        code = await process.wait()
        self._running.discard(process)
        return code

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._stop, loop)
        try:
            yield
        finally:
            for number in _ENDING:
                loop.remove_signal_handler(number)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pytest ends what its fixtures have begun upon a SIGINT. A second signal doesn't wait for that."""
        number = signal.SIGKILL if self._stopped else signal.SIGINT
        self._stopped = True
        for process in self._running:
            # A process that has just ended stays among those that run until its lane goes on.
            with suppress(ProcessLookupError):
                process.send_signal(number)


def _output(folder: Path, lane: Lane) -> Path:
    return folder / f"{lane.name}.txt"


def _failed(folder: Path) -> list[str]:
    """The ids of the tests that failed, from pytest's caches."""
    caches = folder.glob("*/v/cache/lastfailed")
    return sorted({name for path in caches for name in json.loads(path.read_text())})


def selects(arguments: Sequence[str]) -> bool:
    """Whether arguments of pytest select tests, by path or by an option."""
    return any(_is_path(word) or word.startswith(("-k", "-m", "--lf", "--last-failed")) for word in arguments)


def _is_path(word: str) -> bool:
    path = word.partition("::")[0]
    return not word.startswith("-") and (path.startswith("tests/") or path == "tests" or path.endswith(".py"))


def selected_command(arguments: Sequence[str]) -> list[str]:
    """The pytest command that runs only the tests which the arguments select."""
    by_id = any(_is_path(word) and "::" in word for word in arguments)
    return [sys.executable, "-m", "pytest", *(() if by_id else ("-m", "not long and not node")), *arguments]


def main(arguments: Sequence[str]) -> int:
    """Runs lanes, or replaces this process by one pytest when the arguments select tests.

    Returns the exit code of :meth:`Run.all`. Exits with 2 and a message for a lane that does not exist.
    """
    names = [lane.name for lane in lanes()]
    parser = argparse.ArgumentParser(prog="make test", description=__doc__, allow_abbrev=False)
    parser.add_argument("--lane", action="append", choices=names, help="run this lane only; may be repeated")
    options, rest = parser.parse_known_args(arguments)
    if options.lane is None and selects(rest):
        command = selected_command(rest)
        os.chdir(ROOT)
        os.execv(command[0], command)
    chosen = [lane for lane in lanes() if options.lane is None or lane.name in options.lane]
    return asyncio.run(Run(ROOT, rest).all(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
