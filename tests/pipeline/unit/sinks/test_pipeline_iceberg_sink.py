"""An Iceberg table: what is in it, whoever writes it and wherever a writer is stopped.

The tables are read by :mod:`tests.support.iceberg.reader`, which knows nothing of pyiceberg.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import http.server
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, IntegerType, LongType, NestedField, StringType
from sqlalchemy import make_url

from slackwater import extras
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline import make_sink
from slackwater.pipeline.sinks.iceberg import marks as iceberg_marks
from slackwater.pipeline.sinks.iceberg.catalog import IcebergCatalog, _database
from slackwater.pipeline.sinks.iceberg.sink import iceberg_sink
from slackwater.pipeline.sinks.marks import MarkKey
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import BatchTooLargeError, ConfigError, HandlerError, RecordsError, SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support import sinks, sweeps
from tests.support.iceberg.catalogs import Catalog, sql_catalog
from tests.support.iceberg.others import (
    OTHERS,
    add_a_column,
    append,
    compact,
    delete,
    expire_all,
    set_a_property,
)
from tests.support.processes import reserve_ports
from tests.support.sinks import OLD, A, B, marks, put, rows
from tests.support.stores.gate import HttpThread
from tests.support.sweeps import ALL, RECORDS

stage, write_all = partial(sinks.stage, records=RECORDS), partial(sinks.write_all, records=RECORDS)


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    return sql_catalog(tmp_path)


def data_files(folder: Path) -> set[str]:
    return {f"file://{path}" for path in folder.rglob("*.parquet")}


# ---- exactly once


def test_a_batch_is_one_file_and_one_that_is_refused_none(lake: Catalog, tmp_path: Path) -> None:
    sink = lake.sink()
    late = stage(lake.sink(), {A: 0})
    staged = stage(sink, {A: 0, B: 0})
    assert not (tmp_path / "warehouse").exists()
    staged.publish()
    with pytest.raises(SinkFencedError):
        late.publish()
    table = lake.read()
    assert table.marks == {("g", "flights", OLD, 0): 5, ("g", "flights", OLD, 1): 5}
    assert data_files(tmp_path) == set(table.files)
    assert len(table.files) == 1, "whatever its partitions"
    assert lake.other().scan().to_arrow().num_rows == 10


@pytest.mark.long
def test_three_workers_that_create_the_table_at_once_write_each_record_once(
    lake: Catalog, tmp_path: Path
) -> None:
    for _ in range(3):
        lake.begin()
        table = sweeps.create_at_once(lake)
        folder = tmp_path / "warehouse" / lake.table.split(".")[0]
        assert data_files(folder) == set(table.files), "tries that were refused leave no data files"


def test_a_batch_without_rows_adds_a_snapshot(lake: Catalog) -> None:
    """So that another commit of main breaks it, as it would not break one that only sets properties."""
    sink = lake.sink()
    put(sink, rows([1]), 1)
    first = lake.read()
    put(sink, rows([]), 2)
    table = lake.read()
    assert (table.snapshot or {})["parent-snapshot-id"] == (first.snapshot or {})["snapshot-id"]
    assert table.files == first.files


# ---- answers that are lost


@contextlib.contextmanager
def failing_after(error: Exception, *, at: int = 1) -> Iterator[list[int]]:
    """The catalog makes commit number ``at``, and answers with ``error``."""
    commit, calls = SqlCatalog.commit_table, [0]

    def commit_table(*arguments: Any) -> Any:
        response = commit(*arguments)
        calls[0] += 1
        if calls[0] == at:
            raise error
        return response

    with mock.patch.object(SqlCatalog, "commit_table", commit_table):
        yield calls


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("reset by peer"),
        CommitStateUnknownException("502"),
        # A proxy has sent the request twice.
        CommitFailedException("main has changed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_commit_whose_answer_is_lost_is_made_once(lake: Catalog, error: Exception) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    with failing_after(error) as calls:
        stage(sink, {A: 5}, RECORDS).publish()
    assert calls == [1]
    assert lake.read().places() == Counter({(0, offset): 1 for offset in range(RECORDS)})
    with failing_after(error) as calls:
        assert sink.rewind({A: (OLD, 3)}) == RECORDS - 3
    assert calls == [1]
    assert lake.read().places() == Counter({(0, offset): 1 for offset in range(3)})


def test_a_commit_that_may_have_been_made_keeps_its_files(lake: Catalog, tmp_path: Path) -> None:
    """A proxy has sent it twice, so that it is refused, and then the catalog is away."""
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    staged = stage(sink, {A: 5}, RECORDS)
    load, calls = SqlCatalog.load_table, [0]

    def load_table(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] > 2:  # Before the commit, and within it.
            raise ConnectionError("away")
        return load(*arguments)

    with (
        failing_after(CommitFailedException("main has changed")),
        mock.patch.object(SqlCatalog, "load_table", load_table),
        pytest.raises(SinkError, match="cannot read the Iceberg table .*: away"),
    ):
        staged.publish()
    assert lake.read().places() == Counter({(0, offset): 1 for offset in range(RECORDS)})
    assert marks(sink)[A] == RECORDS


def test_a_commit_that_failed_for_another_reason_is_an_error(lake: Catalog, tmp_path: Path) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    staged = stage(sink, {A: 5})
    with (
        mock.patch.object(SqlCatalog, "commit_table", side_effect=OSError("No space left on device")),
        pytest.raises(
            SinkError, match=r"cannot write to the Iceberg table lake.*: No space left.*; free some"
        ),
    ):
        staged.publish()
    assert marks(sink)[A] == 5
    stage(sink, {A: 5}, RECORDS).publish()
    assert lake.read().places() == Counter({(0, offset): 1 for offset in range(RECORDS)})


def test_a_table_to_which_others_always_commit_first_is_an_error(
    lake: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.sink()
    monkeypatch.setattr(sink._target, "tries", 3)
    monkeypatch.setattr(sink._target, "longest_wait_s", 0)
    stage(sink, {A: 0}).publish()
    staged, before = stage(sink, {A: 5}), set(tmp_path.rglob("*.*"))
    with (
        mock.patch.object(SqlCatalog, "commit_table", side_effect=CommitFailedException("main")) as commit,
        pytest.raises(SinkError, match=r"other commits came first 3 times \(main\); have fewer workers"),
    ):
        staged.publish()
    assert commit.call_count == 3
    assert set(tmp_path.rglob("*.*")) == before


# ---- what others do to the table


def test_marks_outlive_commits_of_others_and_snapshots_that_expire(lake: Catalog) -> None:
    """The snapshot of the last batch is gone, and the one that is left was not made by Slackwater."""
    stage(lake.sink(), {A: 0, B: 0}).publish()
    compact(lake)
    append(lake)
    expire_all(lake)
    table = lake.read()
    assert len(table.metadata["snapshots"]) == 1
    assert "slackwater.commit" not in (table.snapshot or {})["summary"]
    assert marks(lake.sink()) == {A: 5, B: 5}
    with pytest.raises(SinkFencedError):
        lake.sink().stage(rows([0]), {A: Range(OLD, 0, 1, None)}).publish()


@pytest.mark.parametrize("change", OTHERS, ids=lambda change: change.__name__)
def test_a_commit_of_another_process_in_between_is_borne(
    lake: Catalog, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the table and the commit; neither side's commit is lost."""
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    commit = SqlCatalog.commit_table

    def once(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        change(lake)
        return commit(*arguments)

    staged = stage(sink, {A: 5, B: 0}, RECORDS)
    monkeypatch.setattr(SqlCatalog, "commit_table", once)
    staged.publish()
    table = lake.read()
    expected = Counter({(p, offset): 1 for p in (0, 1) for offset in range(RECORDS)})
    if change is delete:
        expected = Counter({place: 1 for place in expected if place[1] or place[0]})
    if change is append:
        expected[None, None] = 1  # type: ignore[index]
    assert table.places() == expected
    assert marks(lake.sink()) == {A: RECORDS, B: RECORDS}
    assert ("extra" in table.columns) == (change is add_a_column)
    assert table.metadata["properties"].get("owner") == ("somebody" if change is set_a_property else None)


@pytest.mark.parametrize("change", OTHERS, ids=lambda change: change.__name__)
def test_a_commit_of_another_process_does_not_undo_a_mark(
    lake: Catalog, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the table before the sink's commit, and commits after it; pyiceberg tries again."""
    sink = lake.sink()
    stage(sink, {B: 0}).publish()
    stage(sink, {A: 0}).publish()
    commit = SqlCatalog.commit_table

    def once(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        put(lake.sink(), rows([]), 5)
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", once)
    with contextlib.suppress(CommitFailedException):
        change(lake)
    assert marks(lake.sink())[A] == 6
    with pytest.raises(SinkFencedError):
        sink.stage(rows([5]), {A: Range(OLD, 5, 6, 5)}).publish()


def test_two_writers_of_one_partition_without_rows_do_not_both_commit(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    commit = SqlCatalog.commit_table

    def once(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        sink_2 = lake.sink()
        sink_2.stage(rows([]), {A: Range(OLD, 5, 9, 5)}).publish()
        return commit(*arguments)

    staged = sink.stage(rows([]), {A: Range(OLD, 5, 7, 5)})
    monkeypatch.setattr(SqlCatalog, "commit_table", once)
    with pytest.raises(SinkFencedError, match="its rows are there up to 9, and this worker knows of 5"):
        staged.publish()
    assert marks(sink)[A] == 9


def test_metadata_that_is_removed_while_it_is_read_is_read_again(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog keeps the last hundred files of metadata."""
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    load, gone = SqlCatalog.load_table, [1, 2, 3]

    def load_table(*arguments: Any) -> Any:
        if gone:
            gone.pop()
            raise FileNotFoundError("metadata.json")
        return load(*arguments)

    monkeypatch.setattr(SqlCatalog, "load_table", load_table)
    assert marks(sink) == {A: 5, B: 0}
    assert gone == []
    gone.extend(range(100))
    with pytest.raises(SinkError, match=r"cannot read the Iceberg table .*: metadata.json"):
        sink.marks([A])


def test_another_table_in_the_same_place_is_noticed(lake: Catalog) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    staged = stage(sink, {A: 5})
    other = lake.other()
    other.catalog.drop_table(lake.table)
    with pytest.raises(SinkFencedError):
        staged.publish()
    write_all(sink, random.Random(1))
    assert lake.read().places() == ALL


def test_a_property_that_somebody_has_changed_is_named(lake: Catalog) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    name = f"slackwater.marks/g/flights/{OLD}/0"
    with lake.other().transaction() as change:
        change.set_properties({name: "[1]"})
    with pytest.raises(SinkError, match=rf"property {name} is '\[1\]', which is no list of offsets"):
        sink.marks([A])


def test_marks_of_thousands_of_partitions_stay_small(lake: Catalog) -> None:
    """A commit sets the properties of its own partitions only, each below 4,000 characters."""
    every = {MarkKey("flights", OLD, number): 2**62 + number for number in range(5000)}
    properties = iceberg_marks.moved({}, "g", every)
    assert iceberg_marks.read(properties) == {"g": every}
    assert len(properties) == 50
    assert max(map(len, properties.values())) < 4000
    changed = iceberg_marks.moved(properties, "g", {MarkKey("flights", OLD, 4321): 7})
    assert list(changed) == [f"slackwater.marks/g/flights/{OLD}/43"]
    assert iceberg_marks.read({**properties, **changed})["g"] == {**every, MarkKey("flights", OLD, 4321): 7}
    ranges = {TopicPartition("flights", number): Range(OLD, 0, 1, None) for number in range(3000)}
    sink = lake.sink()
    table = pa.concat_tables([rows([0], number) for number in range(3000)])
    sink.stage(table, ranges).publish()
    assert lake.read().marks == {("g", "flights", OLD, number): 1 for number in range(3000)}


# ---- the schema


def test_the_schema_is_kept_and_new_columns_are_added(lake: Catalog) -> None:
    sink = lake.sink()
    put(sink, rows([0, 1], delay=pa.array([1, 2], pa.int64())), 0)
    put(lake.sink("h"), rows([2], carrier=pa.array(["UA"])), 2)
    put(sink, rows([3], delay=pa.array([3.0]), carrier=pa.array(["AA"])), 3)
    for bad in (pa.array([0.5]), pa.array(["late"]), pa.array([2**63], pa.uint64())):
        with pytest.raises(RecordsError, match=r"the (column delay of the )?table (is int64|cannot hold)"):
            put(sink, rows([4], delay=bad), 4)
    table = lake.read()
    assert table.columns == {
        "topic": "string", "partition": "int", "offset": "long", "delay": "long", "carrier": "string",
    }  # fmt: skip
    by_offset = {row["offset"]: (row["delay"], row["carrier"]) for row in table.rows()}
    assert by_offset == {0: (1, None), 1: (2, None), 2: (None, "UA"), 3: (3, "AA")}


@pytest.mark.parametrize("mode", [{}, {"mode": "changes", "key": ["id"]}], ids=["append", "changes"])
def test_columns_and_partitions_that_others_change_are_followed(lake: Catalog, mode: dict[str, Any]) -> None:
    """Also by a worker that starts then, with the settings by which the table was made."""

    def given(at: int) -> pa.Table:
        at_ms = pa.array([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)])
        return rows([at], id=pa.array([at]), time=at_ms, carrier=pa.array([f"{at}"]), gate=pa.array(["B4"]))

    def settings() -> TableSink:
        return lake.sink(partition_by=["day(time)"], **mode)

    running = settings()
    at = put(running, given(0), 0)
    with lake.other().update_schema() as schema:
        schema.rename_column("time", "departs").rename_column("carrier", "airline").delete_column("gate")
    for sink in (running, settings()):
        at = put(sink, given(at), at)
    with lake.other().update_spec() as spec:
        spec.remove_field("time_day").add_field("departs", "hour", "departs_hour").add_identity("airline")
    for sink in (running, settings()):
        at = put(sink, given(at), at)
    table = lake.read()
    assert sorted(table.columns) == [
        "airline", "departs", "gate", "id", "offset", "partition", "topic"
    ]  # fmt: skip
    assert sorted(row["airline"] for row in table.rows()) == [f"{n}" for n in range(5)]
    assert {file.spec_id for file in (task.file for task in lake.other().scan().plan_files())} == {0, 1}
    if not mode:
        assert running.rewind({A: (OLD, 1)}) == 4
    with pytest.raises(ConfigError, match="is partitioned by hour.departs., airline"):
        lake.sink(partition_by=["carrier"]).marks([A])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("key", {"mode": "upsert", "key": ["id"]}),
        ("version", {"mode": "changes", "key": ["other"], "version": "id"}),
        ("aggregates", {"mode": "merge", "key": ["other"], "aggregates": {"id": "sum"}}),
    ],
)
def test_a_column_of_the_settings_that_others_rename_is_named(
    lake: Catalog, name: str, settings: dict[str, Any]
) -> None:
    sink = lake.sink(**settings)
    columns = {"id": pa.array([1]), "other": pa.array([1])}
    put(sink, rows([0], **columns), 0)
    with lake.other().update_schema() as schema:
        schema.rename_column("id", "number")
    with pytest.raises(ConfigError, match="names id") as caught:
        put(sink, rows([1], **columns), 1)
    assert caught.value.field == f"sink.{name}"


def test_a_value_that_does_not_fit_a_column_of_the_batch_before_is_found_when_it_is_staged(
    lake: Catalog,
) -> None:
    sink = lake.sink()
    put(sink, rows([0]), 0)
    sink.stage(rows([1], delay=pa.array([1])), {A: Range(OLD, 1, 2, 1)}).publish()
    with pytest.raises(RecordsError, match="the column delay of the table is int64"):
        sink.stage(rows([2], delay=pa.array(["late"])), {A: Range(OLD, 2, 3, 2)})


TYPES: list[tuple[pa.Array, str | None, object]] = [
    (pa.array([-128], pa.int8()), "int", -128),
    (pa.array([255], pa.uint8()), "int", 255),
    (pa.array([65535], pa.uint16()), "int", 65535),
    (pa.array([2**32 - 1], pa.uint32()), "long", 2**32 - 1),
    (pa.array([2**63 - 1], pa.uint64()), "long", 2**63 - 1),
    (pa.array([1_000], pa.timestamp("ns")), "timestamp", datetime.datetime(1970, 1, 1, 0, 0, 0, 1)),
    (
        pa.array([1], pa.timestamp("s", "Europe/Berlin")),
        "timestamptz",
        datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
    ),
    (pa.array([86_400_000], pa.date64()), "date", datetime.date(1970, 1, 2)),
    (pa.array([61], pa.time32("s")), "time", datetime.time(0, 1, 1)),
    (pa.array([1.5], pa.float16()), "float", 1.5),
    (pa.array([True]), "boolean", True),
    (pa.array([decimal.Decimal(7)], pa.decimal256(12, 2)), "decimal(12, 2)", 7),
    (pa.array(["a"]).dictionary_encode(), "string", "a"),
    (pa.array([b"ab"], pa.binary(2)), "binary", b"ab"),
    (pa.array(["a"], pa.string_view()), "string", "a"),
    (pa.array([[1, 2]], pa.list_(pa.uint8(), 2)), None, [1, 2]),
    (pa.array([{"a": 200}], pa.struct([("a", pa.uint8())])), None, {"a": 200}),
    (pa.array([[{"a": ["b"]}]]), None, [{"a": ["b"]}]),
    (pa.array([[("k", 200)]], pa.map_(pa.string(), pa.uint8())), None, [("k", 200)]),
]
"""Values of a type of Arrow's, Iceberg's type unless it is nested, and the value that is read."""


def test_types_become_those_of_iceberg_without_loss(lake: Catalog) -> None:
    columns = {f"column{n}": array for n, (array, _, _) in enumerate(TYPES)}
    sink = lake.sink()
    put(sink, rows([0], **columns), 0)
    put(sink, rows([1], **columns), 1)
    table = lake.read()
    for name, (array, kind, stored) in zip(columns, TYPES, strict=True):
        assert kind in (None, table.columns[name]), array.type
        assert [row[name] for row in table.rows()] == [stored, stored], array.type


@pytest.mark.parametrize(
    "array",
    [
        pa.array([2**63], pa.uint64()),
        pa.array([1], pa.timestamp("ns")),
        pa.array([2**62], pa.timestamp("s")),
        pa.array([1], pa.duration("us")),
        pa.array([1], pa.time64("ns")),
        pa.array([[1]], pa.list_(pa.duration("us"))),
        pa.array([None], pa.month_day_nano_interval()),
        pa.array([1], pa.int32()).cast(pa.decimal256(40, 2)),
    ],
    ids=lambda array: str(array.type),
)
def test_values_that_iceberg_cannot_hold_are_errors_of_their_records(lake: Catalog, array: pa.Array) -> None:
    with pytest.raises(RecordsError, match="the table cannot hold the column value"):
        lake.sink().stage(rows([0], value=array), {A: Range(OLD, 0, 1, None)})


def test_names_that_differ_in_case_are_errors_of_their_records(lake: Catalog) -> None:
    sink = lake.sink()
    put(sink, rows([0], Value=pa.array([1])), 0)
    for name in ("value", "OFFSET"):
        with pytest.raises(RecordsError, match=r"Iceberg's readers do not tell upper from lower case"):
            put(sink, rows([1], **{name: pa.array([1])}), 1)
    odd = {"a b": pa.array([1]), "größe.cm-1/2": pa.array([2]), "1": pa.array([{"x": 3}])}
    put(sink, rows([1], **odd), 1)
    assert [row for row in lake.read().rows() if row["offset"] == 1] == [
        {"topic": "flights", "partition": 0, "offset": 1, "Value": None, "a b": 1, "größe.cm-1/2": 2,
         "1": {"x": 3}}
    ]  # fmt: skip


def test_a_column_of_another_engines_table_that_must_not_be_null(lake: Catalog) -> None:
    """Neither what it requires nor types that no handler's rows have are changed."""
    schema = Schema(
        NestedField(1, "topic", StringType(), required=True),
        NestedField(2, "partition", IntegerType(), required=True),
        NestedField(3, "offset", LongType(), required=True),
        NestedField(4, "carrier", StringType(), required=True),
        NestedField(5, "code", FixedType(2), required=False),
    )
    catalog = load_catalog("default", **lake.options)
    catalog.create_namespace(lake.table.split(".")[0])
    catalog.create_table(lake.table, schema)
    sink = lake.sink()
    put(sink, rows([0]), 0)
    with pytest.raises(RecordsError, match="the column carrier must not be null"):
        put(sink, rows([1], carrier=pa.array([None], pa.string())), 1)
    assert lake.read().places() == Counter({(0, 0): 1})
    fields = lake.read().metadata["schemas"][-1]["fields"]
    assert [(field["name"], field["required"]) for field in fields] == [
        (field.name, field.required) for field in schema.fields
    ]


# ---- partitioning


def test_rows_are_partitioned_by_columns_and_transforms(lake: Catalog) -> None:
    """As another reader prunes by them: each file's rows have the values that its partition says."""
    by = ["day(time)", "bucket(4, id)", "carrier", "truncate(2, code)"]
    sink = lake.sink(partition_by=by)
    n = 24
    times = [datetime.datetime(1969, 12, 30) + datetime.timedelta(hours=7 * at) for at in range(n)]
    put(
        sink,
        rows(
            range(n),
            time=pa.array(times, pa.timestamp("us", "UTC")),
            id=pa.array(range(n), pa.int64()),
            carrier=pa.array([["U/A", None, "B 6"][at % 3] for at in range(n)]),
            code=pa.array([f"{at:03d}" for at in range(n)]),
        ),
        0,
    )
    put(sink, rows([]), n)
    empty = {"time": pa.nulls(1, pa.timestamp("us", "UTC")), "id": pa.nulls(1), "code": pa.nulls(1)}
    put(lake.sink(), rows([n + 1], **empty, carrier=pa.array(["B 6"])), n + 1)
    table = lake.read()
    assert table.places() == Counter({(0, at): 1 for at in [*range(n), n + 1]})
    assert table.partitioning == [
        ("time", "day"), ("id", "bucket[4]"), ("carrier", "identity"), ("code", "truncate[2]"),
    ]  # fmt: skip
    days = set()
    for path, values in table.files.items():
        for row in table.rows_of(path):
            day = None if row["time"] is None else row["time"].date()
            assert values["time_day"] == day
            assert values["carrier"] == row["carrier"]
            assert values["code_trunc"] == (row["code"] and row["code"][:2])
            days.add(day)
    assert len(days) == 8
    found = lake.other().scan("time >= '1970-01-02T00:00:00+00:00' and id = 20").to_arrow()
    assert found["offset"].to_pylist() == [20], "pyiceberg finds it by the partitions' values"
    assert lake.sink(partition_by=by).rewind({A: (OLD, 5)}) == n - 5 + 1
    assert lake.read().places() == Counter({(0, at): 1 for at in range(5)})


@pytest.mark.parametrize(
    ("text", "values"), [("year(t)", {56}), ("month(t)", {672, 673}), ("hour(t)", {490896, 491640})]
)
def test_a_date_and_a_time_have_the_transforms_of_time(lake: Catalog, text: str, values: set[int]) -> None:
    times = pa.array([datetime.datetime(2026, 1, 1), datetime.datetime(2026, 2, 1)], pa.timestamp("us"))
    put(lake.sink(partition_by=[text]), rows([0, 1], t=times), 0)
    assert {next(iter(one.values())) for one in lake.read().files.values()} == values


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (["week(t)"], r"week\(t\) is no transform of Iceberg: give a column, or year\(C\), month"),
        (["bucket(0, t)"], r"bucket\(0, t\) is no transform"),
        (["bucket(t)"], r"bucket\(t\) is no transform"),
        (["day(t)", "hour(t)"], "names t more than once, which pyiceberg does not support"),
    ],
)
def test_transforms_that_are_none_are_named(lake: Catalog, by: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"sink\.partitionBy: {said}"):
        lake.sink(partition_by=by)


def test_a_batch_for_too_many_partitions_is_too_large_and_a_transform_of_another_type_is_named(
    lake: Catalog,
) -> None:
    with pytest.raises(HandlerError, match=r"the column day is string: .* partitioned by month\(day\)"):
        put(lake.sink(partition_by=["month(day)"]), rows([0], day=pa.array(["1"])), 0)
    sink = lake.sink(partition_by=["day"])
    put(sink, rows([0], day=pa.array(["1"])), 0)
    many = rows(range(1, 1002), day=pa.array([str(number) for number in range(1001)]))
    with pytest.raises(BatchTooLargeError, match=r"rows for 1001 partitions of the table \(day\); 1000 is"):
        sink.stage(many, {A: Range(OLD, 1, 1002, 1)})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (pa.array(["\u5317" * 28]), "too long for the name of a folder: place=.* 258 bytes"),
        (pa.array([3_000_000], pa.date32()), "a value by which the table cannot be partitioned: "),
    ],
    ids=["too long", "year 10183"],
)
def test_a_value_that_no_folder_can_be_named_after_is_refused(
    lake: Catalog, value: pa.Array, words: str
) -> None:
    """By the commit that creates the table, and from then on by staging."""
    sink = lake.sink(partition_by=["place"])
    bad = rows([0], place=value)
    with pytest.raises(RecordsError, match=words):
        put(sink, bad, 0)
    with pytest.raises(RecordsError, match=words):
        sink.stage(bad, {A: Range(OLD, 0, 1, None)})
    put(sink, rows([0], place=pa.nulls(1, value.type)), 0)
    assert lake.read().places() == Counter({(0, 0): 1})


# ---- rewind


def test_a_rewind_is_one_commit_and_leaves_rows_without_a_place(lake: Catalog) -> None:
    sink = lake.sink(partition_by=["carrier"])
    stage(sink, {A: 0, B: 0}, RECORDS).publish()
    append(lake)
    before = lake.read()
    assert sink.rewind({A: (OLD, 7), B: (OLD, RECORDS)}) == RECORDS - 7
    table = lake.read()
    expected = ALL - Counter({(0, offset): 1 for offset in range(7, RECORDS)})
    assert table.places() == expected + Counter({(None, None): 1})
    added = {one["snapshot-id"] for one in table.metadata["snapshots"]}
    assert len(added - {snapshot["snapshot-id"] for snapshot in before.metadata["snapshots"]}) == 1


@pytest.mark.long
def test_many_partitions_are_rewound_at_once(lake: Catalog) -> None:
    sink, tps = lake.sink(), [TopicPartition("flights", number) for number in range(1500)]
    table = pa.concat_tables([rows([0, 1], tp.partition) for tp in tps])
    sink.stage(table, {tp: Range(OLD, 0, 2, None) for tp in tps}).publish()
    assert sink.rewind(dict.fromkeys(tps, (OLD, 1))) == 1500
    assert lake.read().places() == Counter({(tp.partition, 0): 1 for tp in tps})


# ---- configuration, errors


@pytest.mark.parametrize("table", ["flights", ".flights", "lake.", "lake. flights", ""])
def test_names_that_name_no_table_are_refused(table: str) -> None:
    with pytest.raises(ConfigError, match=r"sink\.table: .* names no table: give NAMESPACE.TABLE"):
        iceberg_sink("g", table, options={"uri": "sqlite://"})


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({}, "uri", "is missing: give the catalog's address, here or as PYICEBERG_CATALOG__DEFAULT__URI"),
        ({"name": "lake"}, "uri", "PYICEBERG_CATALOG__LAKE__URI"),
        (
            {"type": "hive", "uri": "thrift://h:1"},
            "type",
            "must be rest, sql, glue, not hive: pyiceberg's lock",
        ),
        ({"type": "dynamodb"}, "type", "not dynamodb: whether it refuses the second of two commits"),
        ({"type": "in-memory", "uri": "x"}, "type", "must be rest, sql, glue, not in-memory$"),
        ({"type": "glue"}, "type", r"glue needs boto3, .*: pip install 'slackwater\[glue\]'"),
        ({"uri": "thrift://h:1"}, "uri", "is no URL of a database"),
        ({"type": "sql", "uri": "nonsense"}, "uri", "is no URL of a database"),
        ({"py-catalog-impl": "a.B", "uri": "sqlite://"}, "py-catalog-impl", "must not be set; set type"),
    ],
)
def test_catalogs_that_cannot_be_used_are_named(options: dict[str, str], field: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        iceberg_sink("g", "lake.flights", options=options).marks([A])
    assert caught.value.field == f"sink.options.{field}"


@pytest.mark.parametrize("table", ["lake.raw.flights", "lake.Flights"])
def test_names_that_name_no_table_of_glue_are_refused(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "GLUE", extras.ICEBERG)
    IcebergCatalog("lake.flights", {"type": "glue"})
    with pytest.raises(ConfigError, match=r"sink\.table: .*give DATABASE.TABLE in lower case"):
        IcebergCatalog(table, {"type": "glue"})


def test_a_token_for_which_pyiceberg_waits_without_a_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  default:\n    auth:\n      type: oauth2\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="set credential, oauth2-server-uri and scope") as caught:
        iceberg_sink("g", "lake.flights", options={"uri": "http://127.0.0.1:1"})
    assert caught.value.field == "sink.options.auth.type"


