"""How many workers others may evict: the PodDisruptionBudget's maxUnavailable.

An evicted pod is a restart that we did not begin. It costs no rebalance under the same conditions as ours, so
it is let through under the same conditions. The disruption controller itself subtracts pods that are not
ready.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator.policies.rollout.restarts import RolloutPolicy, refusal, width


@dataclass(frozen=True)
class DisruptionInput:
    """What was observed.

    Attributes:
        unsettled: what keeps the group from being settled (`settled.unsettled`); "" when it is.
        workers: how many workers should be.
        under_way: how many restarts are under way.
        gaps_ms: how long workers were away in the restarts measured so far.
        produced_per_s: records produced a second, None when not known.
        capacity_per_s: what one worker can do a second, None when not known.
    """

    unsettled: str
    workers: int
    under_way: int = 0
    gaps_ms: tuple[int, ...] = ()
    produced_per_s: float | None = None
    capacity_per_s: float | None = None


@dataclass(frozen=True)
class DisruptionDecision:
    """The budget now.

    Attributes:
        max_unavailable: the PodDisruptionBudget's maxUnavailable.
        reason: one sentence for people.
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
    room = 1  # until a gap has been measured, an eviction is the measurement
    if observed.gaps_ms:
        room = width(policy, observed.workers, observed.produced_per_s, observed.capacity_per_s)
    if observed.under_way >= room:
        return DisruptionDecision(0, "no eviction: a rolling restart keeps as many away as may be")
    if observed.unsettled:
        return DisruptionDecision(0, f"evictions are blocked: {observed.unsettled}")
    free = room - observed.under_way
    return DisruptionDecision(free, f"{free} may be evicted: the group is settled")
