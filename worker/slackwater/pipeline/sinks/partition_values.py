"""The values by which the rows of a batch are split into a table's partitions, and the folders of these.

A folder's name is all that a table in folders has of such a value. Hive's name for null is also what Spark
and Delta Lake use for an empty text, and Spark cannot read a folder ``column=``. So these texts are refused:
who reads the table would find null in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slackwater.runtime.errors import RecordsError

if TYPE_CHECKING:
    import pyarrow as pa

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for null."""


def check_texts(rows: pa.Table, by: Sequence[str]) -> None:
    """Raises RecordsError for a text in a column of ``by`` that a reader of the folders would take for
    null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in by:
        column = rows.column(name)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            continue
        for text, what in (("", "an empty text"), (NULL_FOLDER, f"the text {NULL_FOLDER}")):
            if pc.any(pc.equal(column, text)).as_py():
                raise RecordsError(
                    f"a row has {what} in the column {name}, by which the table is partitioned: readers take "
                    "its folder for null. Give it null or another value in the handler"
                )


def groups(columns: Sequence[pa.ChunkedArray]) -> list[tuple[tuple[Any, ...], pa.Array]]:
    """The combinations of values in ``columns``, each once, with the numbers of the rows that have it."""
    import pyarrow as pa

    names = [f"p{number}" for number in range(len(columns))]
    rows = pa.array(range(len(columns[0])), pa.int64())
    found = (
        pa.table([*columns, rows], names=[*names, "row"])
        .group_by(names, use_threads=False)
        .aggregate([("row", "list")])
    )
    numbers = found.column("row_list").combine_chunks()
    values = found.select(names).to_pylist()
    return [(tuple(group.values()), numbers[at].values) for at, group in enumerate(values)]
