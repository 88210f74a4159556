"""Fetches ahead of the application: one request at a time to each leader, within bounds of memory.

A partition is fetched while less than ``max_partition_fetch_bytes`` of it wait to be handed over, and
all together while less than ``fetch_max_bytes`` do. A request that names only partitions which have
nothing new would be parked at the broker while another one becomes free to fetch; so as long as some
partition of a leader is held back, requests do not wait, and there is none unless it has a partition that is
behind the log's end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from slackwater.kafka.consumer.buffer import Chunk, FetchBuffer
from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.errors import KafkaError, for_code
from slackwater.kafka.net import Cluster, Purpose
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.fetch_session import FetchPartition, FetchSession, FetchSettings
from slackwater.kafka.protocol.subscription import FetchState, PartitionState, Subscription
from slackwater.kafka.records import RecordError, iter_batches
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.primitives import Buffer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Ahead:
    """How far a partition has been fetched since its last jump; ``broken``: not past this."""

    version: int
    offset: int
    broken: bool = False


class Fetcher:
    """The fetches of one consumer. Lives on the client's loop."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: Subscription,
        buffer: FetchBuffer,
        *,
        may_fetch: Callable[[], bool],
        on_out_of_range: Callable[[PartitionState], None],
        on_data: Callable[[], None],
        refresh: Callable[[], None],
        on_error: Callable[[KafkaError], None],
    ) -> None:
        self._cluster, self._config = cluster, config
        self._subscription, self._buffer = subscription, buffer
        self._may_fetch, self._on_out_of_range = may_fetch, on_out_of_range
        self._on_data, self._on_error = on_data, on_error
        self._refresh = refresh
        self._settings = FetchSettings(
            config.fetch_max_wait_ms, config.fetch_min_bytes, config.fetch_max_bytes, rack=config.client_rack
        )
        self._sessions: dict[int, FetchSession] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._ahead: dict[TopicPartition, _Ahead] = {}
        self._replica: dict[TopicPartition, int] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # -- what to fetch ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Starts what can be started. To be called when anything changed: room, positions, metadata."""
        if self._closed or not self._may_fetch():
            return
        by_node: dict[int, list[PartitionState]] = {}
        missing = False
        for state in self._subscription.partitions.values():
            if state.state is not FetchState.FETCHING or state.paused:
                continue
            node = self._node(state.tp)
            if node is None:
                missing = True
            else:
                by_node.setdefault(node, []).append(state)
        if missing:
            self._refresh_soon()
        for node, states in by_node.items():
            if node not in self._running:
                self._start(node, states)

    def _node(self, tp: TopicPartition) -> int | None:
        replica = self._replica.get(tp)
        if replica is not None and replica in self._cluster.metadata.brokers:
            return replica
        return self._cluster.metadata.leader(tp)

    def _start(self, node: int, states: list[PartitionState]) -> None:
        room = self._config.fetch_max_bytes - self._buffer.total_bytes
        if room <= 0:
            return
        now = asyncio.get_running_loop().time()
        ready, held_back = [], False
        for state in states:
            if self._not_before.get(state.tp, 0.0) > now:
                continue
            if self._is_held_back(state):
                held_back = True
            else:
                ready.append(state)
        if not ready or (held_back and not any(self._may_be_behind(state) for state in ready)):
            return
        wanted = {state.tp: self._want(state) for state in ready}
        versions = {state.tp: state.version for state in ready}
        wait_ms = 0 if held_back else self._settings.max_wait_ms
        settings = replace(self._settings, max_wait_ms=wait_ms, max_bytes=room)
        task = asyncio.create_task(self._fetch(node, wanted, versions, settings), name=f"fetch from {node}")
        self._running[node] = task

    def _ahead_of(self, state: PartitionState) -> _Ahead:
        ahead = self._ahead.get(state.tp)
        if ahead is None or ahead.version != state.version:
            assert state.position is not None
            ahead = self._ahead[state.tp] = _Ahead(state.version, state.position)
            self._replica.pop(state.tp, None)
        return ahead

    def _is_held_back(self, state: PartitionState) -> bool:
        held = self._buffer.held_bytes(state.tp)
        return held >= self._config.max_partition_fetch_bytes or (held > 0 and self._ahead_of(state).broken)

    def _may_be_behind(self, state: PartitionState) -> bool:
        return state.highwater is None or self._ahead_of(state).offset < state.highwater

    def _want(self, state: PartitionState) -> FetchPartition:
        ahead, metadata = self._ahead_of(state), self._cluster.metadata
        ahead.broken = False
        return FetchPartition(
            ahead.offset,
            self._config.max_partition_fetch_bytes,
            metadata.leader_epoch(state.tp),
            metadata.topic_id(state.tp.topic),
        )

    # -- fetching --------------------------------------------------------------------------------

    async def _fetch(
        self,
        node: int,
        wanted: dict[TopicPartition, FetchPartition],
        versions: dict[TopicPartition, int],
        settings: FetchSettings,
    ) -> None:
        session = self._session(node)
        try:
            request = session.build(wanted, settings)
            timeout_ms = self._config.request_timeout_ms + settings.max_wait_ms
            response = await self._cluster.send(
                node, request, purpose=Purpose.FETCH, timeout_ms=timeout_ms, version_cap=session.version_cap
            )
            found = session.take(response)
            if found is None:
                self._session_error(response.error_code, list(wanted))
            for tp, answer in found or []:
                self._take(node, tp, answer, wanted[tp].offset, versions[tp])
        except KafkaError as exc:
            session.failed()
            self._failed(node, list(wanted), exc)
        except asyncio.CancelledError:
            session.failed()
            raise
        finally:
            if self._running.get(node) is asyncio.current_task():
                del self._running[node]
        self.wake()

    def _session(self, node: int) -> FetchSession:
        if node not in self._sessions:
            self._sessions[node] = FetchSession(incremental=self._config.enable_incremental_fetch_sessions)
        return self._sessions[node]

    def _session_error(self, code: int, partitions: list[TopicPartition]) -> None:
        action = action_for(m.FetchRequest, code) if code else Action.NEW_SESSION
        log.debug("fetch session starts anew: %s", ErrorCode.name_of(code))
        if action is Action.FATAL:
            self._on_error(for_code(code, "Fetch"))
        if action is not Action.NEW_SESSION:
            self._refresh_soon()
            self._pause_for_backoff(partitions)

    def _failed(self, node: int, partitions: list[TopicPartition], error: KafkaError) -> None:
        if not error.retriable:
            self._on_error(error)
        log.info("fetch from broker %d failed: %s", node, error)
        for tp in partitions:
            self._replica.pop(tp, None)
        self._refresh_soon()
        self._pause_for_backoff(partitions)

    def _pause_for_backoff(self, partitions: list[TopicPartition]) -> None:
        loop = asyncio.get_running_loop()
        delay = max(self._config.retry_backoff_ms, 1) / 1000
        for tp in partitions:
            self._not_before[tp] = loop.time() + delay
        self._wake_later(delay)

    def _wake_later(self, delay: float) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(delay + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _refresh_soon(self) -> None:
        self._refresh()
        self._wake_later(max(self._config.retry_backoff_ms, 10) / 1000)

    # -- answers ---------------------------------------------------------------------------------

    def _take(
        self, node: int, tp: TopicPartition, answer: m.FetchResponsePartition, offset: int, version: int
    ) -> None:
        state = self._subscription.partitions.get(tp)
        if state is None or state.version != version:
            return
        if answer.error_code:
            self._partition_error(node, state, answer)
            return
        state.highwater = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        state.log_start_offset = answer.log_start_offset
        if answer.preferred_read_replica >= 0:
            self._replica[tp] = answer.preferred_read_replica
        if answer.records is not None and len(answer.records):
            self._add(state, answer.records, offset, version)

    def _add(self, state: PartitionState, data: Buffer, offset: int, version: int) -> None:
        end, whole = _end_of(data, offset)
        self._ahead[state.tp] = _Ahead(version, end, broken=not whole)
        self._buffer.add(Chunk(state.tp, data, offset, end, version))
        self._on_data()

    def _partition_error(self, node: int, state: PartitionState, answer: m.FetchResponsePartition) -> None:
        tp, code = state.tp, answer.error_code
        action = action_for(m.FetchRequest, code)
        from_replica = self._replica.pop(tp, None) == node
        leader = answer.current_leader
        metadata = self._cluster.metadata
        news = metadata.learn_leader(tp, leader.leader_id, leader.leader_epoch)
        if news and leader.leader_id in metadata.brokers:
            return
        if action is Action.RESET_OFFSET and not from_replica:
            # What was fetched before is still good; the position is out of range only behind it.
            if not self._buffer.held_bytes(tp):
                self._on_out_of_range(state)
            return
        if action is Action.FATAL:
            self._on_error(for_code(code, f"Fetch of {tp}"))
        elif action in (Action.REFRESH_METADATA, Action.NEW_SESSION):
            self._refresh_soon()
        self._pause_for_backoff([tp])

    async def close(self) -> None:
        """Stops. Fetches that are parked at a broker end with their connections."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        running = dict(self._running)
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


def _end_of(data: Buffer, offset: int) -> tuple[int, bool]:
    """Where to go on after the whole batches of ``data``; false if a header in it cannot be read."""
    end = offset
    try:
        for header in iter_batches(data):
            end = max(end, header.last_offset + 1)
    except RecordError:
        return end, False
    return end, end > offset
