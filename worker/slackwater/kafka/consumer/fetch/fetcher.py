"""Fetches ahead of the application: one request at a time to each leader, with bounded memory.

A partition is fetched while less than ``max_partition_fetch_bytes`` of it wait to be handed over, and
all together while less than ``fetch_max_bytes`` do, those counted that requests under way may bring. Leaders
share that room, and take turns, as the partitions of a leader do. Bytes of paused partitions give way when
nothing else could be fetched for them.

A request that names only partitions which have nothing new would be parked at the broker while another one
becomes free to fetch; so as long as some partition of a leader is held back, requests do not wait, and there
is none unless it has a partition that is behind the log's end.

What is prefetched in standby is fetched in the same way, but with a rest between requests, which a takeover
ends: nobody waits for each record there, and many small answers cost as much as they do in use. Nobody takes
them from the buffer either, so a partition may be held back for long; requests are parked for less meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain, count

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.fetch.buffer import Chunk, FetchBuffer
from slackwater.kafka.consumer.fetch.targets import FetchTargets
from slackwater.kafka.consumer.metrics.fetch import FetchMetrics, FetchTally
from slackwater.kafka.errors import KafkaError, for_code
from slackwater.kafka.net import Cluster, Purpose
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.threads import record_decoder
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.fetch_session import FetchPartition, FetchSession, FetchSettings
from slackwater.kafka.protocol.metadata import Broker
from slackwater.kafka.protocol.subscription import FetchState, Mode, PartitionState, Subscription
from slackwater.kafka.records import Extent, measure, measure_within
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.primitives import Buffer

log = logging.getLogger(__name__)

CHUNKS_AHEAD = 2
"""What is kept of a partition: what the application is at, and the next. With one alone the broker waited for
the application, and the application for the broker."""
_STEPS_ON_LOOP = 1_000
"""An answer whose headers take more steps is walked by a thread: these take some 10 ms at most."""
_STANDBY_REST_S = 0.1
_STANDBY_WAIT_MS = 100
"""How long a request is parked at most while what is prefetched is held back: the longest that it can stand
in front of the first fetch after a takeover."""


class Fetcher:
    """The fetches of one consumer. Lives on the client's loop."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: Subscription,
        buffer: FetchBuffer,
        backoff: Backoff,
        *,
        may_fetch: Callable[[], bool],
        on_out_of_range: Callable[[PartitionState], None],
        on_leader: Callable[[], None],
        on_data: Callable[[], None],
        refresh: Callable[[], None],
        on_error: Callable[[KafkaError], None],
        metrics: FetchMetrics | None = None,
    ) -> None:
        self._metrics = metrics
        self._cluster, self._config = cluster, config
        self._subscription, self._buffer, self._backoff = subscription, buffer, backoff
        self._may_fetch, self._on_out_of_range = may_fetch, on_out_of_range
        self._on_leader, self._on_data, self._on_error = on_leader, on_data, on_error
        self._refresh = refresh
        self._loop = asyncio.get_running_loop()
        self._settings = FetchSettings(
            config.fetch_max_wait_ms,
            config.fetch_min_bytes,
            config.fetch_max_bytes,
            read_committed=config.read_committed,
            rack=config.client_rack,
        )
        age_s = config.metadata_max_age_ms / 1000
        self._targets = FetchTargets(cluster.metadata, replica_age_s=age_s)
        self._sessions: dict[int, FetchSession] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._reserved: dict[int, int] = {}
        self._ahead = FetchedAhead(on_jump=self._targets.to_leader)
        self._turns = count(1)
        self._served: dict[TopicPartition | int, int] = {}
        self._rests_until: dict[int, float] = {}
        self._nothing_until: dict[int, float] = {}
        """Brokers that had nothing at once, although one of their partitions seemed to be behind."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # -- what to fetch ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Starts what can be started. To be called when anything changed: room, positions, metadata."""
        if self._closed:
            return
        now = self._loop.time()
        # One timer serves all pauses: whichever it was set for, it is set again for the next that ends.
        until = self._targets.next_end(now)
        if until is not None:
            self._wake_later(until - now)
        by_node: dict[int, list[PartitionState]] = {}
        missing = False
        for state in self._wanted():
            if state.state is not FetchState.FETCHING or state.paused:
                continue
            node = self._targets.node(state.tp, now)
            if node is None:
                missing = True
            else:
                by_node.setdefault(node, []).append(state)
        if missing:
            self._refresh_soon()
        if not by_node:
            return
        share = max(1, self._config.fetch_max_bytes // len(by_node.keys() | self._running.keys()))
        self._make_room(share)
        # Who has waited longest is first: what is left of the room may not be enough for all.
        for node in sorted(by_node, key=lambda node_id: self._served.get(node_id, 0)):
            if node not in self._running and not self._is_resting(node, now):
                self._start(node, by_node[node], min(share, self._room()), now)

    def _is_resting(self, node: int, now: float) -> bool:
        rest = self._rests_until.get(node, now) - now
        if rest > 0 and self._subscription.mode is Mode.STANDBY:
            self._wake_later(rest)
            return True
        return self._targets.is_throttled(node, now)

    def _wanted(self) -> Iterable[PartitionState]:
        assigned = self._subscription.partitions.values() if self._may_fetch() else ()
        return chain(assigned, self._subscription.prefetched.values())

    def _room(self) -> int:
        return self._config.fetch_max_bytes - self._buffer.total_bytes - sum(self._reserved.values())

    def _make_room(self, share: int) -> None:
        """Has what paused partitions hold give way where it would keep the others from being fetched."""
        wanted = min(share, self._config.max_partition_fetch_bytes)
        held = self._config.fetch_max_bytes - self._buffer.total_bytes
        if held < wanted and not self._buffer.has_ready():
            for tp in self._buffer.drop_paused(self._config.fetch_max_bytes // 2):
                log.info("%s: what was fetched is dropped for want of room, since it is paused", tp)

    def _start(self, node: int, states: list[PartitionState], limit: int, now: float) -> None:
        if limit <= 0:
            return
        ready, held_back, full = [], False, False
        for state in states:
            if self._is_backing_off(state, now):
                continue
            if self._is_held_back(state):
                full = full or self._subscription.is_ahead(state)
                held_back = held_back or not self._subscription.is_ahead(state)
            else:
                ready.append(state)
        if not ready or (held_back and not self._should_probe_without_waiting(node, ready, now)):
            return
        # A broker fills its answer in the order of the request, so those come first that got least lately.
        ready.sort(key=lambda state: self._served.get(state.tp, 0))
        wanted = {state.tp: self._want(state) for state in ready}
        versions = {state.tp: state.version for state in ready}
        most = min(self._settings.max_wait_ms, _STANDBY_WAIT_MS) if full else self._settings.max_wait_ms
        settings = replace(
            self._settings,
            max_wait_ms=0 if held_back else most,
            max_bytes=limit,
            rack=self._settings.rack if self._targets.may_tell_rack(wanted, now) else "",
        )
        self._reserved[node] = limit
        self._served[node] = next(self._turns)
        task = asyncio.create_task(self._fetch(node, wanted, versions, settings), name=f"fetch from {node}")
        self._running[node] = task

    def _is_backing_off(self, state: PartitionState, now: float) -> bool:
        rest = self._ahead.of(state).not_before - now
        if rest > 0:
            self._wake_later(rest)
        return rest > 0 or self._targets.is_paused(state.tp, now)

    def _is_held_back(self, state: PartitionState) -> bool:
        """Whether it is not fetched any further before the application has taken of it."""
        chunks = self._buffer.held_chunks(state.tp)
        if not chunks:
            return False
        limit = CHUNKS_AHEAD * self._config.max_partition_fetch_bytes
        if self._buffer.held_bytes(state.tp) >= limit or self._ahead.of(state).broken:
            return True
        if chunks < CHUNKS_AHEAD or self._subscription.is_ahead(state):
            return False
        # At the end of the log a fetch would bring a record or two; what comes meanwhile comes with the next.
        return not self._may_be_behind(state)

    def _should_probe_without_waiting(self, node: int, ready: list[PartitionState], now: float) -> bool:
        """Whether a broker is asked without waiting, since another partition of its is held back."""
        if not any(self._may_be_behind(state) for state in ready):
            return False
        # The end of a log may be unknown, or have been told by a leader before: it is not asked in a loop.
        rest = self._nothing_until.get(node, now) - now
        if rest > 0:
            self._wake_later(rest)
        return rest <= 0

    def _may_be_behind(self, state: PartitionState) -> bool:
        end = state.last_stable_offset if self._settings.read_committed else state.highwater
        return end is None or self._ahead.of(state).offset < end

    def _want(self, state: PartitionState) -> FetchPartition:
        ahead, metadata = self._ahead.of(state), self._cluster.metadata
        leader_epoch, topic_id = metadata.leader_epoch(state.tp), metadata.topic_id(state.tp.topic)
        ahead.broken = False
        self._subscription.reading(state, leader_epoch, topic_id)
        return FetchPartition(ahead.offset, self._config.max_partition_fetch_bytes, leader_epoch, topic_id)

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
            began_ms = self._loop.time() * 1000
            response = await self._cluster.send(
                node, request, purpose=Purpose.FETCH, timeout_ms=timeout_ms, version_cap=session.version_cap
            )
            if self._cluster.outages:
                self._cluster.outages.worked(log, f"fetch from broker {node}")
            tally = self._metrics.answered(began_ms, response.throttle_time_ms) if self._metrics else None
            if response.throttle_time_ms > 0:
                self._throttled(node, response.throttle_time_ms)
            for endpoint in response.node_endpoints:
                self._cluster.metadata.learn_broker(
                    Broker(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
                )
            answers = session.take(response)
            if answers is None:
                self._session_error(response.error_code, list(wanted))
            for tp, answer in answers or []:
                extent = await self._extent(answer, wanted[tp].offset)
                self._take(node, tp, answer, extent, wanted[tp].offset, versions[tp], tally)
            if answers is not None:
                self._fetched(wanted.keys() - {tp for tp, answer in answers if answer.error_code}, versions)
            if not settings.max_wait_ms and not any(answer.records for _, answer in answers or []):
                self._nothing_until[node] = self._loop.time() + max(self._backoff.delay_ms(1), 1) / 1000
            if tally is not None and self._metrics is not None:
                self._metrics.looked_at(tally)
        except KafkaError as exc:
            session.failed()
            self._failed(node, list(wanted), exc)
        except asyncio.CancelledError:
            session.failed()
            raise
        finally:
            if self._running.get(node) is asyncio.current_task():
                del self._running[node], self._reserved[node]
        self._on_data()  # once for all partitions: a poll that waits would return with the first alone
        self._rests_until[node] = self._loop.time() + _STANDBY_REST_S
        self.wake()

    def _session(self, node: int) -> FetchSession:
        if node not in self._sessions:
            self._sessions[node] = FetchSession(incremental=self._config.enable_incremental_fetch_sessions)
        return self._sessions[node]

    def _session_error(self, code: int, partitions: list[TopicPartition]) -> None:
        action = action_for(m.FetchRequest, code) if code else Action.NEW_SESSION
        log.debug("the fetch session starts again: %s", ErrorCode.name_of(code))
        if action is Action.FATAL:
            self._on_error(for_code(code, api="Fetch"))
        if action is not Action.NEW_SESSION:
            self._refresh_soon()
            self._pause_for_backoff(partitions)

    def _failed(self, node: int, partitions: list[TopicPartition], error: KafkaError) -> None:
        if not error.retriable:
            self._on_error(error)
        self._cluster.outages.failed(
            log, f"fetch from broker {node}", f"fetch from broker {node} failed: {error}"
        )
        self._targets.failed(node, partitions, self._loop.time())
        self._refresh_soon()
        self._pause_for_backoff(partitions)

    def _throttled(self, node: int, throttle_ms: int) -> None:
        log.debug("broker %d asks to be left alone for %d ms: a quota is used up", node, throttle_ms)
        self._targets.throttle(node, self._loop.time() + throttle_ms / 1000)
        self._wake_later(throttle_ms / 1000)

    def _pause_for_backoff(self, partitions: list[TopicPartition]) -> None:
        delay = max(self._backoff.delay_ms(1), 1) / 1000
        self._targets.pause(partitions, self._loop.time() + delay)
        self._wake_later(delay)

    def _wake_later(self, delay: float) -> None:
        when = self._loop.time() + delay + 0.001
        if self._closed or (self._timer is not None and self._timer.when() <= when):
            return
        if self._timer is not None:
            self._timer.cancel()
            # What the later one was for is found again when the earlier one wakes.
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _refresh_soon(self) -> None:
        self._refresh()
        self._wake_later(max(self._config.retry_backoff_ms, 10) / 1000)

    # -- answers ---------------------------------------------------------------------------------

    async def _extent(self, answer: m.FetchResponsePartition, offset: int) -> Extent | None:
        """How far the records of one partition go; ``None``: there are none.

        A thread walks those that take long: millions of messages of a format before record batches.
        """
        data = answer.records
        if answer.error_code or data is None or not len(data):
            return None
        extent = measure_within(data, offset, _STEPS_ON_LOOP)
        if extent is None:
            extent = await self._loop.run_in_executor(record_decoder(), measure, data, offset)
        return extent

    def _take(
        self,
        node: int,
        tp: TopicPartition,
        answer: m.FetchResponsePartition,
        extent: Extent | None,
        offset: int,
        version: int,
        tally: FetchTally | None,
    ) -> None:
        state = self._subscription.current(tp, version)
        if state is None:
            return
        if answer.error_code:
            self._partition_error(node, state, answer, offset)
            return
        state.highwater = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        state.log_start_offset = answer.log_start_offset
        if answer.preferred_read_replica >= 0 and answer.preferred_read_replica != node:
            self._prefer(tp, answer.preferred_read_replica)
        if extent is not None:
            self._add(state, answer, extent, offset, version, tally)

    def _fetched(self, partitions: Iterable[TopicPartition], versions: dict[TopicPartition, int]) -> None:
        """The ends of these are known. An incremental session's answer leaves out those of which there is
        nothing new (KIP-227)."""
        for tp in partitions:
            if (state := self._subscription.current(tp, versions[tp])) is not None:
                state.fetched = True

    def _prefer(self, tp: TopicPartition, node: int) -> None:
        self._targets.prefer(tp, node, self._loop.time())
        if node not in self._cluster.metadata.brokers:
            # Where it is has to be asked first; the leader would name it again, as often as it is asked.
            self._refresh_soon()
            self._pause_for_backoff([tp])

    def _add(
        self,
        state: PartitionState,
        answer: m.FetchResponsePartition,
        extent: Extent,
        offset: int,
        version: int,
        tally: FetchTally | None,
    ) -> None:
        data = _own(answer.records or b"")
        # Some of it may have been skipped meanwhile, or have come from another leader.
        begin = max(offset, self._ahead.of(state).offset)
        if begin > offset and (extent.next_offset <= begin or not extent.whole):
            return
        aborted = None
        if self._settings.read_committed:
            transactions = answer.aborted_transactions or []
            aborted = [(transaction.producer_id, transaction.first_offset) for transaction in transactions]
        self._ahead.set(state.tp, Ahead(version, extent.next_offset, broken=not extent.whole))
        self._served[state.tp] = next(self._turns)
        if tally is not None and self._metrics is not None:
            self._metrics.begun(tally)
        self._buffer.add(
            Chunk(state.tp, data, begin, extent.next_offset, version, aborted, extent.epochs, tally)
        )

    def _partition_error(
        self, node: int, state: PartitionState, answer: m.FetchResponsePartition, offset: int
    ) -> None:
        tp, code = state.tp, answer.error_code
        action = action_for(m.FetchRequest, code)
        from_replica = self._targets.to_leader(tp) == node
        leader = answer.current_leader
        metadata = self._cluster.metadata
        news = metadata.learn_leader(tp, leader.leader_id, leader.leader_epoch)
        if news:
            self._on_leader()
        if news and leader.leader_id in metadata.brokers:
            return
        ahead = self._subscription.is_ahead(state)
        if ahead and (action is Action.FATAL or (action is Action.RESET_OFFSET and not from_replica)):
            # The next owner looks up its own position, and gets the error again if it persists.
            log.warning("%s is not fetched ahead any more: %s", tp, ErrorCode.name_of(code))
            self._subscription.keep_ahead(self._subscription.prefetched.keys() - {tp})
            self._buffer.drop_stale()
            return
        if action is Action.RESET_OFFSET and not from_replica:
            self._out_of_range(state, offset)
            return
        if action is Action.FATAL:
            self._on_error(for_code(code, f"of {tp}", api="Fetch"))
        elif action in (Action.REFRESH_METADATA, Action.NEW_SESSION):
            self._refresh_soon()
        self._pause_for_backoff([tp])

    def _out_of_range(self, state: PartitionState, offset: int) -> None:
        """The log does not reach to ``offset`` (any more). What was fetched before is still good, and is
        handed over first, as in Java's Fetcher; the log is not asked again until then."""
        ahead = self._ahead.of(state)
        if ahead.offset != offset:
            return
        if self._buffer.held_chunks(state.tp):
            ahead.broken = True
            return
        # Where nobody but the application can say where to go on, it may take its time.
        ahead.not_before = self._loop.time() + max(self._backoff.delay_ms(1), 1) / 1000
        self._on_out_of_range(state)

    def replica(self, tp: TopicPartition) -> int:
        """The follower that a partition is read from (KIP-392), -1 for its leader."""
        return self._targets.replica(tp)

    async def close(self) -> None:
        """Stops. Fetches that are parked at a broker end with their connections."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        running = dict(self._running)
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


def _own(data: Buffer) -> Buffer:
    """The bytes without the rest of the answer, which a view keeps in memory as long as it lives."""
    if isinstance(data, memoryview) and len(data.obj) > 2 * len(data):  # type: ignore[arg-type]
        return bytes(data)
    return data


@dataclass(slots=True)
class Ahead:
    """How far a partition has been fetched since its last jump (``version``).

    ``broken``: it is not fetched past ``offset`` before what was fetched has been handed over.
    ``not_before``: the log does not reach to ``offset``, and is not asked again earlier, unless it jumps.
    """

    version: int
    offset: int
    broken: bool = False
    not_before: float = 0.0


class FetchedAhead:
    """The fetched offsets of all partitions. ``on_jump`` gets each one that restarts at its position."""

    def __init__(self, *, on_jump: Callable[[TopicPartition], object]) -> None:
        self._ahead: dict[TopicPartition, Ahead] = {}
        self._on_jump = on_jump

    def of(self, state: PartitionState) -> Ahead:
        """The entry of a partition that has a position; the caller may change it in place."""
        ahead = self._ahead.get(state.tp)
        if ahead is None or ahead.version != state.version:
            assert state.position is not None
            ahead = self._ahead[state.tp] = Ahead(state.version, state.position)
            self._on_jump(state.tp)
        elif state.position is not None and ahead.offset < state.position:
            # What is prefetched was moved on beyond what has been fetched of it.
            ahead.offset, ahead.broken, ahead.not_before = state.position, False, 0.0
        return ahead

    def set(self, tp: TopicPartition, ahead: Ahead) -> None:
        """Replaces the entry of a partition, since more of it has been fetched."""
        self._ahead[tp] = ahead
