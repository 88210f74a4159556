"""Rows of one batch in several tables. What all sinks with marks do: `TestRoutedTables` in
test_sink_contract.py."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from slackwater.pipeline import make_chosen_sink, make_sink, rows_by_table
from slackwater.runtime.config.worker_config import WorkerConfig, parse
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError
from slackwater.runtime.interfaces import Range, Sink, SinkFencedError, SinkOfTables
from tests.support.delta import DeltaFolder
from tests.support.sinks import OLD, A, rows


def delta(folder: Path, name: str, **fields: Any) -> dict[str, Any]:
    return {"format": "delta", "path": str(folder / name), **fields}


def route(when: str, sink: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"when": when, "sink": sink, **fields}


def config_of(default: dict[str, Any], *routes: dict[str, Any]) -> WorkerConfig:
    document = {
        "groupId": "g",
        "bootstrapServers": "localhost:1",
        "topics": ["flights"],
        "engine": "arrow",
        "handler": "m:f",
        "sink": default,
        "routes": list(routes),
    }
    return parse(document)


def sink_of(default: dict[str, Any], *routes: dict[str, Any]) -> Sink:
    return make_sink(config_of(default, *routes))


def kinds(names: Sequence[str | None], first: int = 0, **more: Any) -> pa.Table:
    """A row for each kind."""
    return rows(range(first, first + len(names)), kind=pa.array(names, pa.string()), **more)


def put(sink: Sink, table: pa.Table, mark: int | None = None) -> None:
    start = table["offset"][0].as_py()
    sink.stage(table, {A: Range(OLD, start, start + table.num_rows, start or mark)}).publish()


def offsets(folder: Path, name: str) -> list[int]:
    if not (folder / name).exists():
        return []
    return sorted(offset for _, offset in DeltaFolder(folder / name).places().elements())


def test_a_row_goes_to_the_first_route_whose_condition_it_meets(tmp_path: Path) -> None:
    sink = sink_of(
        delta(tmp_path, "rest"),
        route("kind = 'a'", delta(tmp_path, "a")),
        route("kind in ('a', 'b')", delta(tmp_path, "ab")),
    )
    put(sink, kinds(["a", "b", "c", None]))
    assert [offsets(tmp_path, name) for name in ("a", "ab", "rest")] == [[0], [1], [2, 3]]
    assert isinstance(sink, SinkOfTables)
    assert sink.rows_written == {
        str(tmp_path / name): rows for name, rows in zip(("a", "ab", "rest"), (1, 1, 2), strict=True)
    }


def test_a_route_that_continues_offers_its_rows_to_those_that_follow(tmp_path: Path) -> None:
    sink = sink_of(
        delta(tmp_path, "rest"),
        route("kind is not null", delta(tmp_path, "all"), **{"continue": True}),
        route("kind = 'a'", delta(tmp_path, "a")),
    )
    put(sink, kinds(["a", "b", None]))
    assert [offsets(tmp_path, name) for name in ("all", "a", "rest")] == [[0, 1], [0], [1, 2]]


def test_a_table_gets_the_columns_that_its_rows_have_values_in(tmp_path: Path) -> None:
    """But those that its settings name, and declares, also without."""
    key = {"mode": "upsert", "key": ["kind", "id"], "schema": "kind STRING, id INT, note STRING"}
    sink = sink_of(delta(tmp_path, "rest"), route("kind = 'a'", delta(tmp_path, "a", **key)))
    put(sink, kinds(["a", "b"], id=pa.array([7, None], pa.int32()), gate=pa.array([None, "B4"])))
    assert list(DeltaFolder(tmp_path / "a").columns) == ["kind", "id", "note", "topic", "partition", "offset"]
    assert list(DeltaFolder(tmp_path / "rest").columns) == ["topic", "partition", "offset", "kind", "gate"]


@pytest.mark.parametrize(
    ("format_", "mode"),
    [("parquet", "append"), *itertools.product(("delta", "iceberg"), ("append", "upsert", "merge"))],
)
def test_rows_of_other_tables_do_not_make_the_columns_of_one(tmp_path: Path, format_: str, mode: str) -> None:
    """A table that has had no rows is made by its first ones, also where no columns may be added."""
    settings = {"format": format_, "path": str(tmp_path / "a"), "newColumns": "reject"}
    if format_ == "iceberg":
        options = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
        settings = {**settings, "table": "lake.a", "options": options}
        del settings["path"]
    if mode != "append":
        settings |= {"mode": mode, "key": ["kind"]}
    if mode == "merge":
        settings |= {"aggregates": {"n": "sum"}}
    sink = sink_of(delta(tmp_path, "rest"), route("kind = 'a'", settings))
    put(sink, kinds(["b", "b"], n=[1, 2], other=[1, 2]))
    put(sink, kinds(["a"], 2, n=[3], other=pa.nulls(1, pa.int64())))
    assert sink.rows_written[settings.get("path") or "lake.a"] == 1  # type: ignore[attr-defined]


def test_the_fields_of_a_column_are_the_tables_columns(tmp_path: Path) -> None:
    """A kind of values, whose fields may have types of their own."""
    by_kind = pa.array([{"id": 1, "n": 2}, None, {"id": None, "n": 3}]), pa.array([None, {"id": "x"}, None])
    given = rows(range(3), order=by_kind[0], parcel=by_kind[1])
    sink = sink_of(
        delta(tmp_path, "rest"),
        route("order.n > 2", delta(tmp_path, "large"), fieldsOf="order", **{"continue": True}),
        {"fieldsOf": "order", "sink": delta(tmp_path, "orders", mode="changes", key=["n"])},
        {"fieldsOf": "parcel", "sink": delta(tmp_path, "{id}", tables={})},
    )
    put(sink, given)
    assert [offsets(tmp_path, name) for name in ("large", "orders", "x", "rest")] == [[2], [0, 2], [1], []]
    assert DeltaFolder(tmp_path / "orders").columns.keys() == {"topic", "partition", "offset", "id", "n"}
    assert [row["id"] for row in DeltaFolder(tmp_path / "x").rows()] == ["x"]
    for wrong in ("carrier", "struct"):
        place = pa.array([{"topic": "a"}])
        refusing = sink_of(delta(tmp_path, "r"), {"fieldsOf": wrong, "sink": delta(tmp_path, "w")})
        with pytest.raises(RecordsError, match=r"routes\[0\].fieldsOf"):
            put(refusing, rows([0], carrier=pa.array(["a"]), struct=place))
        put(refusing, rows([0], **{wrong: pa.nulls(1)}))


def test_a_table_without_rows_makes_no_commit_and_the_first_batch_moves_all_marks(tmp_path: Path) -> None:
    """So whoever has read the marks before is refused, also by a table that gets no rows."""
    settings = delta(tmp_path, "rest"), route("kind = 'a'", delta(tmp_path, "a"))
    first = sink_of(*settings)
    put(first, kinds(["a", "b"]))
    before = DeltaTable(tmp_path / "a").version()
    for start in (2, 4, 6):
        put(first, kinds(["b", "b"], start))
    assert DeltaTable(tmp_path / "a").version() == before
    assert first.marks([A]) == {A: {OLD: 2}}, "as far as each is known to be"

    former = sink_of(*settings)
    former.marks([A])
    late = former.stage(kinds(["a", "a"], 8), {A: Range(OLD, 8, 10, 2)})
    successor = sink_of(*settings)
    successor.marks([A])
    successor.stage(kinds(["b", "b"], 8), {A: Range(OLD, 8, 10, 2)}).publish()
    with pytest.raises(SinkFencedError):
        late.publish()
    assert offsets(tmp_path, "a") == [0]
    assert offsets(tmp_path, "rest") == [1, *range(2, 10)]


def test_a_batch_that_is_begun_again_continues_in_each_table_where_it_was(tmp_path: Path) -> None:
    """The second table cannot be written at first."""
    settings = delta(tmp_path, "rest"), route("kind = 'a'", delta(tmp_path, "a"))
    staged = sink_of(*settings).stage(kinds(["a", "b", "a"]), {A: Range(OLD, 0, 3, None)})
    (tmp_path / "rest").write_text("in the way")
    with pytest.raises(SinkError):
        staged.publish()
    assert offsets(tmp_path, "a") == [0, 2]
    (tmp_path / "rest").unlink()
    again = sink_of(*settings)
    assert again.marks([A]) == {A: {}}, "one of them has none"
    put(again, kinds(["a", "b", "a", "a", "b"]))
    assert [offsets(tmp_path, name) for name in ("a", "rest")] == [[0, 2, 3], [1, 4]]


@pytest.mark.parametrize("refusing", ["sink", "route"])
def test_a_rewind_that_one_table_refuses_changes_none(tmp_path: Path, refusing: str) -> None:
    keyed, plain = delta(tmp_path, "k", mode="upsert", key=["kind"]), delta(tmp_path, "p")
    default, other = (keyed, plain) if refusing == "sink" else (plain, keyed)
    sink = sink_of(default, route("kind = 'a'", other))
    put(sink, kinds(["a", "b"]))
    with pytest.raises(SinkError, match="in mode upsert"):
        sink.rewind({A: (OLD, 0)})
    assert len(offsets(tmp_path, "p")) == len(offsets(tmp_path, "k")) == 1


@pytest.mark.parametrize(
    ("path", "own"), [("sink", [2]), ("routes[0].sink", [0, 1]), ("routes[2].sink", [1])]
)
def test_the_rows_of_one_table_can_be_written_alone(tmp_path: Path, path: str, own: list[int]) -> None:
    """As a backfill does it: those that other routes take are left out."""
    config = config_of(
        delta(tmp_path, "rest"),
        route("kind in ('a', 'b')", delta(tmp_path, "ab"), **{"continue": True}),
        route("kind = 'a'", delta(tmp_path, "{kind}", tables={})),
        route("kind = 'b'", delta(tmp_path, "b")),
    )
    alone = config_of(delta(tmp_path, "chosen"))
    sink = make_chosen_sink(make_sink(alone), config, path)
    put(sink, kinds(["a", "b", None]))
    assert offsets(tmp_path, "chosen") == own
    assert sink.marks([A]) == {A: {OLD: 3}}
    assert sink.probe() == str(tmp_path / "chosen")
    assert sink.rewind({A: (OLD, 0)}) == len(own)
    assert [path.name for path in tmp_path.iterdir()] == ["chosen"]


def test_an_error_names_the_section_and_the_condition(tmp_path: Path) -> None:
    wrong = route("kind > 3", delta(tmp_path, "a", partitionBy=["day"]))
    with pytest.raises(RecordsError, match=r"routes\[0\].when: the column kind is string"):
        put(sink_of(delta(tmp_path, "rest"), wrong), kinds(["a"]))
    put(sink_of(delta(tmp_path, "a")), kinds(["a"]))
    with pytest.raises(ConfigError) as caught:
        sink_of(delta(tmp_path, "rest"), wrong).probe()
    assert caught.value.field == "routes[0].sink.partitionBy"


def test_sinks_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    """Those of one's own, which differ in their options."""
    custom = {"format": "custom", "implementation": "m:write"}
    config = config_of(
        {**custom, "options": {"file": "a"}}, route("kind = 'a'", {**custom, "options": {"file": "b"}})
    )
    tables = rows_by_table(config, kinds(["a", "b", "b"]))
    assert {name: rows.num_rows for name, rows in tables.items()} == {
        "m:write (routes[0].sink)": 1,
        "m:write (sink)": 2,
    }


