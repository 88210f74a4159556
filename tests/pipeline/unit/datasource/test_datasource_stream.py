"""A stream's batches: where they begin and end, as logs grow, begin later, come and go."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.offsets import (
    DataLossError,
    StreamOffset,
    TopicOffsets,
    document_of,
    offset_of,
)
from slackwater.pipeline.datasource.options import EARLIEST, OptionError
from slackwater.pipeline.datasource.stream import StreamPlanner, StreamReader
from tests.pipeline.unit.datasource.fakes import (
    FIRST,
    NEW,
    NONE,
    OLD,
    ORDERS,
    SECOND,
    FakeAdmin,
    FakeLog,
    options,
)

P0, P1 = ORDERS
ALL = ReadAllAvailable()


def admin() -> FakeAdmin:
    return FakeAdmin({P0: FakeLog(10, 30, [(10, 100), (20, 200)]), P1: FakeLog(0, 5, [(0, 50)])})


def planner(broker: FakeAdmin, **given: str) -> StreamPlanner:
    return StreamPlanner(TopicOffsets(broker, "read_uncommitted"), options(**given).for_stream())


def latest(
    plan: StreamPlanner, begun: dict[TopicPartition, int], limit: ReadLimit, now_ms: float = 0
) -> dict[TopicPartition, int]:
    return plan.latest(StreamOffset(begun), limit, now_ms).offsets


def ranges(
    plan: StreamPlanner, start: dict[TopicPartition, int], end: dict[TopicPartition, int]
) -> list[tuple[int, int]]:
    return [(part.start, part.stop) for part in plan.ranges(StreamOffset(start), StreamOffset(end))]


def test_offsets_of_a_checkpoint_are_those_of_sparks_kafka_source() -> None:
    """So are those of version 1, which has no topic ids."""
    reached = StreamOffset({P1: 5, P0: 30, TopicPartition("a.b", 10): 2})
    document = document_of(reached)
    assert json.dumps(document) == '{"a.b": {"10": 2}, "orders": {"0": 30, "1": 5}}'
    assert offset_of(json.loads(json.dumps(document))) == reached


def test_topic_ids_are_beside_the_topics_in_a_checkpoint() -> None:
    reached = StreamOffset({P0: 30}, {"orders": OLD})
    document = document_of(replace(reached, topic_ids={"orders": OLD, "gone": NEW}))
    assert document == {"orders": {"0": 30}, "#": {"version": 2, "topicIds": {"orders": OLD}}}
    assert offset_of(json.loads(json.dumps(document))) == reached


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    with pytest.raises(OptionError) as refused:
        offset_of({"orders": {"0": 30}, "#": {"version": 3, "topicIds": {}}})
    assert refused.value.name == "checkpointLocation"


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
    assert planner(admin(), **given).initial().offsets == wanted


def test_a_batch_ends_at_the_end_of_the_log_or_at_its_limit() -> None:
    plan = planner(admin())
    assert latest(plan, {P0: 10, P1: 0}, ALL) == {P0: 30, P1: 5}
    assert latest(plan, {P0: 10, P1: 0}, ReadMaxRows(10)) == {P0: 18, P1: 2}
    assert latest(plan, {P0: 30, P1: 5}, ReadMaxRows(10)) == {P0: 30, P1: 5}
    assert ranges(plan, {P0: 18, P1: 2}, {P0: 30, P1: 5}) == [(18, 30), (2, 5)]
    assert ranges(plan, {P0: 30, P1: 2}, {P0: 30, P1: 5}) == [(2, 5)]


def test_a_new_partition_is_read_from_its_first_record() -> None:
    broker = admin()
    plan = planner(broker)
    new = TopicPartition("orders", 2)
    broker.logs[new] = FakeLog(3, 9)
    end = latest(plan, {P0: 30, P1: 5}, ALL)
    assert end == {P0: 30, P1: 5, new: 9}
    assert ranges(plan, {P0: 30, P1: 5}, end) == [(3, 9)]
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
    assert plan.newest().offsets[P0] == 99


def test_a_target_that_another_query_has_read_past() -> None:
    """One without a target, of the same checkpoint."""
    broker = admin()
    plan = planner(broker)
    plan.fix_target()
    broker.logs[P0].last = 99
    assert latest(plan, {P0: 40, P1: 5}, ALL) == {P0: 40, P1: 5}


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


def test_without_topic_ids_a_log_that_is_too_short_fails_the_stream_or_is_read_from_its_start() -> None:
    broker = FakeAdmin({P0: FakeLog(0, 4), P1: FakeLog(0, 5)})
    for with_target in (False, True):
        plan, going_on = planner(broker), planner(broker, failOnDataLoss="false")
        if with_target:
            plan.fix_target()
            going_on.fix_target()
        with pytest.raises(DataLossError, match="orders-0: the log went up to offset 30, .* ends at 4"):
            latest(plan, {P0: 30, P1: 5}, ALL)
        end = latest(going_on, {P0: 30, P1: 5}, ALL)
        assert end == {P0: 4, P1: 5}
        assert ranges(going_on, {P0: 30, P1: 5}, end) == [(0, 4)]


def test_a_topic_that_is_gone_fails_the_stream_or_is_left_out() -> None:
    begun = {P0: 30, P1: 5, TopicPartition("b", 0): 1}
    broker = admin()
    with pytest.raises(DataLossError, match='"subscribe" names topic b, which does not exist'):
        latest(planner(broker, subscribe="orders,b"), begun, ALL)
    assert latest(planner(broker, subscribe="orders,b", failOnDataLoss="false"), begun, ALL) == {
        P0: 30,
        P1: 5,
    }
    with pytest.raises(DataLossError, match="b-0: the log went up to offset 1, and now it does not exist"):
        latest(planner(broker, subscribePattern="orders|b"), begun, ALL)


BEGUN = StreamOffset({P0: 30, P1: 5}, {"orders": OLD})


def recreated(first: FakeLog, second: FakeLog) -> FakeAdmin:
    broker = FakeAdmin({P0: first, P1: second})
    broker.topic_id = SECOND
    return broker


@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize("last", [20, 30, 80])
def test_a_topic_of_another_id_fails_the_stream(last: int, with_target: bool) -> None:
    plan = planner(recreated(FakeLog(0, last), FakeLog(0, 5)))
    if with_target:
        plan.fix_target()
    with pytest.raises(DataLossError, match=f"topic orders .* {OLD} and is {NEW}; .* failOnDataLoss=false"):
        plan.latest(BEGUN, ALL, 0)


@pytest.mark.parametrize("with_target", [False, True])
def test_a_topic_of_another_id_is_read_from_its_start_if_data_loss_is_accepted(
    with_target: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plan = planner(recreated(FakeLog(2, 80), FakeLog(0, 3)), failOnDataLoss="false")
    if with_target:
        plan.fix_target()
    with caplog.at_level(logging.WARNING):
        end = plan.latest(BEGUN, ALL, 0)
        assert end == StreamOffset({P0: 80, P1: 3}, {"orders": NEW})
        read = plan.ranges(BEGUN, end)
    assert [(part.start, part.stop, part.topic_id) for part in read] == [(2, 80, NEW), (0, 3, NEW)]
    assert len([record for record in caplog.records if OLD in record.message]) == 1
    assert plan.latest(BEGUN, ReadMaxRows(8), 0).offsets == {P0: 9, P1: 1}


def test_a_stream_that_waits_for_records_logs_a_loss_once(caplog: pytest.LogCaptureFixture) -> None:
    plan = planner(recreated(FakeLog(0, 3), FakeLog(0, 3)), failOnDataLoss="false", minOffsetsPerTrigger="9")
    plan.latest(StreamOffset({}), ReadMinRows(9), 0)
    with caplog.at_level(logging.WARNING):
        for now_ms in range(3):
            assert plan.latest(BEGUN, ReadMinRows(9), now_ms) == BEGUN
    assert len(caplog.records) == 1


def test_a_topic_made_again_since_the_target_was_fixed_is_left_to_the_next_run() -> None:
    broker = recreated(FakeLog(0, 60), FakeLog(0, 60))
    broker.topic_id = FIRST
    plan, going_on = planner(broker), planner(broker, failOnDataLoss="false")
    plan.fix_target()
    going_on.fix_target()
    broker.topic_id = SECOND
    with pytest.raises(DataLossError, match=OLD):
        plan.latest(BEGUN, ALL, 0)
    assert going_on.latest(BEGUN, ALL, 0).offsets == {}
    assert going_on.latest(StreamOffset({}), ReadMaxRows(9), 0).offsets == {}


def test_a_topic_made_again_since_a_batch_was_planned() -> None:
    """Its offsets may be in the log, but are other records'."""
    broker, ended = recreated(FakeLog(0, 60), FakeLog(0, 60)), StreamOffset({P0: 50, P1: 5}, {"orders": OLD})
    with pytest.raises(DataLossError, match=OLD):
        planner(broker).ranges(BEGUN, ended)
    assert planner(broker, failOnDataLoss="false").ranges(BEGUN, ended) == []
    assert planner(broker).ranges(ended, ended) == [], "nothing of it is read"


