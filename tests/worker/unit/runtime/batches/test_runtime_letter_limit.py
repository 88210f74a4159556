"""A limit on dead letters: partitions that would exceed it are stopped. In virtual time."""

from __future__ import annotations

import pytest

from tests.support.workers.fakes import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench(maxDeadLettersPerMinute=3)


def step_for(bench: Bench, ms: float) -> None:
    end = bench.clock.now + ms
    while bench.clock.now < end:
        bench.delivery.step(min(50, end - bench.clock.now))


def test_as_many_as_allowed_are_written(bench: Bench) -> None:
    bench.assign(bench.produce(0, "bad0", "v1", "bad2", "bad3"))
    bench.until_idle()
    assert bench.letters.origins() == ["flights-0@0", "flights-0@2", "flights-0@3"]
    assert bench.status.stopped == []


def test_a_partition_with_more_is_stopped_and_the_others_go_on(bench: Bench) -> None:
    a, b = bench.produce(0, "v0", "bad1", "bad2", "bad3", "bad4"), bench.produce(1, "v0", "v1")
    bench.assign(a, b)
    step_for(bench, 500)
    assert bench.letters.origins() == []
    assert bench.sink.rows(1) == [0, 1]
    assert (0, 0) not in bench.sink.published
    assert bench.cluster.committed[b].offset == 2
    assert a not in bench.cluster.committed or bench.cluster.committed[a].offset == 0
    (stopped,) = bench.status.stopped
    assert (stopped["partition"], stopped["reason"]) == ("flights-0", "TooManyDeadLetters")
    assert stopped["message"] == (
        "flights-0: the worker would write 4 dead letters at once, and so more than 3 in a minute "
        "(spec.delivery.maxDeadLettersPerMinute); none of them is written, and offset 0 is read next. "
        "The first is of offset 1: rejected bad1. To go on: correct the handler, or raise the limit, and "
        "restart the workers"
    )
    assert bench.metrics.value("stopped_partitions", ("TooManyDeadLetters",)) == 1
    (event,) = bench.events("partition_stopped")
    assert event["reason"] == "TooManyDeadLetters"
    calls = bench.engine.calls
    bench.produce(0, "v5")
    bench.produce(1, "v2")
    step_for(bench, 120_000)
    assert bench.engine.calls == calls + 1, "nothing of it is read again"
    assert bench.sink.rows(1) == [0, 1, 2]


def test_what_follows_in_the_next_batch_is_given_up_too(bench: Bench) -> None:
    bench.restart(max_records=5)
    a = bench.produce(0, *[f"bad{number}" for number in range(5)], *[f"v{number}" for number in range(5, 15)])
    bench.assign(a)
    bench.writer.usual_ms = 300
    step_for(bench, 3_000)
    assert bench.engine.calls >= 2, "the next batch was handled beside the first"
    assert (bench.sink.published, bench.letters.origins()) == ({}, [])
    assert bench.delivery.in_flight.batch is None
    assert bench.sink.staged == 0


def test_the_minute_counts_over_batches(bench: Bench) -> None:
    tp = bench.produce(0, "bad0", "bad1")
    bench.assign(tp)
    bench.until_idle()
    step_for(bench, 61_000)
    bench.produce(0, "bad2", "bad3", "bad4")
    bench.until_idle()
    assert len(bench.letters.origins()) == 5, "those of the minute before do not count"
    bench.produce(0, "bad5")
    step_for(bench, 500)
    assert len(bench.letters.origins()) == 5
    assert [stopped["reason"] for stopped in bench.status.stopped] == ["TooManyDeadLetters"]


def test_a_new_process_goes_on_where_it_was_stopped(bench: Bench) -> None:
    tp = bench.produce(0, "v0", "bad1", "bad2", "bad3", "bad4")
    bench.assign(tp)
    step_for(bench, 500)
    assert bench.status.stopped
    bench.restart()
    bench.engine.rejects = False
    bench.assign(tp)
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2, 3, 4]


def test_letters_of_an_earlier_try_do_not_count(bench: Bench) -> None:
    """They are stored; the worker ended before its commit."""
    tp = bench.produce(0, "bad0", "bad1", "bad2")
    bench.assign(tp)
    bench.until_idle()
    bench.cluster.committed.clear()
    note = bench.letters.origins()
    bench.restart()
    bench.assign(tp)
    bench.produce(0, "bad3")
    bench.until_idle()
    assert bench.letters.origins() == [*note, "flights-0@3"]
    assert bench.status.stopped == []


def test_without_a_limit_any_number_is_written() -> None:
    bench = Bench()
    bench.assign(bench.produce(0, *[f"bad{number}" for number in range(90)]))
    bench.until_idle()
    assert len(bench.letters.origins()) == 90


def test_the_stored_letter_of_an_unreadable_batch_does_not_count_again(bench: Bench) -> None:
    """The process that has written it ended before its commit."""
    a, b = bench.produce(0, "v0"), bench.produce(1, "bad0", "bad1", "bad2")
    bench.cluster.unreadable[a] = range(1)
    bench.writer.usual_ms = 100
    bench.assign(a)
    while not bench.letters.origins():
        bench.steps(1)
    bench.restart()
    bench.assign(b)
    bench.until_idle()
    bench.consumer.at_poll.append(lambda: bench.consumer.assign(a))
    bench.steps(20)
    assert bench.status.stopped == []
    assert bench.cluster.committed[a].offset == 1
