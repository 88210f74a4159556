"""The assignment of a consumer without a group: all partitions of its topics."""

from __future__ import annotations

from collections.abc import Iterable

from slackwater.kafka.protocol.membership.notices import Notice, NoticeKind
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import ErrorCode

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


def notices_without_group(
    subscription: Subscription, metadata: ClusterMetadata, waiting: Iterable[Notice]
) -> list[Notice]:
    """The notices to add to ``waiting``, so that the assignment becomes all partitions of the topics."""
    counts = metadata.partition_counts(subscription.topics)
    wanted = {TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)}
    have = set(subscription.partitions)
    for notice in waiting:
        if notice.kind is NoticeKind.ASSIGNED:
            have.update(notice.partitions)
        else:
            have.difference_update(notice.partitions)
    gone = {tp for tp in have - wanted if _is_gone(tp.topic, subscription, metadata)}
    new = wanted - have
    news = []
    if gone:
        news.append(Notice(NoticeKind.REVOKED, tuple(sorted(gone))))
    if new:
        news.append(Notice(NoticeKind.ASSIGNED, tuple(sorted(new))))
    return news


def _is_gone(topic: str, subscription: Subscription, metadata: ClusterMetadata) -> bool:
    # A topic that a broker fails to describe is not gone.
    if topic not in subscription.topics:
        return True
    known = metadata.topics.get(topic)
    return known is not None and known.error_code in _GONE
