"""A sink without marks: each record at least once. Kafka's committed offsets alone say where to begin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.runtime.errors import RecordsError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range


class UnmarkedSink:
    """Hands the rows of each batch to ``write``, which returns when they are stored.

    Args:
        write: takes the rows; not called without rows. Raises RecordsError where records are at fault.
        name: of what is written to, for messages.
    """

    def __init__(self, write: Callable[[pa.Table], object], name: str) -> None:
        self._write, self._name = write, name
        self._suspects = False
        """Whether rows were refused since a batch was published."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """There are none: a partition is read from its committed offset."""
        return {}

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedRows:
        """Keeps the rows. Writes them, too, while records at fault are looked for: nothing else shows whether
        they are taken. Raises what ``write`` raises."""
        if self._suspects and rows.num_rows:
            self._write(rows)
        return StagedRows(self._commit, rows, ranges)

    def _commit(self, staged: StagedRows) -> None:
        if not staged.rows.num_rows:
            return
        try:
            self._write(staged.rows)
        except RecordsError:
            self._suspects = True
            raise
        self._suspects = False

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Raises SinkError: nobody knows which rows are of these records."""
        raise SinkError(
            f"the sink cannot remove rows from {self._name}: it does not know which they are. To write "
            "records again beside them, set the group's committed offsets back with kafka-consumer-groups.sh "
            "--reset-offsets"
        )

    def probe(self) -> str:
        """Checks nothing. Returns the name."""
        return f"{self._name}, which is not checked before there are rows"
