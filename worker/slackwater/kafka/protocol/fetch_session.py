"""Incremental fetch sessions with one broker (KIP-227), by topic id from version 13 on (KIP-516).

The broker remembers which partitions are read and from where, so a request names only what changed.
Where the two may disagree (a lost answer, an error of the session, an answer that does not fit), the
next request starts a new session and names everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.primitives import ZERO_UUID

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = 0x7FFFFFFF
LAST_VERSION_BY_NAME = 12


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """What to read of a partition. ``topic_id`` is zero if the broker has named none."""

    offset: int
    max_bytes: int
    leader_epoch: int = -1
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The same for every request. ``max_wait_ms`` is how long the broker waits for ``min_bytes``."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 52_428_800
    read_committed: bool = False
    rack: str = ""


class FetchSession:
    """The session with one broker. At most one request may be under way."""

    def __init__(self, *, incremental: bool = True) -> None:
        self.session_id = 0
        self.epoch = INITIAL_EPOCH
        self._incremental = incremental
        self._by_id = True
        self._sent: dict[TopicPartition, FetchPartition] = {}
        self._names: dict[UUID, str] = {}

    @property
    def version_cap(self) -> int | None:
        """The highest version of Fetch for the request just built; ``None``: any."""
        return None if self._by_id else LAST_VERSION_BY_NAME

    def build(
        self, wanted: Mapping[TopicPartition, FetchPartition], settings: FetchSettings
    ) -> m.FetchRequest:
        """The next request, after which the session holds exactly ``wanted``."""
        by_id = bool(wanted) and all(partition.topic_id != ZERO_UUID for partition in wanted.values())
        if wanted and by_id != self._by_id:
            self._by_id, self.epoch = by_id, INITIAL_EPOCH
        full = self.epoch == INITIAL_EPOCH or not self._incremental
        if full:
            changed: Mapping[TopicPartition, FetchPartition] = wanted
            forgotten: list[tuple[TopicPartition, UUID]] = []
        else:
            changed = {tp: partition for tp, partition in wanted.items() if self._sent.get(tp) != partition}
            forgotten = [
                (tp, old.topic_id)
                for tp, old in self._sent.items()
                if tp not in wanted or wanted[tp].topic_id != old.topic_id
            ]
        self._sent = dict(wanted)
        self._names = {partition.topic_id: tp.topic for tp, partition in wanted.items()}
        return m.FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=int(settings.read_committed),
            session_id=self.session_id if self._incremental else 0,
            session_epoch=self.epoch if self._incremental else FINAL_EPOCH,
            topics=_topics(changed),
            forgotten_topics_data=_forgotten(forgotten),
            rack_id=settings.rack,
        )

    def take(self, response: m.FetchResponse) -> list[tuple[TopicPartition, m.FetchResponsePartition]] | None:
        """The partitions of an answer; ``None`` if it is of no use, and the next request starts anew.

        ``response.error_code`` says why: a session that the broker does not know, or none, where the
        answer names partitions that were not asked for.
        """
        if response.error_code:
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = 0
            self.epoch = INITIAL_EPOCH
            return None
        answers: list[tuple[TopicPartition, m.FetchResponsePartition]] = []
        for topic in response.responses:
            name = topic.topic or self._names.get(topic.topic_id, "")
            for partition in topic.partitions:
                tp = TopicPartition(name, partition.partition_index)
                if tp not in self._sent:
                    self.epoch = INITIAL_EPOCH
                    return None
                answers.append((tp, partition))
        if self._incremental:
            self._next_epoch(response.session_id)
        return answers

    def _next_epoch(self, session_id: int) -> None:
        if session_id == 0:
            # The broker keeps no session (its cache is full): every request is a full one.
            self.session_id, self.epoch = 0, INITIAL_EPOCH
        else:
            self.session_id = session_id
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def failed(self) -> None:
        """No answer came: whether the broker took the request is not known."""
        self.epoch = INITIAL_EPOCH


def _topics(partitions: Mapping[TopicPartition, FetchPartition]) -> list[m.FetchRequestTopic]:
    topics: dict[tuple[str, UUID], m.FetchRequestTopic] = {}
    for tp, wanted in partitions.items():
        key = (tp.topic, wanted.topic_id)
        if key not in topics:
            topics[key] = m.FetchRequestTopic(topic=tp.topic, topic_id=wanted.topic_id)
        topics[key].partitions.append(
            m.FetchRequestPartition(
                partition=tp.partition,
                current_leader_epoch=wanted.leader_epoch,
                fetch_offset=wanted.offset,
                partition_max_bytes=wanted.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(gone: Iterable[tuple[TopicPartition, UUID]]) -> list[m.FetchRequestForgottenTopic]:
    topics: dict[tuple[str, UUID], m.FetchRequestForgottenTopic] = {}
    for tp, topic_id in gone:
        key = (tp.topic, topic_id)
        if key not in topics:
            topics[key] = m.FetchRequestForgottenTopic(topic=tp.topic, topic_id=topic_id)
        topics[key].partitions.append(tp.partition)
    return list(topics.values())
