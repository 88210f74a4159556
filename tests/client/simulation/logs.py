"""The topics' logs as counters: what a leader answers to Fetch, ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

from slackwater.devbroker.api.fetch import failed
from slackwater.devbroker.api.fetch_sessions import Answer, BrokerFetchPartition, FetchContext, FetchSessions
from slackwater.kafka.records import BatchBuilder, set_base_offset
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.primitives import ZERO_UUID

_IDS = UUID("3f1d6a52-0a1b-4f6e-8a51-77d0c2a5f0e3")
_BY_ID = 13
_LEADER_IN_FETCH = 12
_BATCHES_A_FETCH = 3


@lru_cache(maxsize=4096)
def batch(base_offset: int, count: int, epoch: int) -> bytes:
    """A real record batch, as its leader stores it; each record's value is its offset."""
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_000 + number, None, str(base_offset + number).encode())
    stored = bytearray(builder.build())
    set_base_offset(stored, 0, base_offset, epoch)
    return bytes(stored)


@lru_cache(maxsize=64)
def id_of(topic: str) -> UUID:
    """A topic's id."""
    return uuid5(_IDS, topic)


@dataclass(eq=False, slots=True)
class Log:
    """A partition: its batches, its leader (-1: none), and where each leader epoch began."""

    tp: TopicPartition
    leader: int
    epoch: int = 0
    end: int = 0
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    waiting: dict[int, Callable[[], None]] = field(default_factory=dict)

    def append(self, count: int) -> None:
        """Appends a batch of ``count`` records and wakes parked fetches."""
        self.batches.append((self.end, count, self.epoch))
        self.end += count
        self.wake()

    def led_by(self, node: int) -> None:
        """Has another leader from now on."""
        self.leader = node
        self.epoch += 1
        self.epochs.append((self.epoch, self.end))
        self.wake()

    def wake(self) -> None:
        """Has parked fetches look again."""
        for complete in list(self.waiting.values()):
            complete()

    def read(self, offset: int) -> bytes:
        """Whole batches from the one that has ``offset``, as a broker gives them."""
        batches = [batch for batch in self.batches[-64:] if batch[0] + batch[1] > offset]
        if not batches or batches[0][0] > offset:
            batches = [batch for batch in self.batches if batch[0] + batch[1] > offset]
        return b"".join(batch(*span) for span in batches[:_BATCHES_A_FETCH])

    def check(self, node: int, epoch: int) -> ErrorCode:
        """What a request to ``node`` with the client's idea of the leader epoch deserves (KIP-320)."""
        if self.leader != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if 0 <= epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE


