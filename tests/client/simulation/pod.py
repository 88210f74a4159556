"""One run of an application: a real :class:`AsyncConsumer`, polling, handling, committing."""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING, Any

from slackwater.kafka.consumer.async_consumer import AsyncConsumer
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.listener import ConsumerRebalanceListener
from slackwater.kafka.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    KafkaError,
    NoBrokersAvailable,
    RebalanceInProgressError,
    UnreleasedInstanceIdError,
)
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from tests.client.simulation.scenario import Slot

if TYPE_CHECKING:
    from tests.client.simulation.site import Site

_COMMIT_TIMEOUT_MS = 8_000
_REFUSED = (CommitFailedError, RebalanceInProgressError, FencedInstanceIdError, GroupIdNotFoundError)


class Pod(ConsumerRebalanceListener):
    """A pod in a slot. ``held`` is what its listener was told; ``following`` the next record due of each."""

    def __init__(self, site: Site, slot: Slot, name: str, assignors: tuple[str, ...], protocol: str) -> None:
        self.site, self.slot, self.name = site, slot, name
        self.topics = slot.topics
        self.held: set[TopicPartition] = set()
        self.following: dict[TopicPartition, int] = {}
        self.fenced = False
        self.joined_at = math.inf
        self.born_at = site.loop.time()
        self.stall_ms = 0.0
        self.wants_topics: tuple[str, ...] | None = None
        self.dead = False
        self._stopping = False
        self._handled: dict[TopicPartition, int] = {}
        """What is to be committed."""
        self._latest: dict[TopicPartition, int] = {}
        """How far it has come with what it holds."""
        self._polls = 0
        self._commits: set[asyncio.Task[None]] = set()
        scenario = site.scenario
        self._rng = random.Random(f"{scenario.seed}/{name}")
        servers = [f"b{node}:{node}" for node in site.brokers]
        of_protocol: dict[str, Any] = {"group_protocol": protocol}
        if protocol == "classic":
            of_protocol |= {
                "partition_assignment_strategy": assignors,
                "session_timeout_ms": scenario.session_ms,
                "heartbeat_interval_ms": scenario.heartbeat_ms,
            }
        self.consumer = AsyncConsumer(
            ConsumerConfig(
                bootstrap_servers=tuple(servers),
                client_id=name,
                group_id="g",
                group_instance_id=slot.instance,
                auto_offset_reset="earliest",
                enable_auto_commit=slot.commits == "auto",
                auto_commit_interval_ms=1_000,
                fetch_max_wait_ms=2_000,
                max_poll_interval_ms=scenario.max_poll_ms,
                request_timeout_ms=scenario.request_ms,
                default_api_timeout_ms=20_000,
                max_poll_records=slot.max_records,
                metadata_max_age_ms=10_000,
                allow_auto_create_topics=False,
                **of_protocol,
            )
        )

    @property
    def identity(self) -> tuple[int, str]:
        """Generation and member.id, as the client knows them."""
        try:
            membership = self.consumer.membership()
        except KafkaError:
            return -1, ""
        return membership.generation, membership.member_id

    def had_place_before(self, other: Pod) -> bool:
        """Whether it lives, and was the member of the other's slot before that was started."""
        return self.slot is other.slot and not self.fenced and self.joined_at < other.born_at

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads the group."""
        return self.consumer.membership().is_leader

    def assignment(self) -> set[TopicPartition]:
        """The client's own idea of the assignment."""
        return self.consumer.assignment()

    # -- the application's life

    async def run(self) -> None:
        """Until it is stopped, fenced or cancelled (a crash)."""
        site = self.site
        try:
            await self._start()
            self.consumer.subscribe(self.topics, listener=self)
            while not self._stopping:
                await self._turn()
            await self._finish()
        except FencedInstanceIdError as exc:
            await self._fenced(exc)
        except UnreleasedInstanceIdError:
            site.refused(self)
        except GroupIdNotFoundError:
            # The group is a classic one again; a pod of that protocol may have this one's instance id.
            site.restart(self)
        except InconsistentGroupProtocolError as exc:
            if len(site.scenario.phases) == 1:
                site.checks.fail("unexpected error", f"{self.name}: {exc!r}")
            # In an upgrade, the session of one who vanished holds the group back until it ends.
            site.restart(self)
        except KafkaError as exc:
            site.checks.fail("unexpected error", f"{self.name}: {exc!r}")
        except Exception as exc:
            site.checks.fail("crash", f"{self.name}: {exc!r}")
            raise
        finally:
            # Its process has ended, so that nothing collects the consumer and says that it leaves.
            self.consumer._closed = True

    async def _start(self) -> None:
        while True:
            try:
                await self.consumer.start()
                return
            except NoBrokersAvailable as exc:
                self.site.story.tell(self.name, f"cannot start: {exc}")
                await asyncio.sleep(1)

    async def _turn(self) -> None:
        checks, story = self.site.checks, self.site.story
        columns = await self.consumer.poll_columns(timeout_ms=self.slot.poll_ms)
        for tp, rows in columns.items():
            checks.delivered(self, tp, rows.first_offset, rows.next_offset)
            self.following[tp] = rows.next_offset
            if story.on:
                story.tell(self.name, f"polls {tp} {rows.first_offset}..{rows.next_offset - 1}")
        if columns and self.slot.work_ms:
            await asyncio.sleep(self.slot.work_ms * self._rng.random() / 1000)
        for tp, rows in columns.items():
            checks.done(tp, rows.first_offset, rows.next_offset)
            self._handled[tp] = self._latest[tp] = rows.next_offset
        await self._commit(bool(columns))
        if self.stall_ms:
            story.tell(self.name, f"stops polling for {self.stall_ms:.0f} ms")
            stall_ms, self.stall_ms = self.stall_ms, 0.0
            await asyncio.sleep(stall_ms / 1000)
        if self.wants_topics is not None:
            self.topics, self.wants_topics = self.wants_topics, None
            story.tell(self.name, f"subscribes to {self.topics}")
            self.consumer.subscribe(self.topics, listener=self)

    async def _commit(self, has_records: bool) -> None:
        commits = self.slot.commits
        self._polls += 1
        if commits == "auto" or not self._handled:
            return
        if commits == "revoke" and self._polls % 3:
            return
        if commits == "async":
            task = asyncio.create_task(self._commit_now(dict(self._handled)))
            self._commits.add(task)
            task.add_done_callback(self._commits.discard)
            self._handled.clear()
        elif commits == "positions":
            await self._commit_now(None)
        else:
            await self._commit_now(dict(self._handled))

    async def _commit_now(self, offsets: dict[TopicPartition, int] | None) -> None:
        """Commits, and takes what may come of it: after a failure, the next poll's commit has it all."""
        site = self.site
        wanted = None if offsets is None else {tp: OffsetAndMetadata(o) for tp, o in offsets.items()}
        try:
            await self.consumer.commit(wanted, timeout_ms=_COMMIT_TIMEOUT_MS)
        except _REFUSED as exc:
            site.checks.counts[type(exc).__name__] += 1
            site.story.tell(self.name, f"commit refused: {type(exc).__name__}")
            self._again(offsets)
        except KafkaError as exc:
            site.checks.counts["commit failed"] += 1
            if not exc.retriable and not self.dead:
                site.checks.fail("unexpected error", f"{self.name}: commit: {exc!r}")
            site.story.tell(self.name, f"commit failed: {type(exc).__name__}")
            self._again(offsets)
        else:
            for tp, offset in (offsets or {}).items():
                if self._handled.get(tp) == offset:
                    del self._handled[tp]

    def _again(self, offsets: dict[TopicPartition, int] | None) -> None:
        for tp in offsets or ():
            if tp in self._latest:
                self._handled[tp] = self._latest[tp]

    async def _finish(self) -> None:
        self.site.story.tell(self.name, "stops")
        await asyncio.gather(*self._commits)
        if self.slot.commits != "auto":
            await self._commit(False)
            await asyncio.gather(*self._commits)
        await self.consumer.stop()
        self.site.gone(self)

    async def _fenced(self, error: FencedInstanceIdError) -> None:
        self.fenced = True
        self.held.clear()
        self.site.story.tell(self.name, f"is fenced: {error}")
        self.site.fenced(self)
        while True:
            await asyncio.sleep(2)
            try:
                columns = await self.consumer.poll_columns(timeout_ms=0)
            except FencedInstanceIdError:
                continue
            self.site.checks.fail("fence", f"{self.name} was fenced and polls again: {sorted(columns)}")
            return

    def stop(self) -> None:
        """Has it close in good order after its current poll."""
        self._stopping = True

    # -- the listener

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        if self.dead:
            return
        self.site.story.tell(self.name, f"assigned {_names(assigned)}")
        self.joined_at = min(self.joined_at, self.site.loop.time())
        self.site.checks.assigned(self, assigned)
        self.held.update(assigned)
        await self._dawdle()

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        if self.dead:
            return
        self.site.story.tell(self.name, f"revoked {_names(revoked)}")
        self.site.checks.taken(self, revoked, "revoked")
        await self._dawdle()
        mine = {tp: offset for tp, offset in self._handled.items() if tp in set(revoked)}
        if self.slot.commits == "revoke" and mine:
            await self._commit_now(mine)
        self._drop(revoked)

    async def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        if self.dead:
            return
        self.site.story.tell(self.name, f"lost {_names(lost)}")
        self.site.checks.taken(self, lost, "lost")
        self._drop(lost)
        await self._dawdle()

    def _drop(self, partitions: list[TopicPartition]) -> None:
        self.held.difference_update(partitions)
        for tp in partitions:
            self.following.pop(tp, None)
            self._handled.pop(tp, None)
            self._latest.pop(tp, None)

    async def _dawdle(self) -> None:
        if self.slot.listener_ms:
            await asyncio.sleep(self.slot.listener_ms * self._rng.random() / 1000)


def _names(partitions: list[TopicPartition]) -> str:
    return " ".join(map(str, sorted(partitions))) or "nothing"
