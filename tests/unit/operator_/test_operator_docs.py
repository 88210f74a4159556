"""The page about the resource names every field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slackwater_operator import fields, resources


def leaves(schema: dict[str, Any], path: str) -> list[str]:
    if "properties" not in schema:
        return [path]
    return [
        leaf for name, one in schema["properties"].items() for leaf in leaves(one, fields.join(path, name))
    ]


def test_every_field_is_in_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "consumergroup.md").read_text(encoding="utf-8")
    known = leaves(fields.object_schema(resources.ConsumerGroup), "")
    assert len(known) > 20
    missing = [leaf for leaf in known if leaf not in ("apiVersion", "kind") and f"`{leaf}`" not in page]
    assert missing == []
