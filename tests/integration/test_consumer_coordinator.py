"""Coordinators that move, stop and come back, under static members (three real brokers)."""

from __future__ import annotations

from typing import Any

from slackwater.kafka import OffsetAndMetadata, TopicPartition
from tests.integration.consumer_harness import Member, make_topic, members, options, settled, unique, wait_for


def test_members_keep_their_generation_through_a_move_of_the_coordinator(kafka3: Any) -> None:
    topic, group = make_topic(kafka3.bootstrap, 4), unique("g")
    more = {"session_timeout_ms": 30_000, "request_timeout_ms": 5_000}
    with members() as running:
        running += [
            Member([topic], **options(kafka3.bootstrap, group, group_instance_id=f"i-{n}", **more))
            for n in range(2)
        ]
        wait_for(lambda: settled(running, topic, 4), "two members")
        before = running[0].generation
        held = [member.consumer.assignment() for member in running]
        told = [list(member.events) for member in running]
        node = wait_for(lambda: kafka3.coordinator_of(group), "the coordinator")
        kafka3.stop(node)
        try:
            moved = wait_for(
                lambda: (
                    (now := kafka3.coordinator_of(group, asked=_other(kafka3, node))) not in (None, node)
                    and now
                ),
                "another coordinator",
            )
            assert moved != node
            for member in running:
                tp = sorted(member.consumer.assignment())[0]
                member.consumer.commit({tp: OffsetAndMetadata(0, "after the move")})
            for index in range(2):
                # A return while the coordinator is a new one, too.
                running[index].stop()
                running[index] = Member(
                    [topic],
                    **options(_address(kafka3, node), group, group_instance_id=f"i-{index}", **more),
                )
                wait_for(lambda: settled(running, topic, 4), "the return")
                assert running[index].consumer.membership().returned
            assert running[0].generation == before
            assert [member.consumer.assignment() for member in running] == held
            assert not any(kind == "lost" for events in told for kind, _ in events)
        finally:
            kafka3.start(node)


def test_rebalance_in_flight_when_the_coordinator_goes_ends_well(kafka3: Any) -> None:
    topic, group = make_topic(kafka3.bootstrap, 6), unique("g")
    more = {"session_timeout_ms": 30_000, "request_timeout_ms": 5_000, "max_poll_interval_ms": 20_000}
    with members() as running:
        running.append(Member([topic], **options(kafka3.bootstrap, group, group_instance_id="i-0", **more)))
        wait_for(lambda: settled(running, topic, 6), "one member")
        node = wait_for(lambda: kafka3.coordinator_of(group), "the coordinator")
        running += [
            Member([topic], **options(_address(kafka3, node), group, group_instance_id=f"i-{n}", **more))
            for n in (1, 2)
        ]
        wait_for(lambda: running[1].consumer.membership().state == "joining", "a join under way")
        kafka3.kill(node)
        try:
            wait_for(lambda: settled(running, topic, 6), "three members", 60)
            assert [member.error for member in running] == [None] * 3
            tp = sorted(running[2].consumer.assignment())[0]
            running[2].consumer.commit({tp: OffsetAndMetadata(0)})
            assert isinstance(tp, TopicPartition)
        finally:
            kafka3.start(node)


def _other(cluster: Any, node: int) -> int:
    return next(one for one in cluster.nodes if one != node)


def _address(cluster: Any, node: int) -> str:
    """Bootstrap addresses without the broker that is down."""
    return ",".join(cluster.address(one) for one in cluster.nodes if one != node)
