"""The ServiceAccount of a group's workers."""

from __future__ import annotations

from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names


def service_account(group: ConsumerGroup) -> dict[str, Any]:
    """An account that may do nothing: a worker does not talk to Kubernetes."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.metadata(group, names.service_account(group.name)),
        "automountServiceAccountToken": False,
    }
