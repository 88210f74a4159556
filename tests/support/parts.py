"""What the tests need and the repository does not contain: programs and jars, made once into ``.cache/``.

``python -m tests.support.parts [NAME ...]`` makes what `make verify` needs, or the parts named, and tells how
long each took. ``tests/conftest.py`` makes the parts of the selected tests before the first test starts, so
that no test's time limit includes a build. A test that needs a part is one of `make verify`, but for those in
:data:`OF_PYTHON`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from slackwater.kafka.records import COMPILED
from tests.support import apicurio, postgres
from tests.support.chromium import grafana
from tests.support.controlplane import build
from tests.support.debezium import connect
from tests.support.docs import site
from tests.support.iceberg import rest
from tests.support.java import programs
from tests.support.kafka.brokers import BROKERS
from tests.support.kafka.jars import KafkaUnavailable, kafka_libs
from tests.support.node import debian, images
from tests.support.spark import SparkUnavailable, delta_jars, kafka_source_jars, use_archive
from tests.support.stores import azure, hdfs, s3

if TYPE_CHECKING:
    import pytest


class PartsUnavailable(RuntimeError):
    """A part cannot be made on this machine; the message says what is missing and what to do."""


_ON_MACHINE = {
    "parser": (
        COMPILED,
        "the record parser is pure Python, for want of a C compiler. Install one, then: "
        "rm .venv/.run && make setup",
    ),
    "git": (shutil.which("git"), "no `git` on the PATH. Install git"),
    "curl": (shutil.which("curl"), "no `curl` on the PATH. Install curl"),
}
MISSING = {name: what_to_do for name, (is_there, what_to_do) in _ON_MACHINE.items() if not is_there}
"""What this machine lacks, of what is not made here -> what to do. `make test` skips the tests that need it;
`make verify-parts` refuses such a machine."""


def _on_machine(name: str) -> None:
    if name in MISSING:
        raise PartsUnavailable(MISSING[name])


def _node() -> None:
    debian.installed()
    build.node_binaries()
    for image in images.all_images():
        images.made(image)


PARTS: Mapping[str, Callable[[], object]] = {
    **{name: partial(_on_machine, name) for name in _ON_MACHINE},
    "kafka": kafka_libs,
    "kafka-4.3": partial(kafka_libs, "4.3.0"),
    "kafka-3.9": partial(kafka_libs, "3.9.1"),
    "kafka-2.8": partial(kafka_libs, "2.8.2"),
    "java": programs.compiled,
    "spark": use_archive,
    "spark-kafka": kafka_source_jars,
    "spark-delta": delta_jars,
    "s3": s3.installed,
    "azure": azure.installed,
    "google": build.fake_gcs_server,
    "hdfs": hdfs.classpath,
    "registry": apicurio.installed,
    "iceberg": rest.classpath,
    "debezium": connect.jars,
    "postgres": postgres.programs,
    "kubectl": build.kubectl,
    "controlplane": build.binaries,
    "prometheus": lambda: (build.prometheus(), build.promtool()),
    "prometheus-discovery": lambda: (build.prometheus(discovers=True), build.promtool(discovers=True)),
    "nss-wrapper": build.nss_wrapper,
    "release": lambda: (build.actionlint(), build.crane(), build.krew()),
    "kstatus": build.kstatus,
    "keda": build.keda,
    "grafana": grafana.renderer,
    "docs": site.tools,
    "node": _node,
}
"""Name -> what makes it. Each returns at once when the part exists; safe from many processes at once."""
UNAVAILABLE = (
    build.ToolsUnavailable,
    KafkaUnavailable,
    SparkUnavailable,
    postgres.PostgresUnavailable,
    apicurio.ApicurioUnavailable,
    s3.MotoUnavailable,
    azure.AzuriteUnavailable,
    grafana.GrafanaUnavailable,
    site.SiteUnavailable,
    debian.NodeUnavailable,
)
OF_PYTHON = {"spark", *_ON_MACHINE}
"""Parts of `make test`: made from what `.venv` contains, or what most machines have."""
LONG = {
    "azure",
    "debezium",
    "docs",
    "google",
    "grafana",
    "hdfs",
    "iceberg",
    "kafka-3.9",
    "kafka-4.3",
    "keda",
    "kstatus",
    "node",
    "nss-wrapper",
    "prometheus-discovery",
    "registry",
    "spark",
    "spark-delta",
    "spark-kafka",
    "release",
}
"""Parts that only tests marked ``long`` or ``node`` need. ``spark`` saves time wherever Spark starts; a run
without such tests would take longer to make it."""
OF_MARKERS = {
    "controlplane": ("kubectl", "controlplane"),
    "node": ("kafka", "kubectl", "controlplane", "node"),
}
"""Marker -> the parts that its tests need."""
OF_FIXTURES = {
    "kafka": ("kafka",),
    "kafka3": ("kafka",),
    "kafka43": ("kafka-4.3",),
    "kafka39": ("kafka-3.9",),
    "kafka28": ("kafka-2.8",),
    "postgres": ("postgres",),
}
"""Fixture -> the parts that tests with it need."""
OF_BROKERS = {name: OF_FIXTURES.get(fixture, ()) for name, fixture in BROKERS.items()}
"""Name of a broker in a test's id -> the parts that tests with it need."""


def make(names: Iterable[str], report: Callable[[str], None]) -> None:
    """Makes the parts that are named, in the order of :data:`PARTS`.

    ``report`` gets a line for each part that took a second or more. Raises :class:`PartsUnavailable`.
    """
    wanted = set(names)
    for name in (name for name in PARTS if name in wanted):
        started = time.monotonic()
        try:
            PARTS[name]()
        except UNAVAILABLE as exc:
            raise PartsUnavailable(str(exc)) from exc
        if (seconds := time.monotonic() - started) >= 1:
            report(f"parts: {name} made in {seconds:.0f} s")


def needed_by(item: pytest.Item) -> set[str]:
    """The parts that a test needs: those of its markers and fixtures, and of ``@pytest.mark.parts``."""
    names: set[str] = set()
    for marker, parts in OF_MARKERS.items():
        if item.get_closest_marker(marker):
            names.update(parts)
    for fixture in getattr(item, "fixturenames", ()):
        names.update(OF_FIXTURES.get(fixture, ()))
    for mark in item.iter_markers("parts"):
        names.update(mark.args)
    if broker := broker_of(item):
        names.update(OF_BROKERS[broker])
    return names


def broker_of(item: pytest.Item) -> str:
    """The name of the broker that a test with the fixture ``broker`` runs on; empty for other tests."""
    return str(getattr(getattr(item, "callspec", None), "params", {}).get("broker", ""))


def main(arguments: list[str] | None = None) -> int:
    """Makes the parts named, or all but :data:`LONG`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.parts", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"one of {', '.join(PARTS)}; default: all but {', '.join(LONG)}",
    )
    names = parser.parse_args(arguments).names or [name for name in PARTS if name not in LONG]
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        parser.error(f"no part is called {unknown[0]}; choose from {', '.join(PARTS)}")
    try:
        make(names, lambda line: print(line, file=sys.stderr, flush=True))
    except PartsUnavailable as exc:
        print(f"parts: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
