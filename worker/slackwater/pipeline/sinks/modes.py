"""What the rows of a batch do to a table: they are appended, replace or delete others, or are added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks import aggregates, changes
from slackwater.runtime.errors import ConfigError, HandlerError, RecordsError, SinkError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class WriteMode:
    """``sink.mode``.

    Attributes:
        name: ``append``, ``upsert``, ``changes`` or ``merge``.
        key: the columns by which rows are the same; empty in mode ``append``.
        aggregates: how each other column is added up; empty but in mode ``merge``.
        version: in mode ``changes``, the column that says which of two rows is newer; empty: the later one.
        deleted_for_ms: with ``version``, how long the versions of deleted keys are remembered; 0: not at all.
    """

    name: str = "append"
    key: tuple[str, ...] = ()
    aggregates: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    deleted_for_ms: int = 0

    @classmethod
    def of(
        cls,
        name: str,
        key: Sequence[str],
        aggregates: Mapping[str, str] | None,
        version: str,
        deleted_for_ms: int,
    ) -> WriteMode:
        """From the settings of the sink; those that are not for the mode are left out."""
        return cls(
            name,
            () if name == "append" else tuple(key),
            dict(aggregates or {}) if name == "merge" else {},
            version if name == "changes" else "",
            deleted_for_ms if name == "changes" and version else 0,
        )

    @property
    def adds_up(self) -> bool:
        """Whether rows are added to others, so that none is written as the handler gave it."""
        return self.name == "merge"

    @property
    def replaces(self) -> bool:
        """Whether a row takes the place of another."""
        return self.name in ("upsert", "changes")

    @property
    def deletes(self) -> bool:
        """Whether rows can delete others, so that each says what it does."""
        return self.name == "changes"

    @property
    def applies_again(self) -> bool:
        """Whether rows that are written once more leave the table as it is: no older one counts."""
        return self.deletes and bool(self.version)

    def check(self, rows: pa.Table) -> None:
        """Raises RecordsError where a row has no value in a column of the key, or no version."""
        if not rows.num_rows:
            return
        needed = [(name, "sink.key") for name in self.key]
        if self.version:
            needed.append((self.version, "sink.version"))
        for name, setting in needed:
            at = rows.schema.get_field_index(name)
            if at < 0:
                raise RecordsError(
                    f"the rows have no column {name}, which {setting} names (they have: "
                    f"{', '.join(rows.column_names)})"
                )
            if rows.column(at).null_count:
                raise RecordsError(f"a row has no value in the column {name}, which {setting} names")

    def written(self, rows: pa.Table) -> pa.Table:
        """Of rows that are added up, the columns of the key and the aggregates."""
        return rows.select([name for name in rows.column_names if name in {*self.key, *self.aggregates}])

    def added(self, rows: pa.Table) -> pa.Table:
        """Of fitted rows, those that can be in the table, with its columns: without those that delete."""
        return changes.upserts(rows) if self.deletes else rows

    def refuse_counts_of_places(self) -> None:
        """Raises ConfigError for a count that is called topic, partition or offset: until the batch is
        committed, they say which partition a row is of."""
        for name in PLACE_COLUMNS:
            if self.aggregates.get(name) == "count":
                raise ConfigError("cannot be a count: choose another name", field=f"sink.aggregates.{name}")

    def refuse_rewind(self, table: str, setting: str) -> None:
        """Raises SinkError if rows change others, and cannot be applied again. ``setting``: of the
        configuration that names ``table``."""
        if self.key and not self.applies_again:
            raise SinkError(
                f"the sink cannot remove rows from {table}: in mode {self.name} records change rows of "
                f"others, which are not kept. Start the group with another {setting}, and let it read all "
                "records again"
                + (", or set sink.version, with which records can be applied again" if self.deletes else "")
            )


def typed_rows(mode: WriteMode, rows: pa.Table, with_types: Callable[[pa.Table], pa.Table]) -> pa.Table:
    """A handler's rows, one by one, as the mode has them, with types of the table by ``with_types``. Raises
    RecordsError, HandlerError, and what that raises."""
    mode.check(rows)
    if mode.adds_up:
        made = aggregates.addends(rows, mode.key, mode.aggregates)
        for name in PLACE_COLUMNS:
            if name in rows.column_names and name not in made.column_names:
                made = made.append_column(name, rows.column(name))
        rows = made
    if mode.deletes:
        rows = changes.marked(rows, mode.key, mode.version)
    typed = with_types(rows)
    check_key_types(typed.schema, mode.key)
    changes.check_version_type(typed.schema, mode.version)
    return typed


def reduced_rows(mode: WriteMode, rows: pa.Table) -> pa.Table:
    """What is to be fitted to the table, for typed rows. Raises RecordsError.

    In mode ``merge`` sums; nulls count for nothing, and neither does NaN in a minimum or maximum. Otherwise
    all rows: one that does not fit the table is an error, also if another one replaces it.
    """
    return aggregates.summed(mode.written(rows), mode.key, mode.aggregates) if mode.adds_up else rows


def fitted_rows(mode: WriteMode, rows: pa.Table, fit: Callable[[pa.Table], pa.Table]) -> pa.Table:
    """``fit`` of reduced rows, which makes them rows of the table. Raises RecordsError, which names no record
    where a row is a sum."""
    if mode.deletes:
        return changes.beside(rows, fit)
    try:
        return fit(rows)
    except RecordsError as exc:
        if mode.adds_up:
            raise RecordsError(str(exc)) from None
        raise


def last_rows(rows: pa.Table, key: Sequence[str], version: str = "") -> pa.Table:
    """The last row of each key: by version, if there is one, topic, partition and offset, and of one record's
    rows the last one.

    The columns of the key have types by which Arrow groups: no lists, structs and maps.
    """
    import pyarrow as pa

    if not rows.num_rows:
        return rows
    order = ([version] if version else []) + list(PLACE_COLUMNS)
    ordered = rows.sort_by([(name, "ascending") for name in order])  # Stable.
    keys = ordered.select(key).rename_columns([f"key {number}" for number in range(len(key))])
    numbered = keys.append_column("at", pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(keys.column_names, use_threads=False).aggregate([("at", "max")])
    return ordered.take(last["at_max"].combine_chunks().sort())


def check_key_types(schema: pa.Schema, key: Sequence[str]) -> None:
    """Checks that the columns of ``key`` have types by which equal values are found in the files of a table.
    Raises HandlerError.

    Not so decimals: deltalake 1.6 compares them with a file's least and greatest as floats, and passes over
    the file that has the key.
    """
    import pyarrow as pa

    types = pa.types
    for name in key:
        if (at := schema.get_field_index(name)) < 0:
            continue
        kind = schema.types[at]
        if types.is_nested(kind) or types.is_floating(kind) or types.is_decimal(kind):
            raise HandlerError(
                f"the column {name}, which sink.key names, is {kind}: it must be an integer, a text, a "
                "boolean, bytes, a date or a timestamp"
            )
