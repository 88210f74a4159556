"""What the API server refuses shows as a condition and one Event, is tried less and less, and heals."""

from __future__ import annotations

import time

import pytest

from slackwater_operator.policies.backoff import delay_ms
from slackwater_operator.policies.explanations import explain
from tests.support.controlplane import ControlPlane, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, now_ms
from tests.support.site.quota import resource_quota

pytestmark = pytest.mark.controlplane

REFUSED = "must be less than or equal to memory limit"


def warnings(group: Group, reason: str) -> int:
    """How many Events of this reason there are about the group."""
    return sum(event["reason"] == reason for event in group.events())


@pytest.mark.long
def test_a_request_above_its_limit_is_reported_until_it_is_corrected(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str
) -> None:
    resources = {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}
    worker = {"name": "worker", "resources": resources}
    with ClusterSite(control_plane, kafka, namespace) as site, site.operator() as operator:
        begun_s = time.monotonic()
        group = site.group(
            f"request-{namespace}", partitions=2, replicas=1, template={"spec": {"containers": [worker]}}
        )
        condition = group.await_condition("Degraded", reason="Refused")
        assert f"apply Job {group.name}-preflight-" in condition["message"]
        assert REFUSED in condition["message"]
        until(lambda: operator.log.count(REFUSED) >= 4, "four attempts")
        attempts = operator.log.count(REFUSED)
        waited_s = sum(delay_ms(attempt, 0.0) for attempt in range(1, attempts)) / 1000
        assert time.monotonic() - begun_s >= waited_s, f"{attempts} attempts"
        assert warnings(group, "Refused") == 1
        shown = explain(group.resource(), now_ms()).lines()
        assert any(REFUSED in line for line in shown)
        resources["requests"] = {"memory": "100Mi"}
        group.change(template={"spec": {"containers": [worker]}})
        group.await_settled(1)
        group.await_condition("Degraded", "False")


def test_an_exceeded_quota_is_reported_until_it_is_raised(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str
) -> None:
    with resource_quota(control_plane, namespace, "small", **{"count/jobs.batch": "0"}):
        group = cluster.group(f"quota-{namespace}", partitions=2, replicas=1)
        condition = group.await_condition("Degraded", reason="QuotaExceeded")
        assert "exceeded quota: small" in condition["message"]
        assert warnings(group, "QuotaExceeded") == 1
    group.await_settled(1)
    group.await_condition("Degraded", "False")
