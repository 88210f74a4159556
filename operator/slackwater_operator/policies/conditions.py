"""The ConsumerGroup's conditions, from one input.

A condition is rewritten only when something about it changes: messages carry no figures that change all the
time, and `lastTransitionTime` moves only when the status flips (Kubernetes API conventions).

`Reconciling`, `Stalled` and `Ready` are those of kstatus (sigs.k8s.io/cli-utils/pkg/kstatus), by which helm 4
and Flux wait: `Reconciling` is in progress, `Stalled` has failed, and only a `Ready` that is True is current.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slackwater_operator.api.times import to_text
from slackwater_operator.model.group import GROUP_UNKNOWN, GroupView
from slackwater_operator.policies.scaling.types import AWAITS_REVISION, ScalingDecision
from slackwater_operator.policies.stalls import HOT, IDLE, MARKERS, SPARE, STUCK, UNASSIGNED, Stall

TYPES = (
    "Ready",
    "Reconciling",
    "Stalled",
    "Stable",
    "Scaled",
    "RolledOut",
    "LagKnown",
    "SkewLimited",
    "Stuck",
    "Degraded",
    "Suspended",
    "Rewound",
)
"""In the order of the status. `Rewound` is there once a rewind was asked for."""
WELL: Mapping[str, str] = {
    **dict.fromkeys(("Ready", "Stable", "Scaled", "RolledOut", "LagKnown", "Rewound"), "True"),
    **dict.fromkeys(("Stalled", "SkewLimited", "Stuck", "Degraded", "Suspended"), "False"),
}
"""The status of a condition with which all is well. `Reconciling` reports no trouble, whatever it is."""
UNREACHABLE_AFTER_MS = 120_000
"""How long a Kafka cluster may be unreachable before the group is Degraded."""

_TRUE, _FALSE, _UNKNOWN = "True", "False", "Unknown"
_HELD = {
    "rebalancing": "Rebalancing",
    "settling": "Settling",
    "rising": "Steadying",
    "draining": "Draining",
    "behavior": "LimitedByBehavior",
    "fallback": "Fallback",
    "share": "SameShare",
    "cost": "NotWorthIt",
    "window": "Steadying",
    "falling": "Steadying",
    "production": "ProductionHigh",
    "flapping": "Flapping",
    "throughput": "ThroughputFell",
    "rollout": "RollingRestart",
    AWAITS_REVISION: "AwaitsRevision",
}
_AS_REQUESTED = {"paused": "Paused", "activation": "BelowActivationLag"}
_LIMITS = {
    "minReplicas": "AtMinReplicas",
    "schedule": "AtScheduleFloor",
    "maxReplicas": "AtMaxReplicas",
    "partitions": "AtPartitions",
}

_UNDER_WAY = ("Preflight", "Rolling", "RollingBack")
"""Phases of a rollout in which something is done."""
_GIVEN_UP = {"Refused": ("RolloutRefused",), "Stopped": ("RolloutStopped", "PreflightFailed")}
"""Phases in which a rollout waits for another spec, and the reasons of Degraded that say why."""


@dataclass(frozen=True)
class Trouble:
    """A problem that needs a person; the condition `Degraded` shows it.

    Attributes:
        reason: in CamelCase: `InvalidSpec`, `NameTaken`, `PreflightFailed`, `RolloutStopped`, `Forbidden`
            and others.
        message: what is wrong, and what to do.
        stalls: whether the spec is not carried out before a person acts.
    """

    reason: str
    message: str
    stalls: bool = False


@dataclass(frozen=True)
class RewindView:
    """A rewind, or a request for one.

    Attributes:
        reason: its phase or result, in CamelCase.
        message: what is done, or what came of it.
        stops: whether it has the workers stopped now.
        done: whether it has ended.
    """

    reason: str
    message: str
    stops: bool = False
    done: bool = False


@dataclass(frozen=True)
class ConditionsInput:
    """The input of all conditions.

    Attributes:
        generation: the resource's metadata.generation, which becomes their observedGeneration.
        suspended: spec.suspend.
        deleting: whether the resource is being deleted.
        deletion_waits: what delays the deletion; "" if nothing is known to.
        replicas: the wanted number of workers.
        members: how many of them are in the group and running.
        partitions: the number of partitions of the topics; None if unknown.
        group: the group; None when the broker did not respond.
        unsettled: why the group is not settled (`stability.unsettled`); "" when it is.
        held_at_zero: why no worker starts although workers are wanted and none run; "" if nothing holds them.
        kafka_away_ms: for how long the cluster has not responded; 0 when it does.
        problems: what could not be observed, in words.
        lag_known: whether the lag of all partitions is known.
        scaling: the scaling decision; None before the first.
        rollout_phase: status.rollout.phase: `Idle`, `Preflight`, `Rolling`, `Paused`, `Refused`, `Stopped`
            or `RollingBack`.
        rollout_reason: the reason of the phase, without figures that change all the time.
        stalls: lack of progress.
        stopped: the partitions that are not read until a person decides where to continue.
        troubles: the problems that need a person, the most serious first.
        maintenance: problems of the tables' maintenance, which leave the workers and the spec alone: only
            `Degraded` shows them.
        unplanned: the causes of recent unplanned rebalances; empty without any.
        rewind: the last rewind; None where none was asked for.
    """

    generation: int
    suspended: bool = False
    deleting: bool = False
    deletion_waits: str = ""
    replicas: int = 0
    members: int = 0
    partitions: int | None = None
    group: GroupView | None = None
    unsettled: str = ""
    held_at_zero: str = ""
    kafka_away_ms: int = 0
    problems: tuple[str, ...] = ()
    lag_known: bool = False
    scaling: ScalingDecision | None = None
    rollout_phase: str = "Idle"
    rollout_reason: str = ""
    stalls: tuple[Stall, ...] = ()
    stopped: tuple[str, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    maintenance: tuple[Trouble, ...] = ()
    unplanned: tuple[str, ...] = ()
    rewind: RewindView | None = None


def conditions(
    observed: ConditionsInput, previous: Sequence[Mapping[str, Any]], *, now_ms: int
) -> list[dict[str, Any]]:
    """Computes `status.conditions`: type, status, observedGeneration, reason, message, lastTransitionTime of
    each.

    Args:
        observed: their input.
        previous: the previous conditions; lastTransitionTime is kept where the status is the same.
        now_ms: wall clock.
    """
    before = {condition.get("type"): condition for condition in previous}
    makers: tuple[Callable[[ConditionsInput], _Verdict | None], ...] = (
        _ready,
        _reconciling,
        _stalled,
        _stable,
        _scaled,
        _rolled_out,
        _lag_known,
        _skew_limited,
        _stuck,
        _degraded,
        _suspended,
        _rewound,
    )
    now = to_text(now_ms)
    result = []
    for kind, make in zip(TYPES, makers, strict=True):
        verdict = make(observed)
        if verdict is None:
            continue
        last = before.get(kind, {})
        kept = last.get("status") == verdict.status and isinstance(last.get("lastTransitionTime"), str)
        result.append(
            {
                "type": kind,
                "status": verdict.status,
                "observedGeneration": observed.generation,
                "reason": verdict.reason,
                "message": verdict.message,
                "lastTransitionTime": last["lastTransitionTime"] if kept else now,
            }
        )
    return result


def foremost(made: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The condition that a person must see first: what needs one, what goes on, or Ready; empty without
    conditions."""
    by_type = {condition.get("type"): condition for condition in made}
    ready = by_type.get("Ready", {})
    if ready.get("reason") == "Deleting":
        return ready
    problems = (by_type.get(kind, {}) for kind in ("Degraded", "Stuck", "Reconciling"))
    return next((condition for condition in problems if condition.get("status") == "True"), ready)


