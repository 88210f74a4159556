"""A member of the consumer protocol (KIP-848) by hand."""

from __future__ import annotations

import uuid
from typing import Any, Self
from uuid import UUID

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.support.wire.rawclient import RawClient, topic_metadata

Owned = set[int] | None


class Beater:
    """A member of one topic by hand: each call is one request; epoch and partitions are as last told."""

    def __init__(self, bootstrap: str, group: str, topic: str, instance: str | None = None) -> None:
        self.client = RawClient.to(bootstrap)
        self.group, self.topic, self.instance = group, topic, instance
        self.topic_id: UUID = topic_metadata(self.client, topic).topic_id
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.held: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def send(self, **fields: Any) -> m.ConsumerGroupHeartbeatResponse:
        """A heartbeat with these fields, as the member that it is."""
        values = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            **fields,
        }
        answer: m.ConsumerGroupHeartbeatResponse = self.client.request(
            m.ConsumerGroupHeartbeatRequest(**values), 1
        )
        return answer

    def parts(self, numbers: Owned) -> list[m.ConsumerGroupHeartbeatTopicPartitions] | None:
        """A list for ``topic_partitions``."""
        if numbers is None:
            return None
        held = m.ConsumerGroupHeartbeatTopicPartitions(topic_id=self.topic_id, partitions=sorted(numbers))
        return [held] if numbers else []

    def join(self, **fields: Any) -> m.ConsumerGroupHeartbeatResponse:
        """A heartbeat of epoch 0 with all that a join needs."""
        return self.send(**{**self.full(set()), "member_epoch": 0, **fields})

    def full(self, owned: Owned) -> dict[str, Any]:
        """The fields of a full heartbeat."""
        return {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [self.topic],
            "topic_partitions": self.parts(owned),
        }

    def assigned_in(self, answer: m.ConsumerGroupHeartbeatResponse) -> Owned:
        """The partitions in an answer; None: it has none."""
        if answer.assignment is None:
            return None
        return {number for topic in answer.assignment.topic_partitions for number in topic.partitions}

    def take(self, answer: m.ConsumerGroupHeartbeatResponse) -> Owned:
        """Takes epoch and partitions of a good answer; what it was told."""
        assert answer.error_code == E.NONE, (answer.error_code, answer.error_message)
        self.epoch = answer.member_epoch
        numbers = self.assigned_in(answer)
        self.held = self.held if numbers is None else numbers
        return numbers

    def settle(self) -> None:
        """One heartbeat, and another that acknowledges what it was told."""
        if self.take(self.send()) is not None:
            self.take(self.send(topic_partitions=self.parts(self.held)))

    def commit(self, epoch: int, partition: int = 0, version: int = 9, **fields: Any) -> int:
        """OffsetCommit of one partition, by its error code."""
        part = m.OffsetCommitRequestPartition(partition_index=partition, committed_offset=1)
        topic = m.OffsetCommitRequestTopic(name=self.topic, partitions=[part])
        request = m.OffsetCommitRequest(
            **{
                "group_id": self.group,
                "generation_id_or_member_epoch": epoch,
                "member_id": self.member_id,
                "group_instance_id": self.instance,
                "topics": [topic],
                **fields,
            }
        )
        return int(self.client.request(request, version).topics[0].partitions[0].error_code)

    def fetch(self, member_id: str | None, epoch: int) -> int:
        """OffsetFetch as somebody, by the group's error code."""
        topics = [m.OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0])]
        group = m.OffsetFetchRequestGroup(
            group_id=self.group, member_id=member_id, member_epoch=epoch, topics=topics
        )
        return int(self.client.request(m.OffsetFetchRequest(groups=[group]), 9).groups[0].error_code)

    def described(self) -> m.ConsumerGroupDescribeResponseGroup:
        """The group as ConsumerGroupDescribe shows it."""
        request = m.ConsumerGroupDescribeRequest(group_ids=[self.group])
        group: m.ConsumerGroupDescribeResponseGroup = self.client.request(request, 1).groups[0]
        return group
