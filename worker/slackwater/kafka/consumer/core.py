"""The consumer's engine: everything that runs on the client's loop, for both consumer classes."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from slackwater.kafka.consumer.background import BackgroundTasks
from slackwater.kafka.consumer.config.consumer_config import CONSUMER_PROTOCOL, ConsumerConfig
from slackwater.kafka.consumer.coordinator import ConsumerCoordinator
from slackwater.kafka.consumer.fetch.buffer import FetchBuffer
from slackwater.kafka.consumer.fetch.fetcher import Fetcher
from slackwater.kafka.consumer.metrics.consumer_metrics import ConsumerMetrics
from slackwater.kafka.consumer.offsets.committer import NO_GROUP, Committer
from slackwater.kafka.consumer.offsets.positions import Positions
from slackwater.kafka.consumer.standby import Standby
from slackwater.kafka.consumer.ungrouped_assignment import notices_without_group
from slackwater.kafka.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    PartitionNotAssignedError,
    for_code,
)
from slackwater.kafka.net import Cluster
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.membership.notices import Notice, NoticeKind, NoticeQueue
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Mode, Subscription
from slackwater.kafka.structs import (
    MembershipSnapshot,
    OffsetAndMetadata,
    SubscriptionPattern,
    TopicPartition,
)
from slackwater.kafka.wire import messages as m

log = logging.getLogger(__name__)

T = TypeVar("T")


class ConsumerCore:
    """One consumer on one loop. Its methods are called on the loop, unless they say otherwise.

    ``on_news`` is called (on the loop) whenever a waiting ``poll()`` should look again. The loop keeps the
    engine, so it holds nothing that may refer to its consumer: that could not be collected.
    """

    def __init__(self, config: ConsumerConfig, on_news: Callable[[], None]) -> None:
        self.config = config
        self._tell_caller = on_news
        self._loop = asyncio.get_running_loop()
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self.subscription = Subscription()
        self.metrics = ConsumerMetrics(
            self.subscription,
            lambda: self._loop.time() * 1000,
            samples=config.metrics_num_samples,
            window_ms=config.metrics_sample_window_ms,
            read_committed=config.read_committed,
            has_group=config.group_id is not None,
        )
        self.cluster = Cluster(
            config.bootstrap_servers,
            client_id=config.client_id,
            request_timeout_ms=config.request_timeout_ms,
            connect_timeout_ms=config.socket_connection_setup_timeout_ms,
            reconnect_backoff_ms=config.reconnect_backoff_ms,
            reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            metadata_max_age_ms=config.metadata_max_age_ms,
            connections_max_idle_ms=config.connections_max_idle_ms,
            receive_buffer_bytes=config.receive_buffer_bytes,
            send_buffer_bytes=config.send_buffer_bytes,
            receive_message_max_bytes=config.receive_message_max_bytes,
            client_dns_lookup=config.client_dns_lookup,
            metadata_recovery_strategy=config.metadata_recovery_strategy,
            metadata_recovery_rebootstrap_trigger_ms=config.metadata_recovery_rebootstrap_trigger_ms,
            allow_auto_topic_creation=config.allow_auto_create_topics,
            security=config.security,
            traffic=self.metrics.net,
        )
        self.backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, self.cluster.rng)
        """Paces what is repeated."""
        self.errors: deque[KafkaError] = deque()
        """What ``poll()`` raises next."""
        self._heard: set[KafkaError] = set()
        """Of them, those about positions that ``poll()`` has raised."""
        self._own_notices = NoticeQueue()
        self.buffer = FetchBuffer(
            self.subscription,
            check_crcs=config.check_crcs,
            max_decompressed_bytes=config.fetch_max_decompressed_bytes,
            on_room=self._room_from_any_thread,
            metrics=self.metrics.fetch,
        )
        self.group: ConsumerCoordinator | None = None
        if config.group_id is not None:
            self.group = ConsumerCoordinator(
                self.cluster, config, self.subscription, self.backoff,
                on_news=self._on_news, stats=self.metrics.group,
            )  # fmt: skip
        self._background = BackgroundTasks()
        self.committer = Committer(
            config, self.subscription, self.group, self._background, self.cluster.outages
        )
        self.standby = Standby(
            config, self.cluster, self.subscription, self.buffer, self.group, self.backoff, self._background
        )
        self.positions = Positions(
            self.cluster, config, self.subscription,
            self.group.offsets if self.group is not None else None, self.backoff,
            may_look=lambda: not self._is_dead,
            on_change=self._on_positions, on_error=self._on_error, refresh=self.refresh_soon,
            place=self.standby.place,
        )  # fmt: skip
        self.fetcher = Fetcher(
            self.cluster, config, self.subscription, self.buffer, self.backoff,
            may_fetch=self._may_fetch, on_out_of_range=self.positions.out_of_range,
            on_leader=self.positions.wake,
            on_data=self._on_news, refresh=self.refresh_soon, on_error=self._on_error,
            metrics=self.metrics.fetch,
        )  # fmt: skip
        self.metrics.replica = self.fetcher.replica
        self.cluster.on_metadata.append(self._on_metadata)
        self._refreshing: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._missing_looks = 0
        self.closed = False

    async def start(self) -> None:
        """Finds a broker. Raises :class:`NoBrokersAvailable` naming every address; with an ``api_version``
        it does not wait, and ``poll()`` raises that."""
        if self.config.loads_lazily:
            self._background.start(self._start_lazily(), "bootstrap")
        else:
            await self.cluster.start(self.config.bootstrap_timeout_ms)

    async def _start_lazily(self) -> None:
        try:
            await self.cluster.start(self.config.bootstrap_timeout_ms)
        except KafkaError as exc:
            self._on_error(exc)
        self._on_news()

    async def bootstrap(self, timeout_ms: int, refresh: bool) -> None:
        """Waits until brokers are known; ``refresh``: asks them again. Raises :class:`NoBrokersAvailable`."""
        if refresh or not self.cluster.metadata.brokers:
            await self.cluster.start(timeout_ms)

    def _on_news(self) -> None:
        if self.subscription.prefetched and self._is_dead:
            self.subscription.keep_ahead(())
            self.buffer.drop_stale()
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)
        self._tell_caller()

    async def until(self, ready: Callable[[], T | None], timeout_ms: int, what: str) -> T:
        """Waits until ``ready()`` gives something. Raises :class:`KafkaTimeoutError`."""
        deadline = self._loop.time() + timeout_ms / 1000
        while True:
            changed = self._changed
            self.raise_if_failed()
            if (result := ready()) is not None:
                return result
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.shield(changed)
            except TimeoutError:
                raise KafkaTimeoutError(f"{what} within {timeout_ms} ms") from None

    # -- what to read ----------------------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str] | None, pattern: str | re.Pattern[str] | SubscriptionPattern | None
    ) -> None:
        """Subscribes as a member of the group; without a group: to all partitions of the topics."""
        if self.group is not None:
            self.group.require()
        if isinstance(pattern, SubscriptionPattern):
            if self.group is None or self.config.group_protocol != CONSUMER_PROTOCOL:
                raise IllegalStateError(
                    "subscribe(): a SubscriptionPattern is matched by the broker, which needs a group_id and "
                    "group_protocol='consumer'; a plain pattern is matched here"
                )
            self.subscription.subscribe_at_broker()
            # A broker assigns topics by their ids, whose names are in the metadata.
            self.cluster.track((), all_topics=True)
            self.group.subscribe_at_broker(pattern.pattern)
            self.refresh_soon()
            return
        if pattern is not None:
            self.subscription.subscribe_pattern(pattern)
            self.cluster.track((), all_topics=True)
            self._match_pattern(self.cluster.metadata)
            self.refresh_soon()
        else:
            self.subscription.subscribe_topics([topics] if isinstance(topics, str) else topics or ())
            if self.cluster.track_also(self.subscription.topics):
                self.refresh_soon()
        if self.group is None:
            self._take_all(self.cluster.metadata)
        else:
            self._join()

    def _join(self) -> None:
        if self.group is not None and (self.subscription.topics or self.subscription.mode is Mode.TOPICS):
            self.group.membership.subscribe(self.subscription.topics, self.group.now_ms())
            self.group.touch()

    def _match_pattern(self, metadata: ClusterMetadata) -> None:
        names = (
            topic.name
            for topic in metadata.topics.values()
            if topic.partitions and not (topic.is_internal and self.config.exclude_internal_topics)
        )
        changed = self.subscription.match(names)
        if changed and self.group is not None and self.subscription.by_group:
            self.group.membership.subscribe(self.subscription.topics, self.group.now_ms())
            self.group.touch()

    def _take_all(self, metadata: ClusterMetadata) -> None:
        """Without a group the assignment is all partitions of the topics, as in kafka-python."""
        self._own_notices.keep_subscribed(self.subscription.topics, self.subscription.partitions)
        news = notices_without_group(self.subscription, metadata, self._own_notices)
        self._own_notices.extend(news)
        if news:
            self._on_news()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Reads partitions outside of group management."""
        if self.subscription.mode is Mode.ASSIGNED and self.committer.auto_commits_now:
            self.committer.auto_commit(self.committer.consumed())
        self.subscription.assign_by_user(partitions)
        if self.cluster.track_also(self.subscription.topics):
            self.refresh_soon()
        self._on_assignment()

    async def unsubscribe(self) -> None:
        """Reads nothing; a dynamic member leaves the group."""
        if self.group is not None and self.group.membership.state not in (State.OUT, State.DEAD):
            await self.group.leave("unsubscribed", tell=self.config.group_instance_id is None)
        self.read_nothing()

    def read_nothing(self) -> None:
        """Forgets what is read; membership is not touched."""
        self.standby.end()
        self.subscription.unsubscribe()
        self._own_notices.clear()
        self.buffer.clear()
        self.cluster.track(())

    def _on_assignment(self) -> None:
        self.buffer.drop_stale()
        self.positions.wake()
        self.fetcher.wake()

    def jumped(self) -> None:
        """After a seek or a reset."""
        self._on_assignment()

    def reset(self, partitions: Collection[TopicPartition], timestamp: int) -> None:
        """Has the positions of these (of all, if there are none) looked up by time."""
        chosen = partitions or list(self.subscription.partitions)
        if not chosen:
            raise PartitionNotAssignedError("no partitions are assigned to this consumer")
        for tp in chosen:
            self.subscription.get(tp)
        for tp in chosen:
            self.subscription.reset(tp, timestamp)
        self.jumped()

    def pause(self, partitions: Collection[TopicPartition], paused: bool) -> None:
        """Pauses or resumes these, all or none of them."""
        states = [self.subscription.get(tp) for tp in partitions]
        for state in states:
            state.paused = paused
        self.fetcher.wake()

    def enforce_rebalance(self, reason: str) -> None:
        """Joins again (KIP-568)."""
        if self.group is None:
            raise IllegalStateError(f"enforce_rebalance(): {NO_GROUP}")
        if not self.subscription.by_group:
            raise IllegalStateError(
                "enforce_rebalance(): call subscribe() first; assign() does not join a group"
            )
        self.group.require()
        self.group.membership.request_rejoin(reason, self.group.now_ms())
        self.group.touch()

    def expect_rebalance(self) -> None:
        """Members are about to join or to leave."""
        if self.group is None:
            raise IllegalStateError(f"expect_rebalance(): {NO_GROUP}")
        self.group.membership.expect_rebalance(self.group.now_ms())
        self.group.touch()

    def final_notice(self) -> Notice | None:
        """The listener's notice when all partitions are given up at once; ``None``: none."""
        going = tuple(sorted(self.subscription.partitions))
        if not going or not self.subscription.by_group:
            return None
        member = self.group.membership if self.group is not None else None
        lost = member is not None and (not member.in_group or member.error is not None)
        return Notice(NoticeKind.LOST if lost else NoticeKind.REVOKED, going)

    # -- in place of another member --------------------------------------------------------------

    async def stand_by(
        self, topics: Collection[str], pattern: str | re.Pattern[str] | None, timeout_ms: int
    ) -> None:
        """Has everything ready to join but joins nothing. Where that fails, this consumer reads nothing."""
        self.standby.check()
        self.subscription.stand_by(topics, pattern)
        try:
            await self.standby.run(topics, pattern, timeout_ms)
        except BaseException:
            self.read_nothing()
            raise

    def prefetch(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Fetches these partitions ahead from these offsets on, and no others."""
        self.standby.prefetch(offsets)
        self.buffer.drop_stale()
        self.fetcher.wake()

    def replace_member(self, member_id: str, epoch: int | None) -> None:
        """The next join is in this member's place."""
        self.standby.replace_member(member_id, epoch)

    def take_over(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int | None = None
    ) -> None:
        """Joins. What the first assignment brings and is named here starts at its offset, if nobody can have
        read on from there."""
        self.standby.take_over(offsets, generation)
        self._join()
        self.buffer.drop_stale()
        self.fetcher.wake()

    # -- the membership and the application ------------------------------------------------------

    @property
    def notices(self) -> NoticeQueue:
        """The changes of the assignment that the application has not handled yet."""
        return self._own_notices if self.group is None else self.group.membership.notices

    def next_notice(self) -> Notice | None:
        """The next notice; assigned partitions are in the assignment by then."""
        if not self.notices:
            return None
        notice = self.notices[0]
        if notice.kind is NoticeKind.ASSIGNED:
            # Java's order: the new partitions are in the assignment when the listener is called.
            self.subscription.add(notice.partitions)
            self.standby.assigned(notice)
        return notice

    def notice_handled(self, notice: Notice) -> None:
        """The application has handled a notice."""
        if notice.kind is not NoticeKind.ASSIGNED:
            self.subscription.remove(notice.partitions)
        if not self.notices or self.notices[0] is not notice:
            # The member was fenced or removed meanwhile; the partitions are given up all the same.
            if self.group is not None and notice.kind is not NoticeKind.ASSIGNED:
                self.group.membership.already_gone(notice.partitions, self.group.now_ms())
        elif self.group is None:
            self._own_notices.remove_first()
        else:
            self.group.membership.notice_done(self.group.now_ms())
        self._on_assignment()
        if self.group is not None:
            self.group.touch()

    @property
    def _is_dead(self) -> bool:
        """Whether the membership has ended for good (fenced, for example): no requests follow."""
        group = self.group if self.subscription.by_group else None
        return group is not None and group.membership.state is State.DEAD

    def _may_fetch(self) -> bool:
        if self.group is None or not self.subscription.by_group:
            return True
        return self.group.membership.in_group and not self._is_dead

    def caller_polls(self) -> None:
        """The application is inside ``poll()``."""
        if self.group is not None:
            self.group.membership.caller_polls(self.group.now_ms())
            self.group.touch()

    def raise_if_failed(self, *, of_positions: bool = True) -> None:
        """Raises the errors that end ``poll()``. From any thread.

        One about positions is raised again until they are set, or their partitions are paused or gone:
        nothing is read of them before. It is raised once for a partition that was paused before.
        ``of_positions``: False leaves these for a later call.
        """
        if self.closed:
            raise IllegalStateError("the consumer is closed")
        if self.group is not None and self.subscription.by_group:
            self.group.require()
        for _ in range(len(self.errors)):
            try:
                error = self.errors.popleft()
            except IndexError:  # another thread looks at it
                return
            concerned = self.positions.concerned(error)
            if concerned is None:
                raise error
            if not concerned:
                self._heard.discard(error)
                continue
            self.errors.append(error)
            if of_positions and (error not in self._heard or not all(state.paused for state in concerned)):
                self._heard.add(error)
                raise error.with_traceback(None)

    def membership(self) -> MembershipSnapshot:
        """A snapshot; outside of group management, of a member that never joined."""
        if self.group is None:
            return MembershipSnapshot(State.OUT.value, -1, "", None, False)
        return self.group.membership.snapshot()

    # -- events ----------------------------------------------------------------------------------

    def _on_metadata(self, metadata: ClusterMetadata) -> None:
        if self.subscription.pattern is not None:
            self._match_pattern(metadata)
        if self.subscription.by_group:
            if self.group is not None:
                self.group.metadata_changed()
            else:
                self._take_all(metadata)
        self._tell_refused_topics(metadata)
        self._look_again_for_missing_topics(metadata)
        self.positions.wake()
        if self.subscription.prefetched:
            self.buffer.drop_stale()
        self.fetcher.wake()

    def _tell_refused_topics(self, metadata: ClusterMetadata) -> None:
        """A topic that may not be read, or has a name that none can have, is an error of ``poll()`` as in
        Java: told with each refresh, once until the application has heard it."""
        waiting = {str(error) for error in self.errors}
        for name in sorted(self.subscription.topics):
            topic = metadata.topics.get(name)
            if topic is None or not topic.error_code:
                continue
            if action_for(m.MetadataRequest, topic.error_code) is Action.FATAL:
                error = for_code(topic.error_code, f"of topic {name!r}", api="Metadata")
                if str(error) not in waiting:
                    self._on_error(error)

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
        if self.subscription.mode is Mode.STANDBY:
            # Nobody polls. What is still wrong when the partitions are here is met again, and raised.
            log.warning("in standby: %s", error)
            return
        # Said once until it is heard: what cannot be fetched is tried again, and fails again, many times.
        # What is about a position comes once.
        if self.positions.concerned(error) or all(str(waiting) != str(error) for waiting in self.errors):
            self.errors.append(error)
        self._on_news()

    def _room_from_any_thread(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.fetcher.wake)

    def refresh_soon(self) -> None:
        """Refreshes the metadata in the background, and goes on trying until it succeeds."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._background.start(self._refresh(), "metadata for a consumer")

    async def _refresh(self) -> None:
        failures = 0
        while not self.closed and not self._is_dead:
            try:
                await self.cluster.refresh()
                return
            except KafkaError as exc:
                if not exc.retriable:
                    self._on_error(exc)
                    return
                failures += 1
                await asyncio.sleep(max(self.backoff.delay_ms(failures), 1) / 1000)

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
        await self._background.close()
        if self.group is not None:
            await self.group.leave("the consumer is closed", tell=leave, timeout_ms=timeout_ms)
            await self.group.close()
        await self.cluster.close()
        self.buffer.clear()
        self._on_news()
