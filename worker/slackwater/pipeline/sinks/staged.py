"""A staged batch that is kept in memory until its sink commits it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.runtime.delivery.batch import rows_of
from slackwater.runtime.errors import HandlerError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range


class StagedRows:
    """The ``Staged`` of sinks that write nothing before ``commit``.

    ``names``: the columns that the handler gave; None: those of ``rows``. ``prepared``: what the sink keeps
    of its work on ``rows`` for another try; None: nothing.
    """

    def __init__(
        self,
        commit: Callable[[StagedRows], None],
        rows: pa.Table,
        ranges: Mapping[TopicPartition, Range],
        names: Sequence[str] | None = None,
    ) -> None:
        self._commit = commit
        self.rows, self.ranges = rows, dict(ranges)
        self.names = rows.column_names if names is None else names
        self.prepared: Any = None
        self._dropped = False

    def refuse_missing(self, columns: Sequence[str]) -> None:
        """Raises HandlerError if there are ``columns`` of the table's partitioning that the rows lack."""
        if columns and self.rows.num_rows:
            raise HandlerError(
                f"the rows have no column {columns[0]}, by which the table is partitioned (they have: "
                f"{', '.join(self.names)})"
            )

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Leaves ``partitions`` out of the commit."""
        self.ranges = {tp: span for tp, span in self.ranges.items() if tp not in partitions}
        self._dropped = True

    def publish(self) -> None:
        """Commits. Raises SinkFencedError, SinkError, RecordsError, HandlerError, ConfigError."""
        if not self.ranges:
            return
        if self._dropped:
            self.rows, self.prepared = rows_of(self.rows, self.ranges), None
        self._commit(self)

    def discard(self) -> None:
        """There is nothing to remove."""
