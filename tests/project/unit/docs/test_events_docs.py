"""docs/reference/events.md has the reasons that the operator gives to Events, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from slackwater_operator.planner.lost_log import RECORDS_SKIPPED
from slackwater_operator.policies import topics

ROOT = Path(__file__).parents[4]
CALLS = {"emit_after", "emit_before", "EmitEvent"}


def reasons() -> Iterator[str]:
    """The literal reasons in the planner's calls; those that are computed are the constants below."""
    for path in (ROOT / "operator" / "slackwater_operator" / "planner").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and _name(node.func) in CALLS:
                argument = node.args[0]
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)
    yield from ("ScaledUp", "ScaledDown", "Rewound", "RewindWithdrawn", "RewindRefused", "RewindFailed")
    yield from (RECORDS_SKIPPED, topics.CREATED, topics.GREW)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_reason_is_listed_and_no_other() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
    listed = {reason for cell in first_cells for reason in re.findall(r"`(\w+)`", cell)}
    assert listed == set(reasons())


def test_the_computed_reasons_are_in_the_code() -> None:
    scaling = (ROOT / "operator/slackwater_operator/planner/scaling.py").read_text(encoding="utf-8")
    assert '"ScaledUp" if way == UP else "ScaledDown"' in scaling
    steps = (ROOT / "operator/slackwater_operator/planner/rewind/steps.py").read_text(encoding="utf-8")
    assert '{REWOUND: "Rewound", WITHDRAWN: "RewindWithdrawn"}.get(result, f"Rewind{result}")' in steps