class _Verdict(NamedTuple):
    status: str
    reason: str
    message: str


def _ready(observed: ConditionsInput) -> _Verdict:
    if observed.deleting:
        waits = f"; {observed.deletion_waits}" if observed.deletion_waits else ""
        return _Verdict(_FALSE, "Deleting", f"the ConsumerGroup is being deleted{waits}")
    if observed.suspended and observed.unsettled:
        return _Verdict(_FALSE, "Suspending", f"spec.suspend is true: {observed.unsettled}")
    if observed.suspended:
        return _Verdict(_TRUE, "Suspended", "spec.suspend is true: no worker runs")
    if observed.rewind is not None and observed.rewind.stops:
        return _Verdict(_FALSE, "Rewinding", f"no worker runs during the rewind {observed.rewind.message}")
    troubles = all_troubles(observed)
    if observed.group is None:
        if troubles:
            return _Verdict(_UNKNOWN, troubles[0].reason, troubles[0].message)
        why = f": {_problems(observed)}" if observed.problems else ""
        return _Verdict(_UNKNOWN, "GroupUnknown", f"{GROUP_UNKNOWN}{why}")
    if observed.unsettled or observed.members < observed.replicas:
        return _not_settled(observed, troubles)
    if observed.stopped:
        named = ", ".join(observed.stopped[:3]) + (" and more" if len(observed.stopped) > 3 else "")
        why = f": {troubles[0].message}" if troubles else ""
        return _Verdict(_FALSE, "PartitionsStopped", f"{named} is not being consumed{why}")
    if not observed.replicas:
        return _Verdict(_TRUE, "ScaledToZero", "no worker is needed now")
    return _Verdict(
        _TRUE, "Settled", f"{_count(observed.replicas, 'worker')} in the group; every partition is assigned"
    )


