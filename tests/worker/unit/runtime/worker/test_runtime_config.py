"""The worker's configuration file: what is read, and what is said about each fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater.runtime.config.pipeline_config import sinks_of
from slackwater.runtime.config.sink_config import SinkConfig
from slackwater.runtime.config.worker_config import (
    TakeoverConfig,
    TelemetryConfig,
    dump,
    load,
    parse,
)
from slackwater.runtime.errors import ConfigError
from slackwater.runtime.takeover.signing import load_key
from slackwater.tracing.settings import MetricSettings, TraceSettings

TELEMETRY = {
    "traces": {"endpoint": "http://otel:4318", "sampleRatio": 0.05},
    "metrics": {"endpoint": "https://otel.example/otlp", "intervalMs": 10_000},
}
FULL = """\
groupId: flights
topics: [flights]
bootstrapServers: 127.0.0.1:9092
properties: {session.timeout.ms: "45000", max.poll.records: 5000, check.crcs: true}
handler: flights.pipeline:transform
handlerPath: [examples]
engine: spark
spark: {remote: "", conf: {spark.ui.enabled: false, spark.sql.shuffle.partitions: 2}}
sink: {format: parquet, path: /data/out}
deadLetterTopic: flights.dlq
drainTimeoutMs: 20000
joinGateMs: 1000
health: {host: 127.0.0.1, port: 8080}
"""
SMALL: dict[str, Any] = {
    "groupId": "g",
    "topics": ["t"],
    "bootstrapServers": "h:1",
    "handler": "m:f",
    "sink": {"format": "parquet", "path": "out"},
}
ICEBERG = {"format": "iceberg", "table": "lake.flights", "options": {"type": "sql", "uri": "hush"}}
DELTA = {"format": "delta", "path": "s3://lake/flights", "options": {"aws_secret_access_key": "hush"}}
POSTGRES = {"format": "postgres", "table": "public.flights"}
CUSTOM = {"format": "custom", "implementation": "flights.sqlite:SqliteSink"}
ORC = {"format": "spark", "sparkFormat": "orc"}
TOPIC = {"format": "kafka", "topic": "flights.delayed"}
MERGE = {**POSTGRES, "mode": "merge", "key": ["k"], "aggregates": {"n": "count"}}


def write(folder: Path, text: str) -> Path:
    file = folder / "worker.yaml"
    file.write_text(text)
    return file


def test_a_full_file_is_read(tmp_path: Path) -> None:
    config = load(write(tmp_path, FULL))
    assert config.properties == {
        "session.timeout.ms": "45000",
        "max.poll.records": "5000",
        "check.crcs": "true",
    }
    assert config.spark.conf == {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    assert config.sink == SinkConfig("parquet", "/data/out")
    assert (config.topics, config.handler_path) == (("flights",), ("examples",))
    assert (config.drain_timeout_ms, config.join_gate_ms, config.health.port) == (20_000, 1000, 8080)
    assert config.session_timeout_ms == 45_000
    assert config.handler_timeout_ms == 270_000


def test_a_small_file_gets_defaults() -> None:
    config = parse(SMALL)
    assert (config.engine, config.dead_letter_topic, config.drain_timeout_ms) == ("spark", None, 15_000)
    assert (config.retries, config.health.port, config.join_gate_ms) == (2, 0, 0)


def test_dump_is_read_back_as_the_same(tmp_path: Path) -> None:
    config = load(write(tmp_path, FULL))
    assert parse(dump(config)) == config
    assert load(write(tmp_path, json.dumps(dump(config), indent=2))) == config
    assert parse(dump(parse(SMALL))) == parse(SMALL)


def test_a_delta_sink_has_options_partitions_and_a_rule_for_new_columns() -> None:
    given = {
        **DELTA,
        "options": {"allow_http": True},
        "partitionBy": ["day", "carrier"],
        "newColumns": "reject",
    }
    config = parse({**SMALL, "sink": given})
    expected = SinkConfig(
        "delta",
        "s3://lake/flights",
        options={"allow_http": "true"},
        partition_by=("day", "carrier"),
        new_columns="reject",
    )
    assert config.sink == expected
    assert parse(dump(config)) == config


def test_an_iceberg_sink_has_a_table() -> None:
    config = parse({**SMALL, "sink": ICEBERG})
    assert config.sink == SinkConfig("iceberg", options={"type": "sql", "uri": "hush"}, table="lake.flights")
    assert parse(dump(config)) == config
    assert dump(config)["sink"] == ICEBERG
    assert "hush" not in repr(config)


def test_routes_have_sinks_with_the_options_of_the_other_if_the_format_is_the_same() -> None:
    routes = [
        {"when": "kind = 'a'", "sink": {"format": "iceberg", "table": "lake.a"}},
        {
            "when": "kind = 'b'",
            "sink": {**DELTA, "path": "s3://lake/{kind}", "tables": {"limit": 3}},
            "continue": True,
        },
    ]
    config = parse({**SMALL, "sink": ICEBERG, "routes": routes})
    assert [(route.when, route.continue_) for route in config.routes] == [
        ("kind = 'a'", False),
        ("kind = 'b'", True),
    ]
    assert {path: sink.options for path, sink in sinks_of(config).items()} == {
        "sink": ICEBERG["options"],
        "routes[0].sink": ICEBERG["options"],
        "routes[1].sink": DELTA["options"],
    }
    assert parse(dump(config)) == config
    assert dump(config)["routes"][0] == routes[0]


def test_a_postgres_sink_has_a_table_a_mode_a_key_and_aggregates() -> None:
    config = parse({**SMALL, "sink": {**MERGE, "options": {"host": "db", "port": 5432}}})
    assert config.sink == SinkConfig(
        "postgres",
        table="public.flights",
        options={"host": "db", "port": "5432"},
        mode="merge",
        key=("k",),
        aggregates={"n": "count"},
    )
    assert parse(dump(config)) == config
    assert dump(parse({**SMALL, "sink": POSTGRES}))["sink"] == POSTGRES


def test_a_sink_of_ones_own_has_an_implementation_and_options() -> None:
    config = parse({**SMALL, "sink": {**CUSTOM, "options": {"file": "flights.db"}}})
    assert config.sink == SinkConfig(
        "custom", implementation="flights.sqlite:SqliteSink", options={"file": "flights.db"}
    )
    assert parse(dump(config)) == config
    assert dump(parse({**SMALL, "sink": CUSTOM}))["sink"] == CUSTOM


def test_a_topic_of_another_cluster_may_have_the_name_of_one_that_is_read() -> None:
    config = parse({**SMALL, "sink": {**TOPIC, "topic": "t", "options": {"bootstrap.servers": "b:1"}}})
    assert config.sink == SinkConfig("kafka", topic="t", options={"bootstrap.servers": "b:1"})
    assert parse(dump(config)) == config
    assert dump(parse({**SMALL, "sink": TOPIC}))["sink"] == TOPIC
    assert config.uses_topic("t")
    assert not config.uses_topic("flights.delayed")


def test_a_format_of_spark_has_options_and_columns_of_folders() -> None:
    config = parse({**SMALL, "sink": {**ORC, "options": {"path": "o"}, "partitionBy": ["day"]}})
    assert config.sink == SinkConfig(
        "spark", spark_format="orc", options={"path": "o"}, partition_by=("day",)
    )
    assert parse(dump(config)) == config
    assert dump(parse({**SMALL, "sink": ORC}))["sink"] == ORC


def test_dump_writes_the_newer_fields_of_a_sink_only_where_they_differ_from_their_defaults() -> None:
    assert dump(parse(SMALL))["sink"] == SMALL["sink"]
    defaults = {"options": {}, "partitionBy": [], "newColumns": "add"}
    assert dump(parse({**SMALL, "sink": {**SMALL["sink"], **defaults}}))["sink"] == SMALL["sink"]


def test_a_config_that_is_printed_does_not_show_storage_options() -> None:
    assert "hush" not in repr(parse({**SMALL, "sink": DELTA}))


def test_the_handlers_time_follows_the_poll_interval() -> None:
    config = parse({**SMALL, "properties": {"max.poll.interval.ms": "60000"}})
    assert config.handler_timeout_ms == 54_000


def test_flow_style_yaml_that_is_no_json_is_read(tmp_path: Path) -> None:
    text = (
        "{groupId: g, topics: [t], bootstrapServers: 'h:1', handler: 'm:f', sink: {format: parquet, path: o}}"
    )
    assert load(write(tmp_path, text)).group_id == "g"


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"drainTimeout": 1}, "drainTimeout", "did you mean drainTimeoutMs"),
        ({"zzz": 1}, "zzz", "valid values: .*groupId"),
        ({"sink": {"format": "parquet", "path": "o", "pth": 1}}, "sink.pth", "did you mean path"),
        ({"sink": {"format": "parquet"}}, "sink.path", "is required with format parquet or delta"),
        ({"sink": {"format": "parqet", "path": "o"}}, "sink.format", "did you mean parquet"),
        ({"sink": {**DELTA, "partitionBy": "day"}}, "sink.partitionBy", r"must be a list.*\[day\]"),
        ({"sink": {**DELTA, "partitionBy": ["day", "day"]}}, r"sink.partitionBy\[1\]", "is listed twice"),
        ({"sink": {**DELTA, "newColumns": "drop"}}, "sink.newColumns", "valid values: add, reject"),
        ({"sink": {**DELTA, "options": {"k": ["v"]}}}, "sink.options.k", "must be text, but is a list"),
        (
            {"sink": {**CUSTOM, "implementation": "SqliteSink"}},
            "sink.implementation",
            "'SqliteSink' has an invalid format; use a value such as flights.sqlite:SqliteSink",
        ),
        ({"sink": ORC, "engine": "arrow"}, "sink.format", "spark requires engine spark; set engine"),
        (
            {"sink": {**SMALL["sink"], "maxAgeMs": 1000}, "lineage": "batch"},
            "sink.maxAgeMs",
            "does not apply to lineage batch",
        ),
        ({"sink": {**TOPIC, "topic": "t"}}, "sink.topic", "t is also a topic that the group reads, or its"),
        (
            {"sink": TOPIC, "deadLetterTopic": "flights.delayed"},
            "sink.topic",
            "flights.delayed is also a topic that the group reads, or its dead-letter topic; choose another",
        ),
        (
            {"sink": TOPIC, "topics": [], "topicPattern": "flights.*"},
            "sink.topic",
            "flights.delayed is also a topic that the group reads",
        ),
        ({"sink": "out"}, "sink", "must be a mapping"),
        ({"groupId": None}, "groupId", "is missing"),
        ({"groupId": 7}, "groupId", "must be text, but is the number 7"),
        ({"groupId": " "}, "groupId", "must not be empty"),
        ({"groupId": "g.backfill.x"}, "groupId", "is the name of a backfill"),
        ({"topics": "flights"}, "topics", r"must be a list.*\[flights\]"),
        ({"topics": []}, "topics", "at least one"),
        ({"topics": ["a", 3]}, r"topics\[1\]", "must be text"),
        ({"topics": ["a", "a"]}, r"topics\[1\]", "is listed twice"),
        ({"bootstrapServers": "localhost"}, "bootstrapServers", "host:port"),
        ({"bootstrapServers": "h:99999"}, "bootstrapServers", "host:port"),
        ({"handler": "flights.pipeline"}, "handler", "use a value such as flights.pipeline:transform"),
        ({"handler": "flights..pipeline:f"}, "handler", "has an invalid format"),
        ({"engine": "sparc"}, "engine", "did you mean spark"),
        ({"spark": {"remote": "http://x"}}, "spark.remote", "sc://"),
        ({"spark": {"conf": {"a": [1]}}}, "spark.conf.a", "must be text, but is a list"),
        ({"drainTimeoutMs": "15s"}, "drainTimeoutMs", "whole number"),
        ({"drainTimeoutMs": True}, "drainTimeoutMs", "whole number"),
        ({"drainTimeoutMs": -1}, "drainTimeoutMs", "between 0 and"),
        ({"batchIntervalMs": 5_001}, "batchIntervalMs", "between 0 and 5000"),
        ({"health": {"port": 70000}}, "health.port", "between 0 and 65535"),
        ({"properties": {"group.id": "x"}}, "properties.group.id", "groupId instead"),
        (
            {"properties": {"group.instance.id": "x"}},
            "properties.group.instance.id",
            "SLACKWATER_INSTANCE_ID",
        ),
        ({"properties": {"bootstrap.servers": "x"}}, "properties.bootstrap.servers", "bootstrapServers"),
        ({"properties": {"enable.auto.commit": "true"}}, "properties.enable.auto.commit", "remove it"),
        ({"properties": {"interceptor.classes": "m:Mask"}}, "properties.interceptor.classes", "remove it"),
        ({"properties": {"session.timeout.ms": "45s"}}, "properties.session.timeout.ms", "whole number"),
        ({"properties": ["a"]}, "properties", "must be a mapping"),
        ({"deadLetterTopic": "t"}, "deadLetterTopic", "also a consumed topic"),
        ({"handlerTimeoutMs": 300_000}, "handlerTimeoutMs", r"below max.poll.interval.ms \(300000\)"),
    ],
)
def test_each_fault_names_file_and_field(change: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^worker.yaml: {field}: .*{words}") as raised:
        parse({**SMALL, **change}, "worker.yaml")
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", r"line \d, column \d: not valid YAML"),
        ("groupId: a\n\tb: c", "line 2, column 1"),
        ("- 1", r"must be a mapping \(of .*groupId"),
        ("", "must be a mapping"),
        ("!!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"worker.yaml: .*{words}"):
        load(write(tmp_path, text))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "binary")


def test_what_is_dumped_is_read_again() -> None:
    pattern = {"topics": [], "topicPattern": "t-.*", "deadLetterTopic": "d"}
    takeover = {
        "takeover": {"keyFile": "key", "deadlineMs": 5},
        "telemetry": {"traces": {"sampleRatio": 0.5}},
    }
    registry = {"url": "http://a,http://b", "subject": "s", "version": 3}
    for change in (pattern, takeover, {"value": {"format": "avro", "registry": registry}}):
        config = parse({**SMALL, **change})
        assert parse(dump(config)) == config


def test_the_deadline_of_a_takeover_is_the_drain_and_five_seconds() -> None:
    config = parse({**SMALL, "drainTimeoutMs": 7_000, "takeover": {"keyFile": "key"}})
    assert config.takeover == TakeoverConfig("key")
    assert config.takeover_deadline_ms == 12_000
    assert parse({**SMALL, "takeover": {"keyFile": "key", "deadlineMs": 3}}).takeover_deadline_ms == 3
    assert parse(SMALL).takeover is None
    with pytest.raises(ConfigError, match=r"takeover\.keyFile: is missing"):
        parse({**SMALL, "takeover": {}})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory; put the group's key there"),
        ("", "holds no key: it must be 32 random bytes in hex .64 digits., as `openssl rand -hex 32`"),
        ("ab" * 31, "holds no key"),
        ("x" * 64, "holds no key"),
        ("\u00fc" * 64, "holds no key"),
    ],
)
def test_a_key_that_cannot_be_used_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"worker.yaml: takeover.keyFile: .*{words}"):
        load_key(TakeoverConfig(str(file)), "worker.yaml")


def test_a_key_is_read_with_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("ab" * 32 + "\n")
    assert load_key(TakeoverConfig(str(tmp_path / "key")), "") == b"\xab" * 32


def test_telemetry_is_off_and_each_section_turns_its_part_on() -> None:
    assert parse(SMALL).telemetry == TelemetryConfig()
    given = parse({**SMALL, "telemetry": TELEMETRY})
    assert given.telemetry == TelemetryConfig(
        TraceSettings("http://otel:4318", 0.05), MetricSettings(10_000, "https://otel.example/otlp")
    )
    assert parse(dump(given)) == given
    by_environment = parse({**SMALL, "telemetry": {"traces": {}}})
    assert by_environment.telemetry == TelemetryConfig(TraceSettings("", None))
    assert parse(dump(by_environment)) == by_environment


@pytest.mark.parametrize(
    ("traces", "field", "problem"),
    [
        ({"endpoint": "otel:4318"}, "endpoint", "has an invalid format"),
        ({"endpoint": "grpc://otel:4317"}, "endpoint", "use a value such as http://otel-collector"),
        ({"sampleRatio": 1.5}, "sampleRatio", "is 1.5, but must be between 0 and 1"),
        ({"sampleRatio": "1%"}, "sampleRatio", "must be a number, but is the text"),
        ({"sampler": 1}, "sampler", "unknown field"),
    ],
)
def test_traces_that_cannot_be_sent_are_refused(traces: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"telemetry.traces.{field}.*{problem}"):
        parse({**SMALL, "telemetry": {"traces": traces}})
