"""A real API server on good ConsumerGroups: defaults, the scale subresource, columns, `kubectl explain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from slackwater import fields
from slackwater_operator.api.v1alpha1 import consumer_group
from slackwater_operator.api.v1alpha1.consumer_group import parse
from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.operator.bad_resources import GONE, changed, good
from tests.support.operator.full_status import full_status

pytestmark = pytest.mark.controlplane

GOOD: dict[str, dict[str, Any]] = {
    "as it stands": {},
    "the least": {"spec/scaling": GONE, "spec/kafka/properties": GONE, "spec/pipeline/deadLetterTopic": GONE},
    "a pattern": {"spec/topics": GONE, "spec/topicPattern": r"orders\..*"},
    "several brokers": {"spec/kafka/bootstrapServers": "a:9092, b:9092,c:9092"},
    "no workers at all": {"spec/scaling": GONE, "spec/replicas": 0},
    "maintenance": {
        "spec/pipeline/sink": {"format": "iceberg", "table": "lake.flights"},
        "spec/maintenance": [
            {"every": "10m"},
            {
                "table": "lake.flights",
                "every": "7h",
                "compactTo": "1Gi",
                "expireAfter": "1h",
                "clusterBy": ["carrier", "day"],
                "resources": {"limits": {"memory": "2Gi"}},
            },
        ],
    },
    "down to none": {"spec/scaling": {"minReplicas": 0, "lagPerReplica": 1000, "idleAfter": "1m"}},
    "both targets": {"spec/scaling/lagPerReplica": 50_000, "spec/scaling/catchUp": "1m30s"},
    "a behavior": {
        "spec/scaling/behavior": {
            "scaleUp": {
                "stabilizationWindow": "0s",
                "policies": [
                    {"type": "Pods", "value": 4, "period": "15s"},
                    {"type": "Percent", "value": 100, "period": "15s"},
                ],
            },
            "scaleDown": {"stabilizationWindow": "5m", "selectPolicy": "Disabled"},
        },
        "spec/scaling/activationLag": 100,
        "spec/scaling/fallback": {"replicas": 6, "after": "1m30s"},
        "spec/scaling/pausedReplicas": 0,
    },
    "windows": {
        "spec/scaling/schedules": [
            {"name": "day", "start": "0 8 * * MON-FRI", "duration": "10h", "minReplicas": 4},
            {
                "name": "year-end",
                "start": "0 0 24 12 *",
                "duration": "168h",
                "minReplicas": 12,
                "timeZone": "America/New_York",
            },
        ]
    },
    "TLS": {"spec/kafka/security": {"protocol": "SSL", "caSecret": "ca", "clientCertificateSecret": "me"}},
    "SASL": {
        "spec/kafka/security": {
            "protocol": "SASL_SSL",
            "mechanism": "SCRAM-SHA-512",
            "credentialsSecret": "kafka.user",
        }
    },
    "SASL in plain text": {
        "spec/kafka/security": {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "PLAIN",
            "credentialsSecret": "user",
        }
    },
    "the shortest session": {"spec/kafka/properties/session.timeout.ms": "6000"},
    "the longest session": {"spec/kafka/properties/session.timeout.ms": "1800000"},
    "heartbeats at a third": {"spec/kafka/properties/heartbeat.interval.ms": "10000"},
    "a long handler": {
        "spec/kafka/properties/max.poll.interval.ms": "3600000",
        "spec/pipeline/handlerTimeout": "59m59.9s",
        "spec/pipeline/refreshEvery": "24h",
    },
    "Spark's server": {
        "spec/pipeline/engine": "spark",
        "spec/pipeline/spark": {"remote": "sc://spark:15002", "conf": {"spark.sql.shuffle.partitions": "4"}},
    },
    "Python": {"spec/pipeline/engine": "python"},
    "an image by digest": {"spec/pipeline/image": "registry.example:5000/lake/flights@sha256:" + "0" * 64},
    "a share of all": {"spec/rollout/sessionBudget": "100%"},
    "half a percent": {"spec/rollout/sessionBudget": "0.5%"},
    "no preflight": {"spec/rollout/preflight": {"enabled": False}},
    "a takeover": {
        "spec/rollout": {"strategy": "Takeover", "takeover": {"warmTimeout": "1h", "fallback": "Stop"}}
    },
    "steps and an analysis": {
        "spec/rollout": {
            "steps": [
                {"setWorkers": 1},
                {"analysis": {"duration": "10m"}},
                {"setWorkers": "12.5%"},
                {"pause": {}},
                {"pause": {"duration": "1h"}},
            ],
            "analysis": {
                "interval": "1m",
                "failureLimit": 1,
                "metrics": [
                    {"name": "dead letters", "figure": "DeadLetterRate", "thresholdRange": {"max": 0.01}},
                    {"name": "up", "query": "sum(up)\n  / 2", "thresholdRange": {"min": 1, "max": 2}},
                ],
                "prometheus": {
                    "tokenSecret": "prometheus.token",
                    "caSecret": "tls",
                    "clientCertificateSecret": "tls",
                    "serverName": "Prometheus.monitoring.svc",
                },
            },
        }
    },
    "a login for Prometheus": {
        "spec/rollout": {"analysis": {"prometheus": {"credentialsSecret": "user"}}},
    },
    "no authentication at Prometheus": {"spec/rollout": {"analysis": {"prometheus": {}}}},
    "the longest name for takeovers": {
        "metadata/name": "f" * consumer_group.MAX_NAME_TAKEOVER,
        "spec/rollout/strategy": "Takeover",
    },
    "traces by the environment": {"spec/telemetry": {"traces": {}}},
    "traces and metrics": {
        "spec/telemetry": {
            "traces": {"endpoint": "https://otel.example:4318/otlp", "sampling": "0.1%"},
            "metrics": {"endpoint": "http://[::1]:4318", "interval": "10s"},
        }
    },
    "suspended, and deleted with its offsets": {"spec/suspend": True, "spec/deletionPolicy": "Delete"},
    "a template": {
        "spec/template": {
            "metadata": {"labels": {"team": "lake"}},
            "spec": {"containers": [{"name": "worker", "resources": {"limits": {"memory": "1Gi"}}}]},
        }
    },
    "JSON with types": {"spec/pipeline/value": {"format": "json", "schema": "carrier STRING, delay DOUBLE"}},
    "JSON of a registry, with types": {
        "spec/pipeline/value": {
            "format": "json",
            "schema": "a INT",
            "registry": {"url": "http://a:8081/apis/ccompat/v7, http://b"},
        }
    },
    "Avro of a file, and what the handler sees": {
        "spec/pipeline/value": {"format": "avro", "schemaFile": "/app/flight.avsc", "readerSchema": "{}"}
    },
    "Avro of a registry": {
        "spec/pipeline/value": {
            "format": "avro",
            "registry": {
                "url": "https://a:8081,https://b:8081",
                "subject": "flights-value",
                "version": "3",
                "credentialsSecret": "user",
                "caSecret": "ca",
                "clientCertificateSecret": "mine",
            },
        }
    },
    "Avro of a registry, and what the handler sees": {
        "spec/pipeline/value": {
            "format": "avro",
            "readerSchema": "{}",
            "registry": {"url": "http://a:8081"},
        }
    },
    "a message of Protobuf": {
        "spec/pipeline/value": {
            "format": "protobuf",
            "message": "air.Flight",
            "registry": {"url": "http://a:8081", "subject": "flights-value"},
        }
    },
    "a folder as a URL": {"spec/pipeline/sink/path": "file:///data/flights"},
    "files in folders": {"spec/pipeline/sink/partitionBy": ["day", "carrier"]},
    "no new columns": {"spec/pipeline/sink/newColumns": "reject"},
    "rows that wait": {"spec/pipeline/sink/maxAge": "1m", "spec/pipeline/sink/targetFileSize": "1Gi"},
    "files in a bucket": {
        "spec/pipeline/sink": {"path": "s3://lake/flights", "options": {"AWS_REGION": "eu-central-1"}}
    },
    "a table in a folder": {"spec/pipeline/sink/format": "delta"},
    "several tables": {
        "spec/pipeline/routes": [
            {"when": f"kind = {kind!r}", "sink": {"format": "iceberg", "table": f"lake.{kind}"}}
            for kind in ("order", "refund", "parcel")
        ]
    },
    "a table in a bucket": {
        "spec/pipeline/sink": {
            "format": "delta",
            "path": "s3://lake/tables/flights",
            "options": {"AWS_REGION": "eu-central-1", "AWS_ENDPOINT_URL": "https://s3.example"},
            "partitionBy": [f"c{number}" for number in range(10)],
            "newColumns": "reject",
        }
    },
    "a table in Google's store": {"spec/pipeline/sink": {"format": "delta", "path": "gs://lake/flights"}},
    "a table in Azure's store": {"spec/pipeline/sink": {"format": "delta", "path": "az://lake/flights"}},
    "a table on HDFS": {
        "spec/pipeline/sink": {"format": "delta", "path": "hdfs://namenode:8020/lake/flights"}
    },
    "a table in Azure's store, with its account": {
        "spec/pipeline/sink": {
            "format": "delta",
            "path": "abfss://lake@storage.dfs.core.windows.net/flights",
        }
    },
    "a table in a catalog": {
        "spec/pipeline/sink": {
            "format": "iceberg",
            "table": "lake.europe.flights",
            "options": {
                "type": "rest",
                "uri": "https://catalog.example:8181/api?realm=lake",
                "warehouse": "s3://lake/warehouse",
                "s3.access-key-id": "id",
                "oauth2-server-uri": "https://login.example/token",
            },
            "partitionBy": ["day(time_hour)", "bucket(16, id)", "carrier"],
        }
    },
    "a table in a catalog whose address is in the environment": {
        "spec/pipeline/sink": {"format": "iceberg", "table": "lake.flights"}
    },
    "a Postgres table": {
        "spec/pipeline/sink": {
            "format": "postgres",
            "table": "public.flights",
            "options": {"host": "db.data.svc", "sslmode": "verify-full", "sslkey": "/tls/tls.key"},
        }
    },
    "a Postgres table that is added up": {
        "spec/pipeline/sink": {
            "format": "postgres",
            "table": "my Schema.flights a minute",
            "mode": "merge",
            "key": ["minute", "carrier"],
            "aggregates": {"flights": "count", "delay": "sum", "first": "min", "last": "max"},
            "newColumns": "reject",
        }
    },
    "a sink of one's own": {
        "spec/pipeline/sink": {
            "format": "custom",
            "implementation": "flights.sqlite:SqliteSink",
            "options": {"file": "/data/flights.db"},
        }
    },
    "an output topic": {"spec/pipeline/sink": {"format": "kafka", "topic": "flights.delayed"}},
    "an output topic in another cluster": {
        "spec/pipeline/sink": {
            "format": "kafka",
            "topic": "flights",
            "options": {
                "bootstrap.servers": "other.kafka.svc:9092",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username.file": "/run/other/username",
                "sasl.password.file": "/run/other/password",
            },
        }
    },
    "a format of Spark": {
        "spec/pipeline/engine": "spark",
        "spec/pipeline/sink": {
            "format": "spark",
            "sparkFormat": "org.apache.spark.sql.execution.datasources.orc.OrcFileFormat",
            "options": {"path": "/data/flights"},
            "partitionBy": ["day"],
        },
    },
    "a Delta table that is added up": {
        "spec/pipeline/sink": {
            "format": "delta",
            "path": "s3://lake/flights",
            "mode": "merge",
            "key": ["day", "carrier"],
            "aggregates": {"flights": "count"},
            "partitionBy": ["day"],
        }
    },
    "the longest name": {"metadata/name": "f" * consumer_group.MAX_NAME},
}


@pytest.mark.parametrize("changes", GOOD.values(), ids=list(GOOD))
def test_a_good_resource_means_the_same_with_its_defaults_filled_in(
    control_plane: ControlPlane, home: str, changes: dict[str, Any]
) -> None:
    document = good(**changes)
    kept = control_plane.api.try_out(home, document)
    assert parse(kept).spec == parse(document).spec


def test_defaults_are_filled_in(control_plane: ControlPlane, home: str) -> None:
    spec = control_plane.api.try_out(home, good(**{"spec/rollout": {"paused": True}}))["spec"]
    assert spec["delivery"] == {
        "batchInterval": "0s", "batchDuration": "1s", "maxBatchBytes": 33_554_432, "retries": 2,
        "retryBackoff": "500ms", "transientErrorTimeout": "5m", "maxDeadLettersPerMinute": 0,
        "drainTimeout": "15s",
    }  # fmt: skip
    assert spec["rollout"] == {
        "strategy": "Restart",
        "takeover": {"warmTimeout": "5m", "fallback": "Restart"},
        "maxUnavailable": 1,
        "sessionBudget": "60%",
        "paused": True,
        "preflight": {"enabled": True, "timeout": "2m"},
        "steps": [],
        "analysis": {"interval": "30s", "failureLimit": 0, "inconclusiveLimit": 10, "metrics": []},
    }
    assert spec["kafka"]["security"] == {"protocol": "PLAINTEXT"}
    assert spec["pipeline"]["sink"] == {
        "format": "parquet", "path": "/data/flights", "options": {}, "partitionBy": [], "newColumns": "add",
        "schemaChanges": [], "mode": "append", "key": [], "aggregates": {}, "maxAge": "0s",
        "targetFileSize": "64Mi",
    }  # fmt: skip
    assert spec["scaling"]["idleAfter"] == "5m"
    assert (spec["suspend"], spec["deletionPolicy"]) == (False, "Retain")


@pytest.fixture
def flights(control_plane: ControlPlane, home: str) -> Iterator[str]:
    """The path of a ConsumerGroup that is there."""
    control_plane.api.apply(home, good())
    path = path_of("slackwater.dev/v1alpha1", "consumergroups", home, "flights")
    yield path
    control_plane.api.delete(path)


def test_a_full_status_is_stored_unchanged(control_plane: ControlPlane, home: str, flights: str) -> None:
    status = full_status()
    kept = control_plane.api.patch(f"{flights}/status", {"status": status})
    assert kept["status"] == status
    assert parse(kept).name == "flights"


def test_kubectl_get_prints_the_columns(control_plane: ControlPlane, home: str, flights: str) -> None:
    status = {**full_status(), "lag": 12_000, "desiredReplicas": 4, "readyReplicas": 3, "lagSeconds": 42}
    status |= {"generation": 9, "revision": "abc123", "strategy": "Restart"}
    control_plane.api.patch(f"{flights}/status", {"status": status})
    head, row = control_plane.kubectl("get", "consumergroups", "-n", home).splitlines()
    assert head.split() == [
        "NAME",
        "READY",
        "STATUS",
        "DESIRED",
        "CURRENT",
        "UPDATED",
        "LAG",
        "CONFIRMED",
        "AGE",
    ]
    assert row.split()[:7] == ["flights", "True", "reason", "4", "3", "7", "12000"]
    wide, values = control_plane.kubectl("get", "cg", "-n", home, "-o", "wide").splitlines()
    assert wide.split()[-6:] == ["REVISION", "STRATEGY", "GENERATION", "LAG-SECONDS", "GROUP", "MESSAGE"]
    assert values.split()[-5:] == ["abc123", "Restart", "9", "42", "message"], "its group.id is its name"
    assert "flights" in control_plane.kubectl("get", "slackwater", "-n", home)


def test_kubectl_scale_uses_the_scale_subresource(
    control_plane: ControlPlane, home: str, flights: str
) -> None:
    selector = "app.kubernetes.io/name=slackwater-worker,slackwater.dev/group=flights"
    control_plane.api.patch(f"{flights}/status", {"status": {"replicas": 3, "selector": selector}})
    control_plane.kubectl("scale", "cg/flights", "-n", home, "--replicas=6")
    scale = control_plane.api.get(f"{flights}/scale") or {}
    assert scale["spec"]["replicas"] == 6
    assert scale["status"] == {"replicas": 3, "selector": selector}


def test_kubectl_explain_describes_each_field(control_plane: ControlPlane, definition: None) -> None:
    # The API server publishes what it knows of a definition's fields some time after it serves it.
    until(lambda: "catchUp" in control_plane.kubectl("explain", "cg.spec.scaling", check=False), "the fields")
    output = control_plane.kubectl("explain", "cg.spec.scaling")
    for _, declared in fields.declared_fields(consumer_group.Scaling):
        assert declared.name in output
    output = " ".join(control_plane.kubectl("explain", "cg.spec.scaling.catchUp").split())
    assert "How soon the lag should be worked off (5m, 90s)" in output


def test_the_status_cannot_be_written_with_the_spec(
    control_plane: ControlPlane, home: str, flights: str
) -> None:
    kept = control_plane.api.apply(home, changed(good(), {"status/replicas": 9}))
    assert "replicas" not in kept.get("status", {})
