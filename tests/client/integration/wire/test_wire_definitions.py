"""Every declaration is held against Apache Kafka's own message definitions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from slackwater.kafka.wire.schema import NEVER, Field, Message, Request, Struct
from tests.support.wire.definitions import declared, definition, in_versions, item_of, snake, versions

pytestmark = pytest.mark.parts("kafka")

TYPES = {
    "bool": "boolean", "int8": "int8", "int16": "int16", "uint16": "uint16", "int32": "int32",
    "uint32": "uint32", "int64": "int64", "float64": "float64", "uuid": "uuid", "string": "string",
    "bytes": "bytes", "records": "records",
}  # fmt: skip
ZEROS: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "uuid": UUID(int=0), "float64": 0.0}


@pytest.mark.parametrize("kind", declared(), ids=lambda kind: kind.__name__)
def test_declaration_is_kafkas_own(kind: type[Message]) -> None:
    """Names, order, types, versions, nullable, tags, defaults, flexible versions, API key."""
    source = definition(kind.__name__)
    low, _, high = source["validVersions"].partition("-")
    assert (kind.min_version, kind.max_version) == (int(low), int(high or low))
    if issubclass(kind, Request):
        assert kind.api_key == source["apiKey"]
        assert kind.response_type.__name__ == kind.__name__.removesuffix("Request") + "Response"
    for version in range(kind.max_version + 2):
        flexible = in_versions(source["flexibleVersions"], version)
        assert (version >= kind.flexible) == flexible or source["flexibleVersions"] == "none"
    if source["flexibleVersions"] == "none":
        assert kind.flexible == NEVER
    common = {s["name"]: s["fields"] for s in source.get("commonStructs", [])}
    compare(kind, source["fields"], common, list(versions(kind)), kind, kind.__name__)


def compare(
    struct: type[Struct],
    fields: list[dict[str, Any]],
    common: dict[str, list[dict[str, Any]]],
    at: list[int],
    message: type[Message],
    path: str,
) -> None:
    wanted = [f for f in fields if any(in_versions(f["versions"], v) for v in at)]
    assert [f.name for f in struct._fields] == [snake(f["name"]) for f in wanted], path
    for ours, theirs in zip(struct._fields, wanted, strict=True):
        where = f"{path}.{ours.name}"
        present = [v for v in at if in_versions(theirs["versions"], v)]
        assert [v for v in at if ours.present(v)] == present, where
        compare_field(ours, theirs, present, at, message, where)
        is_array, item = item_of(ours.type)
        name = theirs["type"].removeprefix("[]")
        assert is_array == theirs["type"].startswith("[]"), where
        if isinstance(item, type):
            assert name not in TYPES, where
            compare(item, theirs.get("fields") or common[name], common, present, message, where)
        else:
            assert item.name == TYPES[name], where


def compare_field(
    ours: Field, theirs: dict[str, Any], present: list[int], at: list[int], message: type[Message], where: str
) -> None:
    for version in present:
        assert (version >= ours.nullable) == in_versions(theirs.get("nullableVersions"), version), where
        tagged = in_versions(theirs.get("taggedVersions"), version)
        assert tagged == (ours.tag is not None and version >= message.flexible), where
    assert ours.tag == theirs.get("tag"), where
    if present != at:  # it never matters for a field that every version has
        assert ours.ignorable == theirs.get("ignorable", False), where
    assert ours.make_default() == default_of(theirs, ours), where


def default_of(theirs: dict[str, Any], ours: Field) -> Any:
    """The default by the rules of Kafka's generator: zero, empty, or what is written."""
    written, kind = theirs.get("default"), theirs["type"]
    if written == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind == "records":
        return None
    if kind not in TYPES:
        assert isinstance(ours.type, type)
        return ours.type()
    if written is None:
        return ZEROS.get(kind, 0)
    if kind == "bool":
        return str(written).lower() == "true"
    return written if kind == "string" else int(str(written), 0)
