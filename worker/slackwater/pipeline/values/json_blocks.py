"""Many JSON values at once, by Arrow's own parser.

:func:`read_block` reads a block only where it is certain to give what :mod:`json_rows` would give for each of
its values, and says so. Why values cannot run into each other: they are joined by a line feed, each begins
with ``{`` and ends with ``}``. A line feed cannot be in a string, and inside an object or array ``}`` is not
followed by ``{``. So each value holds whole objects, at least one, and where there are as many rows as
values, each holds exactly one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from slackwater.pipeline.values.json_rows import (
    DATE,
    DAYS,
    FIRST_MICROS,
    LAST_MICROS,
    LOCAL,
    MAX_DEPTH,
    UNITS,
    UNSCALED,
    ZONE,
    encoding_of,
    nested_beyond,
)
from slackwater.pipeline.values.types import decimals_of

MAX_BLOCK_BYTES = 64 << 20
_CONSTANT = re.compile(rb"[:,\[\s-](?:NaN|Inf)")
_FINER = r"(\.\d{6})\d{1,3}"
"""Digits behind the sixth of a second."""
_UTC = pa.timestamp("us", tz="UTC")
_LOCAL = pa.timestamp("us")


class NotCertainError(Exception):
    """The block must be read in another way."""


class BlockReader:
    """Reads blocks of values as ``type_``, whose fields may be ``NOT NULL``. ``unit``: as of
    :func:`~slackwater.pipeline.values.json_rows.row_reader`; blocks with timestamps as text are left to that.
    """

    def __init__(self, type_: pa.StructType, unit: str | None = None) -> None:
        self._type, self._unit = type_, unit
        self.supported = _supported(type_, unit)
        """Whether Arrow's parser has all the types."""
        self._raw = _raw(type_, unit) if self.supported else None
        self._uncertain = _uncertain_number(decimals_of(type_))

    def read(self, values: pa.BinaryArray) -> pa.StructArray:
        """The structs of ``values``, none of which is null. Raises :class:`NotCertainError`."""
        try:
            return self._read(values)
        except pa.ArrowException as exc:
            raise NotCertainError(str(exc)) from None

    def _read(self, values: pa.BinaryArray) -> pa.StructArray:
        if self._raw is None or not len(values):
            raise NotCertainError("not for this type")
        texts = pc.ascii_trim(values.cast(pa.string()), characters=" \t\r\n")
        braces = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
        if not _all(braces):
            raise NotCertainError("a value that is no object")
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n")
        buffer = joined[0].as_buffer()
        data = buffer.to_pybytes()
        if (b"NaN" in data or b"Inf" in data) and _CONSTANT.search(data):
            raise NotCertainError("what Arrow's parser reads in its own way")
        if self._uncertain and pc.any(pc.match_substring_regex(texts, self._uncertain)).as_py():
            raise NotCertainError("a number that Arrow's parser may take for another")
        if data.count(b"{") + data.count(b"[") > MAX_DEPTH:
            _check_depth(values)
        table = pj.read_json(
            pa.BufferReader(buffer),
            pj.ReadOptions(block_size=len(data) + 2, use_threads=False),
            pj.ParseOptions(explicit_schema=pa.schema(list(self._raw)), unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(values):
            raise NotCertainError("another number of objects")
        columns = [table.column(field.name).combine_chunks() for field in self._raw]
        raw = pa.StructArray.from_arrays(
            [column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns],
            fields=list(self._raw),
        )
        return _finished(raw, self._type, self._unit)


def _check_depth(values: pa.BinaryArray) -> None:
    """Raises NotCertainError where a value may be nested too deeply. Short ones cannot be."""
    long = values.filter(pc.greater(pc.binary_length(values), 2 * MAX_DEPTH))
    if any(nested_beyond(value) is not None for value in long.to_pylist()):
        raise NotCertainError("nested too deeply")


def _uncertain_number(decimals: Sequence[pa.DataType]) -> str | None:
    """A pattern of the numbers, and texts that may be decimals, that Arrow's parser may not read rightly as
    ``decimals``. None: there are no decimals.

    It drops or adds at most 38 digits behind the point, and does not look: it reads beyond a table for more,
    and makes another number of it or ends the process (apache/arrow#50964). Up to 23 digits and an exponent
    of up to -14 make 37. And it does not see each overflow of 38 digits. Of a text, any character may be
    escaped.
    """
    if not decimals:
        return None
    large = [kind.precision - kind.scale for kind in decimals if kind.precision + kind.scale > 38]
    return (
        r'[:,\[]\s*"?[+-]?(?:\d*\.\d{24}|[\d.]*[eE]-0*(?:1[5-9]|[2-9]\d|1\d\d)\d*["\s,}\]]'
        + (rf"|0*[1-9]\d{{{min(large)}}}|[\d.]+[eE]\+?\d" if large else "")
        + r")|\\u00(?:3\d|[46]5|2[BDEbde])"
    )


def _supported(type_: pa.DataType, unit: str | None) -> bool:
    if pa.types.is_struct(type_):
        fields = [_supported(field.type, encoding_of(field, unit)) for field in type_]
        return type_.num_fields > 0 and all(fields)
    if (
        pa.types.is_map(type_)
        or pa.types.is_binary(type_)
        or (unit is not None and unit.startswith(UNSCALED) and decimals_of(type_))
    ):
        return False
    return not pa.types.is_list(type_) or _supported(type_.value_type, unit)


def _raw(type_: pa.DataType, unit: str | None) -> pa.DataType:
    """What Arrow's parser is asked for; the rest is done by :func:`_finished`."""
    if pa.types.is_struct(type_):
        return pa.struct(
            [pa.field(field.name, _raw(field.type, encoding_of(field, unit))) for field in type_]
        )
    if pa.types.is_list(type_):
        return pa.list_(_raw(type_.value_type, unit))
    if unit in UNITS and pa.types.is_timestamp(type_):
        return pa.int64()
    if unit == DAYS and pa.types.is_date(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return pa.string()
    return pa.float64() if pa.types.is_floating(type_) else type_


def _finished(array: pa.Array, type_: pa.DataType, unit: str | None) -> pa.Array:
    """``array`` of the raw type as ``type_``. Raises NotCertainError for what one value must be asked for."""
    if pa.types.is_struct(type_):
        return _struct(array, type_, unit)
    if pa.types.is_list(type_):
        items = _finished(array.values, type_.value_type, unit)
        valid = array.is_valid() if array.null_count else None
        mask = pc.invert(valid) if valid is not None else None
        return pa.ListArray.from_arrays(array.offsets, items, mask=mask)
    if pa.types.is_floating(type_):
        if not _all(pc.is_finite(array)):
            raise NotCertainError("a number that is not finite")
        return array.cast(type_, safe=False)
    if pa.types.is_timestamp(type_):
        return _timestamps(array, type_) if unit not in UNITS else _counted(array, UNITS[unit]).view(type_)
    if pa.types.is_date(type_) and unit == DAYS:
        _in_range(pc.multiply_checked(array.cast(pa.int64()), 86_400_000_000))
        return array.view(type_)
    if pa.types.is_date(type_):
        _check_form(array, DATE)
        return array.cast(type_)
    if pa.types.is_decimal(type_):
        array.validate(full=True)  # the parser does not look at the precision
    return array


def _struct(array: pa.StructArray, type_: pa.StructType, unit: str | None) -> pa.StructArray:
    columns = []
    for field in type_:
        column = array.field(field.name)
        if not field.nullable and column.null_count:
            missing = pc.is_null(column)
            if pc.any(pc.and_(missing, array.is_valid())).as_py():
                raise NotCertainError("a field that must not be null")
        columns.append(_finished(column, field.type, encoding_of(field, unit)))
    mask = pc.invert(array.is_valid()) if array.null_count else None
    fields = [pa.field(field.name, column.type) for field, column in zip(type_, columns, strict=True)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _counted(array: pa.Int64Array, power: int) -> pa.Int64Array:
    """Microseconds, of what ten to the ``power`` are one."""
    if power >= 0:
        return _in_range(pc.multiply_checked(array, 10**power))
    if not _all(pc.greater_equal(array, 0)):
        raise NotCertainError("a division that rounds to zero")
    return _in_range(pc.divide(array, 10**-power))


def _timestamps(array: pa.StringArray, type_: pa.TimestampType) -> pa.TimestampArray:
    if pc.any(pc.match_substring_regex(array, _FINER)).as_py():
        array = pc.replace_substring_regex(array, _FINER, r"\1")
    if type_.tz is not None and _all(pc.match_substring_regex(array, f"^{LOCAL}{ZONE}$")):
        return _in_range(array.cast(_UTC).cast(pa.int64())).view(_UTC)
    _check_form(array, LOCAL)
    return array.cast(_LOCAL).cast(type_) if type_.tz is None else array.cast(_LOCAL).view(type_)


def _in_range(array: pa.Int64Array) -> pa.Int64Array:
    """``array``, of microseconds in the years 1 to 9999 of UTC."""
    ends = pc.min_max(array)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if first is not None and not (first >= FIRST_MICROS and last <= LAST_MICROS):
        raise NotCertainError("a time that is out of range")
    return array


def _all(mask: pa.BooleanArray) -> bool:
    """Whether all that is not null in ``mask`` is true."""
    return bool(pc.all(mask, min_count=0).as_py())


def _check_form(array: pa.StringArray, pattern: str) -> None:
    if not _all(pc.match_substring_regex(array, f"^{pattern}$")):
        raise NotCertainError("a text in another form")
