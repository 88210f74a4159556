"""Engine spark: the handler gets a data frame of the log, and only its rows come to this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from slackwater.backfill.frames import LogReader
from slackwater.handler import Batch
from slackwater.pipeline.engines.decoding import DecodingEngine
from slackwater.pipeline.engines.kept_rows import checked_names
from slackwater.pipeline.engines.spark import SparkEngine
from slackwater.runtime.handler_output import Output, checked_output
from slackwater.runtime.interfaces import ERROR_COLUMN, PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.handler import OffsetRange
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import AnyEngine


class SparkHandler:
    """Runs the handler of ``engine``, which is warmed up, on what ``reader`` reads. ``by_record``: whether
    each row carries the position of its record."""

    def __init__(self, engine: AnyEngine, reader: LogReader, *, by_record: bool) -> None:
        inner = engine.engine if isinstance(engine, DecodingEngine) else engine
        assert isinstance(inner, SparkEngine)
        self._engine, self._reader, self._by_record = inner, reader, by_record

    def run(self, part: Mapping[TopicPartition, OffsetRange], batch: Batch) -> Output:
        """The handler's rows for ``part``, and the records that it rejects. Raises as
        :meth:`SparkEngine.query`, and RecordsError and HandlerError as a worker does for such a result."""

        def act(spark: SparkSession, handle: Callable[[DataFrame], DataFrame]) -> pa.Table:
            frame = self._reader.read(spark, part)
            return self._reader.with_rejected(frame, handle(self._reader.good(frame))).toArrow()

        return checked_output(self._engine.query(batch, act), offsets_of(part), by_record=self._by_record)

    def write(
        self,
        part: Mapping[TopicPartition, OffsetRange],
        batch: Batch,
        store: Callable[[Mapping[TopicPartition, list[tuple[int, str]]]], object],
        append: Callable[[DataFrame], object],
        *,
        without: Mapping[TopicPartition, Collection[int]],
    ) -> int:
        """Has Spark write the handler's rows for ``part``: ``append`` does, after ``store`` was called with
        offset and error of the records that it rejects. Rows of records whose offsets are in ``without`` are
        left out. Returns how many rows were written.

        Raises what ``append`` and ``store`` raise; else as :meth:`run`.
        """

        def act(spark: SparkSession, handle: Callable[[DataFrame], DataFrame]) -> int:
            frame = self._reader.read(spark, part)
            rows = self._reader.with_rejected(frame, handle(self._reader.good(frame)))
            if ERROR_COLUMN not in checked_names(rows, by_record=self._by_record):
                return _written(_left_out(rows, without), append)
            kept = rows.persist()
            try:
                rejected = kept.where(f"{ERROR_COLUMN} IS NOT NULL").select(*PLACE_COLUMNS, ERROR_COLUMN)
                store(checked_output(rejected.toArrow(), offsets_of(part)).dead)
                accepted = kept.where(f"{ERROR_COLUMN} IS NULL").drop(ERROR_COLUMN)
                return _written(_left_out(accepted, without), append)
            finally:
                kept.unpersist()

        return self._engine.query(batch, act)


def _left_out(rows: DataFrame, without: Mapping[TopicPartition, Collection[int]]) -> DataFrame:
    """``rows`` but for those of records whose offsets are in ``without``."""
    from pyspark.sql.functions import coalesce, col, lit

    for (topic, partition), offsets in without.items():
        own = (col("topic") == topic) & (col("partition") == partition) & col("offset").isin(list(offsets))
        rows = rows.where(~coalesce(own, lit(False)))
    return rows


def _written(rows: DataFrame, append: Callable[[DataFrame], object]) -> int:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    counted = Observation()
    append(rows.observe(counted, count(lit(1)).alias("rows")))
    return int(counted.get["rows"])


def offsets_of(part: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, pa.RecordBatch]:
    """The offsets of ``part``, as the check of a handler's rows takes a batch's records: which of them have a
    record is known to the executors alone."""
    import numpy as np
    import pyarrow as pa

    return {
        tp: pa.record_batch({"offset": pa.array(np.arange(span.start, span.end, dtype=np.int64))})
        for tp, span in part.items()
    }
