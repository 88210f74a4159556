"""The page about the resource names every field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slackwater import fields
from slackwater.runtime.config.pipeline_config import RouteConfig
from slackwater_operator.api.v1alpha1 import consumer_group as resources
from slackwater_operator.api.v1alpha1.spec.maintenance import Maintenance


def leaves(schema: dict[str, Any], path: str) -> list[str]:
    if "properties" not in schema:
        return [path]
    return [
        leaf
        for name, subschema in schema["properties"].items()
        for leaf in leaves(subschema, fields.join(path, name))
    ]


def defaults(schema: dict[str, Any], path: str) -> dict[str, str]:
    """The default of each field that has one, as the page writes it."""
    if "properties" in schema:
        result = {}
        for name, subschema in schema["properties"].items():
            result.update(defaults(subschema, fields.join(path, name)))
        return result
    if "default" not in schema:
        return {}
    value = schema["default"]
    words = {"": "empty", True: "true", False: "false"} if isinstance(value, bool | str) else {}
    return {path: str(words.get(value, value) if words else value)}


def test_every_reason_to_be_degraded_is_in_the_operators_page() -> None:
    root = Path(__file__).parents[4]
    sources = (root / "operator" / "slackwater_operator").rglob("*.py")
    given = re.compile(r"(?:Trouble|NoKey|\.needs_attention)\(\s*\"(\w+)\"")
    reasons = {reason for path in sources for reason in given.findall(path.read_text(encoding="utf-8"))}
    assert len(reasons) > 6
    page = (root / "docs" / "reference" / "conditions.md").read_text(encoding="utf-8")
    table = page[page.index("## Why Degraded") :].split("\n## ")[0]
    rows = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert reasons - rows == set()


def test_every_field_is_in_the_page() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "consumergroup.md").read_text(encoding="utf-8")
    known = leaves(fields.object_schema(resources.ConsumerGroup), "")
    assert len(known) > 20
    missing = [leaf for leaf in known if leaf not in ("apiVersion", "kind") and f"`{leaf}`" not in page]
    assert missing == []


@pytest.mark.parametrize(
    ("what", "declared"),
    [("schedule", resources.Schedule), ("route", RouteConfig), ("maintenance", Maintenance)],
)
def test_every_field_of_an_entry_is_in_the_page(what: str, declared: type) -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "consumergroup.md").read_text(encoding="utf-8")
    table = page[page.index(f"| field of a {what}") :].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [
        field.name for _, field in fields.declared_fields(declared)
    ]


def test_the_page_names_no_unknown_field() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "consumergroup.md").read_text(encoding="utf-8")
    known = leaves(fields.object_schema(resources.ConsumerGroup), "")
    named = set(re.findall(r"`((?:spec|metadata)\.[A-Za-z.]+)`", page))
    assert [field for field in named if not any(f"{leaf}.".startswith(f"{field}.") for leaf in known)] == []


def test_the_page_has_the_defaults_of_the_types() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "consumergroup.md").read_text(encoding="utf-8")
    rows = {
        path: default.strip(" `")
        for path, default in re.findall(r"^\| `(spec\.[A-Za-z.]+)` \|.*\| ([^|]*) \|$", page, re.MULTILINE)
    }
    values = defaults(fields.object_schema(resources.ConsumerGroupSpec), "spec")
    assert len(values) > 15
    wrong = {
        path: (values[path], rows[path]) for path in values if path in rows and rows[path] != values[path]
    }
    assert wrong == {}
