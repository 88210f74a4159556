"""The PodMonitor of a group's workers, for a Prometheus Operator."""

from __future__ import annotations

import re
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names

API_VERSION = "monitoring.coreos.com/v1"
KIND = "PodMonitor"
_GROUP = "__meta_kubernetes_pod_label_" + re.sub(r"[^a-zA-Z0-9_]", "_", names.GROUP_LABEL)


def pod_monitor(group: ConsumerGroup) -> dict[str, Any]:
    """Has each worker's `/metrics` read. The scrape adds `namespace`, `pod` and `consumergroup`;
    `honorLabels` keeps the worker's own `group` and `instance`."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": names.metadata(group, names.pod_monitor(group.name)),
        "spec": {
            "selector": {"matchLabels": names.selector(group.name)},
            "podMetricsEndpoints": [
                {
                    "port": names.PORT_NAME,
                    "path": "/metrics",
                    "interval": "15s",
                    "honorLabels": True,
                    # Their label `group` is Kafka's group.id; this is the ConsumerGroup's name.
                    "relabelings": [{"sourceLabels": [_GROUP], "targetLabel": "consumergroup"}],
                }
            ],
        },
    }
