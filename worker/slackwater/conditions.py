"""Conditions on the rows of a table, in a part of SQL: ``kind = 'order' and amount > 10``.

Reading a condition needs nothing else; evaluating it needs Arrow. As in SQL, a comparison with null is
neither true nor false, and a row meets a condition only if it is true. A column that the rows lack is null:
events of one kind often lack what those of others have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEPTH = 32
"""How deeply parentheses and ``not`` may be nested."""
MAX_CHARACTERS = 2048

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^']|'')*+')|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|"
    r"(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|<>|!=|==|[=<>(),.])|(?P<other>\S))",
    re.S,
)
_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "like", "true", "false"})
_COMPARISONS = {
    "=": "equal", "==": "equal", "<>": "not_equal", "!=": "not_equal",
    "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip
"""By sign, Arrow's function."""
_EXPECTED = "=, <>, <, <=, >, >=, IN, LIKE or IS NULL"

_Evaluate = Callable[["pa.Table"], "pa.ChunkedArray"]
"""True, false or null for each row."""


class ConditionTextError(ValueError):
    """A condition that cannot be used; the message says where in its text, and why."""


class ConditionTypeError(ValueError):
    """Rows with a column whose type a condition cannot compare; the message names the column."""


class Condition:
    """What rows are to meet. Raises ConditionTextError with the position (from 1)."""

    def __init__(self, text: str) -> None:
        self._evaluate = _Parser(text).condition()

    def of(self, rows: pa.Table) -> pa.ChunkedArray:
        """For each row whether it meets the condition, without nulls. Raises ConditionTypeError."""
        return self._evaluate(rows).fill_null(False)


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Parser:
    """Reads from the lowest precedence (``or``) to the highest."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ConditionTextError(f"has {len(text)} characters; the limit is {MAX_CHARACTERS}")
        self._tokens = [
            _Token(kind := match.lastgroup or "", match[kind], match.start(kind) + 1)
            for match in _TOKEN.finditer(text.rstrip())
        ]
        self._at, self._depth = 0, 0

    def condition(self) -> _Evaluate:
        """The whole text."""
        condition = self._any()
        if self._at < len(self._tokens):
            raise self._unexpected("AND, OR or the end")
        return condition

    def _any(self) -> _Evaluate:
        return self._joined("or", "or_kleene", self._all)

    def _all(self) -> _Evaluate:
        return self._joined("and", "and_kleene", self._one)

    def _joined(self, word: str, function: str, part: Callable[[], _Evaluate]) -> _Evaluate:
        condition = part()
        while self._takes(word):
            condition = _both(function, condition, part())
        return condition

    def _one(self) -> _Evaluate:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConditionTextError(f"is nested more than {MAX_DEPTH} deep")
        if self._takes("not"):
            condition = _not(self._one())
        elif self._takes("("):
            condition = self._any()
            self._expect(")")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> _Evaluate:
        column = self._column()
        if self._takes("is"):
            negated = self._takes("not")
            self._expect("null")
            return _negated(negated, lambda rows: _call("is_null", _values(rows, column)))
        negated = self._takes("not")
        if self._takes("in"):
            self._expect("(")
            literals = [self._literal()]
            while self._takes(","):
                literals.append(self._literal())
            self._expect(")")
            condition = _compared("equal", column, literals[0])
            for literal in literals[1:]:
                condition = _both("or_kleene", condition, _compared("equal", column, literal))
            return _negated(negated, condition)
        if self._takes("like"):
            if self._kind() != "text":
                raise self._unexpected("a pattern in quotation marks")
            return _negated(negated, _like(column, self._literal()))
        sign = self._peek()
        if negated or sign not in _COMPARISONS:
            raise self._unexpected("IN or LIKE" if negated else _EXPECTED)
        self._at += 1
        return _compared(_COMPARISONS[sign], column, self._literal())

    def _column(self) -> tuple[str, ...]:
        path = [self._name()]
        while self._takes("."):
            path.append(self._name())
        return tuple(path)

    def _name(self) -> str:
        kind = self._kind()
        if kind not in ("word", "quoted") or self._peek() in _KEYWORDS:
            raise self._unexpected("the name of a column")
        text = self._tokens[self._at].text
        self._at += 1
        return text[1:-1].replace("``", "`") if kind == "quoted" else text

    def _literal(self) -> Any:
        kind, word = self._kind(), self._peek()
        if kind not in ("text", "number") and word not in ("true", "false"):
            raise self._unexpected("a text in quotation marks, a number, TRUE or FALSE")
        text = self._tokens[self._at].text
        self._at += 1
        if kind == "text":
            return text[1:-1].replace("''", "'")
        if kind == "number":
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        return word == "true"

    def _kind(self) -> str:
        return self._tokens[self._at].kind if self._at < len(self._tokens) else ""

    def _peek(self) -> str:
        """The next word, in lower case, or sign."""
        if self._at == len(self._tokens):
            return ""
        token = self._tokens[self._at]
        return token.text.lower() if token.kind in ("word", "sign") else ""

    def _takes(self, text: str) -> bool:
        taken = self._peek() == text
        self._at += taken
        return taken

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise self._unexpected(text.upper())

    def _unexpected(self, expected: str) -> ConditionTextError:
        if self._at == len(self._tokens):
            return ConditionTextError(f"ends where {expected} is expected")
        token = self._tokens[self._at]
        what = f"{expected} is expected, not {token.text[:40]}"
        if token.text == "'":
            what = "the text is not closed; end it with '"
        return ConditionTextError(f"at position {token.position}: {what}")


def _call(function: str, *values: Any) -> Any:
    import pyarrow.compute as pc

    return getattr(pc, function)(*values)


def _both(function: str, first: _Evaluate, second: _Evaluate) -> _Evaluate:
    return lambda rows: _call(function, first(rows), second(rows))


def _not(condition: _Evaluate) -> _Evaluate:
    return lambda rows: _call("invert", condition(rows))


def _negated(negated: bool, condition: _Evaluate) -> _Evaluate:
    return _not(condition) if negated else condition


def _compared(function: str, column: tuple[str, ...], literal: Any) -> _Evaluate:
    def evaluate(rows: pa.Table) -> Any:
        import pyarrow as pa

        values = _values(rows, column)
        if pa.types.is_null(values.type):
            return _unknown(rows)
        try:
            return _call(function, values, _as_type(literal, values.type))
        except (pa.ArrowException, ValueError, OverflowError) as exc:
            raise _mismatch(column, values.type, f"compared with {literal!r}") from exc

    return evaluate


def _like(column: tuple[str, ...], pattern: str) -> _Evaluate:
    def evaluate(rows: pa.Table) -> Any:
        import pyarrow as pa

        values = _values(rows, column)
        if pa.types.is_null(values.type):
            return _unknown(rows)
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            raise _mismatch(column, values.type, "compared with a pattern")
        return _call("match_like", values, pattern)

    return evaluate


def _unknown(rows: pa.Table) -> Any:
    import pyarrow as pa

    return pa.chunked_array([pa.nulls(rows.num_rows, pa.bool_())])


def _values(rows: pa.Table, column: tuple[str, ...]) -> Any:
    """A column, or a field within one; null where the rows lack it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name, *within = column
    at = rows.schema.get_field_index(name)
    if at < 0:
        return pa.chunked_array([pa.nulls(rows.num_rows)])
    values = rows.column(at)
    for depth, field in enumerate(within, 1):
        if pa.types.is_null(values.type):
            return values
        if not pa.types.is_struct(values.type):
            raise _mismatch(column[:depth], values.type, f"asked for a field {field}")
        if values.type.get_field_index(field) < 0:
            return pa.chunked_array([pa.nulls(rows.num_rows)])
        values = pc.struct_field(values, field)
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _as_type(literal: Any, kind: pa.DataType) -> Any:
    """The literal in a column's type, so that a time can be written as a text. Of numbers Arrow finds the
    common type."""
    import pyarrow as pa

    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if isinstance(literal, str):
        return pa.scalar(literal).cast(kind)
    if is_number if not isinstance(literal, bool) else pa.types.is_boolean(kind):
        return pa.scalar(literal)
    raise ValueError("no text, and of another kind")


def _mismatch(column: tuple[str, ...], kind: pa.DataType, what: str) -> ConditionTypeError:
    return ConditionTypeError(f"the column {'.'.join(column)} is {kind}, which cannot be {what}")
