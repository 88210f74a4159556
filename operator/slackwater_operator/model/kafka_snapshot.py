"""The group and its topics as observed at one time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GroupView


@dataclass(frozen=True)
class KafkaSnapshot:
    """The group, its topics' partitions and their offsets.

    Attributes:
        at_ms: when the observation began (wall clock).
        group: the group; None when the broker did not respond.
        partitions: all partitions of the group's topics, in order.
        ends: each partition's end offset (the next one to be written), where known.
        positions: the group's position in each partition, where known: the committed offset, or without one
            the offset that it would start at. While its workers' rows wait to be written (`sink.maxAge`), the
            offset up to which they have handled the records.
        problems: what could not be observed, in words.
        coordinator: the node id of the group's coordinator; None if it was not requested or not reported.
        cluster_id: the id of the Kafka cluster; "" if not reported.
        brokers: the node ids of the brokers; empty if not reported.
        missing: the topics that do not exist by the brokers' report, in order.
        topics_ms: when the topics were last requested (wall clock); None if unknown.
        session_timeout_ms: the session of the group's configs, by the consumer protocol; None if unknown.
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
    session_timeout_ms: int | None = None

    @property
    def lag(self) -> dict[TopicPartition, int | None]:
        """The number of records of each partition behind the group's position; None if unknown."""
        return {partition: self._lag(partition) for partition in self.partitions}

    def _lag(self, partition: TopicPartition) -> int | None:
        end, position = self.ends.get(partition), self.positions.get(partition)
        return None if end is None or position is None else max(0, end - position)
