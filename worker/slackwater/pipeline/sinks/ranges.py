"""What all sinks do with a batch's ranges: compare their marks with the table's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.runtime.interfaces import SinkFencedError

if TYPE_CHECKING:
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
