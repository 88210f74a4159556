"""A stream's batches: where they begin and end, as logs grow, begin later, come and go."""

from __future__ import annotations

import json
import logging

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.offsets import DataLossError, Log
from slackwater.pipeline.datasource.options import OptionError
from slackwater.pipeline.datasource.stream import StreamPlanner, StreamReader, document_of, offsets_of
from tests.pipeline.unit.datasource.fakes import ORDERS, FakeAdmin, FakeLog, options

P0, P1 = ORDERS
ALL = ReadAllAvailable()


def admin() -> FakeAdmin:
    return FakeAdmin({P0: FakeLog(10, 30, [(10, 100), (20, 200)]), P1: FakeLog(0, 5, [(0, 50)])})


def planner(broker: FakeAdmin, **given: str) -> StreamPlanner:
    return StreamPlanner(Log(broker, "read_uncommitted"), options(**given).for_stream())


def latest(
    plan: StreamPlanner, begun: dict[TopicPartition, int], limit: ReadLimit, now_ms: float = 0
) -> dict[TopicPartition, int]:
    return plan.latest(begun, limit, now_ms)


def ranges(
    plan: StreamPlanner, start: dict[TopicPartition, int], end: dict[TopicPartition, int]
) -> list[tuple[int, int]]:
    return [(part.start, part.stop) for part in plan.ranges(start, end)]


def test_offsets_of_a_checkpoint_are_those_of_sparks_kafka_source() -> None:
    offsets = {P1: 5, P0: 30, TopicPartition("a.b", 10): 2}
    document = document_of(offsets)
    assert json.dumps(document) == '{"a.b": {"10": 2}, "orders": {"0": 30, "1": 5}}'
    assert offsets_of(json.loads(json.dumps(document))) == offsets


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {P0: 30, P1: 5}),
        ({"startingOffsets": "earliest"}, {P0: 10, P1: 0}),
        ({"startingOffsets": '{"orders": {"0": 12, "1": -1}}'}, {P0: 12, P1: 5}),
        ({"startingTimestamp": "150", "startingOffsetsByTimestampStrategy": "latest"}, {P0: 20, P1: 5}),
    ],
)
def test_where_a_new_stream_begins(given: dict[str, str], wanted: dict[TopicPartition, int]) -> None:
    assert planner(admin(), **given).initial() == wanted


def test_a_batch_ends_at_the_end_of_the_log_or_at_its_limit() -> None:
    plan = planner(admin())
    assert latest(plan, {P0: 10, P1: 0}, ALL) == {P0: 30, P1: 5}
    assert latest(plan, {P0: 10, P1: 0}, ReadMaxRows(10)) == {P0: 18, P1: 2}
    assert latest(plan, {P0: 30, P1: 5}, ReadMaxRows(10)) == {P0: 30, P1: 5}
    assert ranges(plan, {P0: 18, P1: 2}, {P0: 30, P1: 5}) == [(18, 30), (2, 5)]


def test_a_new_partition_is_read_from_its_first_record() -> None:
    broker = admin()
    plan = planner(broker)
    new = TopicPartition("orders", 2)
    broker.logs[new] = FakeLog(3, 9)
    end = latest(plan, {P0: 30, P1: 5}, ALL)
    assert end == {P0: 30, P1: 5, new: 9}
    assert ranges(plan, {P0: 30, P1: 5}, end) == [(30, 30), (5, 5), (3, 9)]
    assert latest(plan, {P0: 30, P1: 5}, ReadMaxRows(2)) == {P0: 30, P1: 5, new: 5}


MINUTE_MS = 60_000


def test_a_batch_waits_for_enough_records_or_until_the_delay_is_over() -> None:
    broker = admin()
    plan = planner(broker, minOffsetsPerTrigger="100", maxTriggerDelay="10m")
    least, begun = ReadMinRows(100), {P0: 10, P1: 0}
    assert latest(plan, begun, least) == {P0: 30, P1: 5}, "the first does not wait"
    begun = {P0: 30, P1: 5}
    broker.logs[P0].last = 129
    assert latest(plan, begun, least, 9 * MINUTE_MS) == begun
    assert latest(plan, begun, ALL, 9 * MINUTE_MS) == {P0: 129, P1: 5}, "Trigger.Once takes all"
    broker.logs[TopicPartition("orders", 2)] = FakeLog(7, 8)
    ended = {P0: 129, P1: 5, TopicPartition("orders", 2): 8}
    assert latest(plan, begun, least, 9 * MINUTE_MS) == ended, "a new partition's record counts"
    broker.logs[P1].last = 6
    assert latest(plan, ended, least, 19 * MINUTE_MS - 1) == ended
    assert latest(plan, ended, least, 19 * MINUTE_MS) == {**ended, P1: 6}


