"""Topics that change under a group: what is told of them."""

from __future__ import annotations

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.policies.topics import TopicWatch, missing_topics_message


def look(
    watch: TopicWatch, now_ms: int, *, topics: str = "t u", missing: str = "", **counts: int
) -> list[str]:
    """What is told after an observation, as `reason: message`; nothing is told twice."""
    partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    snapshot = KafkaSnapshot(now_ms, partitions=tuple(partitions), missing=tuple(missing.split()))
    watch.observe(snapshot, now_ms=now_ms, topics=topics.split())
    unreported = watch.unreported
    watch.mark_reported(unreported)
    return [f"{change.reason}: {change.message}" for change in unreported]


def test_the_first_look_and_one_that_finds_the_same_tell_nothing() -> None:
    watch = TopicWatch()
    assert look(watch, 0, t=6, u=1) == []
    assert look(watch, 1_000, t=6, u=1) == []
    assert watch.since(0) == ""


def test_partitions_that_are_added() -> None:
    watch = TopicWatch()
    look(watch, 0, t=6, u=1)
    assert look(watch, 1_000, t=9, u=1) == ["PartitionsAdded: topic t grew from 6 to 9 partitions"]
    assert look(watch, 2_000, t=12, u=1) == ["PartitionsAdded: topic t grew from 9 to 12 partitions"]
    message = "topic t grew from 6 to 9 partitions; topic t grew from 9 to 12 partitions"
    assert watch.since(1_500) == message, "what came shortly before counts, too"
    assert watch.since(63_000) == ""


def test_a_topic_that_is_deleted_and_comes_back() -> None:
    watch = TopicWatch()
    look(watch, 0, t=6, u=2)
    assert look(watch, 1_000, t=6, missing="u") == ["TopicMissing: topic u was deleted"]
    assert look(watch, 2_000, t=6, missing="u") == []
    assert look(watch, 3_000, t=6, u=1) == ["TopicCreated: topic u was created, with 1 partition"]
    assert look(watch, 4_000, t=2, u=1) == [
        "TopicCreated: topic t was recreated with 2 partitions (before: 6)"
    ]


def test_a_topic_that_was_never_there() -> None:
    watch = TopicWatch()
    assert look(watch, 0, t=6, missing="u") == ["TopicMissing: topic u does not exist; create it"]
    assert look(watch, 1_000, t=6, u=3) == ["TopicCreated: topic u was created, with 3 partitions"]


def test_topics_by_a_pattern() -> None:
    watch = TopicWatch()
    look(watch, 0, topics="", t=6, u=1)
    assert look(watch, 1_000, topics="", t=6, u=1, v=2) == [
        "TopicCreated: topic v was created, with 2 partitions"
    ]
    assert look(watch, 2_000, topics="", t=6, v=2) == ["TopicMissing: topic u was deleted"]


def test_a_list_that_changes_is_no_change_of_the_topics() -> None:
    watch = TopicWatch()
    look(watch, 0, t=6, u=1)
    assert look(watch, 1_000, topics="t v", t=6, v=4) == []
    assert look(watch, 2_000, topics="t", t=6) == []


def test_what_has_not_been_told_is_kept() -> None:
    watch = TopicWatch()
    look(watch, 0, t=6)
    for now_ms, count in ((1_000, 7), (2_000, 8)):
        partitions = tuple(TopicPartition("t", number) for number in range(count))
        watch.observe(KafkaSnapshot(now_ms, partitions=partitions), now_ms=now_ms, topics=["t", "u"])
    assert [change.action for change in watch.unreported] == ["grow t to 7", "grow t to 8"]
    watch.mark_reported(watch.unreported[:1])
    assert [change.action for change in watch.unreported] == ["grow t to 8"]


def test_what_to_do_about_missing_topics() -> None:
    assert missing_topics_message(["t"]) == "topic t does not exist; create it, or correct the spec"
    assert missing_topics_message(["t", "u"]) == "topics t, u do not exist; create them, or correct the spec"


def test_of_many_missing_topics_a_few_are_named() -> None:
    """100 names of 249 characters would leave no room in a condition."""
    said = missing_topics_message([f"topic-{number}" for number in range(100)])
    assert said.startswith("topics topic-0, topic-1, topic-2, topic-3, topic-4 and 95 more do not exist")
