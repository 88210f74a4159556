"""Interceptors are called in order; one that raises is passed over."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from slackwater.kafka.consumer import ConsumerConfig, ConsumerInterceptor, KafkaConsumer
from slackwater.kafka.consumer.interceptors import ConsumerInterceptors, Records
from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
calls: list[Any] = []


class Adds(ConsumerInterceptor):
    def __init__(self, mark: str = "made") -> None:
        self.mark = mark

    def configure(self, config: ConsumerConfig) -> None:
        calls.append(("configured", config.client_id))

    def on_consume(self, records: Records) -> Records:
        return {tp: [*values, self.mark] for tp, values in records.items()}  # type: ignore[list-item]

    def on_commit(self, offsets: Any) -> None:
        calls.append((self.mark, offsets))

    def close(self) -> None:
        calls.append((self.mark, "closed"))


class Fails:
    def on_consume(self, records: Records) -> Records:
        raise RuntimeError("not today")

    def on_commit(self, offsets: Any) -> None:
        raise RuntimeError("not today")


class Forgets:
    def on_consume(self, records: Records) -> None:
        """Returns nothing, which is no dict."""


class Filters:
    def on_consume(self, records: Records) -> Records:
        return {A: records[A], B: []}


def test_each_interceptor_gets_the_result_of_the_previous_one(caplog: pytest.LogCaptureFixture) -> None:
    calls.clear()
    given = (Adds("one"), Fails(), Forgets())
    config = ConsumerConfig(client_id="c", interceptor_classes=(Adds, Fails()))
    interceptors = ConsumerInterceptors(given, config)
    records: Any = {A: ["x"], B: ["y"]}
    with caplog.at_level(logging.WARNING):
        result: Any = interceptors.on_consume(records)
    assert result == {A: ["x", "one"], B: ["y", "one"]}
    assert [record.message.split(":")[1].split("(")[0] for record in caplog.records] == [" on_consume"] * 2
    interceptors.on_commit({A: OffsetAndMetadata(1)})
    interceptors.close()
    assert calls == [
        ("configured", "c"),
        ("one", {A: OffsetAndMetadata(1)}),
        ("one", "closed"),
    ]
    filtered: Any = ConsumerInterceptors((Filters,), config).on_consume(records)
    assert filtered == {A: ["x"]}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([object()], "neither on_consume"),
        (["org.apache.Interceptor"], "module:Class"),
        (["no.such.module:Thing"], "cannot be imported"),
        (["no.such.module:Thing()"], "form module:name"),
        (["pathlib:Path"], "neither on_consume"),
        ("Adds", "must be a list"),
    ],
)
def test_an_object_that_is_no_interceptor_is_refused(given: Any, says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says):
        ConsumerConfig.from_keywords({"interceptor_classes": given}).loaded()


class Closes:
    """A deserializer that fails at its end."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def deserialize(self, topic: str, headers: Any, data: Any) -> Any:
        return data

    def close(self) -> None:
        calls.append(self.mark)
        raise RuntimeError("not today")


def test_all_are_closed_whatever_the_others_and_a_callback_raise() -> None:
    def fails(*_: Any) -> None:
        raise ValueError("of the callback")

    calls.clear()
    consumer = KafkaConsumer(
        bootstrap_servers="127.0.0.1:1",
        api_version=(3, 0),
        group_id="g",
        interceptor_classes=[Adds("one")],
        key_deserializer=Closes("key"),
        value_deserializer=Closes("value"),
    )
    consumer.commit_async({A: OffsetAndMetadata(1)}, fails)
    with pytest.raises(RuntimeError, match="not today"):
        consumer.close(timeout_ms=0)
    assert calls[1:] == [("one", "closed"), "key", "value"]
