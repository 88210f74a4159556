"""Spark's notation for schemas, ``carrier STRING, delay DOUBLE NOT NULL, tags ARRAY<STRING>``, as Arrow.

A parser of its own: Spark's needs a session. Names are compared as they are written, types in any case.
"""

from __future__ import annotations

import re

import pyarrow as pa

MAX_DEPTH = 32
"""How deeply types may be nested."""

_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<text>'(?:[^'\\]|\\.)*+')|"
    r"(?P<open>'.*)|(?P<sign>\S))",
    re.S,
)
_WORDS = ", ".join([*_TYPES, "DECIMAL", "ARRAY", "MAP", "STRUCT"])


class SchemaTextError(ValueError):
    """A schema that cannot be used; the message says where and why."""


def parse(text: str) -> pa.StructType:
    """The struct that ``text`` describes; ``NOT NULL`` makes a field that is not nullable.

    Raises :class:`SchemaTextError` with the position (from 1).
    """
    parser = _Parser(text)
    fields = parser.fields(0)
    parser.expect_end()
    return pa.struct(fields)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            (match.lastgroup or "", match[match.lastgroup or 0], match.start(match.lastgroup or 0) + 1)
            for match in _TOKEN.finditer(text.rstrip())
        ]
        if self._tokens and self._tokens[-1][0] == "open":
            raise SchemaTextError(f"at position {self._tokens[-1][2]}: the text is not closed; end it with '")
        self._at = 0

    def fields(self, depth: int) -> list[pa.Field]:
        """Fields with commas between them."""
        fields: dict[str, pa.Field] = {}
        while True:
            kind, name, position = self._take("the name of a field")
            if kind == "quoted":
                name = name[1:-1].replace("``", "`")
            elif kind != "word":
                raise SchemaTextError(
                    f"at position {position}: the name of a field is expected, not {name!r}"
                )
            if name in fields:
                raise SchemaTextError(f"at position {position}: the field {name} is there twice")
            if self._peek() == ":":
                self._at += 1
            type_ = self._type(depth)
            nullable = not self._word("NOT")
            if not nullable and not self._word("NULL"):
                raise self._error("NULL is expected after NOT")
            if self._word("COMMENT"):
                self._take("a comment")
            fields[name] = pa.field(name, type_, nullable)
            if self._peek() != ",":
                return list(fields.values())
            self._at += 1

    def _type(self, depth: int) -> pa.DataType:
        if depth > MAX_DEPTH:
            raise self._error(f"types are nested more than {MAX_DEPTH} deep")
        kind, word, position = self._take("a type")
        upper = word.upper()
        if kind == "word" and upper in _TYPES:
            return _TYPES[upper]
        if kind == "word" and upper in ("DECIMAL", "DEC", "NUMERIC"):
            return self._decimal()
        if kind == "word" and upper == "ARRAY":
            self._sign("<")
            item = self._type(depth + 1)
            self._sign(">")
            return pa.list_(item)
        if kind == "word" and upper == "MAP":
            return self._map(depth)
        if kind == "word" and upper == "STRUCT":
            self._sign("<")
            fields = self.fields(depth + 1)
            self._sign(">")
            return pa.struct(fields)
        raise SchemaTextError(f"at position {position}: {word!r} is no type; types are {_WORDS}")

    def _map(self, depth: int) -> pa.DataType:
        self._sign("<")
        position = self._position()
        key = self._type(depth + 1)
        if not pa.types.is_string(key):
            raise SchemaTextError(f"at position {position}: the keys of a MAP must be STRING")
        self._sign(",")
        value = self._type(depth + 1)
        self._sign(">")
        return pa.map_(key, value)

    def _decimal(self) -> pa.DataType:
        if self._peek() != "(":
            return pa.decimal128(10, 0)
        self._at += 1
        position = self._position()
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._at += 1
            scale = self._number()
        self._sign(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise SchemaTextError(
                f"at position {position}: DECIMAL takes a precision from 1 to 38, and a scale up to it"
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        kind, word, position = self._take("a number")
        if kind != "word" or not word.isascii() or not word.isdigit() or len(word) > 3:
            raise SchemaTextError(f"at position {position}: a number is expected, not {word!r}")
        return int(word)

    def _sign(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._error(f"{sign!r} is expected")
        self._at += 1

    def _word(self, word: str) -> bool:
        if self._at < len(self._tokens):
            kind, text, _ = self._tokens[self._at]
            if kind == "word" and text.upper() == word:
                self._at += 1
                return True
        return False

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _position(self) -> int:
        return self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._text) + 1

    def _take(self, wanted: str) -> tuple[str, str, int]:
        if self._at >= len(self._tokens):
            raise self._error(f"{wanted} is expected")
        self._at += 1
        return self._tokens[self._at - 1]

    def expect_end(self) -> None:
        """Raises SchemaTextError where something is left."""
        if self._at < len(self._tokens):
            raise self._error("a comma or the end is expected")

    def _error(self, problem: str) -> SchemaTextError:
        at = f", not {self._peek()!r}" if self._peek() else ""
        return SchemaTextError(f"at position {self._position()}: {problem}{at}")
