"""The admin client against real brokers, with kafka-python's consumer as the group."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import kafka
import pytest

from slackwater.kafka.admin import (
    EARLIEST,
    LATEST,
    AsyncAdmin,
    ConfigResource,
    KafkaAdmin,
    NewTopic,
    ResourceType,
    TopicOperation,
)
from slackwater.kafka.errors import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    IllegalArgumentError,
    InvalidTopicError,
    KafkaTimeoutError,
    NonEmptyGroupError,
    TopicAlreadyExistsError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from slackwater.kafka.producer import KafkaProducer
from slackwater.kafka.structs import TopicPartition
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.kafka.brokers import CONSUMER_PROTOCOL
from tests.support.peers.peer_process import knowing
from tests.support.waiting import wait_until

Broker = KafkaCluster | DevBroker


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def admin(broker: Broker) -> Iterator[KafkaAdmin]:
    with KafkaAdmin(broker.bootstrap) as admin:
        yield admin


@pytest.fixture
def topic(admin: KafkaAdmin) -> str:
    name = fresh("t")
    admin.create_topics([NewTopic(name, 2, 1)]).unwrap()
    admin.wait_for_topic(name, 2)
    return name


@pytest.fixture
def group(broker: Broker, topic: str) -> Iterator[str]:
    """A Stable group of one static member, ``i-0``, that has committed 3 of 5 records of partition 0."""
    name = fresh("g")
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for n in range(5):
            producer.send(topic, b"x", partition=0, timestamp_ms=1_700_000_000_000 + 1_000 * n)
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        group_id=name,
        group_instance_id="i-0",
        client_id="their-client",
        enable_auto_commit=False,
    )
    knowing(consumer, topic)
    tp = kafka.TopicPartition(topic, 0)
    wait_until(lambda: consumer.poll(100) is not None and consumer.assignment() >= {tp}, "the assignment")
    consumer.commit({tp: kafka.OffsetAndMetadata(3, "a note", -1)})
    yield name
    consumer.close()


def test_topics_are_created_described_and_deleted_each_with_its_own_outcome(
    admin: KafkaAdmin, topic: str
) -> None:
    name = fresh("made")
    made = admin.create_topics(
        [NewTopic(name, 3, 1, {"retention.ms": "60000"}), NewTopic(topic), NewTopic("a b")]
    )
    assert list(made.values_ok) == [name]
    assert isinstance(made[topic], TopicAlreadyExistsError)
    assert isinstance(made["a b"], InvalidTopicError)
    with pytest.raises(TopicAlreadyExistsError, match=topic):
        admin.create_topics([NewTopic(topic)]).unwrap()
    admin.wait_for_topic(name, 3)
    assert {name, topic} <= set(admin.list_topics())
    described = admin.describe_topics([name, "not-there"])
    assert sorted(described.values_ok[name].partitions) == [0, 1, 2]
    assert described.values_ok[name].topic_id == made.values_ok[name].topic_id
    assert isinstance(described["not-there"], UnknownTopicOrPartitionError)
    settings = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).unwrap()
    entry = settings[ConfigResource(ResourceType.TOPIC, name)]["retention.ms"]
    assert (entry.value, entry.source) == ("60000", 1)
    deleted = admin.delete_topics([name, "not-there"])
    assert deleted[name] is None
    assert isinstance(deleted["not-there"], UnknownTopicOrPartitionError)
    admin.wait_for_topic_deleted(name)
    with pytest.raises(
        KafkaTimeoutError, match=f"'{name}' is not in the metadata of all brokers after 300 ms"
    ):
        admin.wait_for_topic(name, timeout_ms=300)


def test_what_this_client_may_do_with_a_topic_is_said_if_asked(admin: KafkaAdmin, topic: str) -> None:
    assert admin.describe_topics([topic]).unwrap()[topic].operations is None
    described = admin.describe_topics([topic, "not-there"], operations=True)
    assert described.values_ok[topic].operations == set(TopicOperation), "without an authorizer: all"
    assert isinstance(described["not-there"], UnknownTopicOrPartitionError)


def test_validate_only_creates_no_topic(admin: KafkaAdmin) -> None:
    name = fresh("dry")
    assert admin.create_topics([NewTopic(name, 1, 1)], validate_only=True).errors == {}
    assert name not in admin.list_topics()


def test_the_cluster_is_described(admin: KafkaAdmin, broker: Broker) -> None:
    cluster = admin.describe_cluster()
    assert {f"{b.host}:{b.port}" for b in cluster.brokers} == {broker.bootstrap}
    assert cluster.cluster_id


@CONSUMER_PROTOCOL
def test_features_are_described(admin: KafkaAdmin) -> None:
    assert admin.describe_features()["group.version"] == 1


def test_offsets_are_listed_by_position_and_by_time(admin: KafkaAdmin, group: str, topic: str) -> None:
    full, empty, none = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(topic, 7)
    assert admin.list_offsets({full: LATEST, empty: LATEST}).unwrap()[full].offset == 5
    by_time = admin.list_offsets({full: 1_700_000_001_500, empty: EARLIEST, none: LATEST})
    assert by_time.values_ok[full][:2] == (2, 1_700_000_002_000)
    assert by_time.values_ok[empty].offset == 0
    assert isinstance(by_time[none], UnknownTopicOrPartitionError)
    assert admin.list_offsets({full: 1_700_000_009_000}).unwrap()[full].offset == -1


def test_committed_offsets_come_with_their_metadata(admin: KafkaAdmin, group: str, topic: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.committed_offsets(group)[first][:2] == (3, "a note")
    assert admin.committed_offsets(group, [second]) == {}
    assert set(admin.committed_offsets(group, [first, second])) == {first}
    several = admin.committed_offsets_of_groups([group, "no-such-group"]).unwrap()
    assert several[group][first].offset == 3
    assert several["no-such-group"] == {}


def test_groups_are_listed_and_described(admin: KafkaAdmin, group: str, topic: str) -> None:
    assert group in [group.group_id for group in admin.list_groups()]
    # The coordinator up to 3.9 answers the Sync first, and ListGroups doesn't wait for the group's lock.
    wait_until(lambda: group in [row.group_id for row in admin.list_groups(["Stable"])], "a stable group")
    assert group not in [group.group_id for group in admin.list_groups(["Empty"])]
    described = admin.describe_groups([group, "no-such-group"]).unwrap()
    description = described[group]
    assert (description.state, description.protocol_type) == ("Stable", "consumer")
    (member,) = description.members
    assert (member.instance_id, member.client_id, member.subscription) == ("i-0", "their-client", (topic,))
    assert member.assignment == (TopicPartition(topic, 0), TopicPartition(topic, 1))
    assert (described["no-such-group"].state, described["no-such-group"].members) == ("Dead", ())


def test_members_are_removed_by_instance_id_and_the_group_then_deleted(
    admin: KafkaAdmin, group: str, topic: str
) -> None:
    refused = admin.delete_groups([group, "no-such-group"])
    assert isinstance(refused[group], NonEmptyGroupError)
    assert isinstance(refused["no-such-group"], GroupIdNotFoundError)
    removed = admin.remove_members(group, ["i-0", "i-7"])
    assert removed["i-0"] is None
    assert isinstance(removed["i-7"], UnknownMemberIdError)
    wait_until(lambda: admin.describe_groups([group]).unwrap()[group].state == "Empty", "an empty group")
    assert admin.committed_offsets(group)[TopicPartition(topic, 0)].offset == 3
    assert admin.delete_groups([group]).unwrap() == {group: None}
    assert admin.committed_offsets(group) == {}
    assert admin.remove_members(group, []) == {}
    with pytest.raises(IllegalArgumentError, match="empty"):
        admin.remove_members(group, [""])


def test_a_removal_with_a_member_id_spares_a_process_that_has_joined_since(
    admin: KafkaAdmin, group: str
) -> None:
    fenced = admin.remove_members(group, ["i-0"], member_ids={"i-0": "i-0-of-an-earlier-process"})
    assert isinstance(fenced["i-0"], FencedInstanceIdError)
    (member,) = admin.describe_groups([group]).unwrap()[group].members
    assert member.instance_id == "i-0"
    removed = admin.remove_members(
        group, ["i-0", "i-7"], member_ids={"i-0": member.member_id, "i-7": "i-7-of-an-earlier-process"}
    )
    assert removed["i-0"] is None
    assert isinstance(removed["i-7"], UnknownMemberIdError)
    wait_until(lambda: admin.describe_groups([group]).unwrap()[group].state == "Empty", "an empty group")
    with pytest.raises(IllegalArgumentError, match="'i-9', which is not among instance_ids"):
        admin.remove_members(group, ["i-0"], member_ids={"i-9": "id"})


@pytest.mark.long
async def test_the_async_admin_works_with_three_brokers(kafka3: KafkaCluster) -> None:
    """Requests go to leaders and coordinators, also after a coordinator has stopped."""
    name, group = fresh("spread"), fresh("g")
    async with AsyncAdmin(kafka3.bootstrap) as admin:
        (await admin.create_topics([NewTopic(name, 6, 3)])).unwrap()
        await admin.wait_for_topic(name, 6)
        partitions = (await admin.describe_topics([name])).unwrap()[name].partitions
        assert {p.leader for p in partitions.values()} == {1, 2, 3}
        tps = [TopicPartition(name, n) for n in range(6)]
        offsets = (await admin.list_offsets(dict.fromkeys(tps, LATEST))).unwrap()
        assert {tp: at.offset for tp, at in offsets.items()} == dict.fromkeys(tps, 0)
        consumer = kafka.KafkaConsumer(bootstrap_servers=kafka3.bootstrap, group_id=group)
        consumer.commit({kafka.TopicPartition(name, 0): kafka.OffsetAndMetadata(0, "here", -1)})
        consumer.close()
        assert group in [group.group_id for group in await admin.list_groups()]
        old = (await admin.describe_groups([group])).unwrap()[group].coordinator
        kafka3.stop(old)
        try:
            committed = await admin.committed_offsets(group)
            assert committed[tps[0]].metadata == "here"
            assert (await admin.describe_groups([group])).unwrap()[group].coordinator != old
            assert len((await admin.list_offsets(dict.fromkeys(tps, EARLIEST))).unwrap()) == 6
        finally:
            kafka3.start(old)
