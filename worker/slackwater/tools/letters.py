"""Dead letters as they stand in their topic: what a worker has written, read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.untrusted import MAX_WHOLE, whole
from slackwater.runtime.config.worker_config import BACKFILL
from slackwater.runtime.delivery.dead_letters import (
    ATTEMPT_HEADER,
    BATCH_HEADER,
    CUT_HEADER,
    ERROR_HEADER,
    GROUP_HEADER,
    LETTER_HEADERS,
    OFFSET_HEADER,
    PARTITION_HEADER,
    STACK_HEADER,
    TIMESTAMP_HEADER,
    TOPIC_HEADER,
)
from slackwater.runtime.delivery.log_reading import read_log
from slackwater.runtime.errors import StartError
from slackwater.tools.starts import TOPIC
from slackwater.tools.topics import no_topic

if TYPE_CHECKING:
    from slackwater.kafka import ConsumerRecord, KafkaConsumer

Headers = Sequence[tuple[str, bytes | None]]
_LONGEST_DIGITS = 20
"""More than 64 bits have: what is cut off is too large as well."""


@dataclass(frozen=True)
class StoredLetter:
    """A dead letter.

    ``tp``, ``offset``, ``written_ms``: where it stands, and when it was written. ``source``,
    ``source_offset``, ``timestamp_ms``: of the record that was rejected; ``key``, ``value`` and ``headers``
    are that record's. ``attempt``: None where an older worker has written it. ``cut``: what is known of the
    record, as JSON, where it was too large for the topic; ``value`` is only its beginning then. ``batch``: of
    a batch of records that could not be read, what is known of it, as JSON; ``value`` is its bytes then.
    """

    tp: TopicPartition
    offset: int
    written_ms: int
    group: str
    source: TopicPartition
    source_offset: int
    timestamp_ms: int
    error: str
    attempt: int | None
    stack: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    cut: str = ""
    batch: str = ""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        names = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + names


def _number(text: bytes | None, most: int = MAX_WHOLE) -> int:
    """The number in a header. Raises ValueError where there is none, or not from -1 to ``most``."""
    return whole(int((text or b"")[:_LONGEST_DIGITS]), "the header", -1, most)


def letter_of(record: ConsumerRecord) -> StoredLetter | None:
    """The dead letter in ``record``; None where it is none of a worker's."""
    own, added = _split(record.headers)
    topic, partition, offset = (added.get(name) for name in (TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER))
    group, error = added.get(GROUP_HEADER), added.get(ERROR_HEADER)
    if not topic or group is None or error is None:
        return None
    try:
        source = TopicPartition(topic.decode(), _number(partition, 2**31 - 1))
        source_offset, timestamp = _number(offset), _number(added.get(TIMESTAMP_HEADER) or b"-1")
        attempt = _number(added[ATTEMPT_HEADER]) if ATTEMPT_HEADER in added else None
        group_id = group.decode()
    except ValueError:
        return None
    if not TOPIC.fullmatch(source.topic) or source.partition < 0 or source_offset < 0:
        return None
    return StoredLetter(
        tp=TopicPartition(record.topic, record.partition),
        offset=record.offset,
        written_ms=record.timestamp,
        group=group_id,
        source=source,
        source_offset=source_offset,
        timestamp_ms=timestamp,
        error=error.decode("utf-8", "replace"),
        attempt=attempt,
        stack=(added.get(STACK_HEADER) or b"").decode("utf-8", "replace"),
        key=record.key,
        value=record.value,
        headers=own,
        cut=(added.get(CUT_HEADER) or b"").decode("utf-8", "replace"),
        batch=(added.get(BATCH_HEADER) or b"").decode("utf-8", "replace"),
    )


def _split(headers: Headers) -> tuple[Headers, dict[str, bytes | None]]:
    """The record's own headers, and those behind them that the worker has added, each once: a record that was
    a dead letter before has older ones of the same names, which are its own."""
    added: dict[str, bytes | None] = {}
    at = len(headers)
    while at and headers[at - 1][0] in LETTER_HEADERS and headers[at - 1][0] not in added:
        at -= 1
        added[headers[at][0]] = headers[at][1]
    return headers[:at], added


@dataclass(frozen=True)
class Selection:
    """Which dead letters are meant. None, or empty: any.

    ``group``: its letters, and those of its backfills. ``topic``, ``partition``, ``offsets``: of the rejected
    record. ``error``: a part of the error. ``since_ms``, ``until_ms`` (not included): when the letter was
    written.
    """

    group: str
    topic: str | None = None
    partition: int | None = None
    offsets: frozenset[int] = frozenset()
    error: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def everything(self) -> bool:
        """Whether it is all letters of the group."""
        return self == Selection(self.group)

    def has(self, letter: StoredLetter) -> bool:
        """Whether ``letter`` is selected."""
        return (
            (letter.group == self.group or letter.group.startswith(self.group + BACKFILL))
            and self.topic in (None, letter.source.topic)
            and self.partition in (None, letter.source.partition)
            and (not self.offsets or letter.source_offset in self.offsets)
            and (self.error is None or self.error in letter.error)
            and (self.since_ms is None or letter.written_ms >= self.since_ms)
            and (self.until_ms is None or letter.written_ms < self.until_ms)
        )


class LetterLog:
    """The dead-letter topic, as far as it goes now."""

    def __init__(self, consumer: KafkaConsumer, topic: str, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises StartError where the topic does not exist, KafkaError."""
        self._consumer, self._clock = consumer, clock
        numbers = consumer.partitions_for_topic(topic)
        if not numbers:
            raise StartError(no_topic(topic))
        self.partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        self._first = consumer.beginning_offsets(self.partitions)
        self.ends = consumer.end_offsets(self.partitions)
        """By partition, the end when this was made."""

    def records(
        self, tp: TopicPartition, start: int | None = None, end: int | None = None
    ) -> Iterator[ConsumerRecord]:
        """The records of a partition from ``start`` (None: the first) up to ``end`` (None: that of
        :attr:`ends`; not included). Raises KafkaError."""
        start = self._first[tp] if start is None else start
        for columns in read_log(
            self._consumer, tp, start, self.ends[tp] if end is None else end, self._clock
        ):
            yield from columns.records(tp.topic, tp.partition)
