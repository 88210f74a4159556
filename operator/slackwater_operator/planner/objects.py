"""Applies a group's objects where they differ from what is wanted, and deletes those no longer needed.

Server-side apply is requested only where it would change something, so that a settled group causes no
writes. The annotation `slackwater.dev/applied` holds the hash of the manifest that was applied last:
another hash shows a change on our side. Comparing the live object with the manifest shows changes that
others have made.

Objects under our names that belong to somebody else are reported and never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from slackwater_operator.model import names
from slackwater_operator.model.names import short_hash
from slackwater_operator.model.statefulsets import Ordinals, StatefulSetSnapshot, next_suffix
from slackwater_operator.planner.actions import (
    Action,
    AdoptObject,
    ApplyObject,
    CreateSecret,
    DeleteObject,
    SetReplicas,
)
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.snapshot import APPLIED, GroupSnapshot, Manifest
from slackwater_operator.policies.rollout.disruption_budget import DisruptionInput, decide_disruption
from slackwater_operator.specs.revision_record import HISTORY_LIMIT, revision_record
from slackwater_operator.specs.statefulset import statefulset
from slackwater_operator.specs.supporting_objects import (
    POD_MONITOR_API_VERSION,
    POD_MONITOR_KIND,
    disruption_budget,
    pod_monitor,
    service,
    service_account,
)

STATEFULSET, CONFIG_MAP = "StatefulSet", "ConfigMap"
_API_VERSIONS = {
    STATEFULSET: "apps/v1",
    CONFIG_MAP: "v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "PodDisruptionBudget": "policy/v1",
    POD_MONITOR_KIND: POD_MONITOR_API_VERSION,
}


def foreign(snapshot: GroupSnapshot) -> list[tuple[str, str]]:
    """The objects under our names that belong to somebody else; they are never changed."""
    return sorted(where for where, live in snapshot.live.items() if not names.is_owned(live, snapshot.uid))


def note_foreign(context: PlanningContext) -> bool:
    """Reports names that are taken. Returns whether the group cannot start for that.

    A group without a StatefulSet needs the names of all its first objects, and must wait for an older group
    that may have a StatefulSet of the same name: otherwise both would run until one of them rolls. A group
    with a StatefulSet continues with it; its next one waits for the name.
    """
    snapshot = context.snapshot
    assert snapshot.group is not None
    if _adopt(context):
        return True
    taken, first = foreign(snapshot), snapshot.statefulset is None
    needed = {STATEFULSET, "ServiceAccount", "Service"}
    sets = {names.statefulset(snapshot.name, suffix) for suffix in _asked_sets(snapshot)}
    for kind, name in taken:
        context.needs_attention(
            "NameTaken",
            f"{kind} {name} exists and does not belong to this ConsumerGroup; delete or rename it, or "
            "rename the group",
            stalls=name in sets if kind == STATEFULSET else first and kind in needed,
        )
    rivals = snapshot.rivals if first or snapshot.group.spec.rollout.takes_over else ()
    for rival in rivals:
        shared = sorted({*names.set_names(snapshot.name)} & {*names.set_names(rival)})
        context.needs_attention(
            "NameTaken",
            f"ConsumerGroup {rival}, which is older, may use the same StatefulSet name "
            f"{', '.join(shared)}; rename one of the two",
            stalls=first,
        )
    return first and (bool(rivals) or any(kind in needed for kind, _ in taken))


def _adopt(context: PlanningContext) -> bool:
    """Adopts the objects that a deleted ConsumerGroup of this name has left over. Returns whether there are
    any: the group is planned when all of them are its own."""
    snapshot = context.snapshot
    left = [where for where in foreign(snapshot) if names.is_orphan(snapshot.live[where], snapshot.name)]
    for kind, name in left:
        live = snapshot.live[kind, name]
        adopted = AdoptObject(
            _API_VERSIONS[kind], kind, name, live["metadata"]["uid"], names.group_uid_of(live)
        )
        context.acts.append(adopted)
    if left:
        listed = ", ".join(f"{kind} {name}" for kind, name in left)
        context.emit_after("Adopted", f"{listed}: left over by a deleted ConsumerGroup of this name")
        context.busy = True
    return bool(left)


def apply_supporting_objects(context: PlanningContext) -> None:
    """Applies Service, ServiceAccount, ConfigMap, PodDisruptionBudget and PodMonitor where they differ."""
    for manifest in _supporting_objects(context):
        context.acts += _applied(context, manifest)


def apply_sets(context: PlanningContext, template: Mapping[str, Any] | None) -> list[Action]:
    """The actions that give the StatefulSets their ordinals (`context.spans`), and one of them its template.

    Args:
        context: the plan; not changed.
        template: the pod template of the only StatefulSet, or of the target of a takeover; None leaves it as
            it is. Where takeovers begin it is the template of the StatefulSet that is created for them.
    """
    snapshot = context.snapshot
    acts: list[Action] = []
    for suffix, span in context.spans.items():
        there = snapshot.sets.get(suffix)
        if there is not None and there.deleting:
            continue
        is_target = there is not None and there is snapshot.statefulset and not _begins(context)
        if there is None and template is not None:
            acts += _make(context, template, suffix, span)
        elif there is not None and is_target and template is not None and not _successor_was_told(context):
            acts += _applied(context, _manifest(context, template, suffix, span))
        elif there is not None and there.span != span:
            start = span.start if span.start != there.start else None
            acts.append(SetReplicas(there.name, there.uid, span.replicas, start))
    return acts


def _begins(context: PlanningContext) -> bool:
    """Whether takeovers begin: the target StatefulSet does not exist yet, and the existing one keeps its
    template."""
    return context.takes_over and context.snapshot.arrangement.source is None


def _successor_was_told(context: PlanningContext) -> bool:
    """Whether a successor has been told to take over: its StatefulSet keeps its template until then."""
    moving = context.snapshot.memory.rollout.moving
    return moving is not None and moving.told_ms > 0


def _make(context: PlanningContext, template: Mapping[str, Any], suffix: str, span: Ordinals) -> list[Action]:
    """Creates a StatefulSet, and first what its pods need."""
    return key_for(context, template) + _applied(context, _manifest(context, template, suffix, span))


def key_for(context: PlanningContext, template: Mapping[str, Any]) -> list[Action]:
    """Creates the takeover Secret before pods of a template that mounts it, unless it is known to exist."""
    needed = names.can_hand_over(dict(template)) and not context.snapshot.secret
    return [CreateSecret(names.takeover_secret(context.snapshot.name))] if needed else []


def workers_template(snapshot: GroupSnapshot) -> Mapping[str, Any]:
    """The template of the workers that have written the tables: a newer one may name other tables."""
    there, revision = snapshot.statefulset, snapshot.revision
    assert revision is not None
    if there is None or there.template == revision.hash:
        return revision.template
    template: Mapping[str, Any] = there.manifest["spec"]["template"]
    return template


def restore_secret(context: PlanningContext) -> None:
    """Creates the takeover Secret again where it was deleted: a worker's or preflight's pod that starts
    without it hangs."""
    snapshot = context.snapshot
    assert snapshot.revision is not None
    jobs = [
        job for job in snapshot.jobs_of(snapshot.revision.hash) if not (job.view.succeeded or job.view.failed)
    ]
    needed = any(pod.can_hand_over and not pod.started for pod in snapshot.pods)
    if jobs and names.can_hand_over(snapshot.revision.template):
        needed = True
    if needed and snapshot.secret == "":
        context.acts.append(CreateSecret(names.takeover_secret(snapshot.name)))


def _manifest(context: PlanningContext, template: Mapping[str, Any], suffix: str, span: Ordinals) -> Manifest:
    assert context.snapshot.group is not None
    return statefulset(
        context.snapshot.group, template=template, replicas=span.replicas, suffix=suffix, start=span.start
    )


def clean_up(context: PlanningContext) -> None:
    """Deletes ConfigMaps that no revision in use names.

    A pod of an earlier revision that returns reads the earlier ConfigMap. Nothing is therefore deleted until
    all pods have the newest revision and no earlier one is needed for a rollback. So does the pod of a Job
    that has not started.
    """
    snapshot = context.snapshot
    if any(not job.started and not job.view.failed for job in snapshot.maintenance_jobs):
        return
    assert snapshot.revision is not None
    there = snapshot.statefulset
    if there is None or not there.update_revision or context.template_changes or len(snapshot.sets) > 1:
        return
    if not snapshot.pods or any(pod.revision != there.update_revision for pod in snapshot.pods):
        return
    if context.rollout.phase != "Idle" or context.rollout.good != there.update_revision:
        return
    latest_first = sorted(snapshot.revisions, key=lambda record: record.number, reverse=True)
    for record in latest_first[HISTORY_LIMIT:]:
        context.acts.append(DeleteObject("v1", CONFIG_MAP, record.name, record.uid))
    used = {snapshot.revision.config_map["metadata"]["name"]} | _named(there.manifest)
    for name, uid in sorted(snapshot.configmaps.items()):
        if name not in used:
            context.acts.append(DeleteObject("v1", CONFIG_MAP, name, uid))


def _named(manifest: Manifest) -> set[str]:
    """The ConfigMaps that a StatefulSet's template mounts."""
    volumes = manifest.get("spec", {}).get("template", {}).get("spec", {}).get("volumes") or []
    result = set()
    for volume in volumes:
        sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
        result |= {
            source["configMap"]["name"] for source in sources if (source.get("configMap") or {}).get("name")
        }
    return result


