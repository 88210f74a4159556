"""What befalls a member of a group: removed, too slow, waited for, fenced by mistake, throttled."""

from __future__ import annotations

import time
from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import CommitFailedError
from slackwater.kafka.protocol.diagnostics import Finding, FindingKind
from slackwater.kafka.protocol.membership.member import Membership
from tests.client.integration.groups.consumer_harness import (
    Member,
    make_topic,
    members,
    options,
    settled,
    unique,
)
from tests.support.waiting import wait_until


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
