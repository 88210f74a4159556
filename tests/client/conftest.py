"""What the client's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.records.parsing import USUAL, use_parser


@pytest.fixture(params=[pytest.param("compiled", marks=pytest.mark.parts("parser")), "pure"])
def parser(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each of the two record parsers in turn, in the place where ``decode`` and ``BatchBuilder`` look."""
    yield use_parser(request.param)
    use_parser(USUAL)
