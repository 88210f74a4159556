"""Which ranges a batch query reads, by its options and by what the brokers say."""

from __future__ import annotations

import logging

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.offsets import DataLossError, TopicOffsets, ranges_of
from slackwater.pipeline.datasource.options import OptionError
from slackwater.runtime.delivery.partition import CommitNote
from tests.pipeline.unit.datasource.fakes import NEW, OLD, ORDERS, SECOND, FakeAdmin, FakeLog, options

OTHER = TopicPartition("other", 0)


def admin() -> FakeAdmin:
    """Times go back at offset 12 of partition 0."""
    return FakeAdmin(
        {
            ORDERS[0]: FakeLog(10, 14, [(10, 100), (11, 300), (12, 200), (13, 400)]),
            ORDERS[1]: FakeLog(0, 5, [(0, 100), (1, 150), (2, 160), (3, 170), (4, 180)]),
            OTHER: FakeLog(0, 1, [(0, 1)]),
        },
        {"g": {ORDERS[0]: 12}, "behind": {ORDERS[0]: 4, ORDERS[1]: 2}},
    )


def note(topic_id: str, cluster_id: str) -> str:
    """What a worker commits beside an offset."""
    return CommitNote(1, "w-0", topic_id=topic_id, cluster_id=cluster_id).encode()


def ranges(broker: FakeAdmin | None = None, **given: str) -> list[tuple[int, int]]:
    read = ranges_of(TopicOffsets(broker or admin(), "read_uncommitted"), options(**given))
    assert [part.partition for part in read] == sorted(part.partition for part in read)
    return [(part.start, part.stop) for part in read]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, [(10, 14), (0, 5)]),
        ({"subscribe": "other,orders"}, [(10, 14), (0, 5), (0, 1)]),
        ({"subscribePattern": "o.*"}, [(10, 14), (0, 5), (0, 1)]),
        ({"subscribePattern": "order"}, []),
        ({"assign": '{"orders": [1]}'}, [(0, 5)]),
        ({"startingOffsets": '{"orders": {"0": 11, "1": -1}}'}, [(11, 14), (5, 5)]),
        ({"endingOffsets": '{"orders": {"0": 11, "1": -1}}'}, [(10, 11), (0, 5)]),
        ({"startingTimestamp": "160"}, [(11, 14), (2, 5)]),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 301, "1": 0}}'}, [(13, 14), (0, 5)]),
        ({"endingTimestamp": "170"}, [(10, 11), (0, 3)]),
        ({"endingTimestamp": "500"}, [(10, 14), (0, 5)]),
        ({"startingTimestamp": "350", "startingOffsetsByTimestampStrategy": "latest"}, [(13, 14), (5, 5)]),
        ({"startingOffsets": "group", "groupId": "g"}, [(12, 14), (0, 5)]),
        ({"endingOffsets": "group", "groupId": "g"}, [(10, 12), (0, 0)]),
        ({"startingOffsets": "group", "groupId": "new"}, [(10, 14), (0, 5)]),
    ],
)
def test_ranges(given: dict[str, str], wanted: list[tuple[int, int]]) -> None:
    assert ranges(**given) == wanted


def test_a_start_behind_the_end_is_an_empty_range() -> None:
    starts, ends = '{"orders": {"0": 13, "1": 0}}', '{"orders": {"0": 11, "1": 2}}'
    assert ranges(startingOffsets=starts, endingOffsets=ends) == [(13, 13), (0, 2)]


