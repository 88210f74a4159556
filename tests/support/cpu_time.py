"""CPU time by test: of the process that runs it and of all that it started. A plugin of pytest.

``--cpu`` lists the dearest tests at the end; ``--cpu-log=FILE`` appends every test to a file, a JSON array
``[test, CPU seconds]`` a line. What a shared server uses counts as used by the test that runs meanwhile in
the process that started the server.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

LISTED = 30
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PROPERTY = "cpu_s"
_open, _scandir = open, os.scandir
"""Tests replace the functions by which files are read, and the costs are read while they do."""
_GROUP = re.compile(r"@[^\]]*$")
"""What pytest-xdist appends to the id of a test."""
_TOTALS = pytest.StashKey[dict[str, float]]()


def cpu_s() -> float:
    """CPU seconds of this process, of its children that have ended, and of its descendants that live."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used) + sum(_descendants_s(os.getpid()))


def _descendants_s(pid: int) -> Iterator[float]:
    for child in _children(pid):
        try:
            with _open(f"/proc/{child}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:  # It has just ended.
            continue
        # utime, stime, and those of its children that have ended: cutime, cstime (proc(5)).
        yield sum(map(int, fields[11:15])) / _TICKS_A_SECOND
        yield from _descendants_s(child)


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for thread in _scandir(f"/proc/{pid}/task"):
            with _open(f"{thread.path}/children") as children:
                pids += map(int, children.read().split())
    except OSError:
        pass
    return pids


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options."""
    group = parser.getgroup("CPU time")
    group.addoption("--cpu", action="store_true", help=f"list the {LISTED} tests with the most CPU time")
    group.addoption("--cpu-log", metavar="FILE", help="append each test's CPU time to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Starts the sums, in the process that reports."""
    config.stash[_TOTALS] = totals = defaultdict[str, float](float)
    if config.option.cpu or config.option.cpu_log:
        config.pluginmanager.register(_Meter(totals), "cpu-meter")


class _Meter:
    """Adds to the last report of each test what was used since that of the test before."""

    def __init__(self, totals: dict[str, float]) -> None:
        self._totals = totals
        self._before = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Begins after the collection."""
        self._before = cpu_s()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when != "teardown":
            return report
        now = cpu_s()
        report.user_properties = [*report.user_properties, (_PROPERTY, max(0.0, now - self._before))]
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sums up; where the tests are distributed, in the process that distributes them, too."""
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self._totals[_GROUP.sub("", report.nodeid)] += float(str(value))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists, and appends to the log."""
    config = terminalreporter.config
    totals = config.stash[_TOTALS]
    # Of pytest-xdist the process that distributes the tests has the sums.
    if hasattr(config, "workerinput"):
        return
    if config.option.cpu_log:
        with Path(config.option.cpu_log).open("a", encoding="utf-8") as log:
            log.writelines(json.dumps([name, round(used, 3)]) + "\n" for name, used in totals.items())
    if config.option.cpu:
        terminalreporter.section(f"CPU time: {sum(totals.values()):.0f} s in {len(totals)} tests")
        for name, used in sorted(totals.items(), key=lambda row: -row[1])[:LISTED]:
            terminalreporter.write_line(f"{used:8.2f} s  {name}")
