"""Members that say whose they are: what DescribeGroups shows of them, and what other clients make of it."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin
from slackwater.kafka.protocol.assignors import owner_of
from slackwater.kafka.protocol.consumer_protocol import decode_subscription
from tests.client.integration.groups.consumer_harness import (
    Member,
    make_topic,
    members,
    options,
    settled,
    unique,
)
from tests.support.peers.peer import JAVA, Peer, peers, wait_for as wait_for_peers
from tests.support.waiting import wait_until


def owners(admin: KafkaAdmin, group: str) -> dict[str | None, tuple[str, str]]:
    """Of each member, by its instance id: its mark, and its client id."""
    described = admin.describe_groups([group]).unwrap()[group]
    return {
        member.instance_id: (owner_of(decode_subscription(member.metadata).user_data), member.client_id)
        for member in described.members
        if member.metadata
    }


def test_a_returning_static_member_shows_its_own_mark_without_a_rebalance(broker: Any) -> None:
    """The broker keeps the client id of the first process, so the mark is in the subscription."""
    topic, group = make_topic(broker.bootstrap, 2), unique("g")

    def member(owner: str | None, client: str) -> Member:
        given = options(
            broker.bootstrap, group, group_instance_id="a", client_id=client, subscription_owner=owner or ""
        )
        return Member([topic], **given)

    with members() as running, KafkaAdmin(bootstrap_servers=broker.bootstrap) as admin:
        running.append(member(None, "an-older-version"))
        wait_until(lambda: settled(running, topic, 2), "the first process")
        generation = running[0].generation
        assert owners(admin, group) == {"a": ("", "an-older-version")}
        for owner in ("uid-1", "uid-2"):
            running.pop().stop()
            running.append(member(owner, "a-newer-one"))
            wait_until(lambda: settled(running, topic, 2), "the next process")
            assert running[0].generation == generation
            assert owners(admin, group) == {"a": (owner, "an-older-version")}


@pytest.mark.parts("java")
def test_marked_members_share_a_group_with_javas_consumer(kafka: Any) -> None:
    """Java's consumer leads first; ours leads after Java's has left."""
    topic, group = make_topic(kafka.bootstrap, 4), unique("g")
    with peers() as others, members() as running, KafkaAdmin(bootstrap_servers=kafka.bootstrap) as admin:
        java = Peer(
            JAVA, "java", bootstrap=kafka.bootstrap, topic=topic, group=group, strategy="cooperative-sticky"
        )
        others.append(java)
        wait_for_peers("Java's consumer has everything", lambda: len(java.owned) == 4, others)
        given = options(kafka.bootstrap, group, group_instance_id="a", subscription_owner="uid-1")
        running.append(Member([topic], **given))
        wait_for_peers("both have two", lambda: len(java.owned) == 2, others)
        wait_until(lambda: len(running[0].consumer.assignment()) == 2 and running[0].stable, "ours has two")
        assert owners(admin, group)["a"][0] == "uid-1"
        java.close()
        wait_until(lambda: settled(running, topic, 4), "ours has everything")
