"""The marks of a group in a Delta table: application transactions whose id names the partition.

The id is ``slackwater/GROUP/TOPIC/TOPIC ID/PARTITION``, percent-encoded; the version is the next offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from slackwater.pipeline.sinks.ranges import check_mark
from slackwater.runtime.errors import SinkError

if TYPE_CHECKING:
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range

FORGETS = "delta.setTransactionRetentionDuration"
"""The property of a table with which marks would expire."""
_APP = "slackwater"


class GroupMarks:
    """The marks of ``group_id`` in the table ``uri``. ``transactions`` below: those of the table, by id."""

    def __init__(self, group_id: str, uri: str) -> None:
        self._prefix, self._uri = f"{_APP}/{_quoted(group_id)}/", uri
        self._unsaved: dict[TopicPartition, tuple[str, int]] = {}
        """Topic ids and ends of batches without rows, as long as only rows can tell the columns of the table
        that is to be created."""

    def app_id(self, tp: TopicPartition, topic_id: str) -> str:
        """The id of a mark."""
        return f"{self._prefix}{_quoted(tp.topic)}/{_quoted(topic_id)}/{tp.partition}"

    def ends(self, ranges: Mapping[TopicPartition, Range]) -> dict[str, int]:
        """The marks after a batch of ``ranges``, by id."""
        return {self.app_id(tp, span.topic_id): span.end for tp, span in ranges.items()}

    def of(
        self, transactions: Mapping[str, int], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, dict[str, int]]:
        """The marks of ``partitions`` by topic id. What :meth:`keep` has kept of them is forgotten."""
        wanted = {(_quoted(tp.topic), str(tp.partition)): tp for tp in partitions}
        marks: dict[TopicPartition, dict[str, int]] = {}
        for app_id, end in transactions.items():
            if app_id.startswith(self._prefix):
                topic, topic_id, partition = app_id.removeprefix(self._prefix).split("/")
                if (topic, partition) in wanted:
                    marks.setdefault(wanted[topic, partition], {})[unquote(topic_id)] = end
        for tp in partitions:
            self._unsaved.pop(tp, None)
        return marks

    def check(self, transactions: Mapping[str, int], ranges: Mapping[TopicPartition, Range]) -> None:
        """Raises SinkFencedError where a mark is not that of the batch's range."""
        for tp, span in ranges.items():
            topic_id, unsaved = self._unsaved.get(tp, (None, None))
            kept = unsaved if topic_id == span.topic_id else None
            check_mark(tp, span, transactions.get(self.app_id(tp, span.topic_id), kept), self._uri)

    def keep(self, ranges: Mapping[TopicPartition, Range]) -> None:
        """Keeps the ends of a batch without rows in memory: there is no table yet, and nothing to create it
        from."""
        self._unsaved |= {tp: (span.topic_id, span.end) for tp, span in ranges.items()}

    def check_alone(
        self, transactions: Mapping[str, int], app_id: str, tp: TopicPartition, start: int
    ) -> None:
        """Raises SinkError if the table has rows of ``tp`` from ``start`` on under another mark than
        ``app_id``: rows don't tell their group and topic id."""
        for other, end in transactions.items():
            app, _, place = other.partition("/")
            if app == _APP and other != app_id and end > start:
                group, topic, topic_id, partition = place.split("/")
                if (topic, partition) == (_quoted(tp.topic), str(tp.partition)):
                    raise SinkError(
                        f"the sink cannot tell which rows of {tp} to remove: {self._uri} also "
                        f"has rows of the group {unquote(group)}, topic id {unquote(topic_id) or 'unknown'}. "
                        "Start the group with another sink.path"
                    )


def forgets(uri: str) -> SinkError:
    """The error for a table with the property :data:`FORGETS`."""
    return SinkError(
        f"the Delta table {uri} has the property {FORGETS}, and so would forget which "
        f"offsets it holds: run ALTER TABLE ... UNSET TBLPROPERTIES ('{FORGETS}')"
    )


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")
