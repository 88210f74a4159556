"""Dead letters and their topic. Each is stored once: letters of an earlier try are read back and left out.

A batch's letters are written before its offsets are committed, so a worker that ends in between
leaves letters that the replay would write again. Therefore the note in the commit that fences the
batch says, before the first letter is written, from which offset of the dead-letter topic on and up to
which source offset letters may stand there (:class:`~slackwater.runtime.delivery.partition.CommitNote`).
Their record timestamp is the time of writing, whatever the source's was, so that retention counts from then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.clock import Clock
from slackwater.kafka.errors import (
    CorruptRecordError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    SendDeadlineError,
    UnknownTopicOrPartitionError,
)
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.log_reading import read_log
from slackwater.runtime.delivery.partition import OwnedPartition

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
MINUTE_MS = 60_000
MAX_ERROR_CHARS = 4096
MAX_STACK_CHARS = 4096
"""Of a longer one the beginning and the end are kept."""

ERROR_HEADER = "slackwater.error"
TOPIC_HEADER = "slackwater.topic"
PARTITION_HEADER = "slackwater.partition"
OFFSET_HEADER = "slackwater.offset"
GROUP_HEADER = "slackwater.group"
TOPIC_ID_HEADER = "slackwater.topic.id"
"""Of the topic that the record is of, where it is known: one that is created again has records of the same
partition and offset."""
TIMESTAMP_HEADER = "slackwater.timestamp"
ATTEMPT_HEADER = "slackwater.attempt"
STACK_HEADER = "slackwater.stack"
CUT_HEADER = "slackwater.cut"
"""Of a letter that its topic does not take in full: JSON with `keyBytes`, `valueBytes` (null: it has none)
and `sha256` (of the value)."""
BATCH_HEADER = "slackwater.batch"
"""Of a letter that is a batch which the client cannot read, as its value: JSON with `firstOffset`,
`lastOffset`, `bytes` and `sha256` (of the batch as it was fetched)."""
MAX_CUT_BYTES = 1024
"""Of key, value, error and stack of such a letter. A longer key is left out, as are the record's headers."""
LETTER_HEADERS = (
    ERROR_HEADER,
    TOPIC_HEADER,
    PARTITION_HEADER,
    OFFSET_HEADER,
    TIMESTAMP_HEADER,
    GROUP_HEADER,
    TOPIC_ID_HEADER,
    ATTEMPT_HEADER,
    STACK_HEADER,
    CUT_HEADER,
    BATCH_HEADER,
)
"""What a worker adds to a record's own headers."""


class LateError(Exception):
    """It is too late to write dead letters: this worker may no longer own the partition."""


Headers = Sequence[tuple[str, bytes | None]]
Record = tuple[int, bytes | None, bytes | None, Headers]
"""Partition, key, value, headers."""


@dataclass(frozen=True)
class Letter:
    """A record that the handler has rejected, as it was polled, or a batch that cannot be read.

    ``timestamp_ms``: the source record's. ``attempt``: how often the worker had given the batch to the
    handler. ``stack``: the traceback of the handler's exception, where it raised one for this record.
    ``batch``: of a batch that cannot be read, what :data:`BATCH_HEADER` says; ``value`` is its bytes.
    """

    offset: int
    error: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    attempt: int = 1
    stack: str = ""
    batch: str = ""

    @property
    def known_by(self) -> int:
        """What of it is in ``OwnedPartition.letters``."""
        return ~self.offset if self.batch else self.offset


def unreadable(error: CorruptRecordError) -> Letter:
    """The letter for a batch that ``poll()`` could not read."""
    place = {
        "firstOffset": error.offset,
        "lastOffset": error.last_offset,
        "bytes": len(error.batch),
        "sha256": hashlib.sha256(error.batch).hexdigest(),
    }
    return Letter(
        max(error.offset, error.position),
        f"the batch of offsets {error.offset} to {error.last_offset} cannot be read: {error.reason}",
        None,
        error.batch,
        (),
        -1,
        batch=json.dumps(place),
    )


