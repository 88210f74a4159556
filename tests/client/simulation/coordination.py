"""The group's coordinator: the dev broker's own state machine, on one broker at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from slackwater.devbroker.group import GroupConfig, GroupCoordinator, MemoryGroupStore
from slackwater.devbroker.group.config import TopicLookup
from slackwater.devbroker.group.store import ConsumerGroupRecord, GroupRecord, OffsetRecord, Record
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.frame import RequestHeader
from slackwater.kafka.wire.schema import Request, Response
from tests.client.simulation.story import Story

Committer = tuple[str, m.OffsetCommitRequest]


class WatchedStore(MemoryGroupStore):
    """What is stored survives every move. ``on_offset`` hears of each offset before it is stored.

    ``was_migrated``: the group was one of the consumer protocol. ``migrated_at``: the generation at which it
    changed its protocol last; -1: never. ``counts``: the partitions of each topic then.
    """

    def __init__(self, topics: TopicLookup, on_offset: Callable[[OffsetRecord, int], None]) -> None:
        super().__init__()
        self._topics = topics
        self._on_offset = on_offset
        self.was_migrated, self.migrated_at = False, -1
        self.counts: dict[str, int] = {}

    def append(self, records: Sequence[Record]) -> None:
        """Stores."""
        for record in records:
            if isinstance(record, OffsetRecord) and not record.deleted:
                known = self.image.group_offsets(record.group_id).get(record.topic, {}).get(record.partition)
                self._on_offset(record, known.offset if known is not None else -1)
            if isinstance(record, ConsumerGroupRecord):
                self.was_migrated = True
                if record.group_id in self.image.groups:
                    self._migrates(record.epoch)
            elif isinstance(record, GroupRecord) and record.group_id in self.image.consumer_groups:
                self._migrates(record.generation)
        super().append(records)

    def _migrates(self, generation: int) -> None:
        self.migrated_at = generation
        self.counts = {name: self._topics.partition_count(name) or 0 for name in self._topics.names()}


class Coordination:
    """Where the coordinator is and what it does. ``node``: ``None`` while no broker has it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        story: Story,
        topics: TopicLookup,
        config: GroupConfig,
        on_offset: Callable[[OffsetRecord, int], None],
    ) -> None:
        self._loop, self._story, self._topics, self._config = loop, story, topics, config
        self.store = WatchedStore(topics, on_offset)
        self._ids = count(1)
        self.node: int | None = None
        self.active: GroupCoordinator | None = None
        self.committer: Committer | None = None
        """Who sent the OffsetCommit that is being handled."""
        self.moves = 0
        self.removed_at: dict[str, float] = {}
        """When an administrator last removed an instance id."""
        self._nobody = self._new()
        self._nobody.unload()
        self._timer: asyncio.TimerHandle | None = None

    def _new(self) -> GroupCoordinator:
        return GroupCoordinator(
            self._config, self.store, lambda prefix: f"{prefix}-{next(self._ids)}", self._topics
        )

    def begin(self, node: int, load_ms: float) -> None:
        """A broker becomes the coordinator, and serves once it has loaded the group."""
        self._story.tell("coordinator", f"is on b{node}, loading for {load_ms:.0f} ms")
        self.moves += 1
        self.node, self.active = node, self._new()
        self._loop.call_later(load_ms / 1000, self._loaded, self.active)

    def _loaded(self, coordinator: GroupCoordinator) -> None:
        if coordinator is self.active:
            self._story.tell("coordinator", f"serves on b{self.node}")
            coordinator.load(self._loop.time() * 1000)
            self._arm()

    def resign(self) -> None:
        """The coordinator's broker gives it up in good order: what is parked gets NOT_COORDINATOR."""
        coordinator, self.active, self.node = self.active, None, None
        if coordinator is not None:
            self._story.tell("coordinator", "resigns")
            coordinator.unload()

    def lose(self) -> None:
        """The coordinator's broker is dead: nobody is told anything."""
        if self.active is not None:
            self._story.tell("coordinator", "is lost")
        self.active = self.node = None

    def handle(
        self,
        node: int,
        client: str,
        header: RequestHeader,
        request: Request[Any],
        reply: Callable[[Response], None],
    ) -> None:
        """Hands a request to the coordinator, if ``node`` has it."""
        coordinator = self.active if node == self.node and self.active is not None else self._nobody
        if isinstance(request, m.OffsetCommitRequest):
            self.committer = (client, request)
        try:
            coordinator.handle(
                request,
                version=header.api_version,
                client_id=header.client_id,
                client_host="127.0.0.1",
                now_ms=self._loop.time() * 1000,
                reply=reply,
            )
        finally:
            self.committer = None
        self._arm()

    def remove(self, instance: str) -> None:
        """An administrator removes a static member."""
        if self.active is not None:
            self._story.tell("admin", f"removes {instance}")
            self.removed_at[instance] = self._loop.time()
            member = m.LeaveGroupRequestMember(member_id="", group_instance_id=instance, reason="admin")
            self.active.handle(
                m.LeaveGroupRequest(group_id="g", members=[member]),
                version=5,
                client_id="admin",
                client_host="127.0.0.1",
                now_ms=self._loop.time() * 1000,
                reply=lambda response: None,
            )
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.active is None:
            return
        now_ms = self._loop.time() * 1000
        due_ms = self.active.poll(now_ms)
        if due_ms is not None:
            self._timer = self._loop.call_at(max(due_ms, now_ms) / 1000 + 1e-6, self._arm)

    def described(self) -> dict[str, Any] | None:
        """The group as its coordinator has it; ``None`` where there is none."""
        groups = self.active.describe() if self.active is not None else []
        return next((group for group in groups if group["group"] == "g"), None)
