"""The status that a turn leaves: memory for the next, conditions for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater_operator.build import names
from slackwater_operator.decide.conditions import ConditionsInput, Trouble, conditions
from slackwater_operator.decide.lost_nodes import PlacedWorker, advice, lost_workers
from slackwater_operator.decide.ownership import listed
from slackwater_operator.reconcile.connection import remembered
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.lost_log import skipped_troubles, stopped_partitions, stopped_troubles
from slackwater_operator.reconcile.memory import dump_skip
from slackwater_operator.reconcile.revision import PREFLIGHT_SAYS
from slackwater_operator.reconcile.world import World

# Of status.scaling, what alone is no reason to write it.
_FIGURES = frozenset({"raw", "capped", "capacityPerS", "lostMs", "settleMs", "partitions"})


def status_of(draft: Draft) -> dict[str, Any]:
    """The whole status."""
    world, look = draft.world, draft.look
    assert world.group is not None
    there = world.statefulset
    told: dict[str, Any] = {
        "observedGeneration": world.generation,
        "replicas": _existing(world),
        "readyReplicas": len(_ready_members(draft)),
        "selector": names.selector_text(world.name),
        "desiredReplicas": draft.desired if draft.desired is not None else world.group.initial_replicas,
        "members": len(look.group.members) if look.group is not None else world.status.get("members"),
        "lag": _lag(world),
        "generation": max((one.generation for one in look.workers if one.generation >= 0), default=None),
        "revision": there.template if there is not None else None,
        "rollout": draft.rollout.dump(),
        "scaling": _scaling(draft),
        "kafka": _kafka(draft),
        "restartGapsMs": list(draft.gaps_ms),
        "decisions": [one.dump() for one in draft.decisions],
        "skipped": [dump_skip(one) for one in draft.skipped] or None,
        "conditions": conditions(_seen(draft), _conditions_before(world), now_ms=world.now_ms),
    }
    return {name: value for name, value in told.items() if value is not None}


def status_of_trouble(
    status: Mapping[str, Any],
    before: Mapping[str, Mapping[str, Any]],
    generation: int,
    trouble: Trouble,
    now_ms: int,
) -> dict[str, Any]:
    """The status where no turn can be made: as it was, but for what says so.

    Args:
        status: as it was.
        before: its conditions by type.
        generation: the resource's metadata.generation.
        trouble: what is wrong.
        now_ms: wall clock.
    """
    seen = ConditionsInput(generation=generation, troubles=(trouble,))
    told = {one["type"]: one for one in conditions(seen, list(before.values()), now_ms=now_ms)}
    kept = {kind: dict(one) for kind, one in before.items()}
    for kind in ("Ready", "Degraded"):  # how the group is otherwise nobody has looked at
        if kind == "Degraded" or kind not in kept:
            kept[kind] = told[kind]
    return {**status, "conditions": list(kept.values())}


def status_of_deletion(world: World, waits: str) -> dict[str, Any]:
    """The status of a ConsumerGroup that is being deleted: as it was, but not Ready.

    Args:
        world: the group.
        waits: what keeps it from being gone, in words; "" where nothing does.
    """
    seen = ConditionsInput(generation=world.generation, deleting=True, deletion_waits=waits)
    before = world.memory.conditions
    ready = conditions(seen, list(before.values()), now_ms=world.now_ms)[0]
    return {**world.status, "conditions": list({**before, "Ready": ready}.values())}


def troubles(draft: Draft) -> tuple[Trouble, ...]:
    """What needs a person, the gravest first."""
    found = [*stopped_troubles(draft.world), *draft.troubles]
    failed = draft.rollout.failed
    if failed is not None:
        preflight = failed.reason.startswith(PREFLIGHT_SAYS)
        reason = "PreflightFailed" if preflight else "RolloutStopped"
        advice = f"correct the spec, or set the annotation {names.RETRY} to a new value to try it again"
        found.append(Trouble(reason, f"revision {failed.template}: {failed.reason}; {advice}"))
    found += [Trouble(reason, message) for reason, message in draft.world.problems]
    found += _lost_nodes(draft)
    found += _missing_pods(draft)
    found += _broken_pods(draft)
    found += _foreign_members(draft)
    found += skipped_troubles(draft)
    return tuple(found)


def _ready_members(draft: Draft) -> set[str]:
    """The members with a ready pod that are in Kafka's group, where the broker says who is: a pod on a lost
    node keeps its Ready condition for 40 s and more."""
    ready = {pod.member for pod in draft.world.pods if pod.ready} & set(draft.look.names)
    group = draft.look.group
    return ready if group is None else ready & group.instance_ids


def _lost_nodes(draft: Draft) -> list[Trouble]:
    """Workers whose node is gone."""
    world, group = draft.world, draft.look.group
    placed = []
    for member in draft.look.names:
        pod = world.pod(member)
        if pod is not None:
            placed.append(
                PlacedWorker(
                    pod.name,
                    pod.node,
                    ready=pod.ready,
                    node_lost=pod.node_lost,
                    silent=world.silent(pod),
                    is_member=member in group.instance_ids if group is not None else None,
                    deleted_ms=pod.deleted_ms,
                )
            )
    told = advice(lost_workers(placed, now_ms=world.now_ms))
    return [Trouble("NodeLost", told)] if told else []


def _missing_pods(draft: Draft) -> list[Trouble]:
    """Pods that a StatefulSet's controller cannot create."""
    lacking = sorted(draft.world.not_created.items())
    if not lacking:
        return []
    pod, why = lacking[0]
    more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
    message = (
        f"{pod}{more} cannot be created: {why}; correct what it names: Kubernetes tries again by itself, "
        "less and less often"
    )
    return [Trouble("PodsNotCreated", message)]


