"""Rows as arrays: what is beneath a null, and the cost of rows that make no array."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from slackwater.pipeline.values import ddl
from slackwater.pipeline.values.json import JsonDecoder
from slackwater.pipeline.values.types import array_of

INNER = pa.struct([("x", pa.int64()), ("at", pa.timestamp("us"))])
TYPE = pa.struct(
    [
        ("id", pa.int64()),
        ("before", INNER),
        ("several", pa.list_(INNER)),
        ("by", pa.map_(pa.string(), INNER)),
        ("deep", pa.struct([("in", INNER)])),
        ("empty", pa.struct([])),
    ]
)
FULL = {"x": 1, "at": 2}
ROWS = [
    {
        "id": 5,
        "before": FULL,
        "several": [FULL, None],
        "by": [("a", None), ("b", FULL)],
        "deep": {"in": FULL},
        "empty": {},
    },
    None,
    {"id": 6, "before": None, "several": None, "by": None, "deep": {"in": None}, "empty": None},
    {"id": 7, "before": FULL, "several": [], "by": [], "deep": None, "empty": {}},
]
BAD = {"id": "no number"}


def parts(array: pa.Array) -> Iterator[pa.Array]:
    """``array`` and all that is in it, as they are stored: a null of a parent is not looked at."""
    yield array
    if pa.types.is_struct(array.type):
        for at in range(array.type.num_fields):
            child = array.field(at)
            assert child.filter(array.is_null()).null_count == array.null_count, array.type.field(at).name
            yield from parts(child)
    elif pa.types.is_list(array.type):
        yield from parts(array.values)
    elif pa.types.is_map(array.type):
        yield from parts(array.items)


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], [*ROWS, BAD]], ids=["nulls", "no null", "one by one"])
def test_what_is_in_a_null_is_null(rows: list[Any]) -> None:
    array = array_of(rows, TYPE, {}, str)
    array.validate(full=True)
    assert array.type == TYPE
    assert array.to_pylist() == pa.array([None if row is BAD else row for row in rows], TYPE).to_pylist()
    assert len(list(parts(array))) == 18


@pytest.mark.parametrize("more", ["", ", m MAP<STRING, STRUCT<x: INT>>"], ids=["a block", "one by one"])
def test_what_is_in_a_null_of_json_is_null(more: str) -> None:
    decoder = JsonDecoder(ddl.parse(f"id BIGINT, s STRUCT<x: INT>, l ARRAY<STRUCT<x: INT>>{more}"))
    full = b'{"id": 1, "s": {"x": 2}, "l": [{"x": 3}, null], "m": {"a": null}}'
    array, rejected = decoder.decode(pa.array([full, None, b'{"id": 4, "s": null}'], pa.binary()))
    assert not rejected
    assert len(list(parts(array))) == 7 + (3 if more else 0)


def test_rows_are_built_in_blocks_and_one_by_one_beside_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def array(rows: list[Any], type_: pa.DataType) -> pa.Array:
        built.append(len(rows))
        return made(rows, type_)

    made = pa.array
    monkeypatch.setattr(pa, "array", array)
    rejected: dict[int, str] = {}
    rows: list[Any] = [{"id": n} for n in range(1000)]
    rows[300] = BAD
    ids = array_of(rows, pa.struct([("id", pa.int64())]), rejected, str).field("id")
    assert list(rejected) == [300]
    assert ids.to_pylist() == [*range(300), None, *range(301, 1000)]
    assert built == [1000, 256, 256, *[1] * 256, 256, 232]
