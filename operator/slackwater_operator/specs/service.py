"""The headless Service of a group's workers."""

from __future__ import annotations

from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names


def service(group: ConsumerGroup) -> dict[str, Any]:
    """The Service that gives each worker a name in DNS, from its start (it is asked before it is ready)."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(group, names.service(group.name)),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(group.name),
            "ports": [
                {
                    "name": names.PORT_NAME,
                    "port": names.PORT,
                    "targetPort": names.PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }
