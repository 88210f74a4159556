"""Which topic a worker's positions belong to: notes, the sink's record, and topics that are made anew."""

from __future__ import annotations

from uuid import UUID

import pytest

from slackwater.kafka.errors import KafkaTimeoutError, TopicRecreatedError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.delivery.dead_letters import TOPIC_ID_HEADER, DeadLetters, Letter
from slackwater.runtime.delivery.partition import CommitNote, OwnedPartition
from slackwater.runtime.delivery.stopped_partitions import id_text, predecessor
from tests.support.workers.fakes import Bench

FIRST, SECOND = UUID(int=1), UUID(int=2)
OLD, NEW = id_text(FIRST), id_text(SECOND)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.cluster.topic_id = FIRST
    made.restart()
    return made


def run(bench: Bench, *values: str) -> TopicPartition:
    tp = bench.produce(0, *values)
    bench.assign(tp)
    bench.steps(30)
    return tp


def restart(bench: Bench, tp: TopicPartition) -> None:
    bench.restart()
    bench.assign(tp)
    bench.steps(30)


def test_an_id_is_written_as_kafkas_tools_write_it() -> None:
    assert id_text(UUID("9f1c8d3e-5b7a-4c21-8f00-0123456789ab")) == "nxyNPlt6TCGPAAEjRWeJqw"
    assert id_text(None) == ""


def test_a_note_carries_the_topic_and_older_notes_are_read() -> None:
    note = CommitNote(5, "w-0", topic_id=OLD)
    assert CommitNote.decode(note.encode()) == note
    assert CommitNote.decode('{"at":5,"instance":"w-0"}') == CommitNote(5, "w-0")
    assert CommitNote.decode('{"at":5,"instance":"w-0","topic":7}') == CommitNote(5, "w-0")
    assert "topic" not in CommitNote(5, "w-0").encode()


@pytest.mark.parametrize(
    ("note", "committed", "current", "delivered", "expected"),
    [
        (CommitNote(1, "w", topic_id=OLD), 5, OLD, [], ""),
        (CommitNote(1, "w", topic_id=OLD), 5, NEW, [], OLD),
        (CommitNote(1, "w", topic_id=OLD), 5, "", [OLD], ""),
        (CommitNote(1, "w"), 5, NEW, [OLD], ""),
        (None, 5, NEW, [OLD], ""),
        (None, None, NEW, [OLD], OLD),
        (None, None, NEW, [OLD, NEW], ""),
        (None, None, NEW, [], ""),
    ],
    ids=["same", "another", "no ids", "old note", "set by a person", "dropped", "accepted", "first start"],
)
def test_a_recreated_topic_has_a_predecessor(
    note: CommitNote | None, committed: int | None, current: str, delivered: list[str], expected: str
) -> None:
    assert predecessor(note, committed, current, delivered) == expected


def test_what_is_committed_names_its_topic(bench: Bench) -> None:
    tp = run(bench, "v0", "v1")
    assert bench.note(tp)["topic"] == OLD
    assert bench.sink.table_marks == {(tp, OLD): 2}
    restart(bench, tp)
    assert not bench.status.stopped


def test_a_broker_without_ids_is_worked_with_as_before(bench: Bench) -> None:
    bench.cluster.topic_id = None
    bench.restart()
    tp = run(bench, "v0", "v1")
    assert "topic" not in bench.note(tp)
    assert bench.sink.rows(0) == [0, 1]
    assert bench.sink.table_marks == {(tp, ""): 2}


def test_an_older_workers_note_is_gone_on_from(bench: Bench) -> None:
    tp = bench.produce(0, "v0", "v1")
    bench.cluster.committed[tp] = OffsetAndMetadata(1, CommitNote(1, "w-0").encode())
    bench.assign(tp)
    bench.steps(30)
    assert bench.sink.rows(0) == [1]
    assert bench.sink.table_marks == {(tp, OLD): 2}
    assert bench.note(tp)["topic"] == OLD


