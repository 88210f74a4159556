"""`slackwater worker --preflight` as the process that a Job runs, and what a pod needs of a worker."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.peers.librdkafka import write_topic
from tests.support.processes import reserve_ports
from tests.support.waiting import HANG_S, wait_until
from tests.support.workers.group_site import GroupSite
from tests.support.workers.preflight import Preflight, preflight_here, run_preflight

HANDLER = """
def rows(records):
    for record in records:
        yield {
            "topic": record.topic, "partition": record.partition, "offset": record.offset,
            "text": record.value.decode(), "_error": "is bad" if record.value == b"bad" else None,
        }

def keep(table):
    return table

def no_offset(table):
    return table.drop_columns(["offset"])
"""


class PreflightSite(GroupSite):
    """A site whose workers and preflights have the engine `arrow`."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        super().__init__(bootstrap, folder, handler=HANDLER, partitions=2, dead_letters=2)

    def config(self, **changes: Any) -> dict[str, Any]:
        """A worker's configuration; a change to None takes the field away."""
        defaults = {"handler": "site_handler:keep", "engine": "arrow", "startTimeoutMs": 20_000}
        return super().config(**{**defaults, **changes})

    def preflight(self, **changes: Any) -> Preflight:
        """Runs a preflight of the configuration with these changes."""
        return preflight_here(self.folder, self.config(**changes))


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[PreflightSite]:
    with PreflightSite(broker.bootstrap, tmp_path) as site:
        yield site


@pytest.fixture
def dev(devbroker: DevBroker, tmp_path: Path) -> Iterator[PreflightSite]:
    """For what has nothing to do with the broker."""
    with PreflightSite(devbroker.bootstrap, tmp_path) as site:
        yield site


