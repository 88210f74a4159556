"""What the pages on installing and operating say is what the code has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.runtime.telemetry.metrics import Metrics
from slackwater_operator.api.v1alpha1 import consumer_group
from slackwater_operator.model import names
from slackwater_operator.policies import conditions
from slackwater_operator.telemetry.metrics import OperatorMetrics
from tests.support.operator import chart

DOCS = chart.ROOT / "docs"
PAGES = [
    *sorted((DOCS / "how-to").rglob("*.md")),
    *sorted((DOCS / "tutorials").glob("*.md")),
    chart.CHART / "README.md",
]


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_first_group_can_be_read() -> None:
    page = text(DOCS / "tutorials" / "first-group.md")
    (block,) = re.findall(r"```yaml[^\n]*\n(apiVersion.*?)```", page, re.DOTALL)
    group = consumer_group.parse(yaml.safe_load(block))
    assert group.name == "flights"
    assert group.spec.scaling is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_pages_set_only_existing_values(page: Path) -> None:
    schema: dict[str, Any] = json.loads(text(chart.CHART / "values.schema.json"))
    result = re.findall(r"--set '?([A-Za-z.]+)=", text(page))
    result += re.findall(
        r"`((?:networkPolicy|podMonitor|prometheusRule|crds|rbac)\.[A-Za-z.]+)[=`]", text(page)
    )
    for path in result:
        inside = schema
        for key in path.split("."):
            if "properties" not in inside:
                break
            assert key in inside["properties"], path
            inside = inside["properties"][key]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_have_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", text(page)):
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
    own = {
        re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-")
        for h in re.findall(r"^#+ (.+)$", text(page), re.M)
    }
    for anchor in re.findall(r"\]\(#([^)]*)\)", text(page)):
        assert anchor in own, anchor


def test_every_condition_and_reason_is_explained() -> None:
    page = text(DOCS / "reference" / "conditions.md")
    for kind in conditions.TYPES:
        assert f"| `{kind}` |" in page, kind
    reasons = {*conditions._HELD.values(), *conditions._LIMITS.values()}
    for folder in ("planner", "policies"):
        for file in (chart.ROOT / "operator" / "slackwater_operator" / folder).rglob("*.py"):
            reasons |= set(re.findall(r'(?:Trouble|\.needs_attention)\(\s*"([A-Z][A-Za-z]+)"', text(file)))
            reasons |= set(re.findall(r'_Verdict\(\s*_[A-Z]+, "([A-Z][A-Za-z]+)"', text(file)))
    assert {"NameTaken", "InvalidSpec", "WorkerFailing", "Settled"} <= reasons
    # The condition's own name in other words.
    plain = {"Observed", "AsDecided", "UpToDate", "Stable", "NotSuspended", "HotPartition", "StuckConsumer",
             "NotDecided", "LagUnknown", "Suspended"}  # fmt: skip
    assert {reason for reason in reasons - plain if f"`{reason}`" not in page} == set()


def test_every_metric_of_a_worker_is_explained_and_no_other() -> None:
    section = text(DOCS / "reference" / "metrics.md").split("## Of a worker", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    explained = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    families = Metrics(group="g", instance="i").collect()
    exported = [family.name + ("_total" if family.type == "counter" else "") for family in families]
    assert sorted(f"slackwater_{name}" for name in explained) == sorted(exported)


def test_every_metric_of_the_operator_is_listed_and_no_other() -> None:
    page = text(DOCS / "reference" / "metrics.md")
    section = re.split(r"The\sworkers\sexport", page.split("## Of the operator", 1)[1])[0]
    listed = {name for name in re.findall(r"`([a-z_]+)(?:\{[^}]*\})?`", section) if name != "slackwater_"}
    metrics = OperatorMetrics()
    metrics.admission_certificate(0)
    types = re.findall(r"^# TYPE slackwater_(\w+) (\w+)", metrics.text().decode(), re.MULTILINE)
    assert listed - {"namespace", "group"} == {name for name, _ in types}


def test_the_pages_name_the_annotations_of_the_code() -> None:
    page = text(DOCS / "how-to" / "operate" / "operate.md")
    for annotation in (names.RESTARTED_AT, names.PAUSED, names.RETRY, names.REWIND, names.MAINTAIN):
        assert annotation in page
    assert names.FINALIZER in text(DOCS / "how-to" / "install" / "uninstall.md")
