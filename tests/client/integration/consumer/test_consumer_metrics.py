"""``metrics()`` of a consumer that works: Java's names, and values that say what happened."""

from __future__ import annotations

import math
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

import kafka
import pytest

from slackwater.kafka import AsyncConsumer, KafkaConsumer, TopicPartition
from slackwater.kafka.metrics.raw import MetricName
from tests.client.integration.groups.consumer_harness import drain, make_topic, options, unique
from tests.support.devbroker import DevBroker
from tests.support.java.programs import java_command
from tests.support.peers.peer_process import knowing
from tests.support.waiting import WAIT_S, wait_until

GROUPS = ("consumer-metrics", "consumer-coordinator-metrics", "consumer-fetch-manager-metrics")
FETCH, COORDINATOR = "consumer-fetch-manager-metrics", "consumer-coordinator-metrics"

NOT_HERE = {
    "select-rate", "select-total", "io-wait-time-ns-avg", "io-wait-ratio", "io-wait-time-ns-total",
    "io-time-ns-avg", "io-ratio", "io-time-ns-total", "iotime-total", "io-waittime-total", "iotime-ratio",
    "io-waittime-ratio", "successful-authentication-no-reauth-total", "connections",
}  # fmt: skip
"""Names of Java's that have no meaning here; why is told in ``consumer.metrics``."""


def shape(metrics: dict[str, dict[str, float]]) -> set[tuple[str, str, str]]:
    """Ours as (group, name, tags)."""
    rows = set()
    for group, values in metrics.items():
        base, _, tagged = group.partition(".")
        tags = {"": "", "node": "node-id", "topic": "topic", "partition": "partition,topic"}
        rows |= {(base, name, tags[tagged.split("-")[0]]) for name in values}
    return rows


