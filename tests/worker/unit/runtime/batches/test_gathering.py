"""Handled batches that are written in one commit: when, and what becomes of them. In virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from slackwater import handler
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.batch import DeliveryBatch, GatheredOutput, Part, Transformed
from slackwater.runtime.delivery.columns import Released
from slackwater.runtime.delivery.gathering import FileSize, Gathering
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.delivery.stages import Stage
from slackwater.runtime.errors import ConfigError, HandlerError, RecordsError
from slackwater.runtime.handler_output import Output
from tests.support.workers.disturbances import disturb, seeds
from tests.support.workers.fakes import Bench, ValueEngine, worker_config

MAX_AGE_MS = 10_000
SINK = {"format": "parquet", "path": "out", "maxAgeMs": MAX_AGE_MS}
MIB = 1024 * 1024


@pytest.fixture
def bench() -> Bench:
    return Bench(sink=SINK)


def batches(bench: Bench) -> list[dict[str, list[int]]]:
    return [event["by_partition"] for event in bench.events("batch")]


def step_until(bench: Bench, condition: Callable[[], object]) -> None:
    for _ in range(2_000):
        if condition():
            return
        bench.steps(1)
    raise AssertionError("it did not come to that")


def gathered(bench: Bench, *counts: int) -> tuple[float, list[TopicPartition]]:
    """Has so many batches of one record each be handled of each partition, and none written. When the first
    of them was polled, and the partitions."""
    tps = [bench.produce(number) for number in range(len(counts))]
    bench.assign(*tps)
    bench.steps(2)
    began = bench.clock.now
    for turn in range(max(counts)):
        for tp, count in zip(tps, counts, strict=True):
            if turn < count:
                bench.produce(tp.partition, f"v{turn}")
        calls = bench.engine.calls
        step_until(bench, lambda calls=calls: bench.engine.calls > calls and bench.delivery.in_flight.idle)
    assert bench.sink.commits == 0
    return began, tps


def to_time(bench: Bench, at_ms: float) -> None:
    """Steps until just this time."""
    for _ in range(2_000):
        if bench.clock.now < at_ms:
            bench.steps(1, timeout_ms=at_ms - bench.clock.now)
    assert bench.clock.now == at_ms


# ---- when they are written


def test_what_was_handled_is_written_together_at_its_greatest_age(bench: Bench) -> None:
    began, (tp,) = gathered(bench, 3)
    to_time(bench, began + MAX_AGE_MS - 1)
    assert (bench.engine.calls, bench.sink.commits) == (3, 0)
    assert bench.cluster.committed[tp].offset == 0
    bench.steps(1, timeout_ms=1_000)
    assert bench.clock.now == began + MAX_AGE_MS, "it polls no longer than until then"
    assert bench.sink.commits == 1
    assert batches(bench) == [{"flights-0": [0, 3]}]
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.cluster.committed[tp].offset == 3
    assert bench.journal("stage", "publish") == [("stage", 0, 0), ("publish", 0, 0)]


def test_the_age_counts_from_the_poll_of_a_record_and_not_from_the_end_of_the_handler(bench: Bench) -> None:
    tp = bench.produce(0)
    bench.assign(tp)
    bench.steps(2)
    bench.runner.usual_ms = 4_000
    began = bench.clock.now
    bench.produce(0, "v0")
    step_until(bench, lambda: bench.sink.commits)
    assert bench.clock.now == began + MAX_AGE_MS


def test_commits_say_how_far_records_are_handled_that_wait(bench: Bench) -> None:
    """They commit nothing of them, and the commit that does says nothing more."""
    began, (tp,) = gathered(bench, 2)
    to_time(bench, began + 1_900)
    assert "handled" not in bench.note(tp)
    to_time(bench, began + 2_100)
    assert (bench.cluster.committed[tp].offset, bench.note(tp)["handled"]) == (0, 2)
    bench.produce(0, "v2")
    to_time(bench, began + 3_900)
    assert bench.note(tp)["handled"] == 2
    to_time(bench, began + 4_300)
    assert (bench.cluster.committed[tp].offset, bench.note(tp)["handled"]) == (0, 3)
    assert bench.note(tp)["at"] >= 1_700_000_000_000 + began + 4_000, "served until then"
    to_time(bench, began + MAX_AGE_MS)
    bench.steps(1)
    assert bench.cluster.committed[tp].offset == 3
    assert "handled" not in bench.note(tp)


def test_the_age_counts_from_the_first_record_after_the_commit_before(bench: Bench) -> None:
    began, _ = gathered(bench, 2)
    to_time(bench, began + MAX_AGE_MS)
    bench.steps(1)
    to_time(bench, began + MAX_AGE_MS + 3_000)
    bench.produce(0, "v2")
    bench.steps(1)
    to_time(bench, began + 2 * MAX_AGE_MS + 3_000 - 1)
    assert bench.sink.commits == 1
    bench.steps(1)
    assert bench.sink.commits == 2


def test_without_an_age_each_batch_is_written_at_once() -> None:
    bench = Bench()
    tp = bench.produce(0, "v0")
    bench.assign(tp)
    bench.until_idle()
    bench.produce(0, "v1")
    bench.until_idle()
    assert batches(bench) == [{"flights-0": [0, 1]}, {"flights-0": [1, 2]}]


def test_partitions_are_gathered_together(bench: Bench) -> None:
    began, _ = gathered(bench, 1, 2)
    to_time(bench, began + MAX_AGE_MS)
    bench.steps(1)
    assert batches(bench) == [{"flights-0": [0, 1], "flights-1": [0, 2]}]
    assert bench.status.in_flight == {}


def test_what_reaches_the_target_size_is_written_before_its_age() -> None:
    bench = Bench(sink={**SINK, "targetFileBytes": MIB})
    bench.restart(max_records=10)
    values = [f"{number:0100000d}" for number in range(40)]
    tp = bench.produce(0, *values)
    bench.assign(tp)
    step_until(bench, lambda: bench.sink.commits == 2)
    assert bench.clock.now < MAX_AGE_MS
    # 100 KB a record: with the second batch of ten the rows are larger than the target.
    assert batches(bench)[0] == {"flights-0": [0, 20]}
    bench.until_idle()
    assert bench.sink.rows(0) == [*range(40)]


def test_dead_letters_count_for_the_memory() -> None:
    bench = Bench(sink={**SINK, "targetFileBytes": MIB})
    bench.restart(max_records=10)
    tp = bench.produce(0, *(f"bad{'x' * 100_000}" for _ in range(100)))
    bench.assign(tp)
    step_until(bench, lambda: batches(bench))
    assert bench.clock.now < MAX_AGE_MS
    first = batches(bench)[0]["flights-0"]
    assert first[0] == 0
    assert 40 <= first[1] <= 50, "four times the target"


def test_one_is_gathered_while_another_is_written() -> None:
    bench = Bench(sink={**SINK, "targetFileBytes": MIB})
    bench.restart(max_records=5)
    tp = bench.produce(0, *(f"{number:0100000d}" for number in range(60)))
    bench.runner.usual_ms, bench.writer.usual_ms = 100, 1_000
    bench.assign(tp)
    following = 0
    for _ in range(2_000):
        bench.steps(1)
        batch, after = bench.delivery.in_flight.batch, bench.delivery.in_flight.next
        if batch and after and batch.stage in (Stage.STAGING, Stage.PUBLISHING):
            following = max(following, after.gathered)
        if bench.sink.commits == 3:
            break
    assert following == 3, "its target, and no more than that"
    bench.until_idle()
    assert bench.sink.rows(0) == [*range(60)]
    starts = [spans["flights-0"][0] for spans in batches(bench)]
    assert starts == sorted(starts)


# ---- what does not wait


def test_partitions_that_are_revoked_are_written_first(bench: Bench) -> None:
    began, (a, _) = gathered(bench, 2, 1)
    bench.consumer.at_poll.append(lambda: bench.consumer.revoke(a))
    bench.steps(1)
    assert bench.clock.now < began + MAX_AGE_MS
    assert (bench.sink.rows(0), bench.sink.rows(1)) == ([0, 1], [0])
    assert bench.cluster.committed[a].offset == 2
    bench.produce(1, "v1")
    calls = bench.engine.calls
    step_until(bench, lambda: bench.engine.calls > calls)
    bench.steps(2)
    assert bench.sink.rows(1) == [0], "what is left is gathered again"


def test_partitions_that_are_lost_are_given_up_and_the_others_are_written(bench: Bench) -> None:
    _, (a, _) = gathered(bench, 2, 1)
    bench.consumer.at_poll.append(lambda: bench.consumer.lose(a))
    bench.steps(2)
    assert (bench.sink.rows(0), bench.sink.rows(1)) == ([], [0])
    assert bench.cluster.committed[a].offset == 0


def test_a_partition_that_comes_back_is_written_once(bench: Bench) -> None:
    _, (a, _) = gathered(bench, 2, 1)
    bench.consumer.at_poll.append(lambda: bench.consumer.lose(a))
    bench.consumer.at_poll.append(lambda: bench.consumer.assign(a))
    bench.steps(30)
    bench.delivery.drain(1_000)
    assert (bench.sink.rows(0), bench.sink.rows(1)) == ([0, 1], [0])


def test_a_drain_writes_it_at_once(bench: Bench) -> None:
    _, (tp,) = gathered(bench, 3)
    now = bench.clock.now
    bench.delivery.drain(60_000)
    assert bench.clock.now - now < 200
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.cluster.committed[tp].offset == 3
    bench.delivery.release()
    bench.produce(0, "v3")
    bench.steps(5)
    assert bench.sink.commits == 1, "after a release it is gathered again"


def test_a_drain_without_time_gives_it_up_and_it_is_read_again(bench: Bench) -> None:
    _, (tp,) = gathered(bench, 3)
    bench.writer.usual_ms = 1_000
    bench.delivery.drain(10)
    assert (bench.sink.rows(0), bench.consumer.positions[tp]) == ([], 0)
    bench.delivery.release()
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]


def test_a_drain_takes_along_what_waits_for_the_interval() -> None:
    bench = Bench(sink=SINK, batchIntervalMs=2_000)
    gathered(bench, 2)
    bench.produce(0, "v2")
    bench.delivery.drain(60_000)
    assert bench.sink.rows(0) == [0, 1, 2]
    assert batches(bench) == [{"flights-0": [0, 3]}]


def test_a_process_that_is_replaced_writes_nothing_of_it(bench: Bench) -> None:
    _, (tp,) = gathered(bench, 3)
    in_flight = bench.delivery.retire()
    assert in_flight.batch is None
    assert (bench.sink.rows(0), bench.sink.staged) == ([], 0)
    assert bench.cluster.committed[tp].offset == 0


def test_a_crash_loses_nothing(bench: Bench) -> None:
    _, (tp,) = gathered(bench, 3)
    bench.restart()
    bench.assign(tp)
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]


def test_an_interval_between_batches_goes_on_while_they_are_gathered() -> None:
    bench = Bench(sink=SINK, batchIntervalMs=2_000)
    began, _ = gathered(bench, 4)
    assert bench.clock.now >= began + 6_000
    to_time(bench, began + MAX_AGE_MS)
    bench.steps(1)
    assert batches(bench) == [{"flights-0": [0, 4]}]


# ---- faults


def test_dead_letters_wait_for_the_commit_and_are_written_once(bench: Bench) -> None:
    tp = bench.produce(0, "bad0")
    bench.assign(tp)
    bench.steps(5)
    bench.produce(0, "v1", "bad2")
    bench.steps(5)
    assert bench.letters.origins() == []
    bench.until_idle()
    assert bench.letters.origins() == ["flights-0@0", "flights-0@2"]
    assert bench.sink.rows(0) == [1]
    (event,) = bench.events("batch")
    assert (event["records"], event["out"], event["dead"]) == (3, 1, 2)


def test_a_batch_that_the_handler_fails_on_is_not_gathered(bench: Bench) -> None:
    _, (tp,) = gathered(bench, 2)
    bench.engine.errors.extend([RuntimeError("the lookup failed")] * 9)
    bench.produce(0, "v2")
    with pytest.raises(HandlerError, match="the lookup failed"):
        bench.until_idle()
    assert bench.sink.rows(0) == [0, 1], "what was handled before it is written"
    assert bench.cluster.committed[tp].offset == 2


def test_a_record_that_the_handler_fails_on_becomes_a_dead_letter(bench: Bench) -> None:
    _, (tp,) = gathered(bench, 2)
    bench.engine.failure = lambda values: ValueError("no number") if "vx" in values else None
    bench.produce(0, "v2", "vx", "v4")
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2, 4]
    assert bench.letters.origins() == ["flights-0@3"]
    assert bench.cluster.committed[tp].offset == 5


def test_records_that_the_table_refuses_are_found_in_the_batches_that_had_them(bench: Bench) -> None:
    """What was gathered is read again, and each batch is written alone. What comes then is gathered."""
    began, (tp,) = gathered(bench, 3)
    stage = bench.sink.stage

    def refusing(rows: pa.Table, ranges: object) -> object:
        if b"v1" in rows["value"].to_pylist():
            raise RecordsError("v1 does not fit")
        return stage(rows, ranges)

    bench.sink.stage = refusing
    to_time(bench, began + MAX_AGE_MS)
    bench.until_idle()
    assert bench.clock.now < began + MAX_AGE_MS + 1_000
    assert bench.sink.rows(0) == [0, 2]
    assert bench.letters.origins() == ["flights-0@1"]
    assert bench.cluster.committed[tp].offset == 3
    commits = bench.sink.commits
    bench.produce(0, "v3")
    bench.steps(5)
    assert bench.sink.commits == commits, "this one waits"


def test_records_that_the_table_refuses_at_the_commit_are_found_too(bench: Bench) -> None:
    began, (tp,) = gathered(bench, 2)
    bench.sink.publish_error = RecordsError("a value does not fit")
    to_time(bench, began + MAX_AGE_MS)
    bench.steps(1)
    bench.sink.publish_error = None
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1]
    assert bench.cluster.committed[tp].offset == 2
    assert bench.sink.staged == 0


def test_what_another_process_has_written_meanwhile_is_not_written_again(bench: Bench) -> None:
    began, (tp,) = gathered(bench, 3)
    bench.sink.table_marks[tp, ""] = 2
    bench.sink.published[0, 0] = [(0, "v0"), (1, "v1")]
    to_time(bench, began + MAX_AGE_MS)
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]


class TypedEngine(ValueEngine):
    """Its column ``number`` has the type that the value names: int, float, none (null) or absent."""

    def transform(self, table: pa.Table, batch: handler.Batch) -> pa.Table:
        table = super().transform(table, batch)
        kind = table["value"][0].as_py().decode()
        types = {"int": pa.int64(), "float": pa.float64(), "none": pa.null()}
        if kind == "absent":
            return table
        numbers = [None if kind == "none" else 1] * table.num_rows
        return table.append_column("number", pa.array(numbers, types[kind]))


@pytest.mark.parametrize(
    ("kinds", "spans"),
    [
        (["int", "int", "absent", "none", "int"], [[0, 5]]),
        (["absent", "int", "int"], [[0, 3]]),
        (["int", "int", "float"], [[0, 2], [2, 3]]),
        (["absent", "int", "float"], [[0, 2], [2, 3]]),
    ],
)
def test_only_columns_of_equal_types_are_joined(
    bench: Bench, kinds: list[str], spans: list[list[int]]
) -> None:
    """A float is not made of an integer: the table's schema decides, as without gathering."""
    bench.restart(engine=TypedEngine(), max_records=1)
    tp = bench.produce(0, *kinds)
    bench.assign(tp)
    bench.until_idle()
    assert [batch["flights-0"] for batch in batches(bench)] == spans
    assert bench.sink.rows(0) == [*range(len(kinds))]