class LetterRate:
    """Counts the dead letters of the last minute. No clock of its own."""

    def __init__(self, most: int) -> None:
        """``most``: how many may be written in a minute; 0: any number."""
        self.most = most
        self._written: deque[tuple[float, int]] = deque()

    def allows(self, count: int, now_ms: float) -> bool:
        """Whether ``count`` more may be written at ``now_ms`` (monotonic clock)."""
        while self._written and self._written[0][0] <= now_ms - MINUTE_MS:
            self._written.popleft()
        return not self.most or sum(written for _, written in self._written) + count <= self.most

    def written(self, count: int, now_ms: float) -> None:
        """``count`` were written at ``now_ms`` (monotonic clock)."""
        if self.most and count:
            self._written.append((now_ms, count))


class LetterStore(Protocol):
    """The dead-letter topic."""

    def partition_count(self) -> int:
        """How many partitions it has. Raises KafkaError where it does not exist."""

    def write(self, records: Iterable[Record], timestamp_ms: int, until_ms: float) -> None:
        """Stores the records; returns when the broker has all.

        Raises SendDeadlineError where some could not be sent by ``until_ms`` (monotonic clock): which of the
        records are stored is not known then. Raises the first KafkaError of any of them.
        """

    def end(self, partition: int) -> int:
        """The offset of the next record of ``partition``."""

    def headers_since(self, partition: int, since: int) -> Iterator[Headers]:
        """The headers of what stands in ``partition`` now, from the offset ``since`` on; of all where the log
        does not reach to it: it is of a topic that was created again."""


