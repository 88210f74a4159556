"""The chart as real helm renders it, and what its alerts and dashboards ask Prometheus."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from tests.support.controlplane import build
from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "slackwater"
RELEASE = "sw"
NAMESPACE = "slackwater"
Manifest = dict[str, Any]


class HelmFailed(RuntimeError):
    """helm refused; the message is what it said."""


def helm(*arguments: str, timeout_s: float = HANG_S, env: Mapping[str, str] | None = None) -> str:
    """Runs helm; what it printed. Raises :class:`HelmFailed`."""
    done = subprocess.run(
        [str(build.helm()), *arguments],
        capture_output=True, text=True, timeout=timeout_s, check=False,
        env=None if env is None else dict(env),
    )  # fmt: skip
    if done.returncode:
        raise HelmFailed(done.stderr + done.stdout)
    return done.stdout


def set_values(values: Mapping[str, Any]) -> list[str]:
    """`--set-json` arguments for values by their path."""
    return [part for path, value in values.items() for part in ("--set-json", f"{path}={json.dumps(value)}")]


def template(
    values: Mapping[str, Any] | None = None, *, release: str = RELEASE, files: Sequence[Path] = ()
) -> list[Manifest]:
    """All manifests of a release in the namespace `slackwater`, hooks as well. A caller may change them."""
    options = tuple(set_values(values or {})) + tuple(f"--values={file}" for file in files)
    return [manifest for text in _rendered(release, options) if (manifest := pickle.loads(_parsed(text)))]


@cache
def _rendered(release: str, options: Sequence[str]) -> list[str]:
    """The manifests' texts: rendering takes 0.1 s of CPU time."""
    said = helm("template", release, str(CHART), "--namespace", NAMESPACE, *options)
    return re.split(r"^---$", said, flags=re.MULTILINE)


@cache
def _parsed(text: str) -> bytes:
    """A manifest, pickled. Most are the same whatever the values are, the large definition first of all."""
    return pickle.dumps(yaml.load(text, Loader))


Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML ten times as quick as Python's own code."""


def only_manifest(manifests: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """The only manifest of that kind (and name)."""
    matching = [m for m in manifests if m["kind"] == kind and name in ("", m["metadata"]["name"])]
    assert len(matching) == 1, f"{len(matching)} of {kind} {name}"
    return matching[0]


@dataclass(frozen=True)
class Asked:
    """One expression: where it stands, and as it is written there."""

    where: str
    expr: str


def alerts(values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The rules of the rendered PrometheusRule."""
    rule = only_manifest(template({"prometheusRule.enabled": True, **(values or {})}), "PrometheusRule")
    return [rule for group in rule["spec"]["groups"] for rule in group["rules"]]


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard's JSON without its rows; those of collapsed rows as well."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def dashboard_expressions(path: Path) -> Iterator[Asked]:
    """Everything a dashboard's JSON asks: panels, marks, and the metrics that variables list."""
    board = json.loads(path.read_text(encoding="utf-8"))
    for panel in panels(board):
        for target in panel.get("targets", []):
            yield Asked(f"{path.stem}: {panel['title']} ({target['refId']})", target["expr"])
    for mark in board.get("annotations", {}).get("list", []):
        yield Asked(f"{path.stem}: mark {mark['name']}", mark["expr"])
    for variable in board["templating"]["list"]:
        query = variable.get("query")
        if isinstance(query, dict):
            # label_values(SELECTOR, LABEL)
            selector = query["query"].removeprefix("label_values(").rpartition(",")[0]
            yield Asked(f"{path.stem}: variable {variable['name']}", selector)


def all_expressions() -> list[Asked]:
    """Of all dashboards and alerts."""
    boards = sorted((CHART / "dashboards").glob("*.json"))
    return [
        *(asked for board in boards for asked in dashboard_expressions(board)),
        *(Asked(f"alert {rule['alert']}", rule["expr"]) for rule in alerts()),
    ]


VARIABLES = {"$__rate_interval": "1m", "$__range": "15m", "$__interval": "15s"}


def substituted(expr: str, *, namespace: str = "ns", group: str = "g") -> str:
    """The expression with Grafana's variables filled in."""
    for name, value in {**VARIABLES, "$cluster": "", "$namespace": namespace, "$group": group}.items():
        expr = expr.replace(name, value)
    return expr


@dataclass(frozen=True)
class Selected:
    """One selector of an expression: the metric's name and the labels it matches."""

    metric: str
    labels: frozenset[str]


def selectors(expr: str) -> list[Selected]:
    """All selectors of an expression. Raises ValueError for one that is no PromQL."""
    selectors: list[Selected] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            names = frozenset(matcher.name for matcher in node.matchers.matchers)
            selectors.append(Selected(node.name or "", names))

    promql_parser.walk(promql_parser.parse(expr), visit)
    return selectors