@pytest.mark.parametrize("seed", seeds(15, 60))
def test_each_record_is_written_once_whatever_happens_in_between(seed: int) -> None:
    """Random times, sizes, ages, rebalances, refused commits, and records that the table refuses."""
    rng = random.Random(seed)
    age = rng.choice([1, 200, 1_500, 20_000])
    bench = Bench(
        sink={**SINK, "maxAgeMs": age, "targetFileBytes": MIB}, batchIntervalMs=rng.choice([0, 0, 300])
    )
    bench.notes_first_batches = True
    bench.restart(max_records=rng.randrange(1, 6))
    stage = bench.sink.stage

    def refusing(rows: pa.Table, ranges: object) -> object:
        if any(row["value"].startswith(b"refused") for row in rows.to_pylist()):
            raise RecordsError("it does not fit")
        return stage(rows, ranges)

    bench.sink.stage = refusing
    tps = [bench.produce(number, *_values(rng, rng.randrange(1, 25))) for number in range(3)]
    bench.runner.durations.extend(rng.randrange(0, 300) for _ in range(1_000))
    bench.writer.durations.extend(rng.randrange(0, 300) for _ in range(1_000))
    bench.assign(*tps)
    disturb(bench, rng, tps, lambda count: _values(rng, count))
    assert bench.sink.staged == 0
    for tp in tps:
        good = [at for at, value in enumerate(bench.cluster.logs[tp]) if value.startswith(b"v")]
        assert bench.sink.rows(tp.partition) == good
    bad = Counter(
        f"{tp}@{at}"
        for tp in tps
        for at, value in enumerate(bench.cluster.logs[tp])
        if value.startswith((b"bad", b"refused"))
    )
    assert Counter(bench.letters.origins()) == bad


