"""Incremental fetch sessions (KIP-227), by the rules of Kafka's ``FetchManager``.

A session keeps the partitions a client fetches, so that later requests name only what changes and
later answers hold only what is new. Names (Fetch v12 and below) and ids (v13 on) do not mix within
a session.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
_MIN_EVICTION_MS = 120_000
"""A session used within this time is not evicted for a new one (Kafka's default)."""
_UNSENT = -1

Key = tuple[Any, int]


@dataclass(slots=True, eq=False)
class BrokerFetchPartition:
    """One partition of a fetch. ``topic`` is ``None`` while the name of its id is unknown."""

    topic: str | None
    topic_id: UUID
    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    sent_high_watermark: int = _UNSENT

    def update(self, wanted: m.FetchRequestPartition) -> None:
        """Applies a later request of the session."""
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch

    def must_answer(self, answer: m.FetchResponsePartition) -> bool:
        """Whether an incremental answer must include this partition: records, an error, a new end.

        A partition in error is answered every time, so that its error is not lost.
        """
        if answer.error_code:
            self.sent_high_watermark = _UNSENT
            return True
        changed = answer.high_watermark != self.sent_high_watermark
        self.sent_high_watermark = answer.high_watermark
        return changed or bool(answer.records)


@dataclass(slots=True, eq=False)
class BrokerFetchSession:
    """What the broker keeps between the requests of a session."""

    id: int
    epoch: int
    uses_ids: bool
    partitions: OrderedDict[Key, BrokerFetchPartition]
    last_used_ms: int


@dataclass(slots=True)
class FetchContext:
    """How to answer one request: its partitions in order, its session, and its error."""

    partitions: list[BrokerFetchPartition] = field(default_factory=list)
    error: ErrorCode = ErrorCode.NONE
    session: BrokerFetchSession | None = None
    incremental: bool = False


def partition_key(topic: m.FetchRequestTopic | m.FetchRequestForgottenTopic, index: int, by_id: bool) -> Key:
    """The key of a partition within a session."""
    return (topic.topic_id if by_id else topic.topic, index)


def next_epoch(epoch: int) -> int:
    """Epochs go from 1 to 2^31-1 and then to 1 again; 0 would start a new session."""
    return 1 if epoch == 2**31 - 1 else epoch + 1


class FetchSessions:
    """The sessions of a broker, at most ``slots`` of them."""

    def __init__(self, slots: int, rng: random.Random) -> None:
        self._slots = slots
        self._rng = rng
        self._sessions: OrderedDict[int, BrokerFetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def context(self, request: m.FetchRequest, version: int, now_ms: int) -> FetchContext:
        """The partitions that ``request`` asks for; updates its session."""
        by_id = version >= 13
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            wanted = _wanted(request, by_id)
            session = None
            if request.session_epoch == INITIAL_EPOCH and version >= 7:
                session = self._new(wanted, by_id, now_ms)
            return FetchContext(list(wanted.values()), session=session)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchContext(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != by_id:
            return FetchContext(error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._continue(session, request, now_ms)

    def _continue(self, session: BrokerFetchSession, request: m.FetchRequest, now_ms: int) -> FetchContext:
        by_id = session.uses_ids
        for topic in request.topics:
            for part in topic.partitions:
                key = partition_key(topic, part.partition, by_id)
                known = session.partitions.get(key)
                if known is None:
                    session.partitions[key] = _partition(topic, part, by_id)
                else:
                    known.update(part)
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.partitions.pop(partition_key(forgotten, index, by_id), None)
        if not session.partitions:
            self._sessions.pop(session.id)
            return FetchContext()
        session.last_used_ms = now_ms
        session.epoch = next_epoch(session.epoch)
        self._sessions.move_to_end(session.id)
        return FetchContext(list(session.partitions.values()), session=session, incremental=True)

    def _new(
        self, wanted: OrderedDict[Key, BrokerFetchPartition], by_id: bool, now_ms: int
    ) -> BrokerFetchSession | None:
        """A session for these partitions, or ``None`` where there is no room or nothing to keep."""
        if not wanted or not self._slots:
            return None
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.last_used_ms < _MIN_EVICTION_MS:
                return None
            self._sessions.pop(oldest.id)
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._rng.randint(1, 2**31 - 1)
        session = BrokerFetchSession(session_id, 1, by_id, wanted, now_ms)
        self._sessions[session_id] = session
        return session

    def answered(self, context: FetchContext, answers: list[Answer]) -> list[Answer]:
        """The ``answers`` that go into the response; the session remembers them.

        In an incremental answer partitions with data go to the back of the session's order, so
        that a few busy ones cannot starve the others.
        """
        session = context.session
        if session is None:
            return answers
        sent = [(part, answer) for part, answer in answers if part.must_answer(answer)]
        if not context.incremental:
            return answers
        for part, answer in sent:
            key = (part.topic_id if session.uses_ids else part.topic, part.index)
            if answer.records and key in session.partitions:
                session.partitions.move_to_end(key)
        return sent


Answer = tuple[BrokerFetchPartition, m.FetchResponsePartition]


def _partition(
    topic: m.FetchRequestTopic, part: m.FetchRequestPartition, by_id: bool
) -> BrokerFetchPartition:
    return BrokerFetchPartition(
        topic=None if by_id else topic.topic,
        topic_id=topic.topic_id,
        index=part.partition,
        fetch_offset=part.fetch_offset,
        max_bytes=part.partition_max_bytes,
        current_leader_epoch=part.current_leader_epoch,
    )


def _wanted(request: m.FetchRequest, by_id: bool) -> OrderedDict[Key, BrokerFetchPartition]:
    return OrderedDict(
        (partition_key(topic, part.partition, by_id), _partition(topic, part, by_id))
        for topic in request.topics
        for part in topic.partitions
    )
