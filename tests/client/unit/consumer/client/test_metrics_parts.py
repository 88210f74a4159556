"""The parts of the metrics that a healthy broker does not show: logins, quotas, followers, transactions."""

from __future__ import annotations

import asyncio
import math

import pytest

from slackwater.kafka.consumer.fetch.targets import FetchTargets
from slackwater.kafka.consumer.metrics.consumer_metrics import ConsumerMetrics
from slackwater.kafka.consumer.metrics.fetch import GROUP as FETCH, FetchMetrics
from slackwater.kafka.errors import AuthenticationError
from slackwater.kafka.metrics.net import NetMetrics
from slackwater.kafka.metrics.sensors import SensorMaker
from slackwater.kafka.net.connection import Connection
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import TopicPartition

TP = TopicPartition("t", 0)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def assigned(*partitions: TopicPartition) -> Subscription:
    subscription = Subscription()
    subscription.assign_by_user(partitions or [TP])
    return subscription


async def test_logins_are_counted_as_first_or_again_and_as_good_or_not() -> None:
    net = NetMetrics(Clock(), SensorMaker())
    connection = Connection("h", 1, ConnectionSettings(traffic=net))

    async def accepted(_: Connection) -> float:
        await asyncio.sleep(0.01)
        return math.inf

    async def refused(_: Connection) -> float:
        raise AuthenticationError("no")

    with pytest.raises(AuthenticationError):
        await connection.log_in(refused)
    figures = net.values()["consumer-metrics"]
    assert (figures["failed-authentication-total"], figures["failed-reauthentication-total"]) == (1, 0)
    await connection.log_in(accepted)
    assert math.isnan(net.values()["consumer-metrics"]["reauthentication-latency-max"])
    await connection.log_in(accepted)
    with pytest.raises(AuthenticationError):
        await connection.log_in(refused)
    figures = net.values()["consumer-metrics"]
    for name in ("successful-authentication", "successful-reauthentication",
                 "failed-authentication", "failed-reauthentication"):  # fmt: skip
        assert figures[f"{name}-total"] == 1, name
        assert figures[f"{name}-rate"] > 0, name
    assert figures["reauthentication-latency-max"] >= figures["reauthentication-latency-avg"] >= 10


def test_a_fetch_counts_when_all_of_it_was_taken() -> None:
    clock = Clock()
    metrics = FetchMetrics(assigned(), clock)
    tally = metrics.answered(clock.now - 40, 7)
    metrics.begun(tally)
    metrics.finished(tally, "t", 100, 3)
    metrics.begun(tally)
    metrics.begun(tally)
    metrics.looked_at(tally)
    metrics.finished(tally, "t", 50, 1)
    assert metrics.values(lambda _: -1)[FETCH]["records-consumed-total"] == 0, "one is still open"
    metrics.finished(tally, "u", 10, 2)
    figures = metrics.values(lambda _: 5)
    assert figures[FETCH]["records-consumed-total"] == figures[FETCH]["records-per-request-avg"] == 6
    assert figures[FETCH]["fetch-size-max"] == 160
    assert (figures[f"{FETCH}.topic-t"]["fetch-size-max"], figures[f"{FETCH}.topic-u"]["fetch-size-max"]) == (
        150,
        10,
    )
    assert (figures[FETCH]["fetch-latency-max"], figures[FETCH]["fetch-throttle-time-avg"]) == (40, 7)
    assert figures[f"{FETCH}.partition-t-0"] == {"preferred-read-replica": 5}


def test_an_empty_answer_does_not_count_as_fetched_records() -> None:
    metrics = FetchMetrics(assigned(), Clock())
    metrics.looked_at(metrics.answered(1_000, 0))
    figures = metrics.values(lambda _: -1)[FETCH]
    assert figures["fetch-total"] == 1
    assert math.isnan(figures["fetch-size-avg"])


@pytest.mark.parametrize(("read_committed", "lag"), [(False, 70), (True, 30)])
def test_the_lag_counts_up_to_the_last_readable_offset(read_committed: bool, lag: int) -> None:
    subscription = assigned()
    metrics = FetchMetrics(subscription, Clock(), read_committed=read_committed)
    state = subscription.get(TP)
    subscription.start_at(state, 30)
    metrics.moved(state)
    assert "records-lag" in metrics.values(lambda _: -1)[f"{FETCH}.partition-t-0"]
    assert math.isnan(metrics.values(lambda _: -1)[FETCH]["records-lag-max"]), "no end is known"
    state.highwater, state.last_stable_offset, state.log_start_offset = 100, 60, 10
    metrics.moved(state)
    figures = metrics.values(lambda _: -1)
    assert figures[f"{FETCH}.partition-t-0"]["records-lag"] == figures[FETCH]["records-lag-max"] == lag
    assert figures[f"{FETCH}.partition-t-0"]["records-lead"] == figures[FETCH]["records-lead-min"] == 20


def test_the_metrics_of_a_removed_partition_are_removed() -> None:
    other = TopicPartition("t", 1)
    subscription = assigned(TP, other)
    metrics = FetchMetrics(subscription, Clock())
    for tp in (TP, other):
        state = subscription.get(tp)
        subscription.start_at(state, 1)
        state.highwater = 5
        metrics.moved(state)
    subscription.remove([TP])
    assert f"{FETCH}.partition-t-0" not in metrics.values(lambda _: -1)
    subscription.assign_by_user([TP, other])
    metrics.moved(subscription.get(other))
    figures = metrics.values(lambda _: -1)
    assert figures[f"{FETCH}.partition-t-1"]["records-lag"] == 4
    assert "records-lag" not in figures[f"{FETCH}.partition-t-0"], "it comes back without a past"


def test_the_preferred_read_replica_is_known() -> None:
    targets = FetchTargets(ClusterMetadata(), replica_age_s=10)
    assert targets.replica(TP) == -1
    targets.prefer(TP, 3, 0.0)
    assert targets.replica(TP) == 3
    targets.to_leader(TP)
    assert targets.replica(TP) == -1


def test_poll_metrics_are_recorded() -> None:
    clock = Clock()
    metrics = ConsumerMetrics(assigned(), clock, has_group=False)
    assert "consumer-coordinator-metrics" not in metrics.values()
    with metrics.polling():
        clock.now += 10
    clock.now += 30
    with metrics.polling():
        clock.now += 20
    clock.now += 2_500
    figures = metrics.values()["consumer-metrics"]
    assert (figures["time-between-poll-avg"], figures["time-between-poll-max"]) == (20, 40)
    # As Java: the first poll counts as all idle; then 20 ms within of 20 + 40.
    assert figures["poll-idle-ratio-avg"] == pytest.approx((1 + 20 / 60) / 2)
    assert figures["last-poll-seconds-ago"] == 2
    with metrics.committing():
        clock.now += 3
    with metrics.asking_committed():
        clock.now += 4
    figures = metrics.values()["consumer-metrics"]
    assert figures["commit-sync-time-ns-total"] == 3_000_000
    assert figures["committed-time-ns-total"] == 4_000_000
