"""A group coordinator for fake workers, and the observer that a LocalRun sees it through.

It does what a broker does with static members as far as a supervisor can tell: a return keeps the
generation, and fences the process that was the member; a newcomer and a removal begin a rebalance after a
moment.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot

REBALANCE_S = 0.2


class FakeGroup:
    """Holds the members and their partitions; counts the requests to remove members."""

    def __init__(self, partitions: int) -> None:
        self.partitions = tuple(TopicPartition("flights", number) for number in range(partitions))
        self.generation = 0
        self.members: dict[str, list[TopicPartition]] = {}
        self.holders: dict[str, str] = {}  # which process is a member, by the member's name
        self.removals: list[tuple[str, ...]] = []
        self.lag = 0  # of each partition
        self.deleted = False
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._rebalance: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Serves; gives the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._rebalance:
            self._rebalance.cancel()
        if self._server:
            self._server.close()
        for writer in self._writers.values():
            writer.close()

    async def observe(self, topics: Sequence[str]) -> KafkaSnapshot:
        at_ms = time.time_ns() // 1_000_000
        state = "PreparingRebalance" if self._rebalance else ("Stable" if self.members else "Empty")
        members = tuple(
            MemberView(
                f"id-{self.holders[name]}", name, frozenset(held), state == "Stable", self.holders[name]
            )
            for name, held in self.members.items()
        )
        zero = dict.fromkeys(self.partitions, 0)
        ends = dict.fromkeys(self.partitions, self.lag)
        return KafkaSnapshot(at_ms, GroupView(state, members), self.partitions, ends, zero)

    async def remove_members(self, instance_ids: tuple[str, ...]) -> dict[str, str]:
        self.removals.append(instance_ids)
        unknown = {
            instance_id: "UNKNOWN_MEMBER_ID"
            for instance_id in instance_ids
            if instance_id not in self.members
        }
        for instance_id in instance_ids:
            self.members.pop(instance_id, None)
        self._begin_rebalance()
        return unknown

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            asked = json.loads(line)
            if "known" in asked:
                known = asked["known"] in self.members
                document = {"known": known, "holder": self.holders.get(asked["known"])}
                writer.write(json.dumps(document).encode() + b"\n")
                continue
            name = asked["join"]
            before = self._writers.get(name)
            if name in self.members and before is not None and self.holders[name] != asked["pod"]:
                before.write(json.dumps({"fenced": asked["pod"]}).encode() + b"\n")
            self._writers[name], self.holders[name] = writer, asked["pod"]
            if name in self.members and not self._rebalance:
                self._tell(name)
            else:
                self.members.setdefault(name, [])
                self._begin_rebalance()

    def _begin_rebalance(self) -> None:
        if self._rebalance is None and self.members:
            self._rebalance = asyncio.create_task(self._finish_rebalance())

    async def _finish_rebalance(self) -> None:
        await asyncio.sleep(REBALANCE_S)  # the time that others have to join in with
        self.generation += 1
        names = sorted(self.members)
        for index, name in enumerate(names):
            self.members[name] = list(self.partitions[index :: len(names)])
        self._rebalance = None
        for name in names:
            self._tell(name)

    def _tell(self, name: str) -> None:
        document: dict[str, Any] = {
            "generation": self.generation,
            "leader": name == min(self.members),
            "partitions": self.members[name],
        }
        self._writers[name].write(json.dumps(document).encode() + b"\n")
