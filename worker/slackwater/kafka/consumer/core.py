"""The consumer's core: everything that runs on the client's loop, for both faces."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from slackwater.kafka.consumer.buffer import FetchBuffer
from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.consumer.fetcher import Fetcher
from slackwater.kafka.consumer.group import Group
from slackwater.kafka.consumer.listener import check_listener
from slackwater.kafka.consumer.positions import Positions
from slackwater.kafka.errors import IllegalArgumentError, IllegalStateError, KafkaError
from slackwater.kafka.net import Cluster
from slackwater.kafka.protocol.membership import Notice, NoticeKind, State
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Mode, Subscription
from slackwater.kafka.structs import MembershipSnapshot, OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

_NO_GROUP = "this needs a group_id"


class Core:
    """One consumer on one loop. Its methods are called on the loop, unless they say otherwise.

    ``on_news`` is called (on the loop) whenever a waiting ``poll()`` should look again.
    """

    def __init__(self, config: ConsumerConfig, on_news: Callable[[], None]) -> None:
        self.config = config
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self.cluster = Cluster(
            config.bootstrap_servers,
            client_id=config.client_id,
            request_timeout_ms=config.request_timeout_ms,
            reconnect_backoff_ms=config.reconnect_backoff_ms,
            reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            metadata_max_age_ms=config.metadata_max_age_ms,
            allow_auto_topic_creation=config.allow_auto_create_topics,
        )
        self.subscription = Subscription()
        self.listener: Any = None
        self.errors: deque[KafkaError] = deque()
        """What ``poll()`` raises next."""
        self.buffer = FetchBuffer(
            self.subscription,
            check_crcs=config.check_crcs,
            max_decompressed_bytes=config.fetch_max_decompressed_bytes,
            on_room=self._room_from_any_thread,
        )
        self.group: Group | None = None
        if config.group_id is not None:
            self.group = Group(self.cluster, config, self.subscription, on_news=on_news)
        self.positions = Positions(
            self.cluster, config, self.subscription, self.group,
            on_change=self._on_positions, on_error=self._on_error, refresh=self.refresh_soon,
        )  # fmt: skip
        self.fetcher = Fetcher(
            self.cluster, config, self.subscription, self.buffer,
            may_fetch=self._may_fetch, on_out_of_range=self.positions.out_of_range,
            on_data=on_news, refresh=self.refresh_soon, on_error=self._on_error,
        )  # fmt: skip
        self.cluster.on_metadata.append(self._on_metadata)
        self._refreshing: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._missing_looks = 0
        self._background: set[asyncio.Task[None]] = set()
        self._next_auto_commit = self._loop.time() + config.auto_commit_interval_ms / 1000
        self.closed = False

    async def start(self) -> None:
        """Finds a broker. Raises :class:`NoBrokersAvailable` naming every address."""
        await self.cluster.start(self.config.bootstrap_timeout_ms)

    # -- what to read ----------------------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str] | None, pattern: str | re.Pattern[str] | None, listener: Any
    ) -> None:
        """Subscribes as a member of the group."""
        if self.group is None:
            raise IllegalStateError(f"subscribe(): {_NO_GROUP}; assign() does not")
        self.group.require()
        check_listener(listener)
        if pattern is not None:
            self.subscription.subscribe_pattern(pattern)
            self.cluster.track((), all_topics=True)
            self._match_pattern(self.cluster.metadata)
            self.refresh_soon()
        else:
            names = [topics] if isinstance(topics, str) else list(topics or ())
            if bad := [name for name in names if not isinstance(name, str) or not name]:
                raise IllegalArgumentError(f"a topic must be a non-empty string, not {bad[0]!r}")
            self.subscription.subscribe_topics(names)
            if self.cluster.track_also(names):
                self.refresh_soon()
        self.listener = listener
        if pattern is None or self.subscription.topics:
            self.group.membership.subscribe(self.subscription.topics, self.group.now_ms())
            self.group.touch()

    def _match_pattern(self, metadata: ClusterMetadata) -> None:
        names = (
            topic.name
            for topic in metadata.topics.values()
            if topic.partitions and not (topic.is_internal and self.config.exclude_internal_topics)
        )
        if self.subscription.match(names) and self.group is not None:
            self.group.membership.subscribe(self.subscription.topics, self.group.now_ms())
            self.group.touch()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Reads partitions outside of group management."""
        self.subscription.assign_by_user(partitions)
        if self.cluster.track_also(self.subscription.topics):
            self.refresh_soon()
        self._on_assignment()

    async def unsubscribe(self) -> None:
        """Reads nothing; a dynamic member leaves the group."""
        if self.group is not None and self.group.membership.state not in (State.OUT, State.DEAD):
            await self.group.leave("unsubscribed", tell=self.config.group_instance_id is None)
        self.subscription.unsubscribe()
        self.listener = None
        self.buffer.clear()
        self.cluster.track(())

    def _on_assignment(self) -> None:
        self.buffer.drop_stale()
        self.positions.wake()
        self.fetcher.wake()

    def jumped(self) -> None:
        """After a seek or a reset."""
        self._on_assignment()

    # -- the membership and the application ------------------------------------------------------

    def next_notice(self) -> Notice | None:
        """What the application has to be told next."""
        if self.group is None or not self.group.membership.notices:
            return None
        notice = self.group.membership.notices[0]
        if notice.kind is NoticeKind.ASSIGNED:
            # Java's order: the new partitions are in the assignment when the listener is told.
            self.subscription.add(notice.partitions)
        return notice

    def told(self, notice: Notice) -> None:
        """The application has been told."""
        assert self.group is not None
        member = self.group.membership
        if member.notices and member.notices[0] is notice:
            if notice.kind is not NoticeKind.ASSIGNED:
                self.subscription.remove(notice.partitions)
            member.notice_done(self.group.now_ms())
        self._on_assignment()
        self.group.touch()

    def _may_fetch(self) -> bool:
        if self.group is None or not self.subscription.by_group:
            return True
        member = self.group.membership
        return member.in_group and member.state is not State.DEAD

    def caller_polls(self) -> None:
        """The application is inside ``poll()``."""
        if self.group is not None:
            self.group.membership.caller_polls(self.group.now_ms())
            self.group.touch()

    def raise_if_failed(self) -> None:
        """Raises what ``poll()`` must not go on after. From any thread."""
        if self.closed:
            raise IllegalStateError("the consumer is closed")
        if self.group is not None and self.subscription.by_group:
            self.group.require()
        if self.errors:
            raise self.errors.popleft()

    def membership(self) -> MembershipSnapshot:
        """A snapshot; outside of group management, of a member that never joined."""
        if self.group is None:
            return MembershipSnapshot(State.OUT.value, -1, "", None, False)
        return self.group.membership.snapshot()

    # -- events ----------------------------------------------------------------------------------

    def _on_metadata(self, metadata: ClusterMetadata) -> None:
        if self.subscription.mode is Mode.PATTERN:
            self._match_pattern(metadata)
        if self.group is not None and self.subscription.by_group:
            self.group.metadata_changed()
        self._look_again_for_missing_topics(metadata)
        self.positions.wake()
        self.fetcher.wake()

    def _look_again_for_missing_topics(self, metadata: ClusterMetadata) -> None:
        """A topic that is being created has no partitions yet, and one that is not there may come."""
        wanted = self.subscription.topics
        if all(metadata.partition_count(topic) for topic in wanted):
            self._missing_looks = 0
        elif self._later is None:
            self._missing_looks += 1
            delay = self.config.retry_backoff_ms << min(self._missing_looks, 6)
            self._later = self._loop.call_later(max(delay, 10) / 1000, self._look_now)

    def _look_now(self) -> None:
        self._later = None
        if not self.closed:
            self.refresh_soon()

    def _on_positions(self) -> None:
        self.buffer.drop_stale()
        self.fetcher.wake()
        self._on_news()

    def _on_error(self, error: KafkaError) -> None:
        self.errors.append(error)
        self._on_news()

    def _room_from_any_thread(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.fetcher.wake)

    def refresh_soon(self) -> None:
        """Refreshes the metadata in the background, and goes on trying until it succeeds."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="metadata for a consumer")

    async def _refresh(self) -> None:
        failures = 0
        while not self.closed:
            try:
                await self.cluster.refresh()
                return
            except KafkaError as exc:
                if not exc.retriable:
                    self._on_error(exc)
                    return
                failures += 1
                log.info("metadata: %s", exc)
                delay = min(self.config.retry_backoff_ms * failures, self.config.retry_backoff_max_ms)
                await asyncio.sleep(max(delay, 1) / 1000)

    # -- commits ---------------------------------------------------------------------------------

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit without offsets stores: the positions."""
        return {tp: OffsetAndMetadata(o, "", e) for tp, (o, e) in self.subscription.consumed().items()}

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, timeout_ms: int
    ) -> None:
        """See :meth:`Group.commit`."""
        if self.group is None:
            raise IllegalStateError(f"commit(): {_NO_GROUP}")
        await self.group.commit(self.consumed() if offsets is None else offsets, timeout_ms)

    async def commit_quietly(self, timeout_ms: int) -> None:
        """The commit of auto-commit before partitions go: a failure is logged, not raised."""
        offsets = self.consumed()
        if not offsets or self.group is None:
            return
        if self.subscription.by_group and not self.group.membership.in_group:
            return
        try:
            await self.commit(offsets, timeout_ms)
        except KafkaError as exc:
            log.warning("auto-commit failed: %s", exc)

    def auto_commit_due(self) -> bool:
        """Whether the interval has passed. From any thread."""
        return (
            self.config.enable_auto_commit
            and self.group is not None
            and self._loop.time() >= self._next_auto_commit
        )

    def auto_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commits in the background what the application had consumed when it polled."""
        self._next_auto_commit = self._loop.time() + self.config.auto_commit_interval_ms / 1000
        if not offsets:
            return

        async def run() -> None:
            try:
                await self.commit(offsets, self.config.default_api_timeout_ms)
            except KafkaError as exc:
                log.warning("auto-commit failed: %s", exc)

        task = asyncio.create_task(run(), name="auto-commit")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- the end ---------------------------------------------------------------------------------

    async def close(self, *, leave: bool, timeout_ms: int = 5_000) -> None:
        """Closes everything; ``leave``: tells the coordinator, within the time. May be called again."""
        if self.closed:
            return
        self.closed = True
        if self._later is not None:
            self._later.cancel()
        await self.fetcher.close()
        await self.positions.close()
        background = [task for task in (self._refreshing, *self._background) if task is not None]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        if self.group is not None:
            await self.group.leave("the consumer is closed", tell=leave, timeout_ms=timeout_ms)
            await self.group.close()
        await self.cluster.close()
        self.buffer.clear()
        self._on_news()
