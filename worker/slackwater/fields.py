"""Declarations of settings: the fields of the ConsumerGroup resource and of the worker's configuration file.

Settings are a frozen dataclass whose fields are created by `spec`, `required` and `file_field`. From them
follow: `parse_object`, which reads a mapping of the resource or of the file; `object_schema`, the structural
OpenAPI v3 schema for the CustomResourceDefinition; `file_document`, what the file has.

A field has one unit in Python and in the file (maxAgeMs, a number) and another form in the resource (maxAge,
such as 90s). In the file its name is the attribute's in camel case.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")
Schema = dict[str, Any]
Parser = Callable[[object, str], Any]

_KEY = "slackwater.spec"
_REQUIRED: Any = object()
_ABSENT: Any = object()

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_DURATION = r"([0-9]{1,9}(\.[0-9]{1,3})?ms|[0-9]{1,5}(\.[0-9]{1,3})?(s|m|h))+"
_MAX_DURATION_CHARACTERS = 20
_BYTES = {"Mi": 1024**2, "Gi": 1024**3}
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_PERCENTAGE = re.compile(r"^[0-9]{1,3}(?:\.[0-9]{1,3})?%$")
_PERCENTAGE_RULE = (
    r"self.matches(r'^(100(\.0{1,3})?|[0-9]{1,2}(\.[0-9]{1,3})?)%$') && "
    r"!self.matches(r'^0{1,2}(\.0{1,3})?%$')"
)
"""CEL: more than 0 % and at most 100 %."""

MAX_ENTRIES = 200
"""The largest number of entries of a mapping."""
MAX_TEXT = 4096
"""The default length limit of a string. Every string has a limit: the API server estimates what a CEL
rule costs from the largest value possible, and refuses a schema whose rules may cost too much."""


class FieldError(ValueError):
    """A field with an invalid value.

    Attributes:
        path: the field, dotted: `spec.scaling.minReplicas`, `spec.topics[0]`.
        problem: what is wrong and what to do, in one line.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


class Rule(NamedTuple):
    """A rule between the fields of an object, in CEL, which the API server checks.

    Attributes:
        rule: the CEL expression; `self` is the object.
        message: what is wrong and what to do.
        field: the path of the field at fault within the object, such as `.minReplicas`; "" for the object
            itself.
        detail: a CEL expression for a message with figures, used in place of `message`. It must not use
            `string(int)`, whose cost the API server overestimates: `'%d'.format([self.a])`.
    """

    rule: str
    message: str
    field: str = ""
    detail: str = ""

    def schema(self) -> Schema:
        """The entry of `x-kubernetes-validations`."""
        result = {"rule": self.rule, "message": self.message}
        if self.field:
            result["fieldPath"] = self.field
        if self.detail:
            result["messageExpression"] = self.detail
        return result


@dataclass(frozen=True)
class Kind:
    """The kind of values that a field accepts.

    Attributes:
        schema: its OpenAPI v3 schema.
        parse: takes the raw value and the field's path, returns the Python value, raises FieldError.
        in_file: the same for the worker's file; None: as in the resource. The file has numbers for durations
            and sizes; it is also written by hand and by tests, so its limits may be wider.
        written: what the file has for a Python value that is not plain.
    """

    schema: Schema
    parse: Parser
    in_file: Parser | None = None
    written: Callable[[Any], Any] | None = None

    @property
    def parse_in_file(self) -> Parser:
        """The parser for the file."""
        return self.in_file or self.parse


@dataclass(frozen=True)
class OnlyWith:
    """What a text, list or mapping belongs to: some values of another field.

    Attributes:
        by: the other field, whose name is the same in Python, the resource and the file.
        values: those that the field belongs to.
        required: whether these need it.
    """

    by: str
    values: tuple[str, ...]
    required: bool = False

    @property
    def misplaced(self) -> str:
        """What is wrong where the field is given for another value, and what to do."""
        return f"requires {self._values}; remove it, or change {self.by}"

    @property
    def missing(self) -> str:
        """What is wrong where the field is required and not given, and what to do."""
        return f"is required with {self._values}; set it"

    @property
    def _values(self) -> str:
        *others, last = self.values
        return f"{self.by} {', '.join(others)} or {last}" if others else f"{self.by} {last}"

    def rules(self, declared: _Spec) -> list[Rule]:
        """The same as `misplaced_fields`, in CEL."""
        belongs = f"self.{self.by} in {list(self.values)}"
        is_given = f"self.{declared.name} != '{declared.default}'"
        if not declared.default:
            is_given = f"self.{declared.name}.size() > 0"
        if declared.default is _ABSENT:
            is_given = f"has(self.{declared.name})"
        rules = [Rule(f"{belongs} || !({is_given})", self.misplaced, f".{declared.name}")]
        if self.required:
            rules.append(Rule(f"!({belongs}) || {is_given}", self.missing, f".{declared.name}"))
        return rules


