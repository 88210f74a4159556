"""A client's consumer as a member of a group, in a process of its own that lines drive.

``python -m tests.support.peers.peer_process KIND '{"topic": ..., ...}'``; :mod:`tests.support.peers.peer`
starts it. `tests/support/java/Peer.java` is the same for Java's client.

On stdin: ``committed`` (tell what the group has committed), ``close`` (leave and end; so too at the end of
stdin). On stdout one JSON object a line, each with ``at`` (wall clock, ms) and ``event``: ``started``;
``assigned``, ``revoked``, ``lost`` {partitions}, as the listener is told; ``owned`` {partitions} when the
assignment is another than before; ``read`` {records: {partition: [[offset, number], ...]}} of one poll,
before it is committed; then ``committed`` {offsets: {partition: next}} or ``refused`` {why, offsets};
``group`` {offsets: {partition: [next, metadata]}}; ``closed``; ``failed`` {why}.
"""

from __future__ import annotations

import abc
import asyncio
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tests.support.peers.peer import BROKER_ASSIGNS
from tests.support.waiting import WAIT_S

C = TypeVar("C")


def knowing(consumer: C, *topics: str) -> C:
    """``consumer``, a ``kafka.KafkaConsumer`` of a group, once it knows the partitions of ``topics``.

    To be called before its first ``poll()``. Without it kafka-python (3.0.12) joins before it has asked for
    its topics, gives itself nothing as the leader, and joins again when their metadata is there. When a
    ``poll(timeout_ms)`` ends during that second join, which takes a loaded machine and a short timeout, the
    member is lost: its background task still sends the assignment, and by that
    (``ConsumerCoordinator._perform_assignment``) makes ``need_rejoin()`` false, so that no later ``poll()``
    takes up the answer of the Sync, and the heartbeat stays switched off. It reads nothing from then on, and
    its session runs out. Seen in the request log: Join, Sync, Metadata, Join, Sync, and no Heartbeat or
    OffsetFetch after that. A join for any other reason is taken up again.

    Raises :class:`AssertionError` when a topic has no partitions for a minute.
    """
    asked: Any = consumer
    deadline = time.monotonic() + WAIT_S
    for topic in topics:
        # Asks the cluster, and waits for the answer, as long as it knows none.
        while not asked.partitions_for_topic(topic):
            assert time.monotonic() < deadline, f"kafka-python knows no partitions of {topic}"
            time.sleep(0.05)
    return consumer


POLL_MS = 100
Offsets = dict[int, int]
Records = dict[int, list[list[int]]]


