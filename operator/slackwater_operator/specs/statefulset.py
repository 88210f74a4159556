"""The StatefulSets of a group's workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names


def statefulset(
    group: ConsumerGroup, *, template: Mapping[str, Any], replicas: int, suffix: str = "", start: int = 0
) -> dict[str, Any]:
    """A StatefulSet of the group, to be applied on the server side.

    OnDelete: applying a template restarts nobody; the rolling restart deletes the pods one by one. Parallel:
    with OrderedReady one pod that does not get ready would keep the others, whose sessions run, from coming
    back.

    Args:
        group: the resource.
        template: the pod template: a Revision's, or a former one to go back to.
        replicas: how many pods are wanted. Always given: an apply that leaves out what it owned before
            resets it to 1.
        suffix: which of the group's sets, one of `names.SETS`.
        start: the first pod's ordinal. In the sets that takeovers use it is always given, for the same
            reason as `replicas`: left out it would become 0, and the pods be others. The plain set, of a
            group that only ever used Restart, is left without `ordinals` where it is 0, so that nothing of
            it changes.
    """
    spec: dict[str, Any] = {
        "replicas": replicas,
        "serviceName": names.service(group.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 10,
        "selector": {"matchLabels": names.selector(group.name)},
        "template": dict(template),
    }
    if suffix or start:
        spec["ordinals"] = {"start": start}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": names.metadata(group, names.statefulset(group.name, suffix)),
        "spec": spec,
    }


def template_hash(template: Mapping[str, Any]) -> str:
    """The revision that a pod template says it is of; empty where it says nothing."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    return str(labels.get(names.REVISION_LABEL, ""))
