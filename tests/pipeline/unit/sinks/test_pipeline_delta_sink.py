"""A Delta table: what is in it, whoever writes it and wherever a writer is stopped.

The tables are read by :mod:`tests.support.delta`, which knows nothing of deltalake.
"""

from __future__ import annotations

import datetime
import decimal
import random
import re
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from slackwater.pipeline import make_sink
from slackwater.pipeline.sinks.delta import table as delta_table
from slackwater.pipeline.sinks.delta.log import TransactionLog
from slackwater.pipeline.sinks.delta.marks import marks_of, versions_of
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.delta.store import DeltaStore
from slackwater.pipeline.sinks.marks import MarkKey
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import BatchTooLargeError, ConfigError, HandlerError, RecordsError, SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support import sinks, sweeps
from tests.support.delta import DeltaFolder
from tests.support.sinks import OLD, A, B, marks, put, rows

RECORDS = 20
"""Of each partition."""
ALL = sweeps.each_once(RECORDS)


stage, write_all = partial(sinks.stage, records=RECORDS), partial(sinks.write_all, records=RECORDS)


class Folders:
    """A table in a folder of its own for each turn of a sweep."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.begin()

    def begin(self) -> None:
        self._folder = self._scratch / uuid.uuid4().hex

    def sink(self) -> TableSink:
        return delta_sink("g", str(self._folder))

    def read(self) -> DeltaFolder:
        return DeltaFolder(self._folder)


# ---- exactly once


def test_a_batch_is_one_file_whatever_its_partitions(tmp_path: Path) -> None:
    stage(delta_sink("g", f"file://{tmp_path}/table"), {A: 0, B: 0}).publish()
    assert len(DeltaFolder(tmp_path / "table").files) == 1
    assert marks(delta_sink("g", str(tmp_path / "table"))) == {A: 5, B: 5}
    assert DeltaTable(tmp_path / "table").to_pyarrow_dataset().to_table().num_rows == 10


def test_workers_that_create_the_table_at_once_write_each_record_once(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    for _ in range(3):
        folders.begin()
        sweeps.create_at_once(folders)


# ---- what others do to the table


def test_marks_are_found_after_checkpoints_and_after_the_log_was_cleaned_up(tmp_path: Path) -> None:
    sink, other = delta_sink("g", str(tmp_path)), delta_sink("h", str(tmp_path))
    stage(other, {B: 0}).publish()
    stage(sink, {A: 0}).publish()
    log = tmp_path / "_delta_log"
    for start in range(5, RECORDS, 5):
        table = DeltaTable(tmp_path)
        table.create_checkpoint()
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
        table.cleanup_metadata()
        stage(sink, {A: start}).publish()
        assert marks(delta_sink("g", str(tmp_path))) == marks(sink) == {A: start + 5, B: 0}
        assert not (log / f"{0:020d}.json").exists()
    assert other.marks([B]) == {B: {OLD: 5}}, "it last read a version that is gone"
    stage(other, {B: 5}).publish()
    assert DeltaFolder(tmp_path).places() == Counter(
        [*((0, offset) for offset in range(RECORDS)), *((1, offset) for offset in range(10))]
    )


@pytest.mark.parametrize("kind", ["no hint", "old hint", "broken hint", "two parts", "v2"])
def test_other_checkpoints_are_read(tmp_path: Path, kind: str) -> None:
    """Those of other writers, beside a hint that is lost or stale."""
    sink = delta_sink("g", str(tmp_path))
    stage(sink, {A: 0}).publish()
    log = tmp_path / "_delta_log"
    hint = log / "_last_checkpoint"
    DeltaTable(tmp_path).create_checkpoint()
    first = hint.read_text()
    stage(sink, {A: 5, B: 0}).publish()
    DeltaTable(tmp_path).create_checkpoint()
    version = DeltaFolder(tmp_path).version
    stem = f"{version:020d}.checkpoint"
    for file in log.glob("*.json"):
        if int(file.stem) < version:
            file.unlink()
    checkpoint = log / f"{stem}.parquet"
    if kind == "no hint":
        hint.unlink()
    elif kind == "old hint":
        hint.write_text(first)
        (log / f"{version - 1:020d}.checkpoint.parquet").unlink()
    elif kind == "broken hint":
        hint.write_text("{")
    else:
        content = pq.read_table(checkpoint)
        checkpoint.unlink()
        hint.unlink()
        if kind == "v2":
            pq.write_table(content, log / f"{stem}.80a083e8-7026-4e79-81be-64bd76c43a11.parquet")
        else:
            pq.write_table(content.slice(0, 2), log / f"{stem}.0000000001.0000000002.parquet")
            pq.write_table(content.slice(2), log / f"{stem}.0000000002.0000000002.parquet")
            pq.write_table(content.slice(0, 2), log / f"{stem}.0000000001.0000000003.parquet")
    read = TransactionLog(DeltaStore(str(tmp_path), {}).files())
    read.read_to(version)
    assert sorted(read.marks["g"].values()) == [5, 10]
    if kind in ("no hint", "broken hint", "two parts"):
        assert marks(delta_sink("g", str(tmp_path))) == {A: 10, B: 5}


def test_compaction_and_vacuum_at_any_time_change_nothing(tmp_path: Path) -> None:
    sink, rng = delta_sink("g", str(tmp_path)), random.Random(1)
    at = marks(sink)
    while any(start < RECORDS for start in at.values()):
        staged = stage(sink, at, rng.randrange(1, 4))
        if any(at.values()):
            DeltaTable(tmp_path).optimize.compact()
            DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        staged.publish()
        at = marks(sink)
    DeltaTable(tmp_path).optimize.compact()
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    table = DeltaFolder(tmp_path)
    assert table.places() == ALL
    assert len(table.files) == len(list(tmp_path.glob("*.parquet"))) == 1
    assert marks(delta_sink("g", str(tmp_path))) == {A: RECORDS, B: RECORDS}


def between(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Calls ``call`` once, when the next batch is about to be written."""
    write = deltalake.write_deltalake

    def once(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(deltalake, "write_deltalake", write)
        call()
        write(*args, **options)

    monkeypatch.setattr(deltalake, "write_deltalake", once)


@pytest.mark.parametrize("change", ["deletes", "adds a column", "sets a property", "compacts", "appends"])
def test_a_commit_of_another_process_in_between_is_borne(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    sink = delta_sink("g", str(tmp_path))
    stage(sink, {A: 0}).publish()
    table = DeltaTable(tmp_path)
    changes: dict[str, Callable[[], object]] = {
        "deletes": lambda: table.delete('"offset" = 0'),
        "adds a column": lambda: put(
            delta_sink("h", str(tmp_path)), rows([7], 1, delay=pa.array([1.5])), 7, B
        ),
        "sets a property": lambda: table.alter.set_table_properties({"delta.appendOnly": "true"}),
        "compacts": table.optimize.compact,
        "appends": lambda: put(delta_sink("h", str(tmp_path)), rows([7], 1), 7, B),
    }
    between(monkeypatch, changes[change])
    stage(sink, {A: 5}).publish()
    expected = Counter({(0, offset): 1 for offset in range(change == "deletes", 10)})
    expected.update([(1, 7)] if change in ("adds a column", "appends") else [])
    assert DeltaFolder(tmp_path).places() == expected
    assert marks(sink)[A] == 10


def test_a_column_that_another_process_adds_in_between_keeps_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = delta_sink("g", str(tmp_path)), delta_sink("h", str(tmp_path))
    put(sink, rows([0]), 0)
    between(monkeypatch, lambda: put(other, rows([0], 1, delay=pa.array([1.5])), 0, B))
    put(sink, rows([1], delay=pa.array([2])), 1)
    between(monkeypatch, lambda: put(other, rows([1], 1, gate=pa.array(["B4"])), 1, B))
    with pytest.raises(RecordsError, match="the column gate of the table is string"):
        put(sink, rows([2], gate=pa.array([4])), 2)
    table = DeltaFolder(tmp_path)
    assert table.columns["delay"] == "double"
    assert sorted(row["delay"] for row in table.rows() if row["delay"] is not None) == [1.5, 2.0]
    assert marks(sink)[A] == 2


def test_commits_that_always_come_first_end_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise CommitFailedError("Metadata changed since last commit.")

    sink = delta_sink("g", str(tmp_path))
    stage(sink, {A: 0}).publish()
    monkeypatch.setattr(deltalake, "write_deltalake", refused)
    with pytest.raises(SinkError, match="other commits came first 20 times .Metadata changed"):
        stage(sink, {A: 5}).publish()


def test_a_commit_that_was_made_though_it_seemed_refused_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that has lost its answer refuses the second try, as a commit with that number is there."""
    write = deltalake.write_deltalake

    def refused(*args: Any, **options: Any) -> None:
        write(*args, **options)
        raise CommitFailedError("Concurrent transaction failed.")

    sink = delta_sink("g", str(tmp_path))
    stage(sink, {A: 0}).publish()
    monkeypatch.setattr(deltalake, "write_deltalake", refused)
    stage(sink, {A: 5}).publish()
    monkeypatch.undo()
    stage(sink, {A: 10}).publish()
    assert DeltaFolder(tmp_path).places() == Counter({(0, offset): 1 for offset in range(15)})


def test_another_table_in_the_same_place_is_noticed(tmp_path: Path) -> None:
    """deltalake would write commit 5 into its log, which has only 2."""
    folder = tmp_path / "table"
    sink = delta_sink("g", str(folder))
    for start in range(0, RECORDS, 5):
        stage(sink, {A: start}).publish()
    shutil.rmtree(folder)
    with pytest.raises(SinkFencedError, match=r"its rows are there up to None, and this worker knows of 19"):
        stage(sink, {A: RECORDS - 1}).publish()
    assert not folder.exists()
    stage(delta_sink("h", str(folder)), {B: 0}).publish()
    with pytest.raises(SinkFencedError):
        stage(sink, {A: RECORDS - 1}).publish()
    assert marks(sink) == {A: 0, B: 0}
    stage(sink, {A: 0}).publish()
    assert sum(DeltaFolder(folder).places().values()) == 10


def test_a_table_that_forgets_transactions_is_refused(tmp_path: Path) -> None:
    stage(delta_sink("g", str(tmp_path)), {A: 0}).publish()
    DeltaTable(tmp_path).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 7 days"}
    )
    with pytest.raises(SinkError, match=r"delta\.setTransactionRetentionDuration.*UNSET TBLPROPERTIES"):
        delta_sink("g", str(tmp_path)).marks([A])


def test_a_table_that_others_have_made_is_appended_to(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("day", pa.date32()), ("offset", pa.int64()), ("partition", pa.int64()),
            pa.field("topic", pa.string(), nullable=False), ("delay", pa.float32()),
        ]
    )  # fmt: skip
    table = DeltaTable.create(tmp_path, schema, partition_by=["day"])
    table.alter.add_constraint({"early": '"offset" < 3'})
    day = pa.array([datetime.date(2026, 1, 1)])
    sink = delta_sink("g", str(tmp_path))
    put(sink, rows([0], day=day, delay=pa.array([1])), 0)
    (row,) = DeltaFolder(tmp_path).rows()
    assert row == {"day": "2026-01-01", "offset": 0, "partition": 0, "topic": "flights", "delay": 1.0}
    with pytest.raises(RecordsError, match="constraint early, offset < 3") as caught:
        put(sink, rows([3], day=day), 3)
    assert "flights" not in str(caught.value).replace(str(tmp_path), ""), "no rows in messages"
    assert marks(sink)[A] == 1


# ---- the schema


def test_a_column_keeps_its_type(tmp_path: Path) -> None:
    sink, other = delta_sink("g", str(tmp_path)), delta_sink("g", str(tmp_path))
    put(sink, rows([0], delay=pa.array([1], pa.int64())), 0)
    put(other, rows([1], delay=pa.array([2.0], pa.float64())), 1)
    put(other, rows([2], carrier=pa.array(["UA"])), 2)
    put(sink, rows([3], delay=pa.array([3], pa.int8()), carrier=pa.array(["AA"])), 3)
    for bad in (pa.array([1.5]), pa.array(["1"]), pa.array([b"1"])):
        with pytest.raises(RecordsError, match="the column delay of the table is int64"):
            put(other, rows([4], delay=bad), 4)
    table = DeltaFolder(tmp_path)
    assert table.columns == {
        "topic": "string", "partition": "integer", "offset": "long", "delay": "long", "carrier": "string",
    }  # fmt: skip
    by_offset = {row["offset"]: (row["delay"], row["carrier"]) for row in table.rows()}
    assert by_offset == {0: (1, None), 1: (2, None), 2: (None, "UA"), 3: (3, "AA")}


TYPES: list[tuple[pa.Array, str | None, object]] = [
    (pa.array([255], pa.uint8()), "short", 255),
    (pa.array([65535], pa.uint16()), "integer", 65535),
    (pa.array([2**32 - 1], pa.uint32()), "long", 2**32 - 1),
    (pa.array([2**63 - 1], pa.uint64()), "long", 2**63 - 1),
    (pa.array([1_000], pa.timestamp("ns")), "timestamp_ntz", datetime.datetime(1970, 1, 1, 0, 0, 0, 1)),
    (
        pa.array([1], pa.timestamp("s", "Europe/Berlin")),
        "timestamp",
        datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
    ),
    (pa.array([86_400_000], pa.date64()), "date", datetime.date(1970, 1, 2)),
    (pa.array([1.5], pa.float16()), "float", 1.5),
    (pa.array([7], pa.int32()).cast(pa.decimal256(40, 2)).cast(pa.decimal256(12, 2)), "decimal(12,2)", 7),
    (pa.array(["a"]).dictionary_encode(), "string", "a"),
    (pa.array([b"ab"], pa.binary(2)), "binary", b"ab"),
    (pa.array(["a"], pa.string_view()), "string", "a"),
    (pa.array([[1, 2]], pa.list_(pa.uint8(), 2)), None, [1, 2]),
    (pa.array([{"a": 200}], pa.struct([("a", pa.uint8())])), None, {"a": 200}),
    (pa.array([[("k", 200)]], pa.map_(pa.string(), pa.uint8())), None, [("k", 200)]),
]
"""Values of a type of Arrow's, Delta's type unless it is nested, and the value that is read."""


def test_types_become_those_of_delta_without_loss(tmp_path: Path) -> None:
    columns = {f"column{n}": array for n, (array, _, _) in enumerate(TYPES)}
    sink = delta_sink("g", str(tmp_path))
    put(sink, rows([0], **columns), 0)
    put(sink, rows([1], **columns), 1)
    table = DeltaFolder(tmp_path)
    for name, (array, kind, stored) in zip(columns, TYPES, strict=True):
        assert kind in (None, table.columns[name]), array.type
        assert [row[name] for row in table.rows()] == [stored, stored], array.type


@pytest.mark.parametrize(
    "array",
    [
        pa.array([2**63], pa.uint64()),
        pa.array([1], pa.timestamp("ns")),
        pa.array([2**62], pa.timestamp("s")),
        pa.array([1], pa.time32("s")),
        pa.array([1], pa.duration("us")),
        pa.array([[1]], pa.list_(pa.duration("us"))),
        pa.array([None], pa.month_day_nano_interval()),
        pa.array([1], pa.int32()).cast(pa.decimal256(40, 2)),
    ],
    ids=lambda array: str(array.type),
)
def test_values_that_delta_cannot_hold_are_errors_of_their_records(tmp_path: Path, array: pa.Array) -> None:
    sink = delta_sink("g", str(tmp_path))
    with pytest.raises(RecordsError, match="the table cannot hold the column value"):
        sink.stage(rows([0], value=array), {A: Range(OLD, 0, 1, None)})
    assert list(tmp_path.iterdir()) == []


def test_names_that_delta_cannot_have_are_errors_of_their_records(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path))
    put(sink, rows([0], Value=pa.array([1])), 0)
    bad = {
        "value": pa.array([1]), "OFFSET": pa.array([1]), "a b": pa.array([1]), "": pa.array([1]),
        "nested": pa.array([{"a": 1, "A": 2}]), "list": pa.array([[{"x=y": 1}]]),
    }  # fmt: skip
    for name, array in bad.items():
        with pytest.raises(RecordsError, match=r"upper from lower|cannot have a column"):
            put(sink, rows([1], **{name: array}), 1)
    put(sink, rows([1], **{"größe.cm-1/2": pa.array([1])}), 1)
    assert list(DeltaFolder(tmp_path).columns) == ["topic", "partition", "offset", "Value", "größe.cm-1/2"]


# ---- partition columns


def test_rows_are_partitioned(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), partition_by=["day", "carrier"])
    days = pa.array([datetime.date(2026, 1, day) for day in (1, 1, 2)])
    put(sink, rows([0, 1, 2], day=days, carrier=pa.array(["U/A", None, "U/A"])), 0)
    put(sink, rows([]), 3)
    put(delta_sink("g", str(tmp_path)), rows([4], day=days[:1], carrier=pa.array(["U/A"])), 4)
    table = DeltaFolder(tmp_path)
    assert {(row["offset"], row["day"], row["carrier"]) for row in table.rows()} == {
        (0, "2026-01-01", "U/A"), (1, "2026-01-01", None), (2, "2026-01-02", "U/A"), (4, "2026-01-01", "U/A"),
    }  # fmt: skip
    assert table.metadata["partitionColumns"] == ["day", "carrier"]
    assert marks(sink)[A] == 5
    assert sink.rewind({A: (OLD, 1)}) == 3
    assert DeltaFolder(tmp_path).places() == Counter({(0, 0): 1})


@pytest.mark.parametrize("settings", [{}, {"mode": "upsert", "key": ["id"]}], ids=["append", "upsert"])
@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_delta_stores_as_null_is_refused(tmp_path: Path, text: str, settings: Any) -> None:
    sink = delta_sink("g", str(tmp_path), partition_by=["id"], **settings)
    with pytest.raises(RecordsError, match=r"in the column id, .* readers take its folder for null"):
        put(sink, rows([0, 1], id=pa.array(["a", text])), 0)
    put(sink, rows([0], id=pa.array(["a"])), 0)


@pytest.mark.parametrize(
    ("longest", "too_long"),
    [("\u5317" * 27 + "abcdef", "\u5317" * 28), (1e248, 1e249)],
    ids=["text", "a number in digits"],
)
def test_a_value_that_no_folder_can_be_named_after_is_refused(
    tmp_path: Path, longest: Any, too_long: Any
) -> None:
    sink = delta_sink("g", str(tmp_path), partition_by=["place"])
    for offset in (0, 1):  # without a table, and with one
        with pytest.raises(RecordsError, match="too long for the name of a folder: place=.* 255 are"):
            sink.stage(rows([offset], place=pa.array([too_long])), {A: Range(OLD, offset, offset + 1, None)})
        put(sink, rows([offset], place=pa.array([longest])), offset)


def test_a_decimal_is_no_partition_column(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), partition_by=["day"])
    with pytest.raises(HandlerError, match="the column day is decimal.*cannot be partitioned by it"):
        put(sink, rows([0], day=pa.array([decimal.Decimal("-0.01")])), 0)


def test_a_batch_for_too_many_partitions_is_too_large(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), partition_by=["number"])
    with pytest.raises(BatchTooLargeError, match=r"1001 partitions of the table \(number\)"):
        put(sink, rows(range(1001), number=pa.array(range(1001))), 0)


# ---- rewind


# ---- paths, options, errors


@pytest.mark.parametrize("name", ["a b", "a#b?c", "ü", "a:b", "deep/er"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    put(delta_sink("g", str(tmp_path / name)), rows([0]), 0)
    assert DeltaFolder(tmp_path / name).places() == Counter({(0, 0): 1})


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sink = delta_sink("g", "out")
    monkeypatch.chdir("/")
    put(sink, rows([0]), 0)
    assert DeltaFolder(tmp_path / "out").version == 1


@pytest.mark.parametrize(
    "path", ["http://host/x", "file:/x", "file://host/x", "s3:/bucket", "s3:///x", "ftp://h/x", "/data/100%"]
)
def test_paths_that_cannot_be_used_are_named(path: str) -> None:
    with pytest.raises(ConfigError, match="sink.path: ") as caught:
        delta_sink("g", path)
    assert caught.value.field == "sink.path"


@pytest.mark.parametrize(
    "path", ["s3://b/k", "s3a://b/k/", "gs://b", "az://c/k", "abfss://c@a.dfs.core/k", "hdfs://h:1/k"]
)
def test_addresses_of_stores_are_taken(path: str) -> None:
    delta_sink("g", path, options={"timeout": "9s"})


def test_an_option_that_breaks_exactly_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_S3_ALLOW_UNSAFE_RENAME", "mount_allow_unsafe_rename"):
        with pytest.raises(ConfigError, match=f"sink.options: {name} must not be set: .* rows are lost"):
            delta_sink("g", "s3://b/k", options={name: "true"})
        delta_sink("g", "s3://b/k", options={name: "false"})
    monkeypatch.setenv("MOUNT_ALLOW_UNSAFE_RENAME", "1")
    with pytest.raises(ConfigError, match="environment: MOUNT_ALLOW_UNSAFE_RENAME must not be set"):
        delta_sink("g", "/data/out")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Generic LocalFileSystem error: No space left on device (os error 28)", "free some space"),
        ("Permission denied (os error 13)", "give this user the right to write there"),
        ("Server returned 403 Forbidden: <Code>AccessDenied</Code>", "check the credentials"),
        ("404: <Code>NoSuchBucket</Code>", "create the bucket"),
        ("error sending request: tcp connect error: deadline", "check that the store can be reached"),
        ("\x1b[31m↳\x1b[0m odd\n   0: <unknown>\n   1: _PyEval", "table: odd$"),
    ],
)
def test_an_error_says_what_to_do_and_no_storage_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, advice: str
) -> None:
    secrets = {"key": "hush-hush/+", "sas": "hush"}
    said += " hush-hush/+ hush-hush%2F%2B ?sig=abc%2B&x=1" if "odd" not in said else ""

    def fails(*args: Any, **options: Any) -> None:
        raise OSError(said)

    sink = delta_sink("g", str(tmp_path / "table"), options=secrets)
    put(sink, rows([0]), 0)
    staged = stage(sink, {A: 1})
    monkeypatch.setattr(deltalake, "write_deltalake", fails)
    with pytest.raises(
        SinkError, match=f"the sink cannot write to the Delta table {tmp_path}/table: .*"
    ) as caught:
        staged.publish()
    assert caught.value.__suppress_context__
    text = str(caught.value)
    assert re.search(advice, text), text
    assert "hush" not in text
    assert "sig=abc" not in text
    assert "\n" not in text


def test_a_path_that_is_a_file_is_the_sinks_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    sink = delta_sink("g", str(tmp_path / "file"))
    for call in (lambda: put(sink, rows([0]), 0), sink.probe):
        with pytest.raises(SinkError, match=r"the sink cannot .* give the sink a path that is a folder"):
            call()


def test_a_configuration_makes_the_sink(tmp_path: Path) -> None:
    document = {
        "groupId": "g", "topics": ["flights"], "bootstrapServers": "h:1", "handler": "m:f",
        "sink": {
            "format": "delta", "path": str(tmp_path), "options": {"timeout": "9s"},
            "partitionBy": ["carrier"], "newColumns": "reject",
        },
    }  # fmt: skip
    sink = make_sink(parse(document))
    assert isinstance(sink, TableSink)
    put(sink, rows([0]), 0)
    assert DeltaFolder(tmp_path).metadata["partitionColumns"] == ["carrier"]
    with pytest.raises(RecordsError, match="set sink.newColumns to add"):
        put(sink, rows([1], carrier=pa.array(["UA"]), gate=pa.array(["B4"])), 1)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"sink\.format: .* pip install 'slackwater\[delta\]'"):
        delta_sink("g", "/data/out")


def test_expired_commits_are_looked_for_once_in_a_hundred_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "_CLEAN_UP_EVERY", 3)
    hooks = []
    made = deltalake.PostCommitHookProperties

    def noted(cleanup_expired_logs: bool | None) -> deltalake.PostCommitHookProperties:
        hooks.append(cleanup_expired_logs)
        return made(cleanup_expired_logs=cleanup_expired_logs)

    monkeypatch.setattr(deltalake, "PostCommitHookProperties", noted)
    sink = delta_sink("g", str(tmp_path))
    for start in range(6):
        put(sink, rows([start]), start)
    assert hooks == [False, False, None, False, False, None]


def test_a_transaction_of_another_program_is_no_mark() -> None:
    ours = versions_of("g", {MarkKey("flights", OLD, 0): 5})
    others = {"slackwater/g": 1, "slackwater/g/flights/id/of-another": 2, "other/g/flights/id/0": 3}
    assert marks_of({**others, **ours}) == {"g": {MarkKey("flights", OLD, 0): 5}}
