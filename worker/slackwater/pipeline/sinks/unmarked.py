"""A sink without marks: each record at least once. Kafka's committed offsets alone say where to begin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.runtime.errors import RecordsError, SinkError
from slackwater.runtime.interfaces import PLACE_COLUMNS, EngineResidentRows

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range


class UnmarkedSink:
    """Hands the rows of each batch to ``write``, which returns when they are stored.

    Args:
        write: takes the rows; not called without rows. Raises RecordsError where records are at fault.
        name: of what is written to, for messages.
        appends: whether the rows may be in any order, so that each is written once also where records at
            fault are looked for. Else all are written again then, in order.
    """

    def __init__(self, write: Callable[[pa.Table], object], name: str, *, appends: bool = False) -> None:
        self._write, self._name, self._appends = write, name, appends
        self._suspects = False
        """Whether rows were refused since a batch was published."""
        self._written: set[tuple[str, int, int]] = set()
        """The places of the records whose rows were written since."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """There are none: a partition is read from its committed offset."""
        return {}

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedRows:
        """Keeps the rows. While records at fault are looked for it writes them at once, since nothing else
        shows whether they are taken. Raises what ``write`` raises."""
        if self._suspects and rows.num_rows:
            rows = self._write_new(rows)
        return StagedRows(self._commit, rows, ranges)

    def _write_new(self, rows: pa.Table) -> pa.Table:
        """Writes what is not written yet. Returns what is still to be written."""
        if not self._appends or not set(PLACE_COLUMNS) <= set(rows.column_names):
            self._write(rows)
            return rows
        kept = isinstance(rows, EngineResidentRows)
        places = rows.places() if kept else rows.select(PLACE_COLUMNS)
        listed = list(zip(*(column.to_pylist() for column in places.columns), strict=True))
        new = [number for number, place in enumerate(listed) if place not in self._written]
        if new:
            chosen = rows if len(new) == len(listed) else rows.at(places, new) if kept else rows.take(new)
            self._write(chosen)
            self._written.update(listed)
        return places.slice(0, 0)

    def _commit(self, staged: StagedRows) -> None:
        try:
            if staged.rows.num_rows:
                self._write(staged.rows)
        except RecordsError:
            self._suspects = True
            raise
        self._suspects = False
        self._written.clear()

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
