"""What the rows of a batch do to the table: they are appended, replace others, or are added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from slackwater.pipeline.sinks.aggregates import added_up, addends, sum_fits
from slackwater.pipeline.sinks.delta.constraints import quoted
from slackwater.pipeline.sinks.delta.table import SOURCE, TARGET, MarkedDeltaTable
from slackwater.pipeline.sinks.delta.types import check_key_types, with_delta_types
from slackwater.pipeline.sinks.keys import check_key, last_rows
from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_DIGITS = 38
"""Of a decimal in Delta."""
_INTEGERS = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT"}


class DeltaMode(Protocol):
    """How rows get into the table.

    ``name``: of the mode. ``key``: the columns by which rows are the same; empty: none are. ``is_whole``:
    each row of a handler is written as it is, and not added to others.
    """

    name: str
    key: tuple[str, ...]
    is_whole: bool

    def typed(self, rows: pa.Table) -> pa.Table:
        """A handler's rows, one by one, with types of Delta. Raises RecordsError, HandlerError."""

    def reduced(self, rows: pa.Table) -> pa.Table:
        """What is to be fitted to the table, for typed rows. Raises RecordsError."""

    def write(self, table: MarkedDeltaTable, rows: pa.Table, versions: Mapping[str, int], batch: str) -> None:
        """Commits fitted rows and versions of transactions. Raises what :class:`MarkedDeltaTable` raises."""

    def check(self, table: MarkedDeltaTable, typed: pa.Table, fitted: pa.Table) -> None:
        """Raises RecordsError where the table does not take the rows, or what ``table`` raises."""


class DeltaAppend:
    """Each row is a new one."""

    name, is_whole = "append", True

    def __init__(self) -> None:
        self.key: tuple[str, ...] = ()

    def typed(self, rows: pa.Table) -> pa.Table:
        return with_delta_types(rows)

    def reduced(self, rows: pa.Table) -> pa.Table:
        return rows

    def write(self, table: MarkedDeltaTable, rows: pa.Table, versions: Mapping[str, int], batch: str) -> None:
        table.append(rows, versions, batch)

    def check(self, table: MarkedDeltaTable, typed: pa.Table, fitted: pa.Table) -> None:
        table.check(fitted)


class DeltaUpsert:
    """A row replaces the one with the same key. Of a batch's rows the last one counts: by topic, partition
    and offset."""

    name, is_whole = "upsert", True

    def __init__(self, key: Sequence[str]) -> None:
        self.key = tuple(key)

    def typed(self, rows: pa.Table) -> pa.Table:
        check_key(rows, self.key)
        typed = with_delta_types(rows)
        check_key_types(typed.schema, self.key)
        return typed

    def reduced(self, rows: pa.Table) -> pa.Table:
        """All rows: one that does not fit the table is an error, also if another one replaces it."""
        return rows

    def write(self, table: MarkedDeltaTable, rows: pa.Table, versions: Mapping[str, int], batch: str) -> None:
        changes = {name: f"{SOURCE}.{quoted(name)}" for name in rows.column_names if name not in self.key}
        table.merge(last_rows(rows, self.key), self.key, changes, versions, batch)

    def check(self, table: MarkedDeltaTable, typed: pa.Table, fitted: pa.Table) -> None:
        table.check(fitted)


class DeltaMerge:
    """Rows are added up by key, with each other and with the row that is there. Nulls count for nothing, and
    neither does NaN in a minimum or maximum."""

    name, is_whole = "merge", False

    def __init__(self, key: Sequence[str], aggregates: Mapping[str, str]) -> None:
        self.key, self._aggregates = tuple(key), dict(aggregates)

    def typed(self, rows: pa.Table) -> pa.Table:
        check_key(rows, self.key)
        made = addends(rows, self.key, self._aggregates)
        for name in PLACE_COLUMNS:
            if name in rows.column_names and name not in made.column_names:
                made = made.append_column(name, rows.column(name))
        typed = with_delta_types(made)
        check_key_types(typed.schema, self.key)
        return typed

    def reduced(self, rows: pa.Table) -> pa.Table:
        rows = rows.select([name for name in rows.column_names if self._is_written(name)])
        for name, function in self._aggregates.items():
            if (at := rows.schema.get_field_index(name)) >= 0:
                rows = rows.set_column(at, name, _widened(rows.column(at), function))
        if rows.num_rows:
            rows = added_up(rows, self.key, self._aggregates)
        for name, function in self._aggregates.items():
            if (at := rows.schema.get_field_index(name)) >= 0 and function in ("sum", "count"):
                rows = rows.set_column(at, name, _narrowed(rows.column(at), name))
        return rows

    def write(self, table: MarkedDeltaTable, rows: pa.Table, versions: Mapping[str, int], batch: str) -> None:
        """The rows, as they were fitted, also have the table's other columns."""
        rows = rows.select([name for name in rows.column_names if self._is_written(name)])
        table.merge(rows, self.key, self._changes(table, rows), versions, batch)

    def check(self, table: MarkedDeltaTable, typed: pa.Table, fitted: pa.Table) -> None:
        for rows in (typed, fitted):  # one that alone breaks a rule is named
            table.check_merged(rows, self.key, self._changes(table, rows))

    def _changes(self, table: MarkedDeltaTable, rows: pa.Table) -> dict[str, str]:
        kept = set() if table.schema is None else set(table.schema.names)
        return {
            name: _added(name, rows.schema.field(name).type, function)
            if name in kept
            else f"{SOURCE}.{quoted(name)}"
            for name, function in self._aggregates.items()
            if name in rows.column_names
        }

    def _is_written(self, name: str) -> bool:
        return name in self.key or name in self._aggregates


def mode_of(name: str, key: Sequence[str], aggregates: Mapping[str, str]) -> DeltaMode:
    """The mode of that name in ``sink.mode``."""
    if name == "merge":
        return DeltaMerge(key, aggregates)
    return DeltaUpsert(key) if name == "upsert" else DeltaAppend()


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
