"""The rows of an Iceberg table that have certain keys.

pyiceberg 0.12 writes no delete files, so a data file with such a row is written anew without it. Files are
found by the least and greatest keys in the table's manifests, and then by reading their columns of the key.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

_MOST_LISTED = 200
"""Values of a column up to which pyiceberg compares each with the bounds of a file."""


@dataclass(frozen=True)
class KeyedFile:
    """A data file: its columns of the key, and the version, if there is one; and which of its rows have a key
    of the batch."""

    task: FileScanTask
    columns: pa.Table
    matches: pa.Array


def where(rows: pa.Table, key: Sequence[str]) -> BooleanExpression:
    """A condition that holds for each row of a table which has a key of ``rows``, and for others."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg import expressions

    of: Any = expressions  # whose constructors pydantic declares otherwise
    parts: list[BooleanExpression] = [of.AlwaysTrue()]
    for name in key:
        column = rows.column(name)
        values = column.unique()
        if len(values) <= _MOST_LISTED:
            parts.append(of.In(name, set(values.to_pylist())))
        elif not pa.types.is_boolean(column.type):
            bounds = pc.min_max(column).as_py()
            parts += [of.GreaterThanOrEqual(name, bounds["min"]), of.LessThanOrEqual(name, bounds["max"])]
    return functools.reduce(of.And, parts)


def files_with(
    table: Table, rows: pa.Table, key: Sequence[str], condition: BooleanExpression, version: str
) -> list[KeyedFile]:
    """The files that have rows with keys of ``rows``. ``condition``: of :func:`where`."""
    import pyarrow as pa

    wanted = [*key, version] if version in table.schema().column_names else list(key)
    files = []
    for task in table.scan(row_filter=condition).plan_files():
        columns = read(table.metadata, table, task, wanted)
        typed = columns.cast(
            pa.schema([(name, rows.schema.field(name).type) for name in columns.column_names])
        )
        matches = has_key(typed, rows, key)
        if pa.compute.any(matches, min_count=0).as_py():
            files.append(KeyedFile(task, typed, matches))
    return files


def read(
    metadata: TableMetadata, table: Table, task: FileScanTask, names: Sequence[str] | None = None
) -> pa.Table:
    """The rows of a file in their order, with the columns of ``metadata``, or with those of ``names``."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    schema = metadata.schema() if names is None else metadata.schema().select(*names)
    rows: pa.Table = ArrowScan(metadata, table.io, schema, AlwaysTrue()).to_table([task])
    return rows if names is None else rows.select(names)


def has_key(rows: pa.Table, of: pa.Table, key: Sequence[str]) -> pa.Array:
    """Which of ``rows`` have a key of ``of``; both have the same types."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pa.array(range(rows.num_rows), pa.int64())
    numbered = rows.select(key).append_column("slackwater place", places)
    common = numbered.join(of.select(key), list(key), join_type="left semi").column("slackwater place")
    return pc.is_in(places, common.combine_chunks())


def without_outdated(
    rows: pa.Table, files: Sequence[KeyedFile], key: Sequence[str], version: str
) -> pa.Table:
    """``rows``, which have each key once, without those that have a lower version than a row of ``files``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    versioned = [file.columns.filter(file.matches) for file in files if version in file.columns.column_names]
    if not version or not versioned:
        return rows
    there = pa.concat_tables(versioned).group_by(list(key)).aggregate([(version, "max")])
    greatest = there.rename_columns([*key, "slackwater version"])
    places = pa.array(range(rows.num_rows), pa.int64())
    numbered = rows.select([*key, version]).append_column("slackwater place", places)
    both = numbered.join(greatest, list(key), join_type="left outer").sort_by("slackwater place")
    is_older = pc.fill_null(pc.less(both.column(version), both.column("slackwater version")), False)
    return rows.filter(pc.invert(is_older)) if pc.any(is_older).as_py() else rows
