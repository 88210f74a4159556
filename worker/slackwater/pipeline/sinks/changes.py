"""Mode ``changes``: a row replaces or deletes the row with the same key, unless that one is newer.

The column ``_op`` says what a row does. It is never a column of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.table_schema import reasons
from slackwater.runtime.errors import HandlerError, RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

OP = "_op"
UPSERT, DELETE = "upsert", "delete"
"""What it says. A row without a value is an upsert."""
DIGITS = (38, 10)
"""Of a remembered version, and how many of them stand behind the point."""


def marked(rows: pa.Table, key: Sequence[str], version: str) -> pa.Table:
    """A handler's rows with booleans in the column ``_op``, which comes last: whether the row deletes.

    A row that deletes keeps its ``key``, ``version`` (empty: there is none) and position, and is null
    elsewhere: the handler may give it as it was. Raises RecordsError for another operation.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if OP not in rows.column_names:
        return rows.append_column(OP, pa.repeat(pa.scalar(False), rows.num_rows))
    try:
        given = rows.column(OP).cast(pa.string()).fill_null(UPSERT)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise RecordsError(f"the column {OP} must be a text: {exc}") from None
    known = pc.is_in(given, pa.array([UPSERT, DELETE]))
    if not pc.all(known, min_count=0).as_py():
        wrong = {
            at: f"the column {OP} is {str(given[at])[:100]!r}: give {UPSERT} or {DELETE}"
            for at, is_known in enumerate(known.to_pylist())
            if not is_known
        }
        raise RecordsError(next(iter(wrong.values())), reasons(rows, wrong))
    deletes = pc.equal(given, DELETE)
    rows = rows.drop_columns(OP)
    kept = {*key, version, *PLACE_COLUMNS}
    places = pc.if_else(deletes, pa.scalar(None, pa.int64()), pa.array(range(rows.num_rows), pa.int64()))
    for at, name in enumerate(rows.column_names):
        if name not in kept:
            rows = rows.set_column(at, name, rows.column(at).take(places))
    return rows.append_column(OP, deletes)


def with_operations(rows: pa.Table) -> pa.Table:
    """The rows of :func:`marked` with the operations as a handler gives them."""
    import pyarrow.compute as pc

    operations = pc.if_else(rows.column(OP), DELETE, UPSERT)
    return rows.set_column(rows.column_names.index(OP), OP, operations)


def beside(rows: pa.Table, fit: Callable[[pa.Table], pa.Table]) -> pa.Table:
    """``fit`` of the rows without the column ``_op``, and that column."""
    return fit(rows.drop_columns(OP)).append_column(OP, rows.column(OP))


def upserts(rows: pa.Table) -> pa.Table:
    """The rows that do not delete, without the column ``_op``."""
    import pyarrow.compute as pc

    return rows.filter(pc.invert(rows.column(OP))).drop_columns(OP)


def only_deletes(rows: pa.Table) -> bool:
    """Whether no row of ``rows`` is an upsert."""
    import pyarrow.compute as pc

    return bool(pc.all(rows.column(OP), min_count=0).as_py())


def check_version_type(schema: pa.Schema, version: str) -> None:
    """Raises HandlerError where the column ``version`` has no order that Arrow, Delta and PostgreSQL agree
    on."""
    import pyarrow as pa

    at, types = schema.get_field_index(version), pa.types
    if at < 0:
        return
    kind = schema.types[at]
    ordered = (types.is_integer, types.is_decimal, types.is_date, types.is_timestamp)
    if not any(is_ordered(kind) for is_ordered in ordered):
        raise HandlerError(
            f"the column {version}, which sink.version names, is {kind}: it must be an integer, a decimal, a "
            "date or a timestamp"
        )


def key_texts(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """The key of each row as one text: the same for the same values of the same types."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = []
    for name in key:
        column = rows.column(name)
        try:
            text = column.cast(pa.string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # bytes that are no text, lists
            text = pa.chunked_array([[str(value) for value in column.to_pylist()]], pa.string())
        for character in ("\\", ","):
            text = pc.replace_substring(text, character, f"\\{character}")
        texts.append(text)
    return pc.binary_join_element_wise(*texts, ",")


def version_numbers(rows: pa.Table, version: str) -> pa.ChunkedArray:
    """The version of each row as a decimal of :data:`DIGITS`, in the same order; times in microseconds, dates
    in days. Raises RecordsError for one that has more digits."""
    import pyarrow as pa

    column = rows.column(version)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32())
    try:
        return column.cast(pa.decimal128(*DIGITS))
    except pa.ArrowInvalid as exc:
        raise RecordsError(
            f"the column {version}, which sink.version names, has too many digits: {exc}"
        ) from None