@dataclass(frozen=True)
class _Spec:
    name: str  # in the resource; "": the field is the file's alone
    kind: Kind
    doc: str
    default: Any  # as written in the YAML; _REQUIRED, or _ABSENT for "may be left out, no default"
    absent: Any  # the Python value of a field that was left out and has no default
    file_name: str = ""  # in place of the attribute's name in camel case
    always: bool = False  # whether the file has it where it is the default, too
    only_with: tuple[OnlyWith, ...] = ()


def spec(
    name: str,
    kind: Kind,
    doc: str,
    *,
    default: Any = _ABSENT,
    absent: Any = None,
    only_with: Sequence[OnlyWith] = (),
    always: bool = False,
    hidden: bool = False,
) -> Any:
    """Declares an optional field of the resource.

    Args:
        name: its name in YAML (camelCase).
        kind: the kind of its values.
        doc: its description, including units.
        default: its default as written in YAML; shown in the CRD, where the API server fills it in.
        absent: its Python value if it is left out and has no default.
        only_with: what it belongs to.
        always: whether the worker's file has it where it is the default, too. Newer fields are only written
            where they differ: otherwise an upgrade of the operator would restart all workers.
        hidden: whether `repr` leaves it out, because it may hold secrets.
    """
    declared = _Spec(name, kind, doc, default, absent, always=always, only_with=tuple(only_with))
    return _field(declared, hidden)


def required(name: str, kind: Kind, doc: str) -> Any:
    """Declares a required field of the resource."""
    return _field(_Spec(name, kind, doc, _REQUIRED, None))


def file_field(
    parse: Parser | Kind,
    *,
    default: Any = _ABSENT,
    absent: Any = None,
    name: str = "",
    needed: bool = False,
    always: bool = False,
) -> Any:
    """Declares a field that only the worker's file has.

    Args:
        parse: its parser.
        default: its default as written in the file.
        absent: its Python value if it is left out and has no default; immutable.
        name: its name, if it is not the attribute's in camel case.
        needed: whether it is required.
        always: see `spec`.
    """
    kind = parse if isinstance(parse, Kind) else Kind({}, parse)
    return _field(_Spec("", kind, "", _REQUIRED if needed else default, absent, name, always))


def _field(declared: _Spec, hidden: bool = False) -> Any:
    metadata = {_KEY: declared}
    if declared.default is _REQUIRED:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(
        default_factory=lambda: _default(declared, declared.name), metadata=metadata, repr=not hidden
    )


def _default(declared: _Spec, path: str) -> Any:
    if declared.default is _ABSENT:
        return declared.absent
    return declared.kind.parse(declared.default, path)


def declared_fields(cls: type[Any]) -> list[tuple[str, _Spec]]:
    """The declared fields of a resource, each with its attribute's name."""
    return [(item.name, item.metadata[_KEY]) for item in dataclasses.fields(cls) if _KEY in item.metadata]


def parse_object(cls: type[T], value: object, path: str, *, in_file: bool = False) -> T:
    """Reads a mapping of the resource, or of the worker's file, into the dataclass `cls`.

    Raises:
        FieldError: a field is unknown, missing, or has an invalid value.
    """
    declared = {
        _file_name(attribute, declaration) if in_file else declaration.name: (attribute, declaration)
        for attribute, declaration in declared_fields(cls)
        if in_file or declaration.name
    }
    if not isinstance(value, Mapping):
        raise FieldError(path, f"must be a mapping (of {', '.join(declared)}), but is {describe(value)}")
    for name in value:
        if name not in declared:
            raise FieldError(join(path, str(name)), f"unknown field; {nearest(str(name), list(declared))}")
    arguments = {}
    for name, (attribute, declaration) in declared.items():
        where = join(path, name)
        given = value.get(name)
        if given is not None:
            parse = declaration.kind.parse_in_file if in_file else declaration.kind.parse
            arguments[attribute] = parse(given, where)
        elif declaration.default is _REQUIRED:
            meaning = f": {_first_sentence(declaration.doc)}" if declaration.doc else ""
            raise FieldError(where, f"is missing; set it{meaning}")
        else:
            arguments[attribute] = _default(declaration, where)
    return cls(**arguments)


