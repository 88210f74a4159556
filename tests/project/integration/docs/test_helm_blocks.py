"""The chart takes the values that README.md and docs/ give it."""

from __future__ import annotations

import itertools

import pytest

from tests.support.docs.blocks import blocks, commands, why_not_run
from tests.support.operator import chart

pytestmark = pytest.mark.parts("kubectl")


@pytest.mark.parametrize(
    "words",
    [
        words
        for block in blocks("sh")
        if not why_not_run(block)
        for words in commands(block)
        if words[0] == "helm" and words[1] in ("install", "upgrade")
    ],
    ids=" ".join,
)
def test_helm_renders_the_chart_with_the_values_of_a_page(words: list[str]) -> None:
    values = [word for option, word in itertools.pairwise(words) if option == "--set"]
    given = (argument for value in values for argument in ("--set", value))
    assert "kind: Deployment" in chart.helm("template", chart.RELEASE, str(chart.CHART), *given)
