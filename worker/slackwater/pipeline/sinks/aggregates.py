"""The aggregates of mode `merge`: what each row of a handler adds, and a batch's rows added up by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa


def addends(rows: pa.Table, key: Sequence[str], aggregates: Mapping[str, str]) -> pa.Table:
    """The columns of the key and the aggregates, a row for each of ``rows``. A column ``count`` has numbers
    of rows, which are to be summed. Integers and floats to be summed have 64 bits.

    Raises RecordsError for a column that is neither, and for one that cannot be added up.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    known = {*PLACE_COLUMNS, *key, *aggregates}
    if other := [name for name in rows.column_names if name not in known]:
        raise RecordsError(
            f"the rows have the column {other[0]}, which is neither in sink.key nor in sink.aggregates: "
            "remove it in the handler"
        )
    columns = {name: rows.column(name) for name in key if name in rows.column_names}
    for name, function in aggregates.items():
        if function == "count":
            has = rows.column(name).is_valid() if name in rows.column_names else None
            ones = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
            columns[name] = ones if has is None else pc.cast(has, pa.int64())
        elif name in rows.column_names:
            columns[name] = _summable(rows.column(name), name, function)
        elif rows.num_rows:
            raise RecordsError(
                f"the rows have no column {name}, of which sink.aggregates takes the {function}"
            )
    return pa.table(columns)


def added_up(rows: pa.Table, key: Sequence[str], aggregates: Mapping[str, str]) -> pa.Table:
    """:func:`addends` with one row for each key, and the same types. Nulls count for nothing."""
    names = [name for name in rows.column_names if name in aggregates]
    functions = [(name, "sum" if aggregates[name] == "count" else aggregates[name]) for name in names]
    # Floats are always added in the same order: no threads.
    grouped = rows.group_by(list(key), use_threads=False).aggregate(functions)
    return grouped.rename_columns([*key, *names]).cast(rows.select([*key, *names]).schema)


def sum_fits(column: pa.ChunkedArray) -> bool:
    """Whether the sum of 64-bit integers has 64 bits for certain: Arrow does not tell when it overflows."""
    import pyarrow.compute as pc

    bounds = pc.min_max(column).as_py()
    return bool(max(abs(bounds["min"] or 0), abs(bounds["max"] or 0)) * len(column) < 2**63)


def _summable(column: pa.ChunkedArray, name: str, function: str) -> pa.ChunkedArray:
    """The column with room for sums. Raises RecordsError for a type without this function."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_floating(kind) and function == "sum":
        return column.cast(pa.float64())
    if types.is_integer(kind) and function == "sum" and kind != pa.uint64():
        return column.cast(pa.int64())
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return column
    if function == "sum" or types.is_nested(kind) or types.is_boolean(kind) or types.is_binary(kind):
        raise RecordsError(f"the column {name} is {kind}: sink.aggregates cannot take its {function}")
    return column
