"""What befalls a member of a group: removed, too slow, waited for, fenced by mistake, throttled."""

from __future__ import annotations

import struct
import threading
import time
from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import CommitFailedError
from slackwater.kafka.protocol.diagnostics import Finding, FindingKind
from slackwater.kafka.protocol.membership import states as membership_states
from slackwater.kafka.protocol.membership.member import Membership
from slackwater.kafka.protocol.membership.requests import Lane
from slackwater.kafka.wire.errors import ErrorCode
from tests.client.integration.groups.consumer_harness import (
    Member,
    make_topic,
    members,
    options,
    settled,
    unique,
)
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire import rawclient
from tests.support.wire.rawclient import RawClient, subscription

NO_TOPICS = {"cooperative-sticky": subscription()}


def inside(consumer: KafkaConsumer) -> Membership:
    group = consumer._core.group
    assert group is not None
    return group.membership


def findings(consumer: KafkaConsumer, kind: FindingKind) -> list[Finding]:
    return [finding for finding in inside(consumer).diagnostics.findings if finding.kind is kind]


# -- the application is too slow -----------------------------------------------------------------------


def test_max_poll_interval_exceeded_by_a_dynamic_member(broker: Any) -> None:
    """It leaves at once, so the others do not wait for its session, and later joins again by itself."""
    topic, group = make_topic(broker.bootstrap, 4), unique("g")
    more = options(broker.bootstrap, group, session_timeout_ms=60_000)
    with members() as running, KafkaConsumer(**{**more, "max_poll_interval_ms": 6_000}) as slow:
        slow.subscribe([topic])
        wait_until(lambda: slow.poll(50) or len(slow.assignment()) == 4, "the slow one")
        running.append(Member([topic], **more))
        wait_until(lambda: slow.poll(50) or len(slow.assignment()) == 2, "two members")
        wait_until(lambda: slow.poll(50) or len(running[0].consumer.assignment()) == 2, "two members")
        wait_until(lambda: settled(running, topic, 4), "its partitions at the other")
        with pytest.raises(
            CommitFailedError, match=r"poll\(\) was not called within max.poll.interval.ms=6000"
        ):
            slow.commit({TopicPartition(topic, 0): OffsetAndMetadata(0)})
        (finding,) = findings(slow, FindingKind.POLL_TOO_LATE)
        assert "it leaves the group" in finding.text
        wait_until(lambda: slow.poll(50) or len(slow.assignment()) == 2, "back")
        assert len(findings(slow, FindingKind.POLL_RESUMED)) == 1


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
        assert not inside(consumer).diagnostics.findings


# -- removed by somebody -----------------------------------------------------------------------------


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
        (finding,) = findings(running[0].consumer, FindingKind.REMOVED)
        assert "somebody removed it" in finding.text


def test_a_member_that_is_removed_while_its_sync_is_parked_is_not_stuck(broker: Any) -> None:
    """Its Sync is never answered; a heartbeat reports the removal."""
    topic, group = make_topic(broker.bootstrap, 2), unique("g")
    with (
        members() as running,
        rawclient.Member(broker.bootstrap, group, "leads", protocols=NO_TOPICS) as leads,
        KafkaAdmin(bootstrap_servers=broker.bootstrap) as admin,
    ):
        assert leads.join().leader == leads.member_id
        assert leads.sync({leads.member_id: b""}).error_code == 0
        running.append(Member([topic], **options(broker.bootstrap, group, group_instance_id="a")))
        rawclient.until_rebalance(leads)
        assert leads.join().error_code == 0
        wait_until(lambda: running[0].consumer.membership().state == "syncing", "a parked Sync")
        first = running[0].consumer.membership()
        admin.remove_members(group, ["a"]).unwrap()
        wait_until(lambda: findings(running[0].consumer, FindingKind.REMOVED), "the news")
        wait_until(lambda: leads.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "another rebalance")
        wait_until(lambda: id_of(broker.bootstrap, group, "a") not in (None, first.member_id), "the new Join")
        assert leads.join().error_code == 0
        plan = {member.member_id: b"" for member in leads.joined.members}
        assert leads.sync(plan).error_code == 0
        wait_until(lambda: running[0].stable, "a member again")
        assert running[0].error is None


def id_of(bootstrap: str, group: str, name: str) -> str | None:
    with RawClient.to(bootstrap) as client:
        members = rawclient.describe(client, group).members
    return next((member.member_id for member in members if member.group_instance_id == name), None)


# -- a rebalance that does not end -----------------------------------------------------------------------


def test_a_rebalance_that_does_not_end_is_explained_once(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_states, "SLOW_JOIN_MS", 700)
    topic, group = make_topic(broker.bootstrap, 2), unique("g")
    with members() as running, rawclient.Member(broker.bootstrap, group, "away", protocols=NO_TOPICS) as away:
        assert away.join().error_code == 0
        assert away.sync({away.member_id: b""}).error_code == 0
        configs = options(broker.bootstrap, group, group_instance_id="a", heartbeat_interval_ms=200)
        running.append(Member([topic], **configs))
        wait_until(lambda: findings(running[0].consumer, FindingKind.REBALANCE_WAITS), "the message")
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1.5, "two more times that long")
        (finding,) = findings(running[0].consumer, FindingKind.REBALANCE_WAITS)
        assert "away (client raw, " in finding.text
        assert "a (client slackwater, " in finding.text
        assert "remove_members" in finding.text
        with KafkaAdmin(bootstrap_servers=broker.bootstrap) as admin:
            admin.remove_members(group, ["away"]).unwrap()  # as the message advises
        wait_until(lambda: settled(running, topic, 2), "an end")


