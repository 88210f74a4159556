"""spec.rollout of a ConsumerGroup: how workers are restarted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slackwater import fields
from slackwater.fields import Rule, spec
from slackwater_operator.api.v1alpha1.spec.rollout_steps import MAX_STEPS, STEPS_RULE, Analysis, Step
from slackwater_operator.api.v1alpha1.spec.scaling import MAX_REPLICAS

RESTART, TAKEOVER = "Restart", "Takeover"
"""spec.rollout.strategy."""
STOP = "Stop"
"""spec.rollout.takeover.fallback, beside Restart."""


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """The preflight that a new revision must pass before a worker is restarted with it."""

    enabled: bool = spec(
        "enabled",
        fields.flag(),
        "If true, one pod of a new revision imports the handler, connects to the brokers and checks the "
        "topics before the first worker is restarted. It does not join the group.",
        default=True,
    )
    timeout_ms: int = spec(
        "timeout",
        fields.duration("5s", "1h"),
        "How long the preflight may take, including the image pull. After that the revision counts as "
        "failed.",
        default="2m",
    )


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """Settings of strategy Takeover."""

    warm_timeout_ms: int = spec(
        "warmTimeout",
        fields.duration("10s", "1h"),
        "How long a successor may take from its pod's creation until it is ready to take over, including "
        "the image pull and the wait for room on a node.",
        default="5m",
    )
    fallback: str = spec(
        "fallback",
        fields.text(choices=[RESTART, STOP]),
        "What happens to a worker whose successor is not ready in time. Restart: the worker is restarted "
        "within its session timeout, as with strategy Restart. Stop: the rollout stops. A successor that "
        "fails stops the rollout in either case.",
        default=RESTART,
    )


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How workers are restarted."""

    RULES: ClassVar[list[Rule]] = [STEPS_RULE]

    strategy: str = spec(
        "strategy",
        fields.text(choices=[RESTART, TAKEOVER]),
        "Restart: a worker is stopped and started again within its session timeout. Takeover: a successor "
        "starts beside the worker and takes over its membership when it is ready; this needs room for one "
        "more pod. Changing the strategy restarts the workers once.",
        default=RESTART,
    )
    takeover: Takeover = spec(
        "takeover", fields.nested(Takeover), "Settings of strategy Takeover.", default={}
    )
    max_unavailable: int = spec(
        "maxUnavailable",
        fields.whole(minimum=1, maximum=MAX_REPLICAS),
        "How many workers may be unavailable at once. Takeovers are always made one at a time.",
        default=1,
    )
    session_budget: float = spec(
        "sessionBudget",
        fields.percentage(),
        "The share of session.timeout.ms that a restart may take. A rollout whose restarts are expected to "
        "exceed it is refused; a rollout is stopped when a restart exceeds it.",
        default="60%",
    )
    paused: bool = spec("paused", fields.flag(), "If true, no further worker is restarted.", default=False)
    preflight: Preflight = spec(
        "preflight",
        fields.nested(Preflight),
        "Checks that a new revision must pass before any worker is restarted with it.",
        default={},
    )
    steps: tuple[Step, ...] = spec(
        "steps",
        fields.object_sequence(Step, at_most=MAX_STEPS),
        "The steps of a rollout, in this order. After the last one all other workers get the new revision. "
        "The first rollout of a group and the way back to its last good revision have no steps.",
        default=[],
    )
    analysis: Analysis = spec(
        "analysis", fields.nested(Analysis), "What the steps analysis measure.", default={}
    )

    @property
    def takes_over(self) -> bool:
        """Whether the strategy is Takeover."""
        return self.strategy == TAKEOVER
