"""Offsets: of partitions, by time, and those that groups have committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from slackwater.kafka.admin.attempts import Attempts
from slackwater.kafka.admin.results import PerItem
from slackwater.kafka.errors import KafkaError, for_code
from slackwater.kafka.net.cluster import Cluster
from slackwater.kafka.net.connection import ByVersion
from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

Committed = PerItem[TopicPartition, OffsetAndMetadata]
"""A group's committed offsets. A partition may have an error; one without an offset is left out."""


async def list_offsets(
    cluster: Cluster, attempts: Attempts, wanted: Mapping[TopicPartition, int], *, isolation_level: int
) -> PerItem[TopicPartition, OffsetAndTimestamp]:
    """Looks offsets up (ListOffsets) by time in ms, or by `-1` (the end) and `-2` (the beginning)."""
    cluster.track_also({tp.topic for tp in wanted})

    async def ask(
        node_id: int, tps: list[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | KafkaError]:
        topics: dict[str, m.ListOffsetsRequestTopic] = {}
        for tp in tps:
            topic = topics.setdefault(tp.topic, m.ListOffsetsRequestTopic(name=tp.topic))
            topic.partitions.append(
                m.ListOffsetsRequestPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=cluster.metadata.leader_epoch(tp),
                    timestamp=wanted[tp],
                )
            )
        request = m.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=list(topics.values()),
            timeout_ms=attempts.left_ms,
        )
        answer = await cluster.send(node_id, request, timeout_ms=attempts.left_ms)
        return {
            TopicPartition(topic.name, partition.partition_index): _offset(topic.name, partition)
            for topic in answer.topics
            for partition in topic.partitions
        }

    def unknown(tp: TopicPartition) -> KafkaError:
        topic = cluster.metadata.topics.get(tp.topic)
        missing = topic is None or tp.partition not in topic.partitions
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing else ErrorCode.LEADER_NOT_AVAILABLE
        return for_code(code, str(tp))

    return await attempts.by_leader(cluster, cluster.metadata.leader, wanted, ask, unknown)


def _offset(topic: str, partition: m.ListOffsetsResponsePartitionResponse) -> OffsetAndTimestamp | KafkaError:
    if partition.error_code:
        return for_code(partition.error_code, f"offset of {topic}-{partition.partition_index}")
    return OffsetAndTimestamp(partition.offset, partition.timestamp, partition.leader_epoch)


async def committed(
    cluster: Cluster, attempts: Attempts, group_ids: Iterable[str], partitions: list[TopicPartition] | None
) -> PerItem[str, Committed]:
    """Reads what groups have committed (OffsetFetch), for the partitions, or for all where they are None."""

    async def ask(node_id: int, groups: list[str]) -> Mapping[str, Committed | KafkaError]:
        results: dict[str, Committed | KafkaError] = {}
        waiting = list(groups)
        while waiting:
            now = list(waiting)
            request = ByVersion(m.OffsetFetchRequest, partial(o.offset_fetch_of_groups, now, partitions))
            answer = await cluster.send(
                node_id, request, timeout_ms=attempts.left_ms, version_cap=o.LAST_BY_NAME
            )
            by_group = o.read_offset_fetch_of_groups(answer, now[0])
            results.update({group: _offsets(group, offsets) for group, offsets in by_group.items()})
            # An older broker answers for one group at a time.
            waiting = [group for group in waiting if group not in by_group and group != now[0]]
        return results

    return await attempts.by_coordinator(cluster, group_ids, ask)


def _offsets(group_id: str, committed: o.FetchedGroupOffsets) -> Committed | KafkaError:
    if committed.error_code:
        return for_code(committed.error_code, f"committed offsets of group {group_id!r}")
    outcomes = Committed({tp: offset for tp, offset in committed.offsets.items() if offset is not None})
    for tp, code in committed.errors.items():
        outcomes[tp] = for_code(code, f"committed offset of {tp} in group {group_id!r}")
    return outcomes
