"""Options: kafka-python's keywords, Java's dotted names, and one clear error for what cannot be."""

from __future__ import annotations

import inspect
import logging
import re
import uuid
from typing import Any

import pytest
from kafka import IsolationLevel, KafkaConsumer as PythonConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor as PythonAssignor

from slackwater.kafka import KafkaConsumer
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.producer import ProducerConfig
from slackwater.kafka.protocol.assignors import CooperativeStickyAssignor, RangeAssignor, owner_of

OURS = {"default_offset_commit_callback", "partition_assignment_strategy", "kafka_client", "client_id",
        "reconnect_backoff_max_ms", "bootstrap_servers", "group_id"}  # fmt: skip
"""Options whose default differs on purpose, or that only make sense inside of kafka-python."""


def test_every_option_of_kafka_python_is_taken_or_refused_by_name() -> None:
    for name, default in PythonConsumer.DEFAULT_CONFIG.items():
        if name not in OURS:
            made = ConsumerConfig.from_keywords({"group_id": "g", name: default})
            assert getattr(made, name, default) == default, name


def test_every_method_of_kafka_python_is_there_with_its_arguments() -> None:
    for name, theirs in inspect.getmembers(PythonConsumer, inspect.isfunction):
        if name.startswith("_"):
            continue
        wanted = list(inspect.signature(theirs).parameters)
        have = list(inspect.signature(getattr(KafkaConsumer, name)).parameters)
        assert have[: len(wanted)] == wanted, name


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sessoin_timeout_ms": 1}, "did you mean 'session_timeout_ms'"),
        ({"socks5_proxy": "x:1"}, "socks5_proxy='x:1' is not supported yet"),
        ({"isolation_level": "committed"}, "read_uncommitted, read_committed"),
        ({"auto_offset_reset": "oldest"}, "earliest, latest, none"),
        ({"max_poll_records": 0}, "max_poll_records must be at least 1"),
        ({"max_poll_records": "500"}, "max_poll_records must be an integer"),
        ({"enable_auto_commit": "false"}, "enable_auto_commit must be True or False"),
        ({"group_instance_id": "a"}, "needs a group_id"),
        ({"group_id": "g", "group_instance_id": "a/b"}, "a/b"),
        ({"group_id": ""}, "group_id"),
        ({"partition_assignment_strategy": ["cooperative-stikcy"]}, "did you mean 'cooperative-sticky'"),
        ({"partition_assignment_strategy": []}, "empty"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says):
        ConsumerConfig.from_keywords(options)


class Own(RangeAssignor):
    """An application's."""


def test_assignors_by_name_class_object_and_java_class() -> None:
    for given in (
        "cooperative-sticky",
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        CooperativeStickyAssignor,
        CooperativeStickyAssignor(),
        PythonAssignor,
    ):
        made = ConsumerConfig.from_keywords({"partition_assignment_strategy": [given, "range"]})
        assert [type(assignor) for assignor in made.assignors()] == [CooperativeStickyAssignor, RangeAssignor]


def test_an_assignor_that_a_property_names_is_imported_by_who_uses_it() -> None:
    name = f"{__name__}:Own"
    config = ConsumerConfig.from_properties({"partition.assignment.strategy": f"{name}, range"})
    assert [type(assignor) for assignor in config.loaded().assignors()] == [Own, RangeAssignor]
    missing = ConsumerConfig.from_properties({"partition.assignment.strategy": "no_such_module:Own"})
    with pytest.raises(KafkaConfigurationError, match="partition.assignment.strategy: 'no_such_module:Own'"):
        missing.loaded()
    with pytest.raises(KafkaConfigurationError, match="assignor"):
        ConsumerConfig.from_properties({"partition.assignment.strategy": "json:JSONDecoder"}).loaded()


def test_an_owner_is_checked_beside_an_assignor_that_is_not_imported_yet() -> None:
    with pytest.raises(KafkaConfigurationError, match=r"^subscription\.owner"):
        ConsumerConfig.from_properties(
            {"partition.assignment.strategy": f"{__name__}:Own, range", "subscription.owner": "a b"}
        )


