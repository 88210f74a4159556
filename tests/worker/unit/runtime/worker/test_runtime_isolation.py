"""A batch that some of its records break: they become dead letters, the others are written once, in order."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slackwater import Batch, OffsetRange
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks import partition_values
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.errors import BatchTooLargeError, HandlerError, QueryFailed, RecordsError, SinkError
from tests.support.workers.fakes import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def values(count: int, *poison: int) -> list[str]:
    """``count`` values, those at the offsets ``poison`` such that :func:`breaks` raises for them."""
    return [f"poison {i}" if i in poison else f"v{i}" for i in range(count)]


def breaks(make: Callable[[str], BaseException]) -> Callable[[list[str]], BaseException | None]:
    """Fails with records whose value begins with ``poison``."""

    def failure(payloads: list[str]) -> BaseException | None:
        bad = [value for value in payloads if value.startswith("poison")]
        return make(f"cannot take {bad[0]}") if bad else None

    return failure


def letter_headers(bench: Bench) -> list[dict[str, bytes]]:
    return [
        {name: value or b"" for name, value in headers}
        for partition in bench.letters.partitions
        for _, _, _, headers in partition
    ]


def letters(bench: Bench) -> dict[str, str]:
    """The reason of each dead letter by where its record was."""
    errors_by_place = {}
    for partition in bench.letters.partitions:
        for _, _, _, headers in partition:
            named = {name: (value or b"").decode() for name, value in headers}
            where = f"{named['slackwater.partition']}@{named['slackwater.offset']}"
            assert where not in errors_by_place, "each once"
            errors_by_place[where] = named["slackwater.error"]
    return errors_by_place


def check_nothing_done(bench: Bench) -> None:
    assert bench.sink.published == {}
    assert bench.sink.staged == 0
    assert bench.cluster.committed == {}
    assert letters(bench) == {}


@pytest.mark.parametrize("make", [ValueError, RuntimeError, RecordsError, QueryFailed])
def test_one_bad_record_of_two_partitions_becomes_a_dead_letter(
    bench: Bench, make: Callable[[str], BaseException]
) -> None:
    bench.restart(max_records=200)
    a, b = bench.produce(0, *values(60)), bench.produce(1, *values(60, 41))
    bench.engine.failure = breaks(make)
    bench.assign(a, b)
    bench.until_idle()
    assert bench.sink.rows(0) == list(range(60))
    assert bench.sink.rows(1) == [i for i in range(60) if i != 41]
    assert sorted(bench.sink.published) == [(0, 0), (1, 0)], "one file for each partition's part"
    assert bench.sink.staged == 0
    ((where, reason),) = letters(bench).items()
    assert where == "1@41"
    assert reason.startswith("the batch fails with this record: ")
    assert "cannot take poison 41" in reason
    assert bench.cluster.committed[a].offset == bench.cluster.committed[b].offset == 60
    assert bench.engine.calls <= 3 + 4 * (math.log2(120) + 1) + 5
    for name in ("records_dead", "records_rejected"):
        assert bench.metrics.value(name, ("flights", "1")) == 1
    assert bench.metrics.value("records_rejected", ("flights", "0")) == 0
    (batch,) = bench.events("batch")
    assert (batch["records"], batch["out"], batch["dead"], batch["rejected"]) == (120, 119, 1, 1)
    assert "rejects flights-1 offset 41: the batch fails with this record" in bench.stderr.getvalue()


def test_what_raises_is_tried_again_first_and_what_will_fail_again_is_not(bench: Bench) -> None:
    bench.engine.failure = breaks(ValueError)
    bench.assign(bench.produce(0, *values(20, 3)))
    bench.until_idle()
    assert bench.stderr.getvalue().count("retrying in") == 2
    other = Bench()
    other.engine.failure = breaks(RecordsError)
    other.assign(other.produce(0, *values(20, 3)))
    other.until_idle()
    assert "retrying in" not in other.stderr.getvalue()
    assert letters(other).keys() == letters(bench).keys() == {"0@3"}


def test_several_records_and_those_that_the_handler_rejects_itself(bench: Bench) -> None:
    produced = values(90, 0, 17, 18, 89)
    produced[50] = "bad50"
    produced[70] = "skip"
    bench.engine.failure = breaks(ValueError)
    tp = bench.produce(0, *produced)
    bench.assign(tp)
    bench.until_idle()
    assert list(letters(bench)) == ["0@0", "0@17", "0@18", "0@50", "0@89"], "in order"
    headers = {named["slackwater.offset"]: named for named in letter_headers(bench)}
    assert {named["slackwater.attempt"] for named in headers.values()} == {b"3"}, "after two retries"
    stack = headers[b"17"]["slackwater.stack"].decode()
    assert stack.startswith("Traceback")
    assert stack.endswith("ValueError: cannot take poison 17\n")
    assert "slackwater.stack" not in headers[b"50"], "the handler has rejected it without an exception"
    assert letters(bench)["0@50"] == "rejected bad50"
    assert bench.sink.rows(0) == [i for i in range(90) if i not in (0, 17, 18, 50, 70, 89)]
    assert bench.metrics.value("records_dead", ("flights", "0")) == 5
    assert bench.metrics.value("records_rejected", ("flights", "0")) == 4


def test_a_partition_may_consist_of_bad_records_only(bench: Bench) -> None:
    a, b = bench.produce(0, *values(8)), bench.produce(1, *values(2, 0, 1))
    bench.engine.failure = breaks(ValueError)
    bench.assign(a, b)
    bench.until_idle()
    assert bench.sink.rows(0) == list(range(8))
    assert bench.sink.rows(1) == []
    assert list(letters(bench)) == ["1@0", "1@1"]
    assert bench.cluster.committed[b].offset == 2


def test_values_that_the_sink_cannot_hold_become_dead_letters(bench: Bench) -> None:
    stage = bench.sink.stage

    def refuses(rows: pa.Table, ranges: Any) -> Any:
        if b"poison 5" in rows.column("value").to_pylist():
            raise pa.ArrowNotImplementedError("Cannot write struct type 'x'\nwith no child field to Parquet")
        return stage(rows, ranges)

    bench.sink.stage = refuses  # type: ignore[method-assign]
    bench.assign(bench.produce(0, *values(30, 5)))
    bench.until_idle()
    assert bench.sink.rows(0) == [i for i in range(30) if i != 5]
    assert "Cannot write struct type 'x' with no child" in letters(bench)["0@5"]
    assert bench.sink.staged == 0


def test_a_row_with_a_wrong_position_becomes_a_dead_letter(bench: Bench) -> None:
    transform = bench.engine.transform

    def moves(table: pa.Table, batch: Batch) -> pa.Table:
        offsets = [
            4711 if value.startswith(b"poison") else offset
            for value, offset in zip(
                table.column("value").to_pylist(), table.column("offset").to_pylist(), strict=True
            )
        ]
        at = table.schema.get_field_index("offset")
        return transform(table.set_column(at, "offset", pa.array(offsets, pa.int64())), batch)

    bench.engine.transform = moves  # type: ignore[method-assign]
    bench.assign(bench.produce(0, *values(30, 5)))
    bench.until_idle()
    assert bench.sink.rows(0) == [i for i in range(30) if i != 5]
    assert "says flights-0 offset 4711" in letters(bench)["0@5"]


def test_without_a_dead_letter_topic_the_error_names_the_record() -> None:
    bench = Bench(deadLetterTopic=None)
    bench.engine.failure = breaks(ValueError)
    bench.assign(bench.produce(2, *values(50, 33)))
    with pytest.raises(
        HandlerError,
        match=r"failed 3 times on the batch flights-2 offsets 0 to 49: ValueError: .* The record at fault is "
        r"flights-2 offset 33 \(.*cannot take poison 33\), and no deadLetterTopic is configured",
    ):
        bench.steps(1000)
    check_nothing_done(bench)


# ---- what is no fault of records


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        PermissionError(errno.EACCES, "the key may not be read"),
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 99 failed"),
        pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes"),
        SystemExit(1),
        QueryFailed("java.lang.OutOfMemoryError", environment=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_of_the_surroundings_is_not_searched_for_in_records(
    bench: Bench, error: BaseException
) -> None:
    bench.engine.failure = breaks(lambda _: error)
    bench.assign(bench.produce(0, *values(50, 33)))
    with pytest.raises(HandlerError, match="failed 3 times on the batch"):
        bench.steps(1000)
    assert bench.engine.calls == 3, "the retries, and nothing else"
    check_nothing_done(bench)


def test_an_exception_may_be_its_own_cause(bench: Bench) -> None:
    """``raise error from error``"""

    def own_cause(text: str) -> BaseException:
        error = ValueError(text)
        error.__cause__ = error
        return error

    bench.engine.failure = breaks(own_cause)
    bench.assign(bench.produce(0, *values(30, 5)))
    bench.until_idle()
    assert [*letters(bench)] == ["0@5"]


def test_a_cause_in_the_surroundings_counts(bench: Bench) -> None:
    def chained(text: str) -> BaseException:
        error = ValueError(text)
        error.__cause__ = FileNotFoundError("the model is gone")
        return error

    bench.engine.failure = breaks(chained)
    bench.assign(bench.produce(0, *values(50, 33)))
    with pytest.raises(HandlerError, match="failed 3 times"):
        bench.steps(1000)
    assert bench.engine.calls == 3


def test_a_full_disk_is_not_searched_for_in_records(bench: Bench) -> None:
    bench.sink.stage_error = OSError(errno.ENOSPC, "No space left on device", "/out/x")
    bench.assign(bench.produce(0, *values(50)))
    with pytest.raises(SinkError, match="No space left"):
        bench.steps(100)
    assert bench.engine.calls == 1


def test_a_disk_that_gets_full_meanwhile_ends_the_search(bench: Bench) -> None:
    bench.engine.failure = breaks(RecordsError)
    bench.runner.durations.extend([100] * 3)
    bench.assign(bench.produce(0, *values(50, 33)))
    bench.steps(4)
    assert "searching for the records at fault" in bench.stderr.getvalue()
    bench.sink.stage_error = OSError(errno.ENOSPC, "No space left on device", "/out/x")
    with pytest.raises(SinkError, match="No space left"):
        bench.steps(100)
    check_nothing_done(bench)


def test_a_handler_that_fails_on_all_is_at_fault(bench: Bench) -> None:
    bench.restart(max_records=200)
    bench.engine.failure = lambda payloads: ValueError("boom")
    bench.assign(bench.produce(0, *values(200)))
    with pytest.raises(HandlerError, match="More than 20 of its 200 records fail.*no record is rejected"):
        bench.steps(1000)
    assert bench.engine.calls <= 3 + 80
    check_nothing_done(bench)


def test_a_handler_that_has_never_worked_is_at_fault(bench: Bench) -> None:
    bench.engine.failure = lambda payloads: ValueError("boom")
    bench.assign(bench.produce(0, *values(2)))
    with pytest.raises(
        HandlerError, match="All its records fail, and no batch of the partition was handled before"
    ):
        bench.steps(1000)
    check_nothing_done(bench)


def test_alone_a_record_is_rejected_where_the_handler_has_worked_before(bench: Bench) -> None:
    bench.engine.failure = breaks(ValueError)
    tp = bench.produce(0, "v0")
    bench.assign(tp)
    bench.until_idle()
    for offset in range(1, 11):
        bench.produce(0, f"poison {offset}")
        bench.until_idle()
    assert len(letters(bench)) == 10
    bench.produce(0, "v11")
    bench.until_idle()
    for offset in range(12, 22):
        bench.produce(0, f"poison {offset}")
        bench.until_idle()
    assert len(letters(bench)) == 20
    bench.produce(0, "poison 22")
    with pytest.raises(HandlerError, match="All its records fail, as did the 10 before"):
        bench.steps(1000)
    assert len(letters(bench)) == 20
    assert bench.cluster.committed[tp].offset == 22


def test_alone_a_record_is_rejected_by_a_new_process_where_the_one_before_has_handled_records(
    bench: Bench,
) -> None:
    """Otherwise one bad record, as the last of its partition, would end each process that is started."""
    tp = bench.produce(0, "v0")
    bench.assign(tp)
    bench.until_idle()
    for offset in range(1, 11):
        bench.restart()
        bench.engine.failure = breaks(ValueError)
        bench.produce(0, f"poison {offset}")
        bench.assign(tp)
        bench.until_idle()
        assert bench.note(tp)["rejected"] == offset
    assert len(letters(bench)) == 10
    bench.restart()
    bench.engine.failure = breaks(ValueError)
    bench.produce(0, "poison 11")
    bench.assign(tp)
    with pytest.raises(HandlerError, match="All its records fail, as did the 10 before"):
        bench.steps(1000)
    bench.restart()
    bench.produce(0, "v12")
    bench.assign(tp)
    bench.until_idle()
    assert bench.note(tp)["rejected"] == 0


def test_a_full_disk_where_no_row_is_left_is_the_sink_s_error(bench: Bench) -> None:
    """Where all records of a batch are rejected, the marks are written all the same: that can fail, too."""
    bench.assign(bench.produce(0, *values(20)))
    bench.until_idle()
    bench.engine.failure = breaks(ValueError)
    bench.sink.empty_error = OSError(errno.ENOSPC, "No space left on device", "/out/x")
    bench.produce(0, "poison 20")
    with pytest.raises(SinkError, match="cannot write .*: No space left"):
        bench.steps(1000)
    assert bench.sink.staged == 0
    assert letters(bench) == {}


def test_alone_a_record_is_not_rejected_for_an_error_that_may_be_anything(bench: Bench) -> None:
    bench.assign(bench.produce(0, "v0"))
    bench.until_idle()
    bench.engine.failure = breaks(RuntimeError)
    bench.produce(0, "poison 1")
    with pytest.raises(HandlerError, match="the error does not indicate a fault in their values"):
        bench.steps(1000)
    assert letters(bench) == {}


def test_a_failure_that_passes_rejects_nothing(bench: Bench) -> None:
    bench.engine.errors.extend([ValueError("away")] * 9)
    bench.assign(bench.produce(0, *values(50)))
    bench.until_idle()
    assert bench.sink.rows(0) == list(range(50))
    assert letters(bench) == {}
    assert bench.metrics.value("records_rejected", ("flights", "0")) == 0


@pytest.mark.parametrize("make", [ValueError, BatchTooLargeError])
def test_a_batch_that_is_too_large_is_written_in_smaller_ones(
    bench: Bench, make: Callable[[str], BaseException]
) -> None:
    """The handler's failure is understood after a search; a sink says so at once."""
    bench.engine.failure = lambda payloads: make("too many") if len(payloads) > 70 else None
    bench.assign(bench.produce(0, *values(60)), bench.produce(1, *values(60)))
    bench.until_idle()
    assert [bench.sink.rows(partition) for partition in (0, 1)] == [list(range(60))] * 2
    assert letters(bench) == {}
    assert bench.sink.staged == 0


