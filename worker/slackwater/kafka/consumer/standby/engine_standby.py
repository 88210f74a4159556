"""The standby of a consumer's core: standing by, fetching ahead without membership, and taking over."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.coordinator import Group
from slackwater.kafka.consumer.fetch.buffer import FetchBuffer
from slackwater.kafka.consumer.fetch.fetcher import Fetcher
from slackwater.kafka.consumer.listener import check_listener
from slackwater.kafka.consumer.standby.connections import Standby
from slackwater.kafka.errors import IllegalStateError, KafkaTimeoutError
from slackwater.kafka.net import Cluster
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol.membership.member import Notice, NoticeKind
from slackwater.kafka.protocol.subscription import Mode, PartitionState, Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Takeover:
    """Where partitions start that the first assignment brings. ``generation``: the only one in which that
    holds; ``None``: it holds if nobody had to rebalance."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    generation: int | None


class CoreStandby:
    """A part of :class:`Core`. All is called on the loop, unless it says otherwise."""

    config: ConsumerConfig
    subscription: Subscription
    cluster: Cluster
    backoff: Backoff
    buffer: FetchBuffer
    fetcher: Fetcher
    group: Group | None
    listener: Any
    _standby: asyncio.Task[None] | None = None
    _takeover: Takeover | None = None

    def _in_background(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        raise NotImplementedError

    def read_nothing(self) -> None:
        raise NotImplementedError

    def _join(self) -> None:
        raise NotImplementedError

    def refuse_in_standby(self, call: str) -> None:
        """Raises what tells which call comes first. From any thread."""
        if self.subscription.mode is Mode.STANDBY:
            raise IllegalStateError(
                f"{call}: this consumer is in standby and reads nothing yet: take_over() joins the group, "
                "unsubscribe() ends the standby"
            )

    # -- standing by -----------------------------------------------------------------------------

    async def stand_by(
        self, topics: Collection[str], pattern: str | re.Pattern[str] | None, listener: Any, timeout_ms: int
    ) -> None:
        """Has everything ready to join but joins nothing. Where that fails, this consumer reads nothing."""
        group = self._static_group()
        group.require()
        check_listener(listener)
        self.subscription.stand_by(topics, pattern)
        self.listener = listener
        self.cluster.track(topics, all_topics=pattern is not None)
        standby = Standby(
            self.cluster, group.group_id, topics, self.backoff,
            answer_ms=group.membership.config.heartbeat_timeout_ms,
        )  # fmt: skip
        self._standby = self._in_background(standby.run(), "standby")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.shield(standby.ready)
        except TimeoutError:
            self.read_nothing()
            why = f": {standby.last_error}" if standby.last_error else ""
            raise KafkaTimeoutError(f"stand_by(): not ready within {timeout_ms} ms{why}") from None
        except BaseException:
            self.read_nothing()
            raise

    def _static_group(self) -> Group:
        if self.group is None:
            raise IllegalStateError(
                "stand_by(): this needs a group_id, and a group_instance_id: that of the member to take over"
            )
        if self.config.group_instance_id is None:
            raise IllegalStateError(
                "stand_by(): this needs a group_instance_id, that of the member to take over: only a static "
                "member's place can be taken without a rebalance (KIP-345)"
            )
        return self.group

    def _end_standby(self) -> None:
        if self._standby is not None:
            self._standby.cancel()
            self._standby = None
        self._takeover = None

    # -- fetching ahead --------------------------------------------------------------------------

    def prefetch(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Fetches these partitions ahead from these offsets on, and no others."""
        if self.subscription.mode is not Mode.STANDBY:
            raise IllegalStateError("prefetch(): this is for a consumer in standby; call stand_by() first")
        wanted = self._of_ours(offsets)
        self.subscription.keep_ahead(wanted)
        self._fetch_ahead(wanted)
        self.buffer.drop_stale()
        self.fetcher.wake()

    def _of_ours(self, offsets: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
        """Those of the topics stood by for: the member to take over may read others."""
        return {tp: one for tp, one in offsets.items() if tp.topic in self.subscription.topics}

    def _fetch_ahead(self, offsets: Mapping[TopicPartition, int]) -> None:
        further: dict[PartitionState, int] = {}
        for tp, offset in offsets.items():
            state = self.subscription.prefetched.get(tp)
            if state is None or _is_before(offset, state):
                self.subscription.fetch_ahead(tp, offset)
            elif offset != state.position:
                further[state] = offset
        self.buffer.skip_to(further)

    def _agrees(self, ahead: PartitionState, leader_epoch: int) -> bool:
        """Whether what is prefetched goes on behind a record of this leader epoch (-1: not known).

        If the log that was fetched has the same there, or that very leader leads still, the position is good
        without asking (KIP-320).
        """
        known = ahead.leader_epoch
        if known < 0:
            known = self.cluster.metadata.leader_epoch(ahead.tp)
        return leader_epoch in (-1, known)

    # -- taking over -----------------------------------------------------------------------------

    def take_over(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: int | None = None
    ) -> None:
        """Joins. What the first assignment brings and is named here starts at its offset, if nobody can have
        read on from there."""
        self.subscription.end_standby()
        self._end_standby()
        wanted = self._of_ours(offsets)
        self._fetch_ahead({tp: at.offset for tp, at in wanted.items()})
        self._takeover = Takeover(wanted, generation)
        self._join()
        self.buffer.drop_stale()
        self.fetcher.wake()

    def place(self, state: PartitionState, offset: int, leader_epoch: int) -> None:
        """Starts an assigned partition at an offset, with what was prefetched there, if it was."""
        ahead = self.subscription.prefetched.get(state.tp)
        if ahead is None or _is_before(offset, ahead):
            self.subscription.start_at(state, offset, leader_epoch)
            return
        if offset != ahead.position:
            self.buffer.skip_to({ahead: offset})
        if self._agrees(ahead, leader_epoch):
            ahead.leader_epoch = max(ahead.leader_epoch, leader_epoch)
            ahead.validated_epoch = max(ahead.validated_epoch, leader_epoch)
            self.subscription.adopt(state)
        else:
            self.subscription.start_at(state, offset, leader_epoch)

    def _taken_over(self, notice: Notice) -> None:
        """After the first assignment is taken in: places what the takeover names, and lets go of what was
        prefetched and not assigned. What is assigned and not placed waits for its committed offset."""
        takeover = self._takeover
        if takeover is None or notice.kind is not NoticeKind.ASSIGNED:
            return
        self._takeover = None
        if self._still_holds(takeover):
            for tp in notice.partitions:
                if (at := takeover.offsets.get(tp)) is not None:
                    self.place(self.subscription.get(tp), at.offset, at.leader_epoch)
        self.subscription.keep_ahead(self.subscription.partitions)

    def _still_holds(self, takeover: Takeover) -> bool:
        """Whether nobody else can have had the partitions since: no rebalance has come in between."""
        assert self.group is not None
        member = self.group.membership
        if takeover.generation is None:
            return member.returned
        return member.generation == takeover.generation


def _is_before(offset: int, ahead: PartitionState) -> bool:
    return ahead.position is None or offset < ahead.position
