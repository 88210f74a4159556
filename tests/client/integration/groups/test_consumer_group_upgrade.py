"""A live group moved from eager (range) to cooperative-sticky by two rolling bounces (KIP-429)."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from kafka import KafkaProducer

from slackwater.kafka import TopicPartition
from tests.client.integration.groups.consumer_harness import (
    Member,
    make_topic,
    members,
    options,
    settled,
    unique,
)
from tests.support.waiting import WAIT_S, wait_until

PARTITIONS = 6


class Ledger:
    """Who holds what, as the listeners were told; a second owner is written down as it comes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner: dict[TopicPartition, str] = {}
        self.twice: list[tuple[TopicPartition, str, str]] = []
        self.moves = 0

    def take(self, name: str, partitions: list[TopicPartition]) -> None:
        with self.lock:
            for tp in partitions:
                other = self.owner.get(tp, name)
                if other != name:
                    self.twice.append((tp, other, name))
                self.owner[tp] = name
                self.moves += 1

    def give(self, name: str, partitions: list[TopicPartition]) -> None:
        with self.lock:
            for tp in partitions:
                if self.owner.get(tp) == name:
                    del self.owner[tp]

    def gone(self, name: str) -> None:
        with self.lock:
            self.owner = {tp: owner for tp, owner in self.owner.items() if owner != name}


class Watched(Member):
    """A member whose every gain and loss is in the ledger, and which commits before it stops."""

    def __init__(self, ledger: Ledger, name: str, topics: list[str], **configs: Any) -> None:
        self.ledger, self.name = ledger, name
        super().__init__(topics, **configs)

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.ledger.take(self.name, assigned)
        super().on_partitions_assigned(assigned)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        super().on_partitions_revoked(revoked)
        self.ledger.give(self.name, revoked)

    def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        super().on_partitions_lost(lost)
        self.ledger.give(self.name, lost)

    def stop(self, **how: Any) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        if self.consumer.assignment():
            self.consumer.commit()
        self.ledger.gone(self.name)
        super().stop(**how)


class Stream:
    """Records without end, numbered within each partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic, self.sent = topic, 0
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(0.02):
            for number in range(PARTITIONS):
                self._producer.send(self.topic, b"%d" % self.sent, partition=number)
            self.sent += 1

    def close(self) -> None:
        self._end.set()
        self._thread.join(WAIT_S)
        self._producer.flush(timeout=WAIT_S)
        self._producer.close()


def strategies(group: list[Watched]) -> list[str]:
    return [member.consumer.membership().protocol for member in group]


@pytest.mark.parametrize(
    "static",
    [pytest.param(True, id="static"), pytest.param(False, id="dynamic", marks=pytest.mark.long)],
)
def test_two_rolling_bounces_make_a_group_cooperative(broker: Any, static: bool) -> None:
    topic, group, ledger = make_topic(broker.bootstrap, PARTITIONS), unique("g"), Ledger()
    stopped: list[Watched] = []

    def start(number: int, strategy: Any) -> Watched:
        identity = {"group_instance_id": f"i-{number}"} if static else {}
        configs = options(
            broker.bootstrap,
            group,
            partition_assignment_strategy=strategy,
            metadata_max_age_ms=1_000,
            **identity,
        )
        return Watched(ledger, f"{number}-{strategy}", [topic], **configs)

    stream = Stream(broker.bootstrap, topic)
    with members() as running:
        group_now: list[Watched] = []
        try:
            for number in range(3):
                group_now.append(start(number, "range"))
                running.append(group_now[-1])
            wait_until(lambda: settled(running, topic, PARTITIONS), "three members")
            for strategy in (["cooperative-sticky", "range"], ["cooperative-sticky"]):
                for number in range(3):
                    stopped.append(group_now[number])
                    group_now[number].stop()
                    group_now[number] = running[number] = start(number, strategy)
                    wait_until(lambda: settled(running, topic, PARTITIONS), f"{number} with {strategy}")
                assert strategies(group_now) == ["cooperative-sticky"] * 3
            assert all(member.consumer._core.group.membership.cooperative for member in group_now)  # type: ignore[union-attr]
        finally:
            stream.close()
        whole = {TopicPartition(topic, number): stream.sent for number in range(PARTITIONS)}
        counted = lambda: count(stopped + group_now)  # noqa: E731
        wait_until(lambda: {tp: len(values) for tp, values in counted().items()} == whole, "every record")
        assert [member.error for member in stopped + group_now] == [None] * 9
        assert ledger.twice == []
        assert len(set(ledger.owner.values())) == 3
        assert {tp: Counter(values.values()) for tp, values in counted().items()} == {
            tp: Counter({1: stream.sent}) for tp in whole
        }, "each record once: everybody has committed before it gave a partition up"


def count(group: list[Watched]) -> dict[TopicPartition, Counter[int]]:
    counts: dict[TopicPartition, Counter[int]] = {}
    for member in group:
        for tp, values in list(member.values.items()):
            counts.setdefault(tp, Counter()).update(list(values))
    return counts


def test_an_eager_member_shares_a_group_with_cooperative_ones(broker: Any) -> None:
    """Between the bounces a group is mixed, and each partition still has one owner at a time."""
    topic, group, ledger = make_topic(broker.bootstrap, PARTITIONS), unique("g"), Ledger()

    def start(number: int, strategy: Any) -> Watched:
        configs = options(broker.bootstrap, group, partition_assignment_strategy=strategy)
        return Watched(ledger, f"{number}-{strategy}", [topic], **configs)

    with members() as running:
        running.append(start(0, ["cooperative-sticky"]))
        wait_until(lambda: settled(running, topic, PARTITIONS), "one")
        running.append(start(1, ["cooperative-sticky", "range"]))
        wait_until(lambda: settled(running, topic, PARTITIONS), "an eager one beside it")
        running.append(start(2, ["cooperative-sticky"]))
        wait_until(lambda: settled(running, topic, PARTITIONS), "three")
        running.pop(0).stop()
        wait_until(lambda: settled(running, topic, PARTITIONS), "two")
        assert ledger.twice == []
        assert [member.error for member in running] == [None] * 2