def test_a_batch_with_rows_for_too_many_folders_is_written_in_smaller_ones(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_values, "MOST_PARTITIONS", 10)
    bench.sink = ParquetSink("flights", str(tmp_path), partition_by=["offset"])
    bench.restart()
    bench.assign(bench.produce(0, *values(60)))
    bench.until_idle()
    offsets = [int(path.parent.name.removeprefix("offset=")) for path in tmp_path.rglob("offset=*/*")]
    assert sorted(offsets) == list(range(60))


@pytest.mark.parametrize("max_age_ms", [0, 1000])
def test_a_record_that_is_too_large_alone_becomes_a_dead_letter(max_age_ms: int) -> None:
    bench = Bench(sink={"format": "parquet", "path": "out", "maxAgeMs": max_age_ms})
    a = bench.produce(0, "v0")
    bench.assign(a)
    bench.until_idle()
    bench.produce(0, *values(60, 41))
    stage, failure = bench.sink.stage, breaks(BatchTooLargeError)

    def refused(rows: pa.Table, ranges: Any) -> Any:
        if error := failure([row["value"].decode() for row in rows.to_pylist()]):
            raise error
        return stage(rows, ranges)

    bench.sink.stage = refused
    bench.until_idle()
    assert bench.sink.rows(0) == [i for i in range(61) if i != 42]
    assert list(letters(bench)) == ["0@42"]
    assert bench.sink.staged == 0


