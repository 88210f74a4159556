"""Cluster metadata: brokers, topics and leaders, from Metadata responses.

Leader epochs only go forward (KIP-320): a slower broker's older view of a partition does not
replace a newer one. A topic that comes back under another id has been deleted and made anew, and
starts afresh (KIP-516).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.primitives import ZERO_UUID

ANY_NODE = -1
"""Stands for any broker that can be reached."""

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's address. ``rack`` is ``None`` where it has none."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition's leader; ``leader`` is -1 when there is none, ``leader_epoch`` -1 when unknown."""

    leader: int
    leader_epoch: int = -1
    error_code: int = 0
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclass(slots=True)
class Topic:
    """A topic. ``error_code`` is what the broker said of it last; ``topic_id`` is zero before Kafka 2.8."""

    name: str
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    error_code: int = 0
    partitions: dict[int, Partition] = field(default_factory=dict)


class ClusterMetadata:
    """The cluster as last heard of. ``updated_at_ms`` is ``None`` before the first response."""

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.updated_at_ms: int | None = None
        self._names: dict[UUID, str] = {}
        self._racks: dict[int, str | None] = {}

    def update(self, response: m.MetadataResponse, now_ms: int, *, complete: bool = False) -> None:
        """Takes a response in. ``complete``: it was asked for all topics, so others are gone."""
        self.brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        self._racks.update((broker.node_id, broker.rack) for broker in response.brokers)
        self.controller_id = response.controller_id
        self.cluster_id = response.cluster_id or self.cluster_id
        self.updated_at_ms = now_ms
        described = {topic.name: topic for topic in response.topics if topic.name}
        if complete:
            for name in self.topics.keys() - described.keys():
                self._forget(name)
        for name, topic in described.items():
            self._update_topic(name, topic)

    def _update_topic(self, name: str, described: m.MetadataResponseTopic) -> None:
        if described.error_code in _GONE:
            self._forget(name)
        topic = self.topics.get(name)
        if topic is None or (
            described.topic_id != ZERO_UUID and topic.topic_id not in (ZERO_UUID, described.topic_id)
        ):
            self._forget(name)
            topic = self.topics[name] = Topic(name)
        topic.error_code = described.error_code
        if described.error_code and not described.partitions:
            return
        topic.is_internal = described.is_internal
        topic.topic_id = described.topic_id
        if described.topic_id != ZERO_UUID:
            self._names[described.topic_id] = name
        topic.partitions = {p.partition_index: _newer(topic, p) for p in described.partitions}

    def _forget(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            self._names.pop(topic.topic_id, None)

    def learn_leader(self, tp: TopicPartition, leader: int, leader_epoch: int) -> bool:
        """Takes a leader from a Fetch or Produce answer (KIP-951); false when it is no news."""
        topic = self.topics.get(tp.topic)
        known = topic.partitions.get(tp.partition) if topic else None
        if topic is None or known is None or leader < 0 or leader_epoch <= known.leader_epoch:
            return False
        topic.partitions[tp.partition] = Partition(leader, leader_epoch, 0, known.replicas, known.isr)
        return True

    def learn_broker(self, broker: Broker) -> None:
        """Takes a broker's address from elsewhere than a Metadata response."""
        self.brokers[broker.node_id] = broker

    def partition(self, tp: TopicPartition) -> Partition | None:
        """What is known of a partition; ``None``: nothing."""
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic else None

    def leader(self, tp: TopicPartition) -> int | None:
        """The leader's node id, or ``None`` while there is none or it is not known."""
        partition = self.partition(tp)
        return partition.leader if partition is not None and partition.leader >= 0 else None

    def leader_epoch(self, tp: TopicPartition) -> int:
        """The leader's epoch, -1 if unknown."""
        partition = self.partition(tp)
        return partition.leader_epoch if partition is not None else -1

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has, or ``None`` if it is not known (yet)."""
        described = self.topics.get(topic)
        return len(described.partitions) if described is not None and described.partitions else None

    def partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Partition counts of those of ``topics`` that are known."""
        counts = ((topic, self.partition_count(topic)) for topic in topics)
        return {topic: count for topic, count in counts if count is not None}

    def replica_racks(self, topics: Iterable[str]) -> dict[str, list[frozenset[str]]]:
        """For each topic that is known the racks of each partition's replicas, in the order of their numbers.

        Replicas that are not in sync count, too, as in Java's rack-aware assignors (KIP-881). So do those of
        a broker that is away, by the rack it had: it will be back, and its absence is no reason to rebalance.
        """
        racks = {node: rack for node, rack in self._racks.items() if rack}
        return {
            name: [
                frozenset(racks[node] for node in topic.partitions[number].replicas if node in racks)
                for number in sorted(topic.partitions)
            ]
            for name in topics
            if (topic := self.topics.get(name)) is not None and topic.partitions
        }

    def topic_id(self, topic: str) -> UUID:
        """A topic's id; zero if it is not known or the broker gives none."""
        described = self.topics.get(topic)
        return described.topic_id if described is not None else ZERO_UUID

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id."""
        return self._names.get(topic_id)


def _newer(topic: Topic, described: m.MetadataResponsePartition) -> Partition:
    known = topic.partitions.get(described.partition_index)
    if known is not None and 0 <= described.leader_epoch < known.leader_epoch:
        return known
    return Partition(
        described.leader_id,
        described.leader_epoch,
        described.error_code,
        tuple(described.replica_nodes),
        tuple(described.isr_nodes),
    )
