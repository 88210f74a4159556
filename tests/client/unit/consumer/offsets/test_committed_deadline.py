"""What a caller reads when the time for the committed offsets is over: why it took so long."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.offsets import group_offsets as commits
from slackwater.kafka.consumer.offsets.group_offsets import GroupOffsets
from slackwater.kafka.errors import KafkaTimeoutError
from slackwater.kafka.net import ByVersion
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.protocol.membership.test_membership import Bench
from tests.support.virtual_time import steady

A = TopicPartition("t", 0)


class Asking(Bench):
    """A coordinator that always answers UNSTABLE_OFFSET_COMMIT, the last time not at all."""

    def __init__(self, *, silent_from: int) -> None:
        super().__init__()
        self.asked, self.silent_from, self.metadata = 0, silent_from, ClusterMetadata()
        self.offsets = GroupOffsets(
            self, ConsumerConfig(group_id="g"), Subscription(), self.member, steady(10),  # type: ignore[arg-type]
            now_ms=lambda: self.now, touch=lambda: None, changed=lambda: None,  # type: ignore[arg-type,return-value]
        )  # fmt: skip

    async def coordinator(self, group_id: str, timeout_ms: int) -> int:
        return 1

    def forget_coordinator(self, group_id: str) -> None:
        pass

    async def send(self, node: int, request: ByVersion[Any], *, timeout_ms: int, **how: Any) -> Any:
        self.asked += 1
        if self.asked >= self.silent_from:
            self.now += timeout_ms
            raise KafkaTimeoutError("no answer")
        part = m.OffsetFetchResponsePartition(
            partition_index=0, committed_offset=-1, error_code=E.UNSTABLE_OFFSET_COMMIT
        )
        return m.OffsetFetchResponse(topics=[m.OffsetFetchResponseTopic(name="t", partitions=[part])])


async def test_an_answer_that_the_deadline_cut_short_does_not_hide_the_one_before() -> None:
    bench = Asking(silent_from=3)
    with pytest.raises(KafkaTimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
        await bench.offsets.committed([A], 10_000)
    assert bench.asked == 3


async def test_a_coordinator_that_never_answered_is_named_as_that() -> None:
    bench = Asking(silent_from=1)
    with pytest.raises(KafkaTimeoutError, match="no answer"):
        await bench.offsets.committed([A], 10_000)


async def test_a_pause_that_lasts_beyond_the_deadline_says_what_it_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Asking(silent_from=99)

    async def oversleep(seconds: float) -> None:
        bench.now += 60_000

    monkeypatch.setattr(commits.asyncio, "sleep", oversleep)
    with pytest.raises(KafkaTimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
        await bench.offsets.committed([A], 10_000)
    assert bench.asked == 1
