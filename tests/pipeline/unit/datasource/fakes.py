"""Brokers without a network: what the planning of a query asks of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from slackwater.kafka.admin.results import PerItem
from slackwater.kafka.errors import UnknownTopicOrPartitionError
from slackwater.kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from slackwater.pipeline.datasource.options import EARLIEST, LATEST, SourceOptions, parse
from slackwater.runtime.delivery.stopped_partitions import id_text

FIRST, SECOND, NONE = UUID(int=1), UUID(int=2), UUID(int=0)
"""Ids of a topic, of the one that has its name later, and of all topics before Kafka 2.8."""
OLD, NEW = id_text(FIRST), id_text(SECOND)
SERVERS = {"kafka.bootstrap.servers": "broker:9092"}
ORDERS = TopicPartition("orders", 0), TopicPartition("orders", 1)


def options(**more: str) -> SourceOptions:
    """Those of a query of the topic orders. ``value_format`` stands for ``value.format``."""
    named = {name.replace("_", "."): value for name, value in more.items()}
    ways = {"subscribe", "subscribePattern", "assign"}
    return parse({**SERVERS, **({} if ways & set(named) else {"subscribe": "orders"}), **named})


@dataclass
class FakeLog:
    """A partition: the offsets ``first`` to ``last`` (not included). ``times``: (offset, ms), by offset."""

    first: int
    last: int
    times: list[tuple[int, int]] = field(default_factory=list)

    def at(self, wanted: int) -> OffsetAndTimestamp:
        if wanted in (EARLIEST, LATEST):
            return OffsetAndTimestamp(self.first if wanted == EARLIEST else self.last, -1)
        later = [(offset, time) for offset, time in self.times if time >= wanted and offset >= self.first]
        return OffsetAndTimestamp(*(later[0] if later else (-1, -1)))


class FakeAdmin:
    """Answers from ``logs`` and ``topic_id``, which a test may change, and notes each ListOffsets."""

    def __init__(
        self, logs: Mapping[TopicPartition, FakeLog], committed: Mapping[str, Any] | None = None
    ) -> None:
        self.logs, self.committed = dict(logs), committed or {}
        self.listed: list[tuple[dict[TopicPartition, int], str]] = []
        self.topic_id = NONE
        self.note = ""
        """The metadata of what is committed."""
        self.deleted: set[TopicPartition] = set()
        """They are still shown in the metadata."""

    def list_topics(self) -> list[str]:
        return sorted({tp.topic for tp in self.logs})

    def describe_topics(self, names: Iterable[str]) -> Any:
        outcomes: PerItem[str, Any] = PerItem()
        for name in names:
            numbers = {tp.partition: None for tp in self.logs if tp.topic == name}
            known = SimpleNamespace(partitions=numbers, topic_id=self.topic_id)
            outcomes[name] = known if numbers else UnknownTopicOrPartitionError(f"topic {name}")
        return outcomes

    def list_offsets(self, wanted: Mapping[TopicPartition, int], *, isolation_level: str) -> Any:
        self.listed.append((dict(wanted), isolation_level))
        outcomes: PerItem[TopicPartition, OffsetAndTimestamp] = PerItem()
        for tp, at in wanted.items():
            log = self.logs.get(tp) if tp not in self.deleted else None
            outcomes[tp] = log.at(at) if log is not None else UnknownTopicOrPartitionError(str(tp))
        return outcomes

    def committed_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        offsets = self.committed.get(group_id, {})
        return {tp: OffsetAndMetadata(offsets[tp], self.note) for tp in partitions or () if tp in offsets}

    def describe_cluster(self) -> Any:
        return SimpleNamespace(cluster_id="here")
