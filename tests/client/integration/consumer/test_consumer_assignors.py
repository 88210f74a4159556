"""Assignors at work in a group: the delayed one, and one of the user's with bytes of its own."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from slackwater.kafka import KafkaConsumer
from slackwater.kafka.errors import KafkaConfigurationError
from tests.client.integration.groups.consumer_harness import make_topic, options, unique
from tests.support.devbroker import DevBroker
from tests.support.waiting import wait_until

PARTITIONS = 6


def poll_all(consumers: Iterable[KafkaConsumer]) -> None:
    for consumer in consumers:
        consumer.poll(20)


def held(consumers: Iterable[KafkaConsumer]) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def settled(consumers: list[KafkaConsumer], sizes: list[int]) -> None:
    """Waits until the members hold so many, are stable, and are in one generation."""

    def there() -> bool:
        poll_all(consumers)
        memberships = [consumer.membership() for consumer in consumers]
        return (
            held(consumers) == sizes
            and {view.state for view in memberships} == {"stable"}
            and len({view.generation for view in memberships}) == 1
        )

    wait_until(there, f"members that hold {sizes}")


def test_partitions_of_a_vanished_static_member_wait_for_its_return(devbroker: DevBroker) -> None:
    """The test follows the generation without the member and the one in which it is back."""
    topic, group = make_topic(devbroker.bootstrap, PARTITIONS), unique("g")
    more = options(devbroker.bootstrap, group, scheduled_rebalance_max_delay_ms=60_000)
    consumers = [KafkaConsumer(topic, **more) for _ in range(3)]
    try:
        settled(consumers, [2, 2, 2])
        leader = next(consumer for consumer in consumers if consumer.membership().is_leader)
        gone = next(consumer for consumer in consumers if consumer is not leader)
        lost = gone.assignment()
        stay = [consumer for consumer in consumers if consumer is not gone]
        before = {id(consumer): consumer.assignment() for consumer in stay}
        generation = leader.membership().generation
        gone.close(leave_group=True)
        consumers.remove(gone)
        wait_until(
            lambda: (poll_all(stay), min(consumer.membership().generation for consumer in stay) > generation)[
                1
            ],
            "a rebalance",
        )
        settled(stay, [2, 2])
        assert {id(consumer): consumer.assignment() for consumer in stay} == before
        back = KafkaConsumer(topic, **more)
        consumers.append(back)
        settled(consumers, [2, 2, 2])
        assert back.assignment() == lost
        assert {id(consumer): consumer.assignment() for consumer in stay} == before
    finally:
        for consumer in consumers:
            consumer.close()


def test_the_delay_option_needs_cooperative_sticky(devbroker: DevBroker) -> None:
    for more in (
        {"partition_assignment_strategy": "range", "scheduled_rebalance_max_delay_ms": 5},
        {"scheduled_rebalance_max_delay_ms": -1},
    ):
        with pytest.raises(KafkaConfigurationError, match="scheduled_rebalance_max_delay_ms"):
            KafkaConsumer(**options(devbroker.bootstrap, "g", **more))
