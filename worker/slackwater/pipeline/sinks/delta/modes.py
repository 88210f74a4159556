"""How the rows of a batch get into a Delta table, by mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks import changes
from slackwater.pipeline.sinks.aggregates import added_up, addends, sum_fits
from slackwater.pipeline.sinks.deleted_keys import DeletedKeys
from slackwater.pipeline.sinks.delta.constraints import quoted
from slackwater.pipeline.sinks.delta.table import SOURCE, TARGET, MarkedDeltaTable
from slackwater.pipeline.sinks.delta.types import with_delta_types
from slackwater.pipeline.sinks.modes import WriteMode, check_key_types, last_rows
from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_DIGITS = 38
"""Of a decimal in Delta."""
_INTEGERS = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT"}


def typed_rows(mode: WriteMode, rows: pa.Table) -> pa.Table:
    """A handler's rows, one by one, with types of Delta. Raises RecordsError, HandlerError."""
    mode.check(rows)
    if mode.adds_up:
        made = addends(rows, mode.key, mode.aggregates)
        for name in PLACE_COLUMNS:
            if name in rows.column_names and name not in made.column_names:
                made = made.append_column(name, rows.column(name))
        rows = made
    if mode.deletes:
        rows = changes.marked(rows, mode.key, mode.version)
    typed = with_delta_types(rows)
    check_key_types(typed.schema, mode.key)
    changes.check_version_type(typed.schema, mode.version)
    return typed


def reduced_rows(mode: WriteMode, rows: pa.Table) -> pa.Table:
    """What is to be fitted to the table, for typed rows. Raises RecordsError.

    In mode ``merge`` sums; nulls count for nothing, and neither does NaN in a minimum or maximum. Otherwise
    all rows: one that does not fit the table is an error, also if another one replaces it.
    """
    if not mode.adds_up:
        return rows
    rows = _written(mode, rows)
    for name, function in mode.aggregates.items():
        if (at := rows.schema.get_field_index(name)) >= 0:
            rows = rows.set_column(at, name, _widened(rows.column(at), function))
    if rows.num_rows:
        rows = added_up(rows, mode.key, mode.aggregates)
    for name, function in mode.aggregates.items():
        if (at := rows.schema.get_field_index(name)) >= 0 and function in ("sum", "count"):
            rows = rows.set_column(at, name, _narrowed(rows.column(at), name))
    return rows


def write(
    mode: WriteMode,
    table: MarkedDeltaTable,
    deleted: DeletedKeys | None,
    rows: pa.Table,
    versions: Mapping[str, int],
    commit: str,
) -> None:
    """Commits fitted rows and versions of transactions. Raises what :class:`MarkedDeltaTable` raises.

    ``deleted``: the keys that are remembered; None: none are.
    """
    if not mode.key:
        table.append(rows, versions, commit)
        return
    if mode.adds_up:
        rows = _written(mode, rows)  # fitted rows also have the table's other columns
        assignments = _assignments(mode, table, rows)
    else:
        rows = last_rows(rows, mode.key, mode.version)
        if deleted is not None:
            rows = deleted.apply(rows, mode.key, mode.version)
        own = {*mode.key, *([changes.OP] if mode.deletes else [])}
        assignments = {name: f"{SOURCE}.{quoted(name)}" for name in rows.column_names if name not in own}
    table.merge(
        rows,
        mode.key,
        assignments,
        versions,
        commit,
        deletes=changes.OP if mode.deletes else "",
        version=mode.version,
    )


def check(mode: WriteMode, table: MarkedDeltaTable, typed: pa.Table, fitted: pa.Table) -> None:
    """Raises RecordsError where the table does not take the rows, or what ``table`` raises."""
    if not mode.adds_up:
        table.check(changes.upserts(fitted) if mode.deletes else fitted)
        return
    for rows in (typed, fitted):  # a row that alone breaks a rule is named
        table.check_merged(rows, mode.key, _assignments(mode, table, rows))


def _written(mode: WriteMode, rows: pa.Table) -> pa.Table:
    return rows.select([name for name in rows.column_names if name in {*mode.key, *mode.aggregates}])


def _assignments(mode: WriteMode, table: MarkedDeltaTable, rows: pa.Table) -> dict[str, str]:
    kept = set() if table.schema is None else set(table.schema.names)
    return {
        name: _added(name, rows.schema.field(name).type, function)
        if name in kept
        else f"{SOURCE}.{quoted(name)}"
        for name, function in mode.aggregates.items()
        if name in rows.column_names
    }


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
        return column.cast(pa.decimal128(_MOST_DIGITS, 0))
    return column


def _narrowed(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Sums with a type of Delta. Raises RecordsError for one that has too many digits."""
    import pyarrow as pa

    kind = column.type
    if not pa.types.is_decimal(kind):
        return column
    of_integers = kind == pa.decimal128(_MOST_DIGITS, 0)
    try:
        return column.cast(pa.int64() if of_integers else pa.decimal128(_MOST_DIGITS, kind.scale))
    except pa.ArrowInvalid:
        raise RecordsError(f"a sum of the column {name} has more digits than its column can hold") from None


def _added(name: str, kind: pa.DataType, function: str) -> str:
    """The SQL expression for the aggregate of a row that is there and a row of the batch."""
    old, new = f"{TARGET}.{quoted(name)}", f"{SOURCE}.{quoted(name)}"
    if function in ("min", "max"):
        sign = "<" if function == "min" else ">"
        return f"CASE WHEN {old} IS NULL OR {new} {sign} {old} THEN {new} ELSE {old} END"
    return (
        f"CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old} ELSE {_total(old, new, kind)} END"
    )


def _total(old: str, new: str, kind: pa.DataType) -> str:
    """Their sum. DataFusion does not tell when integers overflow; a cast does."""
    import pyarrow as pa

    if pa.types.is_floating(kind):
        return f"{old} + {new}"
    wide = f"DECIMAL({_MOST_DIGITS}, {kind.scale if pa.types.is_decimal(kind) else 0})"
    narrow = f"DECIMAL({kind.precision}, {kind.scale})" if pa.types.is_decimal(kind) else _INTEGERS[str(kind)]
    return f"CAST(CAST({old} AS {wide}) + CAST({new} AS {wide}) AS {narrow})"
