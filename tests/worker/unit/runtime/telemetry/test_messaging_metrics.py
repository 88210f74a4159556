"""Metrics by OpenTelemetry's conventions for messaging: names, attributes and values."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.semconv._incubating.metrics import messaging_metrics as conventions

from slackwater.kafka.errors import CommitFailedError
from slackwater.runtime.telemetry.messaging_metrics import SdkMessagingMetrics
from tests.support.workers.fakes import Bench

COMMON = {
    "messaging.system": "kafka",
    "messaging.consumer.group.name": "flights",
    "messaging.client.id": "w-0",
}


class Measured:
    """A delivery whose metrics are read in memory."""

    def __init__(self) -> None:
        self.bench = Bench()
        self._reader = InMemoryMetricReader()
        self.bench.messaging = lambda metrics: SdkMessagingMetrics(
            self._reader, metrics, {"service.name": "flights"}, group="flights", client="w-0"
        )
        self.bench.restart()

    def read(self) -> dict[str, Any]:
        """The instruments by name."""
        data = self._reader.get_metrics_data()
        assert data is not None
        ((of_scope,),) = ((resource.scope_metrics) for resource in data.resource_metrics)
        return {metric.name: metric for metric in of_scope.metrics}


@pytest.fixture
def measured() -> Measured:
    return Measured()


def test_the_names_are_those_of_the_conventions(measured: Measured) -> None:
    bench = measured.bench
    bench.assign(bench.produce(0, "v0"))
    bench.until_idle()
    instruments = measured.read()
    assert set(instruments) == {
        conventions.MESSAGING_CLIENT_CONSUMED_MESSAGES,
        conventions.MESSAGING_PROCESS_DURATION,
        conventions.MESSAGING_CLIENT_OPERATION_DURATION,
    }
    units = {name: instrument.unit for name, instrument in instruments.items()}
    assert units["messaging.client.consumed.messages"] == "{message}"
    assert units["messaging.process.duration"] == units["messaging.client.operation.duration"] == "s"


def test_messages_are_counted_by_partition_once_they_are_committed(measured: Measured) -> None:
    bench = measured.bench
    bench.assign(bench.produce(0, "v0", "v1"), bench.produce(1, "v0"))
    bench.until_idle()
    bench.produce(0, "v2")
    bench.until_idle()
    points = measured.read()["messaging.client.consumed.messages"].data.data_points
    counts = {point.attributes["messaging.destination.partition.id"]: point.value for point in points}
    assert counts == {"0": 3, "1": 1}
    for point in points:
        expected = {**COMMON, "messaging.operation.name": "poll", "messaging.destination.name": "flights"}
        assert expected.items() <= point.attributes.items()


def test_a_batchs_processing_and_its_commits_are_timed(measured: Measured) -> None:
    bench = measured.bench
    bench.runner.durations.append(400)
    bench.assign(bench.produce(0, "v0", "v1"))
    bench.until_idle()
    instruments = measured.read()
    (process,) = instruments["messaging.process.duration"].data.data_points
    assert (process.count, round(process.sum, 3)) == (1, 0.4)
    assert process.attributes == {
        **COMMON,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "flights",
    }
    (commits,) = instruments["messaging.client.operation.duration"].data.data_points
    assert commits.count == 2, "the fence and the end"
    assert commits.attributes == {
        **COMMON,
        "messaging.operation.name": "commit",
        "messaging.operation.type": "settle",
    }


def test_a_refused_commit_has_its_kind_as_the_error(measured: Measured) -> None:
    bench = measured.bench
    bench.consumer.commit_errors.append(CommitFailedError("moved on"))
    bench.assign(bench.produce(0, "v0"))
    bench.until_idle()
    points = measured.read()["messaging.client.operation.duration"].data.data_points
    kinds = {point.attributes.get("error.type", ""): point.count for point in points}
    assert kinds == {"rebalanced": 1, "": 2}