def misplaced_fields(value: Any) -> Iterator[tuple[str, str]]:
    """The fields that are given and do not belong to the others, or are missing: the name of each, what is
    wrong, and what to do. The API server checks the same in CEL."""
    for attribute, declared in declared_fields(type(value)):
        is_given = getattr(value, attribute) != _default(declared, "") if declared.only_with else False
        for owner in declared.only_with:
            belongs = getattr(value, owner.by) in owner.values
            if is_given and not belongs:
                yield declared.name, owner.misplaced
            if owner.required and belongs and not is_given:
                yield declared.name, owner.missing


def file_document(value: Any) -> dict[str, Any]:
    """The mapping that the worker's file has for ``value``, in plain values: what differs from its default,
    and what is declared with ``always``."""
    document: dict[str, Any] = {}
    for attribute, declared in declared_fields(type(value)):
        item = getattr(value, attribute)
        if declared.default is not _REQUIRED and not declared.always and item == _default(declared, ""):
            continue
        if item is None:
            continue
        document[_file_name(attribute, declared)] = (declared.kind.written or _plain)(item)
    return document


def _plain(item: Any) -> Any:
    if dataclasses.is_dataclass(item):
        return file_document(item)
    if isinstance(item, tuple):
        return list(item)
    return dict(item) if isinstance(item, Mapping) else item


def _file_name(attribute: str, declared: _Spec) -> str:
    return declared.file_name or camel_case(attribute)


def camel_case(attribute: str) -> str:
    """The name in YAML and JSON of an attribute."""
    first, *rest = attribute.split("_")
    return first + "".join(map(str.title, rest))


def object_schema(cls: type[Any]) -> Schema:
    """The structural schema of a dataclass whose fields were made by `spec` and `required`."""
    properties = {}
    must = []
    for _, declared in declared_fields(cls):
        if not declared.name:
            continue
        schema = dict(declared.kind.schema)
        rules = schema.pop("x-kubernetes-validations", None)
        schema["description"] = declared.doc
        if declared.default is _REQUIRED:
            must.append(declared.name)
        elif declared.default is not _ABSENT:
            schema["default"] = _filled_in(declared.default, schema)
        if rules:
            schema["x-kubernetes-validations"] = rules
        properties[declared.name] = schema
    result: Schema = {"type": "object", "properties": properties}
    if must:
        result["required"] = must
    between = [
        rule
        for _, declared in declared_fields(cls)
        for owner in declared.only_with
        for rule in owner.rules(declared)
    ]
    between += getattr(cls, "RULES", ())
    if between:
        result["x-kubernetes-validations"] = [rule.schema() for rule in between]
    return result


def _filled_in(default: Any, schema: Schema) -> Any:
    """A default with the defaults inside it: the API server checks the rules on it as it stands."""
    inside = schema.get("properties")
    if not isinstance(default, Mapping) or not inside:
        return default
    return {**{name: schema["default"] for name, schema in inside.items() if "default" in schema}, **default}


