"""Every test but the longest, in lanes side by side, so that one works while another waits::

    python -m tests.lanes [ARGUMENTS OF PYTEST]

The output of the last lane comes as it runs, that of the others when it has ended. What failed is run once
more by itself when all have ended, and named as UNSTABLE if it passes then: these tests have dozens of real
processes on the machine, brokers, API servers and Spark, and one that loses a race there would hide whether
the change is right. (Apache Kafka's build does the same, by ``maxTestRetries``.) A fault fails again.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED, NOTHING_SELECTED = 0, 1, 5
"""Exit codes of pytest; all others say that it did not get through."""
NOT_PREPARED = 70
"""What the tests of a lane need could not be made."""
INTERRUPTED = 130
FILES_RUN_AGAIN = 8
"""Where tests of more files than that fail, something is broken, and it is not worth the time."""
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
    return Step("pytest", ("-m", f"{marker} and not long", *arguments), nice)


def _files(folder: str, *patterns: str) -> list[str]:
    found = [path for pattern in patterns for path in sorted((ROOT / folder).glob(pattern))]
    return [str(path.relative_to(ROOT)) for path in found]


def lanes() -> list[Lane]:
    """Those of ``make test``; the longest first."""
    programs = Step("tests.support.controlplane.build", nice=True)
    heavy = _files("tests/integration", "test_local_run_*.py", "test_pipeline_*.py", "test_worker_*.py")
    scenarios = _files("tests/e2e", "test_scenario_*.py")
    computed = ("tests/unit", "tests/simulation", "tests/fuzz")
    elsewhere = (*computed, "tests/e2e", "tests/chaos", *heavy)
    return [
        # On a Kubernetes control plane, the longest.
        Lane("scenarios", (programs, _tests("controlplane", *scenarios))),
        # The demo, local runs, workers and Spark.
        Lane("processes", (_tests("not controlplane", "tests/e2e", "tests/chaos", *heavy),)),
        # What needs only a processor, behind the others; then what else is on a control plane.
        Lane(
            "processor",
            (
                _tests("not controlplane", *computed, nice=True),
                programs,
                _tests("controlplane", "--ignore-glob=*/test_scenario_*", "tests/e2e"),
            ),
        ),
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
            failed = _failed(folder)
            code = next((code for code in bad if code != FAILED), FAILED if bad else PASSED)
            if code == FAILED and _few(failed) and not self._stopped:
                code = await self._again(failed, folder)
            return INTERRUPTED if self._stopped else code

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
        with _output(folder, lane).open("wb") as output:
            for number, step in enumerate(lane.steps):
                cache = folder / f"{lane.name}-{number}"
                more = [*self.arguments, "-o", f"cache_dir={cache}"] if step.is_pytest else []
                code = await self._process(step.command(more), output if hidden else None)
                codes.append(code if step.is_pytest or not code else NOT_PREPARED)
                if self._stopped or codes[-1] == NOT_PREPARED:
                    break
        return codes

    async def _again(self, failed: Sequence[str], folder: Path) -> int:
        print(f"--- again, by themselves, since they failed: {len(failed)}", flush=True)
        names = folder / "again.txt"
        names.write_text("\n".join(failed))
        code = await self._process(
            Step("pytest", (f"@{names}", "-o", f"cache_dir={folder / 'again'}")).command(), None
        )
        unstable = sorted(set(failed) - set(_failed(folder, "again"))) if code in (PASSED, FAILED) else []
        if unstable:
            # Not hidden: whoever reads the end of the output sees them.
            print(
                "UNSTABLE, failed among the others and passed by themselves; mend them:",
                *unstable,
                sep="\n  ",
            )
        return code

    async def _process(self, command: Sequence[str], output: IO[bytes] | None) -> int:
        # A session of its own: a Ctrl-C reaches it by us, once.
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.root, stdout=output, stderr=output, start_new_session=True
        )
        self._running.add(process)
        if self._stopped:
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
        for process in self._running:
            process.send_signal(signal.SIGKILL if self._stopped else signal.SIGINT)
        self._stopped = True


def _output(folder: Path, lane: Lane) -> Path:
    return folder / f"{lane.name}.txt"


def _failed(folder: Path, caches: str = "*") -> list[str]:
    """What pytest keeps in its cache of the tests that failed."""
    found = folder.glob(f"{caches}/v/cache/lastfailed")
    return sorted({name for path in found for name in json.loads(path.read_text())})


def _few(failed: Sequence[str]) -> bool:
    return 0 < len({name.partition("::")[0] for name in failed}) <= FILES_RUN_AGAIN


if __name__ == "__main__":
    sys.exit(asyncio.run(Run(ROOT, sys.argv[1:]).all(lanes())))
