"""Members of a group against a real broker and the dev broker: join, return, fence, rebalance, commit."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import (
    FencedInstanceIdError,
)
from slackwater.kafka.protocol.diagnostics import FindingKind
from slackwater.kafka.protocol.membership.member import Membership
from tests.client.integration.groups.consumer_harness import (
    Member,
    add_partitions,
    drain,
    make_topic,
    members,
    options,
    produce,
    settled,
    together,
    unique,
    whole,
)
from tests.support.kafka.brokers import CONSUMER_PROTOCOL
from tests.support.waiting import WAIT_S, wait_until


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=CONSUMER_PROTOCOL)])
def test_a_member_joins_reads_commits_and_continues(broker: Any, protocol: str) -> None:
    topic, group = make_topic(broker.bootstrap, 3, 300), unique("g")
    made = options(broker.bootstrap, group, group_protocol=protocol)
    with KafkaConsumer(topic, **made) as consumer:
        first = drain(consumer, 300)
        assert all(values == list(range(100)) for values in first.values())
        consumer.commit()
        assert consumer.committed(TopicPartition(topic, 0)) == 100
    produce(broker.bootstrap, topic, 3, 30, start=100)
    with KafkaConsumer(topic, **made) as consumer:
        assert drain(consumer, 30) == {TopicPartition(topic, n): list(range(100, 110)) for n in range(3)}


def test_static_member_returns_in_the_same_generation(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 4), unique("g")
    session_ms = 60_000
    with members() as running:

        def start(number: int) -> Member:
            more = {"group_instance_id": f"i-{number}", "session_timeout_ms": session_ms}
            return Member([topic], **options(broker.bootstrap, group, **more))

        running += [start(number) for number in range(3)]
        wait_until(lambda: settled(running, topic, 4), "three members")
        before = running[0].generation
        for index in range(3):
            held = running[index].consumer.assignment()
            leads = running[index].consumer.membership().is_leader
            events = [len(member.events) for member in running]
            running[index].stop()
            running[index] = start(index)
            wait_until(lambda: settled(running, topic, 4), "the return")
            membership = running[index].consumer.membership()
            assert (membership.generation, membership.returned, membership.is_leader) == (before, True, leads)
            assert running[index].consumer.assignment() == held
            assert [len(m.events) for m in running if m is not running[index]] == [
                n for at, n in enumerate(events) if at != index
            ]


def test_returning_leader_notices_partitions_added_meanwhile(kafka: Any) -> None:
    topic, group = make_topic(kafka.bootstrap, 2), unique("g")
    with members() as running:
        running.append(Member([topic], **options(kafka.bootstrap, group, group_instance_id="a")))
        wait_until(lambda: settled(running, topic, 2), "one member")
        running.pop().stop()
        add_partitions(kafka.bootstrap, topic, 5)
        running.append(Member([topic], **options(kafka.bootstrap, group, group_instance_id="a")))
        wait_until(lambda: settled(running, topic, 5), "the new partitions")


def test_a_second_consumer_with_the_id_fences_the_first(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 2, 100), unique("g")
    same = options(broker.bootstrap, group, group_instance_id="only")
    with members() as running:
        old = Member([topic], **same)
        wait_until(lambda: old.stable and sum(map(len, old.values.values())) == 100, "the first")
        new = Member([topic], **same)
        running += [old, new]
        wait_until(lambda: new.stable, "the second")
        wait_until(lambda: isinstance(old.error, FencedInstanceIdError), "the fence")
        produce(broker.bootstrap, topic, 2, 20, start=50)
        wait_until(lambda: sum(map(len, new.values.values())) >= 20, "records at the second")
        assert sum(map(len, old.values.values())) == 100
        with pytest.raises(FencedInstanceIdError, match="only"):
            old.consumer.poll(0)
        with pytest.raises(FencedInstanceIdError):
            old.consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(1)})
        assert new.error is None


def test_cooperative_scale_up_moves_only_what_it_must(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 12, 1_200), unique("g")
    with members() as running:
        for count in (1, 2, 3):
            before = {tp: member for member in running for tp in member.consumer.assignment()}
            running.append(
                Member([topic], **options(broker.bootstrap, group, group_instance_id=f"i-{count}"))
            )
            wait_until(lambda: settled(running, topic, 12), f"{count} members")
            moved = [tp for tp, owner in before.items() if tp not in owner.consumer.assignment()]
            assert len(moved) == (0 if count == 1 else 12 // count)
            assert {len(member.consumer.assignment()) for member in running} == {12 // count}
            produce(broker.bootstrap, topic, 12, 1_200, start=100 * count)
        wait_until(lambda: together(running) == whole(topic, 12, 400), "all records, each once")
        for member in running[:2]:
            # The listener heard of the revocation while it still had the partitions.
            revoked = [set(tps) for kind, tps in member.events if kind == "revoked"]
            assert revoked
            assert all(gone <= held for gone, held in zip(revoked, member.held_at_notice, strict=True))
            assert not member.notices("lost")
        assert any(membership.follow_up for membership in running[0].consumer.membership().generations)
        assert not running[0].consumer.membership().generations[0].follow_up


@pytest.mark.parametrize("strategy", ["range", "roundrobin", ["cooperative-sticky", "range"]])
def test_eager_rebalance_revokes_everything_first(broker: Any, strategy: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 4), unique("g")
    more = {"partition_assignment_strategy": strategy}
    with members() as running:
        running.append(Member([topic], **options(broker.bootstrap, group, **more)))
        wait_until(lambda: settled(running, topic, 4), "one member")
        running.append(Member([topic], **options(broker.bootstrap, group, **more)))
        wait_until(lambda: settled(running, topic, 4), "two members")
        assert sorted(running[0].notices("revoked")) == [TopicPartition(topic, number) for number in range(4)]
        assert [len(member.consumer.assignment()) for member in running] == [2, 2]


def test_dynamic_member_leaves_at_close_and_static_does_not(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 4), unique("g")
    with members() as running:
        running.append(Member([topic], **options(broker.bootstrap, group, group_instance_id="stays")))
        running.append(Member([topic], **options(broker.bootstrap, group)))
        running.append(Member([topic], **options(broker.bootstrap, group, group_instance_id="told")))
        wait_until(lambda: settled(running, topic, 4), "three members")
        running.pop(1).stop()
        wait_until(lambda: settled(running, topic, 4), "the dynamic one gone")
        running.pop(1).stop(leave_group=True)
        wait_until(lambda: settled(running, topic, 4), "the static one that was told to leave gone")


def test_commit_from_another_thread_while_the_group_rebalances(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 6, 60), unique("g")
    with members() as running:
        running.append(Member([topic], **options(broker.bootstrap, group, group_instance_id="a")))
        wait_until(lambda: settled(running, topic, 6), "one member")
        first, stop, failed, done = running[0], threading.Event(), [], []

        def commit_all_the_time() -> None:
            while not stop.is_set():
                kept = sorted(first.consumer.assignment())[:1]
                try:
                    first.consumer.commit({tp: OffsetAndMetadata(5, "note") for tp in kept})
                    done.append(1)
                except Exception as exc:
                    failed.append(exc)

        thread = threading.Thread(target=commit_all_the_time)
        thread.start()
        try:
            running.append(Member([topic], **options(broker.bootstrap, group, group_instance_id="b")))
            wait_until(lambda: settled(running, topic, 6), "two members")
        finally:
            stop.set()
            thread.join(WAIT_S)
        assert done
        assert failed == []
        kept = sorted(first.consumer.assignment())[0]
        assert first.consumer.committed(kept, metadata=True) is not None


def membership_of(consumer: KafkaConsumer) -> Membership:
    group = consumer._core.group
    assert group is not None
    return group.membership


def test_heartbeats_go_on_without_poll(broker: Any) -> None:
    """A handler may work for longer than the session, up to max.poll.interval.ms."""
    topic, group = make_topic(broker.bootstrap, 1), unique("g")
    more = {"session_timeout_ms": 6_000, "max_poll_interval_ms": 60_000}
    with KafkaConsumer(topic, **options(broker.bootstrap, group, **more)) as consumer:
        wait_until(lambda: consumer.poll(50) or consumer.assignment(), "joined")
        before, began = consumer.membership(), time.monotonic()
        wait_until(lambda: time.monotonic() - began > 7, "more than a session")
        assert consumer.membership() == before
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(0)})
        consumer.poll(0)
        assert not membership_of(consumer).diagnostics.findings


def test_a_removed_live_member_is_notified_and_joins_again(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 2), unique("g")
    with members() as running, KafkaAdmin(bootstrap_servers=broker.bootstrap) as admin:
        running.append(Member([topic], **options(broker.bootstrap, group, group_instance_id="a")))
        wait_until(lambda: settled(running, topic, 2), "one member")
        before = running[0].consumer.membership()
        admin.remove_members(group, ["a"]).unwrap()
        wait_until(lambda: running[0].generation > before.generation and running[0].stable, "back")
        assert len(running[0].notices("lost")) == 2
        assert running[0].consumer.membership().member_id != before.member_id
        findings = membership_of(running[0].consumer).diagnostics.findings
        assert [finding.kind for finding in findings].count(FindingKind.REMOVED) == 1
