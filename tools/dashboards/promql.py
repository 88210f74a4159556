"""PromQL that both dashboards use."""

from __future__ import annotations

from tools.dashboards.panels import Variable

CAUSES = (("scale", "blue"), ("rollout", "purple"), ("topics", "yellow"), ("unplanned", "red"))
"""Causes of rebalances and their colours."""
CLUSTER = Variable("cluster", "Kubernetes cluster", "label_values(slackwater_condition, cluster)")
"""The label that a Prometheus of several clusters adds. Without the label it is empty and matches."""
IN_CLUSTER = 'cluster="$cluster"'


def steps_of(labels: str, counter: str, *, begins_at_one: bool = False) -> str:
    """How far a counter went up since the step before: whole numbers, which `increase` does not give.

    Args:
        labels: to sum by; empty: over all.
        counter: its selector.
        begins_at_one: the counter's series are not there before their first step, which must count.
    """
    by = f"sum by ({labels}) " if labels else "sum"
    # A counter that begins anew goes down, which is no step.
    before = f"{by}({counter} offset $__interval)"
    if begins_at_one:
        before = f"({before} or {by}({counter}) * 0)"
    return f"clamp_min({by}({counter}) - {before}, 0)"
