"""Sends dead letters' records again, each once.

Before a batch of letters is sent, a receipt in the dead-letter topic says which ones, and where the target's
log ends. Another one follows when the broker has them all. A replay that ended in between leaves the first
one alone: the next replay looks in the target for the records that have arrived, from where its log ended
then. Each of them carries the position of its letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.kafka.errors import KafkaError
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.log_reading import read_log
from slackwater.runtime.errors import ConfigError, StartError
from slackwater.tools.clients import SEND_MS
from slackwater.tools.letters import LetterLog, Selection, StoredLetter, letter_of
from slackwater.tools.receipts import BEGIN, END, RECEIPT_HEADER, Ledger, Receipt, receipt_of
from slackwater.tools.topics import no_topic

if TYPE_CHECKING:
    from slackwater.kafka import KafkaConsumer, KafkaProducer

REPLAYED_HEADER = "slackwater.replayed"
"""On a record that was sent again: the position of its letter, TOPIC:PARTITION:OFFSET."""
FROM_HEADER = "slackwater.replayed.from"
"""On a record that was sent again: the position at which it was rejected."""

BATCH_LETTERS = 500
BATCH_BYTES = 8 * 1024 * 1024
UNFINISHED_MS = 2 * SEND_MS
"""A replay whose receipt was read so long ago has sent all that it noted there."""
_LOOK_EVERY_MS = 1000


class ReplayError(StartError):
    """Another replay is at work, or records could not be sent."""


@dataclass
class ReplayCounts:
    """How many letters were selected, sent, and left out because a replay has sent them before. ``unknown``:
    left out because it cannot be seen whether one has. ``cut``: left out because the letter is not the whole
    record. ``batches``: left out because it is a batch that could not be read."""

    selected: int = 0
    sent: int = 0
    before: int = 0
    unknown: int = 0
    cut: int = 0
    batches: int = 0
    by_target: dict[str, int] = field(default_factory=dict)


class Replay:
    """One run of the command."""

    def __init__(
        self,
        log: LetterLog,
        consumer: KafkaConsumer,
        producer: Callable[[], KafkaProducer],
        *,
        to: str | None = None,
        is_source: Callable[[str], bool] = lambda topic: True,
        keep_timestamp: bool = True,
        again: bool = False,
        dry_run: bool = False,
        oldest_ms: Callable[[str], int | None] = lambda topic: None,
        progress: Callable[[str], None] = lambda line: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Sends nothing yet.

        Args:
            log: the dead-letter topic.
            consumer: another one than the log's, which is in the midst of reading.
            producer: makes the producer, when something is to be sent.
            to: the topic to send to; None: each letter's source topic.
            is_source: whether a topic may be sent to because a letter says that it comes from there: anybody
                who can write to the dead-letter topic can say so.
            keep_timestamp: records keep their time; else they get the present one.
            again: also sends what was sent before.
            dry_run: sends and notes nothing.
            oldest_ms: below which time a topic's retention deletes records; None: none.
            progress: is told what was sent, in a line.
            clock: the time.
        """
        self._log, self._consumer, self._make_producer = log, consumer, producer
        self._to, self._keep_timestamp, self._again, self._dry_run = to, keep_timestamp, again, dry_run
        self._is_source, self._oldest_ms, self._progress, self._clock = is_source, oldest_ms, progress, clock
        self._id = uuid4().hex
        self._producer: KafkaProducer | None = None
        self._seen_to: dict[TopicPartition, int] = {}
        """Up to where receipts were read."""
        self._closed: set[str] = set()
        """The unfinished replays that this one has written the end of."""
        self.counts = ReplayCounts()

    def run(self, selection: Selection, limit: int | None = None) -> ReplayCounts:
        """Replays the letters of ``selection``, at most ``limit`` of them, in the order of the topic.

        Raises ReplayError, ConfigError for records that the target's retention would delete, StartError for
        a target that does not exist, KafkaError.
        """
        try:
            for tp in self._log.partitions:
                self._replay_partition(tp, selection, limit)
        finally:
            if self._producer is not None:
                self._producer.close()
        return self.counts

    def _replay_partition(self, tp: TopicPartition, selection: Selection, limit: int | None) -> None:
        ledger = Ledger.of(self._log.records(tp))
        self._seen_to[tp] = self._log.ends[tp]
        sent, unknown = self._settled(tp, ledger)
        batch: list[StoredLetter] = []
        for record in self._log.records(tp):
            letter = letter_of(record)
            if letter is None or not selection.has(letter):
                continue
            if limit is not None and self.counts.sent + len(batch) >= limit:
                break
            self.counts.selected += 1
            if letter.cut or letter.batch:
                self.counts.cut += not letter.batch
                self.counts.batches += bool(letter.batch)
                continue
            if not self._again and letter.offset in sent:
                self.counts.before += 1
                continue
            if not self._again and letter.offset in unknown:
                self.counts.unknown += 1
                continue
            if batch and (
                len(batch) == BATCH_LETTERS
                or self._target(batch[0]) != self._target(letter)
                or sum(other.size for other in batch) + letter.size > BATCH_BYTES
            ):
                self._send(tp, batch)
                batch = []
            batch.append(letter)
        if batch:
            self._send(tp, batch)

    def _target(self, letter: StoredLetter) -> str:
        return self._to or letter.source.topic

    # -- what earlier replays have done

    def _settled(self, tp: TopicPartition, ledger: Ledger) -> tuple[set[int], set[int]]:
        """The letters that were sent, and those of which that cannot be told."""
        sent, unknown = set(ledger.sent), set[int]()
        if ledger.unfinished:
            self._wait_for_end(tp)
        for receipt in ledger.unfinished.values():
            arrived = self._arrived(tp, receipt)
            if arrived is None:
                unknown.update(receipt.letters)
                continue
            sent |= arrived
            if not self._dry_run:
                self._note(tp, Receipt(END, receipt.replay, tuple(sorted(arrived)), receipt.topic))
                self._closed.add(receipt.replay)
        return sent, unknown - sent

    def _wait_for_end(self, tp: TopicPartition) -> None:
        """Returns when nothing of replays that have not ended can arrive any more. When they began is not
        compared with this machine's clock. Raises ReplayError where one is at work."""
        self._progress(
            f"{tp}: a replay has begun and not ended; waiting {UNFINISHED_MS // 1000} s for what it may send"
        )
        until_ms = self._clock.mono_ms() + UNFINISHED_MS
        while (left_ms := until_ms - self._clock.mono_ms()) > 0:
            if self._has_foreign(tp):
                raise ReplayError(f"another replay is at work in {tp}: run this one later")
            self._clock.sleep(min(left_ms, _LOOK_EVERY_MS))

    def _arrived(self, tp: TopicPartition, receipt: Receipt) -> set[int] | None:
        """Which letters of an unfinished batch are in its target; None where that cannot be seen any more."""
        targets = {TopicPartition(receipt.topic, number): end for number, end in receipt.ends.items()}
        numbers = self._consumer.partitions_for_topic(receipt.topic)
        if not targets or not numbers or not numbers.issuperset(receipt.ends):
            return None
        first, ends = self._consumer.beginning_offsets(targets), self._consumer.end_offsets(targets)
        if any(first[target] > start or ends[target] < start for target, start in targets.items()):
            return None
        wanted = {_letter_position(tp, offset): offset for offset in receipt.letters}
        arrived: set[int] = set()
        for target, start in targets.items():
            for columns in read_log(self._consumer, target, start, ends[target], self._clock):
                for record in columns.records(target.topic, target.partition):
                    position = dict(record.headers).get(REPLAYED_HEADER)
                    if position in wanted:
                        arrived.add(wanted[position])
        return arrived

    # -- sending

    def _send(self, tp: TopicPartition, batch: list[StoredLetter]) -> None:
        """Sends letters that go to one topic."""
        topic = self._target(batch[0])
        if self._to is None and not self._is_source(topic):
            raise ConfigError(
                f"the letter at {tp} offset {batch[0].offset} is of {topic}, a topic that the group does not "
                f"consume: select others with --topic, or send to that one with --topic {topic} --to {topic}"
            )
        count = len(self._targets(topic))
        self._check_retention(topic, batch)
        self.counts.by_target[topic] = self.counts.by_target.get(topic, 0) + len(batch)
        self.counts.sent += len(batch)
        if self._dry_run:
            return
        offsets = tuple(letter.offset for letter in batch)
        targets = [TopicPartition(topic, number) for number in range(count)]
        ends = {target.partition: end for target, end in self._consumer.end_offsets(targets).items()}
        self._note(tp, Receipt(BEGIN, self._id, offsets, topic, ends))
        until_ms = self._clock.mono_ms() + SEND_MS
        self._check_alone(tp, topic)
        producer = self._connected()
        sent = [self._start(producer, topic, count, letter, until_ms) for letter in batch]
        producer.flush()
        for letter, future in zip(batch, sent, strict=True):
            try:
                future.get()
            except KafkaError as exc:
                raise ReplayError(
                    f"the record of {letter.source} offset {letter.source_offset} could not be sent to "
                    f"{topic}: {exc}. Others of its batch may have been sent: run the replay again, it "
                    f"looks for them in {topic}"
                ) from exc
        self._note(tp, Receipt(END, self._id, offsets, topic))
        self._progress(f"{tp}: sent to {topic}: {len(batch)}, up to the letter at offset {offsets[-1]}")

    def _targets(self, topic: str) -> set[int]:
        numbers = self._consumer.partitions_for_topic(topic)
        if not numbers:
            raise StartError(no_topic(topic))
        return numbers

    def _check_retention(self, topic: str, batch: list[StoredLetter]) -> None:
        oldest = self._oldest_ms(topic) if self._keep_timestamp else None
        if oldest is None:
            return
        for letter in batch:
            if 0 <= letter.timestamp_ms < oldest:
                raise ConfigError(
                    f"the record of {letter.source} offset {letter.source_offset} is older than the "
                    f"retention.ms of {topic}, which would delete it: send with --timestamp now, or raise "
                    "retention.ms"
                )

    def _check_alone(self, tp: TopicPartition, topic: str) -> None:
        """Raises ReplayError where another replay has written a receipt since this one has read them. Of two
        that do so at once, the one whose receipt comes second ends here, before it sends."""
        if self._has_foreign(tp):
            self._note(tp, Receipt(END, self._id, (), topic))
            raise ReplayError(
                f"another replay is at work in {tp}: nothing of this batch was sent; run it later"
            )

    def _has_foreign(self, tp: TopicPartition) -> bool:
        """Whether another replay has written a receipt since the last call."""
        end = self._consumer.end_offsets([tp])[tp]
        receipts = [
            receipt_of(record)
            for columns in read_log(self._consumer, tp, self._seen_to[tp], end, self._clock)
            for record in columns.records(tp.topic, tp.partition)
        ]
        self._seen_to[tp] = end
        return any(receipt is not None and self._is_foreign(receipt) for receipt in receipts)

    def _is_foreign(self, receipt: Receipt) -> bool:
        """Whether it is another replay's, which has not withdrawn."""
        own = receipt.replay == self._id or receipt.replay in self._closed
        return not own and not (receipt.kind == END and not receipt.letters)

    def _start(
        self, producer: KafkaProducer, topic: str, count: int, letter: StoredLetter, until_ms: float
    ) -> Any:
        same_place = topic == letter.source.topic and letter.source.partition < count
        timestamp = letter.timestamp_ms if self._keep_timestamp and letter.timestamp_ms >= 0 else None
        return producer.send(
            topic,
            value=letter.value,
            key=letter.key,
            headers=list(headers_of(letter)),
            partition=letter.source.partition if same_place else None,
            timestamp_ms=timestamp,
            send_by_ms=until_ms,
        )

    def _note(self, tp: TopicPartition, receipt: Receipt) -> None:
        self._connected().send(
            tp.topic,
            value=receipt.encode(),
            # Were the topic compacted, a key of its own for each keeps all.
            key=f"replay {receipt.replay} {receipt.kind} {receipt.letters[:1]}".encode(),
            headers=[(RECEIPT_HEADER, receipt.kind.encode())],
            partition=tp.partition,
            timestamp_ms=self._clock.wall_ms(),
        ).get()

    def _connected(self) -> KafkaProducer:
        if self._producer is None:
            self._producer = self._make_producer()
        return self._producer


def headers_of(letter: StoredLetter) -> Iterator[tuple[str, bytes | None]]:
    """The headers with which a letter's record is sent: its own, and where it comes from."""
    for name, value in letter.headers:
        if name not in (REPLAYED_HEADER, FROM_HEADER):
            yield name, value
    yield REPLAYED_HEADER, _letter_position(letter.tp, letter.offset)
    yield FROM_HEADER, f"{letter.source.topic}:{letter.source.partition}:{letter.source_offset}".encode()


def _letter_position(tp: TopicPartition, offset: int) -> bytes:
    return f"{tp.topic}:{tp.partition}:{offset}".encode()


def ledgers_of(log: LetterLog) -> Mapping[TopicPartition, Ledger]:
    """What the receipts of each partition say."""
    return {tp: Ledger.of(log.records(tp)) for tp in log.partitions}
