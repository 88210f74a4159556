"""The handlers of a pipeline that has none of its own: the columns of the decoded value and key are the row.

They are for engine ``arrow``, and for handlers that begin with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = ("topic", "partition", "offset")


def rows(batch: pa.Table) -> pa.Table:
    """A row for each record.

    Args:
        batch: a poll's records, whose column ``value`` is a struct (``spec.pipeline.value``); ``key`` may be
            one, too.

    Returns:
        The columns ``topic``, ``partition`` and ``offset``, the fields of the key, and those of the value. A
        field that both have is the value's, and the key's where the value has none.

    Raises:
        ValueError: the value is not decoded, or it or the key has a field with the name of one of the first
            three columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {name: batch[name] for name in PLACE}
    for content in ("key", "value"):
        column = batch[content]
        if not pa.types.is_struct(column.type):
            if content == "value":
                raise ValueError(f"the value is {column.type}: set spec.pipeline.value, or a handler")
            continue
        for field in column.type:
            if field.name in PLACE:
                raise ValueError(
                    f"the {content} has a field {field.name}, which is a column of each row: set a handler "
                    "that gives it another name"
                )
            made = pc.struct_field(column, field.name)
            of_key = columns.get(field.name)
            both = of_key is not None and of_key.type == made.type
            columns[field.name] = pc.coalesce(made, of_key) if both else made
    return pa.table(columns)


def changes(batch: pa.Table) -> pa.Table:
    """As :func:`rows`, for ``sink.mode: changes``: a record without a value deletes the row of its key.

    Returns:
        Also the column ``_op``: ``delete`` where the record has no value, else ``upsert``. Where the value
        has that field, or its kinds have, as with format ``debezium``, it says so itself, and a record
        without a value has no row: the one before it has deleted the row.
    """
    import pyarrow.compute as pc

    gone = batch["value"].is_null()
    if _says_operation(batch["value"].type):
        return rows(batch.filter(pc.invert(gone)))
    return rows(batch).append_column("_op", pc.if_else(gone, "delete", "upsert"))


def _says_operation(kind: pa.DataType) -> bool:
    """Whether a value, or each kind of values, has the field ``_op``."""
    fields = getattr(kind, "fields", [])
    return any(
        field.name == "_op" or any(inner.name == "_op" for inner in getattr(field.type, "fields", []))
        for field in fields
    )
