"""``slackwater backfill --master`` on a standalone cluster of two workers.

Its executors have of the handler only what the command sends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.pipeline.integration.engines.backfill_site import PARTITIONS, ids, write
from tests.pipeline.integration.engines.test_backfill_command import START_S, Command
from tests.support.devbroker import DevBroker
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import wait_until
from tests.support.workers.group_site import GroupSite

pytestmark = [pytest.mark.parts("spark"), pytest.mark.long]

RECORDS = 1_200
HANDLER = """
import pyarrow as pa
from common import number_of


def arrow(table):
    from orders.parsing import scale  # found in the text of the function

    ids = [number_of(value) * scale() for value in table["value"].to_pylist()]
    return table.select(["topic", "partition", "offset"]).append_column("id", pa.array(ids, pa.int64()))


def one(value):
    from orders.parsing import scale

    return number_of(value) * scale()


def spark(df):
    from pyspark.sql import functions as F

    return df.select("topic", "partition", "offset", F.udf(one, "long")("value").alias("id"))
"""
COMMON = """
import json
import time


def number_of(value):
    time.sleep(0.002)  # so that the batches take long enough to end an executor within one
    return json.loads(bytes(value))["id"]
"""
PARSING = """
from importlib.resources import files


def scale():
    return int(files("orders").joinpath("scale.txt").read_text())
"""


@pytest.fixture
def site(devbroker: DevBroker, tmp_path: Path) -> Iterator[GroupSite]:
    with GroupSite(devbroker.bootstrap, tmp_path, handler="", partitions=PARTITIONS, dead_letters=2) as made:
        folder = made.folder / "handlers"
        package = folder / "orders"
        package.mkdir()
        for name, text in (
            ("transform.py", HANDLER),
            ("parsing.py", PARSING),
            ("scale.txt", "1"),
            ("__init__.py", ""),
        ):
            (package / name).write_text(text)
        (folder / "common.py").write_text(COMMON)
        (folder / "unrelated.bin").write_bytes(b"x" * 1000)
        yield made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "cluster") as made:
        yield made


def command(site: GroupSite, cluster: SparkCluster, engine: str, **spark: int) -> Command:
    config = site.folder / "worker.yaml"
    document = site.config(engine=engine, handler=f"orders.transform:{engine}", spark=spark or None)
    config.write_text(yaml.safe_dump(document))
    settings = [f"--conf={name}={value}" for name, value in cluster.conf.items()]
    words = [sys.executable, "-m", "slackwater"]
    return Command(site, words, config, [f"--master={cluster.master}", *settings])


@pytest.mark.parametrize(("engine", "killed"), [("spark", "executor"), ("arrow", "worker")])
def test_each_record_is_written_once_though_a_process_of_the_cluster_is_killed(
    site: GroupSite, cluster: SparkCluster, engine: str, killed: str
) -> None:
    write(site, range(RECORDS))
    run = command(site, cluster, engine)
    try:
        wait_until(lambda: run.events("progress") or not run.process.running(), run.text, START_S)
        assert all(cluster.executors(number) for number in (0, 1)), run.text()
        {"executor": cluster.kill_executor, "worker": cluster.kill_worker}[killed](0)
        assert not run.events("end")
        assert run.process.wait(START_S) == 0, run.text()
    finally:
        run.process.kill()
    (plan,) = run.events("plan")
    assert plan["sent"]["modules"] == ["common", "orders"]
    assert plan["sent"]["files"] == 5
    assert ids(site) == [number for number in range(RECORDS) if number % PARTITIONS or number >= 30]


def test_a_cluster_without_workers_ends_the_command(site: GroupSite, tmp_path: Path) -> None:
    write(site, range(60))
    with SparkCluster(tmp_path / "cluster", workers=0) as cluster:
        run = command(site, cluster, "spark", startTimeoutMs=15_000)
        try:
            assert run.process.wait(START_S) == 1, run.text()
        finally:
            run.process.kill()
    assert f"the Spark application on {cluster.master} got no executor within 15 s: see that" in run.text()
