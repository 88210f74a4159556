"""What the consumer's integration tests share: topics with numbered records, and consumers on threads."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kafka.admin import KafkaAdminClient, NewPartitions

from slackwater.kafka import KafkaAdmin, KafkaConsumer, TopicPartition
from slackwater.kafka.records import BatchBuilder
from slackwater.kafka.wire import messages as m
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire import rawdata
from tests.support.wire.rawclient import RawClient, create_topic

LONGER_THAN_A_TEST_MS = 500_000
"""For what must not be waited for: a test that waits for it ends at its limit (`timeout`, pyproject.toml)."""

_BATCH_BYTES = 16 * 1024


def unique(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Returns when the broker tells of them, a moment after it has answered."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_partitions({topic: NewPartitions(total_count=total)})
    finally:
        admin.close()
    with KafkaAdmin(bootstrap) as waiting:
        waiting.wait_for_topic(topic, total)


def make_topic(bootstrap: str, partitions: int, records: int = 0) -> str:
    """A topic with ``records`` records dealt out to its partitions; each value is its number there."""
    topic = unique("t")
    with RawClient.to(bootstrap) as client:
        create_topic(client, topic, partitions)
    if records:
        produce(bootstrap, topic, partitions, records)
    return topic


def produce(bootstrap: str, topic: str, partitions: int, records: int, start: int = 0) -> None:
    """Appends records by requests made by hand: a client of its own costs more than a whole consumer."""
    with RawClient.to(bootstrap) as client:
        request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=topic)])
        metadata = client.request(request, 9)
    addresses = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
    leaders = {p.partition_index: p.leader_id for p in metadata.topics[0].partitions}
    for partition in range(partitions):
        count = len(range(partition, records, partitions))
        with RawClient(*addresses[leaders[partition]]) as leader:
            for data in _batches(b"%d" % (start + number) for number in range(count)):
                append = partial(rawdata.produce, leader, topic, data, partition=partition)
                wait_until(lambda: append().error_code == 0)  # noqa: B023


def _batches(values: Iterator[bytes]) -> Iterator[bytes]:
    builder = BatchBuilder(max_bytes=_BATCH_BYTES)
    now_ms = int(time.time() * 1000)
    for value in values:
        if not builder.append(now_ms, b"k", value, []):
            yield bytes(builder.build())
            builder = BatchBuilder(max_bytes=_BATCH_BYTES)
            builder.append(now_ms, b"k", value, [])
    if builder.count:
        yield bytes(builder.build())


def options(bootstrap: str, group: str | None, **more: Any) -> dict[str, Any]:
    """Keyword arguments of most tests. The session is longer than a busy machine keeps a process waiting."""
    classic = {"session_timeout_ms": 30_000, "heartbeat_interval_ms": 300}
    return {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        **(classic if more.get("group_protocol", "classic") == "classic" else {}),
        **more,
    }


def drain(consumer: KafkaConsumer, count: int) -> dict[TopicPartition, list[int]]:
    """Polls until ``count`` records came: each partition's values in order."""
    values: dict[TopicPartition, list[int]] = {}
    deadline = time.monotonic() + WAIT_S
    while sum(map(len, values.values())) < count:
        assert time.monotonic() < deadline, f"only {sum(map(len, values.values()))} of {count} records"
        for tp, records in consumer.poll(200).items():
            values.setdefault(tp, []).extend(int(record.value) for record in records)
    return values


class Member:
    """A consumer that a thread of its own polls, until told to stop."""

    def __init__(self, topics: list[str], **configs: Any) -> None:
        self.consumer = KafkaConsumer(**configs)
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.held_at_notice: list[set[TopicPartition]] = []
        self.values: dict[TopicPartition, list[int]] = {}
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self.consumer.subscribe(topics, listener=self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.held_at_notice.append(self.consumer.assignment())
        if self.consumer.membership().state != "dead":
            self.consumer.commit()
        self.events.append(("revoked", revoked))

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.events.append(("assigned", assigned))

    def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        self.events.append(("lost", lost))

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for tp, records in self.consumer.poll(100).items():
                    self.values.setdefault(tp, []).extend(int(record.value) for record in records)
        except BaseException as exc:
            self.error = exc

    @property
    def stable(self) -> bool:
        """Whether it is in the group and has been told its partitions."""
        return self.consumer.membership().state == "stable" and not self.consumer._core.notices

    @property
    def generation(self) -> int:
        """Its generation."""
        return self.consumer.membership().generation

    def notices(self, kind: str) -> list[TopicPartition]:
        """The partitions of all calls of one kind."""
        return [tp for name, partitions in self.events for tp in partitions if name == kind]

    def stop(self, **how: Any) -> None:
        """Ends the thread and closes the consumer."""
        self._stop.set()
        self._thread.join(WAIT_S)
        self.consumer.close(**how)


@contextmanager
def members() -> Iterator[list[Member]]:
    """A list whose members are stopped at the end."""
    running: list[Member] = []
    try:
        yield running
    finally:
        for member in running:
            member.stop()


def settled(group: list[Member], topic: str, partitions: int) -> bool:
    """Whether the members share all partitions of a topic, each by one, in one generation."""
    held = [tp for member in group for tp in member.consumer.assignment()]
    whole = sorted(held) == [TopicPartition(topic, number) for number in range(partitions)]
    generations = {member.generation for member in group}
    return whole and len(generations) == 1 and all(member.stable for member in group)


def shared(running: list[Member], topic: str, partitions: int) -> bool:
    """Whether the members have equal shares of a topic. By the consumer protocol a newcomer is settled with
    nothing at first."""
    sizes = {len(member.consumer.assignment()) for member in running}
    return settled(running, topic, partitions) and sizes == {partitions // len(running)}


def together(group: list[Member]) -> dict[TopicPartition, list[int]]:
    """What the members have read of each partition, in order."""
    read: dict[TopicPartition, list[int]] = {}
    for member in group:
        for tp, values in list(member.values.items()):
            read.setdefault(tp, []).extend(values)
    return {tp: sorted(values) for tp, values in read.items()}


def whole(topic: str, partitions: int, records: int) -> dict[TopicPartition, list[int]]:
    """All of a topic whose partitions have ``records`` each, every one once."""
    return {TopicPartition(topic, number): list(range(records)) for number in range(partitions)}
