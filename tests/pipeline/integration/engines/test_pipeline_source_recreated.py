"""Streams of ``format("slackwater")`` whose topic is deleted and created again.

They are planned and read by the calls that Spark makes, with offsets as JSON of which it keeps the last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin, KafkaProducer
from slackwater.kafka.admin import NewTopic
from slackwater.pipeline.datasource import client
from slackwater.pipeline.datasource.offsets import DataLossError
from slackwater.pipeline.datasource.source import SlackwaterDataSource
from tests.client.integration.groups.consumer_harness import unique
from tests.pipeline.integration.engines import spark_source_host as host
from tests.pipeline.integration.engines.spark_process import SparkProcess
from tests.support.devbroker import DevBroker

MOST_BATCHES = 100
"""Of a run: one that goes on without end fails."""


class Query:
    """A stream that reads all of a topic, in runs with ``availableNow``."""

    def __init__(self, broker: DevBroker, topic: str) -> None:
        self._bootstrap, self.topic = broker.bootstrap, topic
        self.checkpoint: str | None = None

    def run(self, between: Callable[[int], None] = lambda _: None, **more: str) -> int:
        """Rows of a run. ``between``: called with a batch's number after it is planned, before it is read."""
        while client._consumers:  # Spark's Python processes are other ones in each run
            client._consumers.popitem()[1].close()
        source = SlackwaterDataSource({**self.options(), **more})
        reader: Any = source.streamReader(source.schema())
        try:
            reader.prepareForTriggerAvailableNow()
            start = self.checkpoint or json.dumps(reader.initialOffset())
            rows = 0
            for number in range(MOST_BATCHES):
                end = json.dumps(reader.latestOffset(json.loads(start), reader.getDefaultReadLimit()))
                if end == start:
                    return rows
                tasks = reader.partitions(json.loads(start), json.loads(end))
                between(number)
                rows += sum(batch.num_rows for task in tasks for batch in reader.read(task))
                self.checkpoint = start = end
            raise AssertionError("the run has no end")
        finally:
            reader.stop()

    def options(self) -> dict[str, str]:
        """Of the data source."""
        return {
            "kafka.bootstrap.servers": self._bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "columns": "offset",
        }

    def create(self, *records: int) -> None:
        """Creates the topic, with so many records in each of its partitions."""
        with KafkaAdmin(self._bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, len(records))]).unwrap()
            admin.wait_for_topic(self.topic, len(records))
        self.write(*records)

    def create_again(self, *records: int) -> None:
        """Deletes the topic, and creates it."""
        with KafkaAdmin(self._bootstrap) as admin:
            admin.delete_topics([self.topic]).unwrap()
        self.create(*records)

    def write(self, *records: int) -> None:
        """Appends so many records to each partition."""
        with KafkaProducer(bootstrap_servers=self._bootstrap) as producer:
            for partition, count in enumerate(records):
                for number in range(count):
                    producer.send(self.topic, b"%d" % number, partition=partition)


@pytest.fixture
def query(devbroker: DevBroker) -> Query:
    return Query(devbroker, unique("again"))


ACCEPTED = {"failOnDataLoss": "false"}


@pytest.mark.parametrize("records", [60, 100, 160])
def test_a_topic_made_again_between_runs_fails_the_stream(query: Query, records: int) -> None:
    query.create(100)
    assert query.run() == 100
    query.create_again(records)
    with pytest.raises(DataLossError, match=query.topic):
        query.run()


def test_a_topic_made_again_is_read_from_its_start_where_data_loss_is_accepted(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """One partition has more records than were read, the other fewer."""
    query.create(50, 50)
    assert query.run() == 100
    query.create_again(80, 20)
    with caplog.at_level(logging.WARNING):
        assert query.run(**ACCEPTED, maxOffsetsPerTrigger="30") == 100
    assert f"topic {query.topic} was deleted and created again" in caplog.text
    query.write(1, 2)
    assert query.run() == 3


def test_a_topic_made_again_after_a_batch_was_planned(query: Query) -> None:
    """The tasks find a log of the right length, and of other records."""
    query.create(50)
    with pytest.raises(DataLossError, match=query.topic):
        query.run(lambda _: query.create_again(50))


def test_a_topic_made_again_after_a_batch_was_planned_is_read_by_the_next_run(query: Query) -> None:
    query.create(50)
    assert query.run(lambda _: query.create_again(70), **ACCEPTED) == 0
    assert query.run(**ACCEPTED) == 70


def test_a_topic_made_again_in_the_middle_of_a_run(query: Query) -> None:
    """What the run has not read of the old topic is lost; the new one came after the end it reads to."""
    query.create(50)
    assert query.run(**ACCEPTED, maxOffsetsPerTrigger="30") == 50
    query.write(50)

    def after_the_first(number: int) -> None:
        if number == 1:
            query.create_again(70)

    assert query.run(after_the_first, **ACCEPTED, maxOffsetsPerTrigger="30") == 30
    assert query.run(**ACCEPTED) == 70


def test_the_checkpoint_of_an_earlier_version_is_read_on(query: Query) -> None:
    """It has no topic ids: only a log that ends before what was read tells."""
    query.create(50)
    assert query.run() == 50
    assert query.checkpoint is not None
    query.checkpoint = json.dumps({query.topic: json.loads(query.checkpoint)[query.topic]})
    query.write(7)
    assert query.run() == 7
    assert json.loads(query.checkpoint)["#"]["topicIds"].keys() == {query.topic}


@pytest.mark.parts("spark")
@pytest.mark.long
def test_a_stream_of_sparks_own_calls(query: Query, spark: SparkProcess, tmp_path: Path) -> None:
    def run(**more: str) -> int:
        return sum(spark.run(host.stream, {**query.options(), **more}, str(tmp_path)))

    query.create(100)
    assert run() == 100
    query.create_again(60)
    with pytest.raises(Exception, match=f"DataLossError: topic {query.topic} was deleted and created again"):
        run()
    assert run(**ACCEPTED) == 60
    query.write(100)
    assert run() == 100
