"""A warm standby takes a static member's place, against a real broker and the dev broker (KIP-345)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from slackwater.kafka import (
    KafkaAdmin,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from slackwater.kafka.admin import NewTopic
from slackwater.kafka.errors import FencedInstanceIdError
from slackwater.kafka.net import Purpose
from slackwater.kafka.wire import messages as m
from tests.client.integration.groups.consumer_harness import (
    Member,
    drain,
    make_topic,
    members,
    options,
    produce,
    shared,
    unique,
)
from tests.support.kafka.brokers import CONSUMER_PROTOCOL
from tests.support.waiting import WAIT_S, wait_until

PARTITIONS = 6
Offsets = dict[TopicPartition, OffsetAndMetadata]


class Holder(Member):
    """A member that can be told to hand over: it pauses all, commits, and goes on polling."""

    def __init__(self, topics: list[str], **configs: Any) -> None:
        self._asked, self._handed = threading.Event(), threading.Event()
        self.offsets: Offsets = {}
        super().__init__(topics, **configs)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if polled := values(self.consumer.poll(20)):
                    self.consumer.commit()
                    self.took(polled)
                if self._asked.is_set() and not self._handed.is_set():
                    self._drain()
        except BaseException as exc:
            self.error = exc
            self._handed.set()

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.events.append(("revoked", revoked))

    def took(self, polled: dict[TopicPartition, list[int]]) -> None:
        for tp, more in polled.items():
            self.values.setdefault(tp, []).extend(more)

    def total(self) -> int:
        return sum(map(len, self.values.values()))

    def _drain(self) -> None:
        held = self.consumer.assignment()
        self.consumer.pause(*held)
        self.consumer.commit()
        self.offsets = {
            tp: offset for tp, offset in self.consumer.committed_many(held).items() if offset is not None
        }
        self._handed.set()

    def hand_over(self) -> Offsets:
        """Where it has stopped, once that is committed."""
        self._asked.set()
        assert self._handed.wait(WAIT_S)
        assert self.error is None
        return self.offsets


class Flow:
    """Numbered records for every partition, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, every_s: float = 0.01) -> None:
        self._topic, self._every_s = topic, every_s
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=0)
        self.sent = 0
        """How many each partition got."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            for partition in range(PARTITIONS):
                self._producer.send(self._topic, b"%d" % self.sent, partition=partition)
            self.sent += 1

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self._producer.flush()

    def __exit__(self, *error: Any) -> None:
        self.stop()
        self._producer.close()


@contextmanager
def group_of_three(bootstrap: str, topic: str, **more: Any) -> Iterator[tuple[dict[str, Any], list[Holder]]]:
    """The options without an instance, and three static members that share all partitions."""
    session = {} if more.get("group_protocol") == "consumer" else {"session_timeout_ms": 30_000}
    same = options(bootstrap, unique("g"), **session, **more)
    with members() as running:
        holders = [Holder([topic], **same, group_instance_id=f"i-{n}") for n in range(3)]
        running += holders
        wait_until(lambda: shared(running, topic, PARTITIONS), "three members")
        yield same, holders


class RecordingListener:
    """A listener that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.calls.append(("assigned", assigned))

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.calls.append(("revoked", revoked))


def follow(standby: KafkaConsumer, old: Member) -> dict[TopicPartition, int]:
    """Prefetches from where the member has committed."""
    offsets = standby.committed_many(old.consumer.assignment())
    wanted = {tp: offset.offset for tp, offset in offsets.items() if offset is not None}
    standby.prefetch(wanted)
    return wanted


def is_prefetched(standby: KafkaConsumer, partitions: Any) -> bool:
    buffer = standby._core.buffer
    return all(buffer.held_bytes(tp) for tp in partitions)


def is_caught_up(standby: KafkaConsumer) -> bool:
    """Whether it has fetched all that there was."""
    subscription, fetcher = standby._core.subscription, standby._core.fetcher
    ahead = list(subscription.prefetched.values())
    return bool(ahead) and all(
        partition.highwater is not None and fetcher._ahead.of(partition).offset >= partition.highwater
        for partition in ahead
    )


def values(polled: Mapping[TopicPartition, Any]) -> dict[TopicPartition, list[int]]:
    return {tp: [int(record.value) for record in records] for tp, records in polled.items()}


def requests(consumer: Any) -> Counter[str]:
    """How many of each kind it has sent."""
    return Counter(consumer._core.cluster.settings.requests)


