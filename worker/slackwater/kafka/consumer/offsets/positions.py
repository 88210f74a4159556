"""Start positions: the committed offset, or one by ``auto_offset_reset``; and offsets by time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.offsets.group_offsets import Committed, GroupOffsets
from slackwater.kafka.consumer.offsets.lost_positions import LostPositions
from slackwater.kafka.consumer.offsets.retrying_lookup import Look, Looking, Pending
from slackwater.kafka.consumer.offsets.validation import Validation
from slackwater.kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeNoResetError,
    for_code,
)
from slackwater.kafka.net import Cluster
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.subscription import LATEST, FetchState, PartitionState, Subscription
from slackwater.kafka.structs import OffsetAndTimestamp, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.primitives import ZERO_UUID

log = logging.getLogger(__name__)

Answers = dict[TopicPartition, m.ListOffsetsResponsePartitionResponse]


class Positions:
    """Keeps looking until every assigned partition has a position that holds. Lives on the client's loop.

    ``may_look``: false for a member that is fenced or dead, which asks nobody any more. ``wall_ms``: the wall
    clock, for resets by duration. ``place`` starts a partition at a committed offset with its leader epoch
    and ``topic_id``; without it :meth:`Subscription.start_at` does.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: Subscription,
        group_offsets: GroupOffsets | None,
        backoff: Backoff,
        *,
        may_look: Callable[[], bool],
        on_change: Callable[[], None],
        on_error: Callable[[KafkaError], None],
        refresh: Callable[[], None],
        wall_ms: Callable[[], int] = SYSTEM_CLOCK.wall_ms,
        place: Callable[..., None] | None = None,
    ) -> None:
        self._place = place or subscription.start_at
        self._cluster, self._config = cluster, config
        self._subscription, self._group_offsets, self._backoff = subscription, group_offsets, backoff
        self._on_change, self._on_error, self._wall_ms = on_change, on_error, wall_ms
        self._reported: dict[TopicPartition, int] = {}
        self._told: dict[KafkaError, dict[TopicPartition, int]] = {}
        self._validation = Validation(cluster, config, subscription, on_error=self._tell, wall_ms=wall_ms)

        self.lost = LostPositions(
            cluster, subscription, self._validation, self._look_up_all, lambda: backoff.delay_ms(1)
        )

        def looking(what: str, pending: Pending, look: Look) -> Looking:
            return Looking(
                what,
                backoff,
                lambda: pending() if may_look() else [],
                look,
                known=lambda states: all(cluster.metadata.leader(state.tp) is not None for state in states),
                on_change=self._changed,
                on_error=on_error,
                refresh=refresh,
                outages=cluster.outages,
            )

        self._looking = (
            looking("committed offsets", self._unplaced, self._initialize),
            looking("offset resets", self._unreset, self._reset),
            looking("lost positions", self.lost.pending, self.lost.look),
            looking("leader epochs", self._validation.pending, self._validation.look),
        )

    def wake(self) -> None:
        """Looks, if there is anything to look for. To be called after an assignment, a jump, new metadata."""
        self._validation.follow()
        for lookup in self._looking:
            lookup.wake()

    def _changed(self) -> None:
        """One look may give work to another: no committed offset, a log that was cut off."""
        for lookup in self._looking:
            lookup.start()
        self._on_change()

    def _tell(self, error: KafkaError, *states: PartitionState) -> None:
        self._told[error] = {state.tp: state.version for state in states}
        self._on_error(error)

    def concerned(self, error: KafkaError) -> list[PartitionState] | None:
        """The partitions that are not read because of an error, and whose positions nobody has set since.
        ``None`` for an error that is not about positions.

        Positions are looked for at once, while the application may be about to seek.
        """
        versions = self._told.get(error)
        if versions is None:
            return None
        known = self._subscription.partitions
        states = [state for tp, at in versions.items() if (state := known.get(tp)) and state.version == at]
        if not states:
            self._told.pop(error, None)
        return states

    def known(self, state: PartitionState) -> int | None:
        """The position; ``None`` while it is looked for, or has to be confirmed by a leader."""
        waits = state.state is FetchState.AWAIT_VALIDATION and state in self._validation.pending()
        return None if waits or state.reset_to is not None else state.position

    def _unplaced(self) -> list[PartitionState]:
        states = self._subscription.in_state(FetchState.INITIALIZING)
        return [state for state in states if self._reported.get(state.tp) != state.version]

    def _unreset(self) -> list[PartitionState]:
        waiting = self._subscription.in_state(FetchState.AWAIT_RESET)
        return [state for state in waiting if not self.lost.has(state)]

    async def _initialize(self, states: Sequence[PartitionState]) -> bool:
        versions = {state.tp: state.version for state in states}
        committed: Committed = {}
        if self._group_offsets is not None:
            committed = await self._group_offsets.committed_by_topic(
                list(versions), self._config.default_api_timeout_ms
            )
        policy = self._config.reset_policy
        without: list[PartitionState] = []
        for tp, version in versions.items():
            state = self._subscription.partitions.get(tp)
            if state is None or state.version != version or state.state is not FetchState.INITIALIZING:
                continue
            at, topic_id = committed.get(tp, (None, ZERO_UUID))
            if at is not None:
                self._place(state, at.offset, at.leader_epoch, topic_id=topic_id)
            elif policy.is_none:
                self._reported[tp] = state.version
                without.append(state)
            else:
                self._subscription.reset(tp, policy.timestamp(self._wall_ms()))
        if without:
            names = ", ".join(str(state.tp) for state in without)
            error = NoOffsetForPartitionError(
                f"no committed offset for {names} in group {self._config.group_id!r}, "
                'and auto_offset_reset="none": seek() to where it should start'
            )
            self._tell(error, *without)
        return False

    def out_of_range(self, state: PartitionState) -> None:
        """The log does not reach to a position (any more): by ``lost_position`` and ``auto_offset_reset``."""
        if self._config.goes_to_nearest:
            self.lost.add(state)
            self.wake()
            return
        tp, position = state.tp, state.position if state.position is not None else -1
        policy = self._config.reset_policy
        if policy.is_none:
            if self._reported.get(tp) != state.version:
                self._reported[tp] = state.version
                self._tell(OffsetOutOfRangeNoResetError({tp: position}), state)
            return
        log.warning("%s: offset %d is out of range; going by auto_offset_reset=%s", tp, position, policy.name)
        self._subscription.reset(tp, policy.timestamp(self._wall_ms()))
        self.wake()

    async def _reset(self, states: Sequence[PartitionState]) -> bool:
        versions = {state.tp: state.version for state in states}
        wanted = {state.tp: state.reset_to for state in states if state.reset_to is not None}
        metadata = self._cluster.metadata
        asked = {tp: (max(metadata.leader_epoch(tp), 0), metadata.topic_id(tp.topic)) for tp in wanted}
        answers, missing = await self._look_up(wanted)
        for tp, answer in answers.items():
            state = self._subscription.partitions.get(tp)
            if state is None or state.version != versions[tp] or state.state is not FetchState.AWAIT_RESET:
                continue
            if answer.offset >= 0:
                self._subscription.start_at(state, answer.offset, answer.leader_epoch, *asked[tp])
            else:
                # By duration, and no record is that young: the next one to come is the first that is.
                self._subscription.reset(tp, LATEST)
        return bool(missing)

    async def by_time(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each time (ms), or at an end; ``None``: no record is that late.

        With ``read_committed`` the end is the last stable offset (KIP-98): where the first transaction
        begins that is still open. Raises :class:`KafkaTimeoutError` naming the partitions that nobody would
        tell of.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        self._cluster.track_also(tp.topic for tp in timestamps)
        result: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        failures = 0
        while left := {tp: at for tp, at in timestamps.items() if tp not in result}:
            last: KafkaError | None = None
            try:
                if any(self._cluster.metadata.leader(tp) is None for tp in left) or failures:
                    await self._cluster.refresh()
                answers, _ = await self._look_up(left)
                result.update({tp: _found(answer) for tp, answer in answers.items()})
            except KafkaError as exc:
                if not exc.retriable:
                    raise
                last = exc
            if len(result) < len(timestamps):
                failures += 1
                delay = self._backoff.delay_ms(failures) / 1000
                if loop.time() + delay >= deadline:
                    names = ", ".join(str(tp) for tp in left if tp not in result)
                    raise KafkaTimeoutError(
                        f"no offsets of {names} within {timeout_ms} ms" + (f": {last}" if last else "")
                    )
                await asyncio.sleep(delay)
        return result

    async def _look_up_all(self, timestamps: Mapping[TopicPartition, int]) -> Answers:
        """One round at the leaders, of open transactions, too."""
        return (await self._look_up(timestamps, read_committed=False))[0]

    async def _look_up(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool | None = None
    ) -> tuple[Answers, set[TopicPartition]]:
        """One round of ListOffsets at the leaders: the answers, and the partitions without one.

        ``read_committed``: whether LATEST is the last stable offset; by default as the consumer reads.
        """
        if read_committed is None:
            read_committed = self._config.read_committed
        metadata = self._cluster.metadata
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for tp, at in timestamps.items():
            node = metadata.leader(tp)
            if node is not None:
                by_node.setdefault(node, {})[tp] = at
        merged: Answers = {}
        asked = (self._ask(node, part, read_committed) for node, part in by_node.items())
        for answers in await asyncio.gather(*asked):
            merged.update(answers)
        return merged, timestamps.keys() - merged.keys()

    async def _ask(
        self, node: int, timestamps: Mapping[TopicPartition, int], read_committed: bool
    ) -> Answers:
        epochs = {tp: self._cluster.metadata.leader_epoch(tp) for tp in timestamps}
        request = o.list_offsets_request(
            timestamps,
            epochs,
            read_committed=read_committed,
            timeout_ms=self._config.request_timeout_ms,
        )
        try:
            response = await self._cluster.send(node, request)
        except KafkaError as exc:
            if not exc.retriable:
                raise
            what = f"ListOffsets from broker {node}"
            self._cluster.outages.failed(log, what, f"{what}: {exc}")
            return {}
        self._cluster.outages.worked(log, f"ListOffsets from broker {node}")
        answers = {}
        for tp, answer in o.read_list_offsets(response).items():
            action = action_for(m.ListOffsetsRequest, answer.error_code) if answer.error_code else None
            if action in (None, Action.NO_OFFSET):
                answers[tp] = answer
            elif action is Action.FATAL:
                raise for_code(answer.error_code, f"of {tp}", api="ListOffsets")
        return answers

    async def close(self) -> None:
        """Stops looking."""
        await asyncio.gather(*(lookup.close() for lookup in self._looking))


def _found(answer: m.ListOffsetsResponsePartitionResponse) -> OffsetAndTimestamp | None:
    if answer.offset < 0:
        return None
    return OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)


def offsets_only(answers: Mapping[TopicPartition, OffsetAndTimestamp | None]) -> dict[TopicPartition, int]:
    """Plain offsets, as ``beginning_offsets`` and ``end_offsets`` give them."""
    return {tp: answer.offset for tp, answer in answers.items() if answer is not None}


def same_time(partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """The same question for all partitions."""
    return dict.fromkeys(partitions, timestamp)
