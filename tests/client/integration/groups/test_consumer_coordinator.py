"""Coordinators that move, stop and come back, under static members (three real brokers)."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewPartitions

from slackwater.kafka import KafkaAdmin, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import UnknownMemberIdError
from slackwater.kafka.protocol.diagnostics import FindingKind
from tests.client.integration.groups.consumer_harness import (
    Member,
    make_topic,
    members,
    options,
    settled,
    unique,
)
from tests.support.waiting import wait_until
from tests.support.wire import rawclient
from tests.support.wire.rawclient import subscription


@pytest.mark.long
def test_members_keep_their_generation_through_a_move_of_the_coordinator(kafka3: Any) -> None:
    topic, group = make_topic(kafka3.bootstrap, 4), unique("g")
    more = {"session_timeout_ms": 30_000, "request_timeout_ms": 5_000}
    with members() as running:
        running += [
            Member([topic], **options(kafka3.bootstrap, group, group_instance_id=f"i-{n}", **more))
            for n in range(2)
        ]
        wait_until(lambda: settled(running, topic, 4), "two members")
        before = running[0].generation
        held = [member.consumer.assignment() for member in running]
        report = [list(member.events) for member in running]
        node = wait_until(lambda: kafka3.coordinator_of(group), "the coordinator")
        kafka3.stop(node)
        try:
            moved = wait_until(
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
                wait_until(lambda: settled(running, topic, 4), "the return")
                assert running[index].consumer.membership().returned
            assert running[0].generation == before
            assert [member.consumer.assignment() for member in running] == held
            assert not any(kind == "lost" for events in report for kind, _ in events)
        finally:
            kafka3.start(node)


@pytest.mark.long
def test_a_rebalance_survives_the_loss_of_the_coordinator(kafka3: Any) -> None:
    """A scripted member that does not rejoin keeps the joins of the others parked."""
    topic, group = make_topic(kafka3.bootstrap, 6), unique("g")
    more = {"session_timeout_ms": 30_000, "request_timeout_ms": 5_000, "max_poll_interval_ms": 20_000}
    with members() as running:
        running.append(Member([topic], **options(kafka3.bootstrap, group, group_instance_id="i-0", **more)))
        wait_until(lambda: settled(running, topic, 6), "one member")
        node = wait_until(lambda: kafka3.coordinator_of(group), "the coordinator")
        by_hand = {"protocols": {"cooperative-sticky": subscription()}, "session_ms": 60_000}
        with rawclient.Member(kafka3.address(node), group, "stays away", **by_hand) as away:
            wait_until(lambda: not away.join().error_code and not away.sync().error_code, "a member by hand")
            running += [
                Member([topic], **options(_address(kafka3, node), group, group_instance_id=f"i-{n}", **more))
                for n in (1, 2)
            ]
            joining = lambda: all(member.consumer.membership().state == "joining" for member in running)  # noqa: E731
            wait_until(joining, "joins under way")
            kafka3.kill(node)
        try:
            with (
                KafkaAdmin(bootstrap_servers=_address(kafka3, node)) as admin,
                # A request whose answer came too late is sent again, and the member is gone by then.
                contextlib.suppress(UnknownMemberIdError),
            ):
                admin.remove_members(group, ["stays away"]).unwrap()
            wait_until(lambda: settled(running, topic, 6), "three members")
            assert [member.error for member in running] == [None] * 3
            tp = sorted(running[2].consumer.assignment())[0]
            running[2].consumer.commit({tp: OffsetAndMetadata(0)})
            assert isinstance(tp, TopicPartition)
        finally:
            kafka3.start(node)


@pytest.mark.long
def test_a_fence_by_a_coordinator_that_moved_is_forgiven_by_real_brokers(kafka3: Any) -> None:
    """The member rejoined while the group completed a rebalance, and that join was not stored yet.

    In the normal run the dev broker does the same (test_consumer_group_life).
    """
    topic, group = make_topic(kafka3.bootstrap, 2), unique("g")
    node = wait_until(lambda: kafka3.coordinator_of(group), "the coordinator")
    more = {"group_instance_id": "a", "session_timeout_ms": 60_000, "request_timeout_ms": 5_000}
    configs = options(_address(kafka3, node), group, **more)
    by_hand = {"protocols": {"cooperative-sticky": subscription()}, "session_ms": 60_000}
    with members() as running, rawclient.Member(kafka3.address(node), group, "leads", **by_hand) as leads:
        assert leads.join().leader == leads.member_id
        assert leads.sync({leads.member_id: b""}).error_code == 0
        running.append(Member([topic], **configs))
        rawclient.until_rebalance(leads)
        assert leads.join().error_code == 0
        mine = {member.group_instance_id: member.member_id for member in leads.joined.members}["a"]
        assert leads.sync({mine: b"", leads.member_id: b""}).error_code == 0
        wait_until(lambda: running[0].stable, "a stored member.id")
        stored = leads.generation
        assert leads.join().error_code == 0  # the leader's own: a rebalance
        running.pop().stop()
        running.append(Member([topic], **configs))
        rawclient.until_rebalance(leads)
        assert leads.join().error_code == 0
        wait_until(
            lambda: running[0].consumer.membership().state == "syncing", "a member.id that is not stored"
        )
        kafka3.stop(node)
        try:
            inside = running[0].consumer._core.group.membership  # type: ignore[union-attr]
            kinds = lambda: [finding.kind for finding in inside.diagnostics.findings]  # noqa: E731
            wait_until(lambda: FindingKind.FENCE_FORGIVEN in kinds(), "the fence")
            wait_until(lambda: running[0].stable, "a member again")
            assert running[0].error is None
            # Without a rebalance. (`returned` is not always true: static_return.py says why.)
            assert running[0].generation == stored
        finally:
            kafka3.start(node)


@pytest.mark.long
def test_a_leader_that_returns_to_an_old_broker_watches_the_topics(kafka28: Any) -> None:
    """JoinGroup v7 names the leader by its old member.id; otherwise no member would watch the topics."""
    topic, group = make_topic(kafka28.bootstrap, 2), unique("g")
    more = {"metadata_max_age_ms": 500}
    with members() as running:
        running += [
            Member([topic], **options(kafka28.bootstrap, group, group_instance_id=name, **more))
            for name in "ab"
        ]
        wait_until(lambda: settled(running, topic, 2), "two members")
        at = next(n for n in (0, 1) if running[n].consumer.membership().is_leader)
        generation = running[at].generation
        running[at].stop()
        running[at] = Member([topic], **options(kafka28.bootstrap, group, group_instance_id="ab"[at], **more))
        wait_until(lambda: settled(running, topic, 2), "the return")
        membership = running[at].consumer.membership()
        assert (membership.generation, membership.returned, membership.is_leader) == (generation, True, True)
        admin = KafkaAdminClient(bootstrap_servers=kafka28.bootstrap)
        admin.create_partitions({topic: NewPartitions(total_count=5)})
        admin.close()
        wait_until(lambda: settled(running, topic, 5), "the new partitions")


@pytest.mark.long
def test_a_join_parked_at_a_vanished_broker_is_sent_to_another(kafka3: Any) -> None:
    """A lost machine closes no connection; without a check the Join would wait for five minutes."""
    topic, group = make_topic(kafka3.bootstrap, 2), unique("g")
    node = wait_until(lambda: kafka3.coordinator_of(group), "the coordinator")
    by_hand = {"protocols": {"cooperative-sticky": subscription()}, "session_ms": 10_000}
    more = {"group_instance_id": "a", "request_timeout_ms": 4_000, "max_poll_interval_ms": 300_000}
    pid = kafka3.pids[node]
    with members() as running, rawclient.Member(kafka3.address(node), group, "away", **by_hand) as away:
        assert away.join().error_code == 0
        assert away.sync({away.member_id: b""}).error_code == 0
        running.append(Member([topic], **options(_address(kafka3, node), group, **more)))
        rawclient.until_rebalance(away)
        os.kill(pid, signal.SIGSTOP)
        try:
            inside = running[0].consumer._core.group.membership  # type: ignore[union-attr]
            assert inside.join_is_under_way
            kinds = lambda: [finding.kind for finding in inside.diagnostics.findings]  # noqa: E731
            wait_until(lambda: FindingKind.COORDINATOR_SILENT in kinds(), "the message")
            wait_until(lambda: settled(running, topic, 2), "a member elsewhere")
        finally:
            os.kill(pid, signal.SIGCONT)


def _other(cluster: Any, node: int) -> int:
    return next(other for other in cluster.nodes if other != node)


def _address(cluster: Any, node: int) -> str:
    """Bootstrap addresses without the broker that is down."""
    return ",".join(cluster.address(other) for other in cluster.nodes if other != node)
