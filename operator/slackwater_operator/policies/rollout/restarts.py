"""Decides the next step of a rolling restart.

A static member that returns to a Stable group within its session causes no rebalance. A return during a
rebalance causes another one, and a member that missed its SyncGroup causes one a rebalance timeout later. A
worker is therefore stopped only while the group is Stable with all members in it and synced, and the next
one only when the last one is back, in the same generation, and has caught up. The leader is restarted last:
while it is away, nobody watches the topics. The first worker with a new revision is restarted alone, and the
others only after it is back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from slackwater.times import duration
from slackwater_operator.model.group import GROUP_UNKNOWN, GroupView, WorkerView, terms_of

SESSION_PROPERTY = "session.timeout.ms"
HOPELESS = 3
"""So many failures in a row end a rolling restart before the budget does, to leave time for the rollback."""
NOT_BEGUN_MS = 10_000
"""A restart that was noted so long ago and has not begun is begun again: the operator stopped in between."""


@dataclass(frozen=True)
class RolloutPolicy:
    """What the user permits.

    Attributes:
        max_unavailable: how many workers may be away at once.
        session_budget: the share of the session that a restart may take.
        session_timeout_ms: how long a member may be away.
        session_config: the group's config that sets it; "": the workers' property session.timeout.ms does.
        paused: whether no other worker is restarted.
        refuses: whether restarts that are not expected to fit the budget are refused.
    """

    max_unavailable: int = 1
    session_budget: float = 0.6
    session_timeout_ms: int = 45_000
    session_config: str = ""
    paused: bool = False
    refuses: bool = True

    @property
    def budget_ms(self) -> int:
        """How long a worker may be away, in ms."""
        return int(self.session_timeout_ms * self.session_budget)

    @property
    def allowance(self) -> str:
        """The budget in words."""
        name = self.session_config or SESSION_PROPERTY
        share = f"{self.session_budget:.0%} of {name} {self.session_timeout_ms}"
        return f"{duration(self.budget_ms)} ({share})"


@dataclass(frozen=True)
class RestartView:
    """A restart in progress.

    Attributes:
        name: the worker.
        generation: the group's generation when it was stopped.
        lag: the lag of its partitions at that time; None if unknown.
        uid: the uid of the pod that is stopped; "" if unknown.
        since_ms: when the restart was noted, just before the worker was asked to end; 0 if unknown.
    """

    name: str
    generation: int
    lag: int | None
    uid: str = ""
    since_ms: int = 0


@dataclass(frozen=True)
class RolloutDecision:
    """The next step.

    Attributes:
        action: `done`, `wait`, `restart`, `hold` (the rollout's steps permit no other worker now), `refuse`
            (it would not fit the session) or `stop` (it did not).
        restart: the workers to restart now. May include one that is noted as in progress but was never
            stopped, since the operator stopped in between.
        back: workers whose restart is over.
        reason: one sentence for users.
        failed: the worker that a `stop` is about; "" otherwise.
        unplanned: why the group rebalanced during a restart that is over (`back`) without the restart being
            the cause, to be counted as unplanned; "" if it did not.
        summary: `reason` without figures that change all the time, for conditions and Events.
    """

    action: str
    restart: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    reason: str = ""
    failed: str = ""
    unplanned: str = ""
    summary: str = ""


@dataclass(frozen=True)
class RolloutInput:
    """The observation.

    Attributes:
        revision: the revision that all workers should have.
        group: the group; None when the broker did not respond.
        workers: the wanted workers.
        under_way: the restarts in progress.
        gaps_ms: how long workers were away in the restarts measured so far.
        now_ms: the time.
        produced_per_s: records produced a second; None if unknown.
        capacity_per_s: records that one worker can process a second; None if unknown.
        forced: why the broker may have caused a rebalance since the oldest restart in progress began
            (`ForcedWatch.since`); "" if it was not observed to.
        sessions_since_ms: when the broker began all sessions anew, as a coordinator that moves does
            (`ForcedWatch.sessions_since_ms`); 0 if it was not observed to.
        expected: why the revision itself causes a rebalance (`rebalance_causes.expected_rebalance`), which
            is then planned and no failure; "" if it does not.
        limit: how many workers may have the revision now (`steps.StepsDecision`); None for all.
        hold: why no other worker may have it where the limit is reached, or why the rollout is not done
            although all workers have it; "" if all may.
    """

    revision: str
    group: GroupView | None
    workers: Sequence[WorkerView]
    under_way: Sequence[RestartView]
    gaps_ms: Sequence[int]
    now_ms: int
    produced_per_s: float | None = None
    capacity_per_s: float | None = None
    forced: str = ""
    sessions_since_ms: int = 0
    expected: str = ""
    limit: int | None = None
    hold: str = ""

    @property
    def excuse(self) -> str:
        """Why the group may rebalance without the revision being the cause; "" if it may not."""
        return self.expected or self.forced


def decide_rollout(policy: RolloutPolicy, observed: RolloutInput) -> RolloutDecision:
    """Decides the next step of a rolling restart."""
    workers = {worker.name: worker for worker in observed.workers}
    still: list[RestartView] = []
    back: list[str] = []
    unplanned = ""
    for restart in observed.under_way:
        worker = workers.get(restart.name)
        if worker is None:  # scaled away meanwhile
            back.append(restart.name)
            continue
        failed = failure(policy, observed, restart, worker)
        if failed:
            return RolloutDecision(
                "stop", (), tuple(back), failed, restart.name, summary=stop_summary(restart.name, worker)
            )
        if missing(policy, observed, restart, worker):
            still.append(restart)
        else:
            back.append(restart.name)
            surprised = moved(restart, worker) and not observed.expected
            unplanned = unplanned or (observed.forced if surprised else "")
    decision = _go_on(policy, observed, still)
    return replace(decision, back=tuple(back), unplanned=unplanned)


def decide_rollback(policy: RolloutPolicy, observed: RolloutInput) -> RolloutDecision:
    """Decides the next step back to the last good revision (`observed.revision`), after a `stop`.

    A worker of another revision that does not run is restarted at once, whatever the group's state, since
    its session is running out. Workers that run follow as in a rolling restart, but are not refused, paused
    or stopped.
    """
    broken = [
        worker.name
        for worker in observed.workers
        if worker.revision != observed.revision and not worker.running and not worker.terminating
    ]
    if broken:
        reason = (
            f"{', '.join(broken)} is rolled back at once, because it does not run and its session will "
            "time out"
        )
        return RolloutDecision("restart", tuple(broken), reason=reason, summary=reason)
    decision = decide_rollout(
        replace(policy, paused=False, refuses=False),
        replace(observed, forced=observed.forced or "the way back", limit=None, hold=""),
    )
    decision = replace(decision, unplanned=decision.unplanned if observed.forced else "")
    if decision.action != "stop":
        return decision
    waits = f"the rollback waits for {decision.failed}: {decision.reason}"
    return replace(decision, action="wait", reason=waits, summary=f"the rollback waits for {decision.failed}")


def width(
    policy: RolloutPolicy, workers: int, produced_per_s: float | None, capacity_per_s: float | None
) -> int:
    """How many workers may be away at once: up to maxUnavailable as the throughput allows, at least one.

        width = min(maxUnavailable, workers - ceil(produced / capacity))

    What is not known allows one.
    """
    if produced_per_s is None or not capacity_per_s:
        return 1
    needed = math.ceil(produced_per_s / capacity_per_s)
    return max(1, min(policy.max_unavailable, workers - needed))


def refusal(policy: RolloutPolicy, gaps_ms: Sequence[int]) -> str:
    """Why restarts would not fit the session, and which setting would make them fit; "" if they fit."""
    if not gaps_ms:
        return ""
    expected = max(gaps_ms)
    if expected <= policy.budget_ms:
        return ""
    session = math.ceil(expected / policy.session_budget)
    share = math.ceil(expected * 100 / policy.session_timeout_ms)
    of_group = f"the group's config {policy.session_config}"
    setting = of_group if policy.session_config else f"spec.kafka.properties[{SESSION_PROPERTY}]"
    or_share = f", or spec.rollout.sessionBudget to {share}%" if share <= 90 else ""
    return (
        f"a restart is expected to take {duration(expected)} (the longest of {len(gaps_ms)} measured), "
        f"more than {policy.allowance}; raise {setting} to {session}{or_share}"
    )


def _go_on(policy: RolloutPolicy, observed: RolloutInput, still: list[RestartView]) -> RolloutDecision:
    """The next step while the restarts in `still` are in progress."""
    workers = {worker.name: worker for worker in observed.workers}
    not_begun = [restart.name for restart in still if _not_begun(observed, restart, workers[restart.name])]
    away = [restart for restart in still if restart.name not in not_begun]
    names = [restart.name for restart in away]
    left = [
        worker
        for worker in observed.workers
        if worker.revision != observed.revision and worker.name not in names
    ]
    room, alone = _room(policy, observed, names)
    if away and (not left or len(away) >= room):
        waits = missing(policy, observed, away[0], workers[names[0]])
        summary = f"{names[0]} is restarting{alone if left else ''}"
        return RolloutDecision("wait", reason=f"{names[0]} {waits}", summary=summary)
    allowed = len(left)
    if observed.limit is not None:
        allowed = max(0, observed.limit - (len(observed.workers) - len(left)))
    if observed.hold and not min(allowed, len(left)):
        return RolloutDecision("hold", reason=observed.hold, summary=observed.hold)
    if not left:
        reason = "all workers have been restarted"
        return RolloutDecision("done", reason=reason, summary=reason)
    held = _held(policy, observed, names)
    if held is not None:
        return held
    order = sorted(
        left, key=lambda worker: (worker.name not in not_begun, worker.leader, len(worker.name), worker.name)
    )
    chosen = order[: min(room - len(away), allowed)]
    if any(worker.leader for worker in chosen) and (len(chosen) > 1 or away):
        chosen = [
            worker for worker in chosen if not worker.leader
        ]  # the leader goes alone, when the others are back
    if not chosen:
        reason = f"the group leader is restarted last; {names[0]} is not back yet"
        return RolloutDecision("wait", reason=reason, summary=reason)
    return _begin(policy, observed, [worker.name for worker in chosen], alone)


def _begin(policy: RolloutPolicy, observed: RolloutInput, names: list[str], alone: str) -> RolloutDecision:
    budget = duration(policy.budget_ms)
    expected = (
        f"a restart is expected to take {duration(max(observed.gaps_ms))} of {budget}"
        if observed.gaps_ms
        else f"a restart may take {budget}; none has been measured yet"
    )
    why = f"the group is Stable with all workers; {expected}{alone}"
    return RolloutDecision(
        "restart", tuple(names), reason=why, summary=f"restart of {', '.join(names)}{alone}"
    )


def _held(policy: RolloutPolicy, observed: RolloutInput, away: Sequence[str]) -> RolloutDecision | None:
    """Why no worker may be stopped now; None if one may."""
    refused = refusal(policy, observed.gaps_ms) if policy.refuses else ""
    if refused:
        return RolloutDecision("refuse", reason=refused, summary=refused)
    if policy.paused:
        reason = "spec.rollout.paused is true"
        return RolloutDecision("wait", reason=reason, summary=reason)
    waits = unready(observed.group, observed.workers, away)
    return RolloutDecision("wait", reason=waits, summary=waits) if waits else None


def _room(policy: RolloutPolicy, observed: RolloutInput, away: Sequence[str]) -> tuple[int, str]:
    """How many workers may be away at once now, and why only one where the user permits more."""
    several = policy.max_unavailable > 1
    proven = any(
        worker.revision == observed.revision and worker.running and worker.name not in away
        for worker in observed.workers
    )
    if not proven:
        return 1, "; one at a time, because no worker runs this revision yet" if several else ""
    if not observed.gaps_ms:
        return 1, "; one at a time, because no restart has been measured yet" if several else ""
    room = width(policy, len(observed.workers), observed.produced_per_s, observed.capacity_per_s)
    if room == policy.max_unavailable:
        return room, ""
    if observed.produced_per_s is None or not observed.capacity_per_s:
        return room, "; one at a time, because the capacity of the other workers is unknown"
    return room, f"; at most {room} at once, because the other workers must keep up with production"


def _old(observed: RolloutInput, restart: RestartView, worker: WorkerView) -> bool:
    """Whether the pod that is to be restarted still exists."""
    if restart.uid and worker.uid:
        return worker.uid == restart.uid
    return not restart.uid and worker.revision != observed.revision and worker.alive


def _not_begun(observed: RolloutInput, restart: RestartView, worker: WorkerView) -> bool:
    """Whether a restart was noted but the worker was not asked to end: the operator stopped in between."""
    if not restart.uid or not _old(observed, restart, worker) or worker.terminating:
        return False
    return observed.now_ms - restart.since_ms >= NOT_BEGUN_MS


def moved(restart: RestartView, worker: WorkerView) -> bool:
    """Whether the worker returned in a later generation than it left."""
    return 0 <= restart.generation < worker.generation


def failure(policy: RolloutPolicy, observed: RolloutInput, restart: RestartView, worker: WorkerView) -> str:
    """Why the rolling restart must stop because of this worker, in words; "" if it need not."""
    if _old(observed, restart, worker):
        return ""  # not ended yet: it drains, and its heartbeats keep the session alive
    joined = worker.running or worker.generation >= 0
    if joined and moved(restart, worker) and not observed.excuse:
        return (
            f"{worker.name} came back in {terms_of(observed.group).generation} {worker.generation}, not "
            f"{restart.generation}: the group rebalanced meanwhile"
        )
    if observed.group is None:
        return ""  # no revision can join while the brokers do not respond
    because = f": {worker.trouble}" if worker.trouble else ""
    away_ms = _away_ms(observed, restart, worker)
    if not joined and away_ms is not None and away_ms > policy.budget_ms:
        failing = f" (it has failed {worker.failures} times)" if worker.failures else ""
        away = f"{worker.name} has been out of the group for {duration(away_ms)}{failing}"
        return f"{away}, more than {policy.allowance}{because}"
    if worker.failures >= HOPELESS and not worker.running:
        return f"{worker.name} has failed {worker.failures} times in a row{because}"
    return ""


def _away_ms(observed: RolloutInput, restart: RestartView, worker: WorkerView) -> int | None:
    """How long it has been away, in ms; from when it was asked to end if its end was not observed."""
    ended_ms = worker.ended_ms
    if ended_ms is None or ended_ms < restart.since_ms:
        ended_ms = restart.since_ms or ended_ms
    return None if ended_ms is None else observed.now_ms - max(ended_ms, observed.sessions_since_ms)


def stop_summary(name: str, worker: WorkerView) -> str:
    """Why a rolling restart stopped, without figures."""
    if worker.generation >= 0:
        return f"{name} came back, but the group rebalanced meanwhile"
    because = f": {worker.trouble}" if worker.trouble else ""
    what = "fails again and again" if worker.failures >= HOPELESS else "did not come back within the budget"
    return f"{name} {what}{because}"


def missing(policy: RolloutPolicy, observed: RolloutInput, restart: RestartView, worker: WorkerView) -> str:
    """What a restart still lacks to be over, in words; "" when it is over."""
    if _old(observed, restart, worker):
        because = f" ({worker.trouble})" if worker.trouble else ""
        ending = worker.terminating or not restart.uid
        return f"is draining{because}" if ending else "has not been told to end yet"
    if not worker.alive:
        return f"has not started yet{f' ({worker.trouble})' if worker.trouble else ''}"
    if not worker.running:
        return f"is {worker.phase or 'starting'}"
    if observed.group is None:
        return "has restarted, but the broker did not report whether it is in the group"
    if not observed.group.stable:
        return f"has restarted, but {observed.group.situation}"
    if moved(restart, worker):
        return _not_all_in(observed)
    if restart.lag is None or _patience_over(policy, observed, worker):
        return ""
    if worker.lag is None:
        return "has restarted, but its lag is unknown"
    if worker.lag > _caught_up(restart.lag):
        return (
            f"has restarted and is catching up: {worker.lag} records behind, {restart.lag} before the restart"
        )
    return ""


def _not_all_in(observed: RolloutInput) -> str:
    """Which workers are not in the new generation yet, after a rebalance that is no failure."""
    newest = max(worker.generation for worker in observed.workers)
    late = [worker.name for worker in observed.workers if worker.running and worker.generation != newest]
    return (
        (
            f"has restarted after a rebalance ({observed.excuse}), but {late[0]} has not joined the new "
            f"{terms_of(observed.group).generation} yet"
        )
        if late
        else ""
    )


def _patience_over(policy: RolloutPolicy, observed: RolloutInput, worker: WorkerView) -> bool:
    """Whether it has been back for so long that the restart is not the cause of its remaining lag.

    Where more is produced than the group can consume, no worker ever catches up.
    """
    since = worker.running_since_ms
    return since is not None and observed.now_ms - since > policy.budget_ms


def _caught_up(before: int) -> int:
    """The lag up to which a worker counts as having caught up: about its previous lag."""
    return before + max(1_000, before // 10)


def unready(group: GroupView | None, workers: Sequence[WorkerView], away: Collection[str] = ()) -> str:
    """Why no member may be restarted or moved now, in words; "" if one may.

    Args:
        group: the group; None when the broker did not respond.
        workers: the workers that should be in it.
        away: those that need not run, nor be in the newest generation.
    """
    if group is None:
        return GROUP_UNKNOWN
    if not group.stable:
        return group.situation
    for worker in workers:
        member = group.member(worker.name)
        if member is None:
            return f"{worker.name} is not in the group"
        if not member.synced:
            return f"{worker.name} has not received its assignment yet"
        if worker.name not in away and not worker.running:
            return f"{worker.name} is {worker.phase or 'not running'}"
        if worker.name not in away and worker.terminating:
            return f"{worker.name} is being deleted by another actor"
    # DescribeGroups does not report who has not synced yet; the workers' generations do.
    newest = max((worker.generation for worker in workers), default=-1)
    for worker in workers:
        if worker.name not in away and worker.generation != newest:
            term = terms_of(group).generation
            return f"{worker.name} is in {term} {worker.generation}, not yet in {newest}"
    return ""