class Logs:
    """All logs of the cluster. They are replicated: a leader that moves loses nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.topics: dict[str, list[Log]] = {}
        self._fetches = 0

    def all(self) -> list[Log]:
        """Every partition's log."""
        return [log for logs in self.topics.values() for log in logs]

    def find(self, topic: str | None, index: int) -> Log | None:
        """A partition's log, or ``None``."""
        logs = self.topics.get(topic or "", [])
        return logs[index] if 0 <= index < len(logs) else None

    # What the group coordinator asks (slackwater.devbroker.group.TopicLookup).

    def names(self) -> list[str]:
        return sorted(self.topics)

    def topic_id(self, name: str) -> UUID | None:
        """The topic's id."""
        return id_of(name) if name in self.topics else None

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id."""
        return next((name for name in self.topics if id_of(name) == topic_id), None)

    def partition_count(self, name: str) -> int | None:
        """How many partitions the topic has."""
        return len(self.topics[name]) if name in self.topics else None

    # -- requests

    def _led(self, node: int, topic: str, index: int, epoch: int, answer: Any) -> Log | None:
        """The partition, if ``node`` leads it in the client's epoch; else the error is in ``answer``."""
        log = self.find(topic, index)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else log.check(node, epoch)
        answer.error_code = int(error)
        return None if error else log

    def list_offsets(self, node: int, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        """Earliest (-2) and latest (-1) offsets; records have no times here."""
        response = m.ListOffsetsResponse()
        for topic in request.topics:
            answers = []
            for part in topic.partitions:
                answer = m.ListOffsetsResponsePartitionResponse(partition_index=part.partition_index)
                log = self._led(node, topic.name, part.partition_index, part.current_leader_epoch, answer)
                if log is not None:
                    answer.offset = 0 if part.timestamp == -2 else log.end
                    answer.leader_epoch = log.epoch
                answers.append(answer)
            response.topics.append(m.ListOffsetsResponseTopicResponse(name=topic.name, partitions=answers))
        return response

    def epoch_ends(self, node: int, request: m.OffsetForLeaderEpochRequest) -> m.OffsetForLeaderEpochResponse:
        """Where a leader epoch ended: the begin of the next one, or the log's end."""
        response = m.OffsetForLeaderEpochResponse()
        for topic in request.topics:
            answers = []
            for part in topic.partitions:
                answer = m.OffsetForLeaderEpochResponsePartition(partition=part.partition)
                log = self._led(node, topic.topic, part.partition, part.current_leader_epoch, answer)
                if log is not None and 0 <= part.leader_epoch <= log.epoch:
                    later = [start for epoch, start in log.epochs if epoch > part.leader_epoch]
                    answer.leader_epoch = part.leader_epoch
                    answer.end_offset = later[0] if later else log.end
                answers.append(answer)
            response.topics.append(m.OffsetForLeaderEpochResponseTopic(topic=topic.topic, partitions=answers))
        return response

    def fetch(
        self,
        node: int,
        sessions: FetchSessions,
        version: int,
        request: m.FetchRequest,
        reply: Callable[[m.FetchResponse], None],
    ) -> None:
        """Answers now, or when there is something or the time is over."""
        context = sessions.context(request, version, int(self.loop.time() * 1000))
        if context.error:
            reply(m.FetchResponse(error_code=int(context.error)))
            return
        answers = [(part, self._read(node, version, part)) for part in context.partitions]
        if (
            not answers
            or any(part.error_code or part.records for _, part in answers)
            or not request.max_wait_ms
        ):
            reply(_response(sessions, context, answers, version))
            return
        self._park(node, sessions, version, request, context, reply)

    def _park(
        self,
        node: int,
        sessions: FetchSessions,
        version: int,
        request: m.FetchRequest,
        context: FetchContext,
        reply: Callable[[m.FetchResponse], None],
    ) -> None:
        self._fetches += 1
        key = self._fetches
        logs = [log for part in context.partitions if (log := self.find(part.topic, part.index)) is not None]

        def complete() -> None:
            timer.cancel()
            for log in logs:
                log.waiting.pop(key, None)
            answers = [(part, self._read(node, version, part)) for part in context.partitions]
            reply(_response(sessions, context, answers, version))

        timer = self.loop.call_later(request.max_wait_ms / 1000, complete)
        for log in logs:
            log.waiting[key] = complete

    def _read(self, node: int, version: int, part: BrokerFetchPartition) -> m.FetchResponsePartition:
        if version >= _BY_ID and part.topic is None:
            part.topic = self.topic_name(part.topic_id)
            if part.topic is None:
                return failed(part.index, ErrorCode.UNKNOWN_TOPIC_ID)
        log = self.find(part.topic, part.index)
        if log is None:
            return failed(part.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = log.check(node, part.current_leader_epoch)
        if not error and part.fetch_offset > log.end:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        if error:
            answer = failed(part.index, error)
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= _LEADER_IN_FETCH:
                answer.current_leader = m.FetchResponseLeaderIdAndEpoch(
                    leader_id=log.leader, leader_epoch=log.epoch
                )
            return answer
        return m.FetchResponsePartition(
            partition_index=part.index,
            high_watermark=log.end,
            last_stable_offset=log.end,
            log_start_offset=0,
            aborted_transactions=None,
            records=log.read(part.fetch_offset) if part.fetch_offset < log.end else b"",
        )


def _response(
    sessions: FetchSessions, context: FetchContext, answers: list[Answer], version: int
) -> m.FetchResponse:
    response = m.FetchResponse(session_id=context.session.id if context.session else 0)
    by_topic: dict[str | UUID, m.FetchResponseTopic] = {}
    for part, answer in sessions.answered(context, answers):
        key = part.topic_id if version >= _BY_ID else part.topic or ""
        topic = by_topic.get(key)
        if topic is None:
            topic = by_topic[key] = m.FetchResponseTopic(
                topic=part.topic or "", topic_id=part.topic_id if version >= _BY_ID else ZERO_UUID
            )
            response.responses.append(topic)
        topic.partitions.append(answer)
    return response