def _not_settled(observed: ConditionsInput, troubles: Sequence[Trouble]) -> _Verdict:
    """Why Ready is False, by what is most likely the cause."""
    if troubles:
        return _Verdict(_FALSE, troubles[0].reason, troubles[0].message)
    workers = _count(observed.replicas, "worker")
    missing = observed.unsettled or f"{workers} required; not all of them are in the group"
    if observed.rollout_phase in _UNDER_WAY:
        return _Verdict(_FALSE, observed.rollout_phase, _joined(_rollout_reason(observed), missing))
    return _Verdict(_FALSE, "NotSettled", missing)


def _joined(message: str, more: str) -> str:
    """Both texts; ``more`` is not repeated where the message has it."""
    return message if more in message else f"{message}; {more}"


def _reconciling(observed: ConditionsInput) -> _Verdict:
    if observed.deleting:
        return _Verdict(_FALSE, "Deleting", "nothing is started")
    if observed.suspended:
        status, why = (_TRUE, "Suspending") if observed.unsettled else (_FALSE, "Suspended")
        return _Verdict(status, why, observed.unsettled or "nothing is started")
    if observed.rewind is not None and not observed.rewind.done:
        return _Verdict(_TRUE, "Rewinding", observed.rewind.message)
    stalled = _what_stalls(observed)
    if stalled is not None:
        return _Verdict(_FALSE, stalled.reason, stalled.message)
    if observed.rollout_phase != "Idle":
        return _Verdict(_TRUE, observed.rollout_phase, _rollout_reason(observed))
    decision = observed.scaling
    if decision is not None and decision.damping != "unknown" and decision.applied != observed.replicas:
        return _Verdict(_TRUE, "Scaling", decision.summary or decision.reason)
    if observed.group is None:
        return _Verdict(_UNKNOWN, "GroupUnknown", GROUP_UNKNOWN)
    if observed.unsettled or observed.members < observed.replicas:
        return _Verdict(_TRUE, "Settling", observed.unsettled or "workers start")
    return _Verdict(_FALSE, "Complete", "all workers have the wanted revision and number")


def _stalled(observed: ConditionsInput) -> _Verdict:
    stalled = None if observed.suspended or observed.deleting else _what_stalls(observed)
    if stalled is None:
        return _Verdict(_FALSE, "NotStalled", "nothing waits for a person")
    return _Verdict(_TRUE, stalled.reason, stalled.message)


def _what_stalls(observed: ConditionsInput) -> Trouble | None:
    """What keeps the spec from being carried out until a person acts; None if nothing does.

    Partitions that are stopped do not count during a rollout, which may be what lets them go on.
    """
    troubles = all_troubles(observed)
    if observed.stopped and observed.rollout_phase == "Idle":
        return next(iter(troubles), None)
    given_up = _GIVEN_UP.get(observed.rollout_phase, ())
    return next((trouble for trouble in troubles if trouble.stalls or trouble.reason in given_up), None)


def _stable(observed: ConditionsInput) -> _Verdict:
    if observed.group is None:
        return _Verdict(_UNKNOWN, "GroupUnknown", GROUP_UNKNOWN)
    if not observed.replicas and observed.group.memberless:
        return _Verdict(_TRUE, observed.group.state, "the group has no members, as expected")
    if not observed.group.stable:
        return _Verdict(_FALSE, observed.group.state, observed.group.situation)
    if observed.unsettled:
        return _Verdict(_FALSE, "NotSettled", observed.unsettled)
    return _Verdict(_TRUE, "Stable", "the group is Stable and all its workers are in it")


def _scaled(observed: ConditionsInput) -> _Verdict:
    decision, spare = observed.scaling, _stall(observed, SPARE)
    if decision is None:
        return _Verdict(_UNKNOWN, "NotDecided", "no scaling decision has been made yet")
    message = decision.summary or decision.reason
    if decision.damping == "unknown":
        return _Verdict(_UNKNOWN, "NeedUnknown", message)
    if decision.applied != observed.replicas and not observed.held_at_zero:
        return _Verdict(_FALSE, "Stepping", message)
    if decision.damping in _HELD:
        return _Verdict(_FALSE, _HELD[decision.damping], message)
    if spare is not None:
        return _Verdict(_TRUE, "MoreWorkersThanPartitions", spare.message)
    reason = _AS_REQUESTED.get(decision.damping) or _LIMITS.get(decision.cap, "AsDecided")
    return _Verdict(_TRUE, reason, message)