def say(event: str, **fields: Any) -> None:
    """One line on stdout, at once."""
    sys.stdout.write(json.dumps({"at": time.time_ns() // 1_000_000, "event": event, **fields}) + "\n")
    sys.stdout.flush()


class Member(abc.ABC):
    """What all kinds share: one poll after the other, each read, told, and committed."""

    @abc.abstractmethod
    def run(self, orders: queue.Queue[str]) -> None:
        """Until it is ordered to close."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.topic: str = config["topic"]
        self._owned: list[int] = []

    def reporter(self, event: str) -> Any:
        """A rebalance callback that says what it is told; the partitions are its last argument."""
        return lambda *arguments: say(event, partitions=numbers(arguments[-1]))

    def say_owned(self, partitions: Iterable[Any]) -> None:
        """The assignment, if it is another than the last."""
        now = numbers(partitions)
        if now != self._owned:
            self._owned = now
            say("owned", partitions=now)


def numbers(partitions: Iterable[Any]) -> list[int]:
    """Partition numbers, in order."""
    return sorted(tp.partition for tp in partitions)


def following(records: Records) -> Offsets:
    """The offsets to commit after reading these records."""
    return {partition: read[-1][0] + 1 for partition, read in records.items()}


def next_of(orders: queue.Queue[str]) -> str:
    """The next order, empty if there is none."""
    try:
        return orders.get_nowait()
    except queue.Empty:
        return ""


class Blocking(Member):
    """A kind whose calls block; a subclass says what polling, committing and asking is."""

    refusals: tuple[type[BaseException], ...] = ()

    def run(self, orders: queue.Queue[str]) -> None:
        say("started")
        while True:
            order = next_of(orders)
            if order == "close":
                break
            if order == "committed":
                say("group", offsets=self.committed())
            records = self.poll()
            self.say_owned(self.assignment())
            if records:
                say("read", records=records)
                offsets = following(records)
                try:
                    self.commit(offsets)
                    say("committed", offsets=offsets)
                except self.refusals as exc:
                    say("refused", why=type(exc).__name__ + f": {exc}", offsets=offsets)
        self.close()
        say("closed")

    @abc.abstractmethod
    def poll(self) -> Records: ...

    @abc.abstractmethod
    def assignment(self) -> Iterable[Any]: ...

    @abc.abstractmethod
    def commit(self, offsets: Offsets) -> None: ...

    @abc.abstractmethod
    def committed(self) -> dict[int, tuple[int, str]]: ...

    @abc.abstractmethod
    def close(self) -> None: ...


class LikeKafkaPython(Blocking):
    """A kind with kafka-python's interface; a subclass makes the consumer.

    ``_tp``: its TopicPartition. ``_offset``: what it commits, of (offset, metadata, leader epoch).
    """

    consumer: Any
    _tp: Callable[[str, int], Any]
    _offset: Callable[[int, str, int], Any]

    def poll(self) -> Records:
        return by_partition(self.consumer.poll(POLL_MS))

    def assignment(self) -> Iterable[Any]:
        assigned: Iterable[Any] = self.consumer.assignment()
        return assigned

    def commit(self, offsets: Offsets) -> None:
        note = self.config["metadata"]
        self.consumer.commit({self._tp(self.topic, p): self._offset(o, note, -1) for p, o in offsets.items()})

    def committed(self) -> dict[int, tuple[int, str]]:
        committed = {}
        for partition in self.consumer.partitions_for_topic(self.topic) or ():
            offset = self.consumer.committed(self._tp(self.topic, partition), metadata=True)
            if offset is not None:
                committed[partition] = (offset.offset, offset.metadata)
        return committed

    def close(self) -> None:
        self.consumer.close()


class Ours(LikeKafkaPython):
    """Slackwater's."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        from slackwater.kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
        from slackwater.kafka.errors import KafkaError

        super().__init__(config)
        self.refusals = (KafkaError,)
        self._tp, self._offset = TopicPartition, OffsetAndMetadata
        options = common(config)
        if config["strategy"] == BROKER_ASSIGNS:
            del options["session_timeout_ms"], options["heartbeat_interval_ms"]
            options["group_protocol"] = "consumer"
        else:
            options["partition_assignment_strategy"] = [config["strategy"]]
        self.consumer = KafkaConsumer(**options)
        self.consumer.subscribe([self.topic], listener=self)

    def on_partitions_assigned(self, partitions: Any) -> None:
        say("assigned", partitions=numbers(partitions))

    def on_partitions_revoked(self, partitions: Any) -> None:
        say("revoked", partitions=numbers(partitions))

    def on_partitions_lost(self, partitions: Any) -> None:
        say("lost", partitions=numbers(partitions))


class KafkaPython(LikeKafkaPython):
    """kafka-python's."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        import kafka
        from kafka.consumer.subscription_state import ConsumerRebalanceListener
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.errors import KafkaError

        super().__init__(config)
        self.refusals = (KafkaError,)
        self._tp = kafka.TopicPartition
        self._offset = kafka.OffsetAndMetadata
        listener = type(
            "Listener",
            (ConsumerRebalanceListener,),
            {f"on_partitions_{event}": self.reporter(event) for event in ("assigned", "revoked", "lost")},
        )
        assignor = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
        self.consumer = kafka.KafkaConsumer(
            **common(config), partition_assignment_strategy=[assignor[config["strategy"]]]
        )
        self.consumer.subscribe([self.topic], listener=listener())
        knowing(self.consumer, self.topic)


class Confluent(Blocking):
    """librdkafka's, by confluent-kafka."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        import confluent_kafka

        super().__init__(config)
        self._kafka = confluent_kafka
        self.refusals = (confluent_kafka.KafkaException,)
        options: dict[str, Any] = {
            "bootstrap.servers": config["bootstrap"],
            "client.id": config["client_id"],
            "group.id": config["group"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if config["strategy"] == BROKER_ASSIGNS:
            options["group.protocol"] = "consumer"
        else:
            options["partition.assignment.strategy"] = config["strategy"]
            options["session.timeout.ms"] = config["session_ms"]
            options["heartbeat.interval.ms"] = config["heartbeat_ms"]
        if config["instance"] is not None:
            options["group.instance.id"] = config["instance"]
        self.consumer = confluent_kafka.Consumer(options)
        self.consumer.subscribe(
            [self.topic],
            on_assign=self.reporter("assigned"),
            on_revoke=self.reporter("revoked"),
            on_lost=self.reporter("lost"),
        )

    def poll(self) -> Records:
        records: Records = {}
        for message in self.consumer.consume(int(self.config["batch"]), timeout=POLL_MS / 1000):
            if message.error():
                raise self._kafka.KafkaException(message.error())
            place = records.setdefault(int(message.partition() or 0), [])
            place.append([int(message.offset() or 0), int(message.value() or b"")])
        return records

    def assignment(self) -> Iterable[Any]:
        assigned: Iterable[Any] = self.consumer.assignment()
        return assigned

    def _positions(self, offsets: Mapping[int, int], metadata: str) -> list[Any]:
        return [self._kafka.TopicPartition(self.topic, p, o, metadata) for p, o in offsets.items()]

    def commit(self, offsets: Offsets) -> None:
        wanted = self._positions(offsets, self.config["metadata"])
        for done in self.consumer.commit(offsets=wanted, asynchronous=False) or []:
            if done.error:
                raise self._kafka.KafkaException(done.error)

    def committed(self) -> dict[int, tuple[int, str]]:
        partitions = self.consumer.list_topics(self.topic, 60).topics[self.topic].partitions
        wanted = [self._kafka.TopicPartition(self.topic, p) for p in partitions]
        answered = self.consumer.committed(wanted, timeout=WAIT_S)
        return {tp.partition: (tp.offset, tp.metadata or "") for tp in answered if tp.offset >= 0}

    def close(self) -> None:
        self.consumer.close()


class AioKafka(Member):
    """aiokafka's."""

    def run(self, orders: queue.Queue[str]) -> None:
        asyncio.run(self._run(orders))

    async def _run(self, orders: queue.Queue[str]) -> None:
        import aiokafka
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.errors import KafkaError

        listener = type(
            "Listener",
            (aiokafka.ConsumerRebalanceListener,),
            {f"on_partitions_{event}": self.reporter(event) for event in ("assigned", "revoked")},
        )
        assert self.config["strategy"] == "range", "aiokafka has no cooperative assignor"
        options = common(self.config)
        consumer = aiokafka.AIOKafkaConsumer(
            **options, partition_assignment_strategy=(RangePartitionAssignor,)
        )
        consumer.subscribe([self.topic], listener=listener())
        await consumer.start()
        say("started")
        while True:
            order = next_of(orders)
            if order == "close":
                break
            if order == "committed":
                say("group", offsets=await self._committed(consumer, aiokafka.TopicPartition))
            records = by_partition(await consumer.getmany(timeout_ms=POLL_MS))
            self.say_owned(consumer.assignment())
            if records:
                say("read", records=records)
                offsets = following(records)
                note = self.config["metadata"]
                try:
                    await consumer.commit(
                        {aiokafka.TopicPartition(self.topic, p): (o, note) for p, o in offsets.items()}
                    )
                    say("committed", offsets=offsets)
                except KafkaError as exc:
                    say("refused", why=type(exc).__name__ + f": {exc}", offsets=offsets)
        await consumer.stop()
        say("closed")

    async def _committed(self, consumer: Any, tp: Any) -> dict[int, tuple[int, str]]:
        committed = {}
        for partition in consumer.partitions_for_topic(self.topic):
            offset = await consumer.committed(tp(self.topic, partition))
            if offset is not None:
                committed[partition] = (offset, "")  # it does not give the metadata
        return committed


def common(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options by kafka-python's names, which three of the kinds have."""
    return {
        "bootstrap_servers": config["bootstrap"],
        "client_id": config["client_id"],
        "group_id": config["group"],
        "group_instance_id": config["instance"],
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": config["session_ms"],
        "heartbeat_interval_ms": config["heartbeat_ms"],
        "max_poll_records": config["batch"],
    }


def by_partition(polled: Mapping[Any, Iterable[Any]]) -> Records:
    """Offsets and numbers of one poll."""
    return {tp.partition: [[r.offset, int(r.value)] for r in records] for tp, records in polled.items()}


KINDS: dict[str, Callable[[Mapping[str, Any]], Member]] = {
    "slackwater": Ours,
    "kafka-python": KafkaPython,
    "confluent-kafka": Confluent,
    "aiokafka": AioKafka,
}


def main() -> int:
    """Reads orders until the end; the exit code."""
    orders: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(line.strip())
        orders.put("close")

    threading.Thread(target=listen, daemon=True).start()
    try:
        KINDS[sys.argv[1]](json.loads(sys.argv[2])).run(orders)
    except Exception as exc:
        say("failed", why=f"{type(exc).__name__}: {exc}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
