"""Counts dead letters by where their records are from, and by error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slackwater.tools.letters import StoredLetter
from slackwater.tools.record_text import iso_time

MOST_ERRORS = 1000
"""How many different errors are counted apart."""
OTHER_ERRORS = "(other errors)"
COLUMNS = ("letters", "replayed", "topic", "partition", "first", "last", "error")
MOST_ERROR = 160
"""Characters of an error in a table."""


@dataclass
class Count:
    """Of one topic, partition and error. ``first_ms``, ``last_ms``: when letters were written."""

    letters: int
    replayed: int
    first_ms: int
    last_ms: int


class LetterCounts:
    """The counts of the letters that were added."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, str], Count] = {}

    def add(self, letter: StoredLetter, replayed: bool) -> None:
        """Counts a letter in."""
        # Without the record's position, so that records with the same error are counted together.
        error = letter.error.replace(f", at {letter.source} offset {letter.source_offset}", "")
        key = (letter.source.topic, letter.source.partition, error)
        if key not in self._counts and len(self._counts) >= MOST_ERRORS:
            key = (*key[:2], OTHER_ERRORS)
        at = letter.written_ms
        count = self._counts.setdefault(key, Count(0, 0, at, at))
        count.letters += 1
        count.replayed += replayed
        count.first_ms, count.last_ms = min(count.first_ms, at), max(count.last_ms, at)

    @property
    def letters(self) -> int:
        """How many there are in all."""
        return sum(count.letters for count in self._counts.values())

    @property
    def replayed(self) -> int:
        """How many of them a replay has sent."""
        return sum(count.replayed for count in self._counts.values())

    def _ordered(self) -> list[tuple[tuple[str, int, str], Count]]:
        return sorted(self._counts.items(), key=lambda item: (-item[1].letters, item[0]))

    def document(self) -> list[dict[str, Any]]:
        """For JSON, the largest count first."""
        return [
            {
                "topic": topic,
                "partition": partition,
                "error": error,
                "letters": count.letters,
                "replayed": count.replayed,
                "first": iso_time(count.first_ms),
                "last": iso_time(count.last_ms),
            }
            for (topic, partition, error), count in self._ordered()
        ]

    def rows(self) -> list[tuple[Any, ...]]:
        """For a table with :data:`COLUMNS`, the largest count first."""
        return [
            (
                count.letters,
                count.replayed,
                topic,
                partition,
                _minute(count.first_ms),
                _minute(count.last_ms),
                error,
            )
            for (topic, partition, error), count in self._ordered()
        ]


def _minute(ms: int) -> str:
    return iso_time(ms)[:16].replace("T", " ") + "Z"
