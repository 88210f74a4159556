"""spec.scaling.behavior and spec.scaling.fallback of a ConsumerGroup."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater import fields
from slackwater.fields import required, spec


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A limit on how much the number of workers changes within a period."""

    type: str = required(
        "type",
        fields.text(choices=("Pods", "Percent")),
        "Pods: value is a number of workers. Percent: a share of the workers at the start of the period.",
    )
    value: int = required(
        "value", fields.whole(minimum=1, maximum=100_000), "The largest change within the period."
    )
    period_ms: int = required(
        "period", fields.duration("1s", "30m"), "The period (15s, 5m); at most half an hour."
    )


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How fast the number of workers changes in one direction."""

    stabilization_window_ms: int | None = spec(
        "stabilizationWindow",
        fields.duration("0s", "1h"),
        "How long the need must have been higher (scaleUp) or lower (scaleDown) before a step. By default "
        "15s for scaleUp, and 2m for scaleDown.",
    )
    select_policy: str = spec(
        "selectPolicy",
        fields.text(choices=("Max", "Min", "Disabled")),
        "Which of the policies counts: Max, the one that allows the largest change; Min, the smallest; "
        "Disabled: no step in this direction.",
        default="Max",
    )
    policies: tuple[Policy, ...] = spec(
        "policies",
        fields.object_list(Policy, key="type", at_most=2),
        "Limits on the change, one of each type. Without any a step is as large as it has to be.",
        default=[],
    )


@dataclass(frozen=True, kw_only=True)
class Behavior:
    """How fast the number of workers changes, as in a HorizontalPodAutoscaler."""

    scale_up: Rules = spec("scaleUp", fields.nested(Rules), "Steps to more workers.", default={})
    scale_down: Rules = spec("scaleDown", fields.nested(Rules), "Steps to fewer workers.", default={})


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """The number of workers while the lag cannot be observed."""

    replicas: int = required(
        "replicas", fields.whole(minimum=1, maximum=1_000), "The number of workers, within the limits."
    )
    after_ms: int = spec(
        "after",
        fields.duration("10s"),
        "How long the lag must not have been observed before that number applies.",
        default="3m",
    )
