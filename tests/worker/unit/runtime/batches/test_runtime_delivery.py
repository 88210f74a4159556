"""The worker's loop against a made-up group in virtual time."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pyarrow as pa
import pytest

from slackwater import OffsetRange
from slackwater.kafka.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    KafkaConnectionError,
    KafkaTimeoutError,
    LogTruncationError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
)
from slackwater.kafka.structs import OffsetAndMetadata, SkippedRecords, TopicPartition
from slackwater.runtime.delivery.dead_letters import Headers
from slackwater.runtime.delivery.partition import CommitNote, OwnedPartition
from slackwater.runtime.errors import DeadLetterError, FencedError, HandlerError, SinkError, WorkerError
from slackwater.runtime.fault_points import Step, no_faults
from tests.support.workers.fakes import START_MS, Bench

PLACELESS: Headers = [(f"slackwater.{name}", b"0") for name in ("topic", "partition", "offset")]
"""Of a letter of another group."""


@pytest.fixture
def bench() -> Bench:
    return Bench()


def values(count: int, start: int = 0) -> list[str]:
    return [f"v{start + i}" for i in range(count)]


def test_a_batch_is_staged_fenced_published_and_committed_in_this_order(bench: Bench) -> None:
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(2))
    bench.assign(a, b)
    bench.until_idle()
    assert bench.cluster.journal == [
        ("marks", [0, 1]),
        ("stage", 0, 0),
        ("stage", 1, 0),
        ("commit", {"flights-0": 0, "flights-1": 0}),
        ("publish", 0, 0),
        ("publish", 1, 0),
        ("commit", {"flights-0": 3, "flights-1": 2}),
    ]
    assert bench.engine.calls == 1
    assert bench.sink.published == {
        (0, 0): [(0, "v0"), (1, "v1"), (2, "v2")],
        (1, 0): [(0, "v0"), (1, "v1")],
    }
    assert bench.note(a)["instance"] == "w-0"
    assert START_MS <= bench.note(a)["at"] <= bench.clock.wall_ms()
    (batch,) = bench.events("batch")
    assert (batch["records"], batch["out"], batch["dead"]) == (5, 5, 0)
    assert batch["by_partition"] == {"flights-0": [0, 3], "flights-1": [0, 2]}
    assert bench.events("committed")[0]["offsets"] == {"flights-0": 3, "flights-1": 2}


def test_rows_left_out_are_committed_and_not_written(bench: Bench) -> None:
    tp = bench.produce(0, "v0", "skip", "v2")
    bench.assign(tp)
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 2]
    assert bench.cluster.committed[tp].offset == 3


def test_polling_goes_on_and_asks_for_no_records_while_the_handler_works(bench: Bench) -> None:
    """The partitions are not paused: the client fetches what comes next."""
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.runner.durations.append(1000)
    bench.steps(2)
    bench.produce(0, *values(3))
    before = bench.consumer.polls
    bench.steps(18)
    assert bench.consumer.polls - before == 18
    assert (bench.engine.calls, bench.consumer.positions[tp], bench.consumer.paused) == (1, 3, set())
    bench.until_idle()
    assert bench.sink.rows(0) == [*range(6)]


def test_one_batch_is_in_flight(bench: Bench) -> None:
    bench.restart(max_records=2)
    tp = bench.produce(0, *values(6))
    bench.assign(tp)
    bench.runner.durations.extend([300, 300, 300])
    bench.until_idle()
    assert bench.journal("stage", "publish") == [
        (what, 0, start) for start in (0, 2, 4) for what in ("stage", "publish")
    ]


def test_a_partition_assigned_during_a_batch_waits_for_its_end(bench: Bench) -> None:
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(2))
    bench.assign(a)
    bench.runner.durations.append(500)
    bench.steps(2)
    bench.assign(b, generation=2)
    bench.steps(3)
    assert (bench.engine.calls, bench.consumer.positions[b]) == (1, 0)
    bench.until_idle()
    assert bench.sink.rows(1) == [0, 1]


def test_the_committed_offsets_of_all_new_partitions_are_asked_for_in_one_question(bench: Bench) -> None:
    a, b, c = (bench.produce(n, *values(2)) for n in range(3))
    bench.cluster.committed[b] = OffsetAndMetadata(1, "")
    bench.assign(a, b)
    bench.until_idle()
    assert bench.consumer.looked_up == [[a, b]]
    bench.assign(c)
    bench.until_idle()
    assert bench.consumer.looked_up == [[a, b], [c]], "of those that are new"
    assert bench.journal("publish") == [("publish", 0, 0), ("publish", 1, 1), ("publish", 2, 0)]


def test_an_answer_that_does_not_come_is_asked_for_again_before_anything_is_taken(bench: Bench) -> None:
    a, b = (bench.produce(n, *values(2)) for n in range(2))
    bench.consumer.committed_errors.extend([KafkaConnectionError("gone"), KafkaTimeoutError("late")])
    bench.assign(a, b)
    bench.until_idle()
    assert bench.consumer.looked_up == [[a, b]] * 3
    assert bench.journal("stage")[0] == ("stage", 0, 0)
    assert bench.stderr.getvalue().count("cannot read the committed offsets of flights-0, flights-1 yet") == 1
    assert bench.cluster.committed[b].offset == 2


def test_a_committed_offset_that_may_not_be_read_ends_the_worker(bench: Bench) -> None:
    a, b = (bench.produce(n, *values(2)) for n in range(2))
    bench.consumer.committed_errors.append(TopicAuthorizationFailedError("no"))
    bench.assign(a, b)
    with pytest.raises(WorkerError, match="the committed offsets of flights-0, flights-1: no"):
        bench.until_idle()
    assert bench.cluster.journal == [("marks", [0, 1])]


def test_a_held_delivery_polls_and_takes_nothing(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.delivery.hold()
    bench.assign(tp)
    bench.steps(5)
    assert bench.consumer.polls == 5
    assert bench.engine.calls == 0
    bench.delivery.release()
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]


def test_a_batch_begins_at_the_committed_offset_and_not_at_its_first_record(bench: Bench) -> None:
    tp = bench.produce(0, *values(6))
    bench.cluster.committed[tp] = OffsetAndMetadata(1, "")
    bench.cluster.compacted[tp] = 3
    bench.assign(tp)
    bench.until_idle()
    assert bench.sink.published == {(0, 1): [(3, "v3"), (4, "v4"), (5, "v5")]}


def test_a_position_that_was_reset_backwards_starts_at_its_first_record(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))  # made anew, shorter than what was committed
    bench.cluster.committed[tp] = OffsetAndMetadata(700, "")
    bench.assign(tp)
    bench.consumer.at_poll.append(lambda: bench.consumer.seek(tp, 0))
    bench.until_idle()
    assert bench.sink.published.keys() == {(0, 0)}
    assert bench.cluster.committed[tp].offset == 3


# ---- what a rebalance does to a batch


def test_revoke_finishes_the_batch_in_flight_and_commits_before_it_returns(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.runner.durations.append(400)
    bench.steps(2)
    bench.consumer.at_poll.append(lambda: bench.consumer.revoke(tp))
    bench.steps(1)
    assert bench.cluster.committed[tp].offset == 3
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.delivery.in_flight.batch is None
    assert bench.events("revoked")[0]["partitions"] == [["flights", 0]]


def test_records_of_the_poll_in_which_a_revocation_ended_the_batch_are_handled(bench: Bench) -> None:
    bench.restart(max_records=4)
    a, b = bench.produce(0, *values(2)), bench.produce(1, *values(6))
    bench.assign(a, b)
    bench.runner.durations.append(400)
    bench.steps(2)
    bench.consumer.at_poll.append(lambda: bench.consumer.revoke(a))
    bench.until_idle()
    assert bench.sink.rows(1) == [0, 1, 2, 3, 4, 5]
    assert bench.cluster.committed[b].offset == 6


def test_revoke_gives_up_only_the_revoked_part_at_its_deadline(bench: Bench) -> None:
    bench = Bench(drainTimeoutMs=1000)
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(2))
    bench.assign(a, b)
    bench.runner.durations.append(5000)
    bench.steps(2)
    began = bench.clock.now
    bench.consumer.at_poll.append(lambda: bench.consumer.revoke(a))
    bench.steps(1)
    assert 1000 <= bench.clock.now - began < 1200
    assert a not in bench.cluster.committed
    bench.until_idle()
    assert bench.sink.published.keys() == {(1, 0)}
    assert bench.sink.staged == 0
    assert bench.cluster.committed[b].offset == 2
    assert a not in bench.cluster.committed


def test_a_given_up_part_is_handled_by_the_next_owner_from_the_committed_offset(bench: Bench) -> None:
    bench = Bench(drainTimeoutMs=1000)
    a = bench.produce(0, *values(3))
    bench.assign(a)
    bench.runner.durations.append(5000)
    bench.steps(2)
    bench.consumer.at_poll.append(lambda: bench.consumer.revoke(a))
    bench.steps(1)
    bench.assign(a, generation=3)
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.engine.calls == 2


def test_lost_partitions_are_given_up_at_once_without_a_commit(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.runner.durations.append(5000)
    bench.steps(2)
    began = bench.clock.now
    bench.consumer.at_poll.append(lambda: bench.consumer.lose(tp))
    bench.steps(1)
    assert bench.clock.now - began <= 50
    bench.steps(200)
    assert bench.cluster.committed == {}
    assert bench.sink.published == {}
    assert bench.sink.staged == 0
    assert bench.delivery.in_flight.batch is None


def test_a_refused_fence_publishes_nothing_and_reads_the_records_again(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.consumer.commit_errors.append(CommitFailedError())
    bench.until_idle()
    assert bench.cluster.journal == [
        ("marks", [0]),
        ("stage", 0, 0),
        ("refused", "CommitFailedError"),
        ("discard", 0, 0),
        ("stage", 0, 0),
        ("commit", {"flights-0": 0}),
        ("publish", 0, 0),
        ("commit", {"flights-0": 3}),
    ]


def test_marks_are_read_once_at_each_assignment(bench: Bench) -> None:
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(3))
    bench.assign(a)
    bench.until_idle()
    bench.assign(b, generation=2)
    bench.produce(0, *values(3))
    bench.until_idle()
    assert bench.journal("marks") == [("marks", [0]), ("marks", [1])]
    bench.consumer.at_poll.append(lambda: bench.consumer.lose(a))
    bench.steps(1)
    bench.assign(a, generation=3)
    bench.until_idle()
    assert bench.journal("marks")[2:] == [("marks", [0])]


def test_marks_that_cannot_be_read_end_the_worker_before_anything_is_staged(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.sink.marks_error = OSError(errno.EIO, "Input/output error", "/out/log")
    bench.assign(tp)
    with pytest.raises(SinkError, match="read how far it has rows of flights-0: Input/output error"):
        bench.until_idle()
    assert bench.cluster.journal == []


def test_the_group_is_polled_while_marks_are_read(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.writer.marks_ms = 1000
    bench.assign(tp)
    polls = bench.consumer.polls
    bench.steps(15)
    assert bench.engine.calls == 0
    assert bench.consumer.polls - polls == 15
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]


def test_reading_begins_at_the_mark_where_that_is_beyond_the_committed_offset(bench: Bench) -> None:
    """A worker was stopped between the table's commit and Kafka's, or a person has set the offset back."""
    a, b, c = (bench.produce(partition, *values(6)) for partition in range(3))
    bench.cluster.committed[a] = OffsetAndMetadata(0, "")
    bench.cluster.committed[b] = OffsetAndMetadata(4, "")
    bench.sink.table_marks = {(a, ""): 4, (b, ""): 2, (c, ""): 6}
    bench.assign(a, b, c)
    bench.until_idle()
    assert (bench.sink.rows(0), bench.sink.rows(1), bench.sink.rows(2)) == ([4, 5], [4, 5], [])
    assert bench.sink.table_marks == {(a, ""): 6, (b, ""): 6, (c, ""): 6}
    assert {at.offset for at in bench.cluster.committed.values()} == {6}
    log = bench.stderr.getvalue()
    assert "flights-0: offset 0 is committed, and the sink has all rows up to 4; continuing there" in log
    assert "flights-2: no offset is committed, and the sink has all rows up to 6; continuing there" in log
    assert "flights-1:" not in log


def test_a_mark_is_not_gone_to_before_the_committed_offset_is_confirmed(bench: Bench) -> None:
    """No leader epoch is known of a mark: only the committed offset shows that the log was cut off."""
    tp = bench.produce(0, *values(8))
    bench.cluster.committed[tp] = OffsetAndMetadata(2, "")
    bench.sink.table_marks = {(tp, ""): 4}
    bench.consumer.unconfirmed.add(tp)
    bench.assign(tp)
    bench.steps(20)
    assert (bench.engine.calls, bench.consumer.positions[tp]) == (0, 2)
    bench.consumer.unconfirmed.clear()
    bench.until_idle()
    assert bench.sink.rows(0) == [4, 5, 6, 7]


def test_what_another_process_has_written_meanwhile_is_given_back_and_not_written_again(
    bench: Bench,
) -> None:
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(3))
    bench.runner.durations.append(1000)
    bench.assign(a, b)
    bench.steps(2)
    bench.sink.table_marks[a, ""] = 2
    bench.until_idle()
    assert (bench.sink.rows(0), bench.sink.rows(1)) == ([2], [0, 1, 2])
    assert bench.journal("marks") == [("marks", [0, 1]), ("marks", [0, 1])]
    assert "flights-0 was written by another process" in bench.stderr.getvalue()


def test_a_batch_is_one_commit_of_the_table_however_many_partitions_it_has(bench: Bench) -> None:
    bench.assign(*(bench.produce(partition, *values(3)) for partition in range(12)))
    bench.until_idle()
    assert bench.sink.commits == 1


def test_a_batch_without_rows_moves_the_marks(bench: Bench) -> None:
    tp = bench.produce(0, "skip0", "bad1", "skip2")
    bench.assign(tp)
    bench.until_idle()
    assert bench.sink.rows(0) == []
    assert bench.sink.table_marks == {(tp, ""): 3}


def test_a_sink_that_does_not_come_back_from_its_commit_ends_the_worker_at_the_time_limit() -> None:
    bench = Bench(handlerTimeoutMs=5000)
    tp = bench.produce(0, *values(3))
    bench.writer.durations.extend([0, 60_000])
    bench.assign(tp)
    with pytest.raises(SinkError, match=r"did not commit the batch \(flights-0 offsets 0 to 2\) within"):
        bench.until_idle()
    assert bench.clock.now < 10_000


def test_a_sink_that_does_not_say_its_marks_ends_the_worker_at_the_time_limit() -> None:
    bench = Bench(handlerTimeoutMs=5000)
    bench.writer.marks_ms = 60_000
    bench.assign(bench.produce(0, *values(3)))
    with pytest.raises(
        SinkError, match="did not say how far it has rows of flights-0 within handlerTimeoutMs"
    ):
        bench.until_idle()
    assert 5_000 < bench.clock.now < 10_000


def test_marks_may_take_as_long_as_the_limit() -> None:
    bench = Bench(handlerTimeoutMs=5000)
    bench.writer.marks_ms = 4_900
    bench.assign(bench.produce(0, *values(3)))
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]


def test_a_signature_counts_from_its_first_commit(bench: Bench) -> None:
    """One that was stopped before, and looks up what its successor has committed, is not the later of the
    two."""
    bench.delivery.commits._context.pod = "w-0-pod"
    tp = bench.produce(0, *values(3))
    successor = CommitNote(START_MS, "w-0", pod="w-0-pod", since_ms=START_MS + 5_000)
    bench.cluster.committed[tp] = OffsetAndMetadata(0, successor.encode())
    bench.assign(tp)
    bench.steps(1)
    assert bench.consumer.looked_up
    assert bench.delivery.commits.since_ms == 0
    bench.until_idle()
    assert bench.delivery.commits.since_ms == START_MS + 5_001


def test_a_commit_refused_after_the_publish_is_not_needed(bench: Bench) -> None:
    bench.restart(max_records=3)
    tp = bench.produce(0, *values(5))
    bench.assign(tp)
    bench.consumer.commit_errors.extend([None, CommitFailedError()])
    bench.steps(4)
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.cluster.committed[tp].offset == 0
    bench.restart(max_records=2)  # the replay ends elsewhere
    bench.assign(tp, generation=2)
    bench.until_idle()
    assert sorted(bench.sink.published) == [(0, 0), (0, 3)]
    assert bench.sink.rows(0) == [0, 1, 2, 3, 4]


def test_a_worker_whose_commit_is_refused_after_the_publish_does_not_read_these_records_again(
    bench: Bench,
) -> None:
    bench.restart(max_records=3)
    tp = bench.produce(0, *values(5))
    bench.assign(tp)
    bench.consumer.commit_errors.extend([None, CommitFailedError()])
    bench.until_idle()
    assert sorted(bench.sink.published) == [(0, 0), (0, 3)]
    assert bench.engine.calls == 2
    assert bench.journal("marks") == [("marks", [0])], "it knows what it has written"


def test_a_fence_during_a_rebalance_is_repeated_after_a_poll(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.consumer.commit_errors.extend([RebalanceInProgressError(), RebalanceInProgressError()])
    bench.until_idle()
    assert bench.engine.calls == 1
    assert bench.journal("refused", "publish", "commit") == [
        ("refused", "RebalanceInProgressError"),
        ("refused", "RebalanceInProgressError"),
        ("commit", {"flights-0": 0}),
        ("publish", 0, 0),
        ("commit", {"flights-0": 3}),
    ]


def test_a_broker_that_is_away_is_waited_for_with_few_lines(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.consumer.commit_errors.extend([KafkaConnectionError("no route")] * 300)
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]
    lines = [line for line in bench.stderr.getvalue().splitlines() if "no route" in line]
    assert 1 <= len(lines) <= 3


def test_a_commit_that_cannot_be_mended_ends_the_worker(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.consumer.commit_errors.append(TopicAuthorizationFailedError("flights"))
    with pytest.raises(WorkerError, match="TOPIC_AUTHORIZATION_FAILED") as raised:
        bench.steps(5)
    assert raised.value.exit_code == 1
    assert bench.sink.published == {}


@pytest.mark.parametrize("where", ["poll", "fence"])
def test_a_fenced_worker_writes_nothing_more(bench: Bench, where: str) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.runner.durations.append(200)
    bench.steps(2)
    if where == "poll":
        bench.cluster.instance_owner = "another process"
    else:
        bench.consumer.commit_errors.append(FencedInstanceIdError("commit"))
    with pytest.raises(FencedError) as raised:
        bench.steps(20)
    assert raised.value.exit_code == 3
    bench.delivery.abandon_all()
    assert bench.sink.published == {}
    assert bench.cluster.committed == {}


def test_an_error_in_the_listener_is_raised_after_the_poll(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.runner.durations.append(100)
    bench.engine.errors.extend([RuntimeError("boom")] * 100)
    bench.steps(2)
    left = []

    def revoke() -> None:
        bench.consumer.revoke(tp)
        left.append(True)

    bench.consumer.at_poll.append(revoke)
    with pytest.raises(HandlerError, match="boom"):
        bench.steps(100)
    assert left == [True], "the client must get to the end of its rebalance"


# ---- the stop


def test_drain_finishes_the_batch_and_notes_the_time_in_all_partitions(bench: Bench) -> None:
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(1))
    bench.assign(a, b)
    bench.until_idle()
    bench.produce(0, *values(2))
    bench.runner.durations.append(700)
    bench.steps(1)
    bench.delivery.drain(15_000)
    assert bench.sink.rows(0) == [0, 1, 2, 3, 4]
    assert bench.cluster.committed[a].offset == 5
    assert bench.note(a)["at"] == bench.note(b)["at"] == bench.clock.wall_ms()


def test_drain_takes_no_new_records(bench: Bench) -> None:
    bench.restart(max_records=2)
    tp = bench.produce(0, *values(6))
    bench.assign(tp)
    bench.runner.durations.append(100)
    bench.steps(2)
    bench.delivery.drain(15_000)
    assert bench.sink.rows(0) == [0, 1]
    assert bench.cluster.committed[tp].offset == 2


def test_drain_gives_up_at_its_deadline_and_a_replay_follows(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.runner.durations.append(60_000)
    bench.steps(2)
    began = bench.clock.now
    bench.delivery.drain(2000)
    assert 2000 <= bench.clock.now - began < 2100
    assert bench.sink.published == {}
    assert tp not in bench.cluster.committed
    bench.restart()
    bench.assign(tp, generation=1)
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]


def test_a_second_request_to_stop_gives_up_at_once(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.runner.durations.append(60_000)
    bench.steps(2)
    began = bench.clock.now
    bench.stop = 2
    bench.delivery.drain(15_000)
    assert bench.clock.now == began
    assert bench.sink.published == {}


def test_drain_does_not_wait_for_a_retry(bench: Bench) -> None:
    bench = Bench(retryBackoffMs=60_000)
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.engine.errors.append(ValueError("boom"))
    bench.steps(3)
    began = bench.clock.now
    bench.delivery.drain(15_000)
    assert bench.clock.now - began < 100


# ---- handler and sink


def test_a_handler_that_raises_is_tried_again_with_growing_waits(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.engine.errors.extend([ValueError("once"), ValueError("twice")])
    bench.until_idle()
    assert bench.engine.calls == 3
    assert bench.clock.now >= 500 + 1000
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.metrics.value("handler_failures") == 2


def test_a_handler_that_keeps_raising_ends_the_worker_and_names_the_batch(bench: Bench) -> None:
    tp = bench.produce(3, *values(3))
    bench.assign(tp)
    bench.engine.errors.extend([RuntimeError("boom")] * 100)
    with pytest.raises(
        HandlerError, match="failed 3 times on the batch flights-3 offsets 0 to 2: RuntimeError: boom"
    ):
        bench.steps(1000)
    assert bench.cluster.committed == {}
    assert bench.sink.published == {}


def test_a_handler_that_calls_exit_has_failed(bench: Bench) -> None:
    bench = Bench(retries=0)
    bench.assign(bench.produce(0, *values(1)))
    bench.engine.errors.append(SystemExit(0))
    with pytest.raises(HandlerError, match="failed once .*SystemExit"):
        bench.steps(10)


def test_a_handler_that_hangs_ends_the_worker_at_its_time_limit(bench: Bench) -> None:
    bench = Bench(handlerTimeoutMs=3000)
    bench.assign(bench.produce(0, *values(3)))
    bench.runner.durations.append(10**9)
    with pytest.raises(HandlerError, match=r"handlerTimeoutMs \(3000\)"):
        bench.steps(1000)
    assert 5000 < bench.clock.now < 5300
    assert bench.cluster.committed == {}


def test_a_wrong_schema_is_not_tried_again(bench: Bench) -> None:
    bench.assign(bench.produce(0, *values(3)))
    bench.engine.result = pa.table({"topic": ["flights"], "partition": [0]})
    with pytest.raises(HandlerError, match="offset"):
        bench.steps(10)
    assert bench.engine.calls == 1


def test_a_full_disk_ends_the_worker_and_leaves_nothing_staged(bench: Bench) -> None:
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(3))
    bench.assign(a, b)
    bench.sink.stage_error = OSError(errno.ENOSPC, "No space left on device", "/out/x")
    where = "flights-0 offsets 0 to 2, flights-1 offsets 0 to 2: No space left on device"
    with pytest.raises(SinkError, match=where) as raised:
        bench.steps(10)
    assert raised.value.exit_code == 4
    assert bench.sink.staged == 0
    assert bench.cluster.committed == {}


def test_a_publish_that_fails_is_not_committed(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.sink.publish_error = OSError(errno.EACCES, "Permission denied", "/out/x")
    with pytest.raises(SinkError, match="Permission denied"):
        bench.steps(10)
    assert bench.cluster.committed[tp].offset == 0


# ---- dead letters


def test_rejected_records_become_dead_letters_after_they_were_announced(bench: Bench) -> None:
    tp = bench.produce(3, "v0", "bad1", "v2")
    bench.assign(tp)
    bench.until_idle()
    assert bench.letters.origins() == ["flights-3@1"]
    assert bench.sink.rows(3) == [0, 2]
    assert bench.cluster.journal == [
        ("marks", [3]),
        ("stage", 3, 0),
        ("commit", {"flights-3": 0}),
        ("letters", 1),
        ("commit", {"flights-3": 0}),
        ("publish", 3, 0),
        ("commit", {"flights-3": 3}),
    ]
    ((at, key, value, headers),) = bench.letters.partitions[1]
    assert (key, value) == (b"N1", b"bad1")
    assert at >= START_MS, "the letter has the time of writing"
    assert headers == [
        ("h", b"x"),
        ("slackwater.error", b"rejected bad1"),
        ("slackwater.topic", b"flights"),
        ("slackwater.partition", b"3"),
        ("slackwater.offset", b"1"),
        ("slackwater.timestamp", b"1357034400001"),
        ("slackwater.group", b"flights"),
        ("slackwater.attempt", b"1"),
    ]
    assert "letters" not in bench.note(tp)


def test_letters_of_an_unfinished_batch_are_not_written_again(bench: Bench) -> None:
    bench.restart(max_records=4)
    tp = bench.produce(0, "bad0", "v1", "v2", "bad3", "bad4", "v5")
    bench.assign(tp)
    bench.consumer.commit_errors.extend([None, *[KafkaTimeoutError("gone")] * 5])
    bench.steps(4)  # killed between the letters and the publish
    assert bench.sink.published == {}
    assert bench.letters.origins() == ["flights-0@0", "flights-0@3"]
    bench.restart(max_records=2)
    bench.assign(tp)
    bench.runner.durations.extend([0, 10**6])
    bench.steps(8)  # a batch of two, whose commit carries on that letters up to offset 4 may exist
    assert bench.cluster.committed[tp].offset == 2
    assert bench.note(tp)["letters"] == [0, 0, 4]
    bench.restart(max_records=100)
    bench.assign(tp)
    bench.until_idle()
    assert bench.letters.origins() == ["flights-0@0", "flights-0@3", "flights-0@4"]
    assert bench.sink.rows(0) == [1, 2, 5]
    assert "letters" not in bench.note(tp)


@pytest.mark.parametrize("all_of_them", [False, True], ids=["some", "all"])
def test_a_record_that_an_earlier_try_has_rejected_never_becomes_a_row(
    bench: Bench, all_of_them: bool
) -> None:
    """What a batch fails with can depend on its other records; a new revision may take what the one before
    has not. The letter is there, so the record is not written as a row on top."""
    given = ["bad0", "bad1"] if all_of_them else ["v0", "bad1", "v2", "bad3"]
    bench.restart(max_records=4)
    tp = bench.produce(0, *given)
    bench.assign(tp)
    bench.consumer.commit_errors.extend([None, *[KafkaTimeoutError("gone")] * 5])
    bench.steps(4)  # killed between the letters and the publish
    stored = [f"flights-0@{at}" for at, value in enumerate(given) if value.startswith("bad")]
    assert bench.letters.origins() == stored
    bench.restart(max_records=100)
    bench.engine.rejects = False
    bench.assign(tp)
    bench.until_idle()
    assert bench.letters.origins() == stored
    assert bench.sink.rows(0) == [at for at, value in enumerate(given) if value.startswith("v")]
    assert bench.cluster.committed[tp].offset == len(given)
    (batch,) = bench.events("batch")
    assert (batch["out"], batch["dead"]) == (len(given) - len(stored), len(stored))


def test_the_topic_is_read_back_only_where_letters_may_stand_in_it(bench: Bench) -> None:
    tp = bench.produce(0, "bad0")
    bench.assign(tp)
    bench.until_idle()
    assert bench.letters.reads == [(0, 0)], "no worker has committed before: from the start"
    bench.restart()
    bench.produce(0, "bad1")
    bench.assign(tp)
    bench.until_idle()
    assert bench.letters.reads == [(0, 0)], "the note says that nothing is open"
    assert bench.letters.origins() == ["flights-0@0", "flights-0@1"]


def test_letters_of_another_group_or_partition_do_not_count(bench: Bench) -> None:
    tp = bench.produce(0, "bad0")
    mine = [("slackwater.topic", b"flights"), ("slackwater.partition", b"0"), ("slackwater.offset", b"0")]
    bench.letters.partitions[0] = [
        (START_MS, None, None, [*mine, ("slackwater.group", b"other")]),
        (
            START_MS,
            None,
            None,
            [("slackwater.group", b"flights"), *mine[:1], ("slackwater.partition", b"2"), mine[2]],
        ),
        (START_MS, None, None, [("slackwater.group", b"flights"), ("slackwater.offset", b"x")]),
        (START_MS, None, None, []),
    ]
    bench.assign(tp)
    bench.until_idle()
    assert len(bench.letters.partitions[0]) == 5


class Died(BaseException):
    """Stands for the end of the process."""


def dies_at(last: Step) -> Callable[[Step], None]:
    def reached(step: Step) -> None:
        if step is last:
            raise Died

    return reached


def after_a_crash(bench: Bench, last: Step) -> list[tuple[int, int]]:
    """What is read back of the dead-letter topic by a process that follows on one that has died at ``last``
    with a rejected record, after a batch without one."""
    tp = bench.produce(0, "v0")
    bench.assign(tp)
    bench.until_idle()
    bench.produce(0, "bad1")
    bench.reached = dies_at(last)
    bench.restart()
    bench.assign(tp)
    with pytest.raises(Died):
        bench.until_idle()
    bench.reached = no_faults
    bench.restart()
    bench.assign(tp)
    bench.letters.reads.clear()
    bench.until_idle()
    assert bench.letters.origins()[-1:] == ["flights-0@1"]
    assert bench.letters.origins().count("flights-0@1") == 1
    return bench.letters.reads


@pytest.mark.parametrize("last", [Step.LETTERS_ANNOUNCED, Step.LETTERS_WRITTEN])
def test_letters_are_looked_for_behind_where_the_topic_ended_whatever_the_clocks_say(
    bench: Bench, last: Step
) -> None:
    for number in range(3):
        bench.letters.write([(0, None, None, PLACELESS)], number, float("inf"))
    assert after_a_crash(bench, last) == [(0, 3)]


def test_letters_are_found_where_the_topic_has_become_larger(bench: Bench) -> None:
    bench.letters.write([(1, None, None, PLACELESS)], 0, float("inf"))
    tp = bench.produce(3, "v0")
    bench.assign(tp)
    bench.until_idle()
    bench.produce(3, "bad1")
    bench.reached = dies_at(Step.LETTERS_WRITTEN)
    bench.restart()
    bench.assign(tp)
    with pytest.raises(Died):
        bench.until_idle()
    bench.letters.partitions += [[], []]
    bench.reached = no_faults
    bench.restart()
    bench.assign(tp)
    bench.until_idle()
    assert len(bench.letters.partitions[1]) == 2
    assert bench.letters.partitions[3] == []


def test_an_announcement_keeps_what_was_announced_before() -> None:
    owned = OwnedPartition(TopicPartition("flights", 0))
    owned.set_committed(5, CommitNote(1, "w-0", letters=(1, 7, 50)).encode())
    for place, letters in (((1, 9), (1, 7, 50)), ((0, 9), (0, 0, 50))):
        owned.letters_place = place
        note = CommitNote.decode(owned.letters_fence_of(5, 30, "w-0").metadata)
        assert note is not None
        assert note.letters == letters


def test_without_a_dead_letter_topic_a_rejected_record_ends_the_worker() -> None:
    bench = Bench(deadLetterTopic=None)
    tp = bench.produce(0, "v0", "bad1")
    bench.assign(tp)
    with pytest.raises(HandlerError, match="rejects flights-0 offset 1 .*deadLetterTopic"):
        bench.steps(10)
    assert bench.cluster.committed == {}


def test_a_letter_that_cannot_be_stored_ends_the_worker_uncommitted(bench: Bench) -> None:
    tp = bench.produce(0, "v0", "bad1")
    bench.assign(tp)
    bench.letters.error = KafkaTimeoutError("no answer")
    with pytest.raises(DeadLetterError, match=r"flights\.dlq: no answer"):
        bench.steps(10)
    assert bench.cluster.committed[tp].offset == 0
    assert bench.sink.published == {}


# ---- the restart gap and the note


def test_the_restart_gap_is_measured_from_the_last_commit_to_the_first_records(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.until_idle()
    assert bench.events("first_records") == [], "nobody served the partition before"
    bench.delivery.drain(1000)
    bench.clock.sleep(4500)
    bench.produce(0, *values(1))
    bench.restart()
    bench.assign(tp)
    bench.until_idle()
    (first,) = bench.events("first_records")
    assert first["partition"] == "flights-0"
    assert (first["offset"], first["session_timeout_ms"], first["restart"]) == (3, 45_000, True)
    assert 4500 <= first["gap_ms"] < 4700
    assert bench.metrics.value("restart_gap_session_ratio") == pytest.approx(first["gap_ms"] / 45_000)
    assert bench.status.last_gap is not None
    assert bench.status.last_gap["gap_ms"] == first["gap_ms"]


def test_a_gap_is_never_negative(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.until_idle()
    bench.clock.skew_ms = -100_000  # the machine that it returns on is behind
    bench.produce(0, *values(1))
    bench.restart()
    bench.assign(tp)
    bench.until_idle()
    assert bench.events("first_records")[0]["gap_ms"] == 0


def test_another_members_partition_is_no_restart(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.until_idle()
    bench.produce(0, *values(1))
    bench.restart(instance="w-1")
    bench.assign(tp)
    bench.until_idle()
    (first,) = bench.events("first_records")
    assert (first["restart"], first["before"]) == (False, "w-0")
    assert bench.metrics.value("restart_gap_seconds") == 0


def test_a_quiet_partition_has_no_gap_of_hours(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.until_idle()
    bench.steps(60 * 10, timeout_ms=100)  # a minute without records, then killed
    bench.restart()
    bench.clock.sleep(3000)
    bench.assign(tp)
    bench.steps(3)
    bench.clock.sleep(3_600_000)
    bench.produce(0, *values(1))
    bench.until_idle()
    (first,) = bench.events("first_records")
    assert first["quiet"]
    assert 3000 <= first["gap_ms"] <= 3000 + 4500 + 500


def test_a_refresh_moves_no_offset_and_is_no_event(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.until_idle()
    before = bench.note(tp)["at"]
    bench.steps(200, timeout_ms=100)
    assert bench.cluster.committed[tp].offset == 3
    assert bench.note(tp)["at"] >= before + 4500
    assert len(bench.events("committed")) == 1


def test_what_is_no_record_behind_the_last_one_is_committed(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.cluster.markers[tp] = 2
    bench.assign(tp)
    bench.steps(5)
    assert bench.cluster.committed[tp].offset == 5
    assert bench.status.document()["committed"] == {"flights-0": 5}
    assert bench.note(tp)["instance"] == "w-0"
    commits = len(bench.journal("commit"))
    bench.steps(40)
    assert len(bench.journal("commit")) == commits, "once"
    assert bench.sink.published.keys() == {(0, 0)}


def test_where_a_quiet_partition_begins_is_committed_beside_a_busy_one(bench: Bench) -> None:
    quiet, busy = bench.produce(0, *values(3)), bench.produce(1)
    bench.consumer.reset_to_latest = True
    bench.assign(quiet, busy)
    for number in range(6):
        bench.produce(1, f"v{number}")  # each poll has records
        bench.steps(1)
    assert bench.cluster.committed[quiet].offset == 3
    assert bench.cluster.committed[busy].offset > 0


def test_records_in_flight_or_given_up_are_not_committed_as_read(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.cluster.markers[tp] = 2
    bench.assign(tp)
    bench.runner.durations.append(5000)
    bench.steps(20)
    assert bench.cluster.committed.get(tp) is None
    bench.delivery.drain(100)
    bench.steps(3)
    assert bench.cluster.committed.get(tp) is None
    bench.delivery.release()
    bench.clock.sleep(5000)
    bench.steps(10)
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.cluster.committed[tp].offset == 5


def test_with_latest_records_that_come_while_nobody_is_there_are_not_lost(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.consumer.reset_to_latest = True
    bench.assign(tp)
    bench.steps(2)
    assert bench.cluster.committed[tp].offset == 3
    bench.delivery.drain(1000)
    bench.produce(0, "v3")
    bench.restart()
    bench.consumer.reset_to_latest = True
    bench.assign(tp)
    bench.until_idle()
    assert bench.sink.rows(0) == [3]


def test_another_clients_metadata_is_no_note(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.cluster.committed[tp] = OffsetAndMetadata(1, '{"at": "noon"}')
    bench.assign(tp)
    bench.until_idle()
    assert bench.sink.rows(0) == [1, 2]
    assert bench.events("first_records") == []


# ---- membership


def test_each_generation_is_reported_once(bench: Bench) -> None:
    tp = bench.produce(0, *values(1))
    bench.assign(tp, generation=5)
    bench.steps(3)
    bench.consumer.join(6)
    bench.consumer.join(7, follow_up=True)
    bench.steps(3)
    assert [(e["generation"], e["follow_up"], e["returned"]) for e in bench.events("joined")] == [
        (5, False, False),
        (6, False, False),
        (7, True, False),
    ]
    assert bench.status.generation == 7
    assert bench.metrics.value("rebalances", ("follow_up",)) == 1


def test_a_return_is_reported_as_such(bench: Bench) -> None:
    bench.consumer.join(9, returned=True)
    bench.produce(0)
    bench.steps(1)
    assert bench.events("joined")[0]["returned"] is True
    assert bench.metrics.value("rebalances", ("returned",)) == 1


def test_a_return_is_reported_after_the_sync_that_shows_it(bench: Bench) -> None:
    bench.consumer.join(9, state="syncing")
    bench.produce(0)
    bench.steps(2)
    assert bench.events("joined") == []
    assert (bench.status.generation, bench.status.joined_ms) == (-1, None), "who waits for one waits for both"
    bench.consumer.sync(returned=True)
    bench.steps(2)
    assert [event["returned"] for event in bench.events("joined")] == [True]
    assert bench.metrics.value("rebalances", ("returned",)) == 1
    assert bench.metrics.value("rebalances", ("joined",)) == 0
    bench.consumer.join(10, state="syncing")
    bench.steps(1)
    bench.consumer.join(11, state="syncing")  # the Sync was refused: another rebalance
    bench.steps(1)
    bench.consumer.sync()
    bench.steps(1)
    assert [(event["generation"], event["returned"]) for event in bench.events("joined")[1:]] == [
        (10, False),
        (11, False),
    ]


def test_status_shows_the_batch_in_flight(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.runner.durations.append(500)
    bench.steps(2)
    shown = bench.status.document()
    assert shown["assignment"] == [["flights", 0]]
    assert shown["in_flight"] == {"flights-0": [0, 3]}
    assert shown["positions"] == {"flights-0": 3}
    bench.until_idle()
    assert bench.status.document()["in_flight"] == {}
    assert bench.status.document()["committed"] == {"flights-0": 3}


def test_lag_counts_from_the_committed_offset(bench: Bench) -> None:
    bench.restart(max_records=2)
    tp = bench.produce(0, *values(10))
    bench.assign(tp)
    bench.runner.durations.extend([0, 1500])
    bench.steps(3)
    bench.steps(25)
    assert bench.status.lag == {"flights-0": 8}
    assert bench.metrics.value("lag_records", ("flights", "0")) == 8


def test_the_size_of_what_was_committed_is_counted(bench: Bench) -> None:
    tp, other = bench.produce(0, *values(3)), bench.produce(1, "x" * 10_000)
    bench.assign(tp, other)
    bench.until_idle()
    small = bench.metrics.value("bytes_in", ("flights", "0"))
    large = bench.metrics.value("bytes_in", ("flights", "1"))
    assert 0 < small < 1000
    assert 10_000 <= large < 11_000


# ---- logs that have lost records


def test_what_the_client_skips_is_counted_and_told(bench: Bench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.consumer.skipped.append(SkippedRecords(tp, 40, 55))
    bench.until_idle()
    assert bench.metrics.value("records_skipped", ("flights", "0", "retention")) == 15
    (event,) = bench.events("skipped")
    assert (event["partition"], event["from"], event["to"], event["records"]) == ("flights-0", 40, 55, 15)
    assert [(entry["from"], entry["to"], entry["cause"]) for entry in bench.status.skipped] == [
        (40, 55, "retention")
    ]
    assert "offsets 40 to 54: the log begins at 55 now" in bench.stderr.getvalue()


def test_a_series_of_skipped_records_begins_at_0(bench: Bench) -> None:
    tp = bench.produce(0)
    bench.assign(tp)
    bench.steps(2)
    sample = (
        b'slackwater_records_skipped_total{cause="retention",group="flights",instance="w-0",partition="0"'
    )
    assert sample in bench.metrics.render()


def test_a_truncated_log_stops_its_partition_and_no_other(bench: Bench) -> None:
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(3))
    bench.assign(a, b)
    bench.until_idle()
    bench.consumer.poll_errors.append(LogTruncationError({a: 3}, {a: OffsetAndMetadata(1)}))
    bench.steps(2)
    (event,) = bench.events("partition_stopped")
    assert (event["partition"], event["reason"]) == ("flights-0", "LogTruncated")
    assert "read up to offset 3, but the log ends at offset 1" in event["message"]
    assert [entry["partition"] for entry in bench.status.stopped] == ["flights-0"]
    assert bench.metrics.value("stopped_partitions", ("LogTruncated",)) == 1
    bench.produce(0, *values(2))
    bench.produce(1, *values(2))
    bench.steps(20)
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.sink.rows(1) == [0, 1, 2, 3, 4]
    assert bench.cluster.committed[a].offset == 3
    bench.delivery.drain(1000)
    assert bench.cluster.committed[a].offset == 3
    assert not bench.events("error")


def test_what_is_in_flight_of_a_truncated_log_is_finished(bench: Bench) -> None:
    """It was read before, and nobody can read it again."""
    a = bench.produce(0, *values(3))
    bench.runner.durations.append(500)
    bench.assign(a)
    bench.steps(3)
    assert bench.delivery.in_flight.batch is not None
    bench.consumer.poll_errors.append(LogTruncationError({a: 3}, {a: None}))
    bench.steps(30)
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.cluster.committed[a].offset == 3
    assert bench.status.stopped[0]["reason"] == "LogTruncated"
    assert a in bench.consumer.paused


def test_a_stopped_partition_that_leaves_is_no_longer_shown(bench: Bench) -> None:
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(3))
    bench.assign(a, b)
    bench.until_idle()
    bench.consumer.poll_errors.append(LogTruncationError({a: 3}, {a: OffsetAndMetadata(1)}))
    bench.steps(2)
    bench.consumer.at_poll.append(lambda: bench.consumer.revoke(a))
    bench.steps(2)
    assert bench.status.stopped == []
    assert bench.metrics.value("stopped_partitions", ("LogTruncated",)) == 0


def test_the_engine_is_told_which_batch_it_is(bench: Bench) -> None:
    a, b, c = bench.produce(0, *values(3)), bench.produce(1, *values(2)), bench.produce(2)
    bench.cluster.committed[b] = OffsetAndMetadata(1, "")
    bench.assign(a, b, c)
    bench.engine.errors.append(ValueError("not yet"))
    bench.until_idle()
    first, second = bench.engine.batches
    assert first.ranges == {a: OffsetRange(0, 3), b: OffsetRange(1, 2)}
    assert first.assignment == {a, b, c}
    assert (first.group_id, first.instance) == ("flights", "w-0")
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.ranges == first.ranges