def _values(rng: random.Random, count: int) -> list[str]:
    kinds = ["v"] * 12 + ["skip"] * 4 + ["bad"] * 3 + ["refused"]
    # The first ones are good: where nothing was ever handled, the handler is taken to be at fault.
    return [f"{rng.choice(kinds) if number > 1 else 'v'}{number}" for number in range(count)]


def test_a_batch_that_begins_elsewhere_does_not_join() -> None:
    """Records that are read again would be in the table twice."""
    gathering, owned = Gathering(MAX_AGE_MS, MIB), OwnedPartition(TopicPartition("flights", 0))
    rows = pa.table({"offset": pa.array([1], pa.int64())})

    def batch(start: int, end: int) -> DeliveryBatch:
        part = Part(owned, Released(end - start, start, end), start, end, bytes=100 * (end - start))
        return DeliveryBatch({owned.tp: part})

    def made() -> Transformed:
        return Transformed(Output(rows, {owned.tp: 1}, {}), {}, 8, {})

    first = batch(10, 20)
    gathering.begin(first, made())
    assert gathering.join(first, batch(20, 25), made())
    assert (first.parts[owned.tp].end, first.records) == (25, 15)
    assert first.parts[owned.tp].bytes == 1500
    assert not gathering.join(first, batch(20, 30), made())
    assert gathering.full(first), "what follows is written after it"
    assert not gathering.join(first, batch(25, 30), made())
    assert (first.parts[owned.tp].end, first.gathered) == (25, 2)


