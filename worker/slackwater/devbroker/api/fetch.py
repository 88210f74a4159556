"""Fetch: reads records, or waits for them (long polling)."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from slackwater.devbroker.api.fetch_sessions import (
    NO_SESSION,
    Answer,
    BrokerFetchPartition,
    FetchContext,
    FetchSessions,
)
from slackwater.devbroker.faults.error_responses import is_top_level_in_fetch
from slackwater.devbroker.faults.rules import ActiveFault
from slackwater.devbroker.network.connection import Exchange
from slackwater.devbroker.storage.partition import LEADER_EPOCH, LOG_START_OFFSET, PartitionLog
from slackwater.devbroker.storage.topics import TopicStore
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

READ_COMMITTED = 1
_NOT_HERE = {int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.UNKNOWN_TOPIC_ID)}
"""A broker filters these out before it reads, so they do not end the wait for the other partitions
(Kafka 4.3, ``KafkaApis.handleFetchRequest``); an error of reading does."""


class FetchEnvironment(Protocol):
    """What Fetch needs of the broker."""

    topics: TopicStore
    sessions: FetchSessions

    def now_ms(self) -> int: ...


def handle_fetch(
    broker: FetchEnvironment,
    exchange: Exchange,
    request: m.FetchRequest,
    max_bytes: int,
    fault: ActiveFault | None = None,
) -> None:
    """Answers a Fetch at once, or when ``min_bytes`` are there or ``max_wait_ms`` have passed.

    ``max_bytes`` is the broker's limit for one answer, ``fault`` an error to put into it.
    """
    version = exchange.header.api_version
    if fault is not None and fault.rule.error is not None and is_top_level_in_fetch(fault.rule.error):
        exchange.reply(m.FetchResponse(error_code=int(fault.rule.error)))
        return
    context = broker.sessions.context(request, version, broker.now_ms())
    if context.error:
        exchange.reply(m.FetchResponse(error_code=int(context.error)))
        return
    _Fetch(broker, exchange, request, context, max_bytes, fault).start()


class _Fetch:
    """One Fetch request under way; a ``ParkedFetch`` of a partition while it waits."""

    def __init__(
        self,
        broker: FetchEnvironment,
        exchange: Exchange,
        request: m.FetchRequest,
        context: FetchContext,
        max_bytes: int,
        fault: ActiveFault | None,
    ) -> None:
        self._broker = broker
        self._exchange = exchange
        self._request = request
        self._context = context
        self._max_bytes = min(max_bytes, request.max_bytes)
        self._fault = fault
        self._by_id = exchange.header.api_version >= 13
        self._waits_for: list[PartitionLog] = []
        self._available: dict[PartitionLog, int] = {}
        self._limits: dict[PartitionLog, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False

    def start(self) -> None:
        """Reads, and answers or parks."""
        answers, size = self._read()
        errors = [answer.error_code for _, answer in answers]
        if (
            self._request.max_wait_ms <= 0
            or size >= self._request.min_bytes
            or all(code in _NOT_HERE for code in errors)
            or any(code and code not in _NOT_HERE for code in errors)
            or self._fault is not None
        ):
            self._answer(answers)
            return
        self._park(answers)

    def _park(self, answers: list[Answer]) -> None:
        for part, answer in answers:
            partition = self._partition_of(part)
            if partition is not None:
                self._waits_for.append(partition)
                self._available[partition] = len(answer.records or b"")
                self._limits[partition] = part.max_bytes
                partition.waiters[self] = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self._complete)

    def grown(self, partition: PartitionLog, appended_bytes: int) -> None:
        """Completes once ``min_bytes`` are available; after the current append, to return all of it."""
        self._available[partition] = min(
            self._available[partition] + appended_bytes, max(appended_bytes, self._limits[partition])
        )
        if sum(self._available.values()) >= self._request.min_bytes:
            self.gone()

    def gone(self) -> None:
        """Completes in the next loop iteration."""
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._complete)

    def _complete(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        for partition in self._waits_for:
            partition.waiters.pop(self, None)
        if not self._exchange.done:
            self._answer(self._read()[0])

    def _answer(self, answers: list[Answer]) -> None:
        context = self._context
        answers = self._broker.sessions.answered(context, answers)
        topics: list[m.FetchResponseTopic] = []
        for part, answer in answers:
            key = part.topic_id if self._by_id else part.topic
            if not topics or key != (topics[-1].topic_id if self._by_id else topics[-1].topic):
                topics.append(m.FetchResponseTopic(topic=part.topic or "", topic_id=part.topic_id))
            topics[-1].partitions.append(answer)
        session_id = context.session.id if context.session else NO_SESSION
        self._exchange.reply(m.FetchResponse(session_id=session_id, responses=topics))

    # -- reading ------------------------------------------------------------------------------

    def _read(self) -> tuple[list[Answer], int]:
        """Every partition's answer, and how many bytes of records they hold in all."""
        answers: list[Answer] = []
        size = 0
        for part in self._context.partitions:
            answer = self._read_partition(part, self._max_bytes - size, first=size == 0)
            size += len(answer.records or b"")
            answers.append((part, answer))
        return answers, size

    def _read_partition(
        self, part: BrokerFetchPartition, room: int, *, first: bool
    ) -> m.FetchResponsePartition:
        error, partition = self._check(part)
        if error or partition is None:
            return failed(part.index, error)
        limit = min(part.max_bytes, max(room, 0))
        try:
            records = (
                partition.read(part.fetch_offset, limit, at_least_one=first)
                if part.fetch_offset < partition.end_offset and (first or limit > 0)
                else b""
            )
        except OSError as exc:
            log.error("partition %s: cannot read: %s", partition, exc.strerror)
            return failed(part.index, ErrorCode.KAFKA_STORAGE_ERROR)
        end = partition.end_offset
        return m.FetchResponsePartition(
            partition_index=part.index,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=LOG_START_OFFSET,
            aborted_transactions=[] if self._request.isolation_level == READ_COMMITTED else None,
            records=records,
        )

    def _check(self, part: BrokerFetchPartition) -> tuple[ErrorCode, PartitionLog | None]:
        """The error of a partition, or the partition. By the rules of Fetch v13 (KIP-516)."""
        if self._by_id and part.topic is None:
            named = self._broker.topics.by_id(part.topic_id)
            if named is None:
                return ErrorCode.UNKNOWN_TOPIC_ID, None
            part.topic = named.name
        if self._fault is not None and self._fault.matches(None, part.topic, part.index):
            return self._fault.rule.error or ErrorCode.NONE, None
        topic = self._broker.topics.by_name(part.topic or "")
        partition = topic.partition(part.index) if topic else None
        if topic is None or partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if self._by_id and topic.topic_id != part.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID, None
        error = leader_epoch_error(part.current_leader_epoch)
        if not error and not LOG_START_OFFSET <= part.fetch_offset <= partition.end_offset:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        return error, partition

    def _partition_of(self, part: BrokerFetchPartition) -> PartitionLog | None:
        topic = self._broker.topics.by_name(part.topic or "")
        return topic.partition(part.index) if topic else None


def leader_epoch_error(epoch: int) -> ErrorCode:
    """The error for a client's leader epoch (KIP-320); -1: the client has none."""
    if epoch > LEADER_EPOCH:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if 0 <= epoch < LEADER_EPOCH:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.NONE


def failed(index: int, error: ErrorCode) -> m.FetchResponsePartition:
    """The answer of a partition with an error."""
    return m.FetchResponsePartition(
        partition_index=index,
        error_code=int(error),
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )
