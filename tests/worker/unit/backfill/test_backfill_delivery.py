"""One batch of a backfill: what is stored in which order, and what follows from each kind of failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from slackwater.backfill.cluster import PartResult
from slackwater.backfill.delivery import BackfillDelivery, Delivered
from slackwater.backfill.letters import LetterFile, make_letters
from slackwater.backfill.report import TextReport
from slackwater.backfill.run import _run
from slackwater.backfill.slices import Work
from slackwater.backfill.state import BackfillState, group_of
from slackwater.handler import OffsetRange, Retry
from slackwater.kafka.records import BatchBuilder, decode
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.offsets import DataLossError, lost
from slackwater.pipeline.engines.spark_session import SparkFailure
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.iceberg.sink import iceberg_sink
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.config.worker_config import WorkerConfig, parse
from slackwater.runtime.delivery.dead_letters import Letter
from slackwater.runtime.delivery.stopped_partitions import id_text
from slackwater.runtime.errors import (
    BatchTooLargeError,
    DeadLetterError,
    HandlerError,
    HandlerTimeoutError,
    StartError,
)
from slackwater.runtime.interfaces import Sink
from tests.support.workers.fakes import VirtualClock

TP = TopicPartition("orders", 0)
ALL = {TP: OffsetRange(0, 100)}
ROWS = pa.table(
    {
        "topic": ["orders"] * 3,
        "partition": pa.array([0] * 3, pa.int32()),
        "offset": pa.array([0, 1, 2], pa.int64()),
        "id": [10, 11, 12],
    }
)
LETTER = Letter(3, "is bad", b"k", b"v", [], 0)


class FakeCluster:
    """Gives ``results`` one after the other, or raises them."""

    writes = False

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.parts: list[Mapping[TopicPartition, OffsetRange]] = []
        self.engine: Any = None

    def run(self, part: Mapping[TopicPartition, OffsetRange], info: Any) -> PartResult:
        assert info.ranges == part
        assert (info.group_id, info.instance, info.assignment) == ("orders", "backfill", {TP})
        self.parts.append(part)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return PartResult(*result)


def config(folder: Path, **more: Any) -> WorkerConfig:
    return parse(
        {
            "groupId": "orders",
            "bootstrapServers": "kafka:9092",
            "topics": ["orders"],
            "handler": "orders:transform",
            "sink": {"format": "parquet", "path": str(folder / "out")},
            **more,
        }
    )


class Site:
    """A backfill of ``orders`` into a folder."""

    def __init__(
        self, folder: Path, cluster: FakeCluster, letters: str = "letters.jsonl", sink: str = "parquet"
    ) -> None:
        self.folder, self.cluster, self.format = folder, cluster, sink
        self.config = config(folder)
        group = group_of("orders", "x")
        self.state = BackfillState(self.sink, group, "d", {"orders": "id"}, by_record=True)
        self.ranges, self.positions = self.state.begin(ALL)
        where = letters if letters in ("topic", "none") else str(folder / letters)
        self.letters = make_letters(self.config, group, where)
        self.letters.begin(list(self.state.owned.values()))
        self.clock = VirtualClock()
        self.delivery = BackfillDelivery(
            self.config,
            self.state,
            self.letters,
            cluster,
            None,
            self.clock,  # type: ignore[arg-type]
        )

    def sink(self, group: str) -> Sink:
        out = str(self.folder / "out")
        if self.format == "delta":
            return delta_sink(group, out, new_columns=False)
        if self.format == "iceberg":
            uri = f"sqlite:///{self.folder}/catalog.db"
            options = {"type": "sql", "uri": uri, "warehouse": f"file://{self.folder}"}
            return iceberg_sink(group, "lake.orders", options=options, new_columns=False)
        return ParquetSink(group, out)

    def deliver(self, start: int, end: int, *, may_halve: bool = True) -> Delivered | None:
        return self.delivery.deliver({TP: OffsetRange(start, end)}, ALL, may_halve=may_halve)

    def ids(self) -> list[int]:
        files = (self.folder / "out").glob("*.parquet")
        return sorted(row for file in files for row in pa.parquet.read_table(file)["id"].to_pylist())

    def lines(self) -> list[Any]:
        file = self.folder / "letters.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Site]:
    import pyarrow.parquet  # noqa: F401

    return lambda *results, **more: Site(tmp_path, FakeCluster(*results), **more)


def test_rows_marks_and_letters_of_a_batch(make: Callable[..., Site]) -> None:
    site = make((ROWS, [(TP, [LETTER])]))
    delivered = site.deliver(0, 4)
    assert delivered is not None
    assert (delivered.rows, delivered.letters) == (3, 1)
    assert site.ids() == [10, 11, 12]
    assert len(site.lines()) == 1
    assert site.sink("orders.backfill.x").marks([TP]) == {TP: {"id": 4}}
    assert site.sink("orders").marks([TP]).get(TP, {}) == {}, "the group's"


@pytest.mark.parametrize("sink", ["parquet", "delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_another_run_goes_on_at_the_marks_with_the_ends_of_the_first(
    make: Callable[..., Site], sink: str
) -> None:
    site = make((ROWS, []), sink=sink)
    site.deliver(0, 4)
    site.state.fix_ends(ALL)
    again = BackfillState(site.sink, site.state.group, "d", {"orders": "id"}, by_record=True)
    later = {TP: OffsetRange(0, 500), TopicPartition("orders", 1): OffsetRange(0, 9)}
    assert again.begin(later) == (ALL, {TP: 4})
    other_bounds = BackfillState(site.sink, site.state.group, "e", {"orders": "id"}, by_record=True)
    assert other_bounds.begin(later) == (later, {TP: 4})
    created_again = BackfillState(site.sink, site.state.group, "d", {"orders": "other"}, by_record=True)
    assert created_again.begin(later) == (later, {})


def test_letters_of_a_run_that_has_crashed_are_there_once_and_have_no_row(make: Callable[..., Site]) -> None:
    first = make((ROWS.slice(0, 1), []))
    first.deliver(0, 1)
    first.letters.write([(first.state.owned[TP], [LETTER, Letter(1, "was bad", None, None, [], 0)])])
    again = make((ROWS.slice(1), [(TP, [LETTER])]))
    delivered = again.deliver(1, 4)
    assert delivered is not None
    assert (delivered.rows, delivered.letters) == (1, 1)
    assert again.ids() == [10, 12]
    assert len(again.lines()) == 2


def test_letters_beside_a_table_that_is_gone_cost_no_row(make: Callable[..., Site]) -> None:
    site = make((ROWS, []))
    site.letters.write([(site.state.owned[TP], [Letter(1, "was bad", None, None, [], 0)])])
    again = make((ROWS, []))
    again.deliver(0, 4)
    assert again.ids() == [10, 11, 12]


def test_a_letter_that_has_no_place_ends_the_backfill_before_its_batch_is_written(
    make: Callable[..., Site],
) -> None:
    site = make((ROWS, [(TP, [LETTER])]), letters="topic")
    with pytest.raises(
        DeadLetterError, match=r"orders-0 offset 3 is rejected \(is bad\).* no deadLetterTopic"
    ):
        site.deliver(0, 4)
    assert site.ids() == []
    assert site.sink("orders.backfill.x").marks([TP]).get(TP, {}) == {}


def test_letters_that_are_not_kept_are_counted(make: Callable[..., Site]) -> None:
    delivered = make((ROWS, [(TP, [LETTER])]), letters="none").deliver(0, 4)
    assert delivered is not None
    assert delivered.letters == 1


@pytest.mark.parametrize("error", [ValueError("boom"), HandlerTimeoutError("slow")])
def test_a_batch_that_fails_is_tried_in_smaller_parts(make: Callable[..., Site], error: Exception) -> None:
    site = make(error)
    assert site.deliver(0, 100) is None
    assert str(error) in site.delivery.failure
    assert site.ids() == []


def test_a_batch_that_fails_for_its_size_is_tried_in_smaller_parts_however_small_it_is(
    make: Callable[..., Site],
) -> None:
    assert make(BatchTooLargeError("many")).deliver(0, 2, may_halve=False) is None


def test_rows_that_do_not_fit_the_table_are_a_fault_of_records(make: Callable[..., Site]) -> None:
    text = ROWS.set_column(3, "id", pa.array(["a", "b", "c"]))
    site = make((ROWS, []), (text, []))
    site.deliver(0, 4)
    assert site.deliver(4, 8) is None
    assert site.ids() == [10, 11, 12]


def test_what_passes_by_itself_is_tried_again(make: Callable[..., Site]) -> None:
    site = make(Retry("away"), ConnectionError("away"), (ROWS, []))
    assert site.deliver(0, 4) is not None
    assert len(site.cluster.parts) == 3
    assert site.clock.mono_ms() == pytest.approx(500 + 1000)


def test_what_does_not_pass_ends_the_backfill(make: Callable[..., Site]) -> None:
    site = make(*[Retry("away")] * 3)
    with pytest.raises(HandlerError, match=r"Retry: away \(handler orders:transform\)"):
        site.deliver(0, 4)


def test_two_processes_at_the_same_backfill(make: Callable[..., Site]) -> None:
    first, second = make((ROWS, [])), make((ROWS, []))
    first.deliver(0, 4)
    with pytest.raises(StartError, match=r"another process runs this backfill \(orders.backfill.x\)"):
        second.deliver(0, 4)
    assert first.ids() == [10, 11, 12]


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    file = LetterFile(path)
    file.write([(0, b"k", None, [("h", b"1"), ("h", None)])], 1, 0)
    with path.open("a") as out:
        out.write('{"time": 1, "ke')
    file.write([(0, None, b"v", [("h", b"2")])], 2, 0)
    assert list(file.headers_since(0, None)) == [[("h", b"1"), ("h", None)], [("h", b"2")]]


@pytest.mark.parametrize("may_halve", [True, False])
def test_records_that_are_gone_end_the_backfill(make: Callable[..., Site], may_halve: bool) -> None:
    """They are at fault no more than the handler is: neither smaller parts nor another try have them."""
    error = f"{DataLossError.__module__}.{DataLossError.__name__}"
    with pytest.raises(DataLossError) as raised:
        lost(True, "topic orders was deleted: the id was a and is b")
    site = make(SparkFailure(f"{error}: {raised.value} (offsets.py line 9)"), (ROWS, []))
    with pytest.raises(StartError, match=r"^topic orders was deleted: the id was a and is b\."):
        site.deliver(0, 4, may_halve=may_halve)
    assert len(site.cluster.parts) == 1


def test_a_handlers_error_that_quotes_such_a_text_is_one_of_records(make: Callable[..., Site]) -> None:
    quoted = "slackwater.pipeline.datasource.offsets.DataLossError: x. To go on "
    assert make(SparkFailure(f"ValueError: bad {quoted}")).deliver(0, 4) is None


OTHER = TopicPartition("other", 0)


def test_a_topic_made_again_since_the_first_run_begins_anew(make: Callable[..., Site]) -> None:
    """Of several topics, too: the others go on, and a partition that was added is left out."""
    site, added = make(), TopicPartition("orders", 1)
    both = {TP: OffsetRange(0, 9), OTHER: OffsetRange(0, 5)}
    later = {TP: OffsetRange(0, 12), added: OffsetRange(0, 7), OTHER: OffsetRange(0, 8)}

    def begun(other: str, given: dict[TopicPartition, OffsetRange]) -> BackfillState:
        state = BackfillState(site.sink, "g", "d", {"orders": "id", "other": other}, by_record=True)
        state.begin(given)
        return state

    first = begun("old", both)
    first.sink.stage(ROWS, first.ranges({TP: OffsetRange(0, 6), OTHER: OffsetRange(0, 5)})).publish()
    first.fix_ends(both)
    second = begun("new", later)
    ranges, positions = second.begin(later)
    assert ranges == {TP: OffsetRange(0, 9), OTHER: OffsetRange(0, 8)}
    assert positions == {TP: 6}
    second.fix_ends(ranges)
    assert begun("new", both).begin({**later, OTHER: OffsetRange(0, 20)})[0] == ranges


def test_a_topic_made_again_while_this_process_reads_it(
    make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a batch that has failed in the cluster, which had read the first topic."""
    site = make(ValueError("bad"))
    monkeypatch.setattr("slackwater.backfill.delivery.read_log", lambda *_: [])
    now = UUID(int=2)
    site.delivery._consumer = SimpleNamespace(topic_id=lambda _: now)  # type: ignore[assignment]
    with pytest.raises(StartError, match=f"the id was id and is {id_text(now)}"):
        site.deliver(0, 4, may_halve=False)


