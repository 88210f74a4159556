"""A coordinator that moves before the Sync, when the member learns it by a question about offsets."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.offsets.group_offsets import GroupOffsets
from slackwater.kafka.errors import FencedInstanceIdError, KafkaConnectionError
from slackwater.kafka.net import ByVersion
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.protocol.membership.test_membership import Bench
from tests.support.virtual_time import steady

A = TopicPartition("t", 0)


class Moving(Bench):
    """A static member that has joined and not synced. ``answers``: of its coordinators, one after another."""

    def __init__(self, *answers: m.OffsetFetchResponse | KafkaConnectionError) -> None:
        super().__init__()
        self.answers, self.metadata = list(answers), ClusterMetadata()
        self.offsets = GroupOffsets(
            self, ConsumerConfig(group_id="g"), Subscription(), self.member, steady(1),  # type: ignore[arg-type]
            now_ms=lambda: self.now, touch=lambda: None, changed=lambda: None,  # type: ignore[arg-type,return-value]
        )  # fmt: skip
        self.subscribe()
        self.join(5, member_id="not stored")

    async def coordinator(self, group_id: str, timeout_ms: int) -> int:
        return 1

    def forget_coordinator(self, group_id: str) -> None:
        pass

    async def send(self, node: int, request: ByVersion[Any], **how: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaConnectionError):
            raise answer
        return answer

    def fence(self) -> None:
        """The coordinator that is there now has another member.id of this instance."""
        sync = self.take(m.SyncGroupRequest)
        self.answer(sync, m.SyncGroupResponse(error_code=E.FENCED_INSTANCE_ID))


OFFSETS = m.OffsetFetchResponse(
    topics=[
        m.OffsetFetchResponseTopic(
            name="t", partitions=[m.OffsetFetchResponsePartition(partition_index=0, committed_offset=7)]
        )
    ]
)


@pytest.mark.parametrize(
    "answer",
    [m.OffsetFetchResponse(error_code=E.NOT_COORDINATOR), KafkaConnectionError("the broker has ended")],
    ids=["moved", "ended"],
)
async def test_a_fence_after_an_offset_fetch_that_was_refused_or_lost_is_forgiven(
    answer: m.OffsetFetchResponse | KafkaConnectionError,
) -> None:
    """The Sync is the first request of the membership that the new coordinator gets."""
    bench = Moving(answer, OFFSETS)
    committed = await bench.offsets.committed([A], 10_000)
    assert committed[A] is not None
    bench.fence()
    assert bench.state() is State.JOINING


async def test_a_fence_by_the_coordinator_that_gave_the_member_id_is_final() -> None:
    bench = Moving(OFFSETS)
    await bench.offsets.committed([A], 10_000)
    bench.fence()
    assert isinstance(bench.member.error, FencedInstanceIdError)
