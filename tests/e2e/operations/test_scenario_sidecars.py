"""An injector (a mutating webhook) adds a container that never ends by itself to each pod of a namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.controlplane.injector import injects
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite

pytestmark = pytest.mark.controlplane

PROXY = {
    "name": "mesh-proxy",
    "image": "busybox",
    "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"],
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1337,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}


@pytest.mark.long
def test_a_sidecar_holds_up_neither_rollout_nor_rewind(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str, tmp_path: Path
) -> None:
    with (
        ClusterSite(control_plane, kafka, namespace) as site,
        injects(control_plane, namespace, PROXY, tmp_path),
        site.operator(),
    ):
        group = site.group(f"meshed-{namespace}", partitions=2, replicas=2)
        group.await_settled(2)
        assert all(len(pod["status"]["containerStatuses"]) == 2 for pod in group.pods())
        with group.load(rate=0) as load:
            load.burst(100)
            until(lambda: group.handled_count() == 100, "everything handled")
            group.annotate(rewind=f"{group.topic}:0:start")
            condition = group.await_condition("Rewound")
            assert "mesh-proxy" in condition["message"]
            group.await_settled(2)
            produced = load.stop()
        group.await_handled(produced)
        assert group.verify(produced).exact
        group.await_condition("Degraded", "False")
        jobs = path_of("batch/v1", "jobs", namespace)
        until(lambda: not control_plane.api.list(jobs), "the Jobs gone")