def quiet(holders: list[Holder]) -> list[int]:
    """How often each listener was called."""
    return [len(holder.events) for holder in holders]


class Successor(Holder):
    """Stands by; once it has taken over, a thread of its own polls it."""

    def __init__(self, same: dict[str, Any], topic: str, member: str = "i-1") -> None:
        self._asked, self._handed = threading.Event(), threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.heard = RecordingListener()
        self.events, self.values, self.offsets, self.error = [], {}, {}, None
        self.began_at = self.first_at = 0.0
        self._group, self._member, self._bootstrap = same["group_id"], member, same["bootstrap_servers"]
        self.consumer = KafkaConsumer(**same, group_instance_id=member)
        self.consumer.stand_by([topic], listener=self.heard)
        assert self.consumer.membership().state == "out"

    def replace(self) -> None:
        """Names the process that is the member."""
        with KafkaAdmin(self._bootstrap) as admin:
            group = admin.describe_groups([self._group]).unwrap()[self._group]
        [member_id] = [member.member_id for member in group.members if member.instance_id == self._member]
        self.consumer.replace_member(member_id, group.epoch)

    def take_over(self, offsets: Offsets, generation: int | None = None) -> None:
        """Returns with the first records."""
        self.began_at = time.monotonic()
        self.consumer.take_over(offsets, generation)
        while not (polled := values(self.consumer.poll(200))):
            assert time.monotonic() < self.began_at + WAIT_S
        self.first_at = time.monotonic()
        self.took(polled)

    def take(self, count: int) -> dict[TopicPartition, list[int]]:
        """All values, once there are so many."""
        self.took(drain(self.consumer, count - self.total()))
        return self.values

    def start(self) -> None:
        self._thread.start()

    def stop(self, **how: Any) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(WAIT_S)
        self.consumer.close(**how)


def one_after_the_other(old: Holder, new: Successor, generation: int) -> float:
    """A whole takeover under a flow; the time from the call to the first records, in s."""
    wait_until(lambda: follow(new.consumer, old) and is_caught_up(new.consumer), "the log's end")
    new.replace()
    new.take_over(old.hand_over(), generation)
    wait_until(lambda: isinstance(old.error, FencedInstanceIdError), "the fence")
    held = new.consumer.membership()
    assert (held.generation, held.returned) == (generation, True)
    return new.first_at - new.began_at


# -- the takeover ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "count"), [("classic", 5), pytest.param("consumer", 3, marks=CONSUMER_PROTOCOL)]
)
def test_takeovers_in_a_row_under_a_steady_flow(
    broker: Any, record_property: Any, protocol: str, count: int
) -> None:
    """No other member is notified, no record is lost, and none is delivered twice."""
    topic = make_topic(broker.bootstrap, PARTITIONS)
    took: list[float] = []
    group = group_of_three(broker.bootstrap, topic, group_protocol=protocol)
    with group as (same, holders), Flow(broker.bootstrap, topic) as flow:
        wait_until(lambda: all(len(holder.values) == 2 for holder in holders), "records at all members")
        generation, events = holders[0].generation, quiet(holders)
        old: Holder = holders[1]
        mine, before = old.consumer.assignment(), dict(old.values)
        successors: list[Successor] = []
        try:
            for _ in range(count):
                new = Successor(same, topic)
                successors.append(new)
                took.append(one_after_the_other(old, new, generation))
                assert new.consumer.assignment() == mine
                assert new.heard.calls == [("assigned", sorted(mine))]
                old = new
                new.start()
            flow.stop()
            wait_until(lambda: all(old.values.get(tp, [-1])[-1] == flow.sent - 1 for tp in mine), "the rest")
        finally:
            for successor in successors:
                successor.stop()
        assert quiet(holders) == events
        assert {holders[n].generation for n in (0, 2)} == {generation}
        for tp in mine:
            handed = before[tp] + [
                value for successor in successors for value in successor.values.get(tp, [])
            ]
            assert handed == list(range(flow.sent)), tp
    shown = [f"{1_000 * seconds:.1f}" for seconds in took]
    record_property("takeover_ms", shown)
    print(f"take_over() to the first records: {', '.join(shown)} ms")


