"""A rolling restart while a broker goes: nothing is lost, and only the broker may force a rebalance."""

from __future__ import annotations

import pytest

from tests.support.controlplane import ControlPlane, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group

pytestmark = pytest.mark.controlplane

WORKERS = 4
CONFIG = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "500",
}


def _half_way(group: Group, image: str) -> bool:
    done = len([pod for pod in group.pods() if pod["spec"]["containers"][0]["image"] == image])
    return 1 <= done < WORKERS


@pytest.mark.long
@pytest.mark.parametrize("what", ["the coordinator ends", "another broker restarts"])
def test_a_rolling_restart_survives_the_loss_of_a_broker(
    control_plane: ControlPlane, namespace: str, what: str
) -> None:
    with (
        KafkaCluster(3, CONFIG) as kafka,
        ClusterSite(control_plane, kafka, namespace) as site,
        site.operator(),
    ):
        group = site.group(f"broker-{namespace}", partitions=8, replicas=WORKERS)
        before = group.await_settled(WORKERS)
        coordinator = kafka.await_coordinator(group.name)
        node = (
            coordinator if what == "the coordinator ends" else next(n for n in kafka.pids if n != coordinator)
        )
        with group.load(rate=300) as load:
            since = group.roll(site.image("v2"))
            until(lambda: _half_way(group, site.image("v2")), "half of the way", 120, every_s=0.1)
            if what == "the coordinator ends":
                kafka.kill(node)
            else:
                kafka.stop(node)
            kafka.start(node)
            group.await_rolled(site.image("v2"), WORKERS)
            after = group.await_settled(WORKERS)
            produced = load.stop()
        group.await_handled(produced)
        rebalances = group.rebalances(since)
        print(f"{what}: {rebalances} rebalances, generation {before} to {after}")
        verdict = group.verify(produced)
        assert verdict.lost == 0, verdict
        assert verdict.duplicated == 0, verdict
        if rebalances:  # only the broker may have forced it, and then it is told
            kinds = {(decision["kind"], decision.get("action")) for decision in group.decisions()}
            reasons = " ".join(decision["reason"] for decision in group.decisions())
            assert "forced" in reasons or "unplanned" in reasons, (kinds, reasons)
        else:
            assert after == before
