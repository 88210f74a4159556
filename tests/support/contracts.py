"""More of the contract for our own sinks: writers that end or stop at any call they make to their storage."""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from slackwater.runtime.errors import ConfigError, HandlerError, RecordsError, SinkError
from slackwater.runtime.interfaces import Range, Sink
from slackwater.testing import SinkContract
from slackwater.testing.sink_contract import NEW, OLD, RECORDS, A, marks_of, places, refused
from tests.support import sweeps
from tests.support.sinks import Died, Steps, die, put, rows

QUICK = (("stopped_after", False), ("rewind_dies_after", True))


class StoppedSink(SinkContract):
    """The class that tests a sink says with which ``calls`` (an object, and the name of its attribute) that
    writes; how many there are at least (``turns``), and how often a stopped worker is ``fenced``; and which
    tests are ``quick``, the others being long: before a call (False) or after it."""

    calls: Sequence[tuple[Any, str]] = ()
    dying: Sequence[tuple[Any, str]] = ()
    """The calls at which a worker may die, if they are not ``calls``."""
    turns, fenced = 20, 5
    swept = RECORDS
    quick: Sequence[tuple[str, bool]] = QUICK

    def begin(self) -> None:
        """From now on: another table, that is not there yet."""
        raise NotImplementedError

    def ended(self, sink: Any) -> None:
        """Does what the end of the sink's process does."""

    def stopped(self) -> None:
        """Is called while a worker is stopped."""

    def read(self) -> StoppedSink:
        """What is in the table."""
        return self

    def places(self) -> Counter[tuple[int, int]]:
        """How many rows there are of each (partition, offset)."""
        return self.stored()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name in {"dies_after", "stopped_after", "rewind_dies_after"} & set(metafunc.fixturenames):
            marks = {
                after: () if (name, after) in self.quick else pytest.mark.long for after in (False, True)
            }
            cases = [pytest.param(after, id=str(after), marks=mark) for after, mark in marks.items()]
            metafunc.parametrize(name, cases)

    def test_a_worker_that_dies_at_any_step_leaves_each_record_once(self, dies_after: bool) -> None:
        """Also between the table's commit and the worker's knowledge of it: it asks for the marks anew."""
        turns = sweeps.die_at_each_step(
            self,
            self.dying or self.calls,
            after=dies_after,
            records=self.swept,
            make=self.rows,
            ended=self.ended,
        )
        assert turns > self.turns

    def test_a_worker_that_goes_on_after_its_successor_has_written_changes_nothing(
        self, stopped_after: bool
    ) -> None:
        turns, fenced = sweeps.go_on_after_a_successor(
            self, self.calls, after=stopped_after, records=self.swept, make=self.rows, stopped=self.stopped
        )
        assert turns > self.turns
        assert fenced > self.fenced

    def test_a_rewind_that_dies_at_any_step_is_made_or_not_made(self, rewind_dies_after: bool) -> None:
        for turn in itertools.count(1):
            self.begin()
            writer = self._rewinding()
            for start in range(0, RECORDS, 4):
                self.stage(writer, {A: start}, 4).publish()
            sink, steps = self.sink(), Steps(turn, die, after=rewind_dies_after)
            try:
                with steps.watching(self.dying or self.calls):
                    sink.rewind({A: (OLD, 7)})
                break
            except Died:
                self.ended(sink)
                end = marks_of(self.sink())[A]
                assert end in (7, RECORDS)
                assert self.stored() == places(A, range(end))
        assert turn > 3


class SharedTable(StoppedSink):
    """A table that holds the rows of several groups. They don't tell their group and topic id, so some cannot
    be removed."""

    def test_a_rewind_that_would_remove_the_rows_of_others_is_refused(self) -> None:
        sink = self._rewinding()
        self.put(sink, [0, 1, 2], 0, 3)
        self.put(self.sink("h"), [0, 1], 0, 2)
        assert sink.rewind({A: (OLD, 2)}) == 1
        with pytest.raises(SinkError, match=rf"rows of flights-0 .* of the group h, topic id {OLD}\. Start"):
            sink.rewind({A: (OLD, 1)})
        self.put(sink, [0], 0, 1, NEW)
        with pytest.raises(SinkError, match=f"also has rows of the group g, topic id {OLD}"):
            sink.rewind({A: (NEW, 0)})
        with pytest.raises(SinkError, match=f"also has rows of the group g, topic id {NEW}"):
            sink.rewind({A: (OLD, 0)})
        assert marks_of(sink)[A] == 2


