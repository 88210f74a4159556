"""How long a takeover takes between two consumers of the consumer protocol (KIP-848), without a worker.

python -m benchmarks.client_takeover [--members 20] [--partitions 40] [--each-ms 100] [--takeovers 50]

A real Kafka, and static members that commit each batch that they read, all in one event loop, under a load.
A warm successor replaces one member after another, then all members are replaced at once. A takeover's time
is from its trigger, which ends the predecessor's poll, until its successor has the first new record; the
predecessor finishes and commits its batch in between. Fails where a record was read twice or not at all, or
where the group's epoch has moved.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import statistics
import sys
import time
from collections.abc import Sequence

from slackwater.kafka.admin import AsyncAdmin, NewTopic
from slackwater.kafka.consumer import AsyncConsumer
from slackwater.kafka.errors import FencedInstanceIdError, UnreleasedInstanceIdError
from slackwater.kafka.producer import AsyncProducer
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from tests.support.kafka import KafkaCluster

TOPIC, GROUP = "flights", "takeovers"
FOLLOW_S = 1.0
"""How often a standby goes to the committed offsets, as a worker does."""
LONGEST_S = 30.0
"""For the rest of the records."""
QUIET_S = 12.0
"""Members that joined late have their partitions after two heartbeats."""


class Process:
    """A consumer that is a member, or stands by to replace one."""

    def __init__(self, bootstrap: str, member: int, read: dict[int, list[int]]) -> None:
        self.member, self._read = member, read
        self.consumer = AsyncConsumer(
            bootstrap_servers=bootstrap,
            group_id=GROUP,
            group_instance_id=f"w-{member}",
            group_protocol="consumer",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self.positions: dict[TopicPartition, int] = {}
        self._asked, self._drained, self.first = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.first_at = 0.0

    async def run(self) -> None:
        """Reads and commits until it is drained, then polls until it is fenced."""
        with contextlib.suppress(FencedInstanceIdError, UnreleasedInstanceIdError):
            while True:
                for tp, records in (await self.consumer.poll(100)).items():
                    if not self.first.is_set():
                        self.first_at = time.monotonic()
                        self.first.set()
                    self._read.setdefault(tp.partition, []).extend(record.offset for record in records)
                    self.positions[tp] = records[-1].offset + 1
                if self._asked.is_set() and not self._drained.is_set():
                    self.consumer.pause(*self.consumer.assignment())
                    await self.consumer.commit()
                    self._drained.set()
                elif not self._asked.is_set():
                    await self.consumer.commit()

    async def drain(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Ends its poll. Returns where it has stopped, committed."""
        self._asked.set()
        self.consumer.end_poll()
        await self._drained.wait()
        return {tp: OffsetAndMetadata(offset) for tp, offset in self.positions.items()}

    async def follow(self, old: Process) -> None:
        """Fetches ahead what ``old`` is to read, until it is cancelled."""
        while True:
            self.consumer.prefetch(old.positions)
            await asyncio.sleep(FOLLOW_S)


