"""Any format of Spark's DataFrameWriter: the session of the worker's engine appends a batch's rows.

They are there already, unless they had to wait in the worker for those of other batches: these are sent back.

Each record at least once: what such a format writes has no place for marks that change with the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.engines.kept_rows import SparkRows
from slackwater.pipeline.engines.spark_session import summary
from slackwater.pipeline.sinks.unmarked import UnmarkedSink
from slackwater.runtime.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


def append(
    frame: DataFrame, spark_format: str, options: Mapping[str, str], partition_by: Sequence[str]
) -> None:
    """Has Spark append the rows of ``frame``. Raises what Spark raises."""
    writer = frame.write.format(spark_format).mode("append").options(**options)
    (writer.partitionBy(*partition_by) if partition_by else writer).save()


def spark_sink(
    session: Callable[[], Any],
    spark_format: str,
    *,
    options: Mapping[str, str],
    partition_by: Sequence[str] = (),
) -> UnmarkedSink:
    """The sink that appends with ``spark_format``.

    Args:
        session: the session of the worker's engine, as it is now.
        spark_format: as ``DataFrameWriter.format`` takes it.
        options: of the writer.
        partition_by: columns, as ``DataFrameWriter.partitionBy`` takes them.
    """

    def write(rows: pa.Table | SparkRows) -> None:
        kept = isinstance(rows, SparkRows)
        try:
            frame = rows.frame if kept else session().createDataFrame(rows)
            # One task: Spark makes a file of each.
            append(frame.coalesce(1), spark_format, options, partition_by)
        except Exception as exc:
            log.error("Spark cannot write with the format %s", spark_format, exc_info=exc)
            raise SinkError(
                f"the sink cannot write with Spark's format {spark_format}: {summary(exc)}. The batch is not "
                "committed; some of its rows may have been written"
            ) from exc
        if kept:
            rows.release()

    return UnmarkedSink(write, f"Spark's format {spark_format}")
