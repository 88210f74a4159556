"""The objects beside a group's StatefulSets: Service, ServiceAccount, PodDisruptionBudget and PodMonitor."""

from __future__ import annotations

import re
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names

POD_MONITOR_API_VERSION = "monitoring.coreos.com/v1"
POD_MONITOR_KIND = "PodMonitor"
_GROUP_META_LABEL = "__meta_kubernetes_pod_label_" + re.sub(r"[^a-zA-Z0-9_]", "_", names.GROUP_LABEL)


def service(group: ConsumerGroup) -> dict[str, Any]:
    """The headless Service, which gives each worker a DNS name from its start, before it is ready."""
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


def service_account(group: ConsumerGroup) -> dict[str, Any]:
    """An account without permissions: a worker does not use the Kubernetes API."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.metadata(group, names.service_account(group.name)),
        "automountServiceAccountToken": False,
    }


def disruption_budget(group: ConsumerGroup, *, max_unavailable: int) -> dict[str, Any]:
    """The PodDisruptionBudget that the Eviction API (a node's drain) observes.

    A pod that is not ready may always be evicted: otherwise a worker that crashes repeatedly would block its
    node's drain for ever.

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


def pod_monitor(group: ConsumerGroup) -> dict[str, Any]:
    """The PodMonitor with which a Prometheus Operator scrapes each worker's `/metrics`.

    The scrape adds the labels `namespace`, `pod` and `consumergroup`; `honorLabels` keeps the worker's own
    `group` and `instance`.
    """
    return {
        "apiVersion": POD_MONITOR_API_VERSION,
        "kind": POD_MONITOR_KIND,
        "metadata": names.metadata(group, names.pod_monitor(group.name)),
        "spec": {
            "selector": {"matchLabels": names.selector(group.name)},
            "podMetricsEndpoints": [
                {
                    "port": names.PORT_NAME,
                    "path": "/metrics",
                    "interval": "15s",
                    "honorLabels": True,
                    # The worker's label `group` is Kafka's group.id; this one is the ConsumerGroup's name.
                    "relabelings": [{"sourceLabels": [_GROUP_META_LABEL], "targetLabel": "consumergroup"}],
                }
            ],
        },
    }
