"""`slackwater.spark.marks`: where the table of a group ends, for the data source."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
import yaml

from slackwater.kafka import KafkaAdmin
from slackwater.kafka.admin import NewTopic
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline import make_sink
from slackwater.pipeline.datasource.options import parse as parse_options
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import ConfigError, StartError
from slackwater.runtime.interfaces import Range
from slackwater.spark import marks
from slackwater.tools.topics import topics_of
from tests.support.devbroker import DevBroker


@pytest.fixture
def topic(devbroker: DevBroker) -> str:
    name = f"marks-{uuid4().hex[:8]}"
    with KafkaAdmin(devbroker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 2)]).unwrap()
        admin.wait_for_topic(name, 2)
    return name


def test_the_marks_of_a_group_are_where_a_query_begins(
    devbroker: DevBroker, topic: str, tmp_path: Path
) -> None:
    document = {
        "groupId": "g",
        "topics": [topic],
        "bootstrapServers": "127.0.0.1:1",
        "handler": "a:b",
        "sink": {"format": "parquet", "path": str(tmp_path / "table")},
    }
    config = parse({**document, "bootstrapServers": devbroker.bootstrap})
    topic_id = topics_of(config)[topic].id
    rows = pa.table({"topic": [topic], "partition": pa.array([0], pa.int32()), "offset": [3], "n": [1]})
    sink = make_sink(config)
    sink.marks([TopicPartition(topic, 0)])
    sink.stage(rows, {TopicPartition(topic, 0): Range(topic_id, 0, 5, None)}).publish()

    worker_file = tmp_path / "worker.yaml"
    worker_file.write_text(yaml.safe_dump(document))
    text = marks(worker_file, bootstrap=devbroker.bootstrap)
    beside = {"version": 2, "topicIds": {topic: topic_id}}
    assert json.loads(text) == {topic: {"0": 5, "1": -2}, "#": beside}
    options = {"kafka.bootstrap.servers": devbroker.bootstrap, "subscribe": topic, "startingOffsets": text}
    start = parse_options(options).start
    assert start is not None
    assert start.offsets == {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): -2}

    resource = {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "g"},
        "spec": {
            "topics": [topic],
            "kafka": {"bootstrapServers": "127.0.0.1:1"},
            "pipeline": {"handler": "a:b", "sink": {"path": str(tmp_path / "table")}},
        },
    }
    resource_file = tmp_path / "group.yaml"
    resource_file.write_text(yaml.safe_dump(resource))
    assert marks(str(resource_file), bootstrap=devbroker.bootstrap) == text


def test_what_has_no_marks_is_refused(devbroker: DevBroker, topic: str, tmp_path: Path) -> None:
    document = {
        "groupId": "g",
        "topics": [topic],
        "bootstrapServers": devbroker.bootstrap,
        "handler": "a:b",
        "sink": {"format": "kafka", "topic": "out"},
    }
    file = tmp_path / "worker.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="a sink of format kafka has no marks"):
        marks(file)
    table = {"format": "parquet", "path": str(tmp_path / "table")}
    other = {"when": "x = 1", "sink": {"format": "parquet", "path": str(tmp_path / "other")}}
    file.write_text(yaml.safe_dump({**document, "sink": table, "routes": [other]}))
    with pytest.raises(ConfigError, match="of several tables") as caught:
        marks(file)
    assert caught.value.field == "routes"
    file.write_text(yaml.safe_dump({**document, "topics": ["no-such-topic"], "sink": table}))
    with pytest.raises(StartError, match="there is no topic no-such-topic"):
        marks(file)
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        marks(tmp_path / "none.yaml")
