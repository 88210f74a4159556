"""``python -m tests.mutants [NAME ...] [--list] [--everywhere] [--jobs N]``: which faults tests notice.

A NAME is that of a fault or of an area. For each fault a line ``caught`` or ``SURVIVED`` is printed. The exit
code is 0 if all are caught, 1 if one survives, 2 if nothing can be said.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.fault import Fault, FaultError
from tests.mutants.faults import AREAS, FAULTS

ROOT = Path(__file__).resolve().parents[2]
EVERYWHERE = tuple(f"tests/{part}/unit" for part in ("client", "worker", "pipeline", "operator"))
"""The folders of all unit tests of the product."""
MOST_JOBS = 2
TEST_LIMIT_S = 300
"""A test that takes longer has failed: a fault can make a loop endless."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest; the others say that the tests could not be run."""


def copy_to(folder: Path) -> None:
    """Copies what git tracks or would add, and the compiled parser."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    parser = ROOT.glob("worker/slackwater/kafka/records/_parser*.so")
    for name in {*filter(None, listed.split("\0")), *(str(path.relative_to(ROOT)) for path in parser)}:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    if (ROOT / ".cache").is_dir():  # programs that some tests need; they have nothing of the product
        (folder / ".cache").symlink_to(ROOT / ".cache")


def run_tests(root: Path, tests: Iterable[str], *options: str) -> tuple[int, str]:
    """Runs pytest in the repository at ``root``. Returns its exit code and what it prints."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long and not node",
        f"--timeout={TEST_LIMIT_S}", *options, *tests,
    ]  # fmt: skip
    paths = os.pathsep.join(str(root / part) for part in ("worker", "operator"))
    done = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def judge(root: Path, fault: Fault, tests: Sequence[str]) -> tuple[bool | None, str]:
    """Whether the tests notice the fault, and the line to print; None: the row of the table is wrong."""
    began = time.monotonic()
    try:
        with fault.made_in(root):
            code, output = run_tests(root, tests, "-x")
    except (FaultError, OSError) as exc:
        return None, f"ERROR     {exc}"
    took = f"({time.monotonic() - began:.1f} s)"
    if code == PASSED:
        return False, f"SURVIVED  {fault.name}  {took}"
    if code != FAILED or "ERROR collecting" in output:
        return (
            None,
            f"ERROR     {fault.name}: the tests could not be run (exit code {code})\n{output[-2000:]}",
        )
    return True, f"caught    {fault.name}  {took}"


def run(faults: Sequence[Fault], jobs: int, everywhere: bool) -> int:
    """Runs the tests without a fault, then with each. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="slackwater-mutants-") as folder:
        copies = [Path(folder, str(number)) for number in range(min(jobs, len(faults)))]
        copy_to(copies[0])
        named = dict.fromkeys(test for fault in faults for test in fault.caught_by)
        code, output = run_tests(copies[0], EVERYWHERE if everywhere else named)
        if code != PASSED:
            print(f"the tests fail without a fault, so nothing can be said:\n{output[-4000:]}")
            return 2
        for other in copies[1:]:
            shutil.copytree(copies[0], other, symlinks=True)
        free: SimpleQueue[Path] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def judged(fault: Fault) -> bool | None:
            root = free.get()
            caught, line = judge(root, fault, EVERYWHERE if everywhere else fault.caught_by)
            print(line, flush=True)
            free.put(root)
            return caught

        with ThreadPoolExecutor(len(copies)) as pool:
            results = list(pool.map(judged, faults))
    print(f"{results.count(True)} of {len(faults)} faults caught")
    return 2 if None in results else int(False in results)


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults or areas; without any, all faults")
    parser.add_argument("--list", action="store_true", help="print the faults, and run nothing")
    parser.add_argument("--everywhere", action="store_true", help="run all unit tests for each fault")
    parser.add_argument("--jobs", type=int, choices=range(1, MOST_JOBS + 1), default=MOST_JOBS)
    asked = parser.parse_args()
    areas = [name for name in asked.names if name in AREAS]
    if unknown := set(asked.names) - set(AREAS) - {fault.name for fault in FAULTS}:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}")
    chosen = {fault for area in areas for fault in AREAS[area]}
    faults = [fault for fault in FAULTS if not asked.names or fault in chosen or fault.name in asked.names]
    if asked.list:
        for area, of_area in AREAS.items():
            for fault in of_area:
                if fault in faults:
                    print(f"{area:<10} {fault.name:<50} {fault.file}")
        return 0
    return run(faults, asked.jobs, asked.everywhere)


if __name__ == "__main__":
    sys.exit(main())
