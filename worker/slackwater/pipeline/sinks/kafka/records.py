"""The rows of a batch as records of a topic: key, value, headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from slackwater.kafka.records import HEADER_BYTES, BatchBuilder, record_size
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

    kind = lists.type
    if pa.types.is_map(kind):
        names, values = lists.keys, lists.items
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type):
        structs = lists.values
        fields = {field.name for field in kind.value_type}
        if fields != {"key", "value"}:
            raise HandlerError(_wrong_headers(kind))
        names, values = structs.field("key"), structs.field("value")
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


class Limits:
    """What the topic takes. ``max_request_bytes``: of a record before compression. ``max_batch_bytes``: of a
    batch in the topic, after compression; None: not known. ``needs_keys``: whether the topic is compacted."""

    def __init__(
        self, codec: str, max_request_bytes: int, max_batch_bytes: int | None, *, needs_keys: bool
    ) -> None:
        self._codec, self._max_request, self.max_batch_bytes = codec, max_request_bytes, max_batch_bytes
        self._needs_keys = needs_keys

    def check(self, records: Iterable[Record], rows: pa.Table, topic: str) -> None:
        """Raises RecordsError for the first record that ``topic`` cannot take, with the row's position."""
        for number, record in enumerate(records):
            if problem := self._problem(record):
                topic_of, partition, offset = (
                    rows.column(name)[number].as_py() for name in ("topic", "partition", "offset")
                )
                raise RecordsError(
                    f"the sink cannot write the row of {topic_of}-{partition} offset {offset} to the topic "
                    f"{topic}: {problem}"
                )

    def _problem(self, record: Record) -> str:
        key, value, headers = record
        if key is None and self._needs_keys:
            return "it has no key, which a compacted topic needs (cleanup.policy)"
        most = record_size(key, value, headers) + HEADER_BYTES
        if most > self._max_request:
            return (
                f"a record of {most} bytes is larger than max.request.size or buffer.memory in sink.options "
                f"({self._max_request})"
            )
        if self.max_batch_bytes is not None and most > self.max_batch_bytes:
            builder = BatchBuilder(self._codec)
            builder.append(0, key, value, headers)
            size = len(builder.build())
            if size > self.max_batch_bytes:
                return f"{size} bytes are more than its max.message.bytes ({self.max_batch_bytes})"
        return ""
