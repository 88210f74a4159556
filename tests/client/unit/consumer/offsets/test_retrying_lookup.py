"""How soon something is looked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from slackwater.kafka.consumer.offsets.retrying_lookup import Looking
from slackwater.kafka.errors import KafkaError
from slackwater.kafka.net.outages import Outages
from slackwater.kafka.protocol.subscription import PartitionState, Subscription
from slackwater.kafka.structs import TopicPartition
from tests.support.virtual_time import steady


@pytest.mark.parametrize(("known", "looks_at_once"), [(False, 2), (True, 1)])
async def test_news_ends_the_first_wait_for_an_unknown_leader_and_no_other(
    known: bool, looks_at_once: int
) -> None:
    """Else every consumer would lose a back-off to the metadata that is on its way when it begins."""
    subscription = Subscription()
    subscription.assign_by_user([TopicPartition("t", 0)])
    looks = 0

    async def look(wanted: Sequence[PartitionState]) -> bool:
        nonlocal looks
        looks += 1
        return True

    def fail(error: KafkaError) -> None:
        raise error

    looking = Looking(
        "something",
        steady(60_000, 60_000),
        lambda: list(subscription.partitions.values()),
        look,
        known=lambda states: known,
        on_change=lambda: None,
        on_error=fail,
        refresh=lambda: None,
        outages=Outages(),
    )

    async def settle() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    try:
        looking.wake()
        await settle()
        assert looks == 1
        looking.wake()
        await settle()
        assert looks == looks_at_once
        looking.wake()
        await settle()
        assert looks == looks_at_once
    finally:
        await looking.close()
