"""What a table in mode ``changes`` holds, for each sink that has the mode."""

from __future__ import annotations

import datetime
import decimal
import random
import time
from abc import abstractmethod
from typing import Any

import pyarrow as pa
import pytest

from slackwater.pipeline.sinks import deleted_keys
from slackwater.runtime.errors import HandlerError, RecordsError, SinkError
from slackwater.runtime.interfaces import Range, Sink, SinkFencedError
from tests.support.sinks import OLD, A, B, TableCases, marks, put, rows

HOUR_MS = 3_600_000
REMEMBERS: dict[str, Any] = {"version": "version", "deleted_for_ms": HOUR_MS}
DAY = datetime.date(2026, 1, 1)
VERSIONS: list[Any] = [
    [1, 2, 3],
    [decimal.Decimal("0.9"), decimal.Decimal("1.0"), decimal.Decimal("10.0")],
    [DAY.replace(day=n) for n in (1, 2, 3)],
    [datetime.datetime(2026, 1, 1, 0, 0, 0, n, datetime.UTC) for n in (1, 2, 3)],
]


def changes(*given: tuple[Any, ...], start: int = 0, partition: int = 0) -> pa.Table:
    """Rows of consecutive records: (operation, id, v) or (operation, id, v, version)."""
    operations, ids, values, *versions = zip(*given, strict=True)
    columns = {"_op": pa.array(operations, pa.string()), "id": pa.array(ids), "v": pa.array(values)}
    if versions:
        is_decimal = isinstance(versions[0][0], decimal.Decimal)
        columns["version"] = pa.array(versions[0], pa.decimal128(10, 1) if is_decimal else None)
    return rows(range(start, start + len(given)), partition, **columns)