def test_partitions_that_went_since_a_batch_was_planned() -> None:
    broker = admin()
    del broker.logs[P1]
    with pytest.raises(DataLossError, match="orders-1"):
        ranges(planner(broker), {P0: 12, P1: 0}, {P0: 30, P1: 5})
    going_on = planner(broker, failOnDataLoss="false")
    assert ranges(going_on, {P0: 12, P1: 0}, {P0: 30, P1: 5}) == [(12, 30)]
    going_on.fix_target()
    del broker.logs[P0]
    assert latest(going_on, {P0: 12}, ReadMaxRows(9)) == {}


def test_a_topic_that_is_deleted_between_two_requests() -> None:
    broker = admin()
    broker.deleted = {P1}
    with pytest.raises(DataLossError, match="orders-1"):
        latest(planner(broker), {P0: 12, P1: 2}, ALL)
    assert latest(planner(broker, failOnDataLoss="false"), {P0: 12, P1: 2}, ALL) == {P0: 30}


class Deleting(FakeAdmin):
    """One partition is deleted once its end is known."""

    def list_offsets(self, wanted: Mapping[TopicPartition, int], *, isolation_level: str) -> Any:
        self.deleted = {P1} if EARLIEST in wanted.values() else set()
        return super().list_offsets(wanted, isolation_level=isolation_level)


