"""What a worker is started from, and which changes of the resource restart it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slackwater import fields
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.runtime.config import worker_config as runtime
from slackwater_operator.api.v1alpha1 import consumer_group as resources
from slackwater_operator.model import names
from slackwater_operator.specs.statefulset import Revision, revision
from tests.operator.unit.api.test_docs import leaves
from tests.operator.unit.specs.built_group import IMAGE, group
from tests.support.operator.bad_resources import GONE

SASL = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "credentialsSecret": "user"}
SSL = {"protocol": "SSL", "caSecret": "ca"}
SPARK = {"spec/pipeline/engine": "spark"}
TAKEOVER = {"spec/rollout/strategy": "Takeover"}
_ICEBERG = {"format": "iceberg", "table": "lake.flights"}
ICEBERG = {"spec/pipeline/sink": _ICEBERG}
DELTA = {"spec/pipeline/sink/format": "delta"}
POSTGRES = {"format": "postgres", "table": "public.flights"}
UPSERT = {**POSTGRES, "mode": "upsert", "key": ["id"]}
CUSTOM = {"format": "custom", "implementation": "flights.sqlite:SqliteSink"}
TOPIC = {"format": "kafka", "topic": "flights.delayed"}
ORC = {"format": "spark", "sparkFormat": "orc"}
CHANGES = {**UPSERT, "mode": "changes"}
MERGE = {**UPSERT, "mode": "merge", "aggregates": {"n": "count"}}
TRACES: dict[str, Any] = {"spec/telemetry/traces": {}}
NONE: dict[str, Any] = {}
_BY_NAME = {"format": "delta", "path": "/data/{kind}", "tables": {}}
BY_NAME = {"spec/pipeline/sink": _BY_NAME}
ROUTES = {"spec/pipeline/routes": [{"when": "kind = 'a'", "sink": {"format": "delta", "path": "/data/a"}}]}
JSON = {"format": "json", "schema": "a INT"}


def registered(**changes: Any) -> dict[str, Any]:
    """A group with values of a schema registry."""
    registry = {"url": "https://registry:8081", "subject": "flights-value", **changes}
    return {"spec/pipeline/value": {"format": "avro", "registry": registry}}


def kinds(**subjects: str) -> dict[str, Any]:
    """A group with values of several kinds."""
    registry = {"url": "https://registry:8081", "subjects": subjects}
    return {"spec/pipeline/value": {"format": "avro", "registry": registry}}


RESTARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "spec.groupId": (NONE, {"spec/groupId": "other"}),
    "spec.kafka.bootstrapServers": (NONE, {"spec/kafka/bootstrapServers": "other:9092"}),
    "spec.kafka.security.protocol": (NONE, {"spec/kafka/security": {"protocol": "SSL"}}),
    "spec.kafka.security.mechanism": (
        {"spec/kafka/security": SASL},
        {"spec/kafka/security": {**SASL, "mechanism": "PLAIN"}},
    ),
    "spec.kafka.security.credentialsSecret": (
        {"spec/kafka/security": SASL},
        {"spec/kafka/security": {**SASL, "credentialsSecret": "other"}},
    ),
    "spec.kafka.security.caSecret": (
        {"spec/kafka/security": SSL},
        {"spec/kafka/security": {**SSL, "caSecret": "other"}},
    ),
    "spec.kafka.security.clientCertificateSecret": (
        {"spec/kafka/security": SSL},
        {"spec/kafka/security": {**SSL, "clientCertificateSecret": "mine"}},
    ),
    "spec.kafka.groupProtocol": (
        {"spec/kafka/properties": {}},
        {"spec/kafka/properties": {}, "spec/kafka/groupProtocol": "Consumer"},
    ),
    "spec.kafka.properties": (NONE, {"spec/kafka/properties/max.poll.records": "100"}),
    "spec.topics": (NONE, {"spec/topics": ["flights", "more"]}),
    "spec.topicPattern": (NONE, {"spec/topics": GONE, "spec/topicPattern": "flights"}),
    "spec.pipeline.image": (NONE, {"spec/pipeline/image": "registry.example/flights:2"}),
    "spec.pipeline.handler": (NONE, {"spec/pipeline/handler": "flights.pipeline:other"}),
    "spec.pipeline.handlerPath": (NONE, {"spec/pipeline/handlerPath": ["/app"]}),
    "spec.pipeline.handlerTimeout": (NONE, {"spec/pipeline/handlerTimeout": "1m"}),
    "spec.pipeline.concurrency": (NONE, {"spec/pipeline/concurrency": 100}),
    "spec.pipeline.lineage": (NONE, {"spec/pipeline/lineage": "batch"}),
    "spec.pipeline.refreshEvery": (NONE, {"spec/pipeline/refreshEvery": "1h"}),
    "spec.pipeline.engine": (NONE, {"spec/pipeline/engine": "python"}),
    "spec.pipeline.spark.remote": (SPARK, {**SPARK, "spec/pipeline/spark/remote": "sc://spark:15002"}),
    "spec.pipeline.spark.conf": (SPARK, {**SPARK, "spec/pipeline/spark/conf": {"spark.ui.enabled": "false"}}),
    "spec.pipeline.spark.startTimeout": (SPARK, {**SPARK, "spec/pipeline/spark/startTimeout": "5m"}),
    "spec.pipeline.value.format": (NONE, {"spec/pipeline/value": JSON}),
    "spec.pipeline.value.schema": (
        {"spec/pipeline/value": JSON},
        {"spec/pipeline/value": {**JSON, "schema": "a INT, b INT"}},
    ),
    "spec.pipeline.value.schemaFile": (
        {"spec/pipeline/value": {"format": "avro", "schemaFile": "/app/a.avsc"}},
        {"spec/pipeline/value": {"format": "avro", "schemaFile": "/app/b.avsc"}},
    ),
    "spec.pipeline.value.timestampUnit": (
        {"spec/pipeline/value": {"format": "json", "schema": "a TIMESTAMP"}},
        {"spec/pipeline/value": {"format": "json", "schema": "a TIMESTAMP", "timestampUnit": "seconds"}},
    ),
    "spec.pipeline.value.source": (
        {"spec/pipeline/value": {"format": "debezium", "schema": "a INT"}},
        {"spec/pipeline/value": {"format": "debezium", "schema": "a INT", "source": "lsn BIGINT"}},
    ),
    "spec.pipeline.value.readerSchema": (
        {"spec/pipeline/value": {"format": "avro", "schema": "{}"}},
        {"spec/pipeline/value": {"format": "avro", "schema": "{}", "readerSchema": "{}"}},
    ),
    "spec.pipeline.value.message": (
        {"spec/pipeline/value": {"format": "protobuf", "schemaFile": "/app/set"}},
        {"spec/pipeline/value": {"format": "protobuf", "schemaFile": "/app/set", "message": "air.Flight"}},
    ),
    **{
        f"spec.pipeline.value.registry.{name}": (registered(), registered(**{name: value}))
        for name, value in {
            "url": "https://other:8081",
            "subject": "other",
            "version": "3",
            "credentialsSecret": "user",
            "caSecret": "ca",
            "clientCertificateSecret": "mine",
        }.items()
    },
    "spec.pipeline.value.registry.subjects": (kinds(order="orders"), kinds(order="orders-v2")),
    "spec.pipeline.sink.format": (NONE, DELTA),
    "spec.pipeline.sink.path": (NONE, {"spec/pipeline/sink/path": "/data/more"}),
    "spec.pipeline.sink.table": (ICEBERG, {"spec/pipeline/sink": {**_ICEBERG, "table": "lake.more"}}),
    "spec.pipeline.sink.options": (DELTA, {**DELTA, "spec/pipeline/sink/options": {"AWS_REGION": "eu"}}),
    "spec.pipeline.sink.partitionBy": (NONE, {"spec/pipeline/sink/partitionBy": ["day"]}),
    "spec.pipeline.sink.tables.allow": (
        BY_NAME,
        {"spec/pipeline/sink": {**_BY_NAME, "tables": {"allow": "a|b"}}},
    ),
    "spec.pipeline.sink.tables.limit": (
        BY_NAME,
        {"spec/pipeline/sink": {**_BY_NAME, "tables": {"limit": 3}}},
    ),
    "spec.pipeline.routes": (NONE, ROUTES),
    "spec.pipeline.sink.mode": ({"spec/pipeline/sink": POSTGRES}, {"spec/pipeline/sink": UPSERT}),
    "spec.pipeline.sink.version": (
        {"spec/pipeline/sink": CHANGES},
        {"spec/pipeline/sink": {**CHANGES, "version": "lsn"}},
    ),
    "spec.pipeline.sink.deletedFor": (
        {"spec/pipeline/sink": CHANGES},
        {"spec/pipeline/sink": {**CHANGES, "deletedFor": "1h"}},
    ),
    "spec.pipeline.sink.key": (
        {"spec/pipeline/sink": UPSERT},
        {"spec/pipeline/sink": {**UPSERT, "key": ["id", "day"]}},
    ),
    "spec.pipeline.sink.aggregates": (
        {"spec/pipeline/sink": MERGE},
        {"spec/pipeline/sink": {**MERGE, "aggregates": {"n": "sum"}}},
    ),
    "spec.pipeline.sink.implementation": (
        {"spec/pipeline/sink": CUSTOM},
        {"spec/pipeline/sink": {**CUSTOM, "implementation": "flights.sqlite:Other"}},
    ),
    "spec.pipeline.sink.topic": (
        {"spec/pipeline/sink": TOPIC},
        {"spec/pipeline/sink": {**TOPIC, "topic": "flights.late"}},
    ),
    "spec.pipeline.sink.sparkFormat": (
        {**SPARK, "spec/pipeline/sink": ORC},
        {**SPARK, "spec/pipeline/sink": {**ORC, "sparkFormat": "csv"}},
    ),
    "spec.pipeline.sink.newColumns": (NONE, {"spec/pipeline/sink/newColumns": "reject"}),
    "spec.pipeline.sink.schemaChanges": (
        {"spec/pipeline/sink": {"format": "iceberg", "table": "a.b"}},
        {"spec/pipeline/sink": {"format": "iceberg", "table": "a.b", "schemaChanges": ["makeOptional"]}},
    ),
    "spec.pipeline.sink.schema": (NONE, {"spec/pipeline/sink/schema": "carrier STRING"}),
    "spec.pipeline.sink.maxAge": (NONE, {"spec/pipeline/sink/maxAge": "1m"}),
    "spec.pipeline.sink.targetFileSize": (
        {"spec/pipeline/sink/maxAge": "1m"},
        {"spec/pipeline/sink/maxAge": "1m", "spec/pipeline/sink/targetFileSize": "128Mi"},
    ),
    "spec.pipeline.deadLetterTopic": (NONE, {"spec/pipeline/deadLetterTopic": "letters"}),
    "spec.delivery.batchInterval": (NONE, {"spec/delivery/batchInterval": "500ms"}),
    "spec.delivery.batchDuration": (NONE, {"spec/delivery/batchDuration": "500ms"}),
    "spec.delivery.maxBatchBytes": (NONE, {"spec/delivery/maxBatchBytes": 1_048_576}),
    "spec.delivery.retries": (NONE, {"spec/delivery/retries": 3}),
    "spec.delivery.transientErrorTimeout": (NONE, {"spec/delivery/transientErrorTimeout": "1m"}),
    "spec.delivery.maxDeadLettersPerMinute": (NONE, {"spec/delivery/maxDeadLettersPerMinute": 100}),
    "spec.delivery.retryBackoff": (NONE, {"spec/delivery/retryBackoff": "1s"}),
    "spec.delivery.drainTimeout": (NONE, {"spec/delivery/drainTimeout": "30s"}),
    "spec.telemetry.traces.endpoint": (NONE, {"spec/telemetry/traces": {"endpoint": "http://otel:4318"}}),
    "spec.telemetry.traces.sampling": (TRACES, {"spec/telemetry/traces": {"sampling": "10%"}}),
    "spec.telemetry.metrics.endpoint": (NONE, {"spec/telemetry/metrics": {"endpoint": "http://otel:4318"}}),
    "spec.telemetry.metrics.interval": (
        {"spec/telemetry/metrics": {}},
        {"spec/telemetry/metrics": {"interval": "10s"}},
    ),
    "spec.rollout.strategy": (NONE, {"spec/rollout/strategy": "Takeover"}),
    "spec.template": (NONE, {"spec/template": {"spec": {"nodeSelector": {"disk": "fast"}}}}),
}
POLICY = {"type": "Pods", "value": 2, "period": "1m"}
RESTARTS |= {  # keys are decoded as values are
    path.replace(".value.", ".key."): tuple(
        {name.replace("pipeline/value", "pipeline/key"): given for name, given in fields.items()}
        for fields in both
    )
    for path, both in RESTARTS.items()
    if ".value." in path
}
STAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "spec.replicas": (NONE, {"spec/replicas": 5}),
    "spec.scaling.minReplicas": (NONE, {"spec/scaling/minReplicas": 0}),
    "spec.scaling.maxReplicas": (NONE, {"spec/scaling/maxReplicas": 24}),
    "spec.scaling.catchUp": (NONE, {"spec/scaling/catchUp": "1m"}),
    "spec.scaling.lagPerReplica": (NONE, {"spec/scaling/lagPerReplica": 1000}),
    "spec.scaling.idleAfter": (NONE, {"spec/scaling/idleAfter": "1m"}),
    "spec.scaling.behavior.scaleUp.stabilizationWindow": (
        NONE,
        {"spec/scaling/behavior": {"scaleUp": {"stabilizationWindow": "1m"}}},
    ),
    "spec.scaling.behavior.scaleUp.selectPolicy": (
        NONE,
        {"spec/scaling/behavior": {"scaleUp": {"selectPolicy": "Min"}}},
    ),
    "spec.scaling.behavior.scaleUp.policies": (
        NONE,
        {"spec/scaling/behavior": {"scaleUp": {"policies": [POLICY]}}},
    ),
    "spec.scaling.behavior.scaleDown.stabilizationWindow": (
        NONE,
        {"spec/scaling/behavior": {"scaleDown": {"stabilizationWindow": "10m"}}},
    ),
    "spec.scaling.behavior.scaleDown.selectPolicy": (
        NONE,
        {"spec/scaling/behavior": {"scaleDown": {"selectPolicy": "Disabled"}}},
    ),
    "spec.scaling.behavior.scaleDown.policies": (
        NONE,
        {"spec/scaling/behavior": {"scaleDown": {"policies": [POLICY]}}},
    ),
    "spec.scaling.activationLag": (NONE, {"spec/scaling/activationLag": 10}),
    "spec.scaling.fallback.replicas": (NONE, {"spec/scaling/fallback": {"replicas": 3}}),
    "spec.scaling.fallback.after": (NONE, {"spec/scaling/fallback": {"replicas": 3, "after": "1m"}}),
    "spec.scaling.pausedReplicas": (NONE, {"spec/scaling/pausedReplicas": 3}),
    "spec.scaling.schedules": (
        NONE,
        {"spec/scaling/schedules": [{"name": "a", "start": "0 8 * * *", "duration": "1h", "minReplicas": 3}]},
    ),
    "spec.rollout.maxUnavailable": (NONE, {"spec/rollout/maxUnavailable": 2}),
    "spec.rollout.sessionBudget": (NONE, {"spec/rollout/sessionBudget": "50%"}),
    "spec.rollout.paused": (NONE, {"spec/rollout/paused": True}),
    "spec.rollout.takeover.warmTimeout": (TAKEOVER, {**TAKEOVER, "spec/rollout/takeover/warmTimeout": "1m"}),
    "spec.rollout.takeover.fallback": (TAKEOVER, {**TAKEOVER, "spec/rollout/takeover/fallback": "Stop"}),
    "spec.rollout.preflight.enabled": (NONE, {"spec/rollout/preflight/enabled": False}),
    "spec.rollout.preflight.timeout": (NONE, {"spec/rollout/preflight/timeout": "5m"}),
    "spec.rollout.steps": (NONE, {"spec/rollout/steps": [{"setWorkers": 1}, {"pause": {}}]}),
    "spec.rollout.analysis.interval": (NONE, {"spec/rollout/analysis": {"interval": "1m"}}),
    "spec.rollout.analysis.failureLimit": (NONE, {"spec/rollout/analysis": {"failureLimit": 2}}),
    "spec.rollout.analysis.inconclusiveLimit": (NONE, {"spec/rollout/analysis": {"inconclusiveLimit": 2}}),
    "spec.rollout.analysis.metrics": (
        NONE,
        {
            "spec/rollout/analysis": {
                "metrics": [{"name": "lag", "figure": "Lag", "thresholdRange": {"max": 9}}]
            }
        },
    ),
    **{
        f"spec.rollout.analysis.prometheus.{field}": (
            NONE,
            {"spec/rollout/analysis": {"prometheus": {field: "prometheus"}}},
        )
        for field in (
            "tokenSecret",
            "credentialsSecret",
            "caSecret",
            "clientCertificateSecret",
            "serverName",
        )
    },
    "spec.maintenance": (
        {"spec/pipeline/sink": {"format": "delta", "path": "/data/flights"}},
        {
            "spec/pipeline/sink": {"format": "delta", "path": "/data/flights"},
            "spec/maintenance": [{"every": "1h"}],
        },
    ),
    "spec.suspend": (NONE, {"spec/suspend": True}),
    "spec.deletionPolicy": (NONE, {"spec/deletionPolicy": "Delete"}),
    "metadata.labels": (NONE, {"metadata/labels": {"team": "lake"}}),
    "metadata.generation": (NONE, {"metadata/generation": 7}),
}


def of(**changes: Any) -> Revision:
    return revision(group(**changes), worker_image=IMAGE)


def test_every_field_of_the_spec_is_in_one_of_the_tables() -> None:
    known = set(leaves(fields.object_schema(resources.ConsumerGroupSpec), "spec"))
    tried = {path for path in {*RESTARTS, *STAYS} if path.startswith("spec.")}
    assert known == tried


@pytest.mark.parametrize(("before", "after"), RESTARTS.values(), ids=list(RESTARTS))
def test_a_change_that_a_worker_must_see_is_another_revision(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert of(**before).hash != of(**after).hash


@pytest.mark.parametrize(("before", "after"), STAYS.values(), ids=list(STAYS))
def test_a_change_that_no_worker_sees_is_none(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert of(**before) == of(**after)


def test_the_annotation_restarts_all() -> None:
    once = of(**{"metadata/annotations": {names.RESTARTED_AT: "2026-11-21T10:00:00Z"}})
    assert once.hash != of().hash
    assert once.template["metadata"]["annotations"][names.RESTARTED_AT] == "2026-11-21T10:00:00Z"
    paused = of(**{"metadata/annotations": {names.PAUSED: "true", names.RETRY: "1", "mine": "x"}})
    assert paused.hash == of().hash


def test_another_image_of_the_operator_restarts_who_names_none() -> None:
    assert revision(group(), worker_image="other:1").hash != of().hash
    own = {"spec/pipeline/image": "registry.example/flights:2"}
    assert revision(group(**own), worker_image="other:1").hash == of(**own).hash


def test_the_revision_does_not_depend_on_the_order_of_what_is_written() -> None:
    some = of(**{"spec/kafka/properties": {"max.poll.records": "1", "fetch.min.bytes": "2"}})
    same = of(**{"spec/kafka/properties": {"fetch.min.bytes": "2", "max.poll.records": "1"}})
    assert some.hash == same.hash
    assert some.config_map["metadata"]["name"] == same.config_map["metadata"]["name"]


def test_the_template_names_its_revision_and_its_configuration() -> None:
    made = of()
    assert made.template["metadata"]["labels"][names.REVISION_LABEL] == made.hash
    (volume,) = [
        volume for volume in made.template["spec"]["volumes"] if volume["name"] == names.CONFIG_VOLUME
    ]
    config = volume["projected"]["sources"][0]["configMap"]
    assert config["name"] == made.config_map["metadata"]["name"]
    assert made.config_map["immutable"] is True


def test_the_worker_reads_what_its_configuration_says() -> None:
    delivery = {
        "batchInterval": "1.5s",
        "batchDuration": "250ms",
        "maxBatchBytes": 1_000_000,
        "retries": 7,
        "transientErrorTimeout": "90s",
        "maxDeadLettersPerMinute": 1_000,
        "retryBackoff": "2s",
        "drainTimeout": "1m",
    }
    made = of(**{**SPARK, "spec/delivery": delivery, "spec/pipeline/spark/startTimeout": "5m"})
    config = runtime.parse(json.loads(made.config_map["data"]["worker.yaml"]))
    assert config.group_id == "flights"
    assert config.batch_interval_ms == 1_500
    assert (config.batch_duration_ms, config.max_batch_bytes) == (250, 1_000_000)
    assert config.spark.start_timeout_ms == 300_000
    assert config.retries == 7
    assert config.transient_error_timeout_ms == 90_000
    assert config.max_dead_letters_per_minute == 1_000
    assert config.retry_backoff_ms == 2_000
    assert config.drain_timeout_ms == 60_000
    assert config.health.port == names.PORT
    assert config.join_gate_ms == 600_000
    assert made.template["spec"]["terminationGracePeriodSeconds"] == 75


def test_the_worker_reads_a_pattern() -> None:
    made = of(**{"spec/topics": GONE, "spec/topicPattern": "orders|orders[.]new"})
    config = runtime.parse(json.loads(made.config_map["data"]["worker.yaml"]))
    assert config.topic_pattern is not None
    pattern = TopicPattern(config.topic_pattern)
    assert [pattern.matches(name) for name in ("orders", "orders.new", "orders.newer", "my.orders")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_secrets_are_files_that_the_configuration_names() -> None:
    security = {**SASL, "caSecret": "ca", "clientCertificateSecret": "mine"}
    made = of(**{"spec/kafka/security": security})
    settings = json.loads(made.config_map["data"]["worker.yaml"])["security"]
    (volume,) = [
        volume for volume in made.template["spec"]["volumes"] if volume["name"] == names.CONFIG_VOLUME
    ]
    shown = {
        f"{names.CONFIG_FOLDER}/{item['path']}": (source["secret"]["name"], item["key"])
        for source in volume["projected"]["sources"][1:]
        for item in source["secret"]["items"]
    }
    assert {key: shown[settings[key]] for key in settings if key.endswith("File")} == {
        "usernameFile": ("user", "username"),
        "passwordFile": ("user", "password"),
        "caFile": ("ca", "ca.crt"),
        "certFile": ("mine", "tls.crt"),
        "keyFile": ("mine", "tls.key"),
    }
    assert (settings["protocol"], settings["mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert runtime.parse(json.loads(made.config_map["data"]["worker.yaml"])).security.protocol == "SASL_SSL"


def test_without_security_there_is_no_section() -> None:
    assert "security" not in json.loads(of().config_map["data"]["worker.yaml"])
