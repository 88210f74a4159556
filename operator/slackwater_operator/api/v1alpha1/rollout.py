"""spec.rollout of a ConsumerGroup: how workers are restarted."""

# ruff: noqa: RUF009  (`spec` and `required` give dataclass fields)
from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator.api.v1alpha1 import fields
from slackwater_operator.api.v1alpha1.fields import spec
from slackwater_operator.api.v1alpha1.scaling import MAX_REPLICAS

RESTART, TAKEOVER = "Restart", "Takeover"
"""spec.rollout.strategy."""
STOP = "Stop"
"""spec.rollout.takeover.fallback, beside Restart."""


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
class Takeover:
    """What counts for strategy Takeover."""

    warm_timeout_ms: int = spec(
        "warmTimeout",
        fields.duration("10s", "1h"),
        "How long a successor may take from its pod's creation until it stands by, the image's pull and the "
        "wait for room on a node included.",
        default="5m",
    )
    fallback: str = spec(
        "fallback",
        fields.text(choices=[RESTART, STOP]),
        "What becomes of a worker whose successor does not stand by in that time. Restart: it is restarted "
        "within its session, as by strategy Restart. Stop: the rollout stops. A successor that fails stops "
        "it in either case.",
        default=RESTART,
    )


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How workers are restarted."""

    strategy: str = spec(
        "strategy",
        fields.text(choices=[RESTART, TAKEOVER]),
        "Restart: a worker is stopped and started again under its name, within its session. Takeover: a "
        "successor is started beside it, and when it is ready it takes over its partitions; needs room for "
        "one more pod. Changing this restarts the workers once.",
        default=RESTART,
    )
    takeover: Takeover = spec(
        "takeover", fields.nested(Takeover), "What counts for strategy Takeover.", default={}
    )
    max_unavailable: int = spec(
        "maxUnavailable",
        fields.whole(minimum=1, maximum=MAX_REPLICAS),
        "How many workers may be away at once. Takeovers go one by one.",
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

    @property
    def takes_over(self) -> bool:
        """Whether the strategy is Takeover."""
        return self.strategy == TAKEOVER