class ChangesCases(TableCases):
    """To be subclassed for a sink."""

    @abstractmethod
    def made(self, **settings: Any) -> Sink:
        """A sink of the group ``g`` in mode ``changes`` with the key ``id``."""

    @abstractmethod
    def stored(self) -> list[dict[str, Any]]:
        """The table's rows, by a reader of its own."""

    @abstractmethod
    def require(self, column: str) -> None:
        """Makes a column of the table NOT NULL."""

    def values(self) -> dict[Any, Any]:
        """The column v by id, of which each is there once."""
        read = self.stored()
        by_id = {row["id"]: row["v"] for row in read}
        assert len(by_id) == len(read)
        return by_id

    def test_rows_replace_and_delete_by_key(self) -> None:
        sink = self.made()
        at = put(sink, changes(("upsert", 1, "a"), (None, 2, "b"), ("delete", 9, None)), 0)
        assert self.values() == {1: "a", 2: "b"}
        at = put(sink, changes(("delete", 1, None), ("upsert", 2, "B"), ("upsert", 3, "c"), start=at), at)
        assert self.values() == {2: "B", 3: "c"}
        put(sink, changes(("delete", 7, None), ("upsert", 1, "again"), start=at), at)
        assert self.values() == {1: "again", 2: "B", 3: "c"}
        assert "_op" not in self.stored()[0]
        assert marks(sink)[A] == 8

    def test_of_a_batch_the_last_row_of_a_key_counts(self) -> None:
        sink = self.made()
        first = changes(("upsert", 1, "a"), ("delete", 1, None), ("delete", 2, None), ("upsert", 2, "b"))
        put(sink, first, 0)
        assert self.values() == {2: "b"}
        put(sink, changes(("upsert", 2, "c"), ("delete", 2, None), start=4).slice(0, 2).take([1, 0]), 4)
        assert self.values() == {}

    def test_rows_without_operations_replace(self) -> None:
        sink = self.made()
        put(sink, changes(("upsert", 1, "a")).drop_columns("_op"), 0)
        put(sink, changes((None, 1, "b"), start=1).set_column(3, "_op", pa.nulls(1)), 1)
        assert self.values() == {1: "b"}

    def test_a_row_that_deletes_needs_its_key_alone(self) -> None:
        sink = self.made()
        put(sink, changes(("upsert", 1, "a"), ("upsert", 2, "b")), 0)
        self.require("v")
        put(sink, changes(("delete", 1, None), start=2), 2)
        put(sink, changes(("delete", 2, "as it was"), start=3).drop_columns("v"), 3)
        assert self.values() == {}
        small, large = pa.array([1], pa.int16()), pa.array([1_000_000])
        put(sink, changes((None, 3, "c"), start=4).append_column("small", small), 4)
        put(sink, changes(("delete", 3, "c"), start=5).append_column("small", large), 5)
        assert self.values() == {}

    @pytest.mark.parametrize("versions", VERSIONS, ids=lambda of: type(of[0]).__name__)
    def test_an_older_version_changes_nothing(self, versions: list[Any]) -> None:
        old, new, newest = versions
        sink = self.made(version="version")
        put(sink, changes(("upsert", 1, "a", new), ("upsert", 2, "b", new), ("upsert", 3, "c", old)), 0)
        late = changes(("upsert", 1, "late", old), ("delete", 2, None, old), ("upsert", 3, "C", new), start=3)
        put(sink, late, 3)
        assert self.values() == {1: "a", 2: "b", 3: "C"}
        put(sink, changes(("delete", 2, None, new), ("upsert", 1, "same", new), start=6), 6)
        assert self.values() == {1: "same", 3: "C"}, "the same version is no older one"
        mixed = [
            changes(("upsert", 1, "newest", newest), start=8),
            changes(("upsert", 1, "older", new), partition=1),
        ]
        ranges = {A: Range(OLD, 8, 9, 8), B: Range(OLD, 0, 1, None)}
        sink.stage(pa.concat_tables(mixed), ranges).publish()
        assert self.values() == {1: "newest", 3: "C"}

    def test_a_row_of_the_table_without_a_version_is_the_oldest(self) -> None:
        put(self.made(), changes(("upsert", 1, "a"), ("upsert", 2, "b")), 0)
        put(self.made(version="version"), changes(("upsert", 1, "c", 1), start=2), 2)
        put(self.made(version="version"), changes(("delete", 2, None, 1), start=3), 3)
        assert self.values() == {1: "c"}

    def test_a_late_change_does_not_bring_back_what_was_deleted(self) -> None:
        at = put(self.made(**REMEMBERS), changes((None, 1, "a", 4), (None, 2, "b", 1)), 0)
        at = put(
            self.made(**REMEMBERS), changes(("delete", 1, None, 5), ("delete", 3, None, 5), start=at), at
        )
        at = put(self.made(**REMEMBERS), changes(("delete", 3, None, 2), ("delete", 2, "b", 0), start=at), at)
        late = changes((None, 1, "late", 4), (None, 2, "B", 1), (None, 3, "late", 4), start=at)
        at = put(self.made(**REMEMBERS), late, at)
        assert self.values() == {2: "B"}
        put(self.made(**REMEMBERS), changes((None, 1, "new", 5), (None, 3, "new", 6), start=at), at)
        assert self.values() == {1: "new", 2: "B", 3: "new"}

    def test_a_rewind_has_changes_applied_again(self) -> None:
        sink, former = self.made(**REMEMBERS), self.made(**REMEMBERS)
        put(former, changes((None, 1, "a", 1), (None, 2, "b", 1)), 0)
        put(former, changes(("delete", 1, None, 2), start=2), 2)
        assert sink.rewind({A: (OLD, 0)}) == 0
        assert self.values() == {2: "b"}
        assert marks(sink)[A] == 0
        with pytest.raises(SinkFencedError):
            former.stage(changes((None, 3, "c", 1), start=3), {A: Range(OLD, 3, 4, 3)}).publish()
        put(sink, changes((None, 1, "a", 1), (None, 2, "corrected", 1), ("delete", 1, None, 2)), 0)
        assert self.values() == {2: "corrected"}
        with pytest.raises(SinkError, match=r"sink\.version"):
            self.made().rewind({A: (OLD, 0)})

    @pytest.mark.parametrize("remembers", [False, True])
    def test_any_batches_leave_the_newest_of_each_key(self, remembers: bool) -> None:
        rng, model = random.Random(5), dict[int, tuple[int, str | None]]()
        sink = self.made(version="version", deleted_for_ms=HOUR_MS * remembers)
        ends = {A: 0, B: 0}
        for _ in range(12):
            tp = rng.choice([A, B])
            given: list[tuple[Any, ...]] = []
            for at in range(rng.randrange(1, 6)):
                value = None if rng.random() < 0.3 else f"{tp}-{ends[tp] + at}"
                given.append(("delete" if value is None else None, rng.randrange(4), value, rng.randrange(9)))
            for _, key, value, version in sorted(given, key=lambda row: row[3]):
                before = model.get(key, (0, None))
                is_gone = before[1] is None and not remembers
                if is_gone or version >= before[0]:
                    model[key] = (version, value)
            ends[tp] = put(sink, changes(*given, start=ends[tp], partition=tp.partition), ends[tp], tp)
            assert self.values() == {key: value for key, (_, value) in model.items() if value is not None}

    def test_what_cannot_be_told_is_an_error_of_its_record(self) -> None:
        sink = self.made(version="version")
        with pytest.raises(RecordsError) as error:
            put(sink, changes(("upsert", 1, "a", 1), ("DELETE", 2, None, 1)), 0)
        assert list(error.value.reasons) == [("flights", 0, 1)]
        with pytest.raises(RecordsError, match=r"no value in the column version, which sink.version names"):
            put(sink, changes(("upsert", 1, "a", 1), ("delete", 2, None, None)), 0)
        with pytest.raises(HandlerError, match=r"the column version, which sink.version names, is string"):
            put(sink, changes(("upsert", 1, "a", "1")), 0)
        assert marks(sink) == {A: 0, B: 0}


class CommittedChangesCases(ChangesCases):
    """For a sink whose table is a :class:`~slackwater.pipeline.sinks.table_sink.MarkedTable`."""

    @abstractmethod
    def notes(self) -> tuple[list[str], int]:
        """The deleted keys that are noted, and in how many files."""

    def test_a_row_that_deletes_needs_no_column_of_the_partitioning(self) -> None:
        put(self.made(partition_by=["v"]), changes((None, 1, "a"), (None, 2, "b")), 0)
        put(self.made(partition_by=["v"]), changes(("delete", 1, None), start=2).drop_columns("v"), 2)
        assert self.values() == {2: "b"}
        with pytest.raises(HandlerError, match="the rows have no column v"):
            put(self.made(), changes((None, 1, None), start=3).drop_columns("v"), 3)

    def test_what_was_deleted_long_ago_is_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deleted_keys, "CLEAN_UP_EVERY", 3)
        clock_ms = 0
        monkeypatch.setattr(time, "time_ns", lambda: clock_ms * 1_000_000)
        sink, at = self.made(**REMEMBERS), 0
        for number in range(3):
            clock_ms = number * HOUR_MS
            at = put(sink, changes(("delete", number, None, 5), start=at), at)
        put(sink, changes(*((None, number, "late", 1) for number in range(3)), start=at), at)
        assert self.values() == {0: "late"}
        assert self.notes() == (["1", "2"], 1)
