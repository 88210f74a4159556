"""A query's tasks, and what one of them does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from slackwater.clock import SYSTEM_CLOCK
from slackwater.pipeline.datasource.client import task_consumer
from slackwater.pipeline.datasource.offsets import OffsetRange
from slackwater.pipeline.datasource.options import SourceOptions
from slackwater.pipeline.datasource.planning import split
from slackwater.pipeline.datasource.reading import read_range
from slackwater.pipeline.datasource.rows import batches
from slackwater.pipeline.datasource.values import opened_decoder


class RangePartition(InputPartition):  # type: ignore[misc]
    """One task's part of a partition's log."""

    def __init__(self, part: OffsetRange) -> None:
        super().__init__(part)


def tasks(ranges: Iterable[OffsetRange], least: int) -> list[RangePartition]:
    """The tasks that read ``ranges``."""
    return [RangePartition(part) for part in split(ranges, least)]


def read_task(task: InputPartition, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Raises OptionError, KafkaError, DataLossError."""
    part = task.value
    if part is None:  # what Spark makes of a query without tasks
        return
    decoder = opened_decoder(options.value, schema) if options.value is not None else None
    with task_consumer(options.properties) as consumer:
        for columns in read_range(
            consumer,
            part,
            SYSTEM_CLOCK,
            fail_on_data_loss=options.fail_on_data_loss,
            silence_ms=options.silence_ms,
        ):
            yield from batches(columns, part.partition, schema, decoder)
