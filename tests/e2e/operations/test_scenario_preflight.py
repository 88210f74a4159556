"""A preflight, or a pod, that does not run names the cause, and goes on by itself when that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.controlplane import ControlPlane, until
from tests.support.controlplane.api import Json
from tests.support.controlplane.injector import denies
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, now_ms
from tests.support.site.quota import resource_quota

pytestmark = pytest.mark.controlplane


@pytest.mark.long
def test_a_preflight_that_the_environment_failed_is_repeated_until_it_passes(
    cluster: ClusterSite, namespace: str
) -> None:
    passes = cluster.folder / "passes"
    script = f'[ -e {passes} ] || {{ echo no broker answers >&2; exit 5; }}; exec "$@"'
    image = cluster.push("later", ("sh", "-c", script, "sh"))
    group = cluster.group(f"late-{namespace}", partitions=2, replicas=1, pipeline={"image": image})
    condition = group.await_condition("Degraded", reason="PreflightFailed")
    assert "no broker answers" in condition["message"]
    assert "is tried again" in condition["message"]
    assert "failed" not in group.status()["rollout"]
    passes.touch()
    group.await_settled(1)
    group.await_condition("Degraded", "False")


@pytest.mark.long
@pytest.mark.parametrize(
    ("pod", "missing", "cause"),
    [
        (
            {"serviceAccountName": "later"},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "later"}},
            'serviceaccount "later" not found',
        ),
        (
            {"volumes": [{"name": "more", "secret": {"secretName": "later"}}]},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "later"}},
            "FailedMount",
        ),
    ],
    ids=["ServiceAccount", "Secret"],
)
def test_a_condition_names_what_blocks_a_preflight_and_clears_afterwards(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str, pod: Json, missing: Json, cause: str
) -> None:
    group = cluster.group(f"held-{namespace}", partitions=2, replicas=1, template={"spec": pod})
    condition = group.await_condition("Degraded", reason="PreflightBlocked")
    assert cause in condition["message"]
    control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(missing))
    group.await_settled(1)
    group.await_condition("Degraded", "False")


@pytest.mark.long
def test_a_condition_names_the_quota_that_blocks_a_pod(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str
) -> None:
    with resource_quota(control_plane, namespace, "small", pods="1"):
        group = cluster.group(
            f"pods-{namespace}", partitions=2, replicas=2, rollout={"preflight": {"enabled": False}}
        )
        condition = group.await_condition("Degraded", reason="PodsNotCreated")
        assert "cannot be created" in condition["message"]
        assert "exceeded quota: small" in condition["message"]
    group.await_settled(2)
    group.await_condition("Degraded", "False")


@pytest.mark.long
def test_pods_that_a_policy_refuses_are_waited_for_beyond_the_session(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str, tmp_path: Path
) -> None:
    session_ms = 10_000
    with ClusterSite(control_plane, kafka, namespace) as site, site.operator():
        group = site.group(
            f"policy-{namespace}",
            partitions=2,
            replicas=2,
            session_timeout_ms=session_ms,
            rollout={"preflight": {"enabled": False}, "sessionBudget": "100%"},
        )
        group.await_settled(2)
        with denies(control_plane, namespace, "not today", tmp_path):
            group.roll(site.push("v2"))
            condition = group.await_condition("Degraded", reason="PodsNotCreated")
            assert "not today" in condition["message"]
            told = now_ms()
            until(lambda: now_ms() - told > 2 * session_ms, "two sessions")
        group.await_rolled(site.image("v2"), 2)
        assert "RolloutStopped" not in {event["reason"] for event in group.events()}
