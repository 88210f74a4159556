"""The real KEDA scales a ConsumerGroup by the group's lag, by the ScaledObject of the manual.

What an HPA alone does is in ``test_hpa.py``, with a stand-in for KEDA's metrics adapter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import confluent_kafka
import pytest
import yaml

from tests.e2e.kube.test_kube_explain import explain
from tests.e2e.operations.test_hpa import LAG_EACH, ORPHANS_MS, SLOW, Hpa, from_the_manual, slow
from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.controlplane.api import Json
from tests.support.controlplane.keda import API_VERSION, OPERATOR, Keda, keda
from tests.support.site import ClusterSite, now_ms
from tests.support.waiting import HANG_S, WAIT_S

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.parts("keda"),
    pytest.mark.long,
    pytest.mark.timeout(4200),
]

STABLE_S, COOLDOWN_S = 3, 40
"""Longer than KEDA's 30 s between two looks: so the HPA has gone down to one before KEDA goes to none."""
TO_ZERO_S = COOLDOWN_S + 30 + WAIT_S
"""The limit of KEDA's last step: 30 s is what it takes between two looks."""
MANUAL_RULES = [
    {"apiGroups": ["slackwater.dev"], "resources": ["consumergroups"], "verbs": ["get"]},
    {"apiGroups": ["slackwater.dev"], "resources": ["consumergroups/scale"], "verbs": ["get", "update"]},
]
"""What KEDA needs by the manual where its ClusterRole was narrowed."""


@pytest.fixture(scope="module")
def real_keda(control_plane: ControlPlane) -> Iterator[Keda]:
    control_plane.define()
    with keda(control_plane, may=MANUAL_RULES) as running:
        yield running


@pytest.fixture
def site(real_keda: Keda, cluster: ClusterSite) -> Iterator[ClusterSite]:
    """A site with an operator, and KEDA."""
    yield cluster
    print(real_keda.log(OPERATOR)[-20_000:])  # pytest shows it where the test has failed


class ScaledObject:
    """The manual's, for the group ``name``: all as it is there but names, Kafka's address, the threshold and
    the times."""

    def __init__(self, site: ClusterSite, name: str, **metadata: str) -> None:
        """``metadata``: other values of the trigger's."""
        self._plane, self._namespace = site.plane, site.namespace
        self.path = path_of(API_VERSION, "scaledobjects", site.namespace, name)
        manifest = yaml.safe_load(from_the_manual("ScaledObject"))
        spec = manifest["spec"]
        [trigger] = spec["triggers"]
        replace(manifest["metadata"], name=name)
        replace(spec["scaleTargetRef"], name=name)
        replace(spec, cooldownPeriod=COOLDOWN_S, initialCooldownPeriod=0)
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        replace(behavior["scaleDown"], stabilizationWindowSeconds=STABLE_S)
        replace(trigger["metadata"], bootstrapServers=site.kafka.bootstrap, consumerGroup=name, topic=name)
        replace(trigger["metadata"], lagThreshold=str(LAG_EACH), **metadata)
        site.plane.kubectl("-n", site.namespace, "apply", "-f", "-", stdin=yaml.safe_dump(manifest))

    def hurry(self) -> None:
        """Has KEDA look every second, and stop the last worker after one; beyond what the manual has."""
        self._plane.api.patch(self.path, {"spec": {"pollingInterval": 1, "cooldownPeriod": 1}})

    def conditions(self) -> dict[str, tuple[str, str]]:
        """Type -> (status, reason)."""
        status: Json = (self._plane.api.get(self.path) or {}).get("status", {})
        return {
            condition["type"]: (condition["status"], condition.get("reason", ""))
            for condition in status.get("conditions", [])
        }

    def await_condition(self, kind: str, status: str, reason: str) -> None:
        try:
            until(lambda: self.conditions().get(kind) == (status, reason), f"{kind} {reason}")
        except TimeoutError as exc:
            raise AssertionError(f"{exc}: {self.conditions()}") from exc

    def events(self) -> set[str]:
        """The reasons of the Events about it."""
        said = self._plane.api.list(path_of("v1", "events", self._namespace))
        return {event["reason"] for event in said if event["involvedObject"]["kind"] == "ScaledObject"}


