"""JSON Schema (draft 2020-12, the part that gives a type) as Arrow types.

Read: ``type`` (also a list with ``null``), ``properties``, ``required``, ``items``, ``additionalProperties``
(an object without ``properties`` is a map), ``enum`` and ``const`` of texts, ``format`` ``date-time`` and
``date``, ``anyOf`` or ``oneOf`` of one schema and ``null``, and ``$ref`` within the document. Limits on
values, such as ``minimum``, are not checked.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pyarrow as pa

from slackwater.pipeline.values.ddl import MAX_DEPTH, SchemaTextError
from slackwater.pipeline.values.types import FieldLimit


class _Document(NamedTuple):
    root: Any
    limit: FieldLimit


_SIMPLE = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}


def struct_of(text: str) -> pa.StructType:
    """The struct that the schema ``text`` describes; required fields that must not be null are not nullable.

    Raises :class:`SchemaTextError` that names the place as a JSON pointer.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise SchemaTextError(f"is no JSON: {exc}") from None
    type_, _ = _type(document, "#", _Document(document, FieldLimit()), 0)
    if not pa.types.is_struct(type_):
        raise SchemaTextError(
            "must be an object with properties, which become the fields of the column value"
        )
    return type_


def _type(schema: Any, at: str, document: _Document, depth: int) -> tuple[pa.DataType, bool]:
    """The type, and whether the schema allows null."""
    document.limit.take()
    if depth > MAX_DEPTH:
        raise SchemaTextError(f"at {at[:200]}: types are nested more than {MAX_DEPTH} deep, or without end")
    if not isinstance(schema, dict):
        raise SchemaTextError(f"at {at}: must be a schema that is an object")
    if "$ref" in schema:
        reference = schema["$ref"]
        return _type(_referred(reference, at, document.root), str(reference), document, depth + 1)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _union(schema[key], f"{at}/{key}", document, depth)
    kind, nullable = _kind(schema, at)
    if kind == "object":
        return _object(schema, at, document, depth), nullable
    if kind == "array":
        if "items" not in schema:
            raise SchemaTextError(f"at {at}: an array needs items")
        item, _ = _type(schema["items"], f"{at}/items", document, depth + 1)
        return pa.list_(item), nullable
    if kind == "string":
        return _FORMATS.get(str(schema.get("format")), pa.string()), nullable
    return _SIMPLE[kind], nullable


def _kind(schema: dict[str, Any], at: str) -> tuple[str, bool]:
    given = schema.get("type")
    if given is None and "properties" in schema:
        given = "object"
    if given is None:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        if values and all(isinstance(value, str) or value is None for value in values) and any(values):
            return "string", None in values
        raise SchemaTextError(f"at {at}: has no type")
    kinds = given if isinstance(given, list) else [given]
    others = [kind for kind in kinds if kind != "null"]
    if len(others) != 1 or (others[0] not in _SIMPLE and others[0] not in ("object", "array")):
        raise SchemaTextError(f"at {at}: the type {json.dumps(given)[:100]} is not supported")
    return others[0], "null" in kinds


def _object(schema: dict[str, Any], at: str, document: _Document, depth: int) -> pa.DataType:
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise SchemaTextError(f"at {at}: properties must be an object, and required an array")
    if not properties:
        items = schema.get("additionalProperties")
        if not isinstance(items, dict):
            raise SchemaTextError(f"at {at}: an object needs properties, or a schema as additionalProperties")
        return pa.map_(pa.string(), _type(items, f"{at}/additionalProperties", document, depth + 1)[0])
    fields = []
    for name, inner in properties.items():
        type_, nullable = _type(inner, f"{at}/properties/{name}", document, depth + 1)
        fields.append(pa.field(name, type_, nullable or name not in required))
    return pa.struct(fields)


def _union(branches: Any, at: str, document: _Document, depth: int) -> tuple[pa.DataType, bool]:
    if isinstance(branches, list):
        others = [(n, branch) for n, branch in enumerate(branches) if branch != {"type": "null"}]
        if len(others) == 1:
            n, branch = others[0]
            type_, nullable = _type(branch, f"{at}/{n}", document, depth + 1)
            return type_, nullable or len(branches) > 1
    raise SchemaTextError(f"at {at}: only a choice between one schema and null is supported")


def _referred(reference: Any, at: str, document: Any) -> Any:
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise SchemaTextError(f"at {at}: the reference {str(reference)[:100]!r} leads out of the document")
    place = document
    for part in reference[2:].split("/") if reference != "#" else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, dict) or key not in place:
            raise SchemaTextError(f"at {at}: the reference {reference[:100]!r} leads nowhere")
        place = place[key]
    return place
