"""What fastavro leaves of Avro's schema resolution.

It gives a field that the writer lacks the default as it is in the JSON of the reader's schema. It converts by
the logical types of the writer's schema alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from slackwater.pipeline.values.avro_schema import Names, names_of
from slackwater.pipeline.values.ddl import SchemaTextError

_JSON: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float, str),
    "double": (int, float, str),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
    "error": (dict,),
}
"""The Python types of a default in JSON; of all other types it is text."""
_BITS = {"int": 32, "long": 64}
_ENCODED_ALIKE = frozenset(
    {(t, t) for t in ("int", "long", "bytes")} | {("int", "long"), ("string", "bytes")}
)
"""Types of writer and reader whose bytes are the same. Not text: no column needs it as a UUID."""


class _OtherTypeError(Exception):
    """The default is not of its type."""


def convert_defaults(reader: Any) -> None:
    """Replaces the defaults of a reader's schema by the values that fastavro would read for them.

    Raises :class:`SchemaTextError` that names the field for a default that is not of its type.
    """
    defaults = _Defaults(names_of(reader))
    for named in defaults.names.values():
        defaults.convert(named)


class _Defaults:
    def __init__(self, names: Names) -> None:
        self.names = names
        self._done: set[int] = set()

    def convert(self, schema: Any) -> None:
        """The defaults of the fields of ``schema``, if it is a record. Raises SchemaTextError."""
        for field in schema.get("fields", ()):
            if "default" not in field or id(field) in self._done:
                continue
            self._done.add(id(field))
            try:
                field["default"] = self._value(field["type"], field["default"])
            except _OtherTypeError:
                raise SchemaTextError(
                    f"field {field['name']} of {schema['name']}: the default "
                    f"{json.dumps(field['default'])[:100]} is not of its type"
                ) from None

    def _value(self, schema: Any, default: Any) -> Any:
        """Raises _OtherTypeError."""
        if isinstance(schema, list):
            return self._of_union(schema, default)
        schema = _resolved(schema, self.names)
        kind = schema["type"]
        if type(default) not in _JSON.get(kind, (str,)):
            raise _OtherTypeError
        if kind in ("record", "error"):
            return self._record(schema, default)
        if kind == "array":
            return [self._value(schema["items"], item) for item in default]
        if kind == "map":
            return {key: self._value(schema["values"], item) for key, item in default.items()}
        try:
            value = _primitive(schema, default)
            convert = _logical(schema)
            # A UUID is text in its column, and "" is a usual default.
            return value if convert is None or kind == "string" else convert(value, schema, schema)
        except (ValueError, OverflowError):
            raise _OtherTypeError from None

    def _of_union(self, branches: list[Any], default: Any) -> Any:
        """Of the first branch that ``default`` fits: Avro 1.12 allows any, earlier versions the first."""
        for branch in branches:
            try:
                return self._value(branch, default)
            except _OtherTypeError:
                continue
        raise _OtherTypeError

    def _record(self, schema: Any, default: dict[str, Any]) -> dict[str, Any]:
        self.convert(schema)
        value = {}
        for field in schema["fields"]:
            name = field["name"]
            if name in default:
                value[name] = self._value(field["type"], default[name])
            elif "default" in field:
                value[name] = field["default"]
            else:
                raise _OtherTypeError
        return value


def _primitive(schema: Any, default: Any) -> Any:
    """As read, but without its logical type. In JSON, code points stand for bytes. Raises ValueError."""
    kind = schema["type"]
    if kind in ("float", "double"):
        return float(default)
    value = default.encode("iso-8859-1") if kind in ("bytes", "fixed") else default
    if (
        (kind in _BITS and not -(1 << _BITS[kind] - 1) <= value < 1 << _BITS[kind] - 1)
        or (kind == "fixed" and len(value) != schema["size"])
        or (kind == "enum" and value not in schema["symbols"])
    ):
        raise ValueError
    return value


def with_logical_types(written: Any, reader: Any) -> Any:
    """``written``, which is changed, with the logical types of ``reader`` where only one of both has one."""
    return _Writer(names_of(written), names_of(reader)).type(written, reader)


class _Writer:
    def __init__(self, written: Names, reader: Names) -> None:
        self._written, self._reader = written, reader
        self._done: set[tuple[str, str]] = set()

    def type(self, written: Any, reader: Any) -> Any:
        """``written``, or what its values are to be read with where a value is read as ``reader``."""
        if isinstance(written, list):
            return [self.type(branch, reader) for branch in written]
        if isinstance(reader, list):  # of one type and null, as arrow_type() has checked
            reader = next(branch for branch in reader if branch != "null")
        own, wanted = _resolved(written, self._written), _resolved(reader, self._reader)
        kinds = own["type"], wanted["type"]
        differ = (_logical(own) is None) != (_logical(wanted) is None)
        if "fields" in own and "fields" in wanted:
            self._fields(own, wanted)
        elif kinds == ("array", "array"):
            own["items"] = self.type(own["items"], wanted["items"])
        elif kinds == ("map", "map"):
            own["values"] = self.type(own["values"], wanted["values"])
        elif differ and own["type"] == "fixed":
            own.pop("logicalType", None)
            own.update({key: wanted[key] for key in ("logicalType", "precision", "scale") if key in wanted})
        elif differ and _logical(own) is not None:
            return own["type"]
        elif differ and kinds in _ENCODED_ALIKE:
            return wanted
        return written

    def _fields(self, written: Any, reader: Any) -> None:
        names = written["name"], reader["name"]
        if names in self._done:
            return
        self._done.add(names)
        wanted = {alias: field for field in reader["fields"] for alias in field.get("aliases", ())}
        wanted.update({field["name"]: field for field in reader["fields"]})
        for field in written["fields"]:
            if field["name"] in wanted:
                as_read = wanted[field["name"]]
                field["type"] = self.type(field["type"], as_read["type"])
                if "default" in field and "default" in as_read:
                    # It is of no use but that schemas which were equal stay so: fastavro reads them faster.
                    field["default"] = as_read["default"]


def _resolved(schema: Any, names: Names) -> Any:
    return names.get(schema, {"type": schema}) if isinstance(schema, str) else schema


def _logical(schema: Any) -> Callable[..., Any] | None:
    """What fastavro converts values of ``schema`` by, after it has read them."""
    from fastavro.read import LOGICAL_READERS

    convert: Callable[..., Any] | None = LOGICAL_READERS.get(f"{schema['type']}-{schema.get('logicalType')}")
    return convert