def test_the_isolation_level_decides_about_the_end() -> None:
    broker = admin()
    ranges_of(TopicOffsets(broker, "read_committed"), options())
    assert {level for _, level in broker.listed} == {"read_committed"}


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ({"startingOffsets": '{"orders": {"0": 12, "1": -1}, IDS}'}, [(10, 14), (0, 5)]),
        ({"endingOffsets": '{"orders": {"0": 12, "1": 9}, IDS}'}, [(10, 10), (0, 0)]),
    ],
)
def test_offsets_of_a_topic_that_was_made_again(
    given: dict[str, str], instead: list[tuple[int, int]]
) -> None:
    """A start goes to the new topic's, and of what was to be read of the old one nothing is there."""
    broker = admin()
    broker.topic_id = SECOND
    ids = '"#": {"version": 2, "topicIds": {"orders": "%s"}}'
    places = {name: text.replace("IDS", ids % OLD) for name, text in given.items()}
    with pytest.raises(DataLossError, match=f"topic orders .* {OLD} and is {NEW}; .* failOnDataLoss=false"):
        ranges(broker, **places)
    assert ranges(broker, **places, failOnDataLoss="false") == instead
    same = '{"orders": {"0": 12, "1": -1}, IDS}'.replace("IDS", ids % NEW)
    assert ranges(broker, startingOffsets=same) == [(12, 14), (5, 5)]


@pytest.mark.parametrize(
    ("option", "instead"),
    [("startingOffsets", [(10, 14), (0, 5)]), ("endingOffsets", [(10, 10), (0, 0)])],
)
def test_a_commit_of_a_topic_that_was_made_again_counts_for_nothing(
    option: str, instead: list[tuple[int, int]]
) -> None:
    """Before Kafka 4.1 a commit that is under way is stored for the new topic."""
    broker = admin()
    broker.topic_id, broker.note = SECOND, note(OLD, "here")
    with pytest.raises(DataLossError, match=f"topic orders .* {OLD} and is {NEW}; .* failOnDataLoss=false"):
        ranges(broker, **{option: "group"}, groupId="g")
    assert ranges(broker, **{option: "group"}, groupId="g", failOnDataLoss="false") == instead


@pytest.mark.parametrize("committed", ["", "x", note(NEW, "here"), note(OLD, "elsewhere")])
def test_a_commit_counts_where_its_note_is_of_this_topic_or_says_nothing_of_it(committed: str) -> None:
    """An offset that was mirrored from another cluster has the note of its worker there."""
    broker = admin()
    broker.topic_id, broker.note = SECOND, committed
    assert ranges(broker, startingOffsets="group", groupId="g") == [(12, 14), (0, 5)]


def test_tasks_know_the_topics_id() -> None:
    broker = admin()
    broker.topic_id = SECOND
    read = ranges_of(TopicOffsets(broker, "read_uncommitted"), options())
    assert [part.topic_id for part in read] == [NEW, NEW]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "orders,none"}, '"subscribe" names topic none, which does not exist'),
        ({"assign": '{"orders": [0, 7]}'}, '"assign" names partition orders-7, which does not exist'),
        ({"startingOffsets": '{"orders": {"0": 11}}'}, '"startingOffsets" has nothing for orders-1'),
        ({"endingOffsets": '{"orders": {"0": 11, "1": 1, "2": 1}}'}, '"endingOffsets" names orders-2'),
        ({"startingTimestamp": "350"}, '"startingTimestamp" is later than all records of orders-1'),
    ],
)
def test_what_does_not_exist_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ranges(**given)


@pytest.mark.parametrize(
    ("given", "said", "instead"),
    [
        (
            {"startingOffsets": '{"orders": {"0": 4, "1": -2}}'},
            "orders-0: offsets 4 to 9 are no longer in the log, which begins at 10",
            [(10, 14), (0, 5)],
        ),
        ({"startingOffsets": "group", "groupId": "behind"}, "orders-0: offsets 4 to 9", [(10, 14), (2, 5)]),
        (
            {"startingOffsets": '{"orders": {"0": 15, "1": -2}}'},
            "orders-0: reading begins at 15, but the log ends at 14",
            [(14, 14), (0, 5)],
        ),
        (
            {"endingOffsets": '{"orders": {"0": 11, "1": 6}}'},
            "orders-1: endingOffsets is 6, but the log ends at 5",
            [(10, 11), (0, 5)],
        ),
    ],
)
def test_lost_records_fail_the_query_or_are_logged(
    given: dict[str, str], said: str, instead: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLossError, match=rf"{said}.*set failOnDataLoss=false"):
        ranges(**given)
    with caplog.at_level(logging.WARNING):
        assert ranges(**given, failOnDataLoss="false") == instead
    assert said in caplog.text
