"""The StatefulSet of a group's workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater_operator.build import names
from slackwater_operator.resources import ConsumerGroup


def statefulset(group: ConsumerGroup, *, template: Mapping[str, Any], replicas: int) -> dict[str, Any]:
    """The StatefulSet, to be applied on the server side.

    OnDelete: applying a template restarts nobody; the rolling restart deletes the pods one by one. Parallel:
    with OrderedReady one pod that does not get ready would keep the others, whose sessions run, from coming
    back.

    Args:
        group: the resource.
        template: the pod template: a Revision's, or a former one to go back to.
        replicas: how many workers are wanted. Always given: an apply that leaves out what it owned before
            resets it to 1.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": names.metadata(group, names.statefulset(group.name)),
        "spec": {
            "replicas": replicas,
            "serviceName": names.service(group.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 10,
            "selector": {"matchLabels": names.selector(group.name)},
            "template": dict(template),
        },
    }


def template_hash(template: Mapping[str, Any]) -> str:
    """The revision that a pod template says it is of; empty where it says nothing."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    return str(labels.get(names.REVISION_LABEL, ""))
