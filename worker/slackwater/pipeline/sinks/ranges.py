"""What all sinks do with a batch's ranges: compare their marks with the table's, and drop partitions."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from slackwater.runtime.interfaces import SinkFencedError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range


def check_mark(tp: TopicPartition, span: Range, mark: int | None, table: str) -> None:
    """Raises SinkFencedError if ``mark``, which ``table`` has for the range's topic and partition, is not the
    range's."""
    if mark != span.mark:
        raise SinkFencedError(
            f"another process has written {tp} to {table}: its rows are there up to {mark}, and this worker "
            f"knows of {span.mark}"
        )


def rows_of(rows: pa.Table, partitions: Collection[TopicPartition]) -> pa.Table:
    """The rows whose positions are in ``partitions``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.repeat(pa.scalar(False), rows.num_rows)
    for tp in partitions:
        own = pc.and_(pc.equal(rows["topic"], tp.topic), pc.equal(rows["partition"], tp.partition))
        mask = pc.or_(mask, own)
    return rows.filter(mask)
