"""A public class's name says which class is meant: it occurs once in a distribution."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("package", ["worker/slackwater", "operator/slackwater_operator"])
def test_a_public_class_name_occurs_once(package: str) -> None:
    names = Counter(
        name
        for file in (ROOT / package).rglob("*.py")
        for name in re.findall(r"^class ([A-Z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert names.total() > 100
    assert [name for name, count in names.items() if count > 1] == []