def test_a_topic_that_is_deleted_while_a_batch_is_planned() -> None:
    plan = planner(Deleting(admin().logs), minOffsetsPerTrigger="20")
    assert latest(plan, {P0: 12}, ReadMaxRows(99)) == {P0: 30}
    assert latest(plan, {P0: 12}, ReadMinRows(20), 1) == {P0: 12}, "18 records wait"
    assert ranges(plan, {P0: 12}, {P0: 30, P1: 5}) == [(12, 30)]


def test_a_log_of_the_same_topic_that_was_cut_off_is_read_on_at_its_end() -> None:
    """By an unclean leader election: what is left has been read."""
    broker = FakeAdmin({P0: FakeLog(0, 20), P1: FakeLog(0, 9)})
    broker.topic_id = FIRST
    with pytest.raises(DataLossError, match="orders-0"):
        planner(broker).latest(BEGUN, ALL, 0)
    plan = planner(broker, failOnDataLoss="false")
    end = plan.latest(BEGUN, ALL, 0)
    assert end.offsets == {P0: 20, P1: 9}
    assert [(part.partition, part.start, part.stop) for part in plan.ranges(BEGUN, end)] == [(P1, 5, 9)]


@pytest.mark.parametrize(("known", "now"), [({"orders": OLD}, NONE), ({}, FIRST)])
def test_an_id_that_is_not_known_may_be_any(known: dict[str, str], now: UUID) -> None:
    """Of brokers before Kafka 2.8, or of a checkpoint of version 1; what is known is kept."""
    broker = admin()
    broker.topic_id = now
    end = planner(broker).latest(StreamOffset({P0: 12, P1: 5}, known), ALL, 0)
    assert end == StreamOffset({P0: 30, P1: 5}, {"orders": OLD})


def test_a_stream_without_new_records_stays_where_it_is() -> None:
    """Spark compares the texts, and would read empty batches without end."""
    broker = admin()
    broker.topic_id = FIRST
    assert json.dumps(document_of(planner(broker).latest(BEGUN, ALL, 0))) == json.dumps(document_of(BEGUN))


def test_offsets_of_a_topic_that_is_gone_are_not_committed_for_the_next() -> None:
    other = TopicPartition("other", 0)
    end = StreamOffset({P0: 60, other: 9}, {"orders": NEW, "other": OLD})
    assert StreamOffset({P0: 30, P1: 5, other: 7}, {"orders": OLD}).of_same_topics(end) == {other: 7}


def test_a_new_stream_of_a_topic_that_does_not_exist() -> None:
    with pytest.raises(OptionError, match='"subscribe" names topic b'):
        planner(admin(), subscribe="b", failOnDataLoss="false").initial()
