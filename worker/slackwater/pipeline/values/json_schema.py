"""JSON Schema (draft 2020-12, the part that gives a type) as Arrow types.

Read: ``type`` (also a list with ``null``), ``properties``, ``required``, ``items``,
``additionalProperties`` (an object without ``properties`` is a map), ``enum`` and ``const`` of texts,
``format`` ``date-time`` and ``date``, ``anyOf`` or ``oneOf`` of one schema and ``null``, ``allOf`` of
objects, and ``$ref`` to a place in the document or in one that is registered as a reference. Limits on
values, such as ``minimum``, are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urldefrag, urljoin

import pyarrow as pa

from slackwater.pipeline.values.ddl import MAX_DEPTH, SchemaTextError
from slackwater.pipeline.values.types import FieldLimit


class _Document(NamedTuple):
    """The document that a schema is in. ``others``: those that may be referred to, by name and by ``$id``."""

    root: Any
    limit: FieldLimit
    others: Mapping[str, Any]


_DESCRIBES = {
    "properties",
    "additionalProperties",
    "items",
    "$ref",
    "anyOf",
    "oneOf",
    "allOf",
    "enum",
    "const",
}
"""Keywords of which a schema has one at least, if it says more of an object than that it is one."""
_SIMPLE = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}


def struct_of(text: str, references: Iterable[tuple[str, str]] = ()) -> pa.StructType:
    """The struct that the schema ``text`` describes; required fields that must not be null are not nullable.

    ``references``: name and text of the schemas that it may refer to. Raises :class:`SchemaTextError` that
    names the place as a JSON pointer.
    """
    others = {}
    try:
        document = json.loads(text)
        for name, referred in references:
            others[name] = other = json.loads(referred)
            if isinstance(other, dict) and isinstance(other.get("$id"), str):
                others[other["$id"]] = other
    except (ValueError, RecursionError) as exc:
        raise SchemaTextError(f"is no JSON: {exc}") from None
    type_, _ = _type(document, "#", _Document(document, FieldLimit(), others), 0)
    if not pa.types.is_struct(type_):
        raise SchemaTextError(
            "must be an object with properties, which become the fields of the column value"
        )
    return type_


def _type(
    schema: Any, at: str, document: _Document, depth: int, required: frozenset[str] = frozenset()
) -> tuple[pa.DataType, bool]:
    """The type, and whether the schema allows null. ``required``: properties that are so, too."""
    document.limit.take()
    if depth > MAX_DEPTH:
        raise SchemaTextError(f"at {at[:200]}: types are nested more than {MAX_DEPTH} deep, or without end")
    if not isinstance(schema, dict):
        raise SchemaTextError(f"at {at}: must be a schema that is an object")
    if "$ref" in schema:
        referred, place, document = _referred(schema["$ref"], at, document)
        return _type(referred, place, document, depth + 1, required)
    if "allOf" in schema:
        return _all_of(schema, at, document, depth, required)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _union(schema[key], f"{at}/{key}", document, depth)
    kind, nullable = _kind(schema, at)
    if kind == "object":
        return _object(schema, at, document, depth, required), nullable
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


def _object(
    schema: dict[str, Any], at: str, document: _Document, depth: int, required: frozenset[str]
) -> pa.DataType:
    properties, required = schema.get("properties") or {}, required | _required(schema, at)
    if not isinstance(properties, dict):
        raise SchemaTextError(f"at {at}: properties must be an object")
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


def _required(schema: dict[str, Any], at: str) -> frozenset[str]:
    required = schema.get("required") or []
    if not isinstance(required, list):
        raise SchemaTextError(f"at {at}: required must be an array")
    return frozenset(filter(lambda name: isinstance(name, str), required))


def _all_of(
    schema: dict[str, Any], at: str, document: _Document, depth: int, required: frozenset[str]
) -> tuple[pa.DataType, bool]:
    """One object of all properties. A part may require those of another."""
    parts = schema["allOf"]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise SchemaTextError(f"at {at}/allOf: must be an array of schemas")
    own = {name: value for name, value in schema.items() if name != "allOf"}
    places = [(own, at), *((part, f"{at}/allOf/{n}") for n, part in enumerate(parts))]
    required = required.union(*(_required(part, place) for part, place in places))
    made = [
        _type(part, place, document, depth + 1, required)
        for part, place in places
        if part.keys() & _DESCRIBES or part.get("type") in _SIMPLE
    ]
    if not made:
        raise SchemaTextError(f"at {at}: has no type")
    nullable = all(allows_null for _, allows_null in made)
    if len(made) == 1:
        return made[0][0], nullable
    fields: dict[str, pa.Field] = {}
    for kind, _ in made:
        if not pa.types.is_struct(kind):
            raise SchemaTextError(f"at {at}/allOf: only objects with properties can be put together")
        for field in kind:
            if fields.setdefault(field.name, field).type != field.type:
                raise SchemaTextError(f"at {at}/allOf: the property {field.name} has two types")
    return pa.struct(list(fields.values())), nullable


def _referred(reference: Any, at: str, document: _Document) -> tuple[Any, str, _Document]:
    """What a reference leads to, its place, and the document that it is in."""
    base, pointer = urldefrag(reference) if isinstance(reference, str) else ("", "?")
    root = document.root
    if base:
        own = root.get("$id") if isinstance(root, dict) else None
        names = [base, *([urljoin(own, base)] if isinstance(own, str) else [])]
        known = [document.others[name] for name in names if name in document.others]
        if not known:
            raise SchemaTextError(
                f"at {at}: the reference {base[:100]!r} leads to a schema that is not among its references"
            )
        root = known[0]
    if pointer and not pointer.startswith("/"):
        raise SchemaTextError(f"at {at}: the reference {str(reference)[:100]!r} is not supported")
    place = root
    for part in pointer[1:].split("/") if pointer else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, dict) or key not in place:
            raise SchemaTextError(f"at {at}: the reference {reference[:100]!r} leads nowhere")
        place = place[key]
    return place, str(reference), document._replace(root=root)
