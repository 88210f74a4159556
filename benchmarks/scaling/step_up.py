"""How long partitions stand unread during a step up: real clients on a real broker protocol.

python -m benchmarks.scaling.step_up [--members 4] [--more 2] [--partitions 24] [--batch-ms 100] [--kafka]
    [--protocol consumer]

A dev broker, or a real Kafka, a producer that writes to each partition every 10 ms, and static members of
the classic cooperative protocol, or of the consumer protocol (KIP-848), each in its own task. Two (or more)
members join at once, as the operator lets them in. For each partition the longest time between two batches
that were handled, before the step and during it, is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slackwater.devbroker import DevBroker
from slackwater.kafka.consumer import AsyncConsumer, AsyncConsumerRebalanceListener
from slackwater.kafka.producer import AsyncProducer
from slackwater.kafka.structs import TopicPartition
from tests.support.kafka import KafkaCluster

TOPIC = "flights"
EACH_MS = 10.0
QUIET_S = {"classic": 5.0, "consumer": 12.0}
"""By the consumer protocol each member hears of a change at its own next heartbeat, each 5 s."""


class Member(AsyncConsumerRebalanceListener):
    """A static member that handles and commits batches, and notes when each partition was read."""

    def __init__(
        self,
        number: int,
        bootstrap: str,
        batch_ms: float,
        of_protocol: Mapping[str, Any],
        reads: dict[int, list[float]],
    ) -> None:
        self._batch_ms, self._reads = batch_ms, reads
        self.revoked: dict[int, float] = {}
        self.assigned: dict[int, float] = {}
        self._consumer = AsyncConsumer(
            bootstrap_servers=bootstrap,
            group_id="step",
            group_instance_id=f"w-{number}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=5_000,
            **of_protocol,
        )

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Notes when."""
        self.revoked.update({partition.partition: time.monotonic() for partition in revoked})

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """Notes when."""
        self.assigned.update({partition.partition: time.monotonic() for partition in assigned})

    async def run(self) -> None:
        """Reads until it is cancelled."""
        async with self._consumer as consumer:
            consumer.subscribe([TOPIC], listener=self)
            while True:
                records = await consumer.poll(timeout_ms=50)
                if not records:
                    continue
                await asyncio.sleep(self._batch_ms / 1000)
                await consumer.commit()
                for partition in records:
                    self._reads.setdefault(partition.partition, []).append(time.monotonic())


async def produce(bootstrap: str, partitions: int) -> None:
    """Writes to each partition until it is cancelled."""
    async with AsyncProducer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
        while True:
            for partition in range(partitions):
                await producer.send(TOPIC, b"x" * 100, partition=partition)
            await asyncio.sleep(EACH_MS / 1000)


@contextlib.asynccontextmanager
async def broker_with(settings: dict[str, str], *, kafka: bool) -> AsyncIterator[DevBroker | KafkaCluster]:
    """A dev broker, or a ``kafka`` of one broker."""
    if kafka:
        with KafkaCluster(1, settings) as cluster:
            yield cluster
    else:
        with tempfile.TemporaryDirectory() as folder:
            async with DevBroker(Path(folder), settings=settings) as broker:
                yield broker


async def measure(
    members: int,
    more: int,
    partitions: int,
    batch_ms: float,
    heartbeat_ms: int,
    protocol: str,
    *,
    kafka: bool,
) -> None:
    """Runs the step and prints its figures."""
    quiet_s = QUIET_S[protocol]
    of_protocol: dict[str, Any] = {"group_protocol": protocol}
    if protocol == "classic":
        of_protocol["partition_assignment_strategy"] = ["cooperative-sticky"]
        of_protocol["heartbeat_interval_ms"] = heartbeat_ms
    reads: dict[int, list[float]] = {}
    settings = {"num.partitions": str(partitions), "group.initial.rebalance.delay.ms": "500"}
    async with broker_with(settings, kafka=kafka) as broker, asyncio.TaskGroup() as group:
        producer = group.create_task(produce(broker.bootstrap, partitions))
        old = [Member(number, broker.bootstrap, batch_ms, of_protocol, reads) for number in range(members)]
        tasks = [group.create_task(member.run()) for member in old]
        while len(reads) < partitions:
            await asyncio.sleep(0.1)
        await asyncio.sleep(quiet_s)  # those that joined late have their partitions
        quiet = time.monotonic()
        await asyncio.sleep(quiet_s)
        step = time.monotonic()
        new = [
            Member(members + number, broker.bootstrap, batch_ms, of_protocol, reads) for number in range(more)
        ]
        tasks += [group.create_task(member.run()) for member in new]
        await asyncio.sleep(quiet_s)
        moved = {partition for member in new for partition in member.assigned}
        before = [_longest(reads[partition], quiet, step) for partition in range(partitions)]
        during = {partition: _longest(reads[partition], step, step + quiet_s) for partition in reads}
        lost = {partition: at for member in old for partition, at in member.revoked.items()}
        gained = {partition: at for member in new for partition, at in member.assigned.items()}
        unowned = [(gained[partition] - lost[partition]) * 1000 for partition in moved & lost.keys()]
        for task in (producer, *tasks):
            task.cancel()
    print(f"{members} to {members + more} members, {partitions} partitions,")
    beats = f"heartbeats each {heartbeat_ms} ms" if protocol == "classic" else "the consumer protocol"
    print(f"batches of {batch_ms:.0f} ms, {beats}:")
    _print("longest gap of each partition before the step", before)
    _print(
        f"during it, the {partitions - len(moved)} that stay", [during[n] for n in during if n not in moved]
    )
    _print(f"during it, the {len(moved)} that move", [during[n] for n in moved])
    _print("of that, from revoked to assigned", unowned)


def _longest(times: list[float], since: float, until: float) -> float:
    """The longest time without a batch that was handled, in ms."""
    points = [since, *(at for at in times if since <= at < until), until]
    return max(later - earlier for earlier, later in itertools.pairwise(points)) * 1000


def _print(what: str, figures: list[float]) -> None:
    if figures:
        print(f"  {what}: median {statistics.median(figures):.0f} ms, at most {max(figures):.0f} ms")


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the arguments and measures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling.step_up")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--more", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--batch-ms", type=float, default=100.0)
    parser.add_argument("--heartbeat-ms", type=int, default=3_000)
    parser.add_argument("--protocol", choices=tuple(QUIET_S), default="classic")
    parser.add_argument("--kafka", action="store_true", help="a real Kafka in place of the dev broker")
    given = parser.parse_args(arguments)
    asyncio.run(
        measure(
            given.members,
            given.more,
            given.partitions,
            given.batch_ms,
            given.heartbeat_ms,
            given.protocol,
            kafka=given.kafka,
        )
    )


if __name__ == "__main__":
    main()
