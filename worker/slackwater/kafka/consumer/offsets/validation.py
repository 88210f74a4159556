"""Validates positions by leader epoch (KIP-320): a log that is shorter than what was read has lost records.

The leader is asked where the epoch of the record before the position ended in its log
(OffsetForLeaderEpoch). Behind that, its log has other records than those that were read, or none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.errors import (
    KafkaError,
    LogTruncationError,
    TopicRecreatedError,
    UnsupportedVersionError,
    for_code,
)
from slackwater.kafka.net import Cluster
from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.subscription import FetchState, PartitionState, Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m

log = logging.getLogger(__name__)


class Validation:
    """The positions of one consumer that wait to be confirmed. Lives on the client's loop."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: Subscription,
        *,
        on_error: Callable[[KafkaError, PartitionState], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._cluster, self._config = cluster, config
        self._subscription, self._on_error, self._wall_ms = subscription, on_error, wall_ms
        self._reported: dict[TopicPartition, int] = {}

    def pending(self) -> list[PartitionState]:
        """The partitions that wait, but for those whose truncation the application has been told of."""
        waiting = self._subscription.in_state(FetchState.AWAIT_VALIDATION)
        return [state for state in waiting if self._reported.get(state.tp) != state.version]

    def follow(self) -> None:
        """Compares every partition with the metadata: another topic by its name, or a later leader."""
        metadata = self._cluster.metadata
        for state in self._subscription.partitions.values():
            if state.state not in (FetchState.FETCHING, FetchState.AWAIT_VALIDATION):
                continue
            if self._subscription.is_other_topic(state, metadata.topic_id(state.tp.topic)):
                self.topic_replaced(state)
            else:
                self._subscription.follow_leader(state, metadata.leader_epoch(state.tp))
        for state in self._subscription.prefetched.values():
            if self._subscription.is_other_topic(state, metadata.topic_id(state.tp.topic)):
                self._subscription.keep_ahead(self._subscription.prefetched.keys() - {state.tp})
            else:
                self._subscription.follow_ahead(state, metadata.leader_epoch(state.tp))

    async def look(self, states: Sequence[PartitionState]) -> bool:
        """Asks the leaders of these once; whether some have to be asked again."""
        by_node: dict[int, list[PartitionState]] = {}
        for state in states:
            node = self._cluster.metadata.leader(state.tp)
            if node is not None:
                by_node.setdefault(node, []).append(state)
        answered = await asyncio.gather(*(self._ask(node, some) for node, some in by_node.items()))
        return sum(answered) < len(states)

    async def _ask(self, node: int, states: list[PartitionState]) -> int:
        """How many of these need not be asked again."""
        asked = {state.tp: (state.version, state.position, state.leader_epoch) for state in states}
        epochs = {tp: self._cluster.metadata.leader_epoch(tp) for tp in asked}
        request = o.epoch_end_request({tp: epoch for tp, (_, _, epoch) in asked.items()}, epochs)
        try:
            response = await self._cluster.send(node, request)
        except UnsupportedVersionError as exc:
            log.debug("positions are not confirmed by broker %d: %s", node, exc)
            for state in states:
                self._finish(state, asked[state.tp], None, epochs[state.tp])
            return len(states)
        except KafkaError as exc:
            if not exc.retriable:
                raise
            what = f"OffsetForLeaderEpoch from broker {node}"
            self._cluster.outages.failed(log, what, f"{what}: {exc}")
            return 0
        self._cluster.outages.worked(log, f"OffsetForLeaderEpoch from broker {node}")
        done = 0
        epoch_ends = o.read_epoch_ends(response)
        for state in states:
            answer = epoch_ends.get(state.tp)
            if answer is not None and self._answered(answer, state.tp):
                self._finish(state, asked[state.tp], answer, epochs[state.tp])
                done += 1
        return done

    def _answered(self, answer: m.OffsetForLeaderEpochResponsePartition, tp: TopicPartition) -> bool:
        if not answer.error_code:
            return True
        if action_for(m.OffsetForLeaderEpochRequest, answer.error_code) is Action.FATAL:
            raise for_code(answer.error_code, f"of {tp}", api="OffsetForLeaderEpoch")
        return False

    def _finish(
        self,
        state: PartitionState,
        asked: tuple[int, int | None, int],
        answer: m.OffsetForLeaderEpochResponsePartition | None,
        leader_epoch: int,
    ) -> None:
        version, position, _ = asked
        if (
            self._subscription.partitions.get(state.tp) is not state
            or state.state is not FetchState.AWAIT_VALIDATION
            or (state.version, state.position) != (version, position)
            or position is None
        ):
            return
        if answer is None:
            self._subscription.confirm(state, leader_epoch)
        elif answer.end_offset < 0 or answer.leader_epoch < 0:
            self._truncated(state, position, None, leader_epoch)
        elif answer.end_offset < position:
            at = OffsetAndMetadata(answer.end_offset, "", answer.leader_epoch)
            self._truncated(state, position, at, leader_epoch)
        else:
            self._subscription.confirm(state, leader_epoch)

    # -- what was read is gone -------------------------------------------------------------------

    def _truncated(
        self, state: PartitionState, position: int, at: OffsetAndMetadata | None, leader_epoch: int
    ) -> None:
        tp, policy = state.tp, self._config.reset_policy
        if self._config.tells_truncation:
            self._report(LogTruncationError({tp: position}, {tp: at}), state)
        elif at is None:
            log.warning(
                "%s: the log was cut off somewhere before offset %d, up to which it was read, and the leader "
                "does not know where; going to auto_offset_reset=%s", tp, position, policy.name,
            )  # fmt: skip
            self._subscription.reset(tp, policy.timestamp(self._wall_ms()))
        else:
            log.warning(
                "%s: the log was cut off at offset %d, and what was read from there to offset %d is gone: a "
                "leader was elected that did not have it. Going on at offset %d",
                tp, at.offset, position - 1, at.offset,
            )  # fmt: skip
            self._subscription.start_at(
                state, at.offset, at.leader_epoch, max(leader_epoch, 0), state.topic_id
            )

    def shorter(self, state: PartitionState, position: int, end: int) -> None:
        """The log ends before the position: the application has to say where to go on."""
        self._subscription.suspend(state)
        self._report(LogTruncationError({state.tp: position}, {state.tp: OffsetAndMetadata(end)}), state)

    def topic_replaced(self, state: PartitionState) -> None:
        """All records of the new topic are younger than what was read of the old one: none is passed over."""
        tp, position = state.tp, state.position if state.position is not None else -1
        if self._config.tells_truncation:
            if self._reported.get(tp) != state.version:
                self._subscription.suspend(state)
                self._report(TopicRecreatedError({tp: position}, {tp: OffsetAndMetadata(0)}), state)
            return
        log.warning(
            "%s: the topic was deleted and created again; it was read to offset %d. Going to the beginning "
            "of the new one", tp, position,
        )  # fmt: skip
        self._subscription.replaced(state)

    def _report(self, error: LogTruncationError, state: PartitionState) -> None:
        self._reported[state.tp] = state.version
        self._on_error(error, state)
