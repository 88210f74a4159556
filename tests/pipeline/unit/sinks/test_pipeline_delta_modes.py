"""A Delta table whose rows replace others or are added up, whoever writes it and wherever a writer stops.

The tables are read by :mod:`tests.support.delta`, which knows nothing of deltalake, or by pyarrow.
"""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableMerger

from slackwater.pipeline import make_sink
from slackwater.pipeline.sinks.delta import sink as delta_module
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import ConfigError, HandlerError, RecordsError, SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support import sinks
from tests.support.delta import DeltaFolder
from tests.support.sinks import (
    MODES,
    OLD,
    SUMS,
    A,
    B,
    marks,
    mode_rows,
    mode_table,
    once,
    put,
    rows,
    sums_by_id,
)

RECORDS = 8
"""Of each partition."""
KEYED = ["changes", "merge"]
stage = partial(sinks.stage, records=RECORDS)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the tries of a merge."""
    monkeypatch.setattr(delta_module, "_LONGEST_WAIT_S", 0.0)


def made(folder: Path, mode: str, group: str = "g") -> TableSink:
    return delta_sink(group, str(folder), **MODES[mode])


def writes(mode: str) -> Callable[..., None]:
    return partial(sinks.write_all, records=RECORDS, make=partial(mode_rows, mode=mode))


def check(folder: Path, mode: str) -> None:
    """Whether the table holds each record once: as a computation over all of them says."""
    value = ("value", "offset") if mode == "changes" else ("total", "least", "most", "records")
    stored = [tuple(row[name] for name in ("partition", "key", *value)) for row in DeltaFolder(folder).rows()]
    assert sorted(stored) == mode_table(mode, RECORDS)


def stored(folder: Path, key: str = "id") -> dict[Any, dict[str, Any]]:
    """The table's rows by key, each of which is there once."""
    read = DeltaFolder(folder).rows()
    by_key = {row[key]: row for row in read}
    assert len(by_key) == len(read)
    return by_key


# ---- exactly once