class TestNamedTables:
    """Tables that rows name."""

    def sink(self, folder: Path, *routes: dict[str, Any], **tables: Any) -> Sink:
        return sink_of(delta(folder, "{kind}", tables=tables), *routes)

    def test_rows_name_their_table(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path)
        put(sink, kinds(["a", "b", "a"]))
        before = DeltaTable(tmp_path / "a").version()
        put(sink, kinds(["b"], 3))
        assert [offsets(tmp_path, name) for name in ("a", "b")] == [[0, 2], [1, 3]]
        assert DeltaTable(tmp_path / "a").version() == before, "without rows it makes no commit"
        assert sink.marks([A]) == {}, "rows may name others yet"
        again = self.sink(tmp_path)
        put(again, kinds(["a", "b", "a", "b", "c"]))
        assert [offsets(tmp_path, name) for name in "abc"] == [[0, 2], [1, 3], [4]]

    def test_names_of_two_columns(self, tmp_path: Path) -> None:
        sink = sink_of(delta(tmp_path, "{kind}_{day}", tables={}))
        put(sink, kinds(["a", "a_1", "a"], day=pa.array([1, 1, 2])))
        assert [offsets(tmp_path, name) for name in ("a_1", "a_1_1", "a_2")] == [[0], [1], [2]]

    def test_the_same_name_by_other_values_is_the_same_table(self, tmp_path: Path) -> None:
        sink = sink_of(delta(tmp_path, "{kind}_{n}", tables={}))
        put(sink, kinds(["a_1", "a"], n=["1", "1_1"]))
        assert offsets(tmp_path, "a_1_1") == [0, 1]

    @pytest.mark.parametrize("value", ["../x", "a/b", "a.b", ".", "a b", "", None, "x" * 64, "{kind}", "a\0"])
    def test_a_value_that_names_no_table_is_its_records_fault_alone(
        self, tmp_path: Path, value: str | None
    ) -> None:
        sink = self.sink(tmp_path)
        with pytest.raises(RecordsError, match=r"which names no table \(sink.tables.allow\)") as caught:
            put(sink, kinds(["a", value]))
        assert list(caught.value.reasons) == [("flights", 0, 1)]
        assert not list(tmp_path.iterdir())

    def test_only_what_is_allowed_and_within_the_limit_names_tables(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path, allow="a|b[0-9]", limit=2)
        with pytest.raises(RecordsError) as caught:
            put(sink, kinds(["a", "b", "b1", "b12"]))
        assert list(caught.value.reasons) == [("flights", 0, 1), ("flights", 0, 3)]
        with pytest.raises(RecordsError, match=r"the limit \(sink.tables.limit\)") as caught:
            put(sink, kinds(["a", "b1", "b2", "b3", "b2"]))
        assert {offset for _, _, offset in caught.value.reasons} == {2, 3, 4}
        put(sink, kinds(["a", "b1"]))

    def test_a_route_takes_no_row_that_names_no_table(self, tmp_path: Path) -> None:
        named = route("kind is not null", delta(tmp_path, "{kind}", tables={"allow": "a"}))
        put(sink_of(delta(tmp_path, "rest"), named), kinds(["a", "b", None]))
        assert [offsets(tmp_path, name) for name in ("a", "rest")] == [[0], [1, 2]]

    def test_the_table_of_another_section_is_none_that_rows_may_name(self, tmp_path: Path) -> None:
        """Each would take the other's marks for its own, and leave rows out."""
        sink = self.sink(tmp_path, route("kind = 'x'", delta(tmp_path, "a")))
        with pytest.raises(RecordsError, match=r"is the table of routes\[0\].sink") as caught:
            put(sink, kinds(["a", "b"]))
        assert list(caught.value.reasons) == [("flights", 0, 0)]

    def test_a_rewind_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            self.sink(tmp_path).rewind({})
        assert caught.value.field == "sink.tables"
        named = route("kind = 'a'", delta(tmp_path, "{kind}", tables={}))
        with pytest.raises(ConfigError) as caught:
            sink_of(delta(tmp_path, "rest"), named).rewind({})
        assert caught.value.field == "routes[0].sink.tables"
