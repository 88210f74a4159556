"""The rows of a batch as records of a topic: key, value, headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.runtime.errors import HandlerError, RecordsError

if TYPE_CHECKING:
    import pyarrow as pa

Headers = list[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers]
"""Key, value, headers."""
_HEADERS = "a list of structs with key (text) and value (bytes or text), or a map"


def records_of(rows: pa.Table) -> list[Record]:
    """A record for each row, in their order. Only ``key``, ``value`` and ``headers`` count.

    Raises HandlerError for a column that is missing or has another type, RecordsError for a header without
    a name.
    """
    if not rows.num_rows:
        return []
    if "value" not in rows.column_names:
        raise HandlerError(
            "the handler's result must have the column value for format kafka (it has: "
            f"{', '.join(rows.column_names)})"
        )
    none: list[Any] = [None] * rows.num_rows
    keys = _bytes(rows, "key") if "key" in rows.column_names else none
    headers = _headers(rows) if "headers" in rows.column_names else none
    return list(zip(keys, _bytes(rows, "value"), (own or [] for own in headers), strict=True))


def _bytes(rows: pa.Table, name: str) -> list[bytes | None]:
    values: list[bytes | None] = _as_bytes(rows.column(name), name, "bytes or text").to_pylist()
    return values


def _as_bytes(column: Any, name: str, wanted: str) -> Any:
    """``column`` as bytes; text in UTF-8."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = kind.value_type
    if pa.types.is_fixed_size_binary(kind) or _is_bytes_or_text(kind) or pa.types.is_null(kind):
        return column.cast(pa.large_binary())
    raise HandlerError(f"the column {name} of the handler's result is {kind}, not {wanted}")


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    tests = ("binary", "large_binary", "binary_view", "string", "large_string", "string_view")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


def _headers(rows: pa.Table) -> list[Headers | None]:
    import pyarrow as pa

    column = rows.column("headers").combine_chunks()
    if pa.types.is_null(column.type):
        return [None] * len(column)
    if isinstance(column, pa.ChunkedArray):  # of no chunk, or of too many bytes for one
        return [own for chunk in column.chunks for own in _headers_of(chunk)]
    return _headers_of(column)


def _headers_of(lists: Any) -> list[Headers | None]:
    """The headers of each row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = lists.type
    if pa.types.is_map(kind):
        names, values = lists.keys, lists.items
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type):
        structs = lists.values
        fields = {field.name for field in kind.value_type}
        if fields != {"key", "value"}:
            raise HandlerError(_wrong_headers(kind))
        names, values = (pc.struct_field(structs, name) for name in ("key", "value"))
    else:
        raise HandlerError(_wrong_headers(kind))
    if not (pa.types.is_string(names.type) or pa.types.is_large_string(names.type)):
        raise HandlerError(_wrong_headers(kind))
    pairs: Headers = list(
        zip(names.to_pylist(), _as_bytes(values, "headers", _HEADERS).to_pylist(), strict=True)
    )
    offsets = lists.offsets.to_pylist()
    made: list[Headers | None] = []
    for row, is_there in enumerate(lists.is_valid().to_pylist()):
        own = pairs[offsets[row] : offsets[row + 1]] if is_there else None
        if own is not None and any(name is None for name, _ in own):
            raise RecordsError("the column headers has a header without a name")
        made.append(own)
    return made


def _wrong_headers(kind: pa.DataType) -> str:
    return f"the column headers of the handler's result is {kind}, not {_HEADERS}"
