"""Confluent's wire format: a zero byte, the schema's id in four bytes, then the payload."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

HEADER_BYTES = 5
MAX_INDEXES = 32
"""How deeply a Protobuf message may be nested in others."""


class WireFormatError(ValueError):
    """Bytes that are not in the wire format; the message says where."""


def schema_id(value: bytes) -> int:
    """The id of the schema that ``value`` was written with. Raises :class:`WireFormatError`."""
    if len(value) < HEADER_BYTES:
        raise WireFormatError(
            f"has {len(value)} bytes, and the wire format of the schema registry begins with {HEADER_BYTES}"
        )
    if value[0]:
        raise WireFormatError(
            f"begins with byte {value[0]:#04x}, and the wire format of the schema registry with 0x00"
        )
    return int.from_bytes(value[1:HEADER_BYTES], "big", signed=True)


def message_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Which message of a Protobuf schema follows the header, as Confluent's serializer writes it, and where
    the message begins. Raises :class:`WireFormatError`."""
    count, at = zigzag(value, HEADER_BYTES)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_INDEXES:
        raise WireFormatError(
            f"has {count} message indexes at byte {HEADER_BYTES}; 1 to {MAX_INDEXES} are possible"
        )
    indexes = []
    for _ in range(count):
        index, at = zigzag(value, at)
        indexes.append(index)
    return tuple(indexes), at


def zigzag(value: bytes, start: int) -> tuple[int, int]:
    """The number at ``start``, and where it ends."""
    number = 0
    for count, at in enumerate(range(start, min(start + 5, len(value)))):
        number |= (value[at] & 0x7F) << 7 * count
        if not value[at] & 0x80:
            return (number >> 1) ^ -(number & 1), at + 1
    raise WireFormatError(f"has no message index at byte {start}")


def schema_ids(
    values: pa.BinaryArray, rejected: dict[int, str], format_name: str
) -> Iterator[tuple[int, int, bytes]]:
    """Row, schema id and bytes of each value that is not null; one without a header is ``rejected``."""
    for row, value in enumerate(values.to_pylist()):
        if value is None:
            continue
        try:
            yield row, schema_id(value), value
        except WireFormatError as exc:
            rejected[row] = f"{format_name} value: {exc}"


def payloads(values: pa.BinaryArray, rejected: dict[int, str], format_name: str) -> pa.BinaryArray:
    """What follows the header of each value. A value without one is null, and ``rejected``."""
    # Not by pyarrow's binary_slice, which fails where a value is shorter than the start (26.0.1).
    rows: list[bytes | None] = [None] * len(values)
    for row, _, value in schema_ids(values, rejected, format_name):
        rows[row] = value[HEADER_BYTES:]
    return pa.array(rows, pa.binary())
