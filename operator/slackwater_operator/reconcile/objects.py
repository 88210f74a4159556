"""The group's objects: what is applied, what is somebody else's, what is no longer needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slackwater_operator.build import names, pod_monitor
from slackwater_operator.build.disruption_budget import disruption_budget
from slackwater_operator.build.pod_monitor import pod_monitor as build_pod_monitor
from slackwater_operator.build.service import service
from slackwater_operator.build.service_account import service_account
from slackwater_operator.build.statefulset import statefulset
from slackwater_operator.decide.disruption import DisruptionInput, decide_disruption
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.drift import differs, marked
from slackwater_operator.reconcile.plan import Action, ApplyObject, CreateSecret, DeleteObject, SetReplicas
from slackwater_operator.reconcile.sets import Span, StatefulSetSeen, next_suffix
from slackwater_operator.reconcile.world import APPLIED, Manifest, World

STATEFULSET, CONFIG_MAP = "StatefulSet", "ConfigMap"


def foreign(world: World) -> list[tuple[str, str]]:
    """The objects under our names that are not ours: they are never touched."""
    return sorted(where for where, live in world.live.items() if not names.is_owned(live, world.uid))


def note_foreign(draft: Draft) -> bool:
    """Notes names that are taken. Whether nothing can be done at all: those of the first objects.

    A group that has no StatefulSet yet needs the names of all that it may have, and no older group that may
    have one of the same name: else both would run until one rolls. One that has a StatefulSet goes on.
    """
    world = draft.world
    taken = foreign(world)
    for kind, name in taken:
        draft.trouble(
            "NameTaken",
            f"{kind} {name} exists and is not this ConsumerGroup's; delete or rename it, or rename the group",
        )
    assert world.group is not None
    rivals = world.rivals if world.statefulset is None or world.group.spec.rollout.takes_over else ()
    for rival in rivals:
        shared = sorted({*names.set_names(world.name)} & {*names.set_names(rival)})
        draft.trouble(
            "NameTaken",
            f"ConsumerGroup {rival}, which is older, may have a StatefulSet {', '.join(shared)}, as this one "
            "may; give one of the two another name",
        )
    wanted = {STATEFULSET, "ServiceAccount", "Service"}
    hindered = bool(rivals) or any(kind in wanted for kind, _ in taken)
    return world.statefulset is None and hindered


def apply_around(draft: Draft) -> None:
    """Service, ServiceAccount, ConfigMap, PodMonitor, and the budget of evictions, where they differ."""
    for manifest in _around(draft):
        draft.acts += _applied(draft, manifest)


def apply_sets(draft: Draft, template: Mapping[str, Any] | None) -> list[Action]:
    """What gives the StatefulSets their ordinals (`draft.spans`) and the one that is filled its template.

    Args:
        draft: the plan, of which nothing is changed.
        template: the pod template of the set at rest, or of two the one that is filled; None: it stays as it
            is. Where takeovers begin it is that of the set which is made for them.
    """
    world = draft.world
    acts: list[Action] = []
    for suffix, span in draft.spans.items():
        there = world.sets.get(suffix)
        if there is not None and there.deleting:
            continue
        filled = there is not None and there is world.statefulset and not _begins(draft)
        if there is None and template is not None:
            acts += _make(draft, template, suffix, span)
        elif there is not None and filled and template is not None and not _told(draft):
            acts += _applied(draft, _manifest(draft, template, suffix, span))
        elif there is not None and there.span != span:
            start = span.start if span.start != there.start else None
            acts.append(SetReplicas(there.name, there.uid, span.replicas, start))
    return acts


def _begins(draft: Draft) -> bool:
    """Whether the set that is filled is not there yet: the one that is keeps its template."""
    return draft.takes_over and draft.world.arrangement.left is None


def _told(draft: Draft) -> bool:
    """Whether a successor had been told to take over: its set keeps its template until that is over."""
    moving = draft.world.memory.rollout.moving
    return moving is not None and moving.told_ms > 0


def _make(draft: Draft, template: Mapping[str, Any], suffix: str, span: Span) -> list[Action]:
    """A set that is not there yet, and what its pods need first."""
    return key_for(draft, template) + _applied(draft, _manifest(draft, template, suffix, span))


def key_for(draft: Draft, template: Mapping[str, Any]) -> list[Action]:
    """What makes the takeover Secret before pods of a template that mounts it, unless it is known to be."""
    needed = names.can_hand_over(dict(template)) and not draft.world.secret
    return [CreateSecret(names.takeover_secret(draft.world.name))] if needed else []


def mend_secret(draft: Draft) -> None:
    """Makes the takeover Secret again where it is gone: a pod that is started without it hangs, a preflight's
    too."""
    world = draft.world
    assert world.revision is not None
    tried = names.preflight_job(world.name, world.revision.hash)
    jobs = [one for one in world.jobs if one.name == tried and not (one.view.succeeded or one.view.failed)]
    needed = any(one.can_hand_over and not one.started for one in world.pods)
    if jobs and names.can_hand_over(world.revision.template):
        needed = True
    if needed and world.secret == "":
        draft.acts.append(CreateSecret(names.takeover_secret(world.name)))


def _manifest(draft: Draft, template: Mapping[str, Any], suffix: str, span: Span) -> Manifest:
    assert draft.world.group is not None
    return statefulset(
        draft.world.group, template=template, replicas=span.replicas, suffix=suffix, start=span.start
    )


def clean_up(draft: Draft) -> None:
    """Deletes ConfigMaps that no revision in use names.

    A pod of an old revision that comes back reads the old one, so that nothing is deleted before all pods
    have the newest and no former revision is needed to go back to.
    """
    world = draft.world
    assert world.revision is not None
    there = world.statefulset
    if there is None or not there.update_revision or draft.template_changes or len(world.sets) > 1:
        return
    if not world.pods or any(one.revision != there.update_revision for one in world.pods):
        return
    if draft.rollout.phase != "Idle" or draft.rollout.good != there.update_revision:
        return
    used = {world.revision.config_map["metadata"]["name"]} | _named(there.manifest)
    for name, uid in sorted(world.configmaps.items()):
        if name not in used:
            draft.acts.append(DeleteObject("v1", CONFIG_MAP, name, uid))


def _named(manifest: Manifest) -> set[str]:
    """The ConfigMaps that a StatefulSet's template names as volumes."""
    volumes = manifest.get("spec", {}).get("template", {}).get("spec", {}).get("volumes") or []
    found = set()
    for volume in volumes:
        sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
        found |= {one["configMap"]["name"] for one in sources if (one.get("configMap") or {}).get("name")}
    return found


