"""What all ways do with a record: the same function, called with the records of one poll.

It exists twice, and both give the same rows: :func:`handle` in Python, and :func:`handle_on_spark`, which
needs a JVM.

It keeps a journal of what it was given, for counting what is handled twice: a file for each process in the
folder ``ROLLOUTS_JOURNAL``, ``POD-PID``, with a line ``AT_NS PARTITION FIRST LAST`` for each partition of a
call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater.handler import Batch

JOURNAL = "ROLLOUTS_JOURNAL"


class Record(Protocol):
    """kafka-python's names, as the engine ``python`` gives them."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def value(self) -> bytes | None: ...


class _Journal:
    """Made with the first record: a preflight, which has none, leaves no file."""

    def __init__(self) -> None:
        self._file: int | None = None

    def write(self, lines: str) -> None:
        if self._file is None:
            path = Path(os.environ[JOURNAL]) / f"{os.environ['HOSTNAME']}-{os.getpid()}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._file, lines.encode())


_journal = _Journal()


def handle(records: Sequence[Record]) -> list[Mapping[str, Any]]:
    """A row for each record: its place, and the number that it carries."""
    rows: list[Mapping[str, Any]] = []
    spans: dict[int, list[int]] = {}
    for record in records:
        rows.append(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "number": int(record.value or b"0"),
            }
        )
        spans.setdefault(record.partition, [record.offset, record.offset])[1] = record.offset
    _note((partition, first, last) for partition, (first, last) in spans.items())
    return rows


def handle_on_spark(records: DataFrame, batch: Batch) -> DataFrame:
    """The same rows as :func:`handle` gives."""
    _note((tp.partition, offsets.start, offsets.end - 1) for tp, offsets in batch.ranges.items())
    return records.selectExpr(
        "topic",
        "`partition`",
        "`offset`",
        "CAST(TRIM(COALESCE(CAST(value AS STRING), '0')) AS BIGINT) AS number",
    )


def _note(spans: Iterable[tuple[int, int, int]]) -> None:
    """Writes each (partition, first, last) of a call into the journal."""
    now = time.time_ns()
    if lines := "".join(f"{now} {partition} {first} {last}\n" for partition, first, last in spans):
        _journal.write(lines)
