"""The next step of a rolling restart.

A static member that returns to a Stable group within its session costs no rebalance; one that returns during
a rebalance costs another, and one that missed its Sync makes the group rebalance a rebalance timeout later.
So a worker is stopped only while the group is Stable with all members in and synced, and the next one only
when the last is back, in the same generation, and has caught up. The leader goes last: while it is away
nobody watches the topics. The first with a new revision goes alone, and the others only when it has come
back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from slackwater_operator.model.group import GroupView, WorkerView

HOPELESS = 3
"""So many failures in a row end a rolling restart before the budget does: the way back needs time, too."""
NOT_BEGUN_MS = 10_000
"""A restart that was noted so long ago and has not begun is begun (again): the operator ended in between."""


@dataclass(frozen=True)
class RolloutPolicy:
    """What the user allows.

    Attributes:
        max_unavailable: how many workers may be away at once.
        session_budget: the share of the session that a restart may take.
        session_timeout_ms: session.timeout.ms.
        paused: nobody else is restarted.
        refuses: whether restarts that are not expected to fit the budget are refused.
    """

    max_unavailable: int = 1
    session_budget: float = 0.6
    session_timeout_ms: int = 45_000
    paused: bool = False
    refuses: bool = True

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
        uid: the incarnation that is stopped (a pod's uid); "" where there is none to tell by.
        since_ms: when that was noted, just before it was asked to end; 0 when not known.
    """

    name: str
    generation: int
    lag: int | None
    uid: str = ""
    since_ms: int = 0