def _broken_pods(draft: Draft) -> list[Trouble]:
    """Workers that end again and again, or cannot be started at all."""
    broken = [
        one
        for one in draft.look.workers
        if one.uid and not one.running and one.trouble and (one.failures >= 2 or not one.alive)
    ]
    if not broken:
        return []
    first = broken[0]
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    pod = first.pod or first.name
    return [Trouble("WorkerFailing", f"{pod}{more}: {first.trouble}; see kubectl logs {pod}")]


def _foreign_members(draft: Draft) -> list[Trouble]:
    """Members of the group that are no workers of ours: another application's with the same group.id, or
    another ConsumerGroup's."""
    others, resource = draft.world.foreign_members, draft.world.group
    assert resource is not None
    if not others or draft.hindered:
        return []
    what = f"{listed(others)} is in the group {resource.group_id}, but is no worker of this ConsumerGroup"
    return [Trouble("ForeignMembers", f"{what}; give one of the two another group.id")]


def _seen(draft: Draft) -> ConditionsInput:
    world, look = draft.world, draft.look
    assert world.group is not None
    measured, kafka = world.measured, world.kafka
    lags = list(kafka.lag.values()) if kafka is not None else []
    problems = kafka.problems if kafka is not None else (measured.kafka_problem,)
    return ConditionsInput(
        generation=world.generation,
        suspended=world.group.spec.suspend,
        replicas=0 if world.group.spec.suspend else (draft.desired or 0),
        members=look.running,
        partitions=len(kafka.partitions) if kafka is not None and kafka.partitions else None,
        group=look.group,
        unsettled=_unsettled(draft),
        kafka_away_ms=measured.kafka_away_ms,
        problems=tuple(filter(None, problems)),
        lag_known=bool(lags) and all(one is not None for one in lags),
        scaling=draft.scaling,
        rollout_phase=draft.rollout.phase,
        rollout_reason=draft.rollout.reason,
        stalls=measured.stalls,
        stopped=tuple(str(one.partition) for one in stopped_partitions(world)),
        troubles=troubles(draft),
        unplanned=(*measured.unplanned, *([draft.unplanned] if draft.unplanned else [])),
    )


def _unsettled(draft: Draft) -> str:
    """What keeps the group from being settled; what begins in this turn does, too."""
    if draft.look.unsettled:
        return draft.look.unsettled
    if draft.world.statefulset is None:
        return "there is no StatefulSet yet"
    if draft.step is not None:
        return f"{draft.step[1]} workers are wanted, {draft.step[0]} are there"
    return ""


def _existing(world: World) -> int:
    """How many members have a pod: `status.replicas`, which the scale subresource shows."""
    if len(world.sets) > 1:
        return len({one.member for one in world.pods if one.ordinal >= 0})
    return sum(one.existing for one in world.sets.values())


def _conditions_before(world: World) -> list[Mapping[str, Any]]:
    return list(world.memory.conditions.values())


def _lag(world: World) -> int | None:
    """The total lag to two digits, not written more often than figures may be."""
    before = world.status.get("lag")
    if not world.figures_due and isinstance(before, int):
        return before
    lags = list(world.kafka.lag.values()) if world.kafka is not None else []
    known = [one for one in lags if one is not None]
    return _two_digits(sum(known)) if known and len(known) == len(lags) else None


def _kafka(draft: Draft) -> dict[str, Any] | None:
    """Where the group has its group.id: as it was, where somebody else has that now."""
    world, before = draft.world, draft.world.memory.kafka
    assert world.group is not None
    if draft.hindered:
        return before.dump() if before is not None else None
    return remembered(world.running or world.group.spec.kafka, world.cluster_id).dump()


def _two_digits(value: int) -> int:
    digits = len(str(value))
    return value if digits <= 2 else round(value, 2 - digits)


def _scaling(draft: Draft) -> dict[str, Any] | None:
    before = draft.world.memory.scaling
    told = {**draft.world.measured.scaling_memory, **(draft.scaling.dump() if draft.scaling else {})}
    if not draft.world.figures_due and _but_figures(told) == _but_figures(before):
        return dict(before)
    return told or None


def but_figures(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without what changes all the time."""
    kept = {name: value for name, value in status.items() if name != "lag"}
    return {**kept, "scaling": _but_figures(status.get("scaling") or {})}


def _but_figures(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name not in _FIGURES}
