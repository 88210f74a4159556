"""How long a large group of the consumer protocol takes to settle after a step up, beside Java's consumers.

python -m benchmarks.scaling.large_step [--members 100] [--more 20] [--partitions 1000] [--clients ours,java]
    [--heartbeat-ms 5000]

A real Kafka, and static members that read empty topics, all of a kind in one process: ours in one event loop,
Java's on a thread each. Ours are told of the step, as the operator tells its workers; Java's consumer cannot
be told. The group's own heartbeat interval and the brokers' least are the same for both. A step is settled
with the last partition that changes hands: all are owned then, and no member has two more than another.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from slackwater.kafka.admin import ConfigResource, KafkaAdmin, NewTopic, ResourceType
from slackwater.kafka.consumer import AsyncConsumer, AsyncConsumerRebalanceListener
from slackwater.kafka.structs import TopicPartition
from tests.support.java.programs import java_command
from tests.support.kafka import KafkaCluster

TOPIC = "flights"
QUIET_S = 12.0
"""A step is over when nothing has changed hands for so long: two heartbeats."""
LONGEST_S = 180.0
HEAP_MB = 2_000


@dataclass
class Ownership:
    """Who has which partition, by what the members are told. Wall clock, ms."""

    partitions: int
    owners: dict[int, int] = field(default_factory=dict)
    revoked_ms: dict[int, float] = field(default_factory=dict)
    unowned_ms: list[float] = field(default_factory=list)
    last_ms: float = 0.0

    def assigned(self, member: int, partitions: Sequence[int], at_ms: float) -> None:
        """A member has got partitions."""
        for partition in partitions:
            self.owners[partition] = member
            if partition in self.revoked_ms:
                self.unowned_ms.append(at_ms - self.revoked_ms.pop(partition))
            self.last_ms = max(self.last_ms, at_ms)

    def revoked(self, member: int, partitions: Sequence[int], at_ms: float) -> None:
        """A member has given partitions up."""
        for partition in partitions:
            if self.owners.get(partition) == member:
                del self.owners[partition]
            self.revoked_ms[partition] = at_ms

    def settled(self, members: int) -> bool:
        """Whether ``members`` members share all partitions evenly."""
        shares = Counter(self.owners.values())
        even = (
            len(shares) == min(members, self.partitions) and max(shares.values()) - min(shares.values()) <= 1
        )
        return len(self.owners) == self.partitions and even


class Members(ABC):
    """Members of one kind. ``ownership`` follows what they are told."""

    def __init__(self, bootstrap: str, group: str, ownership: Ownership) -> None:
        self.bootstrap, self.group, self.ownership = bootstrap, group, ownership

    @abstractmethod
    def start(self, more: int) -> None:
        """Starts more members; those that are there learn of it, if they can be told."""

    @abstractmethod
    async def close(self) -> None:
        """Ends all."""


class Ours(Members):
    """AsyncConsumers in this event loop."""

    def __init__(self, bootstrap: str, group: str, ownership: Ownership) -> None:
        super().__init__(bootstrap, group, ownership)
        self._consumers: list[AsyncConsumer] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, more: int) -> None:
        for consumer in self._consumers:
            consumer.expect_rebalance()
        for _ in range(more):
            number = len(self._consumers)
            self._consumers.append(
                AsyncConsumer(
                    bootstrap_servers=self.bootstrap,
                    group_id=self.group,
                    group_protocol="consumer",
                    group_instance_id=f"w-{number}",
                    enable_auto_commit=False,
                )
            )
            self._tasks.append(asyncio.create_task(self._run(number)))

    async def _run(self, number: int) -> None:
        async with self._consumers[number] as consumer:
            consumer.subscribe([TOPIC], listener=_Listener(number, self.ownership))
            while True:
                await consumer.poll(timeout_ms=1_000)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Listener(AsyncConsumerRebalanceListener):
    def __init__(self, number: int, ownership: Ownership) -> None:
        self._number, self._ownership = number, ownership

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._ownership.revoked(self._number, [tp.partition for tp in revoked], time.time() * 1000)

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._ownership.assigned(self._number, [tp.partition for tp in assigned], time.time() * 1000)


class Java(Members):
    """Java's consumers, by tests/support/java/ManyMembers.java."""

    def __init__(self, bootstrap: str, group: str, ownership: Ownership) -> None:
        super().__init__(bootstrap, group, ownership)
        command = java_command(
            "ManyMembers", TOPIC, f"bootstrap.servers={bootstrap}", f"group.id={group}",
            "group.protocol=consumer", "enable.auto.commit=false",
            heap_mb=HEAP_MB, options=("-Dorg.apache.logging.log4j.level=ERROR",),
        )  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        reader = asyncio.to_thread(self._read, asyncio.get_running_loop())
        self._reader = asyncio.create_task(reader)

    def start(self, more: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{more}\n")
        self._process.stdin.flush()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at_ms, event, member, *partitions = line.split()
            note = self.ownership.assigned if event == "assigned" else self.ownership.revoked
            numbers = [int(partition) for partition in partitions]
            loop.call_soon_threadsafe(note, int(member), numbers, float(at_ms))

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._reader
        self._process.wait()


CLIENTS: dict[str, type[Members]] = {"ours": Ours, "java": Java}


async def until_settled(ownership: Ownership, members: int) -> None:
    """Returns when the group has been settled for a while. Raises TimeoutError."""
    async with asyncio.timeout(LONGEST_S):
        while not ownership.settled(members) or time.time() * 1000 - ownership.last_ms < QUIET_S * 1000:
            await asyncio.sleep(0.1)


async def measure(clients: str, bootstrap: str, members: int, more: int, partitions: int) -> None:
    """Makes the group, adds members, and prints the figures of both."""
    ownership = Ownership(partitions)
    group = CLIENTS[clients](bootstrap, clients, ownership)
    try:
        began_ms = time.time() * 1000
        group.start(members)
        await until_settled(ownership, members)
        formed_ms = ownership.last_ms - began_ms
        ownership.unowned_ms.clear()
        step_ms = time.time() * 1000
        group.start(more)
        await until_settled(ownership, members + more)
    finally:
        await group.close()
    moves, settled_ms = ownership.unowned_ms, ownership.last_ms - step_ms
    print(f"{clients}: {members} members settled after {formed_ms / 1000:.1f} s")
    print(f"{clients}: {more} more settled after {settled_ms / 1000:.1f} s; {len(moves)} partitions moved,")
    print(f"  from revoked to assigned median {statistics.median(moves):.0f} ms, at most {max(moves):.0f} ms")


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the arguments and measures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling.large_step")
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--more", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--clients", default=",".join(CLIENTS), help="of which to measure")
    parser.add_argument(
        "--heartbeat-ms", type=int, default=5_000, help="of the group, and the brokers' least"
    )
    given = parser.parse_args(arguments)
    least = {"group.consumer.min.heartbeat.interval.ms": str(min(5_000, given.heartbeat_ms))}
    with KafkaCluster(1, least) as cluster:
        chosen = given.clients.split(",")
        with KafkaAdmin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, given.partitions)]).unwrap()
            beats = {"consumer.heartbeat.interval.ms": str(given.heartbeat_ms)}
            groups = {ConfigResource(ResourceType.GROUP, clients): beats for clients in chosen}
            admin.alter_configs(groups).unwrap()
        for clients in chosen:
            asyncio.run(measure(clients, cluster.bootstrap, given.members, given.more, given.partitions))


if __name__ == "__main__":
    main()
