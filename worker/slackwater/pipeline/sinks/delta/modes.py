"""How the rows of a batch get into a Delta table, by mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks import changes
from slackwater.pipeline.sinks.aggregates import MOST_DIGITS
from slackwater.pipeline.sinks.deleted_keys import DeletedKeys
from slackwater.pipeline.sinks.delta.constraints import quoted
from slackwater.pipeline.sinks.delta.table import SOURCE, TARGET, MarkedDeltaTable
from slackwater.pipeline.sinks.modes import WriteMode, last_rows

if TYPE_CHECKING:
    import pyarrow as pa

_INTEGERS = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT"}


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
        rows = mode.written(rows)  # fitted rows also have the table's other columns
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
        table.check(mode.added(fitted))
        return
    for rows in (typed, fitted):  # a row that alone breaks a rule is named
        table.check_merged(rows, mode.key, _assignments(mode, table, rows))


def _assignments(mode: WriteMode, table: MarkedDeltaTable, rows: pa.Table) -> dict[str, str]:
    kept = set() if table.schema is None else set(table.schema.names)
    return {
        name: _added(name, rows.schema.field(name).type, function)
        if name in kept
        else f"{SOURCE}.{quoted(name)}"
        for name, function in mode.aggregates.items()
        if name in rows.column_names
    }


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
    wide = f"DECIMAL({MOST_DIGITS}, {kind.scale if pa.types.is_decimal(kind) else 0})"
    narrow = f"DECIMAL({kind.precision}, {kind.scale})" if pa.types.is_decimal(kind) else _INTEGERS[str(kind)]
    return f"CAST(CAST({old} AS {wide}) + CAST({new} AS {wide}) AS {narrow})"
