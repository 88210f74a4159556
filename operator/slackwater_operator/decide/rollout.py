"""The next step of a rolling restart.

A static member that returns to a Stable group within its session costs no rebalance; one that returns during
a rebalance costs another, and one that missed its Sync makes the group rebalance a rebalance timeout later.
So a worker is stopped only while the group is Stable with all members in and synced, and the next one only
when the last is back, in the same generation, and has caught up. The leader goes last: while it is away
nobody watches the topics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_operator.decide.view import GroupView, WorkerView


@dataclass(frozen=True)
class RolloutPolicy:
    """What the user allows.

    Attributes:
        max_unavailable: how many workers may be away at once.
        session_budget: the share of the session that a restart may take.
        session_timeout_ms: session.timeout.ms.
        paused: nobody else is restarted.
    """

    max_unavailable: int = 1
    session_budget: float = 0.6
    session_timeout_ms: int = 45_000
    paused: bool = False

    @property
    def budget_ms(self) -> int:
        """How long a worker may be away, in ms."""
        return int(self.session_timeout_ms * self.session_budget)

    @property
    def allowance(self) -> str:
        """The budget in words."""
        share = f"{self.session_budget:.0%} of session.timeout.ms {self.session_timeout_ms}"
        return f"{self.budget_ms / 1000:.1f} s ({share})"


@dataclass(frozen=True)
class RestartView:
    """A restart that is under way.

    Attributes:
        name: the worker.
        generation: the group's generation when it was stopped.
        lag: how far its partitions were behind then, None when that was not known.
    """

    name: str
    generation: int
    lag: int | None


@dataclass(frozen=True)
class RolloutDecision:
    """What to do next.

    Attributes:
        action: `done`, `wait`, `restart`, `refuse` (it would not fit the session) or `stop` (it did not).
        restart: the workers to restart now.
        back: workers whose restart is over.
        reason: one sentence for people.
    """

    action: str
    restart: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class RolloutInput:
    """What was observed.

    Attributes:
        revision: the revision that all workers should have.
        group: the group, None when the broker did not say.
        workers: the workers that should be.
        under_way: the restarts that are not over.
        gaps_ms: how long workers were away in the restarts measured so far.
        now_ms: the time.
    """

    revision: int
    group: GroupView | None
    workers: Sequence[WorkerView]
    under_way: Sequence[RestartView]
    gaps_ms: Sequence[int]
    now_ms: int


def decide_rollout(policy: RolloutPolicy, seen: RolloutInput) -> RolloutDecision:
    """Decides the next step of a rolling restart."""
    workers = {one.name: one for one in seen.workers}
    still: list[str] = []
    back: list[str] = []
    for restart in seen.under_way:
        worker = workers.get(restart.name)
        if worker is None:  # scaled away meanwhile
            back.append(restart.name)
            continue
        failed = _failure(policy, seen, restart, worker)
        if failed:
            return RolloutDecision("stop", back=tuple(back), reason=failed)
        (still if _missing(policy, seen, restart, worker) else back).append(restart.name)
    left = [one for one in seen.workers if one.revision != seen.revision and one.name not in still]
    if still and (not left or len(still) >= policy.max_unavailable):
        first = next(one for one in seen.under_way if one.name == still[0])
        waits = _missing(policy, seen, first, workers[first.name])
        return RolloutDecision("wait", back=tuple(back), reason=f"{first.name} {waits}")
    if not left:
        return RolloutDecision("done", back=tuple(back), reason="all workers have been restarted")
    return _next(policy, seen, left, still, tuple(back))


def _next(
    policy: RolloutPolicy, seen: RolloutInput, left: list[WorkerView], still: list[str], back: tuple[str, ...]
) -> RolloutDecision:
    refused = refusal(policy, seen.gaps_ms)
    if refused:
        return RolloutDecision("refuse", back=back, reason=refused)
    if policy.paused:
        return RolloutDecision("wait", back=back, reason="spec.rollout.paused is true")
    waits = _unready(seen, still)
    if waits:
        return RolloutDecision("wait", back=back, reason=waits)
    # Until a gap has been measured, the first restart is the measurement.
    room = policy.max_unavailable - len(still) if seen.gaps_ms else 1 - len(still)
    if room <= 0:
        return RolloutDecision("wait", back=back, reason=f"{still[0]}'s restart is the first measurement")
    order = sorted(left, key=lambda one: (one.leader, len(one.name), one.name))
    chosen = order[:room]
    if any(one.leader for one in chosen) and (len(chosen) > 1 or still):
        chosen = [one for one in chosen if not one.leader]  # the leader goes alone, when the others are back
        if not chosen:
            return RolloutDecision(
                "wait", back=back, reason=f"the leader goes last; {still[0]} is still away"
            )
    names = tuple(one.name for one in chosen)
    expected = f"expected to take {max(seen.gaps_ms) / 1000:.1f} s" if seen.gaps_ms else "no gap measured yet"
    reason = f"the group is Stable with all members in; {expected} of {policy.budget_ms / 1000:.1f} s"
    return RolloutDecision("restart", names, back, reason)


def refusal(policy: RolloutPolicy, gaps_ms: Sequence[int]) -> str:
    """Why restarts would not fit the session, and which setting would make them fit; "" if they fit."""
    if not gaps_ms:
        return ""
    expected = max(gaps_ms)
    if expected <= policy.budget_ms:
        return ""
    session = math.ceil(expected / policy.session_budget)
    share = math.ceil(expected * 100 / policy.session_timeout_ms)
    or_share = f", or spec.rollout.sessionBudget to {share}%" if share <= 90 else ""
    return (
        f"a restart is expected to take {expected / 1000:.1f} s (the longest of {len(gaps_ms)} measured), "
        f"more than {policy.allowance}; "
        f"raise spec.kafka.properties[session.timeout.ms] to {session}{or_share}"
    )


def _failure(policy: RolloutPolicy, seen: RolloutInput, restart: RestartView, worker: WorkerView) -> str:
    """Why the rolling restart must stop; "" if it need not."""
    if worker.revision != seen.revision:
        return ""  # not stopped yet: it drains, and its session runs on with its heartbeats
    joined = worker.running or worker.generation >= 0
    if joined and restart.generation >= 0 and worker.generation > restart.generation:
        return (
            f"{worker.name} came back in generation {worker.generation}, not {restart.generation}: "
            "the group rebalanced meanwhile"
        )
    if joined or worker.ended_ms is None:
        return ""
    away = seen.now_ms - worker.ended_ms
    if away <= policy.budget_ms:
        return ""
    failing = f" (it has failed {worker.failures} times)" if worker.failures else ""
    return f"{worker.name} has been away for {away / 1000:.1f} s{failing}, more than {policy.allowance}"


def _missing(policy: RolloutPolicy, seen: RolloutInput, restart: RestartView, worker: WorkerView) -> str:
    """What a restart still lacks to be over; "" when it is."""
    if worker.revision != seen.revision:
        return "is draining"
    if not worker.alive:
        return "is not started yet"
    if not worker.running:
        return f"is {worker.phase or 'starting'}"
    if seen.group is None:
        return "is back, but the broker did not say whether it is in the group"
    if not seen.group.stable:
        return f"is back, but the group is {seen.group.state}"
    if restart.lag is None or _patience_over(policy, seen, worker):
        return ""
    if worker.lag is None:
        return "is back, but its lag is not known"
    if worker.lag > _caught_up(restart.lag):
        return f"is back and catches up: {worker.lag} records behind, {restart.lag} before"
    return ""


def _patience_over(policy: RolloutPolicy, seen: RolloutInput, worker: WorkerView) -> bool:
    """Whether it has been back for so long that the rest of its lag is not the restart's doing.

    Where more is produced than the group can consume nobody ever catches up.
    """
    since = worker.running_since_ms
    return since is not None and seen.now_ms - since > policy.budget_ms


def _caught_up(before: int) -> int:
    """Up to which lag a worker counts as having caught up: about what it was."""
    return before + max(1_000, before // 10)


def _unready(seen: RolloutInput, away: Sequence[str]) -> str:
    """Why no worker may be stopped now; "" if one may."""
    group = seen.group
    if group is None:
        return "the broker did not say how the group is"
    if not group.stable:
        return f"the group is {group.state}"
    for worker in seen.workers:
        member = group.member(worker.name)
        if member is None:
            return f"{worker.name} is not in the group"
        if not member.synced:
            return f"{worker.name} has not got its assignment yet"
        if worker.name not in away and not worker.running:
            return f"{worker.name} is {worker.phase or 'not running'}"
    # DescribeGroups does not tell who has not synced yet; the workers do, by the generation they are in.
    newest = max((one.generation for one in seen.workers), default=-1)
    for worker in seen.workers:
        if worker.name not in away and worker.generation != newest:
            return f"{worker.name} is in generation {worker.generation}, not {newest} yet"
    return ""