# -- fenced by mistake -------------------------------------------------------------------------------------


def test_a_fence_by_a_coordinator_that_moved_is_forgiven(devbroker: Any) -> None:
    """A static rejoin during a rebalance is stored only with the leader's Sync.

    With real brokers: test_consumer_coordinator.
    """
    topic, group = make_topic(devbroker.bootstrap, 2), unique("g")
    with (
        members() as running,
        rawclient.Member(devbroker.bootstrap, group, "leads", protocols=NO_TOPICS) as leads,
    ):
        assert leads.join().leader == leads.member_id
        assert leads.sync({leads.member_id: b""}).error_code == 0
        running.append(Member([topic], **options(devbroker.bootstrap, group, group_instance_id="a")))
        rawclient.until_rebalance(leads)
        assert leads.join().error_code == 0
        mine = {member.group_instance_id: member.member_id for member in leads.joined.members}["a"]
        assert leads.sync({mine: b"", leads.member_id: b""}).error_code == 0
        wait_until(lambda: running[0].stable, "a stored member.id")
        leads.send_join()  # the leader's own: a rebalance
        wait_until(lambda: running[0].consumer.membership().generation == leads.generation + 1, "both in")
        assert leads.receive_join().error_code == 0
        running.pop().stop()
        running.append(Member([topic], **options(devbroker.bootstrap, group, group_instance_id="a")))
        rawclient.until_rebalance(leads)
        assert leads.join().error_code == 0
        wait_until(
            lambda: running[0].consumer.membership().state == "syncing", "a member.id that is not stored"
        )
        devbroker.control(
            "POST", "/faults", {"api": "Heartbeat", "group": group, "move_coordinator": 300, "times": 1}
        )
        wait_until(lambda: findings(running[0].consumer, FindingKind.FENCE_FORGIVEN), "the fence")
        wait_until(lambda: running[0].generation >= 0 and running[0].stable, "a member again")
        assert running[0].error is None


# -- quotas (KIP-219) ----------------------------------------------------------------------------------------


def set_request_quota(bootstrap: str, client_id: str, percentage: float | None) -> None:
    """AlterClientQuotas v0 (KIP-546), which the client itself has no use for."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    entity = struct.pack(">i", 1) + text("client-id") + text(client_id)
    operation = struct.pack(">i", 1) + text("request_percentage")
    operation += struct.pack(">d?", percentage or 0.0, percentage is None)
    body = struct.pack(">i", 1) + entity + operation + b"\0"
    message = struct.pack(">hhi", 49, 0, 7) + text("raw") + body
    with RawClient.to(bootstrap) as client:
        client.send_bytes(struct.pack(">i", len(message)) + message)
        answer = client.receive_frame()
    correlation_id, _, count, error = struct.unpack_from(">iiih", answer)
    assert (correlation_id, count, error) == (7, 1, 0), answer


def test_a_quota_is_kept_by_heartbeats_and_commits(kafka: Any) -> None:
    """Only a real broker has quotas. A connection sends nothing before its throttle time is over."""
    topic, group, client_id = make_topic(kafka.bootstrap, 1), unique("g"), unique("slow")
    tp = TopicPartition(topic, 0)
    with KafkaConsumer(topic, **options(kafka.bootstrap, group, client_id=client_id)) as consumer:
        wait_until(lambda: consumer.poll(50) or consumer.assignment(), "joined")
        member, driver = inside(consumer), consumer._core.group
        assert driver is not None
        early: list[int] = []
        beats: list[int] = []
        transmit = driver._transmit

        def transmitted(request: Any) -> None:
            if request.lane is Lane.COORDINATOR:
                beats.append(driver.now_ms())
                left = member.timers.quiet_until.get(Lane.COORDINATOR, 0) - beats[-1]
                early.extend([left] if left > 0 else [])
            transmit(request)

        driver._transmit = transmitted  # type: ignore[method-assign]
        set_request_quota(kafka.bootstrap, client_id, 0.01)
        try:
            stop = threading.Event()
            thread = threading.Thread(target=_poll_until, args=(consumer, stop))
            thread.start()
            wait_until(lambda: member.timers.quiet_until.get(Lane.COORDINATOR, 0), "a throttle time")
            throttled, began = len(beats), time.monotonic()
            for _ in range(3):
                consumer.commit({tp: OffsetAndMetadata(0)})
            assert time.monotonic() - began >= 1, "two of them wait for the throttle time of the one before"
            wait_until(lambda: len(beats) >= throttled + 4, "heartbeats")
        finally:
            stop.set()
            thread.join(WAIT_S)
            set_request_quota(kafka.bootstrap, client_id, None)
        assert early == []
        # Without a quota they come every 300 ms.
        assert beats[throttled + 3] - beats[throttled] >= 1_500
        assert len(findings(consumer, FindingKind.THROTTLED)) >= 1
        assert "request_percentage" in findings(consumer, FindingKind.THROTTLED)[0].text
        assert consumer.membership().state == "stable"


def _poll_until(consumer: KafkaConsumer, stop: threading.Event) -> None:
    while not stop.is_set():
        consumer.poll(50)