def test_properties_come_from_the_environment_too(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__SECRETS__URI", lake.options["uri"])
    sink = lake.sink(options={"name": "secrets", "warehouse": lake.options["warehouse"]})
    put(sink, rows([0]), 0)
    assert lake.read().places() == Counter({(0, 0): 1})
    named = load_catalog("secrets", **lake.options)
    assert named.table_exists(lake.table), "a SQL catalog's tables have its name"


def test_a_database_is_not_waited_for_for_minutes() -> None:
    url = make_url(_database("postgresql://catalog:hush@db.example/lake?connect_timeout=9"))
    assert url.drivername == "postgresql+psycopg"
    assert dict(url.query) == {"connect_timeout": "9", "tcp_user_timeout": "30000"}
    assert url.password == "hush"


def failing(call: Callable[[], object]) -> str:
    with pytest.raises(SinkError) as caught:
        call()
    text = str(caught.value)
    assert caught.value.__suppress_context__
    assert "\n" not in text
    assert "hush" not in text
    return text


def test_a_catalog_that_is_away_is_named() -> None:
    (port,) = reserve_ports(1)
    for options in (
        {"uri": f"http://127.0.0.1:{port}", "credential": "id:hush-hush"},
        {"uri": f"postgresql://catalog:hush-hush@127.0.0.1:{port}/lake"},
        {"uri": "sqlite:////nowhere/hush/catalog.db", "credential": "hush"},
    ):
        sink = iceberg_sink("g", "lake.flights", options=options)
        for call in (lambda sink=sink: sink.marks([A]), sink.probe):
            text = failing(call)
            assert "cannot connect to the catalog of the Iceberg table lake.flights: " in text
            assert "; check that the catalog and the store can be reached from here" in text


def test_a_catalog_that_takes_no_commits_is_named_before_the_first_batch() -> None:
    """As a catalog that others read by Iceberg's protocol, and that makes the commits itself."""
    config = json.dumps({
        "defaults": {}, "overrides": {},
        "endpoints": ["GET /v1/{prefix}/namespaces/{namespace}/tables/{table}"],
    }).encode()  # fmt: skip

    def answer(client: http.server.BaseHTTPRequestHandler) -> None:
        client.send_response_only(200)
        client.send_header("Content-Length", str(len(config)))
        client.end_headers()
        client.wfile.write(config)

    server = HttpThread(answer)
    try:
        sink = iceberg_sink("g", "lake.flights", options={"uri": f"http://127.0.0.1:{server.port}"})
        text = failing(sink.probe)
    finally:
        server.close()
    assert re.search(
        r"not support endpoint: POST /v1/.*; the catalog takes no commits by this protocol", text
    )


def test_a_warehouse_that_is_missing_or_cannot_be_written_is_named(lake: Catalog, tmp_path: Path) -> None:
    nowhere = lake.sink(options={"uri": lake.options["uri"]})
    (tmp_path / "file").write_text("x")
    blocked = lake.sink(options={**lake.options, "warehouse": f"file://{tmp_path}/file"})
    for sink in (nowhere, blocked):
        assert sink.marks([A]) == {}
        for call in (sink.probe, lambda sink=sink: put(sink, rows([0]), 0)):
            text = failing(call)
            assert text.startswith(f"the sink cannot write to the Iceberg table {lake.table}: ")
            assert re.search("warehouse|Not a directory", text), text
    put(lake.sink(), rows([0]), 0)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("No space left on device (os error 28)", "free some space or set another warehouse"),
        ("Permission denied (os error 13)", "give this user the right to write there"),
        ("AWS Error ACCESS_DENIED during PutObject operation", "check the credentials"),
        ("NotAuthorizedException: Not authorized", "check the credentials"),
        ("The specified bucket does not exist", "create what is missing"),
        ("HTTPConnectionPool: Read timed out", "check that the catalog and the store can be reached"),
        (
            "GET http://127.0.0.1:1/401/x in 403.7µs - HTTP error: client error (Connect)",
            "check that the catalog and the store can be reached",
        ),
        (
            "GET hush-hush/+/credentials/x in 403.7µs - HTTP error: client error (Connect)",
            "check that the catalog and the store can be reached",
        ),
        ("odd\n[SQL: SELECT 1 hush]\n(Background on this error)", "table lake1.flights: odd$"),
    ],
)
def test_an_error_says_what_to_do_and_no_secret(said: str, advice: str) -> None:
    options = {"uri": "sqlite://", "token": "hush-hush/+", "credential": "id:husher"}
    catalog = IcebergCatalog("lake1.flights", options)
    said += " hush-hush/+ hush-hush%2F%2B husher" if "odd" not in said else ""
    text = str(catalog.error("write to", OSError(said)))
    assert re.search(advice, text), text
    assert "hush" not in text
    assert "\n" not in text


