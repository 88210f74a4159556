"""A new image revision goes through three workers on Spark: a session in each pod, and one Connect server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.pipeline.engines import spark_session
from slackwater.pipeline.engines.connect_server import ConnectServer
from tests.support import spark
from tests.support.site import ClusterSite

pytestmark = [pytest.mark.controlplane, pytest.mark.long]

WORKERS = 3
SESSION_MS = 45_000
QUICK_JAVA = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""For a Spark in each pod where restarts count more than batches: docs/design/spark.md, "Java"."""


@pytest.fixture
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """spec.pipeline.spark.remote."""
    if request.param == "local":
        yield ""
        return
    server = ConnectServer(log_path=tmp_path / "connect.log")
    server.start()
    try:
        yield server.remote
    finally:
        server.stop()


@pytest.mark.parametrize("remote", ["local", "connect"], indirect=True)
def test_a_rolling_restart_on_spark_costs_no_rebalance(
    cluster: ClusterSite, namespace: str, remote: str
) -> None:
    if not remote:  # as in the worker's Spark image
        cluster.push("*", environment={spark_session.ARCHIVE_VARIABLE: str(spark.archive())})
    group = cluster.group(
        f"spark-{namespace}",
        partitions=6,
        replicas=WORKERS,
        session_timeout_ms=SESSION_MS,
        pipeline={"engine": "spark", "spark": {"remote": remote, "conf": {} if remote else QUICK_JAVA}},
    )
    before = group.await_settled(WORKERS)
    with group.load(rate=200) as load:
        group.await_condition("RolledOut")
        since = group.roll(cluster.image("v2"))
        group.await_rolled(cluster.image("v2"), WORKERS)
        after = group.await_settled(WORKERS)
        produced = load.stop()
    group.await_handled(produced)
    restarts = group.restarts(since)
    summary = "\n".join(str(restart) for restart in restarts)
    print(summary)
    assert len(restarts) == WORKERS, summary
    assert after == before
    assert group.rebalances(since) == 0, summary
    assert all(restart.same_generation for restart in restarts), summary
    # The session's clock runs from a process's end to the next one's join: Spark starts after that.
    assert all(restart.away_ms <= 0.3 * SESSION_MS for restart in restarts), summary
    verdict = group.verify(produced)
    assert verdict.exact, verdict