# ---- in between


def test_a_partition_may_be_given_up_during_the_search(bench: Bench) -> None:
    bench = Bench(drainTimeoutMs=1000)
    a, b = bench.produce(0, *values(20, 3)), bench.produce(1, *values(20, 4))
    bench.engine.failure = breaks(RecordsError)
    bench.runner.durations.extend([100] * 5 + [5000])
    bench.assign(a, b)
    bench.steps(12)
    assert "searching for the records at fault" in bench.stderr.getvalue()
    bench.consumer.at_poll.append(lambda: bench.consumer.revoke(a))
    bench.until_idle()
    assert bench.sink.published.keys() == {(1, 0)}
    assert list(letters(bench)) == ["1@4"]
    assert a not in bench.cluster.committed
    assert bench.sink.staged == 0
    bench.restart("w-1")
    bench.engine.failure = breaks(RecordsError)
    bench.assign(a, generation=2)
    bench.until_idle()
    assert bench.sink.rows(0) == [i for i in range(20) if i != 3]
    assert list(letters(bench)) == ["0@3", "1@4"]


def test_a_trial_that_hangs_ends_the_worker_at_the_handler_s_limit() -> None:
    bench = Bench(handlerTimeoutMs=3000)
    bench.engine.failure = breaks(RecordsError)
    bench.runner.durations.extend([0, 2000, 2000, 10**9])
    bench.assign(bench.produce(0, *values(20, 3)))
    with pytest.raises(HandlerError, match=r"handlerTimeoutMs \(3000\)"):
        bench.steps(1000)
    check_nothing_done(bench)


