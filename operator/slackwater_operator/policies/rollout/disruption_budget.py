"""How many workers may be evicted: the PodDisruptionBudget's maxUnavailable.

An eviction is a restart that the operator did not begin. It causes no rebalance under the same conditions as
the operator's restarts, and is allowed under those. The disruption controller itself subtracts pods that are
not ready.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator.policies.rollout.restarts import RolloutPolicy, refusal, width


@dataclass(frozen=True)
class DisruptionInput:
    """The observation.

    Attributes:
        unsettled: why the group is not settled (`stability.unsettled`); "" when it is.
        workers: the wanted number of workers.
        under_way: the number of restarts in progress.
        gaps_ms: how long workers were away in the restarts measured so far.
        produced_per_s: records produced a second; None if unknown.
        capacity_per_s: records that one worker can process a second; None if unknown.
    """

    unsettled: str
    workers: int
    under_way: int = 0
    gaps_ms: tuple[int, ...] = ()
    produced_per_s: float | None = None
    capacity_per_s: float | None = None


@dataclass(frozen=True)
class DisruptionDecision:
    """The budget.

    Attributes:
        max_unavailable: the PodDisruptionBudget's maxUnavailable.
        reason: one sentence for users.
    """

    max_unavailable: int
    reason: str


def decide_disruption(policy: RolloutPolicy, observed: DisruptionInput) -> DisruptionDecision:
    """Decides how many workers may be evicted now.

    maxUnavailable = 0                      while the group is not settled, a restart does not fit the budget,
    or
                                            all slots of a rolling restart are used
                   = width - under way      else
    """
    if not observed.workers:
        return DisruptionDecision(1, "there are no workers")
    refused = refusal(policy, observed.gaps_ms)
    if refused:
        return DisruptionDecision(0, f"evictions are blocked: {refused}")
    room = 1  # the first eviction measures the first restart gap
    if observed.gaps_ms:
        room = width(policy, observed.workers, observed.produced_per_s, observed.capacity_per_s)
    if observed.under_way >= room:
        return DisruptionDecision(0, "no eviction: a rolling restart keeps as many away as may be")
    if observed.unsettled:
        return DisruptionDecision(0, f"evictions are blocked: {observed.unsettled}")
    free = room - observed.under_way
    return DisruptionDecision(free, f"{free} may be evicted: the group is settled")
