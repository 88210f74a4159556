"""What a worker is told: the runtime must be able to read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater.runtime.config import worker_config as runtime
from slackwater.runtime.config.sink_config import SinkConfig
from slackwater_operator.api.v1alpha1.consumer_group import parse
from slackwater_operator.local.source import Source, read_source
from slackwater_operator.specs.worker_config import pod_config
from tests.operator.unit.specs.built_group import group


def source(folder: Path, **pipeline: Any) -> Source:
    document = {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "flights"},
        "spec": {
            "kafka": {"bootstrapServers": "a:1, b:2", "properties": {"max.poll.records": "7"}},
            "topics": ["flights", "more"],
            "pipeline": {"handler": "flights.pipeline:transform", "sink": {"path": "out"}, **pipeline},
        },
    }
    return Source(document, folder / "examples" / "flights", folder)


def written(worker_source: Source, folder: Path, remote: str = "") -> runtime.WorkerConfig:
    document = pod_config(parse(worker_source.on_spark(remote).resource()))
    (folder / "worker.json").write_text(json.dumps(document))
    return runtime.load(folder / "worker.json")


def test_the_runtime_reads_what_is_written(tmp_path: Path) -> None:
    config = written(source(tmp_path, deadLetterTopic="flights.dlq", handlerTimeout="90s"), tmp_path)
    assert config.group_id == "flights"
    assert config.topics == ("flights", "more")
    assert config.properties["max.poll.records"] == "7"
    assert config.properties["session.timeout.ms"] == "45000"
    assert config.dead_letter_topic == "flights.dlq"
    assert config.handler_timeout_ms == 90_000
    assert config.join_gate_ms > 60_000
    assert config.sink.path == str(tmp_path / "out")


def test_the_handler_is_looked_for_at_the_file_and_above(tmp_path: Path) -> None:
    file_folder = tmp_path / "examples" / "flights"
    assert written(source(tmp_path), tmp_path).handler_path == (str(file_folder), str(file_folder.parent))
    given = source(tmp_path, handlerPath=["../src", "/abs"])
    assert written(given, tmp_path).handler_path == (str(tmp_path / "examples" / "src"), "/abs")


def test_a_sink_elsewhere_is_left_as_it_is(tmp_path: Path) -> None:
    config = written(source(tmp_path, sink={"path": "file:///data/flights"}), tmp_path)
    assert config.sink.path == "file:///data/flights"


@pytest.mark.parametrize(
    "path",
    [
        "s3://lake/tables/flights",
        "gs://lake/flights",
        "az://lake/flights",
        "abfss://lake@storage.dfs.core.windows.net/flights",
        "file:///data/flights",
    ],
)
def test_the_address_of_a_table_is_left_as_it_is(tmp_path: Path, path: str) -> None:
    config = written(source(tmp_path, sink={"format": "delta", "path": path}), tmp_path)
    assert (config.sink.format, config.sink.path) == ("delta", path)


def test_a_table_in_a_relative_folder_starts_at_the_current_folder(tmp_path: Path) -> None:
    config = written(source(tmp_path, sink={"format": "delta", "path": "tables/out"}), tmp_path)
    assert config.sink.path == str(tmp_path / "tables" / "out")


def test_the_runtime_reads_the_fields_of_a_table(tmp_path: Path) -> None:
    sink = {
        "format": "delta",
        "path": "s3://lake/flights",
        "options": {"AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"},
        "partitionBy": ["day", "carrier"],
        "newColumns": "reject",
    }
    assert written(source(tmp_path, sink=sink), tmp_path).sink == SinkConfig(
        format="delta",
        path="s3://lake/flights",
        options={"AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"},
        partition_by=("day", "carrier"),
        new_columns="reject",
    )


def test_the_runtime_reads_ages_and_sizes_of_files(tmp_path: Path) -> None:
    made = written(source(tmp_path, sink={"path": "out", "maxAge": "90s", "targetFileSize": "1Gi"}), tmp_path)
    assert (made.sink.max_age_ms, made.sink.target_file_bytes) == (90_000, 2**30)


def test_a_table_in_a_catalog_has_no_path(tmp_path: Path) -> None:
    sink = {"format": "iceberg", "table": "lake.flights", "options": {"uri": "sqlite:///catalog.db"}}
    expected = SinkConfig("iceberg", options={"uri": "sqlite:///catalog.db"}, table="lake.flights")
    assert written(source(tmp_path, sink=sink), tmp_path).sink == expected
    assert pod_config(group(**{"spec/pipeline/sink": sink}))["sink"] == sink


def test_the_runtime_reads_the_fields_of_a_postgres_table(tmp_path: Path) -> None:
    sink = {
        "format": "postgres",
        "table": "public.flights",
        "options": {"host": "db", "sslmode": "require"},
        "mode": "merge",
        "key": ["minute"],
        "aggregates": {"flights": "count"},
    }
    assert written(source(tmp_path, sink=sink), tmp_path).sink == SinkConfig(
        format="postgres",
        table="public.flights",
        options={"host": "db", "sslmode": "require"},
        mode="merge",
        key=("minute",),
        aggregates={"flights": "count"},
    )
    assert pod_config(group(**{"spec/pipeline/sink": sink}))["sink"] == sink


def test_the_runtime_reads_the_fields_of_a_sink_of_ones_own(tmp_path: Path) -> None:
    sink = {
        "format": "custom",
        "options": {"file": "/data/flights.db"},
        "implementation": "flights.sqlite:SqliteSink",
    }
    assert written(source(tmp_path, sink=sink), tmp_path).sink == SinkConfig(
        format="custom",
        options={"file": "/data/flights.db"},
        implementation="flights.sqlite:SqliteSink",
    )
    assert pod_config(group(**{"spec/pipeline/sink": sink}))["sink"] == sink


def test_the_runtime_reads_the_fields_of_a_topic(tmp_path: Path) -> None:
    sink = {"format": "kafka", "options": {"compression.type": "lz4"}, "topic": "flights.delayed"}
    assert written(source(tmp_path, sink=sink), tmp_path).sink == SinkConfig(
        format="kafka", options={"compression.type": "lz4"}, topic="flights.delayed"
    )
    assert pod_config(group(**{"spec/pipeline/sink": sink}))["sink"] == sink


def test_the_runtime_reads_the_fields_of_a_format_of_spark(tmp_path: Path) -> None:
    sink = {"format": "spark", "options": {"path": "/data/x"}, "partitionBy": ["day"], "sparkFormat": "orc"}
    made = source(tmp_path, sink=sink, engine="spark")
    assert written(made, tmp_path).sink == SinkConfig(
        format="spark", options={"path": "/data/x"}, partition_by=("day",), spark_format="orc"
    )
    on_spark = {"spec/pipeline/engine": "spark", "spec/pipeline/sink": sink}
    assert pod_config(group(**on_spark))["sink"] == sink


@pytest.mark.parametrize(
    "given",
    [
        {},
        {
            "options": {},
            "partitionBy": [],
            "newColumns": "add",
            "mode": "append",
            "key": [],
            "aggregates": {},
            "maxAge": "0s",
            "targetFileSize": "64Mi",
        },
    ],
)
def test_defaults_of_the_sink_are_not_written(given: dict[str, Any]) -> None:
    """So that an upgrade of the operator, or of the CRD with its defaults, restarts no worker."""
    document = pod_config(group(**{f"spec/pipeline/sink/{name}": value for name, value in given.items()}))
    assert document["sink"] == {"format": "parquet", "path": "/data/flights"}


@pytest.mark.parametrize(
    ("name", "value"), [("options", {"AWS_REGION": "eu"}), ("partitionBy", ["day"]), ("newColumns", "reject")]
)
def test_only_the_changed_field_of_the_sink_is_written(name: str, value: object) -> None:
    sink = {"format": "delta", "path": "/data/flights", name: value}
    assert pod_config(group(**{"spec/pipeline/sink": sink}))["sink"] == sink


@pytest.mark.parametrize(("own", "expected"), [("", "sc://127.0.0.1:9"), ("sc://else:1", "sc://else:1")])
def test_a_remote_of_its_own_counts_more(tmp_path: Path, own: str, expected: str) -> None:
    config = written(source(tmp_path, spark={"remote": own}), tmp_path, "sc://127.0.0.1:9")
    assert config.spark.remote == expected


@pytest.mark.parametrize(("session", "heartbeat"), [("6000", "2000"), ("45000", "3000")])
def test_a_short_session_has_quicker_heartbeats(tmp_path: Path, session: str, heartbeat: str) -> None:
    worker_source = source(tmp_path)
    worker_source.manifest["spec"]["kafka"]["properties"]["session.timeout.ms"] = session
    assert written(worker_source, tmp_path).properties["heartbeat.interval.ms"] == heartbeat


def test_other_brokers_replace_the_files(tmp_path: Path) -> None:
    assert written(source(tmp_path).at("c:3"), tmp_path).bootstrap_servers == "c:3"


def test_the_example_is_read(tmp_path: Path) -> None:
    file = Path(__file__).parents[4] / "examples" / "flights" / "consumergroup.yaml"
    config = written(read_source(file, tmp_path), tmp_path)
    assert config.handler == "flights.pipeline:transform"
    assert str(file.parents[1]) in config.handler_path
    assert json.loads((tmp_path / "worker.json").read_text())["groupId"] == "flights"