def test_a_configuration_makes_the_sink(lake: Catalog) -> None:
    document = {
        "groupId": "g", "topics": ["flights"], "bootstrapServers": "h:1", "handler": "m:f",
        "sink": {
            "format": "iceberg", "table": lake.table, "options": lake.options,
            "partitionBy": ["carrier"], "newColumns": "reject",
        },
    }  # fmt: skip
    sink = make_sink(parse(document))
    assert isinstance(sink, TableSink)
    put(sink, rows([0]), 0)
    assert lake.read().partitioning == [("carrier", "identity")]
    with pytest.raises(RecordsError, match="set sink.newColumns to add"):
        put(sink, rows([1], carrier=pa.array(["UA"]), gate=pa.array(["B4"])), 1)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(ConfigError, match=r"sink\.format: .* pip install 'slackwater\[iceberg\]'"):
        iceberg_sink("g", "lake.flights")


def test_manifests_are_merged(lake: Catalog) -> None:
    """Otherwise each commit would make the next one larger."""
    sink = lake.sink()
    put(sink, rows([0]), 0)
    with lake.other().transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for start in range(1, 8):
        put(sink, rows([start]), start)
    table = lake.read()
    assert len(table.files) == 8
    assert table.manifests <= 3
    assert table.places() == Counter({(0, offset): 1 for offset in range(8)})
