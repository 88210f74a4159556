"""Filters that decide which offsets are read; those that Spark must apply are given back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.filters import Bounds
from slackwater.pipeline.datasource.offsets import TopicOffsetRange, TopicOffsets
from tests.pipeline.unit.datasource.fakes import ORDERS, FakeAdmin, FakeLog

OFFSET, PARTITION, TOPIC, TIME = ("offset",), ("partition",), ("topic",), ("timestamp",)
OTHER = TopicPartition("other", 1)
RANGES = [
    TopicOffsetRange(ORDERS[0], 0, 100, "a"),
    TopicOffsetRange(ORDERS[1], 50, 60, "a"),
    TopicOffsetRange(OTHER, 0, 10, "b"),
]


def at(ms: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def logs() -> dict[TopicPartition, FakeLog]:
    """Of the topic orders, offset n has the time 10 n, but for one that is late. Other is older."""
    times = [(n, 10 * n) for n in range(100)]
    times[70] = (70, 5)
    return {
        ORDERS[0]: FakeLog(0, 100, times),
        ORDERS[1]: FakeLog(50, 60, times[50:60]),
        OTHER: FakeLog(0, 10, [(n, n) for n in range(10)]),
    }


def left(*filters: Filter) -> tuple[dict[TopicPartition, tuple[int, int]], list[Filter]]:
    bounds = Bounds()
    kept = list(bounds.take(filters))
    narrowed = bounds.narrow(RANGES, TopicOffsets(FakeAdmin(logs()), "read_uncommitted"))
    assert [part.topic_id for part in narrowed] == [
        "b" if part.partition == OTHER else "a" for part in narrowed
    ]
    return {part.partition: (part.start, part.stop) for part in narrowed}, kept


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], {ORDERS[0]: (0, 100), ORDERS[1]: (50, 60), OTHER: (0, 10)}),
        ([GreaterThan(OFFSET, 54)], {ORDERS[0]: (55, 100), ORDERS[1]: (55, 60)}),
        ([GreaterThanOrEqual(OFFSET, 54), LessThan(OFFSET, 56)], {ORDERS[0]: (54, 56), ORDERS[1]: (54, 56)}),
        ([LessThanOrEqual(OFFSET, 9), LessThan(OFFSET, 20)], {ORDERS[0]: (0, 10), OTHER: (0, 10)}),
        ([EqualTo(OFFSET, 7)], {ORDERS[0]: (7, 8), OTHER: (7, 8)}),
        ([EqualNullSafe(OFFSET, 59)], {ORDERS[0]: (59, 60), ORDERS[1]: (59, 60)}),
        ([EqualTo(PARTITION, 1)], {ORDERS[1]: (50, 60), OTHER: (0, 10)}),
        ([In(PARTITION, (1, None, 2)), EqualTo(TOPIC, "orders")], {ORDERS[1]: (50, 60)}),
        ([In(PARTITION, (0, 1)), In(PARTITION, (0, 7))], {ORDERS[0]: (0, 100)}),
        ([In(TOPIC, ("x", "y"))], {}),
        ([GreaterThan(OFFSET, 99)], {}),
        ([IsNotNull(OFFSET), IsNotNull(TIME)], {ORDERS[0]: (0, 100), ORDERS[1]: (50, 60), OTHER: (0, 10)}),
    ],
)
def test_bounds_that_are_exact(filters: list[Filter], wanted: dict[TopicPartition, tuple[int, int]]) -> None:
    assert left(*filters) == (wanted, [])


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (In(OFFSET, (3, 8)), {ORDERS[0]: (3, 9), OTHER: (3, 9)}),
        (GreaterThanOrEqual(TIME, at(300)), {ORDERS[0]: (30, 100), ORDERS[1]: (50, 60)}),
        (GreaterThan(TIME, at(540.5)), {ORDERS[0]: (55, 100), ORDERS[1]: (55, 60)}),
        (EqualTo(TIME, at(5)), {ORDERS[0]: (1, 100), ORDERS[1]: (50, 60), OTHER: (5, 10)}),
        (In(TIME, (at(990), at(985))), {ORDERS[0]: (99, 100)}),
        (GreaterThan(TIME, at(10_000)), {}),
    ],
)
def test_bounds_that_hold_more_leave_the_filter_to_spark(
    condition: Filter, wanted: dict[TopicPartition, tuple[int, int]]
) -> None:
    assert left(condition) == (wanted, [condition])


@pytest.mark.parametrize(
    "condition",
    [
        # Later records may have earlier times, as offset 70 has: there is no bound upwards.
        LessThan(TIME, at(100)),
        LessThanOrEqual(TIME, at(100)),
        GreaterThan(TIME, at(-100)),
        GreaterThan(TIME, datetime(2020, 1, 1)),
        Not(EqualTo(PARTITION, 0)),
        IsNull(OFFSET),
        IsNotNull(("key",)),
        EqualTo(("value", "offset"), 3),
        EqualTo(("key",), b"k"),
        EqualTo(OFFSET, None),
        GreaterThan(PARTITION, 0),
        StringStartsWith(TOPIC, "o"),
    ],
    ids=repr,
)
def test_what_gives_no_bound_is_left_to_spark(condition: Any) -> None:
    everything, _ = left()
    assert left(condition) == (everything, [condition])


def test_times_are_asked_for_only_where_something_is_left() -> None:
    bounds = Bounds()
    list(bounds.take([EqualTo(PARTITION, 9), GreaterThan(TIME, at(5))]))
    broker = FakeAdmin(logs())
    assert bounds.narrow(RANGES, TopicOffsets(broker, "read_uncommitted")) == []
    assert broker.listed == []
