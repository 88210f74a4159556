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
from slackwater_operator.reconcile.plan import ApplyObject, DeleteObject, SetReplicas
from slackwater_operator.reconcile.world import APPLIED, Manifest, World

STATEFULSET, CONFIG_MAP = "StatefulSet", "ConfigMap"


def foreign(world: World) -> list[tuple[str, str]]:
    """The objects under our names that are not ours: they are never touched."""
    return sorted(where for where, live in world.live.items() if not names.is_owned(live, world.uid))


def note_foreign(draft: Draft) -> bool:
    """Notes names that are taken. Whether the StatefulSet's is, so that nothing can be done at all."""
    taken = foreign(draft.world)
    for kind, name in taken:
        draft.trouble(
            "NameTaken",
            f"{kind} {name} exists and is not this ConsumerGroup's; delete or rename it, or rename the group",
        )
    wanted = {STATEFULSET, "ServiceAccount", "Service"}
    return any(kind == STATEFULSET for kind, _ in taken) or (
        draft.world.statefulset is None and any(kind in wanted for kind, _ in taken)
    )


def apply_around(draft: Draft) -> None:
    """Service, ServiceAccount, ConfigMap, PodMonitor, and the budget of evictions, where they differ."""
    for manifest in _around(draft):
        _apply(draft, manifest)


def apply_statefulset(draft: Draft, template: Mapping[str, Any] | None, replicas: int) -> None:
    """The StatefulSet with a template and a number of workers.

    Args:
        draft: the plan.
        template: its pod template; None: it stays as it is, and only the number counts.
        replicas: how many workers.
    """
    assert draft.world.group is not None
    there = draft.world.statefulset
    if template is None:
        if there is not None and there.replicas != replicas:
            draft.acts.append(SetReplicas(names.statefulset(draft.world.name), there.uid, replicas))
        return
    _apply(draft, statefulset(draft.world.group, template=template, replicas=replicas))


def clean_up(draft: Draft) -> None:
    """Deletes ConfigMaps that no revision in use names.

    A pod of an old revision that comes back reads the old one, so that nothing is deleted before all pods
    have the newest and no former revision is needed to go back to.
    """
    world = draft.world
    assert world.revision is not None
    there = world.statefulset
    if there is None or not there.update_revision or draft.template_changes:
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
            under_way=len(draft.rollout.under_way),
            gaps_ms=draft.gaps_ms,
            produced_per_s=world.measured.produced_per_s,
            capacity_per_s=world.measured.capacity_per_s,
        ),
    )
    return decision.max_unavailable


def _apply(draft: Draft, manifest: Manifest) -> None:
    wanted = marked(manifest)
    where = manifest["kind"], manifest["metadata"]["name"]
    live = draft.world.live.get(where)
    if live is not None and not names.is_owned(live, draft.world.uid):
        return
    version = str(live["metadata"].get("resourceVersion", "")) if live is not None else ""
    if draft.world.unchanged.get(where) == (version, wanted["metadata"]["annotations"][APPLIED]):
        return
    if differs(wanted, live):
        draft.acts.append(ApplyObject(wanted))


def wanted_names(world: World) -> list[tuple[str, str, str]]:
    """(apiVersion, kind, name) of the objects that a group wants, for whoever looks for them."""
    found = [
        ("apps/v1", STATEFULSET, names.statefulset(world.name)),
        ("v1", "Service", names.service(world.name)),
        ("v1", "ServiceAccount", names.service_account(world.name)),
        ("policy/v1", "PodDisruptionBudget", names.disruption_budget(world.name)),
    ]
    if world.revision is not None:
        found.append(("v1", CONFIG_MAP, world.revision.config_map["metadata"]["name"]))
    if world.pod_monitors:
        found.append((pod_monitor.API_VERSION, pod_monitor.KIND, names.pod_monitor(world.name)))
    return found