def test_a_topic_made_anew_stops_at_the_assignment(bench: Bench) -> None:
    tp = run(bench, "v0", "v1")
    bench.cluster.topic_id = SECOND
    bench.produce(0, "n0", "n1")
    restart(bench, tp)
    (event,) = bench.events("partition_stopped")
    assert event["reason"] == "TopicRecreated"
    assert f"records of the topic with id {OLD}" in event["message"]
    assert f"has its name now (id {NEW})" in event["message"]
    assert bench.sink.rows(0) == [0, 1]
    bench.delivery.drain(1_000)
    assert bench.cluster.committed[tp].offset == 2
    assert bench.note(tp)["topic"] == OLD
    # A person sets the offset, which leaves no note.
    bench.cluster.committed[tp] = OffsetAndMetadata(2)
    restart(bench, tp)
    assert bench.sink.rows(0) == [0, 1, 2, 3]
    assert bench.note(tp)["topic"] == NEW
    assert not bench.events("partition_stopped")


def test_a_topic_made_anew_whose_offsets_the_broker_has_dropped_stops_too(bench: Bench) -> None:
    tp = run(bench, "v0", "v1")
    bench.cluster.topic_id = SECOND
    del bench.cluster.committed[tp]
    restart(bench, tp)
    assert bench.status.stopped[0]["reason"] == "TopicRecreated"
    assert tp not in bench.cluster.committed
    assert bench.sink.published.keys() == {(0, 0)}


def test_an_offset_that_was_mirrored_to_another_kafka_is_gone_on_from(bench: Bench) -> None:
    """MirrorMaker 2 sets the group's offsets there, and copies their metadata."""
    bench.cluster.cluster_id = "here"
    tp = run(bench, "v0", "v1")
    mirrored = bench.cluster.committed[tp]
    assert bench.note(tp)["cluster"] == "here"
    bench.cluster.cluster_id, bench.cluster.topic_id = "there", SECOND
    bench.cluster.committed[tp] = OffsetAndMetadata(1, mirrored.metadata)
    bench.produce(0, "v2")
    restart(bench, tp)
    assert not bench.events("partition_stopped")
    assert bench.sink.rows(0) == [0, 1, 1, 2], "from the offset on, beside the rows of before"
    assert bench.sink.table_marks == {(tp, OLD): 2, (tp, NEW): 3}
    note = bench.note(tp)
    assert (note["topic"], note["cluster"]) == (NEW, "there")
    restart(bench, tp)
    assert bench.sink.rows(0) == [0, 1, 1, 2]


def test_on_another_kafka_without_offsets_a_person_decides_where_to_go_on(bench: Bench) -> None:
    """The table may have the records of the mirrored topic already."""
    bench.cluster.cluster_id = "here"
    tp = run(bench, "v0", "v1")
    bench.cluster.cluster_id, bench.cluster.topic_id = "there", SECOND
    del bench.cluster.committed[tp]
    restart(bench, tp)
    (event,) = bench.events("partition_stopped")
    assert event["reason"] == "TopicRecreated"
    assert "or the brokers are of another Kafka cluster" in event["message"]
    bench.cluster.committed[tp] = OffsetAndMetadata(1)
    restart(bench, tp)
    assert bench.sink.rows(0) == [0, 1, 1]


@pytest.mark.parametrize(
    ("committed_on", "here", "expected"),
    [("a", "b", True), ("a", "a", False), ("", "b", False), ("a", "", False)],
    ids=["another", "same", "an older worker's", "no ids"],
)
def test_a_note_says_which_kafka_it_was_committed_on(committed_on: str, here: str, expected: bool) -> None:
    note = CommitNote(5, "w-0", topic_id=OLD, cluster_id=committed_on)
    assert CommitNote.decode(note.encode()) == note
    assert note.mirrored(here) is expected


def test_metadata_older_than_the_commit_is_asked_for_again(bench: Bench) -> None:
    """Another worker has gone on with the new topic; this one still knows the old one."""
    tp = bench.produce(0, "n0", "n1")
    bench.cluster.committed[tp] = OffsetAndMetadata(1, CommitNote(1, "w-1", topic_id=NEW).encode())
    bench.cluster.topic_id = SECOND
    bench.assign(tp)
    bench.steps(30)
    assert not bench.events("partition_stopped")
    assert bench.sink.rows(0) == [1]


