"""Options: kafka-python's keywords, Java's dotted names, and one clear error for what cannot be."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from kafka import KafkaConsumer as PythonConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor as PythonAssignor

from slackwater.kafka import KafkaConsumer
from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.protocol.assignors import CooperativeStickyAssignor, RangeAssignor

OURS = {"default_offset_commit_callback", "partition_assignment_strategy", "kafka_client", "client_id",
        "reconnect_backoff_max_ms", "bootstrap_servers"}  # fmt: skip
"""Options whose default differs on purpose, or that only make sense inside of kafka-python."""


def test_every_option_of_kafka_python_is_taken_or_refused_by_name() -> None:
    for name, default in PythonConsumer.DEFAULT_CONFIG.items():
        if name not in OURS:
            made = ConsumerConfig.from_keywords({name: default})
            assert getattr(made, name, default) == default, name


def test_every_method_of_kafka_python_is_there_with_its_arguments() -> None:
    missing = {"metrics", "bootstrap", "config", "DEFAULT_CONFIG"}
    for name, theirs in inspect.getmembers(PythonConsumer, inspect.isfunction):
        if name.startswith("_") or name in missing:
            continue
        wanted = list(inspect.signature(theirs).parameters)
        have = list(inspect.signature(getattr(KafkaConsumer, name)).parameters)
        assert have[: len(wanted)] == wanted, name


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sessoin_timeout_ms": 1}, "did you mean 'session_timeout_ms'"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism='PLAIN' is not supported yet"),
        ({"security_protocol": "SSL"}, "only PLAINTEXT"),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile"),
        ({"isolation_level": "read_committed"}, "isolation_level"),
        ({"auto_offset_reset": "oldest"}, "earliest, latest, none"),
        ({"max_poll_records": 0}, "max_poll_records must be at least 1"),
        ({"max_poll_records": "500"}, "max_poll_records must be an integer"),
        ({"enable_auto_commit": "false"}, "enable_auto_commit must be True or False"),
        ({"group_instance_id": "a"}, "needs a group_id"),
        ({"group_id": "g", "group_instance_id": "a/b"}, "a/b"),
        ({"group_id": ""}, "group_id"),
        ({"session_timeout_ms": 1_000, "heartbeat_interval_ms": 1_000}, "heartbeat_interval_ms=1000"),
        ({"partition_assignment_strategy": ["cooperative-stikcy"]}, "did you mean 'cooperative-sticky'"),
        ({"partition_assignment_strategy": []}, "empty"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says):
        ConsumerConfig.from_keywords(options)


def test_assignors_by_name_class_object_and_java_class() -> None:
    for given in (
        "cooperative-sticky",
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        CooperativeStickyAssignor,
        CooperativeStickyAssignor(),
        PythonAssignor,
    ):
        made = ConsumerConfig.from_keywords({"partition_assignment_strategy": [given, "range"]})
        assert [type(one) for one in made.assignors()] == [CooperativeStickyAssignor, RangeAssignor]


def test_properties() -> None:
    made = ConsumerConfig.from_properties(
        {
            "bootstrap.servers": "a:1,b:2",
            "group.id": "g",
            "group.instance.id": "i",
            "enable.auto.commit": "false",
            "check.crcs": "TRUE",
            "session.timeout.ms": "45000",
            "max.partition.fetch.bytes": 7,
            "fetch.max.decompressed.bytes": "9",
            "partition.assignment.strategy": "range, cooperative-sticky",
            "security.protocol": "PLAINTEXT",
            "group.protocol": "classic",
        },
        client_id="x",
    )
    assert (made.bootstrap_servers, made.group_id, made.group_instance_id) == ("a:1,b:2", "g", "i")
    assert (made.enable_auto_commit, made.check_crcs, made.session_timeout_ms) == (False, True, 45_000)
    assert (made.max_partition_fetch_bytes, made.client_id) == (7, "x")
    assert made.fetch_max_decompressed_bytes == 9
    assert [one.name for one in made.assignors()] == ["range", "cooperative-sticky"]


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"session.timeout": "1"}, r"'session\.timeout'; did you mean 'session\.timeout\.ms'"),
        ({"max.poll.records": "many"}, r"max\.poll\.records must be a number, not 'many'"),
        ({"enable.auto.commit": "yes"}, r"enable\.auto\.commit must be true or false"),
        ({"sasl.mechanism": "PLAIN"}, "sasl_mechanism='PLAIN' is not supported yet"),
        ({"value.deserializer": "org.x.Y"}, r"value_deserializer"),
    ],
)
def test_bad_properties(properties: dict[str, str], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says):
        ConsumerConfig.from_properties(properties)