def names_of_java(bootstrap: str, topic: str) -> set[tuple[str, str, str]]:
    """What Java's consumer has after it read and committed."""
    done = subprocess.run(
        java_command("ConsumerMetricNames", bootstrap, topic, unique("g")),
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    lines = (tuple(line.split(" ")) for line in done.stdout.splitlines() if line.startswith("consumer-"))
    return {(group, name, tags) for group, name, tags in lines}


@pytest.mark.parts("java")
def test_the_metrics_have_javas_names(devbroker: DevBroker) -> None:
    topic = make_topic(devbroker.bootstrap, 1, 3)
    java = names_of_java(devbroker.bootstrap, topic)
    assert {group for group, _, _ in java} >= {*GROUPS, "consumer-node-metrics"}
    with KafkaConsumer(topic, **options(devbroker.bootstrap, unique("g"))) as consumer:
        drain(consumer, 3)
        ours = shape(consumer.metrics())
    expected = {pair for pair in java if pair[1] not in NOT_HERE}
    assert ours == expected, (sorted(ours - expected), sorted(expected - ours))
    assert {name for _, name, _ in java} & NOT_HERE, "the list of what is left out is of names that Java has"


def test_records_that_are_read_are_counted(devbroker: DevBroker) -> None:
    topic = make_topic(devbroker.bootstrap, 2, 40)
    tp = TopicPartition(topic, 0)
    with KafkaConsumer(**options(devbroker.bootstrap, None)) as consumer:
        consumer.assign([tp])
        before = consumer.metrics()
        assert before[FETCH]["records-consumed-total"] == 0
        assert math.isnan(before[FETCH]["records-lag-max"])
        consumer.seek(tp, 4)
        first = wait_until(lambda: consumer.poll(200, max_records=5), "five records")
        assert [record.offset for record in first[tp]] == [4, 5, 6, 7, 8]
        of_partition = consumer.metrics()[f"{FETCH}.partition-{tp}"]
        assert of_partition["records-lag"] == 11 == consumer.current_lag(tp)
        assert of_partition["records-lead"] == 9
        assert of_partition["preferred-read-replica"] == -1
        drain(consumer, 11)
        metrics = consumer.metrics()
        of_partition = metrics[f"{FETCH}.partition-{tp}"]
        assert (of_partition["records-lag"], of_partition["records-lag-max"]) == (0, 11)
        assert 0 < of_partition["records-lag-avg"] < 11
        assert (of_partition["records-lead"], of_partition["records-lead-min"]) == (20, 9)
        assert 9 < of_partition["records-lead-avg"] < 20
        all_fetches, of_topic = metrics[FETCH], metrics[f"{FETCH}.topic-{topic}"]
        for figures in (all_fetches, of_topic):
            assert figures["records-consumed-total"] == 16
            assert figures["records-consumed-rate"] > 0
            assert figures["bytes-consumed-total"] > 100
            assert figures["bytes-consumed-rate"] > 0
            assert 0 < figures["fetch-size-avg"] <= figures["fetch-size-max"]
            assert 0 < figures["records-per-request-avg"] <= 16
        assert (all_fetches["records-lag-max"], all_fetches["records-lead-min"]) == (11, 9)
        assert all_fetches["fetch-total"] >= 1
        assert all_fetches["fetch-rate"] > 0
        assert 0 <= all_fetches["fetch-latency-avg"] <= all_fetches["fetch-latency-max"]
        assert all_fetches["fetch-throttle-time-max"] == 0
        assert COORDINATOR not in metrics, "it is in no group"
        consumer.assign([TopicPartition(topic, 1)])
        assert f"{FETCH}.partition-{tp}" not in consumer.metrics()


class Slow:
    """A listener that takes its time."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        time.sleep(0.03)

    def on_partitions_revoked(self, revoked: Any) -> None:
        time.sleep(0.02)


def test_group_and_commit_metrics_are_recorded(devbroker: DevBroker) -> None:
    topic, group = make_topic(devbroker.bootstrap, 2, 4), unique("g")
    with KafkaConsumer(**options(devbroker.bootstrap, group)) as consumer:
        start = consumer.metrics()[COORDINATOR]
        assert start["last-heartbeat-seconds-ago"] == start["last-rebalance-seconds-ago"] == -1
        assert (start["join-total"], start["assigned-partitions"]) == (0, 0)
        consumer.subscribe([topic], listener=Slow())
        drain(consumer, 4)
        consumer.commit()
        consumer.committed(TopicPartition(topic, 0))
        wait_until(lambda: consumer.metrics()[COORDINATOR]["heartbeat-total"] >= 2, "two heartbeats")
        metrics = consumer.metrics()
        coordinator, own = metrics[COORDINATOR], metrics["consumer-metrics"]
        assert (coordinator["join-total"], coordinator["sync-total"], coordinator["rebalance-total"]) == (
            1,
            1,
            1,
        )
        for name in ("join", "sync", "heartbeat", "commit"):
            assert coordinator[f"{name}-rate"] > 0
        for name in ("join-time", "sync-time", "rebalance-latency", "commit-latency"):
            assert 0 <= coordinator[f"{name}-avg"] <= coordinator[f"{name}-max"], name
        assert coordinator["rebalance-latency-total"] >= coordinator["join-time-max"]
        assert coordinator["rebalance-rate-per-hour"] == pytest.approx(1, rel=0.05)
        assert (coordinator["failed-rebalance-total"], coordinator["failed-rebalance-rate-per-hour"]) == (
            0,
            0,
        )
        assert coordinator["commit-total"] == 1
        assert coordinator["heartbeat-response-time-max"] >= 0
        assert coordinator["last-heartbeat-seconds-ago"] in (0, 1, 2)
        assert coordinator["last-rebalance-seconds-ago"] >= 0
        assert coordinator["assigned-partitions"] == 2
        assert coordinator["partition-assigned-latency-max"] >= 30
        assert math.isnan(coordinator["partition-lost-latency-max"])
        assert own["commit-sync-time-ns-total"] > 0
        assert own["committed-time-ns-total"] > 0
        consumer.subscribe([make_topic(devbroker.bootstrap, 1)], listener=Slow())
        wait_until(
            lambda: (consumer.poll(50), consumer.metrics()[COORDINATOR]["join-total"] >= 2)[1], "a rejoin"
        )
        wait_until(
            lambda: (consumer.poll(50), consumer.metrics()[COORDINATOR]["assigned-partitions"] == 1)[1],
            "the other topic",
        )
        assert consumer.metrics()[COORDINATOR]["partition-revoked-latency-max"] >= 20


def test_a_lost_partition_is_counted(devbroker: DevBroker) -> None:
    topic, group = make_topic(devbroker.bootstrap, 1, 1), unique("g")
    more = options(devbroker.bootstrap, group, max_poll_interval_ms=4_000)
    with KafkaConsumer(**more) as consumer:
        consumer.subscribe([topic], listener=Slow())
        drain(consumer, 1)
        assert math.isnan(consumer.metrics()[COORDINATOR]["partition-lost-latency-avg"])
        wait_until(lambda: not consumer.membership().member_id, "poll() is not called in time")
        wait_until(
            lambda: (consumer.poll(50), consumer.metrics()[COORDINATOR]["rebalance-total"] == 2)[1],
            "a rejoin",
        )
        # A listener without on_partitions_lost hears of it as revoked.
        coordinator_metrics = consumer.metrics()[COORDINATOR]
        assert coordinator_metrics["partition-lost-latency-avg"] >= 20
        assert (
            coordinator_metrics["partition-lost-latency-max"]
            >= coordinator_metrics["partition-lost-latency-avg"]
        )
        assert math.isnan(coordinator_metrics["partition-revoked-latency-avg"])


def test_a_failed_rebalance_is_counted(devbroker: DevBroker) -> None:
    topic, group = make_topic(devbroker.bootstrap, 1, 1), unique("g")
    rule = {"api": "SyncGroup", "group": group, "error": "REBALANCE_IN_PROGRESS", "times": 1}
    devbroker.control("POST", "/faults", rule)
    with KafkaConsumer(topic, **options(devbroker.bootstrap, group)) as consumer:
        drain(consumer, 1)
        coordinator_metrics = consumer.metrics()[COORDINATOR]
        assert coordinator_metrics["failed-rebalance-total"] == 1
        assert coordinator_metrics["failed-rebalance-rate-per-hour"] == pytest.approx(1, rel=0.05)
        assert (
            coordinator_metrics["rebalance-total"],
            coordinator_metrics["join-total"],
            coordinator_metrics["sync-total"],
        ) == (1, 2, 1)


def test_poll_and_connection_metrics_are_recorded(devbroker: DevBroker) -> None:
    topic = make_topic(devbroker.bootstrap, 1, 3)
    consumer = KafkaConsumer(**options(devbroker.bootstrap, None))
    try:
        consumer.assign([TopicPartition(topic, 0)])
        own = consumer.metrics()["consumer-metrics"]
        assert own["last-poll-seconds-ago"] == -1
        drain(consumer, 3)
        time.sleep(0.05)
        consumer.poll(20)
        metrics = consumer.metrics()
        own = metrics["consumer-metrics"]
        assert own["last-poll-seconds-ago"] in (0, 1)
        assert own["time-between-poll-max"] >= 50
        assert 0 < own["time-between-poll-avg"] <= own["time-between-poll-max"]
        assert 0 < own["poll-idle-ratio-avg"] < 1
        assert own["connection-count"] >= 1
        assert own["connection-creation-total"] >= own["connection-count"]
        assert own["connection-creation-rate"] > 0
        nodes = {
            group: values for group, values in metrics.items() if group.startswith("consumer-node-metrics.")
        }
        assert any(not group.endswith("node--1") for group in nodes), nodes.keys()
        for name in ("request-total", "response-total", "outgoing-byte-total", "incoming-byte-total"):
            assert own[name] == sum(node[name] for node in nodes.values()) > 0
        for figures in (own, *nodes.values()):
            assert figures["request-rate"] > 0
            assert figures["response-rate"] > 0
            assert 0 < figures["request-size-avg"] <= figures["request-size-max"]
            assert figures["outgoing-byte-rate"] > 0
            assert figures["incoming-byte-rate"] > 0
        for figures in nodes.values():
            assert 0 <= figures["request-latency-avg"] <= figures["request-latency-max"]
        assert own["network-io-total"] == own["request-total"] + own["response-total"]
        assert own["successful-authentication-total"] == own["failed-authentication-total"] == 0
        closed = own["connection-close-total"]
        core = consumer._core
    finally:
        consumer.close()
    own = core.metrics.values()["consumer-metrics"]
    assert own["connection-count"] == 0
    assert own["connection-close-total"] > closed


def test_the_metrics_can_be_read_from_other_threads(devbroker: DevBroker) -> None:
    topic = make_topic(devbroker.bootstrap, 4, 400)
    failures: list[BaseException] = []
    done = threading.Event()
    with KafkaConsumer(topic, **options(devbroker.bootstrap, unique("g"), max_poll_records=7)) as consumer:

        def read() -> None:
            try:
                while not done.is_set():
                    assert consumer.metrics()["consumer-metrics"]["connection-count"] >= 0
            except BaseException as exc:
                failures.append(exc)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            drain(consumer, 400)
        finally:
            done.set()
            for reader in readers:
                reader.join()
        assert not failures
        assert consumer.metrics()[FETCH]["records-consumed-total"] == 400


def test_raw_metrics_can_be_read_repeatedly(devbroker: DevBroker) -> None:
    topic, client_id = make_topic(devbroker.bootstrap, 2, 10), unique("c")
    with KafkaConsumer(
        topic, **options(devbroker.bootstrap, unique("g"), client_id=client_id, max_poll_records=1)
    ) as consumer:
        drain(consumer, 1)
        raw, figures = consumer.metrics(raw=True), consumer.metrics()
        assert len(raw) == sum(map(len, figures.values()))
        assert all(raw[name].metric_name is name for name in raw)
        assert {name.tags["client-id"] for name in raw} == {client_id}
        in_all = MetricName("records-consumed-total", FETCH, tags={"client-id": client_id})
        of_topic = MetricName(in_all.name, FETCH, tags={"topic": topic, "client-id": client_id})
        tags = {"client-id": client_id, "topic": topic, "partition": "1"}
        drain(consumer, 9)
        assert raw[in_all].value() == 10, "it was made before, and is read now"
        late = consumer.metrics(raw=True)
        assert late[of_topic].value() == 10
        lag = late[MetricName("records-lag", FETCH, tags=tags)]
        assert lag.value() == 0
        assert raw[MetricName("assigned-partitions", COORDINATOR, tags=in_all.tags)].value() == 2
        node = {**in_all.tags, "node-id": "node-1"}
        assert raw[MetricName("request-total", "consumer-node-metrics.node-1", tags=node)].value() > 0
        metric = raw[MetricName("time-between-poll-max", "consumer-metrics", tags=in_all.tags)]
        assert metric.value(time.monotonic() * 1_000) >= 0
        assert math.isnan(metric.value(time.monotonic() * 1_000 + 3_600_000)), "nothing in its window by then"
        consumer.unsubscribe()
        assert math.isnan(lag.value()), "of a partition that is gone"
    assert raw[in_all].value() == 10


def test_raw_metrics_have_the_shape_of_kafka_pythons(devbroker: DevBroker) -> None:
    topic, client_id = make_topic(devbroker.bootstrap, 1, 3), unique("c")
    group = unique("g")
    theirs = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=devbroker.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        client_id=client_id,
    )
    try:
        knowing(theirs, topic)
        wait_until(lambda: theirs.poll(200), "records")
        theirs_raw = theirs.metrics(raw=True)
    finally:
        theirs.close()
    with KafkaConsumer(topic, **options(devbroker.bootstrap, unique("g"), client_id=client_id)) as consumer:
        drain(consumer, 3)
        ours_raw = consumer.metrics(raw=True)

    def shared(metrics: Mapping[Any, Any], name: str) -> set[tuple[str, str, str | None]]:
        return {
            (metric.group, metric.tags["client-id"], metric.tags.get("topic"))
            for metric in metrics
            if metric.name == name
        }

    for name in ("fetch-size-avg", "bytes-consumed-rate", "request-size-avg", "commit-rate"):
        # Theirs counts connections for bootstrapping and to the coordinator as brokers of their own.
        wanted = {name for name in shared(theirs_raw, name) if not re.search("node-(boot|coord)", name[0])}
        assert wanted
        assert wanted <= shared(ours_raw, name)
    assert isinstance(next(iter(ours_raw.values())).value(), float)


async def test_the_async_consumer_has_metrics(devbroker: DevBroker) -> None:
    topic = make_topic(devbroker.bootstrap, 1, 3)
    async with AsyncConsumer(topic, **options(devbroker.bootstrap, unique("g"))) as consumer:
        count = 0
        while count < 3:
            count += sum(map(len, (await consumer.poll(200)).values()))
        await consumer.commit()
        metrics = consumer.metrics()
        assert metrics[FETCH]["records-consumed-total"] == 3
        assert metrics[COORDINATOR]["commit-total"] == 1
        assert metrics["consumer-metrics"]["commit-sync-time-ns-total"] > 0
        assert metrics["consumer-metrics"]["time-between-poll-max"] >= 0


def test_the_metrics_window_is_configurable(devbroker: DevBroker) -> None:
    topic = make_topic(devbroker.bootstrap, 1, 3)
    more = options(devbroker.bootstrap, None, metrics_num_samples=2, metrics_sample_window_ms=100)
    with KafkaConsumer(**more) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        drain(consumer, 3)
        wait_until(lambda: math.isnan(consumer.metrics()[FETCH]["fetch-size-avg"]), "the end of the window")
        assert consumer.metrics()[FETCH]["records-consumed-total"] == 3
