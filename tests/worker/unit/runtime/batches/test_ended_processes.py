"""Records with which processes end or hang: found over several processes, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from slackwater.kafka.errors import CommitFailedError
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.bisection import ALWAYS
from slackwater.runtime.delivery.ended_processes import MOST_CONTROLLED, MOST_ENDS
from slackwater.runtime.delivery.partition import Begun, CommitNote
from slackwater.runtime.errors import HandlerError, HandlerTimeoutError, SinkError, ended_by_batch
from tests.support.workers.disturbances import seeds
from tests.support.workers.fakes import Bench, VirtualRunner, VirtualTask

SINK = {"format": "parquet", "path": "out"}
GATHERING = {**SINK, "maxAgeMs": 10_000}


class ProcessEnded(BaseException):
    """The process is gone."""


class FragileRunner(VirtualRunner):
    """A handler's thread whose call may end the process."""

    def submit(self, call: Callable[[], Any]) -> VirtualTask:
        task = super().submit(call)
        if task._error is not None and isinstance(task._error.__cause__, ProcessEnded):
            raise task._error.__cause__
        return task


class FragileBench(Bench):
    """A handler that ends the process with values that begin with ``poison``."""

    notes_first_batches = True

    def restart(self, instance: str = "w-0", max_records: int = 100, **options: Any) -> None:
        super().restart(instance, max_records, **options)
        self.delivery.in_flight._context.runner = self.runner = FragileRunner(self.clock)
        self.engine.failure = lambda values: (
            ProcessEnded() if any(value.startswith("poison") for value in values) else None
        )

    def ends(self, *partitions: TopicPartition, most: int = 80, max_records: int = 100) -> int:
        """How many processes end until all is committed."""
        for ended in range(most):
            self.restart(max_records=max_records)
            self.assign(*partitions)
            try:
                self.until_idle()
            except ProcessEnded:
                self.clock.sleep(1_009)
            else:
                return ended
        raise AssertionError(f"{most} processes have ended: {self.stderr.getvalue()}")


@pytest.fixture
def bench() -> FragileBench:
    return FragileBench()


def reasons(bench: Bench) -> dict[str, str]:
    """Of the dead letters, by the offset of their records."""
    headers = [dict(headers) for partition in bench.letters.partitions for _, _, _, headers in partition]
    return {
        f"{(of['slackwater.partition'] or b'').decode()}@{(of['slackwater.offset'] or b'').decode()}": (
            of["slackwater.error"] or b""
        ).decode()
        for of in headers
    }


def values(count: int, *poison: int) -> list[str]:
    return [f"poison{i}" if i in poison else f"v{i}" for i in range(count)]


@pytest.mark.parametrize("at", [0, 41, 63])
def test_the_record_is_found_in_a_logarithmic_number_of_ends(bench: FragileBench, at: int) -> None:
    a, b = bench.produce(0, *values(64)), bench.produce(1, *values(64, at))
    ends = bench.ends(a, b)
    assert ends <= 1 + 7 + MOST_ENDS  # the first one, the halves of 128 records, and alone
    assert bench.sink.rows(0) == [*range(64)]
    assert bench.sink.rows(1) == [i for i in range(64) if i != at]
    assert list(reasons(bench)) == [f"1@{at}"]
    assert reasons(bench)[f"1@{at}"].startswith("EndedTheProcess: 3 processes")
    assert "begun" not in bench.note(b)


def test_a_record_after_which_the_process_has_worked_for_long_is_found(bench: FragileBench) -> None:
    """Nothing was noted of the batch with which the first process ends."""
    tp = bench.produce(0, *values(250, 203))
    assert bench.ends(tp, max_records=50) <= 2 + 6 + MOST_ENDS
    assert list(reasons(bench)) == ["0@203"]
    assert bench.sink.rows(0) == [i for i in range(250) if i != 203]


@pytest.mark.parametrize("sink", [SINK, GATHERING], ids=["written", "gathered"])
def test_several_records_are_found_one_after_another(sink: dict[str, object]) -> None:
    bench = FragileBench(sink=sink)
    tp = bench.produce(0, *values(60, 7, 8, 33))
    bench.ends(tp)
    assert sorted(reasons(bench)) == ["0@33", "0@7", "0@8"]
    assert bench.sink.rows(0) == [i for i in range(60) if i not in (7, 8, 33)]


def test_the_one_record_of_a_topic_is_rejected(bench: FragileBench) -> None:
    tp = bench.produce(0, "poison0")
    assert bench.ends(tp) == MOST_ENDS
    assert list(reasons(bench)) == ["0@0"]


