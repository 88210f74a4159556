"""Polled rows as records: deserializers of both kinds, and the first record that one fails on."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka import ConsumerRecord, Deserializer, RecordColumns
from slackwater.kafka.consumer import ConsumerConfig
from slackwater.kafka.consumer.iteration import Stuck, all_records, convert
from slackwater.kafka.errors import RecordDeserializationError
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.records import BatchBuilder, decode
from slackwater.kafka.structs import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("u", 1)


def rows(*values: bytes | None) -> RecordColumns:
    builder = BatchBuilder("none", 1_000_000)
    for number, value in enumerate(values):
        assert builder.append(1_000 + number, b"k%d" % number, value, [("h", b"%d" % number)])
    return decode(builder.build(), fetch_offset=0)


class Sees(Deserializer):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def deserialize(self, topic: str, headers: Any, data: bytes | None) -> Any:
        self.calls.append((topic, list(headers), data))
        return (data or b"").decode()


def shown(records: list[ConsumerRecord]) -> list[Any]:
    return [(record.offset, record.key, record.value) for record in records]


def test_without_deserializers_the_bytes_stay() -> None:
    made = convert(A, rows(b"1", None), ConsumerConfig())
    assert shown(made.records) == [(0, b"k0", b"1"), (1, b"k1", None)]
    assert made.failure is None


def test_a_deserializer_object_sees_topic_and_headers_a_callable_the_bytes() -> None:
    sees = Sees()
    made = convert(B, rows(b"1", b"2"), ConsumerConfig(key_deserializer=sees, value_deserializer=int))
    assert shown(made.records) == [(0, "k0", 1), (1, "k1", 2)]
    assert sees.calls == [("u", [("h", b"0")], b"k0"), ("u", [("h", b"1")], b"k1")]


@pytest.mark.parametrize("origin", ["key", "value"])
def test_the_first_failure_ends_the_conversion_and_has_the_details(origin: str) -> None:
    def fussy(data: bytes) -> int:
        if data in (b"k2", b"two"):
            raise ValueError("not a number")
        return len(data)

    config = ConsumerConfig.from_keywords({f"{origin}_deserializer": fussy})
    made = convert(A, rows(b"0", b"1", b"two", b"3"), config)
    assert [record.offset for record in made.records] == [0, 1]
    error = made.failure
    assert error is not None
    assert (error.topic_partition, error.offset, error.origin) == (A, 2, origin)
    assert (error.key, error.value, error.timestamp, list(error.headers)) == (
        b"k2",
        b"two",
        1_002,
        [("h", b"2")],
    )
    assert isinstance(error.__cause__, ValueError)
    assert "ValueError: not a number" in str(error)
    assert "seek() to offset 3" in str(error)


def test_positions_go_back_to_the_record_that_failed() -> None:
    back: list[Any] = []
    config = ConsumerConfig(value_deserializer=int)
    converted, failures = all_records(
        {A: rows(b"1", b"x"), B: rows(b"y")}, config, lambda tp, offset: back.append((tp, offset))
    )
    assert list(converted) == [A]
    assert [(failure.topic_partition, failure.offset) for failure in failures] == [(A, 1), (B, 0)]
    assert back == [(A, 1), (B, 0)]


def test_a_failure_is_raised_until_the_position_is_moved() -> None:
    subscription, stuck = Subscription(), Stuck()
    subscription.assign_by_user([A, B])
    subscription.seek(A, 5)
    stuck.check(subscription)
    failure = RecordDeserializationError(A, 5, "value")
    stuck.at(failure, subscription)
    for _ in range(2):
        with pytest.raises(RecordDeserializationError):
            stuck.check(subscription)
    subscription.get(A).paused = True
    stuck.check(subscription)
    subscription.get(A).paused = False
    with pytest.raises(RecordDeserializationError):
        stuck.check(subscription)
    subscription.seek(A, 5)
    stuck.check(subscription)
    stuck.at(failure, subscription)
    subscription.assign_by_user([B])
    stuck.check(subscription)
