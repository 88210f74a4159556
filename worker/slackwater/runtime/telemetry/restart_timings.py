"""The timings of a worker's restart, from the previous process's commit notes and this process's own
times."""

from __future__ import annotations

from typing import Any

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.partition import CommitNote

PHASES = ("drain", "replace", "join", "first_record")
"""Drain: the process before ended its work. Replace: until this one began. Join: until it was in the group.
First record: until all partitions that it had served before were served again."""


class Restart:
    """Told what happens, says how long the phases took. Times: wall clock, ms.

    The process before may have run on another machine: `replace` compares two machines' clocks.
    """

    def __init__(self, instance: str, started_ms: int) -> None:
        self._instance, self._started_ms = instance, started_ms
        self._notes: dict[TopicPartition, CommitNote] = {}
        self._waiting: set[TopicPartition] = set()
        self._served: set[TopicPartition] = set()
        self.joined_ms: int | None = None
        self.first_record_ms: int | None = None

    def joined(self, now_ms: int) -> None:
        """The worker is in the group; the first time counts."""
        if self.joined_ms is None:
            self.joined_ms = now_ms

    def committed_known(self, tp: TopicPartition, note: CommitNote | None) -> None:
        """A partition has come, with the note of its last commit."""
        before = note is not None and note.instance == self._instance and note.at_ms is not None
        if note is None or not before or tp in self._served or self.first_record_ms is not None:
            return
        self._notes[tp] = note
        self._waiting.add(tp)

    def served(self, tp: TopicPartition, now_ms: int) -> bool:
        """A partition is served. Whether that completes the return."""
        self._served.add(tp)
        if tp not in self._waiting:
            return False
        self._waiting.discard(tp)
        if self._waiting:
            return False
        self.first_record_ms = now_ms
        return True

    def left(self, tp: TopicPartition) -> None:
        """A partition went to another member before it was served."""
        self._waiting.discard(tp)

    def document(self) -> dict[str, Any] | None:
        """The moments for /status; None where no process of this name is known to have been before."""
        if not self._notes:
            return None
        return {
            "drain_ms": min(
                (n.drain_ms for n in self._notes.values() if n.drain_ms is not None), default=None
            ),
            "served_until_ms": min(n.at_ms for n in self._notes.values() if n.at_ms is not None),
            "started_ms": self._started_ms,
            "joined_ms": self.joined_ms,
            "first_record_ms": self.first_record_ms,
        }

    def seconds(self) -> dict[str, float]:
        """How long each phase took, as far as it is known; a negative one (two clocks) counts as 0."""
        document = self.document()
        if document is None:
            return {}
        marks = list(document.values())
        return {
            phase: max(0, after - before) / 1000
            for phase, before, after in zip(PHASES, marks, marks[1:], strict=False)
            if before is not None and after is not None
        }