def _supporting_objects(context: PlanningContext) -> Iterator[Manifest]:
    snapshot = context.snapshot
    assert snapshot.group is not None
    assert snapshot.revision is not None
    yield service_account(snapshot.group)
    yield service(snapshot.group)
    if not _rejected(context):
        yield snapshot.revision.config_map
        yield _record(context)
    yield disruption_budget(snapshot.group, max_unavailable=_may_be_evicted(context))
    if snapshot.pod_monitors:
        yield pod_monitor(snapshot.group)


def _record(context: PlanningContext) -> Manifest:
    """The ConfigMap that keeps the wanted revision. A revision that is wanted again gets a new number."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    assert snapshot.revision is not None
    wanted = snapshot.revision
    own = max((record.number for record in snapshot.revisions if record.revision == wanted.hash), default=0)
    others = max(
        (record.number for record in snapshot.revisions if record.revision != wanted.hash), default=0
    )
    number = own if own > others else others + 1
    return revision_record(snapshot.group, wanted.hash, wanted.source, number=number)


def _rejected(context: PlanningContext) -> bool:
    failed, revision = context.rollout.failed, context.snapshot.revision
    return failed is not None and revision is not None and failed.template == revision.hash


def _may_be_evicted(context: PlanningContext) -> int:
    snapshot = context.snapshot
    decision = decide_disruption(
        snapshot.rollout_policy,
        DisruptionInput(
            unsettled=context.derived.unsettled,
            workers=context.derived.replicas,
            under_way=len(context.rollout.under_way) + (context.rollout.moving is not None),
            gaps_ms=context.gaps_ms,
            produced_per_s=snapshot.measured.produced_per_s,
            capacity_per_s=snapshot.measured.capacity_per_s,
        ),
    )
    return decision.max_unavailable


def _applied(context: PlanningContext, manifest: Manifest) -> list[Action]:
    """The action that applies an object, if it would change the object and the object is ours."""
    wanted = with_applied_hash(manifest)
    where = manifest["kind"], manifest["metadata"]["name"]
    live = context.snapshot.live.get(where)
    if live is not None and not names.is_owned(live, context.snapshot.uid):
        return []
    version = str(live["metadata"].get("resourceVersion", "")) if live is not None else ""
    if context.snapshot.unchanged.get(where) == (version, wanted["metadata"]["annotations"][APPLIED]):
        return []
    return [ApplyObject(wanted)] if differs(wanted, live) else []


def wanted_names(snapshot: GroupSnapshot) -> list[tuple[str, str, str]]:
    """(apiVersion, kind, name) of the objects that a group wants, for the snapshot to look up."""
    objects = [
        *(
            ("apps/v1", STATEFULSET, names.statefulset(snapshot.name, suffix))
            for suffix in _asked_sets(snapshot)
        ),
        ("v1", "Service", names.service(snapshot.name)),
        ("v1", "ServiceAccount", names.service_account(snapshot.name)),
        ("policy/v1", "PodDisruptionBudget", names.disruption_budget(snapshot.name)),
    ]
    if snapshot.revision is not None:
        objects.append(("v1", CONFIG_MAP, snapshot.revision.config_map["metadata"]["name"]))
        record = names.revision_record(snapshot.name, snapshot.revision.hash)
        objects.append(("v1", CONFIG_MAP, record))
    if snapshot.pod_monitors:
        objects.append((POD_MONITOR_API_VERSION, POD_MONITOR_KIND, names.pod_monitor(snapshot.name)))
    return objects


def _asked_sets(snapshot: GroupSnapshot) -> list[str]:
    """The suffixes of the StatefulSets to look up; all possible ones before the first exists."""
    takes_over = snapshot.group is not None and snapshot.group.spec.rollout.takes_over
    return list(names.SETS) if takes_over and snapshot.statefulset is None else wanted_sets(snapshot)


def makes_set(snapshot: GroupSnapshot) -> bool:
    """Whether a StatefulSet is about to be created whose pods need the takeover Secret."""
    takes_over = snapshot.group is not None and snapshot.group.spec.rollout.takes_over
    return takes_over and len(wanted_sets(snapshot)) > len(snapshot.sets)


def wanted_sets(snapshot: GroupSnapshot) -> list[str]:
    """The suffixes of the StatefulSets that exist or are about to be created: the first one, or the target of
    a rollout."""
    takes_over = snapshot.group is not None and snapshot.group.spec.rollout.takes_over
    there = snapshot.statefulset
    if there is None:
        return [next_suffix("") if takes_over else ""]
    revision = snapshot.revision
    rolls = revision is not None and snapshot.failed is None and _outdated(snapshot, there, revision.hash)
    begins = takes_over and there.replicas > 0 and len(snapshot.sets) == 1 and rolls
    return [*snapshot.sets, *([next_suffix(there.suffix)] if begins else [])]


def _outdated(snapshot: GroupSnapshot, there: StatefulSetSnapshot, wanted: str) -> bool:
    """Whether the only StatefulSet has another template than the wanted one, or pods of another."""
    newest = there.update_revision
    return there.template != wanted or (bool(newest) and any(pod.revision != newest for pod in snapshot.pods))


_QUANTITY = re.compile(r"([+-]?[0-9.]{1,100})([eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)?")
_SUFFIX = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}

_compared: dict[str, tuple[Manifest, str, bool]] = {}
"""By uid: a live object, the hash of the manifest that it was compared with, and the result.

