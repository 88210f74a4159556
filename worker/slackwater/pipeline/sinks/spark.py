"""Any format of Spark's DataFrameWriter: the session of the worker's engine appends a batch's rows.

They are there already, unless they had to wait in the worker for those of other batches: these are sent back.

Each record at least once: what such a format writes has no place for marks that change with the rows. Only
Delta's has one, which a session in this process or of spark-submit reaches (:mod:`..delta.spark_sink`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.engines.kept_rows import SparkRows
from slackwater.pipeline.engines.spark_session import summary
from slackwater.pipeline.sinks.unmarked import UnmarkedSink
from slackwater.runtime.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from slackwater.pipeline.sinks.delta.spark_sink import SparkDeltaSink
    from slackwater.runtime.config.worker_config import SinkConfig, WorkerConfig

log = logging.getLogger(__name__)


def append(frame: DataFrame, sink: SinkConfig) -> None:
    """Has Spark append the rows of ``frame``. Raises what Spark raises."""
    writer = frame.write.format(sink.spark_format).mode("append").options(**sink.options)
    (writer.partitionBy(*sink.partition_by) if sink.partition_by else writer).save()


def table_path(config: WorkerConfig) -> str:
    """Where the Delta table is in which the sink ``spark`` keeps marks; "": it keeps none.

    It keeps none through a Connect server, which lets nobody add marks to a commit.
    """
    sink = config.sink
    if sink.format != "spark" or sink.spark_format.lower() != "delta" or config.spark.remote:
        return ""
    return next((value for name, value in sink.options.items() if name.lower() == "path"), "")


def spark_sink(config: WorkerConfig, session: Callable[[], Any]) -> UnmarkedSink | SparkDeltaSink:
    """The sink that appends with ``config.sink.spark_format``.

    ``session``: that of the worker's engine, as it is now; raises RuntimeError if there is none.
    """
    sink = config.sink
    if path := table_path(config):
        from slackwater.pipeline.sinks.delta.spark_sink import SparkDeltaSink

        return SparkDeltaSink(
            config.group_id, session, path, options=sink.options, partition_by=sink.partition_by
        )
    spark_format = sink.spark_format

    def write(rows: pa.Table | SparkRows) -> None:
        kept = isinstance(rows, SparkRows)
        try:
            frame = rows.frame if kept else session().createDataFrame(rows)
            # One task: Spark makes a file of each.
            append(frame.coalesce(1), sink)
        except Exception as exc:
            log.error("Spark cannot write with the format %s", spark_format, exc_info=exc)
            raise SinkError(
                f"the sink cannot write with Spark's format {spark_format}: {summary(exc)}. The batch is not "
                "committed; some of its rows may have been written"
            ) from exc
        if kept:
            rows.release()

    return UnmarkedSink(write, f"Spark's format {spark_format}")
