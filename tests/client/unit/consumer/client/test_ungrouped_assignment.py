"""Topics without a group: the partitions are those of the metadata, told as a group's would be."""

from __future__ import annotations

from slackwater.kafka.consumer.ungrouped_assignment import notices_without_group
from slackwater.kafka.protocol.membership.notices import Notice, NoticeKind
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode


def metadata(counts: dict[str, int], errors: dict[str, int] | None = None) -> ClusterMetadata:
    made = ClusterMetadata()
    topics = [
        m.MetadataResponseTopic(
            name=name,
            partitions=[m.MetadataResponsePartition(partition_index=n, leader_id=1) for n in range(count)],
        )
        for name, count in counts.items()
    ]
    topics += [m.MetadataResponseTopic(name=name, error_code=code) for name, code in (errors or {}).items()]
    brokers = [m.MetadataResponseBroker(node_id=1, host="h", port=1)]
    made.update(m.MetadataResponse(brokers=brokers, topics=topics), 0, complete=True)
    return made


def partitions(topic: str, count: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, n) for n in range(count))


def test_partitions_come_and_go_with_the_metadata() -> None:
    subscription = Subscription()
    subscription.subscribe_topics(["a", "b"])
    assert notices_without_group(subscription, metadata({}), []) == []
    (first,) = notices_without_group(subscription, metadata({"a": 2}), [])
    assert first == Notice(NoticeKind.ASSIGNED, partitions("a", 2))
    assert notices_without_group(subscription, metadata({"a": 2}), [first]) == [], "told already"
    subscription.add(first.partitions)
    assert notices_without_group(subscription, metadata({"a": 2}), []) == []
    (more,) = notices_without_group(subscription, metadata({"a": 3, "b": 1}), [])
    assert more == Notice(NoticeKind.ASSIGNED, (TopicPartition("a", 2), TopicPartition("b", 0)))


def test_only_what_is_known_to_be_gone_is_taken() -> None:
    subscription = Subscription()
    subscription.subscribe_topics(["a"])
    subscription.add(partitions("a", 2))
    assert notices_without_group(subscription, metadata({}), []) == []
    away = {"a": int(ErrorCode.LEADER_NOT_AVAILABLE)}
    assert notices_without_group(subscription, metadata({}, away), []) == []
    deleted = {"a": int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
    (gone,) = notices_without_group(subscription, metadata({}, deleted), [])
    assert gone == Notice(NoticeKind.REVOKED, partitions("a", 2))
    subscription.subscribe_topics(["b"])
    revoked, assigned = notices_without_group(subscription, metadata({"a": 2, "b": 1}), [])
    assert (revoked.partitions, assigned.partitions) == (partitions("a", 2), partitions("b", 1))


def test_what_waits_counts_as_told_in_its_order() -> None:
    subscription = Subscription()
    subscription.subscribe_topics(["a"])
    subscription.add(partitions("a", 1))
    going = Notice(NoticeKind.REVOKED, partitions("a", 1))
    (again,) = notices_without_group(subscription, metadata({"a": 1}), [going])
    assert again == Notice(NoticeKind.ASSIGNED, partitions("a", 1)), "it is wanted again"
    assert notices_without_group(subscription, metadata({"a": 1}), [going, again]) == []
