"""Moves a position that lies outside the log to the nearest record (``lost_position="nearest"``).

Retention and DeleteRecords move a log's start past positions: what lay between is skipped, and reported. A
log that ends before a position has lost what was read of it: there the application decides.
OFFSET_OUT_OF_RANGE does not say which of the two it is, so the leader is asked where its log begins and ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from slackwater.kafka.consumer.offsets.validation import Validation
from slackwater.kafka.net import Cluster
from slackwater.kafka.protocol.subscription import EARLIEST, LATEST, FetchState, PartitionState, Subscription
from slackwater.kafka.structs import SkippedRecords, TopicPartition
from slackwater.kafka.wire import messages as m

log = logging.getLogger(__name__)

Answers = Mapping[TopicPartition, m.ListOffsetsResponsePartitionResponse]


class LostPositions:
    """The positions of one consumer that its leaders refuse. Lives on the client's loop.

    ``look_up`` asks the leaders for offsets by time, of what is committed and what is not: the answers, by
    partition, of those that gave one. ``retry_ms``: how long a log is left alone that has the position after
    all.
    """

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        validation: Validation,
        look_up: Callable[[Mapping[TopicPartition, int]], Awaitable[Answers]],
        retry_ms: Callable[[], float],
    ) -> None:
        self._cluster, self._subscription, self._validation = cluster, subscription, validation
        self._look_up, self._retry_ms = look_up, retry_ms
        self._versions: dict[TopicPartition, int] = {}
        self.skipped: deque[SkippedRecords] = deque()
        """Taken by the application's thread; what follows them is polled later."""

    def add(self, state: PartitionState) -> None:
        """The leader does not have this position."""
        self._subscription.reset(state.tp, EARLIEST)
        self._versions[state.tp] = state.version

    def has(self, state: PartitionState) -> bool:
        """Whether the partition waits to be looked for here, and not as any other reset."""
        return self._versions.get(state.tp) == state.version

    def pending(self) -> list[PartitionState]:
        """The partitions that wait."""
        return [state for state in self._subscription.in_state(FetchState.AWAIT_RESET) if self.has(state)]

    async def look(self, states: Sequence[PartitionState]) -> bool:
        """Asks the leaders once; whether some have to be asked again."""
        versions = {state.tp: state.version for state in states}
        epochs = {tp: self._cluster.metadata.leader_epoch(tp) for tp in versions}
        starts = await self._look_up(dict.fromkeys(versions, EARLIEST))
        positions = {state.tp: state.position or 0 for state in states}
        within = [tp for tp, start in starts.items() if start.offset <= positions[tp]]
        ends = await self._look_up(dict.fromkeys(within, LATEST)) if within else {}
        again = len(states) > len(starts) or len(within) > len(ends)
        if any(ends[tp].offset >= positions[tp] for tp in ends):
            await asyncio.sleep(self._retry_ms() / 1000)
        for state in states:
            if self._subscription.partitions.get(state.tp) is not state or not self.has(state):
                continue
            if state.version == versions[state.tp] and state.state is FetchState.AWAIT_RESET:
                self._place(state, starts.get(state.tp), ends.get(state.tp), max(epochs[state.tp], 0))
        return again

    def _place(
        self,
        state: PartitionState,
        start: m.ListOffsetsResponsePartitionResponse | None,
        end: m.ListOffsetsResponsePartitionResponse | None,
        leader_epoch: int,
    ) -> None:
        tp, position = state.tp, state.position or 0
        if self._subscription.is_other_topic(state, self._cluster.metadata.topic_id(tp.topic)):
            self._validation.topic_replaced(state)
        elif start is not None and start.offset > position:
            skipped = SkippedRecords(tp, position, start.offset)
            log.warning(
                "%s: the log begins at offset %d, and offsets %d to %d are gone: skips %d, and goes on there",
                tp, start.offset, position, start.offset - 1, skipped.records,
            )  # fmt: skip
            self.skipped.append(skipped)
            self._go_on(state, start.offset, start.leader_epoch, leader_epoch)
        elif end is not None and end.offset < position:
            self._validation.shorter(state, position, end.offset)
        elif end is not None:
            self._go_on(state, position, state.leader_epoch, leader_epoch)

    def _go_on(self, state: PartitionState, offset: int, epoch: int, leader_epoch: int) -> None:
        """At another place of the same topic."""
        self._subscription.start_at(state, offset, epoch, leader_epoch, state.topic_id)