def test_a_batch_in_flight_of_a_recreated_topic_is_delivered(bench: Bench) -> None:
    """The batch belongs to the former topic and is delivered. Its commit names that topic."""
    tp = bench.produce(0, "v0", "v1")
    bench.runner.durations.append(500)
    bench.assign(tp)
    bench.steps(5)
    assert bench.delivery.in_flight.batch is not None
    bench.cluster.topic_id = SECOND
    bench.consumer.poll_errors.append(TopicRecreatedError({tp: 2}, {tp: OffsetAndMetadata(0)}))
    bench.steps(30)
    assert bench.sink.rows(0) == [0, 1]
    assert bench.note(tp)["topic"] == OLD
    assert bench.status.stopped[0]["reason"] == "TopicRecreated"
    bench.produce(0, "n0", "n1")
    restart(bench, tp)
    assert bench.sink.rows(0) == [0, 1]
    assert bench.status.stopped[0]["reason"] == "TopicRecreated"


def test_a_batch_is_delivered_though_the_broker_takes_no_offset_of_its_topic_any_more(bench: Bench) -> None:
    """OffsetCommit names the topic's id from Kafka 4.1 on. The table's mark is of the former topic, too."""
    tp = bench.produce(0, "v0", "v1")
    bench.consumer.commit_errors.extend([TopicRecreatedError({tp: 2}, {tp: OffsetAndMetadata(0)})] * 2)
    bench.assign(tp)
    bench.steps(30)
    assert bench.sink.rows(0) == [0, 1]
    assert bench.sink.table_marks == {(tp, OLD): 2}
    bench.cluster.topic_id = SECOND
    restart(bench, tp)
    assert bench.status.stopped[0]["reason"] == "TopicRecreated"


def test_records_of_another_topic_are_not_handled(bench: Bench) -> None:
    """Whatever the client has noticed: what it hands over says which topic it is of."""
    tp = run(bench, "v0", "v1")
    bench.cluster.topic_id = SECOND
    bench.consumer.bootstrap(refresh=True)
    bench.produce(0, "n0", "n1")
    bench.steps(30)
    assert bench.sink.rows(0) == [0, 1]
    assert bench.status.stopped[0]["reason"] == "TopicRecreated"
    assert bench.cluster.committed[tp].offset == 2


def test_a_look_at_the_topics_that_fails_is_made_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this client knows of the topics is older than the commit. Nothing is read before it knows more."""
    tp = bench.produce(0, "v0", "v1")
    bench.cluster.committed[tp] = OffsetAndMetadata(1, CommitNote(5, "w-1", topic_id=NEW).encode())
    bench.cluster.topic_id = SECOND
    ask, errors = bench.consumer.bootstrap, [KafkaTimeoutError("late"), KafkaTimeoutError("late")]

    def bootstrap(timeout_ms: float, *, refresh: bool) -> None:
        if errors:
            raise errors.pop()
        ask(timeout_ms, refresh)

    monkeypatch.setattr(bench.consumer, "bootstrap", bootstrap)
    bench.assign(tp)
    bench.steps(1)
    assert "cannot read the topics' ids yet; retrying: late" in bench.stderr.getvalue()
    assert bench.sink.rows(0) == []
    bench.steps(30)
    assert bench.sink.rows(0) == [1]
    assert not bench.status.stopped


def test_a_recreated_topics_dead_letters_are_not_taken_for_its_successors(bench: Bench) -> None:
    tp = run(bench, "bad0", "v1")
    bench.cluster.topic_id = SECOND
    for _ in range(2):  # the second time they are the new topic's own, and written already
        bench.cluster.committed[tp] = OffsetAndMetadata(0, "")
        restart(bench, tp)
        assert bench.letters.origins() == ["flights-0@0", "flights-0@0"]
    ids = [dict(headers)["slackwater.topic.id"] for _, _, _, headers in bench.letters.partitions[0]]
    assert ids == [OLD.encode(), NEW.encode()]


def test_a_dead_letter_that_is_rejected_again_does_not_keep_the_id_of_its_first_topic() -> None:
    letter = Letter(0, "bad", None, b"bad0", [(TOPIC_ID_HEADER, OLD.encode())], 0)
    for current in (NEW, ""):
        owned = OwnedPartition(TopicPartition("flights.dlq", 0), topic_id=current)
        bench = Bench()
        owned.letters = set()
        DeadLetters("g", bench.letters, bench.clock).write([(owned, [letter])])
        ((_, _, _, headers),) = bench.letters.partitions[0]
        assert dict(headers)[TOPIC_ID_HEADER] == current.encode()