def replace(place: dict[str, Any], **values: Any) -> None:
    """Other values of what is there; nothing is added."""
    assert set(values) <= set(place), place
    place.update(values)


def test_keda_scales_from_zero_by_the_lag_and_back(site: ClusterSite, namespace: str) -> None:
    """A group without commits scales from zero to one, to three, to one, to zero and to one again."""
    name = f"keda-{namespace}"
    group = site.group(name, partitions=12, replicas=None, **slow(site, SLOW))
    group.await_settled(1)
    scaled, hpa = ScaledObject(site, name), Hpa(site, f"keda-hpa-{name}")
    group.await_condition("Ready", reason="ScaledToZero", timeout_s=TO_ZERO_S)
    until(lambda: not group.pods(), "no worker")
    hpa.await_condition("ScalingActive", "False", "ScalingDisabled")
    with group.load(rate=0) as load, group.record() as recorder:
        since = now_ms()
        load.burst(2_950)
        group.await_settled(3)
        up = now_ms()
        explained = explain(site.plane, name, "-n", namespace).stdout
        assert re.search(r"scaling up: \d to 3: requested by spec.replicas", explained), explained
        hpa.await_condition("ScalingLimited", "False", "DesiredWithinRange")
        scaled.await_condition("HPAActive", "True", "HPAActive")
        scaled.await_condition("Active", "True", "ScalerActive")
        scaled.await_condition("Ready", "True", "ScaledObjectReady")
        site.switch("0")
        group.await_condition("Ready", reason="ScaledToZero", timeout_s=TO_ZERO_S)
        until(lambda: not group.pods(), "no worker")
        group.await_kafka_group("Empty")
        down = now_ms()
        assert sum(group.committed().values()) == 2_950
        load.burst(400)
        group.await_settled(1)
        produced = load.stop()
        steps = recorder.replicas()
    group.await_handled(produced)
    top, bottom = steps.index(3), len(steps) - 2
    assert (steps[0], steps[bottom - 1 :]) == (0, [1, 0, 1]), steps
    assert all(before < after for before, after in pairwise(steps[: top + 1])), steps
    assert all(before > after for before, after in pairwise(steps[top : bottom + 1])), steps
    # A step may come before the last one's rebalance has begun; the end of the last worker is none.
    assert group.rebalances(since, up) in group.costs(3, steps=top), (steps, group.tell())
    assert group.rebalances(up, down) in group.costs(2, steps=bottom - 1 - top), (steps, group.tell())
    assert group.rebalances(down) == 1, (steps, group.tell())
    assert "FailedUpdateScale" not in hpa.events()
    assert scaled.events() >= {"KEDAScaleTargetActivated", "KEDAScaleTargetDeactivated"}
    assert recorder.orphaned_ms() <= ORPHANS_MS
    assert group.verify(produced).exact


def test_keda_counts_no_transaction_markers_as_lag(site: ClusterSite, namespace: str) -> None:
    """The workers never handle markers and aborted records, but commit offsets after them."""
    name = f"markers-{namespace}"
    group = site.group(name, partitions=4, replicas=None)
    group.await_settled(1)
    producer = confluent_kafka.Producer({"bootstrap.servers": site.kafka.bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for partition in range(4):
            producer.produce(name, b"", partition=partition)
        producer.flush(HANG_S)
        end(60)
    until(lambda: set(group.committed().values()) == {4}, "two records and two markers, committed")
    scaled = ScaledObject(site, name)
    scaled.hurry()
    group.await_condition("Ready", reason="ScaledToZero", timeout_s=TO_ZERO_S)


def test_a_group_with_latest_scales_to_zero_and_misses_no_record(site: ClusterSite, namespace: str) -> None:
    """KEDA counts a partition without a commit as lag; the workers commit their start positions."""
    name = f"latest-{namespace}"
    group = site.group(
        name, partitions=4, replicas=None, kafka={"properties": {"auto.offset.reset": "latest"}}
    )
    group.await_settled(1)
    scaled = ScaledObject(site, name, offsetResetPolicy="latest")
    scaled.hurry()
    group.await_condition("Ready", reason="ScaledToZero", timeout_s=TO_ZERO_S)
    until(lambda: not group.pods(), "no worker")
    with group.load(rate=0) as load:
        load.burst(100)
        produced = load.stop()
    group.await_handled(produced)
    assert group.verify(produced).exact