def text(
    *,
    pattern: str = "",
    example: str = "",
    max_length: int = MAX_TEXT,
    choices: Sequence[str] = (),
    in_file_too: bool = False,
) -> Kind:
    """A string; `pattern` must match all of it, and `example` is shown if it does not. In the file it may
    be any text that is not empty, unless `in_file_too`.

    In the CRD the pattern is a CEL rule, whose message can say what to write; a schema's `pattern` only
    repeats the expression. The API server matches it with RE2, `parse` with `re`: use what both accept.
    """
    schema: Schema = {"type": "string"}
    if choices:
        schema["enum"] = list(choices)
    else:
        schema["maxLength"] = max_length
    if pattern:
        rule = Rule(
            f"self.matches(r'^({pattern})$')", f"has an invalid format; use a value such as {example}"
        )
        schema["x-kubernetes-validations"] = [rule.schema()]

    def parse(value: object, path: str) -> str:
        result = _string(value, path)
        if choices and result not in choices:
            raise FieldError(path, f"{result!r} is not supported; {nearest(result, choices)}")
        if not choices and len(result.encode()) > max_length:
            raise FieldError(path, f"is {len(result)} characters long; the limit is {max_length}")
        if pattern and not re.fullmatch(pattern, result, re.ASCII):
            raise FieldError(path, f"{result!r} has an invalid format; use a value such as {example}")
        return result

    return Kind(schema, parse, parse if choices or in_file_too else filled)


def filled(value: object, path: str) -> str:
    """The parser of text that is not empty."""
    result = _string(value, path)
    if not result.strip():
        raise FieldError(path, "must not be empty")
    return result


_TOPIC = r"\.{0,2}[a-zA-Z0-9_-][a-zA-Z0-9._-]*|\.{3}[a-zA-Z0-9._-]*"


def topic(example: str) -> Kind:
    """A topic's name that brokers accept (Kafka's `Topic.validate`): at most 249 characters, neither `.` nor
    `..`; `example` is shown if the value is invalid."""
    rules = "(letters, digits, '.', '_' and '-', but neither '.' nor '..' alone)"
    return text(pattern=_TOPIC, example=f"{example} {rules}", max_length=249)


def expression(*, pattern: str, example: str, max_length: int) -> Kind:
    """A regular expression: a `text` that the API server can compile with RE2, in CEL.

    `parse` does not compile it; the code that uses it does, and reports what is wrong.
    """
    kind = text(pattern=pattern, example=example, max_length=max_length)
    # Whether '' matches plays no part: the rule fails where the expression is none.
    rule = Rule("''.matches(self) || !''.matches(self)", "is not a valid RE2 regular expression")
    rules = [*kind.schema["x-kubernetes-validations"], rule.schema()]
    return Kind({**kind.schema, "x-kubernetes-validations": rules}, kind.parse)


