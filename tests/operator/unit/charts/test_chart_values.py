"""The chart's values: documented, in the schema, used; and the files that `tools.chart` generates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.support.operator import chart
from tools import chart as generated


@pytest.mark.parametrize(("path", "text"), list(generated.files()), ids=lambda v: getattr(v, "name", ""))
def test_generated_files_are_what_the_generator_writes(path: Any, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, "run `python -m tools.chart`"


def leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def test_every_value_is_documented_and_in_the_schema() -> None:
    defaults = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))
    documented = {value.path for value in generated.values()}
    schema = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
    for path in leaves(defaults):
        assert any(".".join(path[:length]) in documented for length in range(1, len(path) + 1)), path
        inside = schema
        for key in path:
            if "properties" not in inside:  # free form from here on, such as resources.limits
                break
            assert key in inside["properties"], path
            inside = inside["properties"][key]
    assert all(len(value.about) > 10 for value in generated.values())


def test_the_schema_has_no_value_without_a_default() -> None:
    defaults = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))

    def walk(schema: dict[str, Any], tree: Any, path: str) -> None:
        for key, inside in schema.get("properties", {}).items():
            if f"{path}{key}" == "resources.claims":
                continue
            assert isinstance(tree, dict), path
            assert key in tree, f"{path}{key}"
            walk(inside, tree[key], f"{path}{key}.")

    walk(json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8")), defaults, "")


def test_every_value_is_used() -> None:
    templates = "\n".join(
        path.read_text(encoding="utf-8") for path in (chart.CHART / "templates").rglob("*") if path.is_file()
    )
    used = set(re.findall(r"\b[A-Za-z][A-Za-z0-9]*", templates))
    for value in generated.values():
        assert value.path.rpartition(".")[2] in used, value.path
