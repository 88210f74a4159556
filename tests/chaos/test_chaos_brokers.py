"""Consumers of ours on three brokers that die, hang and come back, while members come and go.

Length and seed: SLACKWATER_CHAOS_SECONDS=600 SLACKWATER_CHAOS_SEED=7. By itself:
``python -m pytest tests/chaos/test_chaos_brokers.py -m long -s``.
"""

from __future__ import annotations

import itertools
import os
import random
import time
import uuid

import pytest

from tests.support.peers.broker_chaos import Chaos, ProxiedKafka, schedule
from tests.support.peers.group_journal import check
from tests.support.peers.librdkafka import committed_over_time
from tests.support.peers.numbered_producer import NumberedProducer
from tests.support.peers.peer import BROKER_ASSIGNS
from tests.support.waiting import wait_until

PARTITIONS = 12
MEMBERS = 5
CATCH_UP_S = 120.0
CONFIG = {
    "group.initial.rebalance.delay.ms": "150",
    "default.replication.factor": "3",
    "num.partitions": str(PARTITIONS),
    "min.insync.replicas": "2",
    # The replicas of a broker that is back are in sync soon, so that the next one may die.
    "replica.lag.time.max.ms": "5000",
    "broker.session.timeout.ms": "6000",
    # Of the consumer protocol, where members have no session of their own.
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "10000",
}
SECONDS = float(os.environ.get("SLACKWATER_CHAOS_SECONDS", "60"))


@pytest.mark.long
@pytest.mark.parts("kafka")
@pytest.mark.timeout(SECONDS + 420)
def test_no_record_is_lost_and_few_are_read_twice() -> None:
    """0 lost; read again is only what a member had read and not committed; no committed offset goes back."""
    seed = int(os.environ.get("SLACKWATER_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    rng = random.Random(seed)
    strategy = rng.choice(["range", "cooperative-sticky", BROKER_ASSIGNS])
    strategy = os.environ.get("SLACKWATER_CHAOS_STRATEGY", strategy)
    topic = f"chaos-{uuid.uuid4().hex[:8]}"
    print(f"SLACKWATER_CHAOS_SEED={seed} SLACKWATER_CHAOS_STRATEGY={strategy}, {SECONDS:.0f} s")
    with ProxiedKafka(CONFIG) as kafka:
        chaos = Chaos(kafka, topic, topic, strategy, MEMBERS)
        with NumberedProducer(kafka.cluster.bootstrap, topic, PARTITIONS, rate=300) as producer:
            _first_record(producer)
            try:
                chaos.start()
                chaos.run(schedule(rng, SECONDS))
                chaos.calm()
                producer.finish(CATCH_UP_S)
                ends = {number: max(stored) + 1 for number, stored in producer.stored.items()}
                _await_commits(kafka, topic, ends, chaos)
                chaos.close()
            finally:
                chaos.kill_all()
                print("\n".join(chaos.log))
        verdict = check(chaos.events, producer.stored, paused=chaos.paused)
        back = _went_back(kafka, topic)
    print(
        f"{producer.count} records, {len(verdict.read)} read, {verdict.again} of them again,"
        f" {verdict.commits} commits, {verdict.refused} refused; faults: {dict(chaos.done)}"
    )
    problems = [*chaos.problems, *verdict.problems, *back]
    print("\n".join(problems))
    assert problems == []
    assert len(verdict.read) == producer.count
    assert chaos.done.total() >= SECONDS / 8, "the run was to have faults"


def _first_record(producer: NumberedProducer) -> None:
    """The topic is made by its first record."""
    wait_until(lambda: producer.count > 0, lambda: producer.errors[:3])


def _await_commits(kafka: ProxiedKafka, topic: str, ends: dict[int, int], chaos: Chaos) -> None:
    """Until everything is read and committed, by what the members say."""
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        at = dict.fromkeys(ends, 0)
        for event in chaos.events:
            if event.kind == "committed":
                for number, offset in event.fields["offsets"].items():
                    at[int(number)] = max(at[int(number)], offset)
        if at == ends:
            return
        behind = {number: (at[number], end) for number, end in ends.items() if at[number] != end}
        assert time.monotonic() < deadline, f"not caught up: {behind}, held: " + str(
            {slot.current.name: sorted(slot.current.owned) for slot in chaos.slots}
        )
        time.sleep(0.2)


def _went_back(kafka: ProxiedKafka, topic: str) -> list[str]:
    """Commits below the one before, by the broker's own log."""
    history = committed_over_time(kafka.cluster.bootstrap, topic)
    assert len(history) == PARTITIONS
    return [
        f"{topic}-{number}: {before} then {after}"
        for (_, number), commits in history.items()
        for before, after in itertools.pairwise(commits)
        if after.offset < before.offset
    ]