def test_an_owner_is_added_to_what_every_other_option_makes_of_the_assignors() -> None:
    config = ConsumerConfig.from_properties(
        {
            "partition.assignment.strategy": "cooperative-sticky,range",
            "scheduled.rebalance.max.delay.ms": "5",
            "subscription.owner": "uid-1",
        },
        group_id="g",
    )
    assignors = config.assignors()
    assert [assignor.name for assignor in assignors] == ["cooperative-sticky", "range"]
    assert [owner_of(assignor.user_data([], -1)) for assignor in assignors] == ["uid-1", "uid-1"]


@pytest.mark.parametrize("owner", ["a b", "x" * 65])
def test_an_owner_that_cannot_be_written_is_refused_by_the_option_s_name(owner: str) -> None:
    with pytest.raises(KafkaConfigurationError, match="^subscription_owner: .* 1 to 64"):
        ConsumerConfig(group_id="g", subscription_owner=owner)
    with pytest.raises(KafkaConfigurationError, match="^subscription.owner: .* 1 to 64"):
        ConsumerConfig.from_properties({"subscription.owner": owner}, group_id="g")


def test_java_properties_are_read() -> None:
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
    assert [assignor.name for assignor in made.assignors()] == ["range", "cooperative-sticky"]


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"session.timeout": "1"}, r"'session\.timeout'; did you mean 'session\.timeout\.ms'"),
        ({"max.poll.records": "many"}, r"max\.poll\.records must be a number, not 'many'"),
        ({"enable.auto.commit": "yes"}, r"enable\.auto\.commit must be true or false"),
        ({"value.deserializer": "org.x.Y"}, r"value_deserializer"),
    ],
)
def test_bad_properties_are_refused(properties: dict[str, str], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says):
        ConsumerConfig.from_properties(properties)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"session_timeout_ms": 1_000, "heartbeat_interval_ms": 1_000}, ["heartbeat_interval_ms=1000",
          "session_timeout_ms=1000", "333"]),
        ({"enable_auto_commit": True}, ["enable_auto_commit=true needs a group_id",
          "leave enable_auto_commit out"]),
        ({"fetch_max_wait_ms": 50_000, "request_timeout_ms": 40_000}, ["fetch_max_wait_ms=50000",
          "request_timeout_ms=40000"]),
        ({"request_timeout_ms": 50_000, "connections_max_idle_ms": 40_000}, ["request_timeout_ms=50000",
          "connections_max_idle_ms=40000"]),
        ({"request_timeout_ms": 70_000, "default_api_timeout_ms": 60_000}, ["default_api_timeout_ms=60000",
          "request_timeout_ms=70000"]),
        ({"group_id": "  "}, ["group_id must be a non-empty string"]),
        ({"bootstrap_servers": "a:b:c"}, ["bootstrap_servers"]),
        ({"bootstrap_servers": []}, ["bootstrap_servers"]),
        ({"partition_assignment_strategy": "range", "scheduled_rebalance_max_delay_ms": 5},
          ["scheduled_rebalance_max_delay_ms"]),
        ({"scheduled_rebalance_max_delay_ms": -1}, ["scheduled_rebalance_max_delay_ms"]),
    ],
)  # fmt: skip
def test_impossible_combinations_are_refused(options: dict[str, Any], says: list[str]) -> None:
    with pytest.raises(KafkaConfigurationError) as raised:
        ConsumerConfig.from_keywords(options)
    for part in says:
        assert part in str(raised.value)
    properties = {name.replace("_", "."): value for name, value in options.items()}
    with pytest.raises(KafkaConfigurationError) as dotted:
        ConsumerConfig.from_properties(properties)
    for part in says:
        assert re.sub(r"[a-z]+(_[a-z]+)+", lambda name: name[0].replace("_", "."), part) in str(dotted.value)


def test_a_combination_of_both_kinds_of_names_says_what_was_written() -> None:
    with pytest.raises(
        KafkaConfigurationError,
        match=r"heartbeat_interval_ms=9000 must be lower than session\.timeout\.ms=8000",
    ):
        ConsumerConfig.from_properties({"session.timeout.ms": "8000"}, heartbeat_interval_ms=9_000)


