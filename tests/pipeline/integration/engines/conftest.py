"""One local session of Spark and one Connect server for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.integration.engines.shared_spark import SharedSpark
from tests.pipeline.integration.engines.spark_process import SparkProcess
from tests.support.spark import delta_conf, kafka_source_jars


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    """The run's Spark, to start and to end; most tests need only :func:`spark` or an engine's host."""
    shared = SharedSpark(tmp_path_factory.mktemp("spark"))
    yield shared
    shared.close()


@pytest.fixture
def spark(shared_spark: SharedSpark) -> SparkProcess:
    """A process with a local session."""
    return shared_spark.local


@pytest.fixture(scope="session")
def spark_with_jars() -> Iterator[SparkProcess]:
    """A process with a local session that has Spark's own Kafka source and Delta."""
    conf = delta_conf()
    jars = [conf["spark.jars"], *map(str, kafka_source_jars())]
    process = SparkProcess(conf={**conf, "spark.jars": ",".join(jars)})
    yield process
    process.close()
