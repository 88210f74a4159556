"""What a task reads: its range of offsets and no more, over gaps, and what it does about lost records."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

import pytest

from slackwater.kafka.errors import KafkaTimeoutError, OffsetOutOfRangeNoResetError, TopicRecreatedError
from slackwater.kafka.records import BatchBuilder, RecordColumns, decode
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.offsets import DataLossError, TopicOffsetRange
from slackwater.pipeline.datasource.tasks import MAX_ROWS, read_range
from tests.pipeline.unit.datasource.fakes import FIRST, NEW, OLD, ORDERS, SECOND

(TP, _) = ORDERS


def columns(base: int, count: int) -> RecordColumns:
    builder = BatchBuilder("none", 1_000_000)
    for number in range(base, base + count):
        assert builder.append(number, None, b"%d" % number, [])
    return decode(builder.build(base_offset=base), fetch_offset=base)


class FakeClock:
    """A time that goes on by a second each time it is asked for."""

    def __init__(self) -> None:
        self.now = 0.0

    def mono_ms(self) -> float:
        self.now += 1000
        return self.now

    def wall_ms(self) -> int:
        return 0


class FakeConsumer:
    """Gives ``fetches`` in turn: rows, the position that a fetch without rows moves to, or the id of the
    topic that has the name of the one that was read. The log begins at ``first`` and ends at ``last``."""

    def __init__(
        self, *fetches: RecordColumns | int | UUID, first: int = 0, last: int = 1_000, topic: UUID = FIRST
    ) -> None:
        self.fetches, self.first, self.last, self.id = list(fetches), first, last, topic
        self.partitions = {0}
        self.newest: UUID | None = None
        """The id that the brokers have for the topic, where this consumer has known another one before."""
        self.at = -1
        self.sought: list[int] = []
        self.assigned: list[TopicPartition] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = False) -> None:
        self.id = self.newest or self.id

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert [partition] == self.assigned
        self.at = offset
        self.sought.append(offset)

    def position(self, partition: TopicPartition) -> int:
        return self.at

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        return self.id

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self.partitions

    def beginning_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, self.first)

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> Mapping[TopicPartition, RecordColumns]:
        assert max_records == MAX_ROWS
        if not self.first <= self.at <= self.last:
            raise OffsetOutOfRangeNoResetError({TP: self.at})
        if not self.fetches:
            return {}
        fetch = self.fetches.pop(0)
        if isinstance(fetch, UUID):
            self.id = fetch
            raise TopicRecreatedError({TP: self.at}, {TP: None})
        if isinstance(fetch, int):
            self.at = fetch
            return {}
        self.at = fetch.next_offset
        return {TP: fetch}


def read(
    consumer: FakeConsumer, start: int, stop: int, *, fail: bool = True, topic_id: str = OLD
) -> list[int]:
    part = TopicOffsetRange(TP, start, stop, topic_id)
    pieces = read_range(consumer, part, FakeClock(), fail_on_data_loss=fail, silence_ms=30_000)
    offsets = []
    for piece in pieces:
        assert len(piece)
        offsets += [record.offset for record in piece.records(*TP)]
    return offsets


def test_a_range_is_cut_at_its_end() -> None:
    consumer = FakeConsumer(columns(5, 4), columns(9, 10))
    assert read(consumer, 5, 12) == list(range(5, 12))
    assert (consumer.assigned, consumer.sought) == ([TP], [5])


def test_offsets_without_records_are_passed_over() -> None:
    """Compaction leaves gaps, and markers of transactions have no rows: the last offset may never come."""
    assert read(FakeConsumer(columns(0, 2), 6, columns(6, 1), 10), 0, 10) == [0, 1, 6]
    assert read(FakeConsumer(columns(0, 2), columns(40, 5)), 0, 10) == [0, 1]
    assert read(FakeConsumer(12), 0, 10) == []


def test_an_empty_range_asks_for_nothing() -> None:
    assert read(FakeConsumer(first=7), 5, 5) == []


def test_silence_is_an_error_that_says_where() -> None:
    consumer = FakeConsumer(columns(0, 3))
    with pytest.raises(KafkaTimeoutError, match=r"orders-0: no record came from offset 3 for 30000 ms"):
        read(consumer, 0, 10)


def test_records_that_went_meanwhile_fail_the_task() -> None:
    consumer = FakeConsumer(columns(50, 5), first=50)
    with pytest.raises(
        DataLossError, match=r"orders-0: offsets 3 to 49 cannot be read any more: the log begins at 50"
    ):
        read(consumer, 3, 60)


@pytest.mark.parametrize("topic_id", [OLD, ""])
def test_a_topic_made_again_while_a_task_reads_it(topic_id: str, caplog: pytest.LogCaptureFixture) -> None:
    """The new one's records are the next batch's."""
    fetches = columns(0, 2), SECOND, columns(2, 8)
    with pytest.raises(DataLossError, match=f"orders-0: offsets 2 to 9 .* is {NEW}"):
        read(FakeConsumer(*fetches), 0, 10, topic_id=topic_id)
    with caplog.at_level(logging.WARNING):
        assert read(FakeConsumer(*fetches, first=5), 0, 10, topic_id=topic_id, fail=False) == [0, 1]
    assert NEW in caplog.text


def test_a_topic_made_again_before_a_task_reads_it() -> None:
    for fetch in (columns(0, 10), 10):
        with pytest.raises(DataLossError, match=f"was {OLD} and is {NEW}"):
            read(FakeConsumer(fetch, topic=SECOND), 0, 10)
        assert read(FakeConsumer(fetch, topic=SECOND), 0, 10, fail=False) == []


def test_a_consumer_that_has_known_an_older_topic_than_the_planner_reads_the_new_one() -> None:
    assert read(FakeConsumer(SECOND, columns(0, 3)), 0, 3, topic_id=NEW) == [0, 1, 2]


@pytest.mark.parametrize(("topic_id", "rows"), [(OLD, []), (NEW, [0, 1, 2])])
def test_a_consumer_that_is_kept_asks_which_topic_there_is(topic_id: str, rows: list[int]) -> None:
    """A fetch before Kafka 3.1 names topics by name: it gives the new one's records, and no error."""
    consumer = FakeConsumer(columns(0, 3))
    consumer.newest = SECOND
    assert read(consumer, 0, 3, topic_id=topic_id, fail=False) == rows


def test_a_topic_deleted_while_a_task_reads_it() -> None:
    for fail in (True, False):
        consumer = FakeConsumer(columns(0, 3))
        consumer.partitions = set()
        if fail:
            with pytest.raises(DataLossError, match="orders-0: offsets 3 to 9 .* not exist"):
                read(consumer, 0, 10)
        else:
            assert read(consumer, 0, 10, fail=False) == [0, 1, 2]


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [(8, 1_000, [8, 9]), (20, 1_000, []), (0, 2, [])],
    ids=["some are left", "none is left", "the log was cut off"],
)
def test_records_that_went_meanwhile_are_passed_over_if_that_was_chosen(
    first: int, last: int, wanted: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    consumer = FakeConsumer(columns(8, 5), first=first, last=last)
    with caplog.at_level(logging.WARNING):
        assert read(consumer, 3, 10, fail=False) == wanted
    assert "orders-0: offsets 3 to" in caplog.text