def test_a_questionable_option_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ConsumerConfig.from_keywords({"fetch_min_bytes": 100, "fetch_max_bytes": 10})
        ConsumerConfig.from_keywords({"retry_backoff_ms": 5_000})
        ConsumerConfig.from_keywords({"reconnect_backoff_ms": 5_000})
    assert [record.message.split(" is greater")[0] for record in caplog.records] == [
        "fetch_min_bytes=100", "retry_backoff_ms=5000", "reconnect_backoff_ms=5000",
    ]  # fmt: skip


def test_values_of_kafka_pythons_own_types() -> None:
    made = ConsumerConfig.from_keywords({"isolation_level": IsolationLevel.READ_COMMITTED})
    assert made.isolation_level == "read_committed"
    assert made.read_committed


def test_auto_commit_is_off_without_a_group_and_calls_take_at_least_a_request() -> None:
    assert not ConsumerConfig.from_keywords({}).auto_commits
    assert ConsumerConfig.from_keywords({"group_id": "g"}).auto_commits
    assert ConsumerConfig.from_keywords({"request_timeout_ms": 90_000}).default_api_timeout_ms == 90_000
    assert ConsumerConfig.from_keywords({"request_timeout_ms": 9_000}).default_api_timeout_ms == 60_000


def test_what_a_program_of_kafka_python_does_with_the_configuration() -> None:
    taken = {
        name: value
        for name, value in {"group_id": "g", "mine": 1}.items()
        if name in KafkaConsumer.DEFAULT_CONFIG
    }
    assert taken == {"group_id": "g"}
    assert KafkaConsumer.DEFAULT_CONFIG["max_poll_records"] == 500
    assert PythonConsumer.DEFAULT_CONFIG.keys() <= KafkaConsumer.DEFAULT_CONFIG.keys()
    config = ConsumerConfig.from_keywords({"auto_offset_reset": "smallest"})
    assert config["auto_offset_reset"] == "earliest"
    with pytest.raises(KeyError):
        config["no_such_option"]


def test_options_that_do_nothing_are_noted_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ConsumerConfig.from_properties({"enable.metrics.push": "true", "group.protocol": "CLASSIC"})
    assert [record.message for record in caplog.records] == [
        "enable.metrics.push=true has no effect: metrics are not pushed to brokers (KIP-714)"
    ]
    for name, value, says in (
        ("sasl.kerberos.service.name", "kafka", "SCRAM-SHA-512"),
        ("ssl.cipher.suites", "TLS_AES_128_GCM_SHA256", "ssl_ciphers"),
        ("metric.reporters", "com.x.Reporter", r"metrics\(\)"),
    ):
        with pytest.raises(KafkaConfigurationError, match=rf"{name}={value} is not supported: .*{says}"):
            ConsumerConfig.from_properties({name: value})


@pytest.mark.parametrize(
    ("java", "data", "value"),
    [
        ("StringDeserializer", "ä".encode(), "ä"),
        ("org.apache.kafka.common.serialization.StringDeserializer", None, None),
        ("IntegerDeserializer", b"\x00\x00\x01\x00", 256),
        ("LongDeserializer", b"\xff" * 8, -1),
        ("ShortDeserializer", b"\x00\x02", 2),
        ("DoubleDeserializer", b"\x3f\xf0" + bytes(6), 1.0),
        ("FloatDeserializer", b"\x3f\x80\x00\x00", 1.0),
        ("BooleanDeserializer", b"\x01", True),
        ("UUIDDeserializer", b"00000000-0000-0000-0000-000000000001", uuid.UUID(int=1)),
        ("VoidDeserializer", None, None),
        ("json:loads", b"[1]", [1]),
    ],
)
def test_deserializers_by_name(java: str, data: bytes | None, value: Any) -> None:
    made = ConsumerConfig.from_properties({"value.deserializer": java}).loaded().value_deserializer
    assert made(data) == value