@dataclass(frozen=True)
class RolloutDecision:
    """What to do next.

    Attributes:
        action: `done`, `wait`, `restart`, `refuse` (it would not fit the session) or `stop` (it did not).
        restart: the workers to restart now; among them one may be that is noted as under way, but was never
            stopped (the operator ended in between).
        back: workers whose restart is over.
        reason: one sentence for people.
        failed: the worker that a `stop` is about, "" otherwise.
        unplanned: why the group rebalanced during a restart that is over (`back`) without the restart being
            to blame, "" if it did not: to be counted as unplanned.
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
    """What was observed.

    Attributes:
        revision: the revision that all workers should have.
        group: the group, None when the broker did not say.
        workers: the workers that should be.
        under_way: the restarts that are not over.
        gaps_ms: how long workers were away in the restarts measured so far.
        now_ms: the time.
        produced_per_s: records produced a second, None when not known.
        capacity_per_s: what one worker can do a second, None when not known.
        forced: why the broker may have made the group rebalance since the oldest restart under way began
            (`ForcedWatch.since`); "" if it was not seen to.
        sessions_since_ms: when the broker began all sessions anew (`ForcedWatch.sessions_since_ms`), as a
            coordinator that moves does; 0 when it was not seen to.
        expected: why the revision makes the group rebalance by itself (`subscription.expected_rebalance`);
            "" if it does not. Such a rebalance is planned, and no failure.
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

    @property
    def excuse(self) -> str:
        """Why the group may rebalance without the revision being at fault; "" if it must not."""
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
    """Decides the next step back to the last good revision (`seen.revision`), after a `stop`.

    A worker of another revision that does not run is restarted at once, whatever the group's state: its
    session runs out. One that runs goes the way of a rolling restart, but is not refused, paused or stopped.
    """
    broken = [
        worker.name
        for worker in observed.workers
        if worker.revision != observed.revision and not worker.running and not worker.terminating
    ]
    if broken:
        said = (
            f"{', '.join(broken)} is rolled back at once, because it does not run and its session will "
            "time out"
        )
        return RolloutDecision("restart", tuple(broken), reason=said, summary=said)
    decision = decide_rollout(
        replace(policy, paused=False, refuses=False),
        replace(observed, forced=observed.forced or "the way back"),
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
    or_share = f", or spec.rollout.sessionBudget to {share}%" if share <= 90 else ""
    return (
        f"a restart is expected to take {expected / 1000:.1f} s (the longest of {len(gaps_ms)} measured), "
        f"more than {policy.allowance}; raise spec.kafka.properties[session.timeout.ms] to "
        f"{session}{or_share}"
    )


def _go_on(policy: RolloutPolicy, observed: RolloutInput, still: list[RestartView]) -> RolloutDecision:
    """What to do while the restarts in `still` are not over."""
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
    if not left:
        said = "all workers have been restarted"
        return RolloutDecision("done", reason=said, summary=said)
    held = _held(policy, observed, names)
    if held is not None:
        return held
    order = sorted(
        left, key=lambda worker: (worker.name not in not_begun, worker.leader, len(worker.name), worker.name)
    )
    chosen = order[: room - len(away)]
    if any(worker.leader for worker in chosen) and (len(chosen) > 1 or away):
        chosen = [
            worker for worker in chosen if not worker.leader
        ]  # the leader goes alone, when the others are back
    if not chosen:
        said = f"the group leader is restarted last; {names[0]} is not back yet"
        return RolloutDecision("wait", reason=said, summary=said)
    return _begin(policy, observed, [worker.name for worker in chosen], alone)


def _begin(policy: RolloutPolicy, observed: RolloutInput, names: list[str], alone: str) -> RolloutDecision:
    expected = (
        f"expected to take {max(observed.gaps_ms) / 1000:.1f} s"
        if observed.gaps_ms
        else ("no restart measured yet")
    )
    why = f"the group is Stable with all workers; {expected} of {policy.budget_ms / 1000:.1f} s{alone}"
    return RolloutDecision(
        "restart", tuple(names), reason=why, summary=f"restart of {', '.join(names)}{alone}"
    )


def _held(policy: RolloutPolicy, observed: RolloutInput, away: Sequence[str]) -> RolloutDecision | None:
    """Why nobody may be stopped now, None if somebody may."""
    refused = refusal(policy, observed.gaps_ms) if policy.refuses else ""
    if refused:
        return RolloutDecision("refuse", reason=refused, summary=refused)
    if policy.paused:
        said = "spec.rollout.paused is true"
        return RolloutDecision("wait", reason=said, summary=said)
    waits = unready(observed.group, observed.workers, away)
    return RolloutDecision("wait", reason=waits, summary=waits) if waits else None


def _room(policy: RolloutPolicy, observed: RolloutInput, away: Sequence[str]) -> tuple[int, str]:
    """How many may be away at once now, and why only one where that is not the user's wish."""
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
    """Whether the incarnation that is to be restarted is still there."""
    if restart.uid and worker.uid:
        return worker.uid == restart.uid
    return not restart.uid and worker.revision != observed.revision and worker.alive


def _not_begun(observed: RolloutInput, restart: RestartView, worker: WorkerView) -> bool:
    """Whether a restart was noted, but nobody has been told to end: the operator ended in between."""
    if not restart.uid or not _old(observed, restart, worker) or worker.terminating:
        return False
    return observed.now_ms - restart.since_ms >= NOT_BEGUN_MS


def moved(restart: RestartView, worker: WorkerView) -> bool:
    """Whether it came back in a later generation than it left."""
    return 0 <= restart.generation < worker.generation


def failure(policy: RolloutPolicy, observed: RolloutInput, restart: RestartView, worker: WorkerView) -> str:
    """Why the rolling restart must stop for this worker's sake, in words; "" if it need not."""
    if _old(observed, restart, worker):
        return ""  # not ended yet: it drains, and its session runs on with its heartbeats
    joined = worker.running or worker.generation >= 0
    if joined and moved(restart, worker) and not observed.excuse:
        return (
            f"{worker.name} came back in generation {worker.generation}, not {restart.generation}: "
            "the group rebalanced meanwhile"
        )
    if observed.group is None:
        return ""  # nobody can join while the brokers don't answer, whatever the revision
    because = f": {worker.trouble}" if worker.trouble else ""
    away_ms = _away_ms(observed, restart, worker)
    if not joined and away_ms is not None and away_ms > policy.budget_ms:
        failing = f" (it has failed {worker.failures} times)" if worker.failures else ""
        away = f"{worker.name} has been out of the group for {away_ms / 1000:.1f} s{failing}"
        return f"{away}, more than {policy.allowance}{because}"
    if worker.failures >= HOPELESS and not worker.running:
        return f"{worker.name} has failed {worker.failures} times in a row{because}"
    return ""


def _away_ms(observed: RolloutInput, restart: RestartView, worker: WorkerView) -> int | None:
    """How long it has been away; counted from when it was asked to end where its end was not seen."""
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
    """What a restart still lacks to be over; "" when it is."""
    if _old(observed, restart, worker):
        return "is draining" if worker.terminating or not restart.uid else "has not been told to end yet"
    if not worker.alive:
        return f"has not started yet{f' ({worker.trouble})' if worker.trouble else ''}"
    if not worker.running:
        return f"is {worker.phase or 'starting'}"
    if observed.group is None:
        return "has restarted, but the broker did not report whether it is in the group"
    if not observed.group.stable:
        return f"has restarted, but the group is {observed.group.state}"
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
    """After a rebalance that is no failure: who is not in the new generation yet."""
    newest = max(worker.generation for worker in observed.workers)
    late = [worker.name for worker in observed.workers if worker.running and worker.generation != newest]
    return (
        (
            f"has restarted after a rebalance ({observed.excuse}), but {late[0]} has not joined the new "
            "generation yet"
        )
        if late
        else ""
    )


def _patience_over(policy: RolloutPolicy, observed: RolloutInput, worker: WorkerView) -> bool:
    """Whether it has been back for so long that the rest of its lag is not the restart's doing.

    Where more is produced than the group can consume nobody ever catches up.
    """
    since = worker.running_since_ms
    return since is not None and observed.now_ms - since > policy.budget_ms


def _caught_up(before: int) -> int:
    """Up to which lag a worker counts as having caught up: about what it was."""
    return before + max(1_000, before // 10)


def unready(group: GroupView | None, workers: Sequence[WorkerView], away: Collection[str] = ()) -> str:
    """Why no member may be touched now, in words; "" if one may.

    Args:
        group: the group, None when the broker did not say.
        workers: the workers that should be in it.
        away: which of them need not run, nor be in the newest generation.
    """
    if group is None:
        return "the broker did not say how the group is"
    if not group.stable:
        return f"the group is {group.state}"
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
    # DescribeGroups does not tell who has not synced yet; the workers do, by the generation they are in.
    newest = max((worker.generation for worker in workers), default=-1)
    for worker in workers:
        if worker.name not in away and worker.generation != newest:
            return f"{worker.name} is in generation {worker.generation}, not yet in {newest}"
    return ""
