"""spec.rollout of a ConsumerGroup: how workers are restarted."""

# ruff: noqa: RUF009  (`spec` and `required` give dataclass fields)
from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator import fields
from slackwater_operator.fields import spec
from slackwater_operator.spec_scaling import MAX_REPLICAS


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What a new revision must pass before a worker is restarted with it."""

    enabled: bool = spec(
        "enabled",
        fields.flag(),
        "True: before the first worker is restarted, one pod of the new revision imports the handler, "
        "reaches the brokers and looks for the topics; it joins nothing.",
        default=True,
    )
    timeout_ms: int = spec(
        "timeout",
        fields.duration("5s", "1h"),
        "How long that may take, the image's pull included; after it the revision counts as failed.",
        default="2m",
    )


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How workers are restarted."""

    strategy: str = spec(
        "strategy",
        fields.text(choices=["Restart"]),
        "Restart: a worker is stopped and started again under its name, within its session.",
        default="Restart",
    )
    max_unavailable: int = spec(
        "maxUnavailable",
        fields.whole(minimum=1, maximum=MAX_REPLICAS),
        "How many workers may be away at once.",
        default=1,
    )
    session_budget: float = spec(
        "sessionBudget",
        fields.percentage(),
        "The share of session.timeout.ms that a restart may take. A rolling restart that is not expected to "
        "keep it is refused, one that does not keep it is stopped.",
        default="60%",
    )
    paused: bool = spec("paused", fields.flag(), "True: no further worker is restarted.", default=False)
    preflight: Preflight = spec(
        "preflight",
        fields.nested(Preflight),
        "What a new revision must pass before a worker is restarted with it. Not used locally.",
        default={},
    )