@pytest.mark.parametrize(
    ("java", "data"),
    [("IntegerDeserializer", b"\x00"), ("BooleanDeserializer", b"\x02"), ("VoidDeserializer", b"")],
)
def test_deserializers_refuse_what_is_none_of_theirs(java: str, data: bytes) -> None:
    made = ConsumerConfig.from_properties({"value.deserializer": java}).value_deserializer
    with pytest.raises(ValueError, match="expected|neither 0 nor 1"):
        made(data)


def test_deserializers_that_give_the_bytes() -> None:
    assert (
        ConsumerConfig.from_properties({"key.deserializer": "ByteArrayDeserializer"}).key_deserializer is None
    )
    with pytest.raises(KafkaConfigurationError, match="no_such_module"):
        ConsumerConfig.from_properties({"key.deserializer": "no_such_module:f"}).loaded()


S = "org.apache.kafka.common.serialization."
# As Java 4.3's serializers write them.
FORMS: list[tuple[str, dict[str, str], Any, bytes]] = [
    ("String", {"value.{}.encoding": "ISO-8859-1"}, "é", b"\xe9"),
    ("String", {"{}.encoding": "UTF-16"}, "é", b"\xfe\xff\x00\xe9"),
    ("String", {"key.{}.encoding": "UTF-16"}, "é", "é".encode()),
    (
        "List",
        {"inner": "Integer"},
        [1, None, 2],
        bytes.fromhex("000000000100000001000000030000000100000002"),
    ),
    (
        "List",
        {"inner": "String"},
        ["a", None, ""],
        bytes.fromhex("01000000030000000161ffffffff00000000"),
    ),
    ("List", {"inner": "Long"}, [], bytes.fromhex("000000000000000000")),
    ("Long", {}, 2**40, bytes.fromhex("0000010000000000")),
    ("UUID", {}, uuid.UUID(int=7), b"00000000-0000-0000-0000-000000000007"),
]


def forms(kind: str, name: str, more: dict[str, str]) -> dict[str, str]:
    properties = {f"value.{kind}": f"{S}{name}{kind.title()}"}
    for option, value in more.items():
        if option == "inner":
            properties["default.list.value.serde.inner"] = f"{S}Serdes${value}Serde"
        else:
            properties[option.format(kind)] = value
    return properties


@pytest.mark.parametrize(("name", "more", "value", "data"), FORMS)
def test_lists_and_encodings_are_written_and_read_as_java_does(
    name: str, more: dict[str, str], value: Any, data: bytes
) -> None:
    write = ProducerConfig.from_properties(forms("serializer", name, more)).value_serializer
    read = ConsumerConfig.from_properties(forms("deserializer", name, more)).value_deserializer
    assert write is not None
    assert write(value) == data
    assert read(data) == value
    assert read(None) is write(None) is None


def test_utf_16_without_a_mark_is_big_endian_as_in_java() -> None:
    config = ConsumerConfig.from_properties(forms("deserializer", "String", {"{}.encoding": "UTF-16"}))
    assert config.value_deserializer(b"\x00\xe9") == "é"


@pytest.mark.parametrize(
    ("name", "more", "option"),
    [
        ("String", {"{}.encoding": "no-such"}, "deserializer.encoding=no-such"),
        ("List", {}, "default.list.value.serde.inner"),
        ("List", {"inner": "List"}, "default.list.value.serde.inner"),
    ],
)
def test_an_encoding_or_a_list_that_cannot_be_is_refused(
    name: str, more: dict[str, str], option: str
) -> None:
    with pytest.raises(KafkaConfigurationError, match=option):
        ConsumerConfig.from_properties(forms("deserializer", name, more))


@pytest.mark.parametrize("cut", ["007fffffff", "00000000007fffffff", "0000000000000000010001", "02", ""])
def test_bytes_that_are_no_list_are_refused_in_little_memory(cut: str) -> None:
    config = ConsumerConfig.from_properties(forms("deserializer", "List", {"inner": "Integer"}))
    with pytest.raises(ValueError, match="list"):
        config.value_deserializer(bytes.fromhex(cut))