def test_polls_go_on_during_the_search(bench: Bench) -> None:
    bench.engine.failure = breaks(RecordsError)
    bench.runner.durations.extend([1000] * 10)
    tp = bench.produce(0, *values(100, 3))
    bench.assign(tp)
    bench.steps(2)
    before = bench.consumer.polls
    bench.until_idle()
    assert bench.consumer.polls - before >= 9 * 1000 / 50


def test_a_replay_after_the_letters_writes_each_once(bench: Bench) -> None:
    tp = TopicPartition("flights", 0)
    bench.engine.failure = breaks(RecordsError)
    bench.produce(0, *values(50, 7))
    bench.assign(tp)
    bench.sink.publish_error = OSError(errno.EACCES, "Permission denied", "/out/x")
    with pytest.raises(SinkError):
        bench.until_idle()
    assert list(letters(bench)) == ["0@7"]
    bench.delivery.abandon_all()
    bench.sink.publish_error = None
    bench.restart(max_records=20)
    bench.engine.failure = breaks(RecordsError)
    bench.assign(tp, generation=2)
    bench.until_idle()
    assert list(letters(bench)) == ["0@7"]
    assert bench.sink.rows(0) == [i for i in range(50) if i != 7]


def test_what_the_handler_is_told_in_the_search_are_the_ranges_of_the_whole_batch(bench: Bench) -> None:
    a, b = bench.produce(0, *values(30, 5)), bench.produce(1, *values(2))
    bench.engine.failure = breaks(ValueError)
    bench.assign(a, b)
    bench.until_idle()
    whole = {a: OffsetRange(0, 30), b: OffsetRange(0, 2)}
    assert bench.engine.batches[0].ranges == bench.engine.batches[-1].ranges == whole
    searched = [batch.ranges for batch in bench.engine.batches[1:-1]]
    assert {a: whole[a]} in searched, "a part with records of one partition"
    assert all(ranges[tp] == whole[tp] for ranges in searched for tp in ranges)
    assert [batch.attempt for batch in bench.engine.batches[:4]] == [1, 2, 3, 3], "then the search begins"
