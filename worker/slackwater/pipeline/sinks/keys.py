"""The columns by which rows are the same, in modes `upsert` and `merge`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa


def check_key(rows: pa.Table, key: Sequence[str]) -> None:
    """Raises RecordsError where a row has no value in a column of the key."""
    if not rows.num_rows:
        return
    for name in key:
        at = rows.schema.get_field_index(name)
        if at < 0:
            raise RecordsError(
                f"the rows have no column {name}, which sink.key names (they have: "
                f"{', '.join(rows.column_names)})"
            )
        if rows.column(at).null_count:
            raise RecordsError(f"a row has no value in the column {name}, which sink.key names")


def last_rows(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key: by topic, partition and offset, and of one record's rows the last one.

    The columns of the key have types by which Arrow groups: no lists, structs and maps.
    """
    import pyarrow as pa

    if not rows.num_rows:
        return rows
    ordered = rows.sort_by([(name, "ascending") for name in PLACE_COLUMNS])  # Stable.
    keys = ordered.select(key).rename_columns([f"key {number}" for number in range(len(key))])
    numbered = keys.append_column("at", pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(keys.column_names, use_threads=False).aggregate([("at", "max")])
    return ordered.take(last["at_max"].combine_chunks().sort())
