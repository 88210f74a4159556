"""Members of the consumer protocol (KIP-848) against a real broker and the dev broker: join, share, return,
refuse, commit."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, SubscriptionPattern, TopicPartition
from slackwater.kafka.admin import ConfigResource, ResourceType
from slackwater.kafka.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    InvalidRegularExpressionError,
    UnreleasedInstanceIdError,
)
from slackwater.kafka.protocol.diagnostics import FindingKind
from tests.client.integration.groups import consumer_harness as harness
from tests.client.integration.groups.consumer_harness import (
    Member,
    add_partitions,
    drain,
    make_topic,
    members,
    produce,
    shared,
    together,
    unique,
    whole,
)
from tests.support.kafka.brokers import CONSUMER_PROTOCOL
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire.rawclient import RawClient, create_topic

pytestmark = CONSUMER_PROTOCOL


def options(bootstrap: str, group: str, **more: Any) -> dict[str, Any]:
    return harness.options(bootstrap, group, group_protocol="consumer", **more)


def test_partitions_move_one_by_one_and_each_record_is_read_once(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 12, 1_200), unique("g")
    with members() as running:
        for count in (1, 2, 3):
            before = {tp: member for member in running for tp in member.consumer.assignment()}
            running.append(Member([topic], **options(broker.bootstrap, group)))
            wait_until(lambda: shared(running, topic, 12), f"{count} members")
            moved = [tp for tp, owner in before.items() if tp not in owner.consumer.assignment()]
            assert len(moved) == (0 if count == 1 else 12 // count)
            produce(broker.bootstrap, topic, 12, 1_200, start=100 * count)
        wait_until(lambda: together(running) == whole(topic, 12, 400), "all records, each once")
        for member in running:
            revoked = [set(tps) for kind, tps in member.events if kind == "revoked"]
            assert all(gone <= held for gone, held in zip(revoked, member.held_at_notice, strict=True))
            assert not member.notices("lost")
        running.pop().stop()
        wait_until(lambda: shared(running, topic, 12), "its partitions are the others'")
        produce(broker.bootstrap, topic, 12, 120, start=400)
        left = together(running)
        wait_until(
            lambda: (
                {tp: v[-10:] for tp, v in together(running).items()}
                == {tp: list(range(400, 410)) for tp in whole(topic, 12, 0)}
            ),
            f"the last records, not {left}",
        )


def test_a_static_member_returns_without_the_others_hearing_of_it(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 4, 40), unique("g")
    with members() as running:

        def start(number: int) -> Member:
            return Member([topic], **options(broker.bootstrap, group, group_instance_id=f"i-{number}"))

        running += [start(0), start(1)]
        wait_until(lambda: shared(running, topic, 4), "two members")
        epoch, held = running[0].generation, running[0].consumer.assignment()
        events = len(running[1].events)
        running[0].stop()
        running[0] = start(0)
        wait_until(lambda: running[0].consumer.assignment() == held, "the return")
        wait_until(lambda: shared(running, topic, 4), "both")
        assert running[0].generation == epoch
        assert len(running[1].events) == events
        produce(broker.bootstrap, topic, 4, 4, start=10)
        ours = {tp: [10] for tp in held}
        wait_until(lambda: together(running[:1]) == ours, lambda: together(running[:1]))


def test_a_second_consumer_with_the_id_is_refused_and_the_first_goes_on(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 2, 20), unique("g")
    same = options(broker.bootstrap, group, group_instance_id="only")
    with members() as running:
        running.append(Member([topic], **same))
        wait_until(lambda: shared(running, topic, 2), "the first")
        with KafkaConsumer(topic, **same) as second, pytest.raises(UnreleasedInstanceIdError, match="only"):
            second.poll(WAIT_S * 1_000)
        produce(broker.bootstrap, topic, 2, 20, start=10)
        wait_until(lambda: together(running) == whole(topic, 2, 20), "records at the first")


def test_the_broker_matches_a_pattern(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 2, 10), unique("g")
    with KafkaConsumer(**options(broker.bootstrap, group, group_remote_assignor="range")) as consumer:
        consumer.subscribe(pattern=SubscriptionPattern(f"{topic[:-1]}[{topic[-1]}]"))
        assert drain(consumer, 10) == whole(topic, 2, 5)
        consumer.commit()
        assert consumer.committed(TopicPartition(topic, 1)) == 5
        consumer.subscribe(pattern=SubscriptionPattern("(?=x)"))
        with pytest.raises(InvalidRegularExpressionError, match="RE2"):
            consumer.poll(WAIT_S * 1_000)
    classic = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group)
    with classic, pytest.raises(IllegalStateError, match="group_protocol"):
        classic.subscribe(pattern=SubscriptionPattern(topic))


@pytest.mark.parts("kafka")
def test_partitions_and_topics_that_come_are_taken(kafka: Any) -> None:
    topic, group, later = make_topic(kafka.bootstrap, 1, 5), unique("g"), unique("later")
    with members() as running, RawClient.to(kafka.bootstrap) as client:
        made = options(kafka.bootstrap, group, allow_auto_create_topics=False)
        running.append(Member([topic, later], **made))
        wait_until(lambda: shared(running, topic, 1), "one partition")
        add_partitions(kafka.bootstrap, topic, 3)
        wait_until(lambda: shared(running, topic, 3), "three partitions")
        create_topic(client, later, 2)
        held = {*whole(topic, 3, 0), *whole(later, 2, 0)}
        wait_until(lambda: running[0].consumer.assignment() == held, "the topic that was made later")
        produce(kafka.bootstrap, later, 2, 4)
        wait_until(lambda: len(running[0].values) == 3, "its records")


@pytest.mark.parts("kafka")
def test_an_administrator_sees_the_group_sets_its_configs_and_removes_a_member(kafka: Any) -> None:
    topic, group = make_topic(kafka.bootstrap, 2, 2), unique("g")
    interval = "consumer.assignment.interval.ms"
    resource = ConfigResource(ResourceType.GROUP, group)
    with members() as running, KafkaAdmin(kafka.bootstrap) as admin:
        running.append(Member([topic], **options(kafka.bootstrap, group, group_instance_id="i")))
        wait_until(lambda: shared(running, topic, 2), "one member")
        assert [row.type for row in admin.list_groups() if row.group_id == group] == ["consumer"]
        described = admin.describe_groups([group]).unwrap()[group]
        [member] = described.members
        assert (described.state, member.instance_id, member.subscription) == ("Stable", "i", (topic,))
        assert set(member.assignment or ()) == set(whole(topic, 2, 0))
        default = admin.describe_configs([resource]).unwrap()[resource][interval].value
        refused = admin.alter_configs({resource: {interval: "-1"}})
        assert isinstance(refused[resource], InvalidConfigurationError)
        assert admin.alter_configs({resource: {interval: "7"}}).unwrap() == {resource: None}
        wait_until(lambda: admin.describe_configs([resource]).unwrap()[resource][interval].value == "7")
        admin.alter_configs({resource: {interval: None}}).unwrap()
        wait_until(lambda: admin.describe_configs([resource]).unwrap()[resource][interval].value == default)
        assert admin.remove_members(group, ["i"])["i"] is None
        wait_until(lambda: len(running[0].notices("lost")) == 2, "it hears that it was removed")
        wait_until(lambda: shared(running, topic, 2), "it has joined again")
        [finding] = running[0].consumer._core.group.membership.diagnostics.findings
        assert finding.kind is FindingKind.REMOVED


@pytest.mark.parts("kafka")
def test_a_group_changes_its_protocol_member_by_member_and_back(kafka: Any) -> None:
    topic, group = make_topic(kafka.bootstrap, 4, 40), unique("g")
    with members() as running:

        def start(number: int, **more: Any) -> Member:
            made = {**options(kafka.bootstrap, group, group_instance_id=f"i-{number}"), **more}
            return Member([topic], **made)

        running += [start(0, group_protocol="classic"), start(1, group_protocol="classic")]
        wait_until(lambda: shared(running, topic, 4), "two members")
        for protocol in ("consumer", "classic"):
            for number in (0, 1):
                held = running[number].consumer.assignment()
                others = len(running[1 - number].events)
                running[number].stop()
                running[number] = start(number, group_protocol=protocol)
                back = running[number]
                # Only a stable member's listener has been called, and the next turn counts its calls.
                wait_until(lambda: back.stable and back.consumer.assignment() == held, f"{protocol} {number}")  # noqa: B023
                if (protocol, number) != ("classic", 1):
                    assert not running[1 - number].events[others:]
        wait_until(lambda: shared(running, topic, 4), "two members again")
