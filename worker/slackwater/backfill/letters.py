"""The dead letters of a backfill: where they go, and the original records that they are made of."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.backfill.state import check_topic
from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka.errors import KafkaError
from slackwater.runtime.delivery.dead_letters import (
    DeadLetters,
    DeadLetterTopic,
    Headers,
    Letter,
    letters_of,
)
from slackwater.runtime.delivery.log_reading import read_log
from slackwater.runtime.errors import DeadLetterError
from slackwater.tools import clients

if TYPE_CHECKING:
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.config.worker_config import WorkerConfig
    from slackwater.runtime.delivery.partition import OwnedPartition

TOPIC, NONE = "topic", "none"
GAP = 1_000
"""Offsets between two rejected records, up to which both are read in one go."""
CHUNK = 5_000
"""Dead letters that are in memory at a time, where they are read again."""


class Letters(Protocol):
    """Where dead letters go."""

    def begin(self, owned: Sequence[OwnedPartition]) -> None:
        """Reads which ones an earlier run of this backfill has stored: ``letters`` of ``owned``."""

    def write(self, letters: Sequence[tuple[OwnedPartition, list[Letter]]]) -> int:
        """Stores those that are not stored yet. Returns how many. Raises DeadLetterError, KafkaError."""

    def close(self) -> None: ...


def make_letters(config: WorkerConfig, group: str, where: str) -> Letters:
    """``where``: :data:`TOPIC`, :data:`NONE` or a file. ``group``: the backfill's, by which its letters are
    known."""
    if where == NONE:
        return _Counted()
    if where != TOPIC:
        return _Stored(group, LetterFile(Path(where)))
    if config.dead_letter_topic is None:
        return _Refused(config.group_id)
    topic = DeadLetterTopic(
        config.dead_letter_topic,
        producer=lambda: clients.producer(config),
        reader=lambda: clients.reader(config),
        clock=SYSTEM_CLOCK,
    )
    return _Stored(group, topic)


class _Stored:
    def __init__(self, group: str, store: DeadLetterTopic | LetterFile) -> None:
        self._store = store
        self._letters = DeadLetters(group, store, SYSTEM_CLOCK)

    def begin(self, owned: Sequence[OwnedPartition]) -> None:
        for partition in owned:
            partition.letters = None
        self._letters.read_back(owned)

    def write(self, letters: Sequence[tuple[OwnedPartition, list[Letter]]]) -> int:
        try:
            return self._letters.write(letters)
        except KafkaError as exc:
            raise DeadLetterError(f"dead letters cannot be stored: {exc}") from exc

    def close(self) -> None:
        self._store.close()


class _Counted:
    """They are not kept."""

    def begin(self, owned: Sequence[OwnedPartition]) -> None:
        for partition in owned:
            partition.letters = set()

    def write(self, letters: Sequence[tuple[OwnedPartition, list[Letter]]]) -> int:
        return sum(len(given) for _, given in letters)

    def close(self) -> None:
        """There is nothing open."""


class _Refused(_Counted):
    """There is no place for them."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id

    def write(self, letters: Sequence[tuple[OwnedPartition, list[Letter]]]) -> int:
        for owned, given in letters:
            for letter in given:
                raise DeadLetterError(
                    f"the record {owned.tp} offset {letter.offset} is rejected ({letter.error}), and the "
                    f"group {self._group_id} has no deadLetterTopic: configure one, or give --dead-letters "
                    "FILE or none"
                )
        return 0


class LetterFile:
    """Dead letters as lines of JSON; keys, values and headers are in base64. A
    :class:`~slackwater.runtime.delivery.dead_letters.LetterStore`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def partition_count(self) -> int:
        """One file."""
        return 1

    def write(
        self,
        records: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
        timestamp_ms: int,
        until_ms: float,
    ) -> None:
        """Appends ``records``, and returns when they are on disk. Raises DeadLetterError."""
        lines = [
            json.dumps(
                {
                    "time": timestamp_ms,
                    "key": _text(key),
                    "value": _text(value),
                    "headers": [[name, _text(content)] for name, content in headers],
                }
            )
            for _, key, value, headers in records
        ]
        if not lines:
            return
        try:
            with self._path.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                cut_off = size > 0 and file.read() != b"\n"
                file.write(("\n" * cut_off + "\n".join(lines) + "\n").encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            raise DeadLetterError(f"{self._path} cannot be written: {exc.strerror or exc}") from exc

    def end(self, partition: int) -> int:
        """0: all lines are read."""
        return 0

    def headers_since(self, partition: int, since: int) -> Iterator[Headers]:
        """The headers of each line. A last line that was cut off is passed over."""
        if not self._path.exists():
            return
        try:
            with self._path.open(encoding="utf-8") as file:
                for line in file:
                    document = _document(line)
                    if document is not None:
                        yield [(name, _bytes(text)) for name, text in document["headers"]]
        except OSError as exc:
            raise DeadLetterError(f"{self._path} cannot be read: {exc.strerror or exc}") from exc

    def close(self) -> None:
        """There is nothing open."""


def _document(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Originals:
    """Reads records again that were rejected in the cluster, for their dead letters. ``topic_ids``: by topic,
    of those that they are records of."""

    def __init__(self, config: WorkerConfig, topic_ids: Mapping[str, str]) -> None:
        self._consumer, self._ids = clients.reader(config), topic_ids

    def letters(
        self, dead: Mapping[TopicPartition, list[tuple[int, str]]]
    ) -> Iterator[tuple[TopicPartition, list[Letter]]]:
        """The letters of ``dead``, some at a time; offset and error by partition, by offset. Raises
        DeadLetterError where a record is gone meanwhile, StartError where its topic is, KafkaError."""
        for tp, rejected in dead.items():
            for start in range(0, len(rejected), CHUNK):
                yield tp, self._of(tp, rejected[start : start + CHUNK])

    def _of(self, tp: TopicPartition, rejected: list[tuple[int, str]]) -> list[Letter]:
        letters: list[Letter] = []
        for run in _runs(rejected):
            first, end = run[0][0], run[-1][0] + 1
            for columns in read_log(self._consumer, tp, first, end, SYSTEM_CLOCK):
                batch = columns.to_arrow(tp.topic, tp.partition)
                here = set(batch.column("offset").to_pylist())
                letters += letters_of(batch, [item for item in run if item[0] in here])
            check_topic(self._consumer, tp, self._ids)
        if len(letters) < len(rejected):
            present = {letter.offset for letter in letters}
            gone = next(offset for offset, _ in rejected if offset not in present)
            raise DeadLetterError(
                f"the record {tp} offset {gone} was rejected, and is no longer in the log: its dead letter "
                "cannot be written"
            )
        return letters

    def close(self) -> None:
        """Closes the connections."""
        self._consumer.close()


def _runs(rejected: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    run: list[tuple[int, str]] = []
    for item in rejected:
        if run and item[0] - run[-1][0] > GAP:
            yield run
            run = []
        run.append(item)
    if run:
        yield run
