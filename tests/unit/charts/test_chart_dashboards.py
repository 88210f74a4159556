"""Dashboards: as the script makes them, in PromQL that parses, asking for metrics and labels that exist."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from slackwater.runtime.telemetry import metrics as worker_metrics
from slackwater_operator.telemetry import metrics as operator_metrics
from tests.support.operator import chart
from tools import dashboards

BOARDS = sorted((chart.CHART / "dashboards").glob("*.json"))
# What a scrape adds to each series (the PodMonitors' relabelling).
TARGET_LABELS = {"namespace", "pod", "container", "job", "instance", "endpoint"}
WORKER_TARGET_LABELS = {*TARGET_LABELS, "consumergroup"}


@cache
def known() -> Mapping[str, frozenset[str]]:
    """Series name -> the labels that it may carry, by the code that exports it."""
    result: dict[str, frozenset[str]] = {}
    for family in worker_metrics.Metrics(group="g", instance="i").collect():
        add(result, family, WORKER_TARGET_LABELS)
    for family in text_string_to_metric_families(operator_text()):
        for sample in family.samples:
            labels = frozenset(sample.labels) | TARGET_LABELS
            result[sample.name] = result.get(sample.name, frozenset()) | labels
    return result


def operator_text() -> str:
    """A scrape of an operator that knows everything about one group."""
    metrics, group = operator_metrics.Metrics(), ("ns", "g")
    metrics.show(group, operator_metrics.GroupFigures(
        lag_records={("t", 0): 1}, lag_seconds={("t", 0): 1}, produced_per_second=1, consumed_per_second=1,
        capacity_per_second=1, predicted_drain_seconds=1, partitions=1, members=1, orphaned_members=1,
        pods={"desired": 1}, state="Stable", generation=1, scale_workers={"raw": 1}, scale_held="settling",
        scale_at_max=True, restart_phase_seconds={("p", "join"): 1}, restart_budget_ratio={"p": 1},
        takeover_phase_seconds={("p", "join"): 1}, takeover_pause_seconds={"p": 1},
        rollout_pods={"r": 1}, rollout_phase="Idle", conditions={"Ready": "True"},
    ))  # fmt: skip
    metrics.rebalanced(group, "scale", 1.0)
    metrics.unowned(group, 1.0)
    metrics.decided(group, "scaling", "up")
    metrics.taken_over(group, "asked")
    metrics.observed("k:9092", 1.0)
    metrics.admission_certificate(1_000)
    return metrics.text().decode()


def test_the_scrape_for_checking_names_is_complete() -> None:
    fields = {field.name for field in dataclasses.fields(operator_metrics.GroupFigures)}
    assert len(fields) == 22, "add the new figure to operator_text()"
    assert all(f"slackwater_{name}" in known() for name in operator_metrics._GAUGES)


def add(labels_by_metric: dict[str, frozenset[str]], family: Metric, target: set[str]) -> None:
    declared = frozenset(getattr(family, "_labelnames", ()))
    for name in series_of(family):
        labels_by_metric[name] = labels_by_metric.get(name, frozenset()) | declared | target


def series_of(family: Metric) -> list[str]:
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    return [family.name + suffix for suffix in suffixes.get(family.type, [""])]


def labels_asked(expr: str) -> set[str]:
    """All labels in `by (...)`, of an expression whose groupings are all by names of series labels."""
    result = re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expr)
    return {label.strip() for group in result for label in group.split(",") if label.strip()}


@pytest.mark.parametrize("name", sorted(dashboards.BOARDS))
def test_the_chart_has_the_dashboards_of_the_script(name: str) -> None:
    made = dashboards.render(dashboards.BOARDS[name])
    assert made == dashboards.render(dashboards.BOARDS[name])
    stored = (chart.CHART / "dashboards" / name).read_text(encoding="utf-8")
    assert stored == made, "run `python -m tools.chart`"


def test_no_dashboard_is_left_over() -> None:
    assert [path.name for path in BOARDS] == sorted(dashboards.BOARDS)


@pytest.mark.parametrize("asked", chart.all_expressions(), ids=lambda asked: asked.where)
def test_an_expression_uses_only_exported_metrics(asked: chart.Asked) -> None:
    expr = chart.substituted(asked.expr)
    assert "$" not in expr, "a variable of Grafana that no dashboard has"
    selected = chart.selectors(expr)
    assert selected
    allowed = {"le"}
    for selector in selected:
        assert selector.metric in known(), f"nobody exports {selector.metric}"
        allowed |= known()[selector.metric]
        assert selector.labels <= known()[selector.metric], (
            f"{selector.metric} has no {selector.labels - known()[selector.metric]}"
        )
    assert labels_asked(expr) <= allowed


def test_every_metric_is_shown_or_has_a_reason_not_to_be() -> None:
    """``not_shown`` lists the metrics without a panel and an alert, each with the reason."""
    not_shown = {
        "slackwater_lag_records": "the operator's group_lag_records says the same, also without workers",
        "slackwater_rebalances": "as one worker sees them; the operator knows the cause",
        "slackwater_batches": "throughput is shown in records",
        "slackwater_records_out": "differs from what comes in only by what the handler drops",
        "slackwater_handler_failures": "ends in a restart, which is shown",
        "slackwater_refreshes": "whether data may be old for a while is the handler's to judge",
        "slackwater_commit_failures": "ends in a rebalance or an abandoned batch",
        "slackwater_poll_interval_seconds": "for a profile of one worker",
        "slackwater_restart_gap_seconds": "the operator's restart_phase_seconds has its parts",
        "slackwater_restart_gap_session_ratio": "the operator's restart_budget_ratio",
        "slackwater_lag_seconds": "the operator's group_lag_seconds",
        "slackwater_rebalance_seconds": "the operator's group_rebalance_seconds is of the whole group",
        "slackwater_operator_takeover_phase_seconds": "the worker's takeover_phase_seconds",
        "slackwater_unserved_seconds": "the operator's group_unowned_partition_seconds",
    }
    shown = {s.metric for a in chart.all_expressions() for s in chart.selectors(chart.substituted(a.expr))}
    bases = {name.removesuffix(s) for name in shown for s in ("_total", "_bucket", "_count", "_sum", "")}
    exported = {
        name.removesuffix("_total").removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        for name in known()
    }
    assert exported - bases - set(not_shown) == set()


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_each_panel_has_a_title_a_description_and_a_query(path: Path) -> None:
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    places = [tuple(sorted(panel["gridPos"].items())) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_the_group_board_shows_the_important_figures() -> None:
    """The most important panels are there, found by the metric that they query."""
    board = json.loads((chart.CHART / "dashboards" / "group.json").read_text(encoding="utf-8"))
    by_type: dict[str, set[str]] = {}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            names = {s.metric for s in chart.selectors(chart.substituted(target["expr"]))}
            by_type.setdefault(panel["type"], set()).update(names)
    assert {"slackwater_group_lag_records", "slackwater_group_lag_seconds"} <= by_type["heatmap"]
    assert {"slackwater_group_state", "slackwater_group_rebalances_total"} <= by_type["state-timeline"]
    assert {"slackwater_restart_phase_seconds", "slackwater_session_timeout_seconds"} <= by_type["barchart"]
    assert "slackwater_takeover_phase_seconds" in by_type["barchart"]
    lines = by_type["timeseries"]
    for name in (
        "group_predicted_drain_seconds", "group_rebalance_seconds_bucket",
        "group_unowned_partition_seconds_total",
        "scale_workers", "scale_held", "group_members", "group_pods", "group_partitions", "rollout_pods",
        "batch_phase_seconds_bucket", "group_produced_per_second", "group_consumed_per_second",
        "takeover_pause_seconds", "operator_takeovers_total", "takeovers_total",
    ):  # fmt: skip
        assert f"slackwater_{name}" in lines