# ---- sizes


def test_small_tables_are_put_together_and_none_is_lost() -> None:
    output = GatheredOutput()
    for number in range(1_000):
        rows = pa.table({"n": pa.array([number], pa.int64())})
        assert output.add(Transformed(Output(rows, {}, {}), {}, 8, {"arrow": 1.0}), {})
    made = output.transformed()
    assert made.output.rows["n"].to_pylist() == [*range(1_000)]
    assert made.output.rows["n"].num_chunks <= 64
    assert (made.bytes, made.ms) == (8_000, {"arrow": 1_000.0})
    assert output.rows_bytes == 8_000


def test_the_size_of_a_file_is_estimated_from_rows_like_it() -> None:
    size = FileSize()
    assert size.of(1_000) == 1_000, "not known yet: too large an estimate makes a file that is too small"
    size.sample(pa.table({"n": pa.array(range(100), pa.int64())}))
    assert size.of(1_000) == 1_000, "of a few rows most is the footer"
    size.sample(pa.table({"n": pa.array([7] * 50_000, pa.int64())}))
    assert size.of(1_000_000) < 50_000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"maxAgeMs": 120_001}, "must be between 0 and 120000"),
        ({"maxAgeMs": 1_000, "targetFileBytes": MIB - 1}, "must be between 1048576 and 1073741824"),
        ({"targetFileBytes": MIB}, "requires sink.maxAgeMs"),
    ],
)
def test_ages_and_sizes_have_bounds(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        worker_config(sink={"format": "parquet", "path": "out", **fields})
