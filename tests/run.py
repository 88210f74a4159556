"""Runs the tests of a command: ``python -m tests.run test|verify [--changed] [ARGUMENTS OF PYTEST]``.

``test``: what needs Python alone. ``verify``: what needs real parts (tests/support/parts.py). The tests run
in several processes, those that share a server in one (tests/conftest.py). With ``--changed``: the tests that
a change since ``main`` can reach by imports. Tests that arguments select run in one process, where they can
be debugged; a test named with ``::`` runs whatever it is marked.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.reach import Reach, changed_files

ROOT = Path(__file__).resolve().parents[1]
MARKED = {"test": "not verify and not long and not node", "verify": "verify and not long and not node"}
"""Command -> the expression of pytest that selects its tests."""
WITHOUT = {"test": "*/tests/node/*", "verify": "*/unit/*"}
"""Command -> folders in which it has no test, so that no process imports them."""
PROCESSES = (os.cpu_count() or 1) + 2
"""Tests wait for part of their time."""

MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 2 << 30
TEMPORARY = "PYTEST_DEBUG_TEMPROOT"
"""The environment variable that says where pytest makes the tests' folders."""


def has_room(folder: Path) -> bool:
    """Whether the tests' folders can be in ``folder``: a file system with room, from which programs run."""
    try:
        runs_programs = not os.statvfs(folder).f_flag & os.ST_NOEXEC
        free = shutil.disk_usage(folder).free
    except OSError:
        return False
    return runs_programs and free >= MEMORY_NEEDED and os.access(folder, os.W_OK)


def command(name: str, arguments: Sequence[str], *, changed: Sequence[str] | None = None) -> list[str]:
    """The pytest that runs the tests. ``changed``: the files and folders of tests that a change reaches."""
    selected = any(_selects(word) for word in arguments)
    marked = [] if any("::" in word for word in arguments) else ["-m", MARKED[name]]
    spread = [f"--numprocesses={PROCESSES}", "--dist=loadgroup", "--no-loadscope-reorder"]
    everything = [*spread, f"--ignore-glob={WITHOUT[name]}"]
    return [
        *(sys.executable, "-m", "pytest", *marked),
        *([] if selected else everything),
        *arguments,
        *(changed or ()),
    ]


def compile_once(words: Sequence[str]) -> None:
    """In a new clone, one process compiles the tests and what they import; else each of several would."""
    if not [*(ROOT / "tests" / "__pycache__").glob("conftest.*-pytest-*.pyc")]:
        subprocess.run([*words, "--collect-only", "-qq", "--numprocesses=0"], stdout=subprocess.DEVNULL)


def _selects(word: str) -> bool:
    path = word.partition("::")[0]
    named = not word.startswith("-") and (
        path == "tests" or path.startswith("tests/") or path.endswith(".py")
    )
    return named or word.startswith(("-k", "--lf", "--last-failed"))


def main(arguments: Sequence[str]) -> int:
    """Replaces this process by pytest. Returns 0 where a change reaches no test."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", choices=MARKED)
    parser.add_argument("--changed", action="store_true", help="only what a change since main can reach")
    options, rest = parser.parse_known_args(arguments)
    changed = None
    if options.changed:
        changed = [str(path) for path in Reach(ROOT).tests(changed_files(ROOT))]
        print(f"{len(changed)} files and folders of tests are reached by what changed since main", flush=True)
        if not changed:
            return 0
    os.chdir(ROOT)
    if has_room(MEMORY):  # Files and fsync cost less CPU time there.
        os.environ.setdefault(TEMPORARY, str(MEMORY))
    words = command(options.name, rest, changed=changed)
    if "--dist=loadgroup" in words:
        compile_once(words)
    os.execv(words[0], words)
    raise AssertionError("execv does not return")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