def test_a_passing_preflight_leaves_no_group_and_no_file(site: PreflightSite) -> None:
    """In a process of its own, as that of a Job."""
    ran = run_preflight(site.folder, site.config())
    assert ran.code == 0, ran.stderr
    assert list(ran.checks) == ["configuration", "handler", "brokers", "group", "topics", "sink"]
    assert ran.failed == set()
    assert ran.events[-1]["event"] == "preflight"
    assert ran.events[-1]["ok"] is True
    assert "1 of 1 brokers" in ran.checks["brokers"]["message"]
    assert "was not joined" in ran.checks["group"]["message"]
    assert ran.termination_message == ""
    with KafkaAdmin(site.bootstrap) as admin:
        assert site.group not in [group.group_id for group in admin.list_groups()]
    assert [path for path in site.out.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("engine", ["arrow", "python"])
def test_each_engine_is_given_a_batch_without_rows(dev: PreflightSite, engine: str) -> None:
    good = dev.preflight(
        engine=engine, handler="site_handler:rows" if engine == "python" else "site_handler:keep"
    )
    assert good.code == 0, good.stderr
    assert f"on the engine {engine}" in good.checks["handler"]["message"]


@pytest.mark.parametrize(
    ("changes", "check", "code", "words"),
    [
        ({"handler": "nothing_here:keep"}, "handler", 2, "no module nothing_here"),
        ({"handler": "site_handler:kept"}, "handler", 2, "no function kept; did you mean keep?"),
        ({"handler": "site_handler:no_offset"}, "handler", 2, "must have the column offset"),
        ({"topics": ["never-made"]}, "topics", 5, "no topic never-made"),
        ({"deadLetterTopic": "never-made"}, "topics", 5, "no topic never-made"),
        ({"sink": {"format": "parquet", "path": "/proc/nothing"}}, "sink", 4, "cannot make the folder"),
        ({"sink": {"format": "parquet", "path": "ftp://b/x"}}, "sink", 2, "cannot hold Parquet files"),
        (
            {"properties": {"session.timeout.ms": "1000", "heartbeat.interval.ms": "300"}},
            "group",
            2,
            "group.min.session.timeout.ms=6000",
        ),
        (
            {"groupProtocol": "Consumer", "properties": {"session.timeout.ms": "10000"}},
            "configuration",
            2,
            "session.timeout.ms does not go with group.protocol=consumer",
        ),
        ({"groupID": "x"}, "configuration", 2, "unknown field; did you mean groupId"),
    ],
)
def test_a_failed_check_is_named_and_the_other_checks_run(
    site: PreflightSite, changes: dict[str, Any], check: str, code: int, words: str
) -> None:
    ran = site.preflight(**changes)
    assert ran.failed == {check}
    assert ran.code == code
    assert words in ran.checks[check]["message"]
    last = ran.events[-1]
    assert (last["event"], last["ok"]) == ("preflight", False)
    assert words in last["message"]
    assert ran.termination_message == last["message"], "what Kubernetes shows as the terminated message"
    assert ran.stderr.endswith(f"preflight: error: {last['message']}\n")


def test_an_unreachable_broker_fails_the_preflight(tmp_path: Path, devbroker: DevBroker) -> None:
    site = PreflightSite(devbroker.bootstrap, tmp_path)
    (port,) = reserve_ports(1)
    ran = site.preflight(bootstrapServers=f"127.0.0.1:{port}", startTimeoutMs=500)
    assert ran.code == 5
    assert ran.failed == {"brokers", "group", "topics"}
    assert f"no broker at 127.0.0.1:{port} answers within startTimeoutMs (500)" in ran.termination_message
    assert ran.checks["sink"]["ok"]


@pytest.mark.long
def test_the_consumer_protocol_is_refused_where_the_brokers_have_it_not(
    kafka39: KafkaCluster, tmp_path: Path
) -> None:
    old = PreflightSite(kafka39.bootstrap, tmp_path).preflight(groupProtocol="Consumer")
    assert (old.code, old.failed) == (2, {"group"})
    assert "groupProtocol: is Consumer, but the cluster's feature group.version is 0" in old.stderr
    config = {"group.coordinator.rebalance.protocols": "classic"}
    with KafkaCluster(1, config) as classic:
        refused = PreflightSite(classic.bootstrap, tmp_path / "classic").preflight(groupProtocol="Consumer")
    assert refused.failed == {"group"}
    assert "group.coordinator.rebalance.protocols leaves consumer out" in refused.stderr


@pytest.mark.long
def test_a_change_of_the_protocol_is_refused_where_the_brokers_let_no_group_change(tmp_path: Path) -> None:
    config = {"group.consumer.migration.policy": "disabled"}
    with KafkaCluster(1, config) as kafka, PreflightSite(kafka.bootstrap, tmp_path) as site:
        site.start_worker("w-0", site.config()).until("joined")
        refused = site.preflight(groupProtocol="Consumer")
        assert refused.failed == {"group"}
        assert "1 members of the other protocol" in refused.stderr
        assert site.preflight(groupProtocol="Classic").code == 0


def test_two_failed_checks_are_reported_in_one_run(dev: PreflightSite) -> None:
    """One failure is in the configuration, so another try could not pass."""
    ran = dev.preflight(handler="site_handler:no_offset", topics=["never-made"])
    assert ran.failed == {"handler", "topics"}
    assert ran.code == 2
    assert "offset" in ran.termination_message
    assert "never-made" in ran.termination_message
    assert dev.preflight(sink={"format": "parquet", "path": "/proc/no"}, topics=["never-made"]).code == 4


# ---- the worker itself


def test_a_worker_with_a_topic_pattern_and_the_python_engine_delivers(site: PreflightSite) -> None:
    first, later = f"{site.topic}-a", f"{site.topic}-b"
    site.create_topics(**{first: 2})
    write_topic(site.bootstrap, first, [(0, b"one"), (0, b"bad"), (0, b"two")])
    config = site.config(
        topics=None,
        topicPattern=f"{site.topic}-.*",
        engine="python",
        handler="site_handler:rows",
        properties={"metadata.max.age.ms": "500"},
    )
    worker = site.start_worker("w-0", config)
    worker.until("committed", lambda event: event["offsets"].get(f"{first}-0") == 3)
    site.create_topics(**{later: 2})
    write_topic(site.bootstrap, later, [(0, b"three")])
    worker.until("committed", lambda event: event["offsets"].get(f"{later}-0") == 1)
    texts: dict[str, list[str]] = defaultdict(list)
    for row in site.output.rows("topic", "text"):
        texts[row["topic"]].append(row["text"])
    assert texts == {first: ["one", "two"], later: ["three"]}
    assert worker.named("batch")[0]["dead"] == 1
    # The lag is brought up to date now and then.
    for name in ("lag_seconds", "session_timeout_seconds", "rebalance_seconds_count"):
        wait_until(lambda name=name: f"slackwater_{name}{{" in worker.ask("GET", "/metrics").decode(), name)  # type: ignore[misc]
    assert worker.terminate() == 0


@pytest.mark.long
def test_a_worker_listens_on_the_host_of_its_environment(dev: PreflightSite) -> None:
    config = dev.config(health={"host": "127.0.0.1", "port": 0})
    worker = dev.start_worker("w-0", config, SLACKWATER_HEALTH_HOST="127.0.0.7")
    port = worker.until("started")["port"]
    worker.until("phase", lambda event: event["phase"] == "running")
    with urllib.request.urlopen(f"http://127.0.0.7:{port}/status", timeout=HANG_S) as answer:
        status = json.loads(answer.read())
    assert status["phase"] == "running"
    assert status["joined_ms"] >= status["started_ms"] > (time.time() - 60) * 1000
    assert status["running_since_ms"] >= status["joined_ms"]
    assert [join["generation"] for join in status["joins"]] == [status["generation"]]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5)
    assert worker.terminate() == 0