def whole(*, minimum: int, maximum: int | None = None) -> Kind:
    """A whole number."""
    schema: Schema = {"type": "integer", "minimum": minimum}
    if maximum is not None:
        schema["maximum"] = maximum

    def parse(value: object, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise FieldError(path, f"must be a whole number, but is {describe(value)}")
        if value < minimum or (maximum is not None and value > maximum):
            bounds = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
            raise FieldError(path, f"is {value}, but must be {bounds}")
        return value

    return Kind(schema, parse)


def number() -> Kind:
    """A finite number, as a float in Python."""
    return Kind({"type": "number"}, _finite)


def _finite(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FieldError(path, f"must be a number, but is {describe(value)}")
    return float(value)


def count_or_percentage(*, maximum: int) -> Kind:
    """A whole number from 1 to `maximum` (int in Python), or a share such as `25%` (a fraction, float)."""
    share = percentage()
    count = whole(minimum=1, maximum=maximum)
    wanted = f"must be a number between 1 and {maximum}, or a percentage such as 25%"
    rule = Rule(
        f"type(self) == int ? int(self) >= 1 && int(self) <= {maximum} : "
        f"type(self) == string && {_PERCENTAGE_RULE}",
        wanted,
    )

    def parse(value: object, path: str) -> int | float:
        try:
            parsed = share.parse(value, path) if isinstance(value, str) else count.parse(value, path)
        except FieldError:
            raise FieldError(path, wanted) from None
        return cast(int | float, parsed)

    # A limit on the length of the text makes the rule cheap.
    schema: Schema = {"x-kubernetes-int-or-string": True, "maxLength": 8}
    return Kind({**schema, "x-kubernetes-validations": [rule.schema()]}, parse)


def flag() -> Kind:
    """True or false."""

    def parse(value: object, path: str) -> bool:
        if not isinstance(value, bool):
            raise FieldError(path, f"must be true or false, but is {describe(value)}")
        return value

    return Kind({"type": "boolean"}, parse)


def duration(minimum: str = "1ms", maximum: str = "24h", *, in_file: Kind | None = None) -> Kind:
    """A duration such as `90s` or `1h30m`, as milliseconds (int) in Python and in the file.

    In the CRD it is a string that CEL's `duration()` accepts: values with `format: duration` could not be
    multiplied there.
    """
    least, most = duration_ms(minimum), duration_ms(maximum)
    schema: Schema = {
        "type": "string",
        "maxLength": _MAX_DURATION_CHARACTERS,
        "x-kubernetes-validations": [
            Rule(
                f"self.matches(r'^{_DURATION}$')", "is not a duration; write it with a unit: 90s, 5m, 1h30m"
            ).schema(),
            Rule(
                f"!self.matches(r'^{_DURATION}$') || (duration(self) >= duration('{minimum}') && "
                f"duration(self) <= duration('{maximum}'))",
                f"must be between {minimum} and {maximum}",
            ).schema(),
        ],
    }

    def parse(value: object, path: str) -> int:
        if not isinstance(value, str) or not re.fullmatch(_DURATION, value):
            raise FieldError(path, f"{_shown(value)} is not a duration; write it with a unit: 90s, 5m, 1h30m")
        result = duration_ms(value)
        if len(value) > _MAX_DURATION_CHARACTERS or not least <= result <= most:
            raise FieldError(path, f"{value!r} must be between {minimum} and {maximum}")
        return round(result)

    return Kind(schema, parse, (in_file or whole(minimum=0, maximum=round(most))).parse)


def duration_ms(written: str) -> float:
    """The milliseconds of a duration as accepted by `duration`."""
    return sum(float(number) * _UNIT_MS[unit] for number, unit in _DURATION_PART.findall(written))


def file_size() -> Kind:
    """A size from `1Mi` to `1Gi`, in whole mebibytes, as bytes (int) in Python and in the file."""
    form = text(pattern=r"[1-9][0-9]{0,2}Mi|1Gi", example="128Mi (1Mi to 999Mi, or 1Gi)", max_length=8)

    def parse(value: object, path: str) -> int:
        written = form.parse(value, path)
        return int(written[:-2]) * _BYTES[written[-2:]]

    return Kind(form.schema, parse, whole(minimum=_BYTES["Mi"], maximum=_BYTES["Gi"]).parse)


def _share(value: object, path: str) -> float:
    share = _finite(value, path)
    if not 0 <= share <= 1:
        raise FieldError(path, f"is {share}, but must be between 0 and 1")
    return share


def percentage() -> Kind:
    """A share such as `60%`, more than 0 % and at most 100 %; as a fraction (0.6) in Python and in the file,
    where it may be 0."""

    def parse(value: object, path: str) -> float:
        if not isinstance(value, str) or not _PERCENTAGE.match(value):
            raise FieldError(path, f"{_shown(value)} is not a percentage; write it like 60%")
        share = float(value[:-1]) / 100
        if not 0 < share <= 1:
            raise FieldError(path, f"{value!r} must be more than 0% and at most 100%")
        return share

    rule = Rule(_PERCENTAGE_RULE, "must be more than 0% and at most 100%, such as 60%")
    schema: Schema = {"type": "string", "maxLength": 8, "x-kubernetes-validations": [rule.schema()]}
    return Kind(schema, parse, _share)


def text_list(item: Kind, *, at_least: int = 0, at_most: int = 100) -> Kind:
    """A list of distinct strings, as a tuple in Python."""
    schema: Schema = {
        "type": "array",
        "items": item.schema,
        "maxItems": at_most,
        "x-kubernetes-list-type": "set",
    }
    if at_least:
        schema["minItems"] = at_least

    def parse(value: object, path: str) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise FieldError(path, f"must be a list, but is {describe(value)}; write it as [{value}]")
        if len(value) < at_least:
            raise FieldError(path, f"must have at least {at_least}")
        if len(value) > at_most:
            raise FieldError(path, f"has {len(value)} entries; the limit is {at_most}")
        result: list[str] = []
        for index, entry in enumerate(value):
            parsed = item.parse(entry, f"{path}[{index}]")
            if parsed in result:
                raise FieldError(f"{path}[{index}]", f"{parsed!r} is listed twice; remove one")
            result.append(parsed)
        return tuple(result)

    return Kind(schema, parse)


def text_map(*, rules: Sequence[Rule] = (), at_most: int = MAX_ENTRIES, longest: int = MAX_TEXT) -> Kind:
    """A mapping of strings to strings, of up to `longest` characters; `rules` are for the CRD. In the file,
    numbers and true/false are taken as they are written."""
    schema: Schema = {
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": longest},
        "maxProperties": at_most,
    }
    if rules:
        schema["x-kubernetes-validations"] = [rule.schema() for rule in rules]

    def parse(value: object, path: str) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise FieldError(path, f"must be a mapping of strings, but is {describe(value)}")
        if len(value) > at_most:
            raise FieldError(path, f"has {len(value)} entries; the limit is {at_most}")
        texts = {str(key): _string(item, f"{path}[{key}]") for key, item in value.items()}
        for key, text in texts.items():
            if len(text) > longest:
                raise FieldError(f"{path}[{key}]", f"has {len(text)} characters; the limit is {longest}")
        return texts

    return Kind(schema, parse, _as_text)


def _as_text(value: object, path: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise FieldError(path, f"must be a mapping of strings, but is {describe(value)}")
    return {
        str(key): _written(item) if isinstance(item, bool | int | float) else _string(item, f"{path}.{key}")
        for key, item in value.items()
    }


def object_list(cls: type[Any], *, key: str, at_most: int) -> Kind:
    """A list of objects, as a tuple in Python; no two have the same `key` (a required field)."""
    schema: Schema = {
        "type": "array",
        "items": object_schema(cls),
        "maxItems": at_most,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }
    attribute = next(attribute for attribute, declared in declared_fields(cls) if declared.name == key)

    def parse(value: object, path: str) -> tuple[Any, ...]:
        result: list[Any] = []
        for index, item in enumerate(_objects(value, path, at_most)):
            parsed = parse_object(cls, item, f"{path}[{index}]")
            if any(getattr(parsed, attribute) == getattr(other, attribute) for other in result):
                raise FieldError(
                    f"{path}[{index}].{key}", f"{getattr(parsed, attribute)!r} is used twice; rename one"
                )
            result.append(parsed)
        return tuple(result)

    return Kind(schema, parse)


def object_sequence(cls: type[Any], *, at_most: int) -> Kind:
    """A list of objects whose order counts, as a tuple in Python."""
    schema: Schema = {
        "type": "array",
        "items": object_schema(cls),
        "maxItems": at_most,
        "x-kubernetes-list-type": "atomic",
    }

    def parse(value: object, path: str, *, in_file: bool = False) -> tuple[Any, ...]:
        return tuple(
            parse_object(cls, item, f"{path}[{index}]", in_file=in_file)
            for index, item in enumerate(_objects(value, path, at_most))
        )

    return Kind(
        schema, parse, partial(parse, in_file=True), lambda items: [file_document(item) for item in items]
    )


def _objects(value: object, path: str, at_most: int) -> Sequence[object]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise FieldError(path, f"must be a list, but is {describe(value)}")
    if len(value) > at_most:
        raise FieldError(path, f"has {len(value)} entries; the limit is {at_most}")
    return value


def anything() -> Kind:
    """A mapping that is not checked."""

    def parse(value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise FieldError(path, f"must be a mapping, but is {describe(value)}")
        return dict(value)

    return Kind({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, parse)


def nested(cls: type[Any]) -> Kind:
    """Another dataclass of declared fields."""
    return Kind(
        object_schema(cls),
        lambda value, path: parse_object(cls, value, path),
        lambda value, path: parse_object(cls, value, path, in_file=True),
    )


def join(path: str, name: str) -> str:
    """The path of a field inside `path`."""
    return f"{path}.{name}" if path else name


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggests the closest known name if one is close, else lists all of them."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)
    if close:
        return f"did you mean {lowered[close[0]]}?"
    return f"valid values: {', '.join(known)}"


def describe(value: object) -> str:
    """The type of a YAML value, for an error."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, Sequence) else f"{value} (put text in quotes)"


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else describe(value)


def _string(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        raise FieldError(
            path, f'must be text, but is {describe(value)}; write it in quotes: "{_written(value)}"'
        )
    raise FieldError(path, f"must be text, but is {describe(value)}")


def _written(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first_sentence(doc: str) -> str:
    return doc.split(". ")[0].split(" (")[0].rstrip(".")
