"""Finds where to start: the committed offset, or one by ``auto_offset_reset``. And offsets by time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.consumer.group import Group
from slackwater.kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeNoResetError,
    for_code,
)
from slackwater.kafka.net import Cluster
from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.subscription import FetchState, PartitionState, Subscription
from slackwater.kafka.structs import OffsetAndTimestamp, TopicPartition
from slackwater.kafka.wire import messages as m

log = logging.getLogger(__name__)


class Positions:
    """Keeps looking until every assigned partition has a position. Lives on the client's loop."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: Subscription,
        group: Group | None,
        *,
        on_change: Callable[[], None],
        on_error: Callable[[KafkaError], None],
        refresh: Callable[[], None],
    ) -> None:
        self._cluster, self._config = cluster, config
        self._subscription, self._group = subscription, group
        self._on_change, self._on_error, self._refresh = on_change, on_error, refresh
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._reported: dict[TopicPartition, int] = {}

    def wake(self) -> None:
        """Looks, if there is anything to look for."""
        if self._task is not None and not self._task.done():
            self._again = True
        elif self._unplaced() or self._subscription.in_state(FetchState.AWAIT_RESET):
            self._task = asyncio.create_task(self._run(), name="start positions")

    def _unplaced(self) -> list[PartitionState]:
        found = self._subscription.in_state(FetchState.INITIALIZING)
        return [state for state in found if self._reported.get(state.tp) != state.version]

    async def _run(self) -> None:
        failures = 0
        while self._unplaced() or self._subscription.in_state(FetchState.AWAIT_RESET):
            self._again = False
            try:
                await self._initialize(self._unplaced())
                missing = await self._reset(self._subscription.in_state(FetchState.AWAIT_RESET))
            except KafkaError as exc:
                if not exc.retriable:
                    self._on_error(exc)
                    return
                log.info("start positions: %s", exc)
                missing = True
            self._on_change()
            if missing and not self._again:
                failures += 1
                self._refresh()
                delay = min(
                    self._config.retry_backoff_ms << min(failures, 16), self._config.retry_backoff_max_ms
                )
                await asyncio.sleep(max(delay, 1) / 1000)

    async def _initialize(self, states: list[PartitionState]) -> None:
        if not states:
            return
        versions = {state.tp: state.version for state in states}
        committed = {}
        if self._group is not None:
            committed = await self._group.committed(list(versions), self._config.default_api_timeout_ms)
        without: list[TopicPartition] = []
        for tp, version in versions.items():
            state = self._subscription.partitions.get(tp)
            if state is None or state.version != version or state.state is not FetchState.INITIALIZING:
                continue
            found = committed.get(tp)
            if found is not None:
                self._subscription.start_at(state, found.offset, found.leader_epoch)
            elif self._config.reset_policy is o.ResetPolicy.NONE:
                self._reported[tp] = state.version
                without.append(tp)
            else:
                self._subscription.reset(tp, self._config.reset_policy.value)
        if without:
            names = ", ".join(map(str, without))
            self._on_error(
                NoOffsetForPartitionError(
                    f"no committed offset for {names} in group {self._config.group_id!r}, "
                    'and auto_offset_reset="none": seek() to where it should start'
                )
            )

    def out_of_range(self, state: PartitionState) -> None:
        """The log does not reach to a position (any more): by ``auto_offset_reset``."""
        tp, position = state.tp, state.position if state.position is not None else -1
        if self._config.reset_policy is o.ResetPolicy.NONE:
            if self._reported.get(tp) != state.version:
                self._reported[tp] = state.version
                self._on_error(OffsetOutOfRangeNoResetError({tp: position}))
            return
        log.warning(
            "%s: offset %d is out of range; going to the %s", tp, position, self._config.auto_offset_reset
        )
        self._subscription.reset(tp, self._config.reset_policy.value)
        self.wake()

    async def _reset(self, states: list[PartitionState]) -> bool:
        """Looks up resets; true if some are still missing."""
        if not states:
            return False
        versions = {state.tp: state.version for state in states}
        wanted = {state.tp: state.reset_to for state in states if state.reset_to is not None}
        found, missing = await self._look_up(wanted)
        for tp, answer in found.items():
            state = self._subscription.partitions.get(tp)
            if state is not None and state.version == versions[tp] and state.state is FetchState.AWAIT_RESET:
                self._subscription.start_at(state, answer.offset, answer.leader_epoch)
        return bool(missing)

    async def by_time(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each time (ms), or at an end; ``None``: no record is that late.

        Raises :class:`KafkaTimeoutError` naming the partitions that nobody would tell of.
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
                found, _ = await self._look_up(left)
                for tp, answer in found.items():
                    result[tp] = (
                        OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)
                        if answer.offset >= 0
                        else None
                    )
            except KafkaError as exc:
                if not exc.retriable:
                    raise
                last = exc
            if len(result) < len(timestamps):
                failures += 1
                delay = (
                    min(self._config.retry_backoff_ms * failures, self._config.retry_backoff_max_ms) / 1000
                )
                if loop.time() + delay >= deadline:
                    names = ", ".join(str(tp) for tp in left if tp not in result)
                    raise KafkaTimeoutError(
                        f"no offsets of {names} within {timeout_ms} ms" + (f": {last}" if last else "")
                    )
                await asyncio.sleep(delay)
        return result

    async def _look_up(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, m.ListOffsetsResponsePartitionResponse], set[TopicPartition]]:
        """One round of ListOffsets at the leaders: the answers, and the partitions without one."""
        metadata = self._cluster.metadata
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for tp, at in timestamps.items():
            node = metadata.leader(tp)
            if node is not None:
                by_node.setdefault(node, {})[tp] = at
        asked = (self._ask(node, part) for node, part in by_node.items())
        found: dict[TopicPartition, m.ListOffsetsResponsePartitionResponse] = {}
        for answers in await asyncio.gather(*asked):
            found.update(answers)
        return found, timestamps.keys() - found.keys()

    async def _ask(
        self, node: int, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, m.ListOffsetsResponsePartitionResponse]:
        epochs = {tp: self._cluster.metadata.leader_epoch(tp) for tp in timestamps}
        request = o.list_offsets_request(
            timestamps, epochs, read_committed=False, timeout_ms=self._config.request_timeout_ms
        )
        try:
            response = await self._cluster.send(node, request)
        except KafkaError as exc:
            if not exc.retriable:
                raise
            log.info("ListOffsets from broker %d: %s", node, exc)
            return {}
        found = {}
        for tp, answer in o.read_list_offsets(response).items():
            if answer.error_code == 0:
                found[tp] = answer
            elif action_for(m.ListOffsetsRequest, answer.error_code) is Action.FATAL:
                raise for_code(answer.error_code, f"offsets of {tp}")
        return found

    async def close(self) -> None:
        """Stops looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def offsets_only(found: Mapping[TopicPartition, OffsetAndTimestamp | None]) -> dict[TopicPartition, int]:
    """Plain offsets, as ``beginning_offsets`` and ``end_offsets`` give them."""
    return {tp: one.offset for tp, one in found.items() if one is not None}


def same_time(partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """The same question for all partitions."""
    return dict.fromkeys(partitions, timestamp)
