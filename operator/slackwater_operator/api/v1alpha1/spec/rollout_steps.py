"""spec.rollout.steps and spec.rollout.analysis of a ConsumerGroup; terms of Argo Rollouts and Flagger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slackwater import fields
from slackwater.fields import FieldError, Rule, required, spec
from slackwater_operator.api.v1alpha1.spec.prometheus import PrometheusSecurity, check_prometheus
from slackwater_operator.api.v1alpha1.spec.scaling import MAX_REPLICAS

MAX_STEPS = 20
MAX_METRICS = 10

DEAD_LETTER_RATE, HANDLER_FAILURES, LAG, LAG_SECONDS = (
    "DeadLetterRate",
    "HandlerFailures",
    "Lag",
    "LagSeconds",
)
FIGURES = (DEAD_LETTER_RATE, HANDLER_FAILURES, LAG, LAG_SECONDS)
"""spec.rollout.analysis.metrics[].figure."""

_ONE_OF = "set exactly one of setWorkers, pause and analysis"
_SOURCE = "set either figure or query"
_RANGE = "set min, max, or both"
_ORDER = "must not be greater than max"
_NO_METRICS = "has a step analysis, but spec.rollout.analysis.metrics is empty; list at least one metric"


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A step that waits."""

    duration_ms: int | None = spec(
        "duration",
        fields.duration("1s", "24h"),
        "How long it waits. Without it, until kubectl slackwater promote.",
    )


@dataclass(frozen=True, kw_only=True)
class AnalysisStep:
    """A step that waits until all metrics of spec.rollout.analysis have held for a while."""

    duration_ms: int = spec(
        "duration",
        fields.duration("1s", "24h"),
        "How long all metrics must hold without a break.",
        default="5m",
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a rollout."""

    RULES: ClassVar[list[Rule]] = [
        Rule("[has(self.setWorkers), has(self.pause), has(self.analysis)].filter(x, x).size() == 1", _ONE_OF)
    ]

    set_workers: int | float | None = spec(
        "setWorkers",
        fields.count_or_percentage(maximum=MAX_REPLICAS),
        "Gives so many workers the new revision: a number, or a percentage of the workers, rounded up.",
    )
    pause: Pause | None = spec(
        "pause", fields.nested(Pause), "Waits for a duration, or until kubectl slackwater promote."
    )
    analysis: AnalysisStep | None = spec(
        "analysis",
        fields.nested(AnalysisStep),
        "Waits until all metrics of spec.rollout.analysis have held for a while; goes back if one fails.",
    )


@dataclass(frozen=True, kw_only=True)
class ThresholdRange:
    """The values with which a metric holds."""

    RULES: ClassVar[list[Rule]] = [
        Rule("has(self.min) || has(self.max)", _RANGE),
        Rule("!has(self.min) || !has(self.max) || self.min <= self.max", _ORDER, ".min"),
    ]

    min: float | None = spec("min", fields.number(), "The smallest value with which the metric holds.")
    max: float | None = spec("max", fields.number(), "The largest value with which the metric holds.")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of the analysis."""

    RULES: ClassVar[list[Rule]] = [Rule("has(self.figure) != has(self.query)", _SOURCE)]

    name: str = required(
        "name",
        fields.text(
            pattern=r"[A-Za-z0-9]([-A-Za-z0-9 ]*[A-Za-z0-9])?", example="dead-letters", max_length=63
        ),
        "Its name, for messages.",
    )
    figure: str = spec(
        "figure",
        fields.text(choices=FIGURES),
        "A figure of the group. DeadLetterRate: the share of records that the workers of the new revision "
        "dead-lettered since the last measurement. HandlerFailures: how often the handler failed in these "
        "workers since then. Lag: the group's lag in records. LagSeconds: the age of the oldest record that "
        "is not committed.",
        absent="",
    )
    query: str = spec(
        "query",
        fields.text(pattern=r"\S[\s\S]*", example="sum(rate(flights_rejected_total[1m]))", max_length=2_000),
        "A PromQL query whose result is one number. The operator asks the Prometheus of --prometheus-url.",
        absent="",
    )
    threshold_range: ThresholdRange = required(
        "thresholdRange", fields.nested(ThresholdRange), "The values with which the metric holds."
    )


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The metrics that the steps `analysis` judge a revision by."""

    interval_ms: int = spec(
        "interval",
        fields.duration("1s", "1h"),
        "How often the metrics are measured. The first measurement is one interval after the step began.",
        default="30s",
    )
    failure_limit: int = spec(
        "failureLimit",
        fields.whole(minimum=0, maximum=1_000),
        "How many measurements of a step may be out of range. One more, and the rollout goes back.",
        default=0,
    )
    inconclusive_limit: int = spec(
        "inconclusiveLimit",
        fields.whole(minimum=0, maximum=1_000),
        "How many measurements in a row may have no result. With one more the rollout pauses until "
        "kubectl slackwater promote or abort, or until a measurement has a result.",
        default=10,
    )
    metrics: tuple[Metric, ...] = spec(
        "metrics",
        fields.object_list(Metric, key="name", at_most=MAX_METRICS),
        "The metrics. All of them have to hold.",
        default=[],
    )
    prometheus: PrometheusSecurity | None = spec(
        "prometheus",
        fields.nested(PrometheusSecurity),
        "Authentication and TLS of the queries, by Secrets in the group's namespace. The operator reads them "
        "before each measurement. A local run reads them from files (--secrets).",
    )


STEPS_RULE = Rule(
    "!self.steps.exists(step, has(step.analysis)) || (has(self.analysis) && size(self.analysis.metrics) > 0)",
    _NO_METRICS,
    ".steps",
)
"""A rule of spec.rollout."""


def check_steps(steps: tuple[Step, ...], analysis: Analysis) -> None:
    """Checks what the rules above check on the API server.

    Raises:
        FieldError: names the field.
    """
    path = "spec.rollout.steps"
    for index, step in enumerate(steps):
        if sum(part is not None for part in (step.set_workers, step.pause, step.analysis)) != 1:
            raise FieldError(f"{path}[{index}]", _ONE_OF)
    for index, metric in enumerate(analysis.metrics):
        where, limits = f"spec.rollout.analysis.metrics[{index}]", metric.threshold_range
        if bool(metric.figure) == bool(metric.query):
            raise FieldError(where, _SOURCE)
        if limits.min is None and limits.max is None:
            raise FieldError(f"{where}.thresholdRange", _RANGE)
        if limits.min is not None and limits.max is not None and limits.min > limits.max:
            raise FieldError(f"{where}.thresholdRange.min", _ORDER)
    if analysis.prometheus is not None:
        check_prometheus(analysis.prometheus)
    if any(step.analysis is not None for step in steps) and not analysis.metrics:
        raise FieldError(path, _NO_METRICS)
