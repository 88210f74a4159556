"""The aggregates of mode `merge`: what each row of a handler adds, and a batch's rows added up by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater.runtime.errors import RecordsError, SinkError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

MOST_DIGITS = 38
"""Of a decimal in Delta and Iceberg."""


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


def summed(rows: pa.Table, key: Sequence[str], aggregates: Mapping[str, str]) -> pa.Table:
    """:func:`added_up` of typed rows, right whatever their number. Nulls count for nothing, and neither does
    NaN in a minimum or maximum. Raises RecordsError for a sum that has more digits than a table can hold."""
    for name, function in aggregates.items():
        if (at := rows.schema.get_field_index(name)) >= 0:
            rows = rows.set_column(at, name, _widened(rows.column(at), function))
    if rows.num_rows:
        rows = added_up(rows, key, aggregates)
    for name, function in aggregates.items():
        if (at := rows.schema.get_field_index(name)) >= 0 and function in ("sum", "count"):
            rows = rows.set_column(at, name, _narrowed(rows.column(at), name))
    return rows


def combined(kept: pa.Table, rows: pa.Table, key: Sequence[str], aggregates: Mapping[str, str]) -> pa.Table:
    """``kept``, rows of a table, each with the aggregates of the one of ``rows`` that has the same key.

    ``rows`` have each key once. Raises SinkError for a sum that its column cannot hold.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    functions = {name: function for name, function in aggregates.items() if name in rows.column_names}
    places = pa.array(range(kept.num_rows), pa.int64())
    keys = kept.select(key).cast(rows.select(key).schema).append_column("slackwater place", places)
    given = rows.select([*key, *functions]).rename_columns([*key, *(f"new {name}" for name in functions)])
    both = keys.join(given, list(key), join_type="left outer").sort_by("slackwater place")
    for name, function in functions.items():
        at, old = kept.schema.get_field_index(name), kept.column(name)
        new = both.column(f"new {name}").cast(old.type)
        if function == "min":
            made = pc.min_element_wise(old, new)
        elif function == "max":
            made = pc.max_element_wise(old, new)
        else:
            made = pc.coalesce(_total(old, new, name), old, new)
        kept = kept.set_column(at, kept.schema.field(at), made)
    return kept


def _total(old: pa.ChunkedArray, new: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = old.type
    try:
        if not pa.types.is_decimal(kind):
            return pc.add_checked(old, new)
        wide = pa.decimal256(MOST_DIGITS + 1, kind.scale)
        return pc.add(old.cast(wide), new.cast(wide)).cast(kind)
    except pa.ArrowInvalid:
        raise SinkError(f"a sum does not fit its column {name}: give the table a wider one") from None


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


def _widened(column: pa.ChunkedArray, function: str) -> pa.ChunkedArray:
    """The column with a type in which Arrow aggregates it rightly."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if function in ("min", "max"):
        is_float = pa.types.is_floating(kind)
        return pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column) if is_float else column
    if pa.types.is_decimal(kind):
        return column.cast(pa.decimal256(76, kind.scale))
    if pa.types.is_integer(kind) and not sum_fits(column):
        return column.cast(pa.decimal128(MOST_DIGITS, 0))
    return column


def _narrowed(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Sums with a type of a table. Raises RecordsError for one that has too many digits."""
    import pyarrow as pa

    kind = column.type
    if not pa.types.is_decimal(kind):
        return column
    of_integers = kind == pa.decimal128(MOST_DIGITS, 0)
    try:
        return column.cast(pa.int64() if of_integers else pa.decimal128(MOST_DIGITS, kind.scale))
    except pa.ArrowInvalid:
        raise RecordsError(f"a sum of the column {name} has more digits than its column can hold") from None