class Ending(FakeCluster):
    """Handles each record but those at the offsets of ``ends``, with which a process of Spark's ends."""

    def __init__(self, *ends: int) -> None:
        super().__init__()
        self.ends = set(ends)

    def run(self, part: Mapping[TopicPartition, OffsetRange], info: Any) -> PartResult:
        self.parts.append(part)
        offsets = range(part[TP].start, part[TP].end)
        if self.ends.intersection(offsets):
            raise SparkFailure("Python worker exited unexpectedly", environment=True, ended_by_batch=True)
        return PartResult(rows_at(offsets), [])


def rows_at(offsets: range) -> pa.Table:
    return pa.table(
        {
            "topic": pa.array(["orders"] * len(offsets)),
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "id": pa.array(offsets, pa.int64()),
        }
    )


def read(_consumer: Any, _tp: TopicPartition, start: int, end: int, _clock: Any) -> list[Any]:
    """What :func:`read_log` gives: a record at each offset."""
    builder = BatchBuilder("none", 1_000_000)
    for at in range(start, end):
        assert builder.append(at, b"k", b"v", [])
    return [decode(builder.build(base_offset=start), fetch_offset=start)]


def run_all(site: Site) -> None:
    report = TextReport(lambda _: None, lambda *_: None)
    _run(site.delivery, site.state, Work(ALL), ALL, 100, report)


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Site]:
    """A site whose records at these offsets end a process."""
    monkeypatch.setattr("slackwater.backfill.delivery.read_log", read)
    monkeypatch.setattr("slackwater.backfill.delivery.check_topic", lambda *_: None)
    return lambda *ends: Site(tmp_path, Ending(*ends))


