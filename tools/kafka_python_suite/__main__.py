"""Runs kafka-python's consumer tests against Slackwater's consumer.

    python -m tools.kafka_python_suite CHECKOUT [--bootstrap HOST:PORT | --no-broker] [-k EXPRESSION]

CHECKOUT is a checkout of kafka-python 3, which is no part of this repository. Integration tests run on a real
Kafka that is started for them, or at ``--bootstrap`` (whose group.min.session.timeout.ms must allow 3 s).
Tests that patch want pytest-mock on the path.

Ends with 1 if a test fails that is not in ``reasons.CANNOT_PASS`` or fails with something else than it says,
or passes though it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.kafka import KAFKA_VERSION, KafkaCluster
from tools.kafka_python_suite.plugin import REPORT
from tools.kafka_python_suite.reasons import CANNOT_PASS, OWN_CLASSES, RUN

Outcomes = dict[str, tuple[str, str]]
_ROOT = Path(__file__).parents[2]
_HOUSE = ("worker", "operator", ".")
_BROKER = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "150"}


def main(arguments: list[str] | None = None) -> int:
    """Runs, prints what passed and why the rest did not, and gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.kafka_python_suite", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--bootstrap", help="host:port of a broker for the integration tests")
    parser.add_argument("--no-broker", action="store_true", help="leave the integration tests out")
    parser.add_argument("--version", default=KAFKA_VERSION, help="the version of the broker at --bootstrap")
    parser.add_argument("-k", dest="only", default="", help="only tests of this expression")
    options = parser.parse_args(arguments)
    if not (options.checkout / RUN[0]).is_file():
        parser.error(f"{options.checkout} is no checkout of kafka-python 3: it has no {RUN[0]}")
    if options.no_broker or options.bootstrap:
        outcomes = run(options.checkout, options.bootstrap, options.version, options.only)
    else:
        with KafkaCluster(1, _BROKER) as cluster:
            outcomes = run(options.checkout, cluster.bootstrap, options.version, options.only)
    return report(options.checkout, outcomes)


def run(checkout: Path, bootstrap: str | None, version: str, only: str = "") -> Outcomes:
    """The outcome and the message of each test, by its node id."""
    files = RUN if bootstrap else RUN[:1]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(checkout), *(str(_ROOT / folder) for folder in _HOUSE), environment.get("PYTHONPATH", "")]
    )
    if bootstrap:
        environment |= {"KAFKA_URI": f"kafka://{bootstrap}", "KAFKA_VERSION": version}
    with tempfile.TemporaryDirectory() as folder:
        environment["KAFKA_ROOT"] = folder  # its fixture wants a folder, even for a broker that runs
        environment[REPORT] = str(Path(folder) / "outcomes.json")
        command = [
            sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "--show-capture=no",
            "-p", "no:cacheprovider", "-p", "tools.kafka_python_suite.plugin", "-W", "ignore",
            "-o", "addopts=", "--timeout=120", "--rootdir=.", *(["-k", only] if only else []), *files,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=checkout, env=environment, check=False)
        report_file = Path(environment[REPORT])
        if not report_file.exists():
            raise SystemExit(f"pytest did not run (exit code {done.returncode})")
        outcomes: Outcomes = json.loads(report_file.read_text())
        return outcomes


def report(checkout: Path, outcomes: Outcomes) -> int:
    """Prints the figures; 1 if something is not as it should be."""
    counts: Counter[str] = Counter()
    odd: list[str] = []
    for node, (outcome, message) in sorted(outcomes.items()):
        cannot = CANNOT_PASS.get(node.split("::")[-1].split("[")[0])
        if outcome == "skipped":
            counts["skipped by kafka-python itself"] += 1
        elif outcome == "passed" and cannot is None:
            counts["passed"] += 1
        elif outcome == "failed" and cannot is not None and cannot.fails_with in message:
            counts["cannot pass"] += 1
            print(f"cannot pass  {node}: {cannot.why}")
        else:
            counts["unexpected"] += 1
            odd.append(f"{outcome}: {node}")
    for file, reason in OWN_CLASSES.items():
        print(f"not run      {file} ({count_tests(checkout / file)} tests): {reason}")
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
    for line in odd:
        print(f"UNEXPECTED   {line}")
    return 1 if odd or not counts["passed"] else 0


def count_tests(file: Path) -> int:
    """The test functions of a file (parametrized ones count once)."""
    if not file.is_file():
        return 0
    return sum(line.lstrip().startswith("def test_") for line in file.read_text().splitlines())


if __name__ == "__main__":
    sys.exit(main())