def test_a_handler_that_ends_with_each_record_rejects_none(bench: FragileBench) -> None:
    tp = bench.produce(0, *values(30, *range(30)))
    with pytest.raises(AssertionError, match="35 processes have ended"):
        bench.ends(tp, most=35)
    assert reasons(bench) == {}
    assert bench.cluster.committed[tp].offset == 0


def test_records_that_are_all_alike_are_rejected_in_the_end(bench: FragileBench) -> None:
    tp = bench.produce(0, "poison0", "poison1")
    assert bench.ends(tp, most=100) > MOST_CONTROLLED
    assert sorted(reasons(bench)) == ["0@0", "0@1"]


def test_no_more_than_some_in_a_row_are_rejected(bench: FragileBench) -> None:
    """Records that come one by one: there is no other to show that the handler works."""
    for _ in range(ALWAYS):
        tp = bench.produce(0, "poison")
        bench.ends(tp)
    bench.produce(0, "poison")
    with pytest.raises(HandlerError, match=f"at most {ALWAYS} in a row"):
        bench.ends(tp)
    assert len(reasons(bench)) == ALWAYS


def test_without_a_dead_letter_topic_the_error_names_the_record() -> None:
    bench = FragileBench(deadLetterTopic=None)
    tp = bench.produce(0, *values(20, 11))
    with pytest.raises(HandlerError, match="flights-0 offsets 11 to 11 .EndedTheProcess"):
        bench.ends(tp)
    assert bench.sink.rows(0) == [*range(11)]


@pytest.mark.parametrize("seed", seeds(10, 60))
def test_processes_that_are_killed_from_outside_cost_no_record(seed: int) -> None:
    """Wherever they are, and whatever they have noted: each record is a row."""
    rng, bench = random.Random(seed), FragileBench()
    tps = [bench.produce(number, *values(rng.randrange(1, 40))) for number in range(3)]
    for _ in range(rng.randrange(1, 40)):
        bench.restart(max_records=rng.choice([1, 10, 100]))
        bench.runner.usual_ms = bench.writer.usual_ms = rng.choice([0, 20, 100])
        bench.assign(*tps)
        bench.steps(rng.randrange(1, 30))
    assert bench.ends(*tps) == 0
    assert [bench.sink.rows(tp.partition) for tp in tps] == [
        [*range(len(bench.cluster.logs[tp]))] for tp in tps
    ]


@pytest.mark.parametrize("seed", seeds(10, 60))
def test_each_record_is_stored_once_whatever_ends_the_processes(seed: int) -> None:
    """Records that end it, and kills from outside, with batches of random sizes and rebalances. Every fourth
    time the batches are gathered."""
    rng, bench = random.Random(seed), FragileBench(sink=GATHERING if seed % 4 == 1 else SINK)
    tps = [
        bench.produce(
            number, *(rng.choice(["v"] * 15 + ["poison"]) + str(i) for i in range(rng.randrange(1, 30)))
        )
        for number in range(3)
    ]
    bench.produce(0, "v", "v")
    for _ in range(rng.randrange(40)):
        bench.restart(max_records=rng.choice([1, 10, 100]))
        bench.assign(*rng.sample(tps, rng.randrange(1, 4)))
        try:
            bench.steps(rng.randrange(1, 12))
        except ProcessEnded:
            bench.clock.sleep(rng.randrange(2_000))
    bench.ends(*tps, most=400)
    for tp in tps:
        logged = bench.cluster.logs[tp]
        lost = [at for at in range(len(logged)) if f"{tp.partition}@{at}" in reasons(bench)]
        assert sorted(bench.sink.rows(tp.partition) + lost) == [*range(len(logged))]
        assert all(logged[at].startswith(b"poison") for at in lost)


# ---- with batches that are gathered


def gathered(bench: FragileBench) -> TopicPartition:
    """A partition with 50 records that the handler has returned for, batch by batch, and that wait."""
    tp = bench.produce(0, *values(50))
    bench.restart(max_records=5)
    bench.assign(tp)
    while bench.engine.calls < 10 or not bench.delivery.in_flight.idle:
        bench.steps(1)
    assert bench.sink.commits == 0
    return tp


def files_after_an_end(bench: FragileBench, tp: TopicPartition) -> list[int]:
    """How many rows are in each file that the process writes that follows one that ended."""
    bench.restart(max_records=5)
    bench.assign(tp)
    bench.until_idle()
    return [event["records"] for event in bench.events("batch")]