@pytest.mark.parametrize("ends", [(0, 5), (42,), (42, 43, 44, 99)], ids=str)
def test_a_record_that_ends_a_process_is_a_dead_letter(
    end: Callable[..., Site], tmp_path: Path, ends: tuple[int, ...]
) -> None:
    site = end(*ends)
    run_all(site)
    assert site.ids() == [at for at in range(100) if at not in ends]
    letters = [dict(headers) for headers in LetterFile(tmp_path / "letters.jsonl").headers_since(0, 0)]
    assert [letter["slackwater.offset"] for letter in letters] == [b"%d" % at for at in ends]
    assert {(letter["slackwater.error"] or b"").partition(b":")[0] for letter in letters} == {
        b"EndedTheProcess"
    }


def test_no_record_is_rejected_where_a_process_ends_with_each(end: Callable[..., Site]) -> None:
    site = end(*range(100))
    with pytest.raises(HandlerError, match="Python worker exited unexpectedly"):
        run_all(site)
    assert site.lines() == []


def test_no_more_than_ten_records_in_a_row_are_rejected(end: Callable[..., Site]) -> None:
    site = end(*range(20, 40))
    with pytest.raises(HandlerError, match="orders-0 offset 30: .* the 10 records before"):
        run_all(site)
    assert len(site.lines()) == 10


def test_a_record_is_left_out_by_two_runs_of_the_same_name(make: Callable[..., Site]) -> None:
    """For one that ends the command itself: it is not known to the next run."""
    site = make((rows_at(range(4)), []), (rows_at(range(5, 8)), []))
    site.deliver(0, 4)
    behind = {TP: OffsetRange(5, 8)}
    site.state = BackfillState(site.sink, site.state.group, "e", {"orders": "id"}, by_record=True)
    ranges, positions = site.state.begin(behind)
    work = Work(ranges)
    work.advance(positions)
    assert work.left == behind
    site.delivery._state = site.state
    site.deliver(5, 8)
    assert site.ids() == [0, 1, 2, 3, 5, 6, 7]
