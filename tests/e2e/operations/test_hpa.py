"""A real HorizontalPodAutoscaler scales a ConsumerGroup by the group's lag, as KEDA has it done.

KEDA itself is not run here (``test_keda.py``, which takes longer): its part, the metrics adapter that tells
the lag, is ``tests/support/controlplane/external_metrics.py``. What KEDA does without its HPA (0 and back to
1) is done here as KEDA does it: through the scale subresource.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import yaml

from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from tests.e2e.kube.test_kube_explain import explain
from tests.support.controlplane import ApiError, ControlPlane, path_of, until
from tests.support.controlplane.api import Json
from tests.support.controlplane.build import ROOT
from tests.support.controlplane.external_metrics import OWNER, PREFIX, external_metrics
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, now_ms
from tests.support.site.group import POLL_S
from tests.support.waiting import HANG_S, WAIT_S

pytestmark = pytest.mark.controlplane

ORPHANS_MS = 10_000
"""1.2 s on a quiet machine; without the operator it is what the session takes, 90 s here."""
SLOW = 4
"""Records a second: a lag that was seen must not have gone when what it brings about is looked at."""
LAG_EACH = 1_000
"""What the HPAs here aim at: so many records of lag a worker."""


@pytest.fixture
def site(cluster: ClusterSite, kafka: KafkaCluster) -> Iterator[ClusterSite]:
    """A site with an operator and the metrics adapter."""
    with external_metrics(cluster.plane, cluster.namespace, kafka.bootstrap):
        yield cluster


class Hpa:
    """An HPA of a site's namespace; it may come later, and the group that it points at, too."""

    def __init__(self, site: ClusterSite, name: str) -> None:
        self._plane, self._namespace = site.plane, site.namespace
        self._path = path_of("autoscaling/v2", "horizontalpodautoscalers", site.namespace, name)

    def status(self) -> Json:
        status: Json = (self._plane.api.get(self._path) or {}).get("status", {})
        return status

    def events(self) -> set[str]:
        """The reasons of the Events about it since it could read the group, without those of somebody's write
        between its own read and write: it tries again a second later."""
        said = self._plane.api.list(path_of("v1", "events", self._namespace))
        mine = {
            event["reason"]
            for event in said
            if event["involvedObject"]["kind"] == "HorizontalPodAutoscaler"
            and "the object has been modified" not in event["message"]
        }
        return mine - {"FailedGetScale"}  # as long as there was no group

    def conditions(self) -> dict[str, tuple[str, str]]:
        """Type -> (status, reason)."""
        return {
            condition["type"]: (condition["status"], condition["reason"])
            for condition in self.status().get("conditions", [])
        }

    def await_condition(self, kind: str, status: str, reason: str, timeout_s: float = WAIT_S) -> None:
        try:
            until(
                lambda: self.conditions().get(kind) == (status, reason), f"{kind} {reason}", timeout_s, POLL_S
            )
        except TimeoutError as exc:
            raise AssertionError(f"{exc}: {self.status()}") from exc


def hpa_for(site: ClusterSite, name: str, most: int) -> Hpa:
    """Makes one as KEDA makes it for a Kafka trigger."""
    at_once = {"stabilizationWindowSeconds": 3, "policies": [percent(100)]}
    metric = {"name": f"{PREFIX}{name}", "selector": {"matchLabels": {OWNER: name}}}
    target = {"type": "AverageValue", "averageValue": str(LAG_EACH)}
    spec = {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": name},
        "minReplicas": 1,
        "maxReplicas": most,
        "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
        "behavior": {"scaleDown": at_once, "scaleUp": {"policies": [percent(900)]}},
    }
    made = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": spec}
    manifest = yaml.safe_dump({**made, "metadata": {"name": name, "namespace": site.namespace}})
    site.plane.kubectl("apply", "-f", "-", stdin=manifest)
    return Hpa(site, name)


def percent(value: int) -> Json:
    return {"type": "Percent", "value": value, "periodSeconds": 1}


