"""One JSON value at a time: the reference for what is accepted, and where the fast way does not apply."""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

MAX_DEPTH = 200
"""How deeply objects and arrays may be nested, also in fields that are not read."""

_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
DATE = rf"{_YEAR}-\d\d-\d\d"
ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)"
LOCAL = rf"{DATE}[T ]\d\d:\d\d(?::\d\d(?:\.\d{{1,9}})?)?"
UNITS = {"seconds": 6, "milliseconds": 3, "microseconds": 0, "nanoseconds": -3}
"""What a number can count since 1970: the power of ten that makes microseconds of it."""
DAYS, UNSCALED = "days", "unscaled"
"""Further encodings of a field: a date as days since 1970, and a decimal as its digits without the point, a
number of bytes in base64, big-endian and with a sign. They are of the field's scale, of the one that follows
the encoding (``unscaled:3``), or of one beside them in an object (``scale``, ``value``)."""
_ENCODING = b"slackwater.encoding"
_DATE = re.compile(DATE, re.ASCII)
_TIMESTAMP = re.compile(f"({LOCAL})({ZONE})?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_NESTING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.S)
"""A text that is not closed is a token, too: else each quotation mark in it would be tried as a beginning."""
FIRST_MICROS, LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""What Python's datetime can hold, as the engine ``python`` needs it."""
_EPOCH = datetime.datetime(1970, 1, 1)
_MOST_BYTES = 100
"""Of the digits of a decimal: more than any field holds."""


class ValueRejectedError(Exception):
    """The value is none of the schema; the message says where and why."""


class _Number(str):
    """The text of a number."""

    __slots__ = ()


class _Repeated(dict[str, Any]):
    """An object with keys that are there twice: ``keys_twice``."""

    __slots__ = ("keys_twice",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.keys_twice = frozenset(
            name for name, count in Counter(name for name, _ in pairs).items() if count > 1
        )


Reader = Callable[[Any, str], Any]
"""From a parsed value and its path to what Arrow is given."""


def encoded(field: pa.Field, encoding: str) -> pa.Field:
    """``field``, whose values come in this encoding: one of :data:`UNITS`, :data:`DAYS` or :data:`UNSCALED`,
    also with a scale."""
    return field.with_metadata({_ENCODING: encoding.encode()})


def encoding_of(field: pa.Field, inherited: str | None) -> str | None:
    """The encoding of the values of ``field``; that of the field around it, where it has none itself."""
    own = (field.metadata or {}).get(_ENCODING)
    return inherited if own is None else own.decode()


def row_reader(type_: pa.StructType, unit: str | None = None) -> Callable[[bytes], dict[str, Any]]:
    """Reads the bytes of a value as ``type_``. It raises :class:`ValueRejectedError`.

    ``unit``: one of :data:`UNITS`, for numbers that are timestamps; None: timestamps are text. A field may
    have another encoding (:func:`encoded`).
    """
    read = _struct(type_, unit)
    decoder = json.JSONDecoder(
        parse_int=_Number, parse_float=_Number, parse_constant=_constant, object_pairs_hook=_object
    )

    def row(value: bytes) -> dict[str, Any]:
        try:
            text = value.decode()
        except UnicodeDecodeError as exc:
            raise ValueRejectedError(f"is not UTF-8 at byte {exc.start}") from None
        if (too_deep := nested_beyond(value)) is not None:
            raise ValueRejectedError(f"is nested more than {MAX_DEPTH} deep at byte {too_deep}")
        try:
            parsed = decoder.decode(text)
        except json.JSONDecodeError as exc:
            at = len(text[: exc.pos].encode())
            raise ValueRejectedError(f"is not JSON at byte {at}: {exc.msg}") from None
        except ValueError as exc:
            raise ValueRejectedError(f"is not JSON: {exc}") from None
        if not isinstance(parsed, dict):
            raise ValueRejectedError(f"must be an object, not {_kind(parsed)}")
        result: dict[str, Any] = read(parsed, "")
        return result

    return row


def nested_beyond(value: bytes) -> int | None:
    """The position at which ``value`` is nested more than :data:`MAX_DEPTH` deep; None: nowhere."""
    if value.count(b"[") + value.count(b"{") <= MAX_DEPTH:
        return None
    depth = 0
    for match in _NESTING.finditer(value):
        token = match[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth > MAX_DEPTH:
                return match.start()
        elif token in (b"]", b"}"):
            depth -= 1
    return None


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    return result if len(result) == len(pairs) else _Repeated(pairs)


def _reader(type_: pa.DataType, unit: str | None) -> Reader:
    types = pa.types
    if types.is_struct(type_):
        return _struct(type_, unit)
    if types.is_map(type_):
        return _map(type_, unit)
    if types.is_list(type_):
        return _list(type_, unit)
    if types.is_integer(type_):
        return _integer(type_)
    if types.is_floating(type_):
        return _double
    if types.is_decimal(type_):
        is_unscaled = unit is not None and unit.startswith(UNSCALED)
        return _unscaled(type_, unit or "") if is_unscaled else _decimal(type_)
    if types.is_timestamp(type_):
        text = _timestamp(with_zone=type_.tz is not None)
        return text if unit not in UNITS else _counted(UNITS[unit], text)
    date = _days if unit == DAYS else _date
    return {"bool": _boolean, "string": _string, "binary": _binary, "date32[day]": date}[str(type_)]


def _struct(type_: pa.StructType, unit: str | None) -> Reader:
    readers = [(field.name, _reader(field.type, encoding_of(field, unit)), field.nullable) for field in type_]
    names = {field.name for field in type_}

    def read(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        if isinstance(value, _Repeated) and (twice := names & value.keys_twice):
            raise ValueRejectedError(f"field {_inside(path, min(twice))}: is there twice")
        row = {}
        for name, reader, may_be_null in readers:
            item = value.get(name)
            if item is not None:
                row[name] = reader(item, _inside(path, name))
            elif not may_be_null:
                problem = "is null" if name in value else "is missing"
                raise ValueRejectedError(f"field {_inside(path, name)}: {problem}, and it is NOT NULL")
        return row

    return read


def _map(type_: pa.MapType, unit: str | None) -> Reader:
    reader = _reader(type_.item_type, unit)

    def read(value: Any, path: str) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        if isinstance(value, _Repeated):
            raise ValueRejectedError(f"field {_inside(path, min(value.keys_twice))}: is there twice")
        return [
            (_string(key, path), None if item is None else reader(item, _inside(path, key)))
            for key, item in value.items()
        ]

    return read


def _list(type_: pa.ListType, unit: str | None) -> Reader:
    reader = _reader(type_.value_type, unit)

    def read(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(path, "an array", value)
        return [None if item is None else reader(item, f"{path}[{at}]") for at, item in enumerate(value)]

    return read


def _integer(type_: pa.DataType) -> Reader:
    low, high = -(1 << type_.bit_width - 1), (1 << type_.bit_width - 1) - 1

    def read(value: Any, path: str) -> int:
        if type(value) is not _Number:
            raise _wrong(path, "a whole number", value)
        plain = len(value) < 25 and value.lstrip("-").isdigit()
        number = int(value) if plain else _whole(value, path)
        if not low <= number <= high:
            raise ValueRejectedError(f"field {path}: {value[:40]} is not between {low} and {high}")
        return number

    return read


def _whole(text: str, path: str) -> int:
    """A whole number that may be written as ``1.0`` or ``1e3``; one that is far too large stays so."""
    number = _exact(text, path)
    if number and number.adjusted() > 30:
        return 1 << 100
    if (number and number.adjusted() < 0) or number != number.to_integral_value():
        raise ValueRejectedError(
            f"field {path}: {text[:40]} has a fraction, and the field holds whole numbers"
        )
    return int(number)


def _exact(text: str, path: str) -> decimal.Decimal:
    try:
        return _EXACT.create_decimal(text)
    except (decimal.DecimalException, ValueError):
        raise ValueRejectedError(f"field {path}: {text[:40]} is no number that the field can hold") from None


_EXACT = decimal.Context(prec=500, traps=[decimal.Inexact, decimal.InvalidOperation])


def _double(value: Any, path: str) -> float:
    if type(value) is not _Number:
        raise _wrong(path, "a number", value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueRejectedError(f"field {path}: {value[:40]} is too large")
    return number


def _decimal(type_: pa.DataType) -> Reader:
    def read(value: Any, path: str) -> decimal.Decimal:
        if not isinstance(value, str):
            raise _wrong(path, "a number", value)
        if not _DECIMAL.fullmatch(value):
            raise ValueRejectedError(f"field {path}: {value[:40]!r} is no number")
        number = _exact(value, path)
        if not number:
            return decimal.Decimal(0)
        number = number.normalize(_EXACT)  # Arrow takes no scale that is far from the field's
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        if -exponent > type_.scale or len(digits) + exponent > type_.precision - type_.scale:
            raise ValueRejectedError(
                f"field {path}: {value[:40]} does not fit DECIMAL({type_.precision}, {type_.scale})"
            )
        return number

    return read


def _unscaled(type_: pa.DataType, encoding: str) -> Reader:
    plain = _decimal(type_)
    usual = int(encoding.partition(":")[2] or type_.scale)

    def read(value: Any, path: str) -> decimal.Decimal:
        scale, digits = usual, value
        if isinstance(value, dict):
            scale = _integer(pa.int32())(value.get("scale"), _inside(path, "scale"))
            digits = value.get("value")
            if not -1000 <= scale <= 1000:
                raise ValueRejectedError(f"field {path}: a scale of {scale} is not between -1000 and 1000")
        if type(digits) is _Number:
            number: decimal.Decimal = plain(digits, path)
            return number
        content = _binary(digits, path)
        if len(content) > _MOST_BYTES:
            raise ValueRejectedError(f"field {path}: a number of {len(content)} bytes is too large")
        whole = int.from_bytes(content, "big", signed=True)
        made: decimal.Decimal = plain(_Number(f"{whole}e{-scale}"), path)
        return made

    return read


def _days(value: Any, path: str) -> datetime.date:
    if type(value) is not _Number:
        return _date(value, path)
    days = _integer(pa.int32())(value, path)
    try:
        return _EPOCH.date() + datetime.timedelta(days=days)
    except OverflowError:
        raise ValueRejectedError(f"field {path}: day {days} is not in the years 1 to 9999") from None


def _timestamp(*, with_zone: bool) -> Reader:
    def read(value: Any, path: str) -> int:
        text = _string(value, path)
        match = _TIMESTAMP.fullmatch(text)
        if match is None or (match[2] and not with_zone):
            example = "2013-01-01T05:00:00Z" if with_zone else "2013-01-01T05:00:00"
            raise ValueRejectedError(f"field {path}: {text[:40]!r} is no time such as {example}")
        try:
            local = datetime.datetime.fromisoformat(match[1])
        except ValueError as exc:
            raise ValueRejectedError(f"field {path}: {text[:40]!r}: {exc}") from None
        micros = (local - _EPOCH) // datetime.timedelta(microseconds=1) - _offset_minutes(
            match[2]
        ) * 60_000_000
        return _in_range(micros, text, path)

    return read


def _counted(power: int, text: Reader) -> Reader:
    """Numbers that count since 1970, of which ten to the ``power`` are a microsecond; others as ``text``."""

    def read(value: Any, path: str) -> int:
        if type(value) is not _Number:
            micros: int = text(value, path)
            return micros
        number = _exact(value, path)
        if number and number.adjusted() > 30:
            return _in_range(1 << 100, value, path)
        scaled = number.scaleb(power, _EXACT).to_integral_value(decimal.ROUND_FLOOR, _EXACT)
        return _in_range(int(scaled), value, path)

    return read


def _in_range(micros: int, text: str, path: str) -> int:
    if not FIRST_MICROS <= micros <= LAST_MICROS:
        raise ValueRejectedError(f"field {path}: {text[:40]!r} is not in the years 1 to 9999 of UTC")
    return micros


def _offset_minutes(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    minutes = int(zone[1:3]) * 60 + int(zone[3:].lstrip(":") or 0)
    return -minutes if zone[0] == "-" else minutes


def _date(value: Any, path: str) -> datetime.date:
    text = _string(value, path)
    try:
        if _DATE.fullmatch(text):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise ValueRejectedError(f"field {path}: {text[:40]!r} is no date such as 2013-01-31")


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, "true or false", value)
    return value


def _string(value: Any, path: str) -> str:
    if type(value) is not str:
        raise _wrong(path, "text", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueRejectedError(f"field {path}: has half of a surrogate pair") from None
    return value


def _binary(value: Any, path: str) -> bytes:
    try:
        return base64.b64decode(_string(value, path), validate=True)
    except (binascii.Error, ValueError):
        raise ValueRejectedError(f"field {path}: is not base64, which stands for bytes") from None


def _inside(path: str, name: str) -> str:
    name = name if len(name) <= 100 else f"{name[:100]}..."
    name = name.encode(errors="backslashreplace").decode()
    return f"{path}.{name}" if path else name


def _wrong(path: str, wanted: str, value: Any) -> ValueRejectedError:
    return ValueRejectedError(f"field {path}: must be {wanted}, not {_kind(value)}")


def _kind(value: Any) -> str:
    if isinstance(value, _Number):
        return "a number"
    kinds = {str: "text", bool: "true or false", dict: "an object", list: "an array", type(None): "null"}
    return kinds.get(type(value), "an object")
