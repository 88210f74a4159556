"""Many groups of one cluster, observed at once: what is seen, and what it costs.

On the dev broker; in the long tests on three real brokers, too."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from slackwater.kafka import AsyncAdmin, KafkaConsumer, KafkaProducer, Security, TopicPartition
from slackwater.kafka.net import Cluster
from slackwater.kafka.net.dialer import ResolvedAddress, resolve
from slackwater.kafka.wire import messages as m
from slackwater_operator.kafka.clusters import ClusterIdentity, ClusterObserver, Clusters, GroupWanted
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import WAIT_S
from tests.support.workers.fakes import VirtualClock

GROUPS = 200
TOPICS = 20
PARTITIONS = 3
PRODUCED = 10
GUEST = "guest"
PATIENCE_MS = 60_000
"""For a machine that does much else beside the tests."""
CONFIG = {
    "offsets.topic.num.partitions": "12",
    "group.initial.rebalance.delay.ms": "150",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
    "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.client.plain.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{GUEST}="{GUEST}";'
    ),
}
"""Coordinators on all three brokers; and a user that can be forbidden something."""


THREE = [pytest.mark.long, pytest.mark.parts("kafka")]


@pytest.fixture(scope="module", params=["devbroker", pytest.param("three", marks=THREE)])
def brokers(request: pytest.FixtureRequest) -> Iterator[KafkaCluster | DevBroker]:
    if request.param == "devbroker":
        with DevBroker({"group.initial.rebalance.delay.ms": "150"}) as broker:
            yield broker
        return
    with KafkaCluster(3, CONFIG, listeners={"CLIENT": "SASL_PLAINTEXT"}) as cluster:
        yield cluster


three_brokers = pytest.mark.parametrize(
    "brokers", [pytest.param("three", marks=THREE)], indirect=True, scope="module"
)
"""For tests of access rules, and of a part of a cluster that is away."""


def topic_of(run: str, group: int) -> str:
    return f"{run}-{group % TOPICS}"


def committed(group: int, partition: int) -> int:
    """What the group has committed: not the same in any two that are next to each other."""
    return (group + partition) % (PRODUCED + 1)


@pytest.fixture(scope="module")
def run(brokers: KafkaCluster | DevBroker) -> str:
    """The prefix of 20 topics with 10 records in each partition, and of 200 groups that have committed."""
    name = f"many-{uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    topics = [
        NewTopic(f"{name}-{n}", PARTITIONS, replication_factor=len(brokers.nodes)) for n in range(TOPICS)
    ]
    for future in admin.create_topics(topics).values():
        future.result(WAIT_S)
    with KafkaProducer(bootstrap_servers=brokers.bootstrap) as producer:
        for n in range(TOPICS):
            for partition in range(PARTITIONS):
                for _ in range(PRODUCED):
                    producer.send(f"{name}-{n}", value=b"x", partition=partition)
        producer.flush()
    asyncio.run(commit_all(brokers.bootstrap, name))
    return name


async def commit_all(bootstrap: str, run: str) -> None:
    """Commits for all groups as a client outside of them does (generation -1)."""
    cluster = Cluster(bootstrap.split(","))
    await cluster.start()
    try:
        groups = {f"{run}-g{n}": n for n in range(GROUPS)}
        async with asyncio.timeout(WAIT_S):
            coordinators = await cluster.coordinators(list(groups))
            while not all(isinstance(node, int) for node in coordinators.values()):
                await asyncio.sleep(0.2)  # the offsets' topic is being made
                coordinators = await cluster.coordinators(list(groups))
        for group, node in coordinators.items():
            request = m.OffsetCommitRequest(
                group_id=group,
                topics=[
                    m.OffsetCommitRequestTopic(
                        name=topic_of(run, groups[group]),
                        partitions=[
                            m.OffsetCommitRequestPartition(
                                partition_index=p, committed_offset=committed(groups[group], p)
                            )
                            for p in range(PARTITIONS)
                        ],
                    )
                ],
            )
            assert isinstance(node, int)
            async with asyncio.timeout(WAIT_S):
                while not await is_stored(cluster, node, request):
                    await asyncio.sleep(0.1)  # that coordinator is loading
    finally:
        await cluster.close()


async def is_stored(cluster: Cluster, node: int, request: m.OffsetCommitRequest) -> bool:
    answer = await cluster.send(node, request, version_cap=9)
    return all(p.error_code == 0 for t in answer.topics for p in t.partitions)


def wanted(run: str) -> list[GroupWanted[int]]:
    return [GroupWanted(n, f"{run}-g{n}", (topic_of(run, n),)) for n in range(GROUPS)]


@pytest.fixture
async def observer(brokers: KafkaCluster | DevBroker) -> AsyncIterator[ClusterObserver]:
    made = await ClusterObserver.connect(brokers.bootstrap, timeout_ms=PATIENCE_MS)
    made._timeout_s = PATIENCE_MS / 1000  # of a round
    yield made
    await made.close()


async def test_a_round_of_200_groups_is_one_request_a_broker_and_kind(
    brokers: KafkaCluster | DevBroker, observer: ClusterObserver, run: str
) -> None:
    count = len(brokers.nodes)
    first = await observer.observe(wanted(run))
    before = Counter(observer.requests)
    second = await observer.observe(wanted(run))
    spent = Counter(observer.requests) - before
    assert spent == {"DescribeGroups": count, "OffsetFetch": count, "ListOffsets": count}
    assert {snapshot.coordinator for snapshot in second.values()} == set(brokers.nodes)
    for n in range(GROUPS):
        expected = {
            TopicPartition(topic_of(run, n), p): PRODUCED - committed(n, p) for p in range(PARTITIONS)
        }
        assert first[n].lag == expected
        assert second[n].lag == expected
        assert second[n].problems == ()
        assert second[n].brokers == set(brokers.nodes)
        assert second[n].group is not None
        assert second[n].group.state == "Empty"
    # the first one also looks for the coordinators, in one request, and for the topics
    assert before["FindCoordinator"] == 1
    assert before["DescribeGroups"] == count


async def test_one_group_alone_costs_one_request_of_each_kind(observer: ClusterObserver, run: str) -> None:
    await observer.observe(wanted(run))
    before = Counter(observer.requests)
    snapshots = await observer.observe(wanted(run)[7:8])
    spent = Counter(observer.requests) - before
    assert set(snapshots) == {7}
    assert (spent["DescribeGroups"], spent["OffsetFetch"]) == (1, 1)
    assert 1 <= spent["ListOffsets"] <= 3
    assert set(spent) == {"DescribeGroups", "OffsetFetch", "ListOffsets"}


@three_brokers
async def test_bad_groups_do_not_affect_the_others(brokers: KafkaCluster, run: str) -> None:
    login = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=GUEST, password=GUEST)
    observer = await ClusterObserver.connect(
        brokers.listener("CLIENT"), security=login, timeout_ms=PATIENCE_MS
    )
    observer._timeout_s = PATIENCE_MS / 1000
    secret, closed = f"{run}-g3", f"{run}-closed"
    acls = deny(ResourceType.GROUP, secret), deny(ResourceType.TOPIC, closed)
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(closed, 1)])[closed].result(WAIT_S)
    stranger = await asyncio.to_thread(join, brokers, f"{run}-epochs", topic_of(run, 0), closed)
    for made in admin.create_acls([AclBinding(*acl) for acl in acls]).values():
        made.result(WAIT_S)
    try:
        asked = [
            *wanted(run),
            GroupWanted(-1, f"{run}-g1", ("nowhere",)),
            GroupWanted(-2, f"{run}-g2", ("not a topic!",)),
            GroupWanted(-3, f"{run}-never-there", (topic_of(run, 0),)),
            GroupWanted(-4, f"{run}-g4", (closed,)),
            GroupWanted(-5, f"{run}-epochs", (topic_of(run, 0),)),
        ]
        deadline = time.monotonic() + WAIT_S
        snapshots = await observer.observe(asked)
        # The brokers take the rules up one by one; partitions that were seen before stay known.
        while not (
            is_refused(snapshots[3], "GROUP")
            and is_refused(snapshots[-4], "TOPIC")
            and snapshots[-5].group is None
        ):
            assert time.monotonic() < deadline, (snapshots[3].problems, snapshots[-4].problems)
            await asyncio.sleep(0.2)
            snapshots = await observer.observe(asked)
    finally:
        for gone in admin.delete_acls([AclBindingFilter(*acl) for acl in acls]).values():
            gone.result(WAIT_S)
        await observer.close()
        await asyncio.to_thread(stranger.close)
    # A topic that one member consumes hides all members of a group with epochs, though not its lag.
    (refused,) = snapshots[-5].problems
    assert refused.startswith(f"group {run}-epochs: ")
    assert "TOPIC_AUTHORIZATION_FAILED" in refused
    assert "Describe on every Topic that the group's members consume" in refused
    assert set(snapshots[-5].lag.values()) == {PRODUCED}
    assert snapshots[-1].problems == ("topic nowhere does not exist; create it",)
    assert any("INVALID_TOPIC" in problem for problem in snapshots[-2].problems)
    never = snapshots[-3]
    assert never.group is not None
    assert never.group.state == "Dead"
    assert set(never.lag.values()) == {PRODUCED}
    for n in range(GROUPS):
        if n != 3:
            assert snapshots[n].problems == ()
            assert None not in snapshots[n].lag.values()


def join(brokers: KafkaCluster | DevBroker, group: str, *topics: str, **options: str) -> KafkaConsumer:
    """A member that has its partitions; of the consumer protocol without other options."""
    options = options or {"group_protocol": "consumer"}
    consumer = KafkaConsumer(*topics, bootstrap_servers=brokers.bootstrap, group_id=group, **options)
    deadline = time.monotonic() + WAIT_S
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(timeout_ms=50)
    return consumer


def is_refused(snapshot: KafkaSnapshot, kind: str) -> bool:
    """Whether the snapshot says that nothing is known of its lag for want of a right, and names that."""
    named = any(f"{kind}_AUTHORIZATION_FAILED" in problem for problem in snapshot.problems)
    return named and set(snapshot.lag.values()) <= {None} and (kind == "TOPIC" or snapshot.group is None)


def deny(kind: ResourceType, name: str) -> tuple[Any, ...]:
    """What makes a rule, and what finds it again."""
    literal = ResourcePatternType.LITERAL
    return kind, name, literal, f"User:{GUEST}", "*", AclOperation.ALL, AclPermissionType.DENY


async def test_a_pattern_finds_existing_and_later_topics(
    brokers: KafkaCluster | DevBroker, observer: ClusterObserver, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater_operator.kafka.cluster_observer.TOPICS_MAX_AGE_MS", 100.0)
    prefix = f"{run}-pattern"
    wanted_group = GroupWanted("p", f"{run}-pattern-group", topic_pattern=f"{prefix}-.*")
    snapshot = (await observer.observe([wanted_group]))["p"]
    assert snapshot.problems == (f"no topic matches '{prefix}-.*'; create one, or correct topicPattern",)
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    for name in ("a", "b"):
        admin.create_topics([NewTopic(f"{prefix}-{name}", 2)])[f"{prefix}-{name}"].result(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while f"{prefix}-{name}" not in {tp.topic for tp in snapshot.partitions}:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
            snapshot = (await observer.observe([wanted_group]))["p"]
    assert len(snapshot.partitions) == 4
    everything = (await observer.observe([GroupWanted("all", "g", topic_pattern=".*")]))["all"]
    assert not [tp for tp in everything.partitions if tp.topic.startswith("__")]


async def test_a_group_is_observed_through_removal_and_deletion(
    brokers: KafkaCluster | DevBroker, observer: ClusterObserver, run: str
) -> None:
    topic, group = topic_of(run, 0), f"{run}-members"

    wanted_group = GroupWanted("g", group, (topic,))
    consumer = await asyncio.to_thread(join, brokers, group, topic, group_instance_id="w-0")
    try:
        snapshot = (await observer.observe([wanted_group]))["g"]
        assert snapshot.group is not None
        assert snapshot.group.stable
        member = snapshot.group.member("w-0")
        assert member is not None
        assert member.partitions == {TopicPartition(topic, p) for p in range(PARTITIONS)}
        assert "NON_EMPTY_GROUP" in await observer.delete_group(group)
    finally:
        await asyncio.to_thread(consumer.close)
    assert await observer.remove_members(group, {"w-0": member.member_id, "never-there": ""}) == {}
    snapshot = (await observer.observe([wanted_group]))["g"]
    assert snapshot.group is not None
    assert snapshot.group.members == ()
    assert await observer.delete_group(group) == ""
    assert await observer.delete_group(group) == ""
    async with AsyncAdmin(brokers.bootstrap.split(",")) as admin:
        assert group not in {listed.group_id for listed in await admin.list_groups()}


@three_brokers
async def test_a_broker_that_hangs_hides_only_what_it_has(
    brokers: KafkaCluster, observer: ClusterObserver, run: str
) -> None:
    calm = await observer.observe(wanted(run))
    observer._timeout_s, hung = 8.0, 2
    os.kill(brokers.pids[hung], signal.SIGSTOP)
    try:
        began = time.monotonic()
        snapshots = await observer.observe(wanted(run))
        took = time.monotonic() - began
    finally:
        os.kill(brokers.pids[hung], signal.SIGCONT)
    assert took < 20, "far less than a request's timeout"
    hidden = {n for n in range(GROUPS) if snapshots[n].group is None}
    assert hidden == {n for n in range(GROUPS) if calm[n].coordinator == hung}
    assert 0 < len(hidden) < GROUPS
    for n in range(GROUPS):
        if n not in hidden:
            known = [lag for lag in snapshots[n].lag.values() if lag is not None]
            assert known
            assert [
                lag for tp, lag in snapshots[n].lag.items() if lag is not None and lag != calm[n].lag[tp]
            ] == []
    deadline = time.monotonic() + WAIT_S
    while any(snapshot.problems for snapshot in (await observer.observe(wanted(run))).values()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.3)


async def test_a_cluster_that_is_away_delays_no_other(brokers: KafkaCluster | DevBroker, run: str) -> None:
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(3600), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    good, away = ClusterIdentity(brokers.bootstrap), ClusterIdentity(f"127.0.0.1:{port}")
    clusters = Clusters(round_timeout_ms=8_000, first_backoff_ms=120_000, longest_backoff_ms=120_000)
    try:
        snapshots, nothing = await asyncio.gather(
            clusters.observe(good, wanted(run)), clusters.observe(away, wanted(run)[:2])
        )
        assert snapshots.problem == ""
        assert snapshots.took_s < nothing.took_s
        assert all(snapshot is not None for snapshot in snapshots.snapshots.values())
        assert nothing.snapshots == {0: None, 1: None}
        assert f"Kafka at 127.0.0.1:{port}" in nothing.problem
        assert 5 < nothing.took_s < 20
        again = await clusters.observe(away, wanted(run)[:1])
        assert again.took_s < 4  # it is left alone for a while
        assert again.problem == nothing.problem
        assert await clusters.remove_members(away, "g", {"a": ""}) == {"a": nothing.problem}
        assert set(clusters.requests()) == {good}
        await clusters.retain([away])
        assert clusters.requests() == {}
    finally:
        silent.close()
        await clusters.close()


async def test_a_broker_that_went_away_is_found_again() -> None:
    with DevBroker() as broker:
        here = ClusterIdentity(broker.bootstrap)
        wanted = [GroupWanted("g", "g", ("nowhere",))]
        clusters = Clusters(round_timeout_ms=20_000, first_backoff_ms=100, longest_backoff_ms=400)
        try:
            assert (await clusters.observe(here, wanted)).problem == ""
            broker.kill()
            away = await clusters.observe(here, wanted)
            assert away.snapshots == {"g": None}
            assert broker.bootstrap in away.problem
            await asyncio.to_thread(broker.start)
            deadline = time.monotonic() + WAIT_S
            while (await clusters.observe(here, wanted)).problem:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        finally:
            await clusters.close()


async def test_a_missing_topic_is_known_beside_a_pattern_and_costs_no_request_each_round() -> None:
    """A pattern needs the metadata of all topics, which names only existing topics."""
    listed = GroupWanted("listed", "g", ("nowhere",))
    with DevBroker() as broker:
        observer = await ClusterObserver.connect(broker.bootstrap, timeout_ms=PATIENCE_MS)
        observer._clock = VirtualClock()
        observer._timeout_s = PATIENCE_MS / 1000
        try:
            wanted = [listed, GroupWanted("pattern", "h", topic_pattern="some.*")]
            snapshots = await observer.observe(wanted)
            assert snapshots["listed"].missing == ("nowhere",)
            assert "topic nowhere does not exist; create it" in snapshots["listed"].problems
            asked = observer.requests["Metadata"]
            assert (await observer.observe(wanted))["listed"].missing == ("nowhere",)
            assert observer.requests["Metadata"] == asked
        finally:
            await observer.close()


async def test_a_short_name_leads_to_the_broker_of_the_namespace_of_the_workers() -> None:
    """`kafka-0.kafka:9092` in two namespaces means two clusters."""
    asked: list[str] = []

    async def names(host: str, port: int) -> list[ResolvedAddress]:
        asked.append(host)
        if host not in ("kafka-0.kafka.orders.svc", "127.0.0.1"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await resolve("127.0.0.1", port)

    clusters = Clusters(look_up=names)
    with DevBroker() as broker:
        servers = f"kafka-0.kafka:{broker.bootstrap.rpartition(':')[2]}"
        wanted = [GroupWanted("g", "g", ("nowhere",))]
        try:
            here = await clusters.observe(ClusterIdentity(servers, namespace="orders"), wanted)
            assert here.problem == ""
            elsewhere = await clusters.observe(ClusterIdentity(servers, namespace="returns"), wanted)
            assert "kafka-0.kafka" in elsewhere.problem
            assert "cannot be resolved" in elsewhere.problem
        finally:
            await clusters.close()
    assert {"kafka-0.kafka.orders.svc", "kafka-0.kafka.returns.svc", "kafka-0.kafka"} <= set(asked)


async def test_an_answer_beyond_the_limit_is_a_problem_that_names_the_setting() -> None:
    clusters = Clusters(receive_message_max_bytes=16)
    with DevBroker() as broker:
        try:
            snapshots = await clusters.observe(
                ClusterIdentity(broker.bootstrap), [GroupWanted("g", "g", ("nowhere",))]
            )
        finally:
            await clusters.close()
    assert "receive_message_max_bytes" in snapshots.problem
    assert snapshots.snapshots == {"g": None}


async def test_unavailable_options_are_a_problem_of_that_cluster() -> None:
    async def no_secret(_: ClusterIdentity) -> dict[str, object]:
        raise LookupError("Secret kafka/login is not there")

    clusters = Clusters(no_secret)
    snapshots = await clusters.observe(ClusterIdentity("127.0.0.1:1"), [GroupWanted("g", "g", ("t",))])
    assert snapshots.snapshots == {"g": None}
    assert snapshots.problem == "Kafka at 127.0.0.1:1: Secret kafka/login is not there"
    assert "Secret kafka/login" in await clusters.delete_group(ClusterIdentity("127.0.0.1:1"), "g")
    await clusters.close()
