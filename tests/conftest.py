"""What the tests share: real brokers, the dev broker, a PostgreSQL server; and which command runs a test."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.conformance.brokers import chosen
from tests.support import parts, sealed, spark
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.kafka.brokers import GROUP_CONFIG
from tests.support.kafka.secured import SecuredKafka
from tests.support.kafka.shared import shared_kafka
from tests.support.postgres import PostgresDatabase, PostgresServer
from tests.support.workers.delivery_site import DeliverySite

HERE = Path(__file__).parent

# Tests start hundreds of Python processes. Each would compile all of our modules anew where the environment
# forbids bytecode files, as those of many containers do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

os.environ.setdefault(spark.SUBMIT_VARIABLE, spark.QUICK)

# A busy machine is slow, not wrong; and two runs of the same tree try the same examples.
settings.register_profile(
    "slackwater", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("slackwater")


SERIAL = ("controlplane", "spark", "postgres", "iceberg", "s3")
"""Parts with a server that is started once: under pytest-xdist the tests of each run in one process."""

WAITING_ENDS_AT = 0.8
"""By which share of the other files the last file of tests that wait for processes has begun."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist's, which reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `make verify`, and groups tests for pytest-xdist: those that share a server, or a
    file. The long groups come first, then files in turns (:func:`_turns`).
    """
    ranks: dict[pytest.Item, int] = {}
    for item in items:
        needed = parts.needed_by(item)
        ranks[item] = min((SERIAL.index(name) for name in needed if name in SERIAL), default=len(SERIAL))
        for missing in needed & parts.MISSING.keys():
            item.add_marker(pytest.mark.skip(parts.MISSING[missing]))
        for mark in item.iter_markers("not_on"):
            if parts.broker_of(item) in mark.args:
                item.add_marker(pytest.mark.skip(mark.kwargs["why"]))
        if needed - parts.OF_PYTHON:
            item.add_marker("verify")
        if item.get_closest_marker("xdist_group") is None:
            shared = (name for name in SERIAL if name in needed)
            item.add_marker(pytest.mark.xdist_group(next(shared, "") or str(item.path.relative_to(HERE))))
    turns = _turns(items)
    items.sort(key=lambda item: (ranks[item], turns[item.path]))


def _turns(items: Iterable[pytest.Item]) -> dict[Path, float]:
    """When each file comes, as a share of the run. Tests below ``integration`` wait for processes, the others
    compute: side by side they leave no core idle. Those that wait come sooner, since their files take long.
    """
    turns: dict[Path, float] = {}
    for waits, share in ((True, WAITING_ENDS_AT), (False, 1.0)):
        paths = dict.fromkeys(item.path for item in items if ("integration" in item.path.parts) is waits)
        turns |= {path: share * number / len(paths) for number, path in enumerate(paths)}
    return turns


gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes the parts that the selected tests need, before the time limit of any test begins."""
    # What the modules of the tests hold stays: no later collection looks through it.
    gc.freeze()
    gc.enable()
    if getattr(session.config.option, "loadgroup", False):  # set in the processes of pytest-xdist
        assert all("@" in item.nodeid for item in session.items), "pytest-xdist ignores the groups of tests"
    run = [item for item in session.items if not item.get_closest_marker("skip")]
    names = set().union(*map(parts.needed_by, run))
    if not any(item.get_closest_marker("long") or item.get_closest_marker("node") for item in run):
        names.discard("spark")
    if session.config.option.collectonly or not names:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            parts.make(names, lambda line: print(f"\n{line}", file=sys.stderr, flush=True))
        except parts.PartsUnavailable as exc:
            pytest.exit(f"the selected tests need what cannot be made here: {exc}", returncode=70)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Holds tests below a folder ``unit`` to this process and this machine. None of them loses its power, so
    none waits for the disk."""
    if "unit" not in item.path.relative_to(HERE).parts:
        return (yield)
    with sealed.nothing_leaves_this_process(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        return (yield)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """The run's real broker; all defaults but :data:`GROUP_CONFIG`."""
    with shared_kafka(GROUP_CONFIG, tmp_path_factory.getbasetemp()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka43() -> Iterator[KafkaCluster]:
    """One broker of Apache Kafka 4.3, with the same configuration."""
    with KafkaCluster(1, GROUP_CONFIG, version="4.3.0") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka39() -> Iterator[KafkaCluster]:
    """One broker of Apache Kafka 3.9, with the same configuration."""
    with KafkaCluster(1, GROUP_CONFIG, version="3.9.1") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka28() -> Iterator[KafkaCluster]:
    """One broker of Apache Kafka 2.8, and its ZooKeeper."""
    with KafkaCluster(1, GROUP_CONFIG, version="2.8.2") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka3() -> Iterator[KafkaCluster]:
    """Three real brokers. A test that stops one of them starts it again."""
    with KafkaCluster(3, GROUP_CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secured() -> Iterator[SecuredKafka]:
    """One real broker with TLS and logins; users, topics and groups have names of their own. Its tests have
    the mark ``xdist_group("secured-kafka")``."""
    with SecuredKafka(GROUP_CONFIG) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def devbroker() -> Iterator[DevBroker]:
    """The dev broker as its own process, with :data:`GROUP_CONFIG` as the real one."""
    with DevBroker(GROUP_CONFIG) as broker:
        yield broker


CHOSEN = os.environ.get("SLACKWATER_TEST_BROKERS", "devbroker").split(",")


@pytest.fixture(scope="session", params=CHOSEN)
def broker(request: pytest.FixtureRequest) -> KafkaCluster | DevBroker:
    """The dev broker, which tests/conformance holds to the real one; in that folder each broker.

    Others with ``SLACKWATER_TEST_BROKERS=kafka-4.4,kafka-2.8`` in the environment.
    """
    return chosen(request)


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[DeliverySite]:
    """A group of worker processes. Where tests need another site, their module has a fixture of this name."""
    with DeliverySite(broker.bootstrap, tmp_path) as site:
        yield site


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server. A test that stops it starts it again."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[PostgresDatabase]:
    """An empty database of that server."""
    with postgres.database() as database:
        yield database