class DeadLetters:
    """Writes a group's dead letters. Used by one thread at a time."""

    def __init__(self, group: str, store: LetterStore, clock: Clock) -> None:
        self._group, self._store, self._clock = group, store, clock
        self._ends: dict[int, tuple[int, float]] = {}
        """By target, an offset that the next letter is not below, and when it was asked (monotonic clock)."""

    def read_back(self, partitions: Sequence[OwnedPartition]) -> None:
        """Fills ``letters`` of partitions that are about to have their first, one pass over each target, and
        ``letters_place`` of all.

        To be called before the commit that announces letters (``letters_fence_of``).
        """
        count = self._store.partition_count()
        unread = [owned for owned in partitions if owned.letters is None]
        found: dict[tuple[str, int], set[int]] = {owned.tp: set() for owned in unread}
        scans: dict[int, dict[TopicPartition, int]] = {}
        for owned in partitions:
            target = owned.tp.partition % count
            owned.letters_place = target, self._end(target)
            if owned.letters is not None or (noted := owned.letters_since) is None:
                continue
            scans.setdefault(target, {})[owned.tp] = noted[1] if noted[0] == target else 0
            if noted[1] and target != noted[0] < count:  # the topic has more partitions than then
                scans.setdefault(noted[0], {})[owned.tp] = noted[1]
        topic_ids: dict[tuple[str, int], str] = {owned.tp: owned.topic_id for owned in unread}
        for target, sources in scans.items():
            origins = map(self._origin, self._store.headers_since(target, min(sources.values())))
            for tp, known_by, topic_id in filter(None, origins):
                if tp in found and (topic_id in ("", topic_ids[tp]) or not topic_ids[tp]):
                    found[tp].add(known_by)
        for owned in unread:
            owned.letters = found[owned.tp]

    def _end(self, target: int) -> int:
        """Not older than a minute: what lies behind it is read after a crash."""
        end, asked_ms = self._ends.get(target, (0, -math.inf))
        now = self._clock.mono_ms()
        if now - asked_ms > MINUTE_MS:
            end = self._store.end(target)
            self._ends[target] = end, now
        return end

    def write(
        self, letters: Sequence[tuple[OwnedPartition, list[Letter]]], until_ms: float = float("inf")
    ) -> int:
        """Stores letters of partitions that were read back, without those that are there.

        Returns how many are new. The partitions' ``letters`` say afterwards what is stored. Raises LateError
        where some could not be sent by ``until_ms`` (monotonic clock): which of them are stored is not known
        then, and ``letters`` is None until they are read back.
        """
        count = self._store.partition_count()
        new = [
            (owned, letter)
            for owned, rejected in letters
            for letter in rejected
            if letter.known_by not in _known(owned)
        ]
        records = [
            (owned.tp.partition % count, letter.key, letter.value, self._headers(owned, letter))
            for owned, letter in new
        ]
        try:
            self._store.write(records, self._clock.wall_ms(), until_ms)
        except SendDeadlineError as exc:
            for owned, _ in letters:
                owned.letters = None
            raise LateError from exc
        for owned, letter in new:
            _known(owned).add(letter.known_by)
        return len(new)

    def _headers(self, owned: OwnedPartition, letter: Letter) -> Headers:
        return [
            *letter.headers,
            (ERROR_HEADER, letter.error[:MAX_ERROR_CHARS].encode("utf-8", "replace")),
            (TOPIC_HEADER, owned.tp.topic.encode()),
            (PARTITION_HEADER, str(owned.tp.partition).encode()),
            (OFFSET_HEADER, str(letter.offset).encode()),
            (TIMESTAMP_HEADER, str(letter.timestamp_ms).encode()),
            (GROUP_HEADER, self._group.encode()),
            (ATTEMPT_HEADER, str(letter.attempt).encode()),
            *_optional(TOPIC_ID_HEADER, owned.topic_id, letter),
            *_optional(BATCH_HEADER, letter.batch, letter),
            *_optional(STACK_HEADER, shortened(letter.stack, MAX_STACK_CHARS), letter),
        ]

    def _origin(self, headers: Headers) -> tuple[tuple[str, int], int, str] | None:
        """Where a letter of this group came from (partition, what it is known by, the topic's id or ""); None
        for other records."""
        # The last header of a name counts: a record that was a dead letter before has an older one too.
        values = dict(headers)
        if values.get(GROUP_HEADER) != self._group.encode():
            return None
        topic, partition, offset = (values.get(n) for n in (TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER))
        try:
            tp = (topic or b"").decode(), int(partition or b"")
            known_by = ~int(offset or b"") if values.get(BATCH_HEADER) else int(offset or b"")
            return tp, known_by, (values.get(TOPIC_ID_HEADER) or b"").decode()
        except ValueError:
            return None


def _optional(name: str, value: str, letter: Letter) -> Headers:
    """The header ``name``, if there is a value for it; "" over one that the record has from another time as a
    dead letter."""
    if value or any(given == name for given, _ in letter.headers):
        return [(name, value.encode("utf-8", "replace"))]
    return []


def shortened(text: str, most: int) -> str:
    """``text``, or its beginning and its end where it has more than ``most`` characters."""
    if len(text) <= most:
        return text
    cut = "\n...\n"
    half = (most - len(cut)) // 2
    return text[:half] + cut + text[-half:]


def _cut(record: Record) -> Record:
    """``record`` with its position, the beginning of what is long, and a digest."""
    partition, key, value, headers = record
    added = {name: text for name, text in headers if name in LETTER_HEADERS}
    for name in (ERROR_HEADER, STACK_HEADER):
        if (text := added.get(name)) is not None:
            added[name] = text[:MAX_CUT_BYTES]
    sizes = {
        "keyBytes": None if key is None else len(key),
        "valueBytes": None if value is None else len(value),
        "sha256": None if value is None else hashlib.sha256(value).hexdigest(),
    }
    added[CUT_HEADER] = json.dumps(sizes).encode()
    key = None if key is None or len(key) > MAX_CUT_BYTES else key
    return partition, key, None if value is None else value[:MAX_CUT_BYTES], list(added.items())


def _known(owned: OwnedPartition) -> set[int]:
    assert owned.letters is not None, "read_back() comes first"
    return owned.letters


