"""How fields of the worker's configuration file are read: a parser takes a value and its dotted path, and
gives what is meant, or raises :class:`FieldFault`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Parser = Callable[[Any, str], Any]


class FieldFault(Exception):
    """A fault at a dotted path; becomes a ConfigError with the file's name."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path, self.problem = path, problem


def kind_of(value: Any) -> str:
    """What a value is, for a message."""
    names = {
        dict: "a mapping",
        list: "a list",
        str: "text",
        bool: "true/false",
        int: "a number",
        float: "a number",
    }
    return "nothing" if value is None else names.get(type(value), type(value).__name__)


def text_of(value: Any, path: str) -> str:
    """Text, which may be empty."""
    if not isinstance(value, str):
        raise FieldFault(path, f"must be text, not {kind_of(value)} ({value!r}); put it in quotes")
    return value


def name_of(value: Any, path: str) -> str:
    """Text that is not empty."""
    if not text_of(value, path).strip():
        raise FieldFault(path, "must not be empty")
    return str(value)


def code_name(form: str, example: str) -> Parser:
    """The name of something in a module, of the ``form`` ``module:...``."""

    def parse(value: Any, path: str) -> str:
        module, _, name = text_of(value, path).partition(":")
        if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise FieldFault(path, f"must be {form}, for example {example}, not {value!r}")
        return str(value)

    return parse


def number(low: int, high: int = 2**31 - 1) -> Parser:
    """A whole number from ``low`` to ``high``."""

    def parse(value: Any, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise FieldFault(path, f"must be a whole number, not {kind_of(value)} ({value!r})")
        if not low <= value <= high:
            raise FieldFault(path, f"must be from {low} to {high}, not {value}")
        return value

    return parse


def share_of(value: Any, path: str) -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldFault(path, f"must be a number from 0 to 1, not {kind_of(value)} ({value!r})")
    if not 0 <= value <= 1:
        raise FieldFault(path, f"must be from 0 to 1, not {value}")
    return float(value)


def one_of(*choices: str) -> Parser:
    """One of these words."""

    def parse(value: Any, path: str) -> str:
        if value not in choices:
            hint = _nearest(value, choices) if isinstance(value, str) else ""
            raise FieldFault(path, f"must be {' or '.join(choices)}, not {value!r}{hint}")
        return str(value)

    return parse


def list_of_names(*, may_be_empty: bool) -> Parser:
    """A list of names, none of them twice, as a tuple."""

    def parse(value: Any, path: str) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise FieldFault(
                path, f"must be a list of names, not {kind_of(value)} ({value!r}); write [{value}]"
            )
        if not value and not may_be_empty:
            raise FieldFault(path, "must contain at least one name")
        names = tuple(name_of(item, f"{path}[{i}]") for i, item in enumerate(value))
        if len(set(names)) != len(names):
            raise FieldFault(path, f"contains duplicates: {', '.join(names)}")
        return names

    return parse


def pattern_of(value: Any, path: str) -> str:
    """A regular expression, as text."""
    # Here, as config files without a pattern need none of the client.
    from slackwater.kafka.errors import IllegalArgumentError
    from slackwater.kafka.topic_pattern import TopicPattern

    try:
        return TopicPattern(name_of(value, path)).text
    except IllegalArgumentError as exc:
        raise FieldFault(path, f"{exc}; for example, topics-.* matches topics-eu and topics-us") from None


def settings_of(value: Any, path: str) -> dict[str, str]:
    """A mapping of dotted names to text; numbers and true/false are taken as they are written."""
    if not isinstance(value, dict):
        raise FieldFault(path, f"must be a mapping of names to text, not {kind_of(value)}")
    settings = {}
    for key, item in value.items():
        if not isinstance(item, (str, int, float)):
            raise FieldFault(f"{path}.{key}", f"must be text, not {kind_of(item)}")
        settings[str(key)] = str(item).lower() if isinstance(item, bool) else str(item)
    return settings


class ConfigSection:
    """The parser of a mapping whose keys become arguments of a dataclass."""

    def __init__(
        self,
        kind: type[Any],
        fields: Mapping[str, tuple[str, Parser]],
        required: tuple[str, ...] = (),
        written: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        """``kind``: the dataclass. ``fields``: key -> (argument, parser). ``written``: by key, what makes a
        plain value of an argument that is none."""
        self._kind, self._fields, self._required = kind, fields, required
        self._written = written or {}

    def __call__(self, value: Any, path: str) -> Any:
        fields = self._fields
        if not isinstance(value, dict):
            raise FieldFault(path, f"must be a mapping with {', '.join(fields)}; it is {kind_of(value)}")
        inside = f"{path}." if path else ""
        for key in value:
            if key not in fields:
                raise FieldFault(f"{inside}{key}", f"unknown field{_nearest(str(key), tuple(fields))}")
        for key in self._required:
            if value.get(key) is None:
                raise FieldFault(f"{inside}{key}", "is missing; add it")
        given = {key: item for key, item in value.items() if item is not None}
        return self._kind(
            **{fields[key][0]: fields[key][1](item, f"{inside}{key}") for key, item in given.items()}
        )

    def document(self, value: Any) -> dict[str, Any]:
        """The mapping that is read as ``value``, in plain values: what differs from its default."""
        defaults = {declared.name: declared for declared in dataclasses.fields(self._kind)}
        document: dict[str, Any] = {}
        for key, (argument, parser) in self._fields.items():
            item, declared = getattr(value, argument), defaults[argument]
            made = declared.default_factory
            if item == (declared.default if made is dataclasses.MISSING else made()):
                continue
            if isinstance(parser, ConfigSection):
                document[key] = parser.document(item)
            elif key in self._written:
                document[key] = self._written[key](item)
            else:
                document[key] = list(item) if isinstance(item, tuple) else item
        return document


def _nearest(name: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    lowered = {choice.lower(): choice for choice in known}
    close = get_close_matches(name.lower(), list(lowered), 1, 0.6)
    return f"; did you mean {lowered[close[0]]}?" if close else f"; known: {', '.join(known)}"
