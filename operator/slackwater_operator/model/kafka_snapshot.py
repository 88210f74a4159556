"""What the group and its topics looked like at a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GroupView


@dataclass(frozen=True)
class KafkaSnapshot:
    """The group, its topics' partitions and their offsets.

    Attributes:
        at_ms: when the observation began, wall clock.
        group: the group; None when the broker did not say.
        partitions: all partitions of the group's topics, in order.
        ends: each partition's end offset (the next to be written), where known.
        positions: where the group stands in each partition: the committed offset, or without one the offset
            that it would start at; where known.
        problems: what could not be observed, in words.
        coordinator: the node id of the group's coordinator; None when it was not asked for or not told.
        cluster_id: Kafka's id of the cluster; "" when that was not told.
        brokers: the node ids of the brokers that are there; empty when that was not told.
        missing: the topics that the brokers say do not exist, in order.
        topics_ms: when the brokers were asked for the topics last, wall clock; None when not known.
    """

    at_ms: int
    group: GroupView | None = None
    partitions: tuple[TopicPartition, ...] = ()
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    coordinator: int | None = None
    brokers: frozenset[int] = frozenset()
    cluster_id: str = ""
    missing: tuple[str, ...] = ()
    topics_ms: int | None = None

    @property
    def lag(self) -> dict[TopicPartition, int | None]:
        """How many records of each partition the group has not committed; None when that is not known."""
        return {partition: self._lag(partition) for partition in self.partitions}

    def _lag(self, partition: TopicPartition) -> int | None:
        end, position = self.ends.get(partition), self.positions.get(partition)
        return None if end is None or position is None else max(0, end - position)