Comparing takes most of the time of planning, and its inputs are nearly always those of the previous
reconciliation. A live object is replaced when it changes, never modified.
"""
_MOST_COMPARED = 20_000


def with_applied_hash(manifest: Manifest) -> Manifest:
    """The manifest with its own hash as the annotation `slackwater.dev/applied`."""
    metadata = dict(manifest["metadata"])
    metadata["annotations"] = {**metadata.get("annotations", {}), APPLIED: short_hash(manifest)}
    return {**manifest, "metadata": metadata}


def differs(manifest: Manifest, live: Manifest | None) -> bool:
    """Whether applying `manifest` (as returned by `with_applied_hash`) would change the live object.

    The data of a ConfigMap is not compared: ours are immutable, and the watch does not keep their data.
    """
    if live is None:
        return True
    annotations = live.get("metadata", {}).get("annotations") or {}
    applied = manifest["metadata"]["annotations"][APPLIED]
    if annotations.get(APPLIED) != applied:
        return True
    uid = str(live["metadata"].get("uid", ""))
    known = _compared.get(uid)
    if known is None or known[0] is not live or known[1] != applied:
        kept = {key: value for key, value in manifest.items() if key not in ("data", "apiVersion", "kind")}
        known = (live, applied, not _contains(live, kept))
        _compared[uid] = known
        if len(_compared) > _MOST_COMPARED:
            del _compared[next(iter(_compared))]
    return known[2]


def _contains(live: Any, wanted: Any) -> bool:
    """Whether `live` has all values of `wanted`; the API server adds defaults and drops empty values."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None
        return all(_contains(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return _contains_list(live if isinstance(live, list) else [], wanted)
    return _same(live, wanted)


def _contains_list(live: list[Any], wanted: list[Any]) -> bool:
    """The same for lists: the server merges lists of named items by name; other lists are entirely ours."""
    if all(isinstance(item, Mapping) and "name" in item for item in wanted):
        by_name = {item["name"]: item for item in live if isinstance(item, Mapping) and "name" in item}
        return all(_contains(by_name.get(item["name"]), item) for item in wanted)
    return len(live) >= len(wanted) and all(any(_contains(there, item) for there in live) for item in wanted)


def _same(live: Any, wanted: Any) -> bool:
    if live == wanted:
        return True
    if live is None:
        return wanted in ("", False, 0) or wanted is None
    a, b = _quantity(live), _quantity(wanted)
    return a is not None and a == b


def _quantity(value: Any) -> Decimal | None:
    """A resource quantity as a number: the API server writes `1000m` as `1`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None or match.group(1).count(".") > 1 or not match.group(1).strip("+-."):
        return None
    number, suffix = Decimal(match.group(1)), match.group(2) or ""
    if suffix in _SUFFIX:
        return number * _SUFFIX[suffix]
    return number * Decimal("1" + suffix) if suffix else number
