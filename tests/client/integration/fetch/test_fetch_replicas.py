"""Reading from the closest replica (KIP-392) of a real cluster whose brokers have racks."""

from __future__ import annotations

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from slackwater.kafka import KafkaConsumer, KafkaProducer, TopicPartition
from tests.client.integration.groups.consumer_harness import drain, options, unique
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long
LEADER, CLOSEST = 1, 2


class RackedCluster(KafkaCluster):
    """Broker n is in rack ``rack-n``, and leaders send consumers to the replica in their own rack."""

    def __init__(self) -> None:
        selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        super().__init__(3, {"replica.selector.class": selector, "replica.lag.time.max.ms": "5000"})

    def _common(self, node: int) -> dict[str, str]:
        return {**super()._common(node), "broker.rack": f"rack-{node}"}


def produce(cluster: KafkaCluster, topic: str, values: range) -> None:
    alive = [cluster.address(node) for node in cluster.pids]
    with KafkaProducer(bootstrap_servers=alive, acks=1, enable_idempotence=False) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, partition=0)
        producer.flush()


def test_the_replica_in_the_consumers_rack_is_read_from_and_left_for_the_leader_when_it_goes() -> None:
    with RackedCluster() as cluster:
        topic = unique("racks")
        tp = TopicPartition(topic, 0)
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        admin.create_topics([NewTopic(topic, -1, -1, replica_assignments={0: [LEADER, CLOSEST, 3]})])
        admin.close()
        produce(cluster, topic, range(100))
        more = {"client_rack": f"rack-{CLOSEST}", "request_timeout_ms": 5_000, "max_poll_records": 10}
        with KafkaConsumer(**options(cluster.bootstrap, None, **more)) as consumer:
            consumer.assign([tp])
            targets, loop = consumer._core.fetcher._targets, consumer._core.fetcher._loop
            assert drain(consumer, 100) == {tp: list(range(100))}
            assert targets.node(tp, loop.time()) == CLOSEST
            leader_sessions = consumer._core.fetcher._sessions[LEADER]
            asked = leader_sessions.epoch
            produce(cluster, topic, range(100, 200))
            assert drain(consumer, 100) == {tp: list(range(100, 200))}
            # Nothing was asked of the leader meanwhile.
            assert leader_sessions.epoch == asked
            cluster.kill(CLOSEST)
            produce(cluster, topic, range(200, 300))
            # The leader goes on naming it, until the controller has noticed.
            assert drain(consumer, 100) == {tp: list(range(200, 300))}
            assert targets.node(tp, loop.time()) != CLOSEST
            cluster.start(CLOSEST)
            wait_until(
                lambda: consumer.poll(200) or targets.node(tp, loop.time()) == CLOSEST, "back to it", 60
            )
            produce(cluster, topic, range(300, 310))
            assert drain(consumer, 10) == {tp: list(range(300, 310))}