def letters_of(
    batch: pa.RecordBatch,
    dead: list[tuple[int, str]],
    *,
    attempt: int = 1,
    stacks: Mapping[int, str] | None = None,
) -> list[Letter]:
    """The records of ``batch`` (the schema of a poll) at the offsets of ``dead``, with their errors.
    ``stacks``: tracebacks by offset."""
    if not dead:
        return []
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = pa.array([offset for offset, _ in dead], pa.int64())
    rows = batch.take(pc.index_in(offsets, value_set=batch.column("offset")))
    return [
        Letter(
            offset=row["offset"],
            error=error,
            key=row["key"],
            value=row["value"],
            headers=[(header["key"], header["value"]) for header in row["headers"] or ()],
            timestamp_ms=timestamp,
            attempt=attempt,
            stack=(stacks or {}).get(row["offset"], ""),
        )
        for row, timestamp, (_, error) in zip(
            rows.drop_columns(["timestamp"]).to_pylist(),
            rows.column("timestamp").cast(pa.int64()).to_pylist(),
            dead,
            strict=True,
        )
    ]


class DeadLetterTopic:
    """Writes through a producer of ours, reads through a consumer without a group. Made when first needed."""

    def __init__(
        self, topic: str, *, producer: Callable[[], Any], reader: Callable[[], Any], clock: Clock
    ) -> None:
        self._topic, self._make_producer, self._make_reader, self._clock = topic, producer, reader, clock
        self._producer: Any = None

    def partition_count(self) -> int:
        partitions = self._connected().partitions_for(self._topic)
        if not partitions:
            raise UnknownTopicOrPartitionError(f"topic {self._topic}")
        return len(partitions)

    def write(self, records: Iterable[Record], timestamp_ms: int, until_ms: float) -> None:
        """As ``LetterStore.write`` says; a record that is larger than the topic takes is cut."""
        for record, _ in self._send(records, timestamp_ms, until_ms):
            place = [dict(record[3])[name] for name in (TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER)]
            log.warning(
                "the dead letter of %s is larger than the topic %s takes; it is cut",
                b" ".join(text or b"" for text in place).decode("utf-8", "replace"),
                self._topic,
            )
            for _, error in self._send([_cut(record)], timestamp_ms, until_ms):
                raise error

    def _send(
        self, records: Iterable[Record], timestamp_ms: int, until_ms: float
    ) -> list[tuple[Record, KafkaError]]:
        """Stores the records; returns those that are too large. Raises as :meth:`write`."""
        producer = self._connected()
        sent: list[tuple[Record, Any]] = []
        refused: list[tuple[Record, KafkaError]] = []
        for record in records:
            partition, key, value, headers = record
            try:
                future = producer.send(
                    self._topic,
                    value=value,
                    key=key,
                    headers=list(headers),
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                    send_by_ms=until_ms,
                )
            except _TOO_LARGE as exc:
                refused.append((record, exc))
            else:
                sent.append((record, future))
        if sent:
            producer.flush()
        for record, future in sent:
            try:
                future.get()
            except _TOO_LARGE as exc:
                refused.append((record, exc))
        return refused

    def end(self, partition: int) -> int:
        tp = TopicPartition(self._topic, partition)
        with contextlib.closing(self._make_reader()) as reader:
            return int(reader.end_offsets([tp])[tp])

    def headers_since(self, partition: int, since: int) -> Iterator[Headers]:
        tp = TopicPartition(self._topic, partition)
        with contextlib.closing(self._make_reader()) as reader:
            reader.assign([tp])
            first, end = (int(at([tp])[tp]) for at in (reader.beginning_offsets, reader.end_offsets))
            start = max(first, since) if since <= end else first
            if start >= end:
                return
            for columns in read_log(reader, tp, start, end, self._clock):
                for record in columns.records(tp.topic, tp.partition):
                    yield record.headers

    def _connected(self) -> Any:
        if self._producer is None:
            self._producer = self._make_producer()
        return self._producer

    def close(self) -> None:
        """Closes the producer."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