class CommittedTable(SharedTable):
    """A table of :class:`slackwater.pipeline.sinks.table_sink.TableSink`."""

    def made(self, group_id: str = "g", **settings: Any) -> Sink:
        """A sink with these settings."""
        raise NotImplementedError

    def columns(self) -> dict[str, Any]:
        """The names of the table's columns, with their types."""
        raise NotImplementedError

    def sink(self, group_id: str = "g") -> Sink:
        return self.made(group_id)

    @pytest.mark.parametrize("empty", [pa.table({}), rows([]).select(["topic", "partition", "offset"])])
    def test_a_batch_without_rows_and_columns_creates_no_table_that_rows_do_not_fit(
        self, empty: pa.Table
    ) -> None:
        """The table is to be partitioned by a column that only rows have."""
        day = pa.array([datetime.date(2026, 1, 1)])
        sink = self.made(partition_by=["day"])
        sink.stage(empty, {A: Range(OLD, 0, 3, None)}).publish()
        assert self.made().marks([A]) == {}, "nothing was written"
        sink.stage(empty, {A: Range(OLD, 3, 5, 3)}).publish()
        with refused():
            sink.stage(empty, {A: Range(OLD, 3, 5, 3)}).publish()
        sink.stage(rows([5], day=day), {A: Range(OLD, 5, 6, 5)}).publish()
        assert self.columns()["day"] == "date"
        assert marks_of(sink)[A] == 6
        self.begin()
        other = self.made("h", partition_by=["day"])
        other.stage(empty, {A: Range(OLD, 0, 3, None)}).publish()
        assert other.marks([A]) == {}, "it begins anew after an assignment"
        other.stage(rows([0], day=day), {A: Range(OLD, 0, 1, None)}).publish()
        assert other.marks([A]) == {A: {OLD: 1}}

    def test_new_columns_can_be_rejected(self) -> None:
        sink = self.made(new_columns=False)
        put(sink, rows([0]), 0)
        with pytest.raises(RecordsError, match="the rows have columns gate, which the table lacks"):
            put(sink, rows([1], gate=pa.array(["B4"])), 1)
        put(sink, rows([1]), 1)
        assert list(self.columns()) == ["topic", "partition", "offset", "carrier"]

    def test_partition_columns_that_are_missing_or_others_are_named(self) -> None:
        sink = self.made(partition_by=["day"])
        with pytest.raises(
            HandlerError, match=r"no column day.*they have: topic, partition, offset, carrier"
        ):
            put(sink, rows([0]), 0)
        with pytest.raises(RecordsError, match="the column day, .* has no value"):
            put(sink, rows([0], day=pa.nulls(1)), 0)
        with pytest.raises(HandlerError, match="the column day is struct.*cannot be partitioned by"):
            put(sink, rows([0], day=pa.array([{"a": 1}])), 0)
        assert self.stored() == Counter()
        put(sink, rows([0], day=pa.array(["1"])), 0)
        put(sink, rows([1], day=pa.nulls(1)), 1)
        with pytest.raises(HandlerError, match="no column day"):
            put(sink, rows([2]), 2)
        message = r"sink.partitionBy: names carrier, and the table .* by day: .* change sink\.(path|table)"
        with pytest.raises(ConfigError, match=message) as caught:
            self.made(partition_by=["carrier"]).marks([A])
        assert caught.value.field == "sink.partitionBy"
        self.begin()
        put(self.made(), rows([0]), 0)
        with pytest.raises(ConfigError, match="is partitioned by no column"):
            self.made(partition_by=["day"]).probe()


class KeyedTable(SharedTable):
    """A table in which rows change others, so that they cannot be removed."""

    rewinds = False

    def test_a_rewind_is_refused(self) -> None:
        sink = self.sink()
        self.put(sink, [0, 1], 0, 2)
        with pytest.raises(SinkError, match=r"in mode \w+ records change rows of others.* another sink\."):
            sink.rewind({A: (OLD, 0)})
        assert marks_of(sink)[A] == 2