class Group:
    """Members under a load, each of which is replaced as often as is asked."""

    def __init__(self, bootstrap: str, members: int, partitions: int, tasks: asyncio.TaskGroup) -> None:
        self._bootstrap, self._partitions, self._tasks = bootstrap, partitions, tasks
        self.read: dict[int, list[int]] = {}
        self.sent = [0] * partitions
        self._flowing = True
        self.processes = [Process(bootstrap, member, self.read) for member in range(members)]
        self._gone: list[Process] = []
        self._running: list[asyncio.Task[None]] = []

    async def start(self, each_ms: float) -> None:
        """Returns when all members read."""
        self._flow = self._tasks.create_task(self._produce(each_ms))
        for process in self.processes:
            await process.consumer.start()
            process.consumer.subscribe([TOPIC])
            self._run(process)
        await asyncio.gather(*(process.first.wait() for process in self.processes))
        await asyncio.sleep(QUIET_S)

    def _run(self, process: Process) -> None:
        self._running.append(self._tasks.create_task(process.run()))

    async def _produce(self, each_ms: float) -> None:
        async with AsyncProducer(bootstrap_servers=self._bootstrap, linger_ms=0) as producer:
            while self._flowing:
                for partition in range(self._partitions):
                    await producer.send(TOPIC, b"x" * 100, partition=partition)
                    self.sent[partition] += 1
                await asyncio.sleep(each_ms / 1000)

    async def replace(self, members: Sequence[int]) -> list[float]:
        """Has warm successors take over from these at once. Returns the times, in ms."""
        successors = [Process(self._bootstrap, member, self.read) for member in members]
        old = [self.processes[member] for member in members]
        for successor in successors:
            await successor.consumer.start()
            await successor.consumer.stand_by([TOPIC])
        following = [
            self._tasks.create_task(new.follow(before)) for new, before in zip(successors, old, strict=True)
        ]
        await asyncio.sleep(2 * FOLLOW_S)
        async with AsyncAdmin(self._bootstrap) as admin:
            group = (await admin.describe_groups([GROUP])).unwrap()[GROUP]
        ids = {member.instance_id: member.member_id for member in group.members}
        for task in following:
            task.cancel()
        times = await asyncio.gather(
            *(
                self._take_over(before, new, ids[f"w-{new.member}"], group.epoch)
                for before, new in zip(old, successors, strict=True)
            )
        )
        for new in successors:
            self.processes[new.member] = new
        self._gone += old
        return list(times)

    async def _take_over(self, old: Process, new: Process, member_id: str, epoch: int | None) -> float:
        triggered = time.monotonic()
        offsets = await old.drain()
        new.consumer.replace_member(member_id, epoch)
        new.positions = {tp: at.offset for tp, at in offsets.items()}
        new.consumer.take_over(offsets, epoch)
        self._run(new)
        await new.first.wait()
        return (new.first_at - triggered) * 1000

    async def epoch(self) -> int | None:
        """The group's."""
        async with AsyncAdmin(self._bootstrap) as admin:
            return (await admin.describe_groups([GROUP])).unwrap()[GROUP].epoch

    async def stop(self) -> None:
        """Ends the load, and returns when what was sent is read. Raises ValueError where a record was read
        twice or left out."""
        self._flowing = False
        await self._flow
        async with asyncio.timeout(LONGEST_S):
            while sum(map(len, self.read.values())) < sum(self.sent):
                await asyncio.sleep(0.05)
        for partition, sent in enumerate(self.sent):
            if self.read[partition] != list(range(sent)):
                raise ValueError(
                    f"{TOPIC}-{partition}: {sent} records sent, {len(self.read[partition])} read"
                )

    async def close(self) -> None:
        """Closes all consumers."""
        for task in self._running:
            task.cancel()
        for process in (*self._gone, *self.processes):
            await process.consumer.close()


async def measure(bootstrap: str, members: int, partitions: int, each_ms: float, takeovers: int) -> None:
    """Prints the figures. Raises ValueError where a record was read twice or left out, or the epoch moved."""
    async with AsyncAdmin(bootstrap) as admin:
        await admin.create_topics([NewTopic(TOPIC, partitions)])
        await admin.wait_for_topic(TOPIC, partitions)
    async with asyncio.TaskGroup() as tasks:
        group = Group(bootstrap, members, partitions, tasks)
        await group.start(each_ms)
        before = await group.epoch()
        single = [(await group.replace([number % members]))[0] for number in range(takeovers)]
        at_once = await group.replace(range(members))
        after = await group.epoch()
        await group.stop()
        await group.close()
    print(f"{members} members, {partitions} partitions, a record each {each_ms:.0f} ms in each of them:")
    print(
        f"  {takeovers} takeovers, one after another, trigger to first new record: "
        f"median {statistics.median(single):.0f} ms, at most {max(single):.0f} ms"
    )
    print(f"  all {members} at once, until the last has its first new record: {max(at_once):.0f} ms")
    print(f"  {sum(group.sent)} records, each read once; the group's epoch was {before}, and is {after}")
    if before != after:
        raise ValueError("the group's epoch has moved")


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the arguments and measures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_takeover")
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=40)
    parser.add_argument("--each-ms", type=float, default=100.0, help="between two records of a partition")
    parser.add_argument("--takeovers", type=int, default=50)
    given = parser.parse_args(arguments)
    logging.getLogger("slackwater").setLevel(logging.CRITICAL)  # each predecessor says that it is fenced
    with KafkaCluster(1) as cluster:
        asyncio.run(
            measure(cluster.bootstrap, given.members, given.partitions, given.each_ms, given.takeovers)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