@pytest.mark.parametrize("leads", [False, True], ids=["a follower", "the leader"])
def test_the_first_records_come_from_memory(broker: Any, leads: bool) -> None:
    """Between the Join's answer and the first records the member requests only its assignment. A leader also
    requests the metadata that it checks the group's assignment with (KIP-814), and does not wait for it."""
    topic = make_topic(broker.bootstrap, PARTITIONS, 60)
    with group_of_three(broker.bootstrap, topic) as (same, holders):
        wait_until(lambda: sum(holder.total() for holder in holders) == 60, "all records")
        number, old = next(
            (number, holder)
            for number, holder in enumerate(holders)
            if holder.consumer.membership().is_leader is leads
        )
        offsets = old.hand_over()
        produce(broker.bootstrap, topic, PARTITIONS, 60, start=10)
        new = Successor({**same, "fetch_max_wait_ms": 20_000}, topic, f"i-{number}")
        try:
            new.consumer.prefetch({tp: max(0, offset.offset - 3) for tp, offset in offsets.items()})
            wait_until(lambda: is_caught_up(new.consumer), "the log's end")
            assert is_prefetched(new.consumer, offsets)
            joined: Counter[str] = Counter()
            member = new.consumer._core.group.membership  # type: ignore[union-attr]
            answered = member.on_response

            def note(send: Any, response: Any, now_ms: int) -> None:
                if isinstance(response, m.JoinGroupResponse):
                    joined.update(requests(new.consumer))
                answered(send, response, now_ms)

            member.on_response = note  # type: ignore[method-assign]
            before = requests(new.consumer)
            new.take_over(offsets)
            after = requests(new.consumer)
            assert joined["JoinGroup"] == before["JoinGroup"] + 1 == 1
            asked = after - joined
            del asked["Heartbeat"]  # as many as the time takes
            metadata = after["Metadata"] - before["Metadata"]
            del asked["Metadata"]
            assert asked == Counter(SyncGroup=1)
            assert metadata <= leads  # a leader's may be sent after the first records are here
            for request in ("OffsetFetch", "ListOffsets", "OffsetForLeaderEpoch"):
                assert after[request] == before[request], request
            assert new.take(20) == {tp: list(range(10, 20)) for tp in offsets}
        finally:
            new.stop()


# -- what happens meanwhile ------------------------------------------------------------------------------


def follow_all(standby: KafkaConsumer, old: Member) -> bool:
    standby.prefetch(dict.fromkeys(old.consumer.assignment(), 0))
    return is_prefetched(standby, old.consumer.assignment()) and is_caught_up(standby)


@pytest.mark.long
@pytest.mark.parametrize("patient", [True, False], ids=["followed", "at once"])
def test_a_takeover_finds_a_coordinator_that_has_moved(kafka3: Any, patient: bool) -> None:
    """The stopped broker coordinates the group and leads partitions."""
    topic = unique("t")
    with KafkaAdmin(bootstrap_servers=kafka3.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 3)])
        admin.wait_for_topic(topic, PARTITIONS)
    produce(kafka3.bootstrap, topic, PARTITIONS, 60)
    more = {"request_timeout_ms": 5_000}
    with group_of_three(kafka3.bootstrap, topic, **more) as (same, holders):
        wait_until(lambda: sum(holder.total() for holder in holders) == 60, "all records")
        events, generation = quiet(holders), holders[0].generation
        new = Successor(same, topic)
        core = new.consumer._core
        assert core.group is not None
        known, group = core.cluster._coordinators._known, core.group.group_id
        node = known[group]
        wait_until(lambda: follow_all(new.consumer, holders[1]), "what is prefetched")
        kafka3.stop(node)
        try:
            if patient:
                wait_until(
                    lambda: (
                        (now := known.get(group)) not in (None, node)
                        and core.cluster.open_connection(now, Purpose.GROUP) is not None
                    ),
                    "the new coordinator",
                )
            offsets = holders[1].hand_over()
            produce(_address(kafka3, node), topic, PARTITIONS, 6, start=10)
            new.take_over(offsets, generation)
            print(f"after the coordinator has gone: {1_000 * (new.first_at - new.began_at):.1f} ms")
            assert new.take(2) == {tp: [10] for tp in offsets}
            held = new.consumer.membership()
            assert (held.generation, held.returned) == (generation, True)
            assert quiet(holders) == events
            wait_until(lambda: isinstance(holders[1].error, FencedInstanceIdError), "the fence")
        finally:
            new.stop()
            kafka3.start(node)


def _address(cluster: Any, stopped: int) -> str:
    return ",".join(cluster.address(node) for node in cluster.nodes if node != stopped)
