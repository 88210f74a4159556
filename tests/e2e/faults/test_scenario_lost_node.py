"""A node that is gone: its worker is not counted, the node is named, and no rebalance is more than needed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.controlplane.api import STRATEGIC_MERGE_PATCH
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, now_ms

pytestmark = pytest.mark.controlplane

SESSION_MS = 20_000


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """A control plane of its own: one of its nodes does not come back."""
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-lost-") as directory,
        ControlPlane.start(Path(directory), nodes=("node-1", "node-2")) as made,
    ):
        yield made


@pytest.mark.long
def test_a_lost_node_is_named_and_costs_two_rebalances(plane: ControlPlane, kafka: KafkaCluster) -> None:
    with (
        plane.namespace() as namespace,
        ClusterSite(plane, kafka, namespace) as site,
        site.operator(),
    ):
        group = site.group(f"node-{namespace}", partitions=6, replicas=3, session_timeout_ms=SESSION_MS)
        group.await_settled(3)
        # Of a pod that was not ready the kubelet's last word tells nothing about the node.
        until(lambda: group.status()["readyReplicas"] == 3, "all pods are ready")
        lost = group.pods()[-1]
        node, name = lost["spec"]["nodeName"], lost["metadata"]["name"]
        gone = [pod["metadata"]["name"] for pod in group.pods() if pod["spec"]["nodeName"] == node]
        since = now_ms()
        plane.pods.switch_off(node)
        degraded = group.await_condition("Degraded", reason="NodeLost")
        assert f"on node {node} does not respond, and the node may be lost" in degraded["message"]
        assert f"kubectl taint nodes {node} node.kubernetes.io/out-of-service" in degraded["message"]
        until(lambda: group.status()["readyReplicas"] == 3 - len(gone), "the lost are not counted")
        assert all(
            {"type": "Ready", "status": "True"}.items() <= condition.items()
            for pod in group.pods()
            if pod["metadata"]["name"] in gone
            for condition in pod["status"]["conditions"]
            if condition["type"] == "Ready"
        ), "what the kubelet said last still stands"
        assert group.condition("Ready")["status"] == "False"
        _mark(plane, namespace, gone)
        until(lambda: "the node is lost" in group.condition("Degraded")["message"], "it is certain")
        for pod in gone:
            plane.kubectl("delete", "pod", pod, "-n", namespace, "--grace-period=0", "--force")
        group.await_settled(3)
        assert name in {pod["metadata"]["name"] for pod in group.pods()}
        until(lambda: "NodeLost" not in group.condition("Degraded")["reason"], "nobody is lost")
        assert group.rebalances(since) <= 2 * len(gone), "out when the session ends, and in again"


def _mark(plane: ControlPlane, namespace: str, pods: list[str]) -> None:
    """What the node controller does after 40 s; it is not among the controllers of this control plane."""
    for pod in pods:
        path = path_of("v1", "pods", namespace, pod, "status")
        body = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        plane.api.patch(path, body, content_type=STRATEGIC_MERGE_PATCH)
