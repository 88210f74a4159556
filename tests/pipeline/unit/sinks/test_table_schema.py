"""Rows that are fitted to a table: nothing of a value is lost, whatever its type."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from slackwater.pipeline.sinks.table_schema import MOST_COLUMNS, fit
from slackwater.runtime.errors import RecordsError

UTC = datetime.UTC


def table(array: pa.Array) -> pa.Table:
    return pa.table({"c": array})


def fitted(array: pa.Array, kind: pa.DataType) -> list[Any]:
    """What comes of a column in a table that has it with type ``kind``."""
    result = fit(table(array), pa.schema([("c", kind)]))
    assert result.schema == pa.schema([("c", kind)])
    result.validate(full=True)
    return list(result["c"].to_pylist())


def test_the_first_rows_make_the_schema() -> None:
    rows = pa.table({"b": pa.array([1], pa.int32()), "a": ["x"]})
    assert fit(rows, None) == rows
    assert fit(rows, None, new_columns=False) == rows


def test_columns_keep_their_order_and_new_ones_follow() -> None:
    kept = pa.schema([("a", pa.string()), ("b", pa.int64())])
    result = fit(pa.table({"new": [1.5], "b": pa.array([7], pa.int8())}), kept)
    assert result.schema == pa.schema([*kept, ("new", pa.float64())])
    assert result.to_pylist() == [{"a": None, "b": 7, "new": 1.5}]


def test_new_columns_can_be_rejected() -> None:
    kept = pa.schema([("a", pa.string())])
    with pytest.raises(RecordsError, match=r"the rows have columns b, which the table lacks \(columns a\)"):
        fit(pa.table({"a": ["x"], "b": [1]}), kept, new_columns=False)
    assert fit(pa.table({"b": pa.nulls(1)}), kept, new_columns=False).to_pylist() == [{"a": None}]


def test_too_many_columns_are_refused() -> None:
    rows = pa.table({f"c{number}": [1] for number in range(MOST_COLUMNS + 1)})
    kept = pa.schema([(f"k{number}", pa.int64()) for number in range(MOST_COLUMNS)])
    for given, table in ((rows, None), (rows.select(["c0"]), kept)):
        with pytest.raises(RecordsError, match="would give the table 1001 columns; it may have 1000"):
            fit(given, table)


def test_a_name_that_is_there_twice_is_refused() -> None:
    with pytest.raises(RecordsError, match="more than one column a"):
        fit(pa.table([[1], [2]], names=["a", "a"]), None)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
        (pa.array([["a"]]).cast(pa.list_(pa.dictionary(pa.int8(), pa.string()))), pa.list_(pa.string())),
        (pa.RunEndEncodedArray.from_arrays([2, 3], ["a", None]), pa.string()),
        (pa.array(["1"], pa.json_()), pa.string()),
        (pa.array(["a"], pa.string_view()), pa.string_view()),
        (pa.array([[1, 2]], pa.large_list(pa.int8())), pa.list_(pa.int8())),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.list_(pa.int8())),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), pa.map_(pa.string(), pa.int8())),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_encodings_are_removed_and_values_stay(array: pa.Array, kind: pa.DataType) -> None:
    result = fit(table(array), None)
    result.validate(full=True)
    assert result.schema.field("c").type == kind
    assert result["c"].to_pylist() == array.to_pylist()


def test_columns_and_fields_without_a_type_are_left_out() -> None:
    rows = pa.table(
        {
            "nothing": pa.nulls(1),
            "lists": pa.array([[None]]),
            "deep": pa.array([[{"a": [None]}]]),
            "empty": pa.array([{}], pa.struct([])),
            "some": pa.array([{"a": 1, "b": None, "c": {"d": None}}]),
            "listed": pa.array([[{"a": 1, "b": None}]]),
        }
    )
    assert fit(rows, None).to_pylist() == [{"some": {"a": 1}, "listed": [{"a": 1}]}]
    kept = pa.schema(
        [("lists", pa.list_(pa.int64())), ("some", pa.struct([("a", pa.int64()), ("b", pa.string())]))]
    )
    assert fit(rows, kept).select(["lists", "some"]).to_pylist() == [
        {"lists": None, "some": {"a": 1, "b": None}}
    ]


def test_a_map_whose_values_have_no_type_is_refused_because_of_its_keys() -> None:
    with pytest.raises(RecordsError, match="the column c.*declare the type of the map's values"):
        fit(table(pa.array([[("k", None)]], pa.map_(pa.string(), pa.null()))), None)


@pytest.mark.parametrize(
    "kind",
    [pa.list_view(pa.int64()), pa.large_list_view(pa.int64()), pa.dense_union([pa.field("a", pa.int64())])],
    ids=str,
)
def test_types_that_no_table_has_are_refused(kind: pa.DataType) -> None:
    """pyarrow 26 makes other values of list views."""
    array = pa.nulls(1, kind) if pa.types.is_union(kind) else pa.array([[1, 2]], kind)
    with pytest.raises(RecordsError, match="the table cannot hold the column c"):
        fit(table(array), None)


@pytest.mark.parametrize(
    ("array", "kind", "values"),
    [
        (pa.array([1, None]), pa.float64(), [1.0, None]),
        (pa.array([1.0, 2.0]), pa.int32(), [1, 2]),
        (pa.array([0.5]), pa.float32(), [0.5]),
        (pa.array([1.5, 2.5], pa.float16()), pa.float32(), [1.5, 2.5]),
        (pa.array([1]), pa.decimal128(10, 2), [Decimal("1.00")]),
        (pa.array([Decimal("0.50")]), pa.float64(), [0.5]),
        (pa.array([1], pa.uint64()), pa.int64(), [1]),
        (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
        (pa.array([b"abcd"], pa.binary(4)), pa.binary(), [b"abcd"]),
        (
            pa.array([1_000], pa.timestamp("ns")),
            pa.timestamp("us"),
            [datetime.datetime(1970, 1, 1, 0, 0, 0, 1)],
        ),
        (pa.array([1], pa.date32()), pa.timestamp("us"), [datetime.datetime(1970, 1, 2)]),
        (pa.array([datetime.datetime(1970, 1, 2)]), pa.date32(), [datetime.date(1970, 1, 2)]),
        (
            pa.array([1], pa.timestamp("s", "Europe/Berlin")),
            pa.timestamp("us", "UTC"),
            [datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)],
        ),
        (pa.array([[1], []]), pa.list_(pa.float64()), [[1.0], []]),
        (
            pa.array([{"b": 2, "a": 1}, None]),
            pa.struct([("a", pa.float64()), ("c", pa.string()), ("b", pa.int64())]),
            [{"a": 1.0, "c": None, "b": 2}, None],
        ),
    ],
    ids=str,
)
def test_a_value_that_the_column_can_hold_is_cast(
    array: pa.Array, kind: pa.DataType, values: list[Any]
) -> None:
    assert fitted(array, kind) == values


def test_a_number_that_is_none_stays_one() -> None:
    nan = float("nan")
    assert repr(fitted(pa.array([nan, 1.0]), pa.float32())) == "[nan, 1.0]"
    assert repr(fitted(pa.array([[nan]]), pa.list_(pa.float32()))) == "[[nan]]"


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1.5]), pa.int64()),
        (pa.array([float("nan")]), pa.int64()),
        (pa.array([300]), pa.int8()),
        (pa.array([2**60 + 1]), pa.float64()),
        (pa.array([0.1]), pa.float32()),
        (pa.array([1e300]), pa.float32()),
        (pa.array([0.123]), pa.decimal128(10, 2)),
        (pa.array([10**8]), pa.decimal128(10, 2)),
        (pa.array([Decimal("0.123456789012345678901")]), pa.float64()),
        (pa.array([2**63], pa.uint64()), pa.int64()),
        (pa.array([1_001], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([datetime.datetime(2020, 1, 1, 5)]), pa.date32()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([True]), pa.int64()),
        (pa.array([b"a"]), pa.string()),
        (pa.array(["a"]), pa.binary()),
        (pa.array([["1"]]), pa.list_(pa.int64())),
        (pa.array([[1]]), pa.list_(pa.string())),
        (pa.array([1]), pa.list_(pa.int64())),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
        (pa.array([[{"a": 1, "b": 2}]]), pa.list_(pa.struct([("a", pa.int64())]))),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.string())])),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.string())),
    ],
    ids=str,
)
def test_a_value_that_would_lose_something_is_refused(array: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(RecordsError, match="the column c of the table is .* that it cannot hold"):
        fitted(array, kind)


def test_a_field_that_the_column_lacks_may_be_null() -> None:
    given = pa.array([{"a": 1, "b": None}], pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    assert fitted(given, pa.struct([("a", pa.int64())])) == [{"a": 1}]
