"""spec.kafka.bootstrapServers changes under workers that run."""

from __future__ import annotations

import pytest

from slackwater_operator.api.v1alpha1.status.rollout import PREFLIGHT
from tests.support.controlplane import until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, now_ms
from tests.support.site.group import AT_REST

pytestmark = pytest.mark.controlplane

NOWHERE = "127.0.0.1:1"


@pytest.mark.long
def test_the_operator_observes_the_cluster_that_the_workers_use(
    cluster: ClusterSite, kafka: KafkaCluster, namespace: str
) -> None:
    """A wrong address fails the preflight and changes nothing else; another spelling costs no rebalance."""
    group = cluster.group(f"moved-{namespace}", partitions=4, replicas=2)
    group.await_settled(2)
    before = group.status()["kafka"]
    assert before["bootstrapServers"] == kafka.bootstrap
    assert before["clusterId"]

    group.change(kafka={"bootstrapServers": NOWHERE})
    group.await_condition("Degraded", reason="PreflightFailed")
    for kind in ("LagKnown", "Stable", "Ready"):
        group.await_condition(kind)
    with group.load(rate=0) as load:
        load.burst(40)
        group.await_handled(load.stop())
    trying = (*AT_REST, PREFLIGHT)  # which is retried until the spec changes
    group.change(replicas=3)
    group.await_settled(3, phases=trying)
    group.change(replicas=2)
    group.await_settled(2, phases=trying)  # its member is removed well before its session of 90 s ends
    assert group.status()["kafka"] == before

    since, servers = now_ms(), kafka.bootstrap.replace("127.0.0.1", "localhost")
    group.change(kafka={"bootstrapServers": servers})
    group.await_condition("RolledOut")
    until(lambda: group.status()["kafka"]["bootstrapServers"] == servers, "the operator follows")
    group.await_settled(2)
    group.await_condition("Degraded", "False")
    assert group.status()["kafka"]["clusterId"] == before["clusterId"]
    assert group.rebalances(since) == 0
