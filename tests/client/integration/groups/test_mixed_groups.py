"""Our consumer and other people's in one group: every record is read, and none again that was committed."""

from __future__ import annotations

import pytest

from tests.client.integration.groups.test_mixed_groups_killed import PARTITIONS, Scene, Story, all_read
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.peers.group_journal import check
from tests.support.peers.numbered_producer import NumberedProducer
from tests.support.peers.peer import BROKER_ASSIGNS, OURS, peers, wait_for
from tests.support.wire.rawclient import RawClient, create_topic

BY_STRATEGY = {
    "range": (OURS, "kafka-python", "confluent-kafka", "aiokafka"),
    # aiokafka has no cooperative assignor.
    "cooperative-sticky": (OURS, "kafka-python", "confluent-kafka"),
    # kafka-python and aiokafka do not speak it.
    BROKER_ASSIGNS: (OURS, "confluent-kafka", OURS),
}
STATIC = (OURS, "kafka-python")


@pytest.mark.parametrize(
    ("strategy", "lead"),
    [
        ("range", "ours-leads"),
        pytest.param("range", "ours-follows", marks=pytest.mark.long),
        pytest.param("cooperative-sticky", "ours-leads", marks=pytest.mark.long),
        ("cooperative-sticky", "ours-follows"),
        pytest.param(BROKER_ASSIGNS, "ours-leads", marks=pytest.mark.long),
    ],
)
def test_members_of_different_clients_share_a_group(
    broker: KafkaCluster | DevBroker, strategy: str, lead: str
) -> None:
    """Members come one after another while records flow (the first leads), then one leaves."""
    kinds = BY_STRATEGY[strategy] if lead == "ours-leads" else BY_STRATEGY[strategy][::-1]
    with peers() as running, RawClient.to(broker.bootstrap) as client:
        scene = Scene(broker.bootstrap, Story("confluent-kafka", strategy, kinds[0]), running)
        create_topic(client, scene.topic, PARTITIONS)
        with NumberedProducer(broker.bootstrap, scene.topic, PARTITIONS, rate=400) as producer:
            for number, kind in enumerate(kinds):
                scene.add(kind, instance=f"{kind}-{number}" if kind in STATIC else None)
                scene.settle(client, f"{kind} coming")
            scene.leave(next(peer for peer in reversed(scene.here) if peer.instance is None))
            scene.settle(client, "the others taking over")
            producer.finish()
            wait_for("reading all", lambda: all_read(running, producer), scene.here)
        for peer in list(scene.here):
            scene.leave(peer)
        verdict = check([event for peer in running for event in peer.events], producer.stored)
    assert verdict.problems == []
    assert len(verdict.read) == producer.count
