"""The marks of a table, by group: what sinks read, compare, move and lower."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import SinkFencedError

if TYPE_CHECKING:
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range


class MarkKey(NamedTuple):
    """What a mark of a group is of."""

    topic: str
    topic_id: str
    partition: int


def check_mark(tp: TopicPartition, span: Range, mark: int | None, table: str) -> None:
    """Raises SinkFencedError if ``mark``, which ``table`` has for the range's topic and partition, is not the
    range's."""
    if mark != span.mark:
        raise SinkFencedError(
            f"another process has written {tp} to {table}: its rows are there up to {mark}, and this worker "
            f"knows of {span.mark}"
        )


def ends_of(ranges: Mapping[TopicPartition, Range]) -> dict[MarkKey, int]:
    """The marks after a batch of ``ranges``."""
    return {MarkKey(tp.topic, span.topic_id, tp.partition): span.end for tp, span in ranges.items()}


def by_partition(
    saved: Mapping[MarkKey, int], partitions: Collection[TopicPartition]
) -> dict[TopicPartition, dict[str, int]]:
    """Those of the marks ``saved`` that are of ``partitions``, by topic id."""
    wanted = {(tp.topic, tp.partition): tp for tp in partitions}
    marks: dict[TopicPartition, dict[str, int]] = {}
    for key, end in saved.items():
        if tp := wanted.get((key.topic, key.partition)):
            marks.setdefault(tp, {})[key.topic_id] = end
    return marks


def lowered(
    saved: Mapping[MarkKey, int], starts: Mapping[TopicPartition, tuple[str, int]]
) -> dict[MarkKey, int]:
    """The marks after a rewind to ``starts``, without those that are not above them."""
    asked = {MarkKey(tp.topic, topic_id, tp.partition): start for tp, (topic_id, start) in starts.items()}
    return {key: start for key, start in asked.items() if saved.get(key, 0) > start}


class GroupMarks:
    """Compares the marks of ``group_id`` in ``table``. ``setting``: of the configuration that names the
    table; both are for messages."""

    def __init__(self, group_id: str, table: str, setting: str) -> None:
        self.group_id, self._table, self._setting = group_id, table, setting
        self._unsaved: dict[TopicPartition, tuple[str, int]] = {}
        """Topic ids and ends of batches without rows, as long as only rows can tell the columns of the table
        that is to be created."""

    def of(
        self, saved: Mapping[str, Mapping[MarkKey, int]], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, dict[str, int]]:
        """The marks of ``partitions`` by topic id; ``saved``: by group. What :meth:`keep` has kept of them is
        forgotten."""
        for tp in partitions:
            self._unsaved.pop(tp, None)
        return by_partition(saved.get(self.group_id, {}), partitions)

    def check(self, saved: Mapping[MarkKey, int], ranges: Mapping[TopicPartition, Range]) -> None:
        """Raises SinkFencedError where a mark is not that of the batch's range. ``saved``: of this group."""
        for tp, span in ranges.items():
            topic_id, unsaved = self._unsaved.get(tp, (None, None))
            kept = unsaved if topic_id == span.topic_id else None
            check_mark(tp, span, saved.get(MarkKey(tp.topic, span.topic_id, tp.partition), kept), self._table)

    def keep(self, ranges: Mapping[TopicPartition, Range]) -> None:
        """Keeps the ends of a batch without rows in memory: there is no table yet, and nothing to create it
        from."""
        self._unsaved |= {tp: (span.topic_id, span.end) for tp, span in ranges.items()}

    def check_alone(self, saved: Mapping[str, Mapping[MarkKey, int]], lowered: Mapping[MarkKey, int]) -> None:
        """Raises SinkError if the table has rows from an offset of ``lowered`` on that are another group's or
        topic id's: rows don't tell their group and topic id. ``saved``: by group."""
        own = {(key.topic, key.partition): (key, start) for key, start in lowered.items()}
        for group, marks in sorted(saved.items()):
            for other, end in marks.items():
                key, start = own.get((other.topic, other.partition), (other, end))
                if end > start and (group, other) != (self.group_id, key):
                    raise SinkError(
                        f"the sink cannot tell which rows of {key.topic}-{key.partition} to remove: "
                        f"{self._table} also has rows of the group {group}, topic id "
                        f"{other.topic_id or 'unknown'}. Start the group with another {self._setting}"
                    )