def test_records_that_wait_do_not_end_the_process() -> None:
    bench = FragileBench(sink=GATHERING)
    tp = gathered(bench)
    bench.steps(3, timeout_ms=1_000)
    assert "begun" not in bench.note(tp)
    assert files_after_an_end(bench, tp) == [50]


def test_those_are_tried_in_pieces_that_the_handler_has_not_returned_for() -> None:
    bench = FragileBench(sink=GATHERING)
    tp = gathered(bench)
    bench.runner.durations.append(100_000)
    bench.produce(0, *values(4))
    bench.steps(60)
    assert bench.note(tp)["begun"] == [50, 54, 1, 0]
    assert files_after_an_end(bench, tp) == [50, 2, 1, 1]


def test_all_are_tried_in_pieces_where_the_process_ends_while_it_writes_them() -> None:
    bench = FragileBench(sink=GATHERING)
    tp = gathered(bench)
    bench.writer.durations.append(100_000)
    bench.steps(20, timeout_ms=1_000)
    assert bench.note(tp)["begun"] == [0, 50, 1, 0]
    assert files_after_an_end(bench, tp)[0] == 2


def test_a_stop_that_writes_them_notes_nothing() -> None:
    bench = FragileBench(sink=GATHERING)
    tp = gathered(bench)
    bench.writer.durations.append(100_000)
    bench.delivery.drain(1_000)
    assert "begun" not in bench.note(tp)


# ---- what is noted


def test_one_commit_more_after_an_assignment_and_none_later(bench: FragileBench) -> None:
    tp = bench.produce(0, *values(3))
    bench.assign(tp)
    bench.until_idle()
    assert [entry[0] for entry in bench.cluster.journal].count("commit") == 3
    bench.produce(0, *values(3))
    bench.until_idle()
    assert [entry[0] for entry in bench.cluster.journal].count("commit") == 5


def slow(bench: FragileBench) -> TopicPartition:
    """A partition with records that the handler works on."""
    tp = bench.produce(0, *values(4))
    bench.runner.durations.append(100_000)
    bench.assign(tp)
    bench.steps(3)
    assert bench.note(tp)["begun"] == [0, 4, 1, 0]
    return tp


def test_a_stop_takes_the_note_back(bench: FragileBench) -> None:
    tp = slow(bench)
    bench.delivery.drain(1_000)
    assert "begun" not in bench.note(tp)


def test_a_stop_takes_the_note_back_before_it_waits(bench: FragileBench) -> None:
    """It may be killed while it waits."""
    tp = slow(bench)
    bench.stop = 2
    bench.consumer.at_poll.append(lambda: pytest.fail("polled"))
    bench.delivery.drain(1_000)
    assert "begun" not in bench.note(tp)


def test_a_revocation_takes_the_note_back(bench: FragileBench) -> None:
    tp = slow(bench)
    bench.consumer.at_poll.append(lambda: bench.consumer.revoke(tp))
    bench.steps(1)
    assert "begun" not in bench.note(tp)


def test_what_earlier_processes_have_ended_with_stays_noted(bench: FragileBench) -> None:
    tp = slow(bench)
    bench.restart()
    bench.runner.durations.append(100_000)
    bench.assign(tp)
    bench.steps(3)
    assert bench.note(tp)["begun"] == [0, 2, 2, 0]
    bench.delivery.drain(1_000)
    assert bench.note(tp)["begun"] == [0, 4, 1, 0]


def test_nothing_is_handled_before_the_note_is_stored(bench: FragileBench) -> None:
    tp = bench.produce(0, *values(4))
    bench.assign(tp)
    bench.consumer.commit_errors.append(CommitFailedError())
    bench.steps(1)
    assert bench.engine.calls == 0
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2, 3]


def test_the_note_is_read_and_written_by_any_version() -> None:
    note = CommitNote(1, "w-0", begun=Begun(7, 10, 3, 1))
    assert CommitNote.decode(note.encode()) == note
    for begun in ('"x"', "[1,2,3]", "[1,2,3,-4]", "null", "{}"):
        read = CommitNote.decode(f'{{"at":1,"instance":"w-0","begun":{begun}}}')
        assert read == CommitNote(1, "w-0")


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (HandlerTimeoutError("late"), True),
        (MemoryError(), True),
        (SinkError("full"), False),
        (HandlerError("wrong"), False),
        (OSError("away"), False),
    ],
)
def test_errors_that_records_may_have_ended_the_process_with(error: Exception, ended: bool) -> None:
    given_up = HandlerError("given up")
    given_up.__cause__ = error
    assert ended_by_batch(given_up) is ended