def _around(draft: Draft) -> Iterator[Manifest]:
    world = draft.world
    assert world.group is not None
    assert world.revision is not None
    yield service_account(world.group)
    yield service(world.group)
    if not _rejected(draft):
        yield world.revision.config_map
    yield disruption_budget(world.group, max_unavailable=_may_be_evicted(draft))
    if world.pod_monitors:
        yield build_pod_monitor(world.group)


def _rejected(draft: Draft) -> bool:
    failed, revision = draft.rollout.failed, draft.world.revision
    return failed is not None and revision is not None and failed.template == revision.hash


def _may_be_evicted(draft: Draft) -> int:
    world = draft.world
    decision = decide_disruption(
        world.rollout_policy,
        DisruptionInput(
            unsettled=draft.look.unsettled,
            workers=draft.look.replicas,
            under_way=len(draft.rollout.under_way) + (draft.rollout.moving is not None),
            gaps_ms=draft.gaps_ms,
            produced_per_s=world.measured.produced_per_s,
            capacity_per_s=world.measured.capacity_per_s,
        ),
    )
    return decision.max_unavailable


def _applied(draft: Draft, manifest: Manifest) -> list[Action]:
    """What applies an object, where that would change anything and it is not somebody else's."""
    wanted = marked(manifest)
    where = manifest["kind"], manifest["metadata"]["name"]
    live = draft.world.live.get(where)
    if live is not None and not names.is_owned(live, draft.world.uid):
        return []
    version = str(live["metadata"].get("resourceVersion", "")) if live is not None else ""
    if draft.world.unchanged.get(where) == (version, wanted["metadata"]["annotations"][APPLIED]):
        return []
    return [ApplyObject(wanted)] if differs(wanted, live) else []


def wanted_names(world: World) -> list[tuple[str, str, str]]:
    """(apiVersion, kind, name) of the objects that a group wants, for whoever looks for them."""
    found = [
        *(("apps/v1", STATEFULSET, names.statefulset(world.name, suffix)) for suffix in _asked_sets(world)),
        ("v1", "Service", names.service(world.name)),
        ("v1", "ServiceAccount", names.service_account(world.name)),
        ("policy/v1", "PodDisruptionBudget", names.disruption_budget(world.name)),
    ]
    if world.revision is not None:
        found.append(("v1", CONFIG_MAP, world.revision.config_map["metadata"]["name"]))
    if world.pod_monitors:
        found.append((pod_monitor.API_VERSION, pod_monitor.KIND, names.pod_monitor(world.name)))
    return found


def _asked_sets(world: World) -> list[str]:
    """The suffixes of the sets that are looked for: before the first one is made all that it may have."""
    takes_over = world.group is not None and world.group.spec.rollout.takes_over
    return list(names.SETS) if takes_over and world.statefulset is None else wanted_sets(world)


def makes_set(world: World) -> bool:
    """Whether a set is to be made whose pods need the takeover Secret."""
    takes_over = world.group is not None and world.group.spec.rollout.takes_over
    return takes_over and len(wanted_sets(world)) > len(world.sets)


def wanted_sets(world: World) -> list[str]:
    """The suffixes of the sets that are there, or are to be made: the first one, or the one that a roll goes
    to. Where nothing is to be made no other name is looked up."""
    takes_over = world.group is not None and world.group.spec.rollout.takes_over
    there = world.statefulset
    if there is None:
        return [next_suffix("") if takes_over else ""]
    revision = world.revision
    rolls = revision is not None and world.failed is None and _outdated(world, there, revision.hash)
    begins = takes_over and len(world.sets) == 1 and rolls
    return [*world.sets, *([next_suffix(there.suffix)] if begins else [])]


def _outdated(world: World, there: StatefulSetSeen, wanted: str) -> bool:
    """Whether the set at rest has another template than the wanted one, or pods of another."""
    newest = there.update_revision
    return there.template != wanted or (bool(newest) and any(one.revision != newest for one in world.pods))
