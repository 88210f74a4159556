"""Sends batches to the leaders of their partitions and handles the answers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

from slackwater.clock import Clock
from slackwater.kafka.errors import (
    BrokerError,
    KafkaConnectionError,
    KafkaError,
    SendDeadlineError,
    TransactionAbortedError,
    UnsupportedVersionError,
    for_code,
)
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.cluster import Cluster
from slackwater.kafka.net.connection import Connection
from slackwater.kafka.net.pool import Purpose
from slackwater.kafka.producer.accumulator import Accumulator
from slackwater.kafka.producer.batch import ProducerBatch, ProducerIdAndEpoch
from slackwater.kafka.producer.config import ProducerConfig
from slackwater.kafka.producer.metrics import ProducerMetrics
from slackwater.kafka.producer.queue import PartitionQueue
from slackwater.kafka.producer.transactions.states import TransactionStatus
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.metadata import Broker
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import EncodeError, ErrorCode
from slackwater.kafka.wire.primitives import ZERO_UUID

log = logging.getLogger(__name__)

_LAST_VERSION_BY_NAME = 12
"""Produce names topics by id from the next version on (KIP-516)."""
_LAST_WITHOUT_ADDING = 11
"""Produce adds its partitions to the transaction from the next version on (KIP-890)."""

_STALE_EPOCH = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
"""Fatal, but of a transactional producer: that asks whether its transaction has only timed out."""
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_IDLE_S = 30.0
_ADD_PARTITIONS = "partitions of the transaction"
_NOT_ANSWERED = ErrorCode.NETWORK_EXCEPTION


class Sender:
    """One task that checks the queues whenever something may have changed.

    ``fatal`` is set when nothing can be sent any more; records that were waiting have failed with it.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        config: ProducerConfig,
        clock: Clock,
        rng: random.Random,
        metrics: ProducerMetrics,
        transaction: TransactionStatus | None = None,
    ) -> None:
        self._transaction = transaction
        """``None``: the producer has no transactional id."""
        self.add_partitions: Callable[[], Awaitable[None]] | None = None
        """Tells the coordinator of the partitions that are wanted."""
        self._passed = asyncio.Event()
        self._metrics = metrics
        self._cluster = cluster
        self._accumulator = accumulator
        self._config = config
        self._clock = clock
        self._backoff = Backoff(config.retry_backoff_ms, max(1_000, config.retry_backoff_ms), rng)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._wake_pending = False
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._identity: ProducerIdAndEpoch | None = None
        self._leaders_wanted = False
        self.last_problem: KafkaError | None = None
        """Why nothing could be sent lately."""
        self.fatal: KafkaError | None = None

    # -- the task ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Makes the sender check its queues. Call from its own loop."""
        self._changed.set()

    def wake_threadsafe(self) -> None:
        """Makes the sender check its queues. Call from any thread; cheap if it is already about to."""
        if not self._wake_pending:
            self._wake_pending = True
            self._loop.call_soon_threadsafe(self._changed.set)

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self._wake_pending = False
                self._changed.clear()
                next_ms = self._pass(self._clock.mono_ms())
                delay = _IDLE_S if next_ms is None else (next_ms - self._clock.mono_ms()) / 1000
                timer = self._loop.call_later(max(0.0, delay), self._changed.set)
                try:
                    await self._changed.wait()
                finally:
                    timer.cancel()
        except Exception as exc:
            self._failed(exc)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._passed.set()

    def _failed(self, exc: Exception) -> None:
        """Ends the producer for an error that nothing here expects: all futures fail now, in place of those
        whose batches it has left under way, which nobody would look at any more."""
        log.exception("the producer's sender ended")
        self.fail_all(KafkaError(f"the producer has failed: {exc!r}"))

    def _pass(self, now_ms: float) -> float | None:
        """Sends what can be sent. Returns when to check again unless something happens before."""
        for batch in self._accumulator.expire(now_ms):
            self._metrics.failed(batch)
            assert batch.error is not None
            self.transaction_failed(batch.error)
            what, cause = f"sending to {batch.tp}", str(batch.last_error)
            self._cluster.outages.failed(log, what, str(batch.error), logging.WARNING, cause=cause)
        by_node: dict[int, list[PartitionQueue]] = {}
        waits: list[float] = []
        with self._accumulator.lock:
            for queue in self._accumulator.active():
                self._check(queue, now_ms, by_node, waits)
        self._leaders_wanted = self._leaders_wanted or any(node < 0 for node in by_node)
        if self._leaders_wanted:
            self._start("metadata", self._refresh)
        for node_id, queues in by_node.items():
            if node_id >= 0:
                self._send_to(node_id, queues, now_ms)
        self._passed.set()
        return min(waits, default=None)

    def _check(
        self,
        queue: PartitionQueue,
        now_ms: float,
        by_node: dict[int, list[PartitionQueue]],
        waits: list[float],
    ) -> None:
        deadline = queue.next_deadline_ms()
        if deadline is not None:
            waits.append(deadline)
        if queue.needs_identity:
            if self._identity is None:
                self._start("identity", self._init_producer_id)
                return
            queue.set_identity(self._identity)
        due = queue.due_ms(self._config.linger_ms, at_once=self._accumulator.at_once)
        if due is None:
            return
        if due > now_ms:
            waits.append(due)
            return
        if self._transaction is not None and not self._transaction.takes(queue.tp):
            if self._transaction.wanted and self.add_partitions is not None:
                self._start(_ADD_PARTITIONS, self.add_partitions)
            return
        leader = self._cluster.metadata.leader(queue.tp)
        by_node.setdefault(-1 if leader is None else leader, []).append(queue)

    def _start(self, key: object, make: Callable[[], object]) -> None:
        """Runs a job in the background; at most one per key."""
        if key in self._tasks:
            return

        async def job() -> None:
            try:
                await make()  # type: ignore[misc]
            except Exception as exc:
                self._failed(exc)
            finally:
                del self._tasks[key]
                self.wake()

        self._tasks[key] = asyncio.create_task(job(), name=f"producer {key}")

    # -- background jobs ---------------------------------------------------------------------------

    async def _refresh(self) -> None:
        failures = 0
        while self._leaders_wanted:
            self._leaders_wanted = False
            try:
                await self._cluster.refresh()
            except KafkaError as exc:
                self.last_problem = exc
                self._leaders_wanted = True
            failures += 1
            # Also after success: electing a leader takes time that more requests do not shorten.
            await asyncio.sleep(self._backoff.delay_ms(failures) / 1000)
            self.wake()

    async def _connect(self, node_id: int) -> None:
        try:
            await self._cluster.connection(node_id, Purpose.PRODUCE)
            self._cluster.outages.worked(log, f"broker {node_id}")
        except KafkaConnectionError as exc:
            self.last_problem = exc
            self._cluster.outages.failed(log, f"broker {node_id}", str(exc), logging.WARNING)
            self._note_problem(node_id, exc)
            self._leaders_wanted = True
        except KafkaError as exc:
            self.fail_all(exc)

    def _note_problem(self, node_id: int, error: KafkaError) -> None:
        with self._accumulator.lock:
            for queue in self._accumulator.active():
                if self._cluster.metadata.leader(queue.tp) == node_id:
                    for batch in queue.batches():
                        batch.last_error = error

    async def _init_producer_id(self) -> None:
        failures = 0
        while self._identity is None:
            try:
                request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
                answer = await self._cluster.send_any(request)
                if answer.error_code:
                    raise for_code(answer.error_code, api="InitProducerId")
                self._identity = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                return
            except KafkaError as exc:
                if not _worth_repeating(exc):
                    self.fail_all(_no_idempotence(exc))
                    return
                self.last_problem = exc
                failures += 1
                await asyncio.sleep(self._backoff.delay_ms(failures) / 1000)

    # -- requests ----------------------------------------------------------------------------------

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now_ms: float) -> None:
        connection = self._cluster.open_connection(node_id, Purpose.PRODUCE)
        if connection is None:
            self._start(("connect", node_id), partial(self._connect, node_id))
            return
        start = 0
        limit = self._config.max_in_flight_requests_per_connection
        while start < len(queues) and connection.in_flight < limit and not connection.closed:
            batches, start = self._collect(queues, start, now_ms)
            if batches:
                self._send(connection, batches)
        # Batches beyond the limit are sent after the next answer, which wakes the sender.

    def _collect(
        self, queues: list[PartitionQueue], start: int, now_ms: float
    ) -> tuple[list[ProducerBatch], int]:
        """One batch of each queue from ``start`` on, as many as fit a request; and the next start."""
        batches: list[ProducerBatch] = []
        size = 0
        for index in range(start, len(queues)):
            with self._accumulator.lock:
                at_once = self._accumulator.at_once
                batch = queues[index].take(now_ms, self._config.linger_ms, at_once=at_once)
            if batch is None:
                continue
            batches.append(batch)
            size += len(batch.payload())
            if size >= self._config.max_request_size:
                return batches, index + 1
        return batches, len(queues)

    def _send(self, connection: Connection, batches: list[ProducerBatch]) -> None:
        batches = self._not_late(batches)
        if not batches:
            return
        if self._transaction is not None:
            self._transaction.touched = True
        self._metrics.sent(batches)
        request, cap = self._request(batches)
        acks = self._config.required_acks
        try:
            answer = connection.send(request, version_cap=cap, answered=acks != 0)
        except KafkaConnectionError as exc:
            self._all_failed(batches, exc)
            return
        except (UnsupportedVersionError, EncodeError) as exc:
            error = exc if isinstance(exc, KafkaError) else KafkaError(str(exc))
            for batch in batches:
                self._give_up(batch, error)
            return
        if acks == 0:
            for batch in batches:
                self._succeed(batch, -1, -1)
            self.wake()
            return
        answer.add_done_callback(partial(self._answered, batches))

    def _not_late(self, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        """Gives up the batches that may not be sent any more; returns the others."""
        # The clock is read here, directly before the write: this process may have been suspended meanwhile.
        now_ms = self._clock.mono_ms()
        for batch in batches:
            if batch.send_by_ms < now_ms:
                self._give_up(batch, _too_late(batch))
        return [batch for batch in batches if batch.send_by_ms >= now_ms]

    def _request(self, batches: list[ProducerBatch]) -> tuple[m.ProduceRequest, int | None]:
        topics: dict[str, m.ProduceRequestTopic] = {}
        adding = self._transaction is not None and self._transaction.adds_partitions
        cap: int | None = _LAST_WITHOUT_ADDING if adding else None
        for batch in batches:
            name = batch.tp.topic
            topic = topics.get(name)
            if topic is None:
                topic_id = self._cluster.metadata.topic_id(name)
                if topic_id == ZERO_UUID and not adding:
                    cap = _LAST_VERSION_BY_NAME
                topic = topics[name] = m.ProduceRequestTopic(name=name, topic_id=topic_id)
            partition = m.ProduceRequestPartition(index=batch.tp.partition, records=batch.payload())
            topic.partition_data.append(partition)
        return m.ProduceRequest(
            transactional_id=self._config.transactional_id,
            acks=self._config.required_acks,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=list(topics.values()),
        ), cap

    # -- answers -----------------------------------------------------------------------------------

    def _answered(self, batches: list[ProducerBatch], answer: asyncio.Future[m.ProduceResponse]) -> None:
        self.wake()
        try:
            self._take_answers(batches, answer)
        except Exception as exc:
            self._failed(exc)

    def _take_answers(self, batches: list[ProducerBatch], answer: asyncio.Future[m.ProduceResponse]) -> None:
        if answer.cancelled():
            self._all_failed(batches, KafkaConnectionError("the request was cancelled"))
            return
        problem = answer.exception()
        if problem is not None:
            error = problem if isinstance(problem, KafkaError) else KafkaError(str(problem))
            self._all_failed(batches, error)
            return
        outcomes = self._by_partition(answer.result(), {batch.tp.topic for batch in batches})
        for batch in batches:
            partition = outcomes.get(batch.tp)
            if partition is None:
                text = f"the answer to Produce leaves {batch.tp} out"
                self._retry_or_give_up(batch, for_code(_NOT_ANSWERED, text))
            else:
                self._take_answer(batch, partition)

    def _by_partition(
        self, response: m.ProduceResponse, topics: set[str]
    ) -> dict[TopicPartition, m.ProduceResponsePartition]:
        metadata = self._cluster.metadata
        ids = {metadata.topic_id(name): name for name in topics}
        outcomes = {}
        for topic in response.responses:
            name = topic.name or ids.get(topic.topic_id) or metadata.topic_name(topic.topic_id)
            for partition in topic.partition_responses:
                if name is not None:
                    outcomes[TopicPartition(name, partition.index)] = partition
        for node in response.node_endpoints:
            metadata.learn_broker(Broker(node.node_id, node.host, node.port, node.rack))
        return outcomes

    def _take_answer(self, batch: ProducerBatch, outcome: m.ProduceResponsePartition) -> None:
        code = outcome.error_code
        if code == ErrorCode.NONE:
            self._succeed(batch, outcome.base_offset, outcome.log_append_time_ms)
            return
        action = action_for(m.ProduceRequest, code)
        if action is Action.DONE:
            self._succeed(batch, -1, -1)
            return
        error = for_code(code, f"of {_explain(batch, outcome)}", api="Produce")
        if self._discarding:
            self._give_up(batch, error)
            return
        retry_at = self._clock.mono_ms() + self._backoff.delay_ms(batch.attempts)
        with self._accumulator.lock:
            queue = self._accumulator.queues[batch.tp]
            if queue.gap(batch, code, error, retry_at):
                if batch.finished.is_set():
                    self._accumulator.done(batch)
                log.warning("%s; going on from there (epoch %d)", error, queue.identity.epoch)
                return
            if code in _TOO_LARGE and batch.count > 1:
                log.warning("%s; sending it in two", error)
                queue.split(batch, error, retry_at)
                if batch.finished.is_set():
                    self._accumulator.done(batch)
                return
        if code in _STALE_EPOCH and self._config.enable_idempotence and self._transaction is None:
            self.fail_all(error)
            return
        leader = outcome.current_leader
        self._cluster.metadata.learn_leader(batch.tp, leader.leader_id, leader.leader_epoch)
        self._leaders_wanted = self._leaders_wanted or action is Action.REFRESH_METADATA
        if action in (Action.RETRY, Action.REFRESH_METADATA):
            self._retry_or_give_up(batch, error)
        else:
            self._give_up(batch, error)

    def _all_failed(self, batches: list[ProducerBatch], error: KafkaError) -> None:
        for batch in batches:
            self._retry_or_give_up(batch, error)

    def _retry_or_give_up(self, batch: ProducerBatch, error: KafkaError) -> None:
        self._leaders_wanted = self._leaders_wanted or error.invalid_metadata
        if not error.retriable or batch.attempts > self._config.retries or self._discarding:
            self._give_up(batch, error)
            return
        self._metrics.sending_again(batch)
        self._cluster.outages.failed(log, f"sending to {batch.tp}", f"sending to {batch.tp} again: {error}")
        with self._accumulator.lock:
            retry_at = self._clock.mono_ms() + self._backoff.delay_ms(batch.attempts)
            self._accumulator.queues[batch.tp].to_retry(batch, error, retry_at)
            if batch.finished.is_set():
                self._accumulator.done(batch)
        self.wake()

    def _give_up(self, batch: ProducerBatch, error: KafkaError) -> None:
        with self._accumulator.lock:
            self._accumulator.queues[batch.tp].given_up(batch)
            self._accumulator.done(batch)
        if batch.finish(error=error):
            self._metrics.failed(batch)
        self.transaction_failed(error)
        self.wake()

    def _succeed(self, batch: ProducerBatch, offset: int, log_append_ms: int) -> None:
        with self._accumulator.lock:
            self._accumulator.queues[batch.tp].succeeded(batch)
            self._accumulator.done(batch)
        if self._cluster.outages:
            self._cluster.outages.worked(log, f"sending to {batch.tp}")
        batch.finish(offset=offset, log_append_ms=log_append_ms)

    def fail_all(self, error: KafkaError, *, fatal: bool = True) -> None:
        """Fails all records without an outcome; with ``fatal`` also all later ones."""
        if fatal:
            self.fatal = error
            if self._transaction is not None:
                self.fatal = self._transaction.die(error)
        self._fail(error, in_flight=True)

    def _fail(self, error: KafkaError, *, in_flight: bool) -> None:
        with self._accumulator.lock:
            batches = [b for queue in self._accumulator.active() for b in queue.batches()]
            batches = [b for b in batches if in_flight or not b.in_flight]
            for batch in batches:
                self._accumulator.queues[batch.tp].given_up(batch)
                self._accumulator.done(batch)
        for batch in batches:
            batch.finish(error=error)
        self.wake()

    # -- transactions ------------------------------------------------------------------------------

    @property
    def _discarding(self) -> bool:
        """Whether no batch is sent again, because the transaction is to be aborted."""
        return self._transaction is not None and not self._transaction.sending

    def transaction_failed(self, error: KafkaError) -> None:
        """The transaction, if there is one, has to be aborted. Nothing more of it is sent."""
        if self._transaction is None:
            return
        self._transaction.renew |= isinstance(error, BrokerError) and error.code in _STALE_EPOCH
        self._transaction.fail(error)
        self.discard(TransactionAbortedError(f"the transaction of the record has failed: {error}"))

    def discard(self, error: KafkaError) -> None:
        """Fails the records of all batches but of those that are in flight."""
        self._fail(error, in_flight=False)

    def identify(self, identity: ProducerIdAndEpoch) -> None:
        """Goes on with this id and epoch, from sequence 0. No batch may be there."""
        self._identity = identity
        with self._accumulator.lock:
            for queue in self._accumulator.queues.values():
                queue.set_identity(identity)

    async def drained(self) -> None:
        """Waits until every batch has its outcome and nothing of it is under way."""
        self.wake()
        while self._busy():
            self._passed.clear()
            await self._passed.wait()

    def _busy(self) -> bool:
        with self._accumulator.lock:
            return _ADD_PARTITIONS in self._tasks or any(True for _ in self._accumulator.active())


def _explain(batch: ProducerBatch, outcome: m.ProduceResponsePartition) -> str:
    """Describes a failed batch, with the broker's errors of single records (KIP-467)."""
    text = f"{batch.count} record(s) to {batch.tp}"
    if outcome.error_message:
        text += f": {outcome.error_message}"
    for record_error in outcome.record_errors:
        text += f"; record {record_error.batch_index}: {record_error.batch_index_error_message or 'refused'}"
    if outcome.error_code == ErrorCode.MESSAGE_TOO_LARGE:
        size = len(batch.payload())
        text += f": the batch has {size} bytes; lower batch_size or raise the topic's max.message.bytes"
    return text


def _too_late(batch: ProducerBatch) -> SendDeadlineError:
    if batch.attempts > 1:  # this one has been counted
        sent = f"{batch.attempts - 1} attempt(s) before may have stored it; last error: {batch.last_error}"
    else:
        sent = "it was never sent"
    return SendDeadlineError(
        f"{batch.count} record(s) to {batch.tp} were not sent by their send_by_ms ({sent}); send them again "
        "if they are still to be stored"
    )


def _worth_repeating(error: KafkaError) -> bool:
    if isinstance(error, BrokerError):
        return action_for(m.InitProducerIdRequest, error.code) is Action.RETRY
    return error.retriable


def _no_idempotence(error: KafkaError) -> KafkaError:
    hint = "the producer got no producer id; set enable_idempotence=False to do without"
    if isinstance(error, BrokerError):
        return for_code(error.code, f"{hint}: {error}")
    return KafkaError(f"{hint}: {error}")
