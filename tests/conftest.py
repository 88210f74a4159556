"""What the tests share: real brokers, the dev broker, one fixture over both, and a PostgreSQL server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import parts, spark
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.postgres import PostgresDatabase, PostgresServer

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

GROUP_CONFIG = {"group.initial.rebalance.delay.ms": "150"}
"""Shorter than the brokers' default of 3 s, so that forming a group does not dominate the run."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes the parts that the selected tests need, before the time limit of any test begins."""
    names = parts.needed(session.items)
    if session.config.option.collectonly or not names:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            parts.make(names, lambda line: print(f"\n{line}", file=sys.stderr, flush=True))
        except parts.PartsUnavailable as exc:
            pytest.exit(f"the selected tests need what cannot be made here: {exc}", returncode=70)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One real broker; all defaults but :data:`GROUP_CONFIG`."""
    with KafkaCluster(1, GROUP_CONFIG) as cluster:
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
def devbroker() -> Iterator[DevBroker]:
    """The dev broker as its own process, with :data:`GROUP_CONFIG` as the real one."""
    with DevBroker(GROUP_CONFIG) as broker:
        yield broker


BROKERS = {"kafka-4.3": "kafka", "kafka-3.9": "kafka39", "kafka-2.8": "kafka28", "devbroker": "devbroker"}
"""The name of a broker in a test's id -> its fixture."""
CHOSEN = os.environ.get("SLACKWATER_TEST_BROKERS", "kafka-4.3,devbroker").split(",")


@pytest.fixture(scope="session", params=CHOSEN)
def broker(request: pytest.FixtureRequest) -> KafkaCluster | DevBroker:
    """Each test runs against the real broker and against the dev broker.

    Against others with ``SLACKWATER_TEST_BROKERS=kafka-3.9,kafka-2.8`` in the environment.
    """
    broker: KafkaCluster | DevBroker = request.getfixturevalue(BROKERS[request.param])
    return broker


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
