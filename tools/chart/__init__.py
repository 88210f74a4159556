"""The generated parts of the chart: the CRD's copy, defaults, dashboards, and the README's table of values.

`python -m tools.chart` writes all of it; a test fails where a file is not what this would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools import dashboards

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "slackwater"
CRD_NAME = "consumergroups.slackwater.dev.yaml"
DEFAULTS = CHART / "files" / "defaults.yaml"
REMOVABLE = frozenset({"resources", "podSecurityContext", "securityContext"})
"""Values of which a user may take parts away by null: their defaults must not come back."""
BEGIN, END = "<!-- values: made by `python -m tools.chart` -->", "<!-- end of values -->"
_KINDS = {"array", "boolean", "integer", "number", "object", "string"}
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9]*):")


class UndocumentedValue(ValueError):
    """A value has no comment right above it; the message names it."""


@dataclass(frozen=True)
class Value:
    """One value of the chart: its path (`image.tag`), its comment, its type by the schema, its default."""

    path: str
    about: str
    kind: str
    default: Any


def files() -> Iterator[tuple[Path, str]]:
    """Each generated file with what it has to hold."""
    yield CHART / "files" / "crds" / CRD_NAME, (ROOT / "crds" / CRD_NAME).read_text(encoding="utf-8")
    yield DEFAULTS, defaults()
    for name, board in dashboards.BOARDS.items():
        yield CHART / "dashboards" / name, dashboards.render(board)
    readme = CHART / "README.md"
    yield readme, with_table(readme.read_text(encoding="utf-8"), table(values()))


def defaults() -> str:
    """The defaults that templates fill in: helm gives them no other way to their own values.yaml."""
    tree = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    kept = {key: value for key, value in tree.items() if key not in REMOVABLE}
    head = "# Generated from values.yaml by `python -m tools.chart`; don't edit.\n"
    return head + yaml.safe_dump(kept, sort_keys=False)


def values() -> list[Value]:
    """All values with their comments, in their order.

    Raises:
        UndocumentedValue: one has no comment, or no type in values.schema.json.
    """
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return list(_documented(text, yaml.safe_load(text), schema))


def _documented(text: str, tree: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[Value]:
    # A leaf is a key whose value isn't a mapping, or whose comment speaks of it as a whole.
    path: list[str] = []
    comment: list[str] = []
    whole = -1  # below this indentation is the inside of a value that was documented as a whole
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
            continue
        match = _KEY.match(line)
        depth = len(match["indent"]) // 2 if match else 0
        if match is None or (0 <= whole < depth):
            comment = []
            continue
        path[depth:] = [match["key"]]
        whole = -1
        value: Any = tree
        for key in path:
            value = value[key]
        if comment:
            yield Value(".".join(path), " ".join(comment), _kind(schema, path), value)
            whole = depth
        elif not isinstance(value, dict) or not value:
            raise UndocumentedValue(f"values.yaml: {'.'.join(path)} has no comment right above it")
        comment = []


def _kind(schema: Mapping[str, Any], path: Sequence[str]) -> str:
    """The type of a value, as the schema has it; of an enumeration and of alternatives all types."""
    for key in path:
        schema = schema.get("properties", {}).get(key, {})
    alternatives = schema.get("anyOf", [schema])
    kinds = {str(alternative.get("type", "")) for alternative in alternatives}
    if "enum" in schema:
        kinds = {"string" if isinstance(value, str) else "other" for value in schema["enum"]}
    if not kinds <= _KINDS:
        raise UndocumentedValue(f"values.schema.json: {'.'.join(path)} has no type")
    return " or ".join(sorted(kinds))


def table(documented: list[Value]) -> str:
    """The values as a table of Markdown."""
    rows = [f"| `{v.path}` | {v.kind} | {_cell(v.about)} | {_default(v.default)} |" for v in documented]
    return "\n".join(["| value | type | what | default |", "|---|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(value: Any) -> str:
    if value == "" or value is None:
        return "empty"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def with_table(readme: str, made: str) -> str:
    """The README with the table between its marks."""
    before, rest = readme.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def write() -> None:
    """Writes every generated file."""
    for path, text in files():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
