"""The values by which the rows of a batch are split into a table's partitions, and the folders of these.

A folder's name is all that a table in folders has of such a value. Hive's name for null is also what Spark
and Delta Lake use for an empty text, and Spark cannot read a folder ``column=``. So these texts are refused:
who reads the table would find null in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slackwater.runtime.errors import BatchTooLargeError, RecordsError

if TYPE_CHECKING:
    import pyarrow as pa

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for null."""
MOST_PARTITIONS = 1000
"""The most partitions of a table that one batch may write to: each is a file of its own."""
_MOST_NAME_BYTES = 255
"""Of a file's or a folder's name: NAME_MAX of Linux' file systems, and HDFS' default."""
_MOST_KEY_BYTES = 1024
"""Of an object's name with all its folders, in S3 and in Google Cloud Storage; Azure has characters."""
_MOST_TAKEN_BYTES = 1 << 30
"""Arrow's ``take`` makes one array of a column's chunks, and fails above 2 GiB of texts."""
_FILE_SYSTEMS = ("file", "hdfs", "viewfs")
_SHOWN = 100


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


def check_path(path: str) -> None:
    """Raises RecordsError if the place that is to store a file has no room for its name. ``path``: absolute,
    or an address."""
    scheme, separator, rest = path.partition("://")
    in_store = bool(separator) and scheme not in _FILE_SYSTEMS
    names = [rest.partition("/")[2]] if in_store else path.split("/")
    longest = max(names, key=lambda name: len(name.encode()))
    size, most = len(longest.encode()), _MOST_KEY_BYTES if in_store else _MOST_NAME_BYTES
    if size > most:
        raise RecordsError(
            "a row has values by which the table is partitioned that are too long for the name of a folder: "
            f"{longest[:_SHOWN]}... has {size} bytes, and {most} are the most. Shorten them in the handler"
        )


def groups(
    columns: Sequence[pa.ChunkedArray], by: Sequence[object]
) -> list[tuple[tuple[Any, ...], pa.Array]]:
    """The combinations of values in ``columns``, each once, with the numbers of the rows that have it.

    ``by``: what the table is partitioned by, for messages. Raises BatchTooLargeError for too many, and
    RecordsError for a date that Python does not have.
    """
    import pyarrow as pa

    names = [f"p{number}" for number in range(len(columns))]
    rows = pa.array(range(len(columns[0])), pa.int64())
    found = (
        pa.table([*columns, rows], names=[*names, "row"])
        .group_by(names, use_threads=False)
        .aggregate([("row", "list")])
    )
    if found.num_rows > MOST_PARTITIONS:
        raise BatchTooLargeError(
            f"the batch has rows for {found.num_rows} partitions of the table ({', '.join(map(str, by))}); "
            f"{MOST_PARTITIONS} is the most: partition by columns with fewer values"
        )
    numbers = found.column("row_list").combine_chunks()
    try:
        values = found.select(names).to_pylist()
    except (ValueError, OverflowError) as exc:
        raise RecordsError(f"a row has a value by which the table cannot be partitioned: {exc}") from None
    return [(tuple(group.values()), numbers[at].values) for at, group in enumerate(values)]


def taken(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    """The rows with these numbers, which ascend."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if rows.nbytes < _MOST_TAKEN_BYTES:
        return rows.take(numbers)
    return rows.filter(pc.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=numbers))
