"""How a table's columns grow where values do not fit them, for each format that has it."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import Range, Sink
from tests.support.sinks import OLD, A, B, TableCases, put, rows

A_STRUCT, AB_STRUCT = (
    pa.struct([("a", pa.int32())]),
    pa.struct([("b", pa.string()), ("a", pa.int32())]),
)
NESTED: dict[str, tuple[pa.DataType, Any, pa.DataType, Any, Any]] = {
    "struct": (A_STRUCT, {"a": 1}, AB_STRUCT, {"a": 2, "b": "x"}, {"a": 1, "b": None}),
    "list": (
        pa.list_(A_STRUCT),
        [{"a": 1}],
        pa.list_(AB_STRUCT),
        [{"a": 2, "b": "x"}],
        [{"a": 1, "b": None}],
    ),
    "map": (
        pa.map_(pa.string(), A_STRUCT),
        [("k", {"a": 1})],
        pa.map_(pa.string(), AB_STRUCT),
        [("k", {"a": 2, "b": "x"})],
        [("k", {"a": 1, "b": None})],
    ),
}
"""A column's type and value, the type and value that it gets, and what the first value is then."""
WIDER: dict[str, tuple[pa.DataType, Any, pa.DataType, Any, str]] = {
    "integer": (pa.int32(), 7, pa.int64(), 2**40, "int64"),
    "float": (pa.float32(), 1.5, pa.float64(), 1e300, "double"),
    "decimal": (
        pa.decimal128(5, 2),
        Decimal("1.25"),
        pa.decimal128(12, 3),
        Decimal("12345678.500"),
        "decimal128(11, 2)",
    ),
    "list": (pa.list_(pa.int32()), [7], pa.list_(pa.int64()), [2**40], "list<item: int64>"),
}
"""A column's type and value, the type and value of later rows, and the column's type then."""


class GrowthCases(TableCases):
    """To be subclassed for a sink. ``widens``: whether its format has wider types for columns."""

    widens = True

    @abstractmethod
    def made(self, **settings: Any) -> Sink:
        """A sink of the group ``g`` with these settings."""

    @abstractmethod
    def stored(self) -> pa.Table:
        """The table's rows, by a reader of its own."""

    def values(self, name: str = "c") -> Any:
        """A column's values, in the order of their records."""
        return self.stored().sort_by([("partition", "ascending"), ("offset", "ascending")])[name].to_pylist()

    def kind(self, name: str) -> str:
        """A column's type."""
        kind = str(self.stored().schema.field(name).type)
        return kind.replace("element:", "item:").removeprefix("large_")

    def test_a_column_is_widened_where_a_value_needs_it(self) -> None:
        """Values of a wider type that fit change nothing."""
        for name, (kind, value, wider, large, result) in WIDER.items():
            sink, at = self.made(), len(self.stored()) if name != "integer" else 0
            at = put(sink, rows([at], **{name: pa.array([value], kind)}), at)
            at = put(sink, rows([at], **{name: pa.array([value]).cast(wider)}), at)
            assert self.kind(name) == str(kind)
            if not self.widens:
                with pytest.raises(RecordsError, match=f"the column {name} of the table is"):
                    put(sink, rows([at], **{name: pa.array([large], wider)}), at)
                continue
            put(sink, rows([at], **{name: pa.array([large], wider)}), at)
            assert [read for read in self.values(name) if read is not None] == [value, value, large]
            assert self.kind(name) == result

    @pytest.mark.parametrize("name", NESTED)
    def test_fields_are_added_where_a_value_has_them(self, name: str) -> None:
        kind, value, wider, larger, first = NESTED[name]
        sink = self.made()
        at = put(sink, rows([0], c=pa.array([value], kind)), 0)
        put(sink, rows([at], c=pa.array([larger], wider)), at)
        put(sink, rows([at + 1], c=pa.array([value], kind)), at + 1)
        assert self.values() == [first, larger, first]

    def test_two_workers_that_make_columns_grow_at_once_lose_nothing(self) -> None:
        first, second = self.made(), self.made()
        put(first, rows([0], c=pa.array([{"a": 1}])), 0)
        staged = [
            sink.stage(rows([at], partition, c=pa.array([given])), {tp: Range(OLD, at, at + 1, at or None)})
            for sink, tp, partition, at, given in (
                (first, A, 0, 1, {"a": 2, "b": 3}),
                (second, B, 1, 0, {"a": 4, "d": "x"}),
            )
        ]
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(batch.publish) for batch in staged]:
                done.result()
        values = [{name: value for name, value in row.items() if value is not None} for row in self.values()]
        assert values == [{"a": 1}, {"a": 2, "b": 3}, {"a": 4, "d": "x"}]

    def test_what_cannot_grow_is_refused_by_record(self) -> None:
        sink = self.made()
        put(sink, rows([0], c=pa.array([{"a": 1}])), 0)
        mixed = rows([1, 2], c=pa.array([{"a": 1.5, "b": 1}, {"a": 2.0, "b": None}]))
        with pytest.raises(RecordsError, match="the column c of the table is struct") as caught:
            put(sink, mixed, 1)
        assert list(caught.value.reasons) == [("flights", 0, 1)]
        wide = pa.array([{f"f{number}": 1 for number in range(1001)}])
        with pytest.raises(RecordsError, match="more than 1000 fields"):
            put(sink, rows([1], c=wide), 1)
        strict = self.made(new_columns=False)
        with pytest.raises(RecordsError, match="the column c of the table is struct"):
            put(strict, rows([1], c=pa.array([{"a": 1, "b": 2}])), 1)
        put(strict, rows([1], c=pa.array([{"a": 2}])), 1)
        assert self.values() == [{"a": 1}, {"a": 2}]


class KeyedGrowthCases(GrowthCases):
    """Of a sink in whose table rows replace others by the column ``id``."""

    def begin(self) -> None:
        """From now on: another table, that is not there yet."""
        raise NotImplementedError

    def test_rows_are_found_by_a_key_that_has_grown(self) -> None:
        for mode in ({"mode": "upsert"}, {"mode": "changes", "version": "v", "deleted_for_ms": 3_600_000}):
            sink = self.made(key=["id"], **mode)
            at = put(sink, _keyed([1, 2], [{"a": 1}, {"a": 2}], pa.int32(), 0), 0)
            ids = [2, 2**40] if self.widens else [2, 3]
            at = put(sink, _keyed(ids, [{"a": 3, "b": 1}, {"a": 4, "b": 2}], pa.int64(), at), at)
            put(sink, _keyed([1, ids[1]], [{"a": 5}, {"a": 6}], pa.int64(), at), at)
            read = {row["id"]: row["c"] for row in self.stored().to_pylist()}
            assert read == {1: {"a": 5, "b": None}, 2: {"a": 3, "b": 1}, ids[1]: {"a": 6, "b": None}}
            self.begin()


def _keyed(ids: list[int], values: list[Any], kind: pa.DataType, start: int) -> pa.Table:
    offsets = range(start, start + len(ids))
    return rows(offsets, id=pa.array(ids, kind), c=pa.array(values), v=pa.array(offsets, pa.int64()))