def from_the_manual(kind: str) -> str:
    """The manifest of that kind in `docs/how-to/operate/scale-by-keda.md`."""
    page = (ROOT / "docs" / "how-to" / "operate" / "scale-by-keda.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    [manifest] = [block for block in blocks if f"kind: {kind}" in block]
    return manifest


def slow(site: ClusterSite, records_per_s: int) -> dict[str, Any]:
    """Workers that handle so many records a second, a second's at once: the lag stays about what it is."""
    site.switch(str(1000 / records_per_s))
    return {"handler": "slow", "kafka": {"properties": {"max.poll.records": str(records_per_s)}}}


def by_scale(site: ClusterSite, group: Group, replicas: int) -> None:
    """As KEDA: an update of the scale subresource, again where somebody else has written meanwhile."""
    path = f"{group.path}/scale"

    def updated() -> bool:
        scale = site.plane.api.request("GET", path)
        scale["spec"]["replicas"] = replicas
        try:
            site.plane.api.request("PUT", path, scale)
        except ApiError as exc:
            if exc.status != 409:
                raise
            return False
        return True

    until(updated, f"{replicas} by the scale subresource")


def test_the_hpa_of_the_manual_is_accepted(control_plane: ControlPlane, namespace: str) -> None:
    manifest = from_the_manual("HorizontalPodAutoscaler")
    made = control_plane.kubectl(
        "-n", namespace, "apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=manifest
    )
    scaled = yaml.safe_load(from_the_manual("ScaledObject"))
    pointed = [json.loads(made)["spec"]["scaleTargetRef"], scaled["spec"]["scaleTargetRef"]]
    assert pointed == [{"apiVersion": API_VERSION, "kind": KIND, "name": "flights"}] * 2


@pytest.mark.long
def test_an_hpa_scales_by_the_lag_and_back(site: ClusterSite, namespace: str) -> None:
    """A lag for three workers appears, stays and disappears. Each step costs at most one rebalance, and the
    operator never works against the HPA. The HPA may see half of the lag first and scale in two steps."""
    name = f"hpa-{namespace}"
    hpa = hpa_for(site, name, most=6)
    group = site.group(name, partitions=6, replicas=None, **slow(site, SLOW))
    group.await_settled(1)
    hpa.await_condition("ScalingActive", "True", "ValidMetricFound")
    assert group.resource()["spec"]["replicas"] == 1, "what an HPA needs to read"
    with group.load(rate=0) as load, group.record() as recorder:
        since = now_ms()
        load.burst(2_950)
        group.await_settled(3)
        up = now_ms()
        explained = explain(site.plane, name, "-n", namespace).stdout
        assert " to 3: requested by spec.replicas" in explained
        assert "when spec.replicas changes (kubectl scale, an HPA, KEDA)" in explained
        hpa.await_condition("ScalingLimited", "False", "DesiredWithinRange")
        site.switch("0")
        until(lambda: recorder.replicas()[-1] == 1, "one worker wanted again")
        group.await_settled(1)
        hpa.await_condition("ScalingLimited", "True", "TooFewReplicas")
        produced = load.stop()
        steps = recorder.replicas()
    group.await_handled(produced)
    assert hpa.events() == {"SuccessfulRescale"}, "no step was refused, and nothing else had to be said"
    top = steps.index(3)
    assert steps[0] == steps[-1] == 1, steps
    assert all(before < after for before, after in pairwise(steps[: top + 1])), steps
    assert all(before > after for before, after in pairwise(steps[top:])), steps
    # Steps that follow each other so quickly that the first one's rebalance has not begun share it.
    assert group.rebalances(since, up) in group.costs(2, steps=top), (steps, group.tell())
    assert group.rebalances(up) in group.costs(2, steps=len(steps) - 1 - top), (steps, group.tell())
    assert recorder.orphaned_ms() <= ORPHANS_MS
    assert group.verify(produced).exact


def test_keda_stops_the_last_worker_and_starts_it_again(site: ClusterSite, namespace: str) -> None:
    name = f"keda-{namespace}"
    hpa = hpa_for(site, name, most=4)
    group = site.group(name, partitions=4, replicas=None)
    group.await_settled(1)
    hpa.await_condition("ScalingActive", "True", "ValidMetricFound")
    with group.load(rate=0) as load:
        load.burst(400)
        until(lambda: sum(group.committed().values()) == 400, "what there is handled", every_s=POLL_S)
        by_scale(site, group, 0)
        group.await_condition("Ready", reason="ScaledToZero")
        until(lambda: not group.pods(), "no worker", every_s=POLL_S)
        group.await_kafka_group("Empty")
        assert sum(group.committed().values()) == 400, "Kafka keeps the offsets"
        hpa.await_condition("ScalingActive", "False", "ScalingDisabled")
        load.burst(400)
        by_scale(site, group, 1)
        group.await_settled(1)
        hpa.await_condition("ScalingActive", "True", "ValidMetricFound")
        produced = load.stop()
    group.await_handled(produced)
    assert group.verify(produced).exact


@pytest.mark.long
def test_an_hpa_on_a_group_with_a_target_changes_nothing(site: ClusterSite, namespace: str) -> None:
    """The operator ignores the number that the HPA writes, and ``explain`` says so."""
    name = f"both-{namespace}"
    hpa = hpa_for(site, name, most=6)
    scaling = {"maxReplicas": 6, "lagPerReplica": 100_000}
    group = site.group(name, partitions=6, replicas=1, scaling=scaling, **slow(site, SLOW))
    group.await_settled(1)
    with group.load(rate=0) as load, group.record() as recorder:
        since = now_ms()
        load.burst(2_950)
        until(lambda: group.resource()["spec"]["replicas"] == 3, "the HPA's number")
        began = now_ms()
        generation = group.await_condition("Ready")["observedGeneration"]
        explained = explain(site.plane, name, "-n", namespace).stdout
        assert "3 workers, as spec.replicas requests (kubectl scale, an HPA, KEDA), only without" in explained
        until(lambda: now_ms() - began > 5_000, "five of the HPA's turns, and as many of the operator's")
        assert hpa.conditions()["AbleToScale"][0] == "True"
        resource = group.resource()
        assert resource["metadata"]["generation"] == generation, "neither undoes what the other has done"
        assert resource["status"]["replicas"] == 1
    assert recorder.replicas() == [1], group.tell()
    assert group.rebalances(since) == 0, group.tell()


@pytest.mark.long
def test_an_hpa_counts_members_in_the_middle_of_a_takeover(site: ClusterSite, namespace: str) -> None:
    """While a successor warms up there are more pods than members. The HPA sees the number of members, and
    its step is taken during the takeovers."""
    name = f"over-{namespace}"
    hpa = hpa_for(site, name, most=3)
    rollout = {"strategy": "Takeover"}
    # So slow that the lag asks for as many workers at the end of the takeovers as before them. A takeover
    # waits for a record of each partition, and a worker reads a fetched batch to its end: they are small.
    spec = slow(site, 1)
    spec["kafka"]["properties"]["max.partition.fetch.bytes"] = "1"
    group = site.group(name, partitions=6, replicas=None, rollout=rollout, **spec)
    group.await_settled(1)
    hpa.await_condition("ScalingActive", "True", "ValidMetricFound")
    with group.load(rate=0) as load:

        def produce(count: int) -> None:
            sent = len(load.produced())
            load.burst(count)
            until(lambda: len(load.produced()) == sent + count, "the brokers' answers")

        for _ in range(65):
            produce(30)
        group.await_settled(2)
        group.await_condition("RolledOut")
        samples: list[tuple[int, int]] = []

        def counted() -> tuple[int, int]:
            pods = len(group.pods())
            samples.append((site.plane.api.request("GET", f"{group.path}/scale")["status"]["replicas"], pods))
            return samples[-1]

        group.roll(site.push("v2", environment={"IMPORT_S": "3"}))
        until(lambda: counted()[1] == 3, "a successor that warms up")
        until(lambda: len(group.takeovers(0)) == 1 and counted(), "the first takeover")
        assert {members for members, _ in samples} == {2}, samples
        load.burst(1_000)
        group.await_settled(3, HANG_S)
        until(lambda: len(group.takeovers(0)) >= 2, "the other takeover")
        group.await_rolled(site.image("v2"), 3)
        until(lambda: group.status()["replicas"] == 3, "three members told")
    assert all(takeover.same_generation for takeover in group.takeovers(0)), group.takeovers(0)
