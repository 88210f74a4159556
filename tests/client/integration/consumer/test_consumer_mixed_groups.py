"""Our consumer in one group with other people's clients, as leader and as follower."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from kafka import KafkaConsumer as PythonConsumer
from kafka.admin import KafkaAdminClient
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from slackwater.kafka import TopicPartition
from tests.client.integration.groups.consumer_harness import (
    Member,
    make_topic,
    members,
    options,
    settled,
    unique,
)
from tests.support.kafka import find_java, kafka_libs
from tests.support.peers.peer_process import knowing
from tests.support.waiting import WAIT_S, wait_until


class Other:
    """Another client's consumer on a thread of its own."""

    def __init__(self, poll: Callable[[], Any], held: Callable[[], Any], close: Callable[[], Any]) -> None:
        self._poll, self._held, self._close = poll, held, close
        self._stop = threading.Event()
        self.assignment: set[TopicPartition] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._poll()
            self.assignment = {TopicPartition(tp.topic, tp.partition) for tp in self._held()}
        self._close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)


def confluent(bootstrap: str, group: str, topic: str, strategy: str) -> Other:
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": strategy,
        }
    )
    consumer.subscribe([topic])
    return Other(lambda: consumer.poll(0.1), consumer.assignment, consumer.close)


def kafka_python(bootstrap: str, group: str, topic: str, strategy: str) -> Other:
    assert strategy == "cooperative-sticky"
    consumer = PythonConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        session_timeout_ms=30_000,
        heartbeat_interval_ms=300,
        partition_assignment_strategy=(CooperativeStickyAssignor,),
    )
    knowing(consumer, topic)
    return Other(lambda: consumer.poll(100), consumer.assignment, consumer.close)


@contextmanager
def others() -> Iterator[list[Other]]:
    running: list[Other] = []
    try:
        yield running
    finally:
        for member in running:
            member.stop()


def shared(ours: list[Member], theirs: list[Other], topic: str, count: int) -> bool:
    parts = [member.consumer.assignment() for member in ours] + [peer.assignment for peer in theirs]
    whole = sorted(tp for part in parts for tp in part)
    return whole == [TopicPartition(topic, n) for n in range(count)] and all(m.stable for m in ours)


@pytest.mark.parametrize("make", [confluent, kafka_python])
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_cooperative_group_is_shared_with_another_client(broker: Any, make: Any, ours_first: bool) -> None:
    topic, group = make_topic(broker.bootstrap, 6), unique("g")
    with members() as ours, others() as theirs:

        def add_ours() -> None:
            ours.append(Member([topic], **options(broker.bootstrap, group, group_instance_id="ours")))

        def add_theirs() -> None:
            theirs.append(make(broker.bootstrap, group, topic, "cooperative-sticky"))

        first, second = (add_ours, add_theirs) if ours_first else (add_theirs, add_ours)
        first()
        wait_until(lambda: shared(ours, theirs, topic, 6), "one member")
        second()
        wait_until(lambda: shared(ours, theirs, topic, 6) and len(theirs[0].assignment) == 3, "an even share")
        assert ours[0].consumer.membership().is_leader is ours_first
        assert not ours[0].notices("lost")
        if ours_first:
            # Cooperative: only what had to go has gone.
            assert len(ours[0].notices("revoked")) == 3
        theirs.pop().stop()
        wait_until(lambda: shared(ours, theirs, topic, 6), "all ours")


def test_an_eager_group_is_shared_with_librdkafka(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 6), unique("g")
    more = {"partition_assignment_strategy": "range", "group_instance_id": "ours"}
    with members() as ours, others() as theirs:
        ours.append(Member([topic], **options(broker.bootstrap, group, **more)))
        wait_until(lambda: shared(ours, theirs, topic, 6), "one member")
        theirs.append(confluent(broker.bootstrap, group, topic, "range"))
        wait_until(lambda: shared(ours, theirs, topic, 6) and len(theirs[0].assignment) == 3, "an even share")


@contextmanager
def java_member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """Java's console consumer as a member, with its own CooperativeStickyAssignor."""
    command = [
        str(find_java()), "-cp", f"{kafka_libs()}/*", "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", bootstrap, "--topic", topic, "--group", group,
        "--command-property", "heartbeat.interval.ms=300", "--command-property",
        "partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(WAIT_S)


@pytest.mark.long
@pytest.mark.parametrize("ours_leads", [True, False])
def test_a_cooperative_group_is_shared_with_java(kafka: Any, ours_leads: bool) -> None:
    topic, group = make_topic(kafka.bootstrap, 6), unique("g")
    same = options(kafka.bootstrap, group)

    def join(name: str) -> Member:
        return Member([topic], group_instance_id=name, **same)

    with members() as ours:
        if ours_leads:
            ours.append(join("first"))
            wait_until(lambda: settled(ours, topic, 6), "one member")
        with java_member(kafka.bootstrap, group, topic):
            if ours_leads:
                wait_until(lambda: ours[0].stable and len(ours[0].consumer.assignment()) == 3, "half of it")
                assert len(ours[0].notices("revoked")) == 3
            else:
                # Java has the group first, and gives up half of it to us.
                admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
                wait_until(lambda: _is_stable(admin, group), "Java's member")
                admin.close()
                ours.append(join("second"))
                wait_until(lambda: ours[0].stable and len(ours[0].consumer.assignment()) == 3, "half of it")
            assert ours[0].consumer.membership().is_leader is ours_leads
        wait_until(lambda: settled(ours, topic, 6), "all ours")
        assert ours[0].notices("lost") == []


def _is_stable(admin: KafkaAdminClient, group: str) -> bool:
    return "Stable" in str(admin.describe_groups([group]))
