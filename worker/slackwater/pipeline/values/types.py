"""Arrow types of decoded values, and arrays of them from Python values, a bad row at a time."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from slackwater.pipeline.values.ddl import SchemaTextError

_BLOCK = 256
_RESCALED = {32: 9, 64: 18, 128: 38, 256: 76}
"""By how much Arrow can change the scale of a decimal of so many bits."""
MAX_FIELDS = 10_000


class FieldLimit:
    """Counts the fields of a schema: few definitions that use each other can describe any number."""

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def take(self) -> None:
        """Counts one. Raises SchemaTextError where there are too many."""
        self._left -= 1
        if self._left < 0:
            raise SchemaTextError(f"has more than {MAX_FIELDS} fields")


def nullable(type_: pa.DataType) -> pa.DataType:
    """``type_`` with all its fields nullable."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, nullable(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(nullable(type_.key_type), nullable(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(nullable(type_.value_type))
    return type_


def with_added_nullable(type_: pa.DataType, before: pa.DataType) -> pa.DataType:
    """``type_``, whose fields that ``before`` lacks, or allows to be null, may be null."""
    if pa.types.is_struct(type_) and pa.types.is_struct(before):
        fields = []
        for field in type_:
            at = before.get_field_index(field.name)
            if at < 0:
                fields.append(field.with_nullable(True))
            else:
                known = before.field(at)
                kind = with_added_nullable(field.type, known.type)
                fields.append(pa.field(field.name, kind, field.nullable or known.nullable))
        return pa.struct(fields)
    if pa.types.is_list(type_) and pa.types.is_list(before):
        item = type_.value_field
        return pa.list_(item.with_type(with_added_nullable(item.type, before.value_type)))
    return type_


def decimals_of(type_: pa.DataType) -> list[pa.DataType]:
    """The types of decimals in ``type_``."""
    if pa.types.is_decimal(type_):
        return [type_]
    return [kind for at in range(type_.num_fields) for kind in decimals_of(type_.field(at).type)]


def check_decimals(values: Any, decimals: Sequence[pa.DataType]) -> None:
    """Raises ValueError for a decimal in ``values`` that Arrow must not be given as one of ``decimals``,
    because of its digits behind the point: Arrow reads beyond a table where it cannot drop as many, and makes
    another number of it or ends the process (apache/arrow#50964)."""
    _check_decimals(values, min(kind.scale + _RESCALED[kind.bit_width] for kind in decimals))


def _check_decimals(value: Any, most: int) -> None:
    if isinstance(value, decimal.Decimal):
        exponent = value.as_tuple().exponent
        if isinstance(exponent, int) and -exponent > most:  # it is a letter for NaN and Infinity
            raise ValueError(f"a decimal has {-exponent} digits behind the point; {most} are the limit here")
    elif isinstance(value, Mapping):
        for item in value.values():
            _check_decimals(item, most)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            _check_decimals(item, most)


_NO_ARRAY = (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError)


def array_of(
    rows: Sequence[Any], type_: pa.StructType, rejected: dict[int, str], reason: Callable[[str], str]
) -> pa.StructArray:
    """``rows`` (mappings, or None) as an array; those that make none are null, and in ``rejected``.

    ``reason``: the reason to note for what Arrow or :func:`check_decimals` says. Rows are converted in
    blocks, and one by one only in a block that has a bad one. The fields of a null are null, also where they
    are read without their struct.
    """
    if decimals := decimals_of(type_):
        rows = list(rows)
        for at, row in enumerate(rows):
            try:
                check_decimals(row, decimals)
            except ValueError as exc:
                rows[at], rejected[at] = None, reason(str(exc))
    try:
        return _null_in_nulls(pa.array(rows, type_))
    except _NO_ARRAY:
        pass
    blocks: list[pa.StructArray] = []
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        try:
            blocks.append(pa.array(block, type_))
            continue
        except _NO_ARRAY:
            pass
        for at, row in enumerate(block, start):
            try:
                blocks.append(pa.array([row], type_))
            except _NO_ARRAY as exc:
                rejected[at] = reason(" ".join(str(exc).split())[:300])
                blocks.append(pa.nulls(1, type_))
    return _null_in_nulls(pa.concat_arrays(blocks))


def _null_in_nulls(array: pa.Array) -> pa.Array:
    """``array`` with null fields in each null struct. Arrow's builder writes 0, ``""`` and so on there."""
    type_ = array.type
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(type_) and type_.num_fields:
        columns = [_null_in_nulls(column) for column in array.flatten()]
        return pa.StructArray.from_arrays(columns, fields=list(type_), mask=mask)
    if pa.types.is_list(type_):
        return pa.ListArray.from_arrays(array.offsets, _null_in_nulls(array.values), type_, mask=mask)
    if pa.types.is_map(type_):
        items = _null_in_nulls(array.items)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type_, mask=mask)
    return array
