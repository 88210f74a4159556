"""Our consumer and other people's in one group: every record is consumed, no partition twice."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import aiokafka
import aiokafka.coordinator.assignors.range as aio_range
import confluent_kafka
import kafka as kafka_python
import pytest
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor

from slackwater.kafka import KafkaConsumer
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.peers.peer_process import knowing
from tests.support.waiting import WAIT_S
from tests.support.wire.rawclient import RawClient, create_topic, describe
from tests.support.wire.rawdata import batch, list_offset, produce

PARTITIONS = 8
RECORDS = 800
SESSION_MS = 30_000
HEARTBEAT_MS = 300

Position = tuple[int, int]


class Participant(abc.ABC):
    """One consumer on a thread of its own; it keeps what it reads and what it owns."""

    kind: ClassVar[str]

    def __init__(self, bootstrap: str, topic: str, strategy: str, instance: str | None) -> None:
        self.bootstrap, self.topic, self.strategy, self.instance = bootstrap, topic, strategy, instance
        self.read: list[Position] = []
        self.owned: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=self.kind, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        """Waits for the end of a member that was started and asked to stop."""
        if self._thread.ident is not None:
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive(), f"{self.kind} does not end"

    def stop(self) -> None:
        """Commits, leaves the group (a dynamic member does) and ends."""
        self.ask_to_stop()
        self.join()
        if self.failure is not None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as exc:
            self.failure = exc
        finally:
            self.owned = frozenset()

    @abc.abstractmethod
    def run(self) -> None: ...


class Ours(Participant):
    kind = "slackwater"

    def run(self) -> None:
        consumer = KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.topic,
            group_instance_id=self.instance,
            partition_assignment_strategy=[self.strategy],
            auto_offset_reset="earliest",
            enable_auto_commit=True,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            metadata_max_age_ms=5_000,
        )
        try:
            while not self._stop.is_set():
                for records in consumer.poll(timeout_ms=100).values():
                    self.read.extend([(r.partition, r.offset) for r in records])
                self.owned = frozenset(tp.partition for tp in consumer.assignment())
        finally:
            consumer.close()


class KafkaPython(Participant):
    kind = "kafka-python"

    def run(self) -> None:
        assignor = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
        consumer = kafka_python.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.topic,
            group_instance_id=self.instance,
            partition_assignment_strategy=[assignor[self.strategy]],
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        try:
            knowing(consumer, self.topic)
            while not self._stop.is_set():
                for records in consumer.poll(timeout_ms=100).values():
                    self.read.extend([(r.partition, r.offset) for r in records])
                self.owned = frozenset(tp.partition for tp in consumer.assignment())
        finally:
            consumer.close()


class Confluent(Participant):
    kind = "confluent-kafka"

    def run(self) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.topic,
            "partition.assignment.strategy": self.strategy,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
        if self.instance is not None:
            config["group.instance.id"] = self.instance
        consumer = confluent_kafka.Consumer(config)
        consumer.subscribe([self.topic])
        try:
            while not self._stop.is_set():
                for record in consumer.consume(500, timeout=0.1):
                    if record.error():
                        raise confluent_kafka.KafkaException(record.error())
                    partition, offset = record.partition(), record.offset()
                    assert partition is not None
                    assert offset is not None
                    self.read.extend([(partition, offset)])
                self.owned = frozenset(tp.partition for tp in consumer.assignment())
        finally:
            consumer.close()


class AioKafka(Participant):
    kind = "aiokafka"

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.topic,
            group_instance_id=self.instance,
            partition_assignment_strategy=(aio_range.RangePartitionAssignor,),
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        await consumer.start()
        try:
            while not self._stop.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self.read.extend([(r.partition, r.offset) for r in records])
                self.owned = frozenset(tp.partition for tp in consumer.assignment())
        finally:
            await consumer.stop()


BY_STRATEGY: dict[str, tuple[type[Participant], ...]] = {
    "range": (Ours, KafkaPython, Confluent, AioKafka),
    # aiokafka has no cooperative assignor.
    "cooperative-sticky": (Ours, KafkaPython, Confluent),
}


def wait_for(what: str, condition: Callable[[], bool], group: Sequence[Participant]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        for member in group:
            if member.failure is not None:
                raise member.failure
        shown = {member.kind: (sorted(member.owned), len(member.read)) for member in group}
        assert time.monotonic() < deadline, f"{what} did not happen: {shown}"
        time.sleep(0.05)


def is_settled(client: RawClient, group: Sequence[Participant]) -> bool:
    """Stable by the broker, all members in, and every partition owned by exactly one of them."""
    owned = sorted(partition for member in group for partition in member.owned)
    if owned != list(range(PARTITIONS)) or not all(member.owned for member in group):
        return False
    shown = describe(client, group[0].topic)
    return shown.group_state == "Stable" and len(shown.members) == len(group)


def append(client: RawClient, topic: str) -> set[Position]:
    """Produces :data:`RECORDS` records and returns where they are."""
    added: set[Position] = set()
    for partition in range(PARTITIONS):
        count = RECORDS // PARTITIONS
        answer = produce(client, topic, batch([b"x"] * count), partition=partition)
        assert answer.error_code == 0
        added |= {(partition, answer.base_offset + i) for i in range(count)}
        assert list_offset(client, topic, -1, partition=partition).offset == answer.base_offset + count
    return added


@contextlib.contextmanager
def ending(group: Sequence[Participant]) -> Iterator[None]:
    """Ends the members that run, whatever happens."""
    try:
        yield
    finally:
        for member in group:
            member.ask_to_stop()
        for member in group:
            member.join()


@pytest.mark.parametrize(
    ("strategy", "lead"),
    [
        ("range", "ours-leads"),
        pytest.param("range", "ours-follows", marks=pytest.mark.long),
        pytest.param("cooperative-sticky", "ours-leads", marks=pytest.mark.long),
        ("cooperative-sticky", "ours-follows"),
    ],
)
def test_members_of_different_clients_share_a_group(
    broker: KafkaCluster | DevBroker, strategy: str, lead: str
) -> None:
    """Members come one after another (the first is the leader and computes the plans), then one leaves.

    Whenever the group has settled, new records are read once each, by the owner of their partition.
    Our member and kafka-python's are static.
    """
    kinds = BY_STRATEGY[strategy] if lead == "ours-leads" else BY_STRATEGY[strategy][::-1]
    topic = f"mixed-{uuid.uuid4().hex[:8]}"
    group = [
        kind(broker.bootstrap, topic, strategy, f"{kind.kind}-0" if kind in (Ours, KafkaPython) else None)
        for kind in kinds
    ]
    with RawClient.to(broker.bootstrap) as client, ending(group):
        create_topic(client, topic, PARTITIONS)
        for count in range(1, len(group) + 1):
            group[count - 1].start()
            here = group[:count]
            wait_for(f"settling with {count}", lambda here=here: is_settled(client, here), here)  # type: ignore[misc]
        check_phase(client, topic, group)
        leaver = next(member for member in reversed(group) if member.instance is None)
        leaver.stop()
        left = [member for member in group if member is not leaver]
        wait_for("the others taking over", lambda: is_settled(client, left), left)
        check_phase(client, topic, left)


def check_phase(client: RawClient, topic: str, group: Sequence[Participant]) -> None:
    """Appends records and waits until the group has read them, each once and by the owner of its partition.

    A leader that is not ours may move a partition once more after the group looked settled; then records are
    appended anew, until nobody's partitions changed on the way.
    """
    for _ in range(5):
        owners = owners_of(group)
        for member in group:
            member.read.clear()
        added = append(client, topic)
        wait_for("reading all records", lambda added=added: added <= set(read_by(group)), group)  # type: ignore[misc]
        if owners_of(group) == owners:
            assert Counter(read_by(group)) == Counter(added)
            for member in group:
                assert {partition for partition, _ in member.read} == owners[member.kind]
            return
        wait_for("settling again", lambda: is_settled(client, group), group)
    raise AssertionError(f"the group's partitions kept moving: {owners_of(group)}")


def owners_of(group: Sequence[Participant]) -> dict[str, frozenset[int]]:
    return {member.kind: member.owned for member in group}


def read_by(group: Sequence[Participant]) -> list[Position]:
    return [position for member in group for position in list(member.read)]
