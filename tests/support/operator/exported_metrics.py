"""The metrics that workers and operators export, and the expressions that ask for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from slackwater.runtime.telemetry import metrics as worker_metrics
from slackwater_operator.telemetry import metrics as operator_metrics
from tests.support.operator import chart

TARGET_LABELS = {"cluster", "namespace", "pod", "container", "job", "instance", "endpoint"}


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
    metrics, group = operator_metrics.OperatorMetrics(), ("ns", "g")
    metrics.show(group, operator_metrics.GroupFigures(
        lag_records={("t", 0): 1}, lag_seconds={("t", 0): 1}, produced_per_second=1, consumed_per_second=1,
        capacity_per_second=1, predicted_drain_seconds=1, partitions=1, members=1, orphaned_members=1,
        pods={"desired": 1}, state="Stable", generation=1, scale_workers={"raw": 1}, scale_held="settling",
        scale_at_max=True, restart_phase_seconds={("p", "join"): 1}, restart_budget_ratio={"p": 1},
        takeover_phase_seconds={("p", "join"): 1}, takeover_pause_seconds={"p": 1},
        rollout_pods={"r": 1}, rollout_phase="Idle", conditions={"Ready": "True"},
        rollout_phase_transitions={"Idle": 1.0}, rollout_steps=2, rollout_steps_completed=1,
        rollout_analysis="successful", maintenance_successes={"t": 1.0}, maintenance_failures={"t": 0.0},
        condition_transitions={("Ready", "True", "Settled"): 1.0},
    ))  # fmt: skip
    metrics.rebalanced(group, "scale", 1.0)
    metrics.unowned(group, 1.0)
    metrics.decided(group, "scaling", "up")
    metrics.taken_over(group, "asked")
    metrics.observed("k:9092", 1.0)
    metrics.admission_certificate(1_000)
    metrics.watch_refused("ns", ("list pods", "Forbidden"))
    return metrics.text().decode()


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


def check(expression: chart.Asked) -> None:
    """Fails unless the expression names only metrics and labels that are exported."""
    expr = chart.substituted(expression.expr)
    assert "$" not in expr, "a variable of Grafana that no dashboard has"
    selected = chart.selectors(expr)
    assert selected
    allowed = {"le", *re.findall(r'count_values\("(\w+)"', expr)}
    for selector in selected:
        assert selector.metric in known(), f"nobody exports {selector.metric}"
        allowed |= known()[selector.metric]
        assert selector.labels <= known()[selector.metric], (
            f"{selector.metric} has no {selector.labels - known()[selector.metric]}"
        )
    assert labels_asked(expr) <= allowed
