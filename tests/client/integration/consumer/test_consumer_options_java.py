"""Each option of Java's consumer is decided here, and what Java refuses is refused."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.java_names import NOT_HERE, java_name
from slackwater.kafka.net.security import options as security_options
from tests.support.java.programs import JavaOption, ask_java

OURS = {java_name(field.name) for field in fields(ConsumerConfig)} - {"security", "api.version"}
OTHER_DEFAULTS = {
    "client.id", "enable.auto.commit", "partition.assignment.strategy", "bootstrap.servers",
    "key.deserializer", "value.deserializer", "interceptor.classes", "group.id", "group.instance.id",
    "receive.buffer.bytes", "send.buffer.bytes", "group.remote.assignor",
}  # fmt: skip
"""Whose default is another, or no text that can be compared."""


Java = tuple[dict[str, JavaOption], list[str]]


@pytest.fixture(scope="module")
def java() -> Java:
    """One JVM, which is asked everything at once."""
    return ask_java([*REFUSED, *TAKEN, *STRICTER])


@pytest.mark.parts("java")
def test_each_option_of_java_is_built_or_given_a_reason(java: Java) -> None:
    names = set(java[0])
    assert len(names) > 100
    decided = OURS | set(NOT_HERE) | set(security_options.PROPERTIES)
    assert names - decided == set()
    assert set(NOT_HERE) - names <= {"bootstrap.controllers"}, "no option of Java's consumer"
    assert OURS & set(NOT_HERE) == set()


@pytest.mark.parts("java")
def test_defaults_are_javas(java: Java) -> None:
    options, _ = java
    differ = {}
    for field in fields(ConsumerConfig):
        name = java_name(field.name)
        if name in options and name not in OTHER_DEFAULTS:
            ours = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            if ours != options[name].default:
                differ[name] = (ours, options[name].default)
    assert differ == {}


G = {"group.id": "g"}
REFUSED = [
    {"group.id": ""},
    {"group.id": " "},
    {**G, "heartbeat.interval.ms": "45000"},
    {**G, "session.timeout.ms": "3000"},
    {**G, "session.timeout.ms": "0"},
    {**G, "group.instance.id": ""},
    {**G, "group.instance.id": "a b"},
    {"enable.auto.commit": "true"},
    {**G, "max.poll.records": "0"},
    {**G, "max.poll.interval.ms": "0"},
    {**G, "auto.commit.interval.ms": "-1"},
    {**G, "fetch.min.bytes": "-1"},
    {**G, "isolation.level": "x"},
    {**G, "auto.offset.reset": "oldest"},
    {**G, "auto.offset.reset": "Earliest"},
    {**G, "auto.offset.reset": "by_duration:-PT1H"},
    {**G, "group.remote.assignor": "uniform"},
    {**G, "group.protocol": "consumer", "session.timeout.ms": "10000"},
    {**G, "group.protocol": "consumer", "heartbeat.interval.ms": "1000"},
    {**G, "group.protocol": "consumer", "partition.assignment.strategy": "range"},
    {**G, "group.protocol": "streams"},
    {**G, "metadata.recovery.strategy": "x"},
    {**G, "client.dns.lookup": "x"},
    {**G, "security.protocol": "SASL_SSL"},
    {**G, "security.protocol": "x"},
    {**G, "bootstrap.servers": ""},
    {**G, "check.crcs": "yes"},
    {**G, "session.timeout.ms": "long"},
]
TAKEN = [
    G,
    {},
    {"enable.auto.commit": "false"},
    {**G, "session.timeout.ms": "400000", "heartbeat.interval.ms": "100000"},
    {**G, "session.timeout.ms": "45000", "request.timeout.ms": "1000"},
    {**G, "session.timeout.ms": "45000", "max.poll.interval.ms": "1000"},
    {**G, "request.timeout.ms": "70000"},
    {**G, "default.api.timeout.ms": "1"},
    {**G, "fetch.min.bytes": "100", "fetch.max.bytes": "10"},
    {**G, "reconnect.backoff.ms": "100", "reconnect.backoff.max.ms": "10"},
    {**G, "retry.backoff.ms": "100", "retry.backoff.max.ms": "10"},
    {**G, "auto.offset.reset": "by_duration:PT1H"},
    {**G, "isolation.level": "read_committed"},
    {**G, "group.instance.id": "i-0"},
    {**G, "metadata.recovery.strategy": "REBOOTSTRAP"},
    {**G, "receive.buffer.bytes": "-1", "send.buffer.bytes": "131072"},
    {**G, "enable.metrics.push": "true", "metrics.recording.level": "DEBUG"},
    {**G, "group.protocol": "CLASSIC", "group.remote.assignor": ""},
    {**G, "group.protocol": "Consumer", "group.remote.assignor": "range"},
]
STRICTER = [
    {"group.instance.id": "i-0"},
    {**G, "fetch.max.wait.ms": "70000"},
    {**G, "connections.max.idle.ms": "1"},
    {**G, "request.timeout.ms": "70000", "default.api.timeout.ms": "60000"},
    {**G, "request.timeout.ms": "0"},
    {**G, "fetch.max.bytes": "0"},
    {**G, "heartbeat.interval.ms": "0"},
    {**G, "partition.assignment.strategy": ""},
    {**G, "no.such.option": "1"},
]
"""Java takes these; kafka-python or sense does not. docs/reference/client.md names them."""


def ours(properties: dict[str, str]) -> str:
    try:
        ConsumerConfig.from_properties({"bootstrap.servers": "127.0.0.1:1", **properties})
    except KafkaConfigurationError as exc:
        return str(exc)
    return ""


@pytest.mark.parts("java")
def test_combinations_are_refused_and_taken_as_by_java(java: Java) -> None:
    for properties, said in zip([*REFUSED, *TAKEN, *STRICTER], java[1], strict=True):
        assert bool(said) == (properties in REFUSED), (properties, said)
        assert bool(ours(properties)) == (properties not in TAKEN), (properties, ours(properties))


@pytest.mark.parametrize(
    "properties", [properties for properties in [*REFUSED, *STRICTER] if properties], ids=str
)
def test_a_refusal_names_the_option_as_it_was_written(properties: dict[str, str]) -> None:
    said = ours(properties)
    assert any(name in said for name in properties), said
    keywords = {field.name for field in fields(ConsumerConfig)} & set(re.findall(r"[a-z_]+", said))
    assert {keyword for keyword in keywords if "_" in keyword} == set(), said