def _rolled_out(observed: ConditionsInput) -> _Verdict:
    if observed.rollout_phase == "Idle":
        return _Verdict(_TRUE, "UpToDate", observed.rollout_reason or "all workers have the wanted revision")
    return _Verdict(_FALSE, observed.rollout_phase, _rollout_reason(observed))


def _lag_known(observed: ConditionsInput) -> _Verdict:
    if observed.lag_known:
        return _Verdict(_TRUE, "Observed", "the lag of every partition is known")
    why = _problems(observed) or "not all offsets have been observed"
    return _Verdict(_FALSE, "KafkaUnreachable" if observed.group is None else "OffsetsUnknown", why)


def _skew_limited(observed: ConditionsInput) -> _Verdict:
    hot = _stall(observed, HOT)
    if hot is not None:
        return _Verdict(_TRUE, "HotPartition", hot.message)
    if not observed.lag_known:
        return _Verdict(_UNKNOWN, "LagUnknown", "the lag of the partitions is not known")
    return _Verdict(_FALSE, "Balanced", "no partition alone asks for more than one worker can do")


def _stuck(observed: ConditionsInput) -> _Verdict:
    stuck = _stall(observed, STUCK)
    if stuck is not None:
        return _Verdict(_TRUE, "StuckConsumer", stuck.message)
    unassigned = _stall(observed, UNASSIGNED)
    if unassigned is not None:
        return _Verdict(_TRUE, "PartitionsUnassigned", unassigned.message)
    if observed.group is None:
        return _Verdict(_UNKNOWN, "GroupUnknown", GROUP_UNKNOWN)
    for kind, reason in ((MARKERS, "TransactionMarkers"), (IDLE, "TopicIdle")):
        harmless = _stall(observed, kind)
        if harmless is not None:
            return _Verdict(_FALSE, reason, harmless.message)
    return _Verdict(_FALSE, "Moving", "no partition with lag has gone without commits for long")


def _degraded(observed: ConditionsInput) -> _Verdict:
    troubles = [*all_troubles(observed), *observed.maintenance]
    if not troubles:
        return _Verdict(_FALSE, "AsExpected", "no action is needed")
    message = "; ".join(trouble.message for trouble in troubles)
    return _Verdict(_TRUE, troubles[0].reason, _joined(message, observed.held_at_zero))


def all_troubles(observed: ConditionsInput) -> list[Trouble]:
    """All that needs a person, the most serious first."""
    troubles = list(observed.troubles)
    if observed.rollout_phase in ("Stopped", "RollingBack", "Refused"):
        reason = "RolloutRefused" if observed.rollout_phase == "Refused" else "RolloutStopped"
        if all(trouble.reason not in (reason, "PreflightFailed") for trouble in troubles):
            troubles.append(Trouble(reason, observed.rollout_reason or reason))
    if observed.kafka_away_ms >= UNREACHABLE_AFTER_MS:
        minutes = UNREACHABLE_AFTER_MS // 60_000
        why = f"Kafka has not answered for more than {minutes} min: {_problems(observed) or 'no response'}"
        troubles.append(Trouble("KafkaUnreachable", why))
    if observed.unplanned:
        troubles.append(Trouble("UnplannedRebalances", "; ".join(observed.unplanned)))
    return troubles


def _suspended(observed: ConditionsInput) -> _Verdict:
    if observed.suspended:
        return _Verdict(_TRUE, "Suspended", "spec.suspend is true")
    return _Verdict(_FALSE, "NotSuspended", "spec.suspend is not set")


def _rollout_reason(observed: ConditionsInput) -> str:
    return observed.rollout_reason or f"the rollout is {observed.rollout_phase}"


def _rewound(observed: ConditionsInput) -> _Verdict | None:
    rewind = observed.rewind
    if rewind is None:
        return None
    status = _TRUE if rewind.done and rewind.reason == "Rewound" else _FALSE
    return _Verdict(status, rewind.reason, rewind.message)


def _stall(observed: ConditionsInput, kind: str) -> Stall | None:
    return next((stall for stall in observed.stalls if stall.kind == kind), None)


def _problems(observed: ConditionsInput) -> str:
    return "; ".join(observed.problems[:3])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
