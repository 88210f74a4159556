"""Standby of a consumer: standing by, fetching ahead without membership, and taking over."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from slackwater.kafka.consumer.background import BackgroundTasks
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.coordinator import ConsumerCoordinator
from slackwater.kafka.consumer.fetch.buffer import FetchBuffer
from slackwater.kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError, for_code
from slackwater.kafka.net import Cluster, Purpose
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.membership.notices import Notice, NoticeKind
from slackwater.kafka.protocol.subscription import Mode, PartitionState, Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.primitives import ZERO_UUID

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
"""How often each connection asks the coordinator whether it still is one. This keeps the connections from
being closed as idle, and detects problems before a takeover meets them."""
_PURPOSES = (Purpose.GROUP, Purpose.GENERAL)


class StandbyConnections:
    """Keeps the metadata of ``topics``, the group's coordinator and the connections to it ready.

    With a pattern the metadata is that of all topics. It does not join. ``answer_ms``: the time limit of an
    answer. ``every_s``: the interval of the checks. ``ready`` is done when all are there for the first time;
    it fails with the first error that is not retriable. After that, errors are logged, and the checks go on.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        topics: Collection[str],
        backoff: Backoff,
        *,
        answer_ms: int,
        every_s: float = CHECK_EVERY_S,
    ) -> None:
        self._cluster, self._group_id, self._topics = cluster, group_id, topics
        self._backoff, self._answer_ms, self._every_s = backoff, answer_ms, every_s
        self._has_metadata = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_error: KafkaError | None = None
        """Why it is not ready, or not any more."""

    async def run(self) -> None:
        """Until it is cancelled."""
        failures = 0
        try:
            while True:
                try:
                    settled = await self._check()
                except KafkaError as exc:
                    failures += 1
                    if self._failed(exc):
                        return
                    await asyncio.sleep(self._backoff.delay_ms(failures) / 1000)
                    continue
                failures, self.last_error = 0, None
                if settled and not self.ready.done():
                    self.ready.set_result(None)
                await asyncio.sleep(self._every_s if settled else self._backoff.delay_ms(1) / 1000)
        finally:
            if not self.ready.done():
                self.ready.set_exception(IllegalStateError("the standby has ended before it was ready"))
                self.ready.exception()  # read here, since nobody may wait for it any more

    def _failed(self, error: KafkaError) -> bool:
        """Logs an error; whether it ends the standby."""
        if self.last_error is None or str(self.last_error) != str(error):
            log.warning("group %s: in standby: %s", self._group_id, error)
        self.last_error = error
        if error.retriable or self.ready.done():
            # The coordinator may be another broker by now, which any broker can tell.
            self._cluster.forget_coordinator(self._group_id)
            return False
        self.ready.set_exception(error)
        return True

    async def _check(self) -> bool:
        """Checks once; false if the coordinator has moved, so another check is needed."""
        if not self._has_metadata:
            await self._cluster.refresh()
            self._check_topics()
            self._has_metadata = True
        node = await self._cluster.coordinator(self._group_id, self._answer_ms)
        for purpose in _PURPOSES:
            connection = await self._cluster.connection(node, purpose)
            now = await self._cluster.confirm_coordinator(self._group_id, connection, self._answer_ms)
            if now != node:
                log.info("group %s: in standby: broker %d coordinates it now", self._group_id, now)
                return False
        return True

    def _check_topics(self) -> None:
        """Raises for a topic that may not be described; a topic that does not exist may be created later."""
        for name in sorted(self._topics):
            topic = self._cluster.metadata.topics.get(name)
            code = topic.error_code if topic is not None else 0
            if code and action_for(m.MetadataRequest, code) is Action.FATAL:
                raise for_code(code, f"of topic {name!r}", api="Metadata")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Takeover:
    """Where partitions start that the first assignment brings. ``generation``: the only one in which that
    holds; ``None``: it holds if nobody had to rebalance."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    generation: int | None


def refuse_in_standby(subscription: Subscription, call: str) -> None:
    """Raises :class:`IllegalStateError` in standby, which names the call to make first. From any thread."""
    if subscription.mode is Mode.STANDBY:
        raise IllegalStateError(
            f"{call}: this consumer is in standby and reads nothing yet: take_over() joins the group, "
            "unsubscribe() ends the standby"
        )


class Standby:
    """Stands by for a static member, fetches ahead for it, and places its partitions after the takeover.

    All is called on the loop.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        subscription: Subscription,
        buffer: FetchBuffer,
        group: ConsumerCoordinator | None,
        backoff: Backoff,
        background: BackgroundTasks,
    ) -> None:
        self._config, self._cluster, self._subscription = config, cluster, subscription
        self._buffer, self._group, self._backoff = buffer, group, backoff
        self._background = background
        self._connecting: asyncio.Task[None] | None = None
        self._takeover: Takeover | None = None

    # -- standing by -----------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether connections are kept ready."""
        return self._connecting is not None

    def check(self) -> None:
        """Raises :class:`IllegalStateError` without a ``group_id`` or a ``group_instance_id``; raises what
        has ended the membership."""
        self._static_group("stand_by()").require()

    async def run(
        self, topics: Collection[str], pattern: str | re.Pattern[str] | None, timeout_ms: int
    ) -> None:
        """Has everything ready to join but joins nothing.

        Raises :class:`KafkaTimeoutError` where that takes longer; the caller ends the standby then.
        """
        group = self._static_group("stand_by()")
        self._cluster.track(topics, all_topics=pattern is not None)
        connections = StandbyConnections(
            self._cluster, group.group_id, topics, self._backoff,
            answer_ms=group.membership.config.heartbeat_timeout_ms,
        )  # fmt: skip
        self._connecting = self._background.start(connections.run(), "standby")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.shield(connections.ready)
        except TimeoutError:
            why = f": {connections.last_error}" if connections.last_error else ""
            raise KafkaTimeoutError(f"stand_by(): not ready within {timeout_ms} ms{why}") from None

    def replace_member(self, member_id: str, epoch: int | None) -> None:
        """The next join is in this member's place."""
        self._static_group("replace_member()").membership.replace(member_id, epoch)

    def _static_group(self, call: str) -> ConsumerCoordinator:
        if self._group is None or self._config.group_instance_id is None:
            raise IllegalStateError(
                f"{call}: this needs a group_id and a group_instance_id, that of the member to take over: "
                "only a static member's place can be taken without a rebalance (KIP-345)"
            )
        return self._group

    def end(self) -> None:
        """Ends the standby, and forgets a takeover whose partitions have not come."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._takeover = None

    # -- fetching ahead --------------------------------------------------------------------------

    def prefetch(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Fetches these partitions ahead from these offsets on, and no others."""
        if self._subscription.mode is not Mode.STANDBY:
            raise IllegalStateError("prefetch(): this is for a consumer in standby; call stand_by() first")
        wanted = self._of_ours(offsets)
        self._subscription.keep_ahead(wanted)
        self._fetch_ahead(wanted)

    def _of_ours(self, offsets: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
        """The offsets of subscribed topics: the member to take over may read others."""
        return {tp: offset for tp, offset in offsets.items() if tp.topic in self._subscription.topics}

    def _fetch_ahead(self, offsets: Mapping[TopicPartition, int]) -> None:
        further: dict[PartitionState, int] = {}
        for tp, offset in offsets.items():
            state = self._subscription.prefetched.get(tp)
            if state is None or _is_before(offset, state):
                self._subscription.fetch_ahead(tp, offset)
            elif offset != state.position:
                further[state] = offset
        self._buffer.skip_to(further)

    def _agrees(self, ahead: PartitionState, leader_epoch: int) -> bool:
        """Whether what is prefetched goes on behind a record of this leader epoch (-1: not known).

        If the log that was fetched has the same there, or that very leader leads still, the position is good
        without asking (KIP-320).
        """
        known = ahead.leader_epoch
        if known < 0:
            known = self._cluster.metadata.leader_epoch(ahead.tp)
        return leader_epoch in (-1, known)

    # -- taking over -----------------------------------------------------------------------------

    def take_over(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int | None = None
    ) -> None:
        """Ends the standby; the caller joins. What the first assignment brings and is named here starts at
        its offset, if nobody can have read on from there."""
        self._subscription.end_standby()
        self.end()
        wanted = self._of_ours(offsets)
        self._fetch_ahead({tp: at.offset for tp, at in wanted.items()})
        self._takeover = Takeover(wanted, generation)

    def place(
        self, state: PartitionState, offset: int, leader_epoch: int, topic_id: UUID = ZERO_UUID
    ) -> None:
        """Starts an assigned partition at an offset, with what was prefetched there, if it was.

        ``topic_id``: of the topic that the offset belongs to; zero: not known.
        """
        ahead = self._subscription.prefetched.get(state.tp)
        if ahead is not None and not _is_before(offset, ahead):
            if offset != ahead.position:
                self._buffer.skip_to({ahead: offset})
            self._subscription.reading(ahead, -1, topic_id)
            other = self._subscription.is_other_topic(ahead, topic_id)
            if not other and self._agrees(ahead, leader_epoch):
                ahead.leader_epoch = max(ahead.leader_epoch, leader_epoch)
                ahead.validated_epoch = max(ahead.validated_epoch, leader_epoch)
                self._subscription.adopt(state)
                return
        self._subscription.start_at(state, offset, leader_epoch, topic_id=topic_id)

    def assigned(self, notice: Notice) -> None:
        """After the first assignment is taken in: places what the takeover names, and lets go of what was
        prefetched and not assigned. What is assigned and not placed waits for its committed offset."""
        takeover = self._takeover
        if takeover is None or notice.kind is not NoticeKind.ASSIGNED:
            return
        self._takeover = None
        if self._still_holds(takeover):
            for tp in notice.partitions:
                if (at := takeover.offsets.get(tp)) is not None:
                    self.place(self._subscription.get(tp), at.offset, at.leader_epoch)
        self._subscription.keep_ahead(self._subscription.partitions)

    def _still_holds(self, takeover: Takeover) -> bool:
        """Whether nobody else can have had the partitions since: no rebalance has come in between."""
        assert self._group is not None
        member = self._group.membership
        if takeover.generation is None:
            return member.returned
        return member.generation == takeover.generation


def _is_before(offset: int, ahead: PartitionState) -> bool:
    return ahead.position is None or offset < ahead.position
