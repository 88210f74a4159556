"""The PodDisruptionBudget of a group's workers."""

from __future__ import annotations

from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names


def disruption_budget(group: ConsumerGroup, *, max_unavailable: int) -> dict[str, Any]:
    """The budget that the Eviction API (a node's drain) keeps to.

    A pod that is not ready may always be evicted: a worker that crashes over and over serves nothing, and
    would otherwise keep its node from being drained for ever.

    Args:
        group: the resource.
        max_unavailable: how many workers may be away; 0 while the group is not settled.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(group, names.disruption_budget(group.name)),
        "spec": {
            "maxUnavailable": max_unavailable,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(group.name)},
        },
    }