def test_a_batch_that_has_enough_records_is_limited() -> None:
    broker = admin()
    plan = planner(broker, minOffsetsPerTrigger="20", maxOffsetsPerTrigger="30")
    most = ReadMaxRows(30)
    assert latest(plan, {P0: 30, P1: 5}, most) == {P0: 30, P1: 5}
    broker.logs[P0].last = 72
    assert latest(plan, {P0: 30, P1: 5}, most, 1) == {P0: 60, P1: 5}
    assert latest(plan, {P0: 60, P1: 5}, most, 2) == {P0: 60, P1: 5}


def test_a_query_with_a_target_waits_for_nothing() -> None:
    """Else it would end before it has read all."""
    plan = planner(admin(), minOffsetsPerTrigger="10", maxOffsetsPerTrigger="20")
    plan.fix_target()
    assert latest(plan, {P0: 10, P1: 0}, ReadMaxRows(20)) == {P0: 26, P1: 4}
    assert latest(plan, {P0: 26, P1: 4}, ReadMaxRows(20)) == {P0: 30, P1: 5}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "9"}, ReadMaxRows(9)),
        ({"minOffsetsPerTrigger": "5"}, ReadMinRows(5)),
        ({"maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "5"}, ReadMaxRows(9)),
    ],
)
def test_the_limit_that_spark_is_given(given: dict[str, str], wanted: ReadLimit) -> None:
    assert StreamReader(options(**given), StructType()).getDefaultReadLimit() == wanted


def test_a_target_does_not_move_with_the_log() -> None:
    broker = admin()
    plan = planner(broker)
    plan.fix_target()
    broker.logs[P0].last = 99
    broker.logs[TopicPartition("orders", 2)] = FakeLog(0, 9)
    assert latest(plan, {P0: 10, P1: 0}, ReadMaxRows(10)) == {P0: 18, P1: 2}
    assert latest(plan, {P0: 18, P1: 2}, ALL) == {P0: 30, P1: 5}
    assert latest(plan, {P0: 30, P1: 5}, ALL) == {P0: 30, P1: 5}
    assert plan.newest()[P0] == 99


def test_lost_records_fail_the_stream_or_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    broker = admin()
    broker.logs[P0].first = 20
    with pytest.raises(DataLossError, match="orders-0: offsets 12 to 19 are no longer in the log"):
        ranges(planner(broker), {P0: 12, P1: 0}, {P0: 30, P1: 5})
    with caplog.at_level(logging.WARNING):
        assert ranges(planner(broker, failOnDataLoss="false"), {P0: 12, P1: 0}, {P0: 30, P1: 5}) == [
            (20, 30),
            (0, 5),
        ]
    assert "orders-0: offsets 12 to 19" in caplog.text


def test_a_topic_that_was_made_again_fails_the_stream_or_is_read_from_its_start() -> None:
    broker = FakeAdmin({P0: FakeLog(0, 4), P1: FakeLog(0, 5)})
    with pytest.raises(DataLossError, match="orders-0: read up to offset 30, and now the log ends at 4"):
        latest(planner(broker), {P0: 30, P1: 5}, ALL)
    plan = planner(broker, failOnDataLoss="false")
    end = latest(plan, {P0: 30, P1: 5}, ALL)
    assert end == {P0: 4, P1: 5}
    assert ranges(plan, {P0: 30, P1: 5}, end) == [(0, 4), (5, 5)]


def test_a_topic_that_is_gone_fails_the_stream_or_is_left_out() -> None:
    begun = {P0: 30, P1: 5, TopicPartition("b", 0): 1}
    broker = admin()
    with pytest.raises(DataLossError, match='"subscribe" names topic b, which does not exist'):
        latest(planner(broker, subscribe="orders,b"), begun, ALL)
    assert latest(planner(broker, subscribe="orders,b", failOnDataLoss="false"), begun, ALL) == {
        P0: 30,
        P1: 5,
    }
    with pytest.raises(DataLossError, match="b-0: read up to offset 1, and now it does not exist"):
        latest(planner(broker, subscribePattern="orders|b"), begun, ALL)


def test_a_new_stream_of_a_topic_that_does_not_exist() -> None:
    with pytest.raises(OptionError, match='"subscribe" names topic b'):
        planner(admin(), subscribe="b", failOnDataLoss="false").initial()
