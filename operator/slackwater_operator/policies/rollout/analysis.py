"""Judges a measurement of an analysis: does every metric hold?

The terms are those of Argo Rollouts: a measurement is successful, failed or inconclusive. One failed metric
makes it failed; without one, a metric without a value makes it inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SUCCESSFUL, FAILED, INCONCLUSIVE = "successful", "failed", "inconclusive"


@dataclass(frozen=True)
class MetricRule:
    """A metric with the range in which it holds.

    Attributes:
        name: its name.
        figure: a figure of the group (`api.v1alpha1.spec.rollout_steps.FIGURES`); "" for a query.
        query: a PromQL query; "" for a figure.
        least: the smallest value with which it holds; None for no such limit.
        most: the largest value; None for no such limit.
    """

    name: str
    figure: str = ""
    query: str = ""
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class MetricValue:
    """The value of a metric, or why there is none.

    Attributes:
        value: the value; None without one.
        problem: why there is none; "" with one.
    """

    value: float | None
    problem: str = ""


@dataclass(frozen=True)
class Measurement:
    """The values of all metrics at one time.

    Attributes:
        step: the step that it was made for (`StepState.key`).
        at_ms: when it was complete.
        values: the values by metric; a missing one has not been measured.
    """

    step: str
    at_ms: int
    values: Mapping[str, MetricValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """The result of a measurement.

    Attributes:
        result: `SUCCESSFUL`, `FAILED` or `INCONCLUSIVE`.
        message: the metrics that decided it, with their values.
    """

    result: str
    message: str


def judge(metrics: Sequence[MetricRule], measurement: Measurement) -> Judgement:
    """Judges a measurement by the metrics' ranges."""
    good, bad, unknown = list[str](), list[str](), list[str]()
    for metric in metrics:
        measured = measurement.values.get(metric.name, MetricValue(None, "it was not measured"))
        if measured.value is None:
            unknown.append(f"{metric.name} has no value: {measured.problem}")
            continue
        broken = _broken(metric, measured.value)
        (bad if broken else good).append(f"{metric.name} is {figure_text(measured.value)}{broken}")
    if bad:
        return Judgement(FAILED, "; ".join(bad))
    if unknown:
        return Judgement(INCONCLUSIVE, "; ".join(unknown))
    return Judgement(SUCCESSFUL, "; ".join(good))


def _broken(metric: MetricRule, value: float) -> str:
    if metric.most is not None and value > metric.most:
        return f", more than {figure_text(metric.most)}"
    if metric.least is not None and value < metric.least:
        return f", less than {figure_text(metric.least)}"
    return ""


def figure_text(value: float) -> str:
    """A value with four significant digits; whole numbers in full."""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"
