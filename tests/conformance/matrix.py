"""Which row runs on which broker: ``python -m tests.conformance.matrix [pytest arguments]``.

Runs everything below `tests/conformance`, the long rows too, and prints a table in Markdown: the rows of
one test are put together where they have the same outcome everywhere. `yes`: the broker answers as the
row says. `differs`: otherwise, as `differences.py` says. `-`: the broker lacks the call's version, and
refuses it. `FAILED`: not as declared. Ends with 1 if anything failed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.conformance.brokers import FIXTURES
from tests.conformance.conftest import OUTCOME, ROW
from tests.conformance.differences import DIFFERENCES

SHOWN = {"runs": "yes", "differs": "differs", "absent": "-", "failed": "FAILED"}


class Collector:
    """A pytest plugin: (file, row) -> broker -> outcome."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        row = properties.get(ROW)
        if row is None or (report.when != "call" and not report.failed):
            return
        name, _, broker = str(row).rpartition("@")
        outcome = "failed" if report.failed else str(properties[OUTCOME])
        by_broker = self.outcomes[Path(report.fspath).stem, name]
        if by_broker.get(broker) != "failed":
            by_broker[broker] = outcome


def table(outcomes: Mapping[tuple[str, str], Mapping[str, str]]) -> Iterable[str]:
    """The matrix as lines of Markdown."""
    yield f"| row | {' | '.join(FIXTURES)} |"
    yield f"|---|{'---|' * len(FIXTURES)}"
    for (file, test, cells), variants in _together(outcomes).items():
        names = f" ({', '.join(variants)})" if variants != [""] else ""
        what = file.removeprefix("test_conformance_")
        yield f"| {what}: {test.removeprefix('test_').replace('_', ' ')}{names} | {' | '.join(cells)} |"
    yield ""
    for broker in FIXTURES:
        here = [by_broker.get(broker) for by_broker in outcomes.values()]
        counts = ", ".join(f"{here.count(kind)} {shown}" for kind, shown in SHOWN.items() if kind in here)
        yield f"- {broker}: {counts or 'not run'}"
    yield ""
    for (broker, row), differs in DIFFERENCES.items():
        yield f"- {broker}, {row}: {differs.reason}"


def _together(
    outcomes: Mapping[tuple[str, str], Mapping[str, str]],
) -> dict[tuple[str, str, tuple[str, ...]], list[str]]:
    kinds: dict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (file, row), by_broker in outcomes.items():
        test, _, variant = row.partition("[")
        cells = tuple(SHOWN[by_broker[name]] if name in by_broker else "" for name in FIXTURES)
        kinds[file, test, cells].append(variant.rstrip("]"))
    return kinds


def main() -> int:
    """Runs the suite and prints the matrix; returns the exit code."""
    collector = Collector()
    folder = str(Path(__file__).parent)
    code = pytest.main(["-q", "-m", "", "--tb=short", folder, *sys.argv[1:]], plugins=[collector])
    print("\n".join(table(collector.outcomes)))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
