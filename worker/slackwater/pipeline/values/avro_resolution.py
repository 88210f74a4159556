"""What fastavro leaves of Avro's schema resolution.

It gives a field that the writer lacks the default as it is in the JSON of the reader's schema.
"""

from __future__ import annotations

import json
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
        from fastavro.read import LOGICAL_READERS

        self.names = names
        self._logical = LOGICAL_READERS
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
        if isinstance(schema, str):
            schema = self.names.get(schema, {"type": schema})
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
            logical = self._logical.get(f"{kind}-{schema.get('logicalType')}")
            return value if logical is None else logical(value, schema, schema)
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
