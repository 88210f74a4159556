"""The declared differences of old brokers are about rows that exist."""

from __future__ import annotations

import ast
from pathlib import Path

from tests import conformance
from tests.conformance.differences import DIFFERENCES

FOLDER = Path(*conformance.__path__)


def test_each_declared_difference_names_a_test() -> None:
    """A row without its declaration fails on the old broker only, in `make long`."""
    tests = {
        node.name
        for path in FOLDER.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert tests
    assert {row.partition("[")[0] for _, row in DIFFERENCES} - tests == set()