@pytest.mark.parametrize("mode", KEYED)
def test_a_key_that_two_workers_write_at_once_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Their partitions, and so their marks, are not the same. deltalake 1.6 overlooks such a key if it is a
    timestamp without time zone that differs by microseconds: it must not try again by itself."""
    settings = {**MODES[mode], "key": ["id"]}
    days = [datetime.datetime(2026, 1, 1, 0, 0, 0, micros) for micros in (1, 2)]
    values = {"id": pa.array(days[1:]), "total": pa.array([1]), "least": pa.array([1]), "most": pa.array([1])}
    for folder, at_first in ((tmp_path / "new", False), (tmp_path / "old", True)):
        first, second = delta_sink("g", str(folder), **settings), delta_sink("g", str(folder), **settings)
        put(first, rows([0], **{**values, "id": pa.array([days[at_first]])}), 0)
        with monkeypatch.context() as patch:
            outcomes = once(patch, lambda second=second: put(second, rows([0], 1, **values), 0, B))
            put(first, rows([1], **values), 1)
        assert [type(outcome) for outcome in outcomes] == [type(None), CommitFailedError, type(None)]
        row = stored(folder)[days[1]]
        assert row["partition" if mode == "changes" else "records"] == (
            0 if mode == "changes" else 2 + at_first
        )
        assert marks(first) == {A: 2, B: 1}


@pytest.mark.parametrize("mode", KEYED)
@pytest.mark.parametrize("change", ["deletes", "adds a column", "compacts", "appends", "vacuums"])
def test_a_commit_of_another_process_in_between_is_borne(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, change: str
) -> None:
    sink, write = made(tmp_path, mode), partial(mode_rows, mode=mode)
    stage(sink, {A: 0, B: 0}, make=write).publish()
    table = DeltaTable(tmp_path)
    extra = pa.table({"partition": pa.array([9], pa.int32()), "key": pa.array([9], pa.int32())})
    changes: dict[str, Callable[[], object]] = {
        "deletes": lambda: table.delete('"key" = 9'),
        "adds a column": lambda: deltalake.write_deltalake(
            table, extra.append_column("gate", pa.array(["B4"])), mode="append", schema_mode="merge"
        ),
        "compacts": table.optimize.compact,
        "appends": lambda: deltalake.write_deltalake(table, extra, mode="append", schema_mode="merge"),
        "vacuums": lambda: table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
    }
    once(monkeypatch, changes[change])
    stage(sink, {A: 5, B: 5}, make=write).publish()
    DeltaTable(tmp_path).delete('"key" = 9')
    check(tmp_path, mode)


def test_others_that_come_first_each_time_end_the_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = made(tmp_path, "changes")
    put(sink, mode_rows([0], 0, "changes"), 0)
    tries: list[int] = []

    def refused(_: TableMerger) -> None:
        tries.append(1)
        raise CommitFailedError("Failed to commit transaction: 0")

    monkeypatch.setattr(TableMerger, "execute", refused)
    with pytest.raises(
        SinkError, match=r"other commits came first 50 times .*; use fewer workers or a longer"
    ):
        put(sink, mode_rows([1], 0, "changes"), 1)
    assert len(tries) == 50
    assert marks(sink)[A] == 1


@pytest.mark.parametrize("mode", KEYED)
def test_a_commit_whose_answer_is_lost_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    sink, execute = made(tmp_path, mode), TableMerger.execute

    def lost(self: TableMerger) -> None:
        monkeypatch.setattr(TableMerger, "execute", execute)
        execute(self)
        raise CommitFailedError("Failed to commit transaction: 0")

    monkeypatch.setattr(TableMerger, "execute", lost)
    stage(sink, {A: 0, B: 0}, RECORDS, make=partial(mode_rows, mode=mode)).publish()
    check(tmp_path, mode)


@pytest.mark.parametrize("mode", KEYED)
@pytest.mark.parametrize("empty", [pa.table({}), rows([]).select(["topic", "partition", "offset"])])
def test_a_batch_without_rows_moves_the_mark(tmp_path: Path, mode: str, empty: pa.Table) -> None:
    """The table is created by rows: only they have the columns of the key."""
    sink, write = made(tmp_path, mode), partial(mode_rows, mode=mode)
    sink.stage(empty, {B: Range(OLD, 0, 1, None)}).publish()
    assert not (tmp_path / "_delta_log").exists()
    stage(sink, {A: 0}, RECORDS, make=write).publish()
    sink.stage(empty, {A: Range(OLD, RECORDS, RECORDS + 2, RECORDS)}).publish()
    sink.stage(write([], 0), {A: Range(OLD, RECORDS + 2, RECORDS + 3, RECORDS + 2)}).publish()
    assert marks(made(tmp_path, mode))[A] == RECORDS + 3
    with pytest.raises(SinkFencedError):
        sink.stage(empty, {A: Range(OLD, RECORDS, RECORDS + 9, RECORDS)}).publish()


# ---- upsert


def test_the_last_row_of_a_key_counts_by_offset_within_a_partition(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), mode="upsert", key=["id"])
    mixed = rows([3, 0, 2, 1, 1], id=pa.array(["a", "a", "a", "b", "b"]), v=pa.array([3, 0, 2, 10, 11]))
    put(sink, mixed, 0)
    assert {key: (row["v"], row["offset"]) for key, row in stored(tmp_path).items()} == {
        "a": (3, 3),
        "b": (11, 1),
    }
    put(sink, rows([5], id=pa.array(["a"])), 5)
    assert {key: row["v"] for key, row in stored(tmp_path).items()} == {"a": None, "b": 11}, "as a whole"


def test_across_partitions_the_last_commit_counts_and_within_one_the_higher_partition(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), mode="upsert", key=["id"])

    def batch(*places: tuple[int, int]) -> pa.Table:
        return pa.concat_tables(
            [rows([offset], partition, id=pa.array(["a"])) for partition, offset in places]
        )

    sink.stage(batch((1, 0), (0, 7)), {A: Range(OLD, 7, 8, None), B: Range(OLD, 0, 1, None)}).publish()
    assert (stored(tmp_path)["a"]["partition"], stored(tmp_path)["a"]["offset"]) == (1, 0)
    sink.stage(batch((0, 8)), {A: Range(OLD, 8, 9, 8)}).publish()
    assert (stored(tmp_path)["a"]["partition"], stored(tmp_path)["a"]["offset"]) == (0, 8)


def test_new_columns_are_added_or_rejected(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), mode="upsert", key=["id"])
    put(sink, rows([0, 1], id=pa.array([1, 2]), v=pa.array([1, 2])), 0)
    put(sink, rows([2, 3], id=pa.array([2, 3]), w=pa.array([{"a": 5}, None])), 2)
    assert {key: (row["v"], row["w"]) for key, row in stored(tmp_path).items()} == {
        1: (1, None),
        2: (None, {"a": 5}),
        3: (None, None),
    }
    strict = delta_sink("g", str(tmp_path), mode="upsert", key=["id"], new_columns=False)
    with pytest.raises(RecordsError, match="the rows have columns x, which the table lacks"):
        put(strict, rows([4], id=pa.array([1]), x=pa.array([1])), 4)


def test_a_row_that_does_not_fit_is_an_error_also_if_another_one_replaces_it(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), mode="upsert", key=["id"])
    put(sink, rows([0], id=pa.array([1]), v=pa.array([1])), 0)
    with pytest.raises(RecordsError, match="the column v of the table is int64"):
        put(sink, rows([1, 2], id=pa.array([1, 1]), v=pa.array([1.5, 2.0])), 1)


def test_a_row_may_move_to_another_folder(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), mode="upsert", key=["id"], partition_by=["day"])
    put(sink, rows([0, 1], id=pa.array([1, 2]), day=pa.array(["mon", "mon"])), 0)
    put(sink, rows([2], id=pa.array([2]), day=pa.array(["tue"])), 2)
    put(sink, rows([3], id=pa.array([1]), day=pa.nulls(1, pa.string())), 3)
    assert {key: row["day"] for key, row in stored(tmp_path).items()} == {1: None, 2: "tue"}


def test_files_without_a_key_of_the_batch_stay_as_they_are(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), mode="upsert", key=["id"])
    put(sink, rows(range(100), id=pa.array(range(100))), 0)
    put(sink, rows(range(100, 200), id=pa.array(range(100, 200))), 100)
    before = set(DeltaFolder(tmp_path).files)
    put(sink, rows([200], id=pa.array([150])), 200)
    assert len(before & set(DeltaFolder(tmp_path).files)) == 1
    assert len(stored(tmp_path)) == 200


INSTANT = datetime.datetime(2026, 2, 28, 23, 59, 59, tzinfo=datetime.UTC)
KEY_VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, 0, 1, 127]),
    "int64": (pa.int64(), [-(2**63), -1, 2**53, 2**53 + 1, 2**63 - 1]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "text": (pa.string(), ["", " ", "a", "A", "a'b", 'a"b', "ü€😀", "x" * 99, "x" * 98 + "y", "%_\\"]),
    "code": (pa.dictionary(pa.int8(), pa.string()), ["x", "y", "z"]),
    "bytes": (pa.binary(), [b"", b"\0", b"\xff", b"a"]),
    "bool": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(2026, 2, 28), datetime.date(9999, 12, 31)]),
    "instant": (pa.timestamp("us", "UTC"), [INSTANT.replace(microsecond=n) for n in (0, 1, 999, 1000)]),
    "local": (pa.timestamp("us"), [INSTANT.replace(microsecond=n, tzinfo=None) for n in (0, 1, 999, 1000)]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        pytest.param(kind, by, marks=() if kind == "text" else pytest.mark.long)
        for by in ((), ("id",))
        for kind in KEY_VALUES
        if kind != "bytes" or not by
    ],
    ids=lambda value: value if isinstance(value, str) else "partitioned" if value else "plain",
)
def test_keys_of_any_type_are_found_again(tmp_path: Path, kind: str, by: tuple[str, ...]) -> None:
    arrow_type, values = KEY_VALUES[kind]
    values = [value for value in values if value != "" or not by]
    sink = delta_sink("g", str(tmp_path), mode="upsert", key=["id", "n"], partition_by=by)
    rng, at, model = random.Random(3), 0, dict[tuple[Any, int], int]()
    for _ in range(4):
        keys = [(rng.choice(values), rng.randrange(2)) for _ in range(rng.randrange(1, 7))]
        offsets = range(at, at + len(keys))
        ids = pa.array([key for key, _ in keys], arrow_type)
        at = put(sink, rows(offsets, id=ids, n=pa.array([n for _, n in keys]), v=pa.array(offsets)), at)
        model.update(zip(keys, offsets, strict=True))
    read = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert sorted((str(row["id"]), row["n"], row["v"]) for row in read) == sorted(
        (str(key), n, value) for (key, n), value in model.items()
    )


@pytest.mark.parametrize("kind", KEY_VALUES)
def test_keys_of_any_type_are_found_in_their_files(tmp_path: Path, kind: str) -> None:
    """Each value has a file of its own, whose least and greatest value are all that the log tells."""
    arrow_type, values = KEY_VALUES[kind]
    settings = {"mode": "merge", "key": ["id"], "aggregates": {"n": "count"}}
    sink, at = delta_sink("g", str(tmp_path), **settings), 0  # type: ignore[arg-type]
    for _ in range(2):
        for value in values:
            at = put(sink, rows([at], id=pa.array([value], arrow_type)), at)
    assert [row["n"] for row in DeltaFolder(tmp_path).rows()] == [2] * len(values)


def test_names_are_kept_as_they_are(tmp_path: Path) -> None:
    names = ["Id", "größe.cm-1/2", 'a"b', "a`b", "select", "%s", "a'b", "target", "source"]
    for mode in ({"mode": "upsert"}, {"mode": "merge", "aggregates": {'n"`.x': "count"}}):
        sink = delta_sink("g", str(tmp_path / mode["mode"]), key=names, **mode)  # type: ignore[arg-type]
        for start in (0, 1):
            put(sink, rows([start], **{name: pa.array([1]) for name in names}), start)
        (row,) = DeltaFolder(tmp_path / mode["mode"]).rows()
        assert row.get("offset", 1) == 1
        assert row.get('n"`.x', 2) == 2


# ---- merge


def test_any_batches_add_up_to_the_same(tmp_path: Path) -> None:
    rng, (given, expected) = random.Random(11), sums_by_id()
    for turn, most in enumerate((5, 60)):
        folder, at = tmp_path / str(turn), 0
        while at < len(given):
            batch = given.slice(at, rng.randint(1, most))
            columns = dict(zip(batch.column_names, batch.columns, strict=True))
            sink = delta_sink("g", str(folder), mode="merge", key=["id"], aggregates=SUMS)
            at = put(sink, rows(range(at, at + len(batch)), **columns), at)
        assert stored(folder) == expected
        assert DeltaFolder(folder).columns == {
            "id": "string", "total": "long", "part": "double", "exact": "decimal(38,2)", "least": "double",
            "most": "double", "name": "string", "n": "long",
        }  # fmt: skip


def test_a_column_with_the_name_of_a_count_is_counted_where_it_has_a_value(tmp_path: Path) -> None:
    sink = delta_sink("g", str(tmp_path), mode="merge", key=["id"], aggregates={"n": "count", "m": "sum"})
    put(sink, rows([0, 1], id=pa.array([1, 1]), n=pa.array(["x", None]), m=pa.nulls(2)), 0)
    put(sink, rows([2], id=pa.array([1]), n=pa.nulls(1), m=pa.array([4])), 2)
    put(sink, rows([3], id=pa.array([2]), n=pa.nulls(1), m=pa.nulls(1)), 3)
    assert {key: (row["n"], row["m"]) for key, row in stored(tmp_path).items()} == {1: (1, 4), 2: (0, None)}


def test_the_columns_of_a_table_that_is_there_are_kept(tmp_path: Path) -> None:
    schema = pa.schema([("note", pa.string()), ("id", pa.int64()), ("small", pa.int16()), ("n", pa.int32())])
    DeltaTable.create(tmp_path, schema)
    first = pa.table({"note": ["kept"], "id": [1], "small": [3], "n": [1]}).cast(schema)
    deltalake.write_deltalake(tmp_path, first, mode="append")
    aggregates = {"small": "sum", "n": "count"}
    sink = delta_sink("g", str(tmp_path), mode="merge", key=["id"], aggregates=aggregates)
    put(sink, rows([0, 1], id=pa.array([1, 2]), small=pa.array([4, 5])), 0)
    assert stored(tmp_path) == {
        1: {"note": "kept", "id": 1, "small": 7, "n": 2},
        2: {"note": None, "id": 2, "small": 5, "n": 1},
    }
    with pytest.raises(RecordsError, match="the column small of the table is int16"):
        put(sink, rows([2], id=pa.array([1]), small=pa.array([2**15])), 2)


def test_a_sum_that_its_column_cannot_hold_is_never_a_wrong_number(tmp_path: Path) -> None:
    largest = 2**63 - 1
    sink = delta_sink("g", str(tmp_path), mode="merge", key=["id"], aggregates={"v": "sum"})
    put(sink, rows([0, 1, 2], id=pa.array([1, 1, 1]), v=pa.array([largest, largest, -largest])), 0)
    assert stored(tmp_path)[1]["v"] == largest
    with pytest.raises(RecordsError, match="a sum of the column v has more digits than its column can hold"):
        put(sink, rows([3, 4], id=pa.array([2, 2]), v=pa.array([largest, 1])), 3)
    with pytest.raises(SinkError, match="a sum does not fit its column"):
        put(sink, rows([3], id=pa.array([1]), v=pa.array([1])), 3)
    assert marks(sink)[A] == 3
    assert stored(tmp_path)[1]["v"] == largest


# ---- what cannot be used


@pytest.mark.parametrize("mode", KEYED)
def test_rows_that_do_not_fit_the_mode_are_named(tmp_path: Path, mode: str) -> None:
    sink = delta_sink("g", str(tmp_path), **{**MODES[mode], "key": ["id"]})
    values = {"total": pa.array([1]), "least": pa.array([1]), "most": pa.array([1])}
    with pytest.raises(RecordsError, match="the rows have no column id, which sink.key names"):
        put(sink, rows([0], **values), 0)
    with pytest.raises(RecordsError, match="a row has no value in the column id, which sink.key names"):
        put(sink, rows([0], id=pa.nulls(1), **values), 0)
    number = pa.array([decimal.Decimal("1.5")])
    for bad in (pa.array([1.5]), number, pa.array([[1]]), pa.array([{"a": 1}])):
        with pytest.raises(HandlerError, match="the column id, which sink.key names, is .*: it must be"):
            put(sink, rows([0], id=bad, **values), 0)
    if mode == "merge":
        with pytest.raises(RecordsError, match="the column gate, which is neither in sink.key"):
            put(sink, rows([0], id=pa.array([1]), gate=pa.array([1]), **values), 0)
        with pytest.raises(RecordsError, match="no column most, of which sink.aggregates takes the max"):
            put(sink, rows([0], id=pa.array([1]), total=pa.array([1]), least=pa.array([1])), 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(20, 6)])
def test_a_table_whose_key_cannot_be_found_again_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    """The rows' own type could be."""
    schema = pa.schema([*rows([]).schema, ("id", kind)])
    DeltaTable.create(tmp_path, schema)
    with pytest.raises(HandlerError, match="the column id, which sink.key names, is .*: it must be"):
        put(delta_sink("g", str(tmp_path), mode="upsert", key=["id"]), rows([0], id=pa.array([1])), 0)


def test_a_table_without_the_key_is_refused(tmp_path: Path) -> None:
    put(delta_sink("g", str(tmp_path)), rows([0]), 0)
    with pytest.raises(ConfigError, match="sink.key: names id, and the table .* has no such column"):
        delta_sink("h", str(tmp_path), mode="upsert", key=["id"]).marks([A])


def test_a_count_has_a_name_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sink.aggregates.partition: cannot be a count"):
        delta_sink("g", str(tmp_path), mode="merge", key=["id"], aggregates={"partition": "count"})


def test_the_configuration_gives_the_mode(tmp_path: Path) -> None:
    config = {
        "groupId": "g", "topics": ["flights"], "bootstrapServers": "127.0.0.1:9092", "handler": "m:f",
        "sink": {"format": "delta", "path": str(tmp_path), **MODES["merge"]},
    }  # fmt: skip
    stage(make_sink(parse(config)), {A: 0, B: 0}, RECORDS, make=partial(mode_rows, mode="merge")).publish()
    check(tmp_path, "merge")
