"""Any format of Spark's DataFrameWriter: the session of the worker's engine appends a batch's rows.

They are there already, unless they had to wait in the worker for those of other batches: these are sent back.

Each record at least once: what such a format writes has no place for marks that change with the rows. Only
Delta's has one, which a session in this process or of spark-submit reaches (:mod:`..delta.spark_sink`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from slackwater.pipeline.engines.kept_rows import SparkRows
from slackwater.pipeline.engines.spark_session import summary
from slackwater.pipeline.sinks.delta.spark_table import OF_RECORDS
from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.pipeline.sinks.unmarked import UnmarkedSink
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from slackwater.pipeline.sinks.delta.spark_sink import SparkDeltaSink
    from slackwater.runtime.config.sink_config import SinkConfig
    from slackwater.runtime.config.worker_config import WorkerConfig

log = logging.getLogger(__name__)

_FILES = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
"""Spark's formats of files: what a task has written is in the folder ``_temporary`` until the job commits."""
_OF_RECORDS = re.compile(
    f"{OF_RECORDS.pattern}|NOT_NULL_ASSERT_VIOLATION|ORA-01400|ORA-02290|SQLSTATE: (23502|23513|23514)"
    "|(?i:violates (not-null|check) constraint|check constraint [^ ]+ (is|was) violated"
    "|conflicted with the CHECK constraint|cannot be null|cannot accept a NULL|cannot insert the value NULL)"
)
"""What Spark, and databases behind JDBC, say of null in NOT NULL and of rows that break a CHECK."""
_FOLDER = "mapreduce.job.application.attempt.id"
"""The number of the job's folder in ``_temporary``."""


def append(frame: DataFrame, sink: SinkConfig) -> None:
    """Has Spark append the rows of ``frame``. Raises what Spark raises.

    Other workers may write into the same folder at the same time.
    """
    own = _own_folder() if sink.spark_format.lower() in _FILES else {}
    writer = frame.write.format(sink.spark_format).mode("append").options(**{**own, **sink.options})
    (writer.partitionBy(*sink.partition_by) if sink.partition_by else writer).save()
    if own:
        _remove(frame, sink, own[_FOLDER])


def _own_folder() -> dict[str, str]:
    """Options for a job that is not the only one to write into its path.

    By default all jobs use ``_temporary/0``. Hadoop's ``FileOutputCommitter`` publishes all that it finds
    there, and then removes ``_temporary``, with what other jobs have not committed yet: these fail, or, where
    the folder has been made again meanwhile, commit nothing and do not fail. So each job has a folder of its
    own, and ``_temporary`` stays. With version 1 of the algorithm a job whose folder is gone fails; with
    version 2 it would commit nothing.
    """
    return {
        _FOLDER: str(uuid4().int % 2**31),
        "mapreduce.fileoutputcommitter.algorithm.version": "1",
        "mapreduce.fileoutputcommitter.cleanup.skipped": "true",
    }


def _remove(frame: DataFrame, sink: SinkConfig, folder: str) -> None:
    """Removes the job's folder, which has only empty folders now. Those on a Connect server stay."""
    jvm = getattr(frame.sparkSession, "_jvm", None)
    if jvm is None or not (path := _path(sink)):
        return
    with suppress(Exception):  # its rows are there, and nothing reads the folder
        hadoop = jvm.org.apache.hadoop
        conf = hadoop.conf.Configuration(frame.sparkSession._jsc.hadoopConfiguration())
        for name, value in sink.options.items():
            conf.set(name, value)
        temporary = hadoop.fs.Path(f"{path}/_temporary/{folder}")
        temporary.getFileSystem(conf).delete(temporary, True)


def table_path(config: WorkerConfig) -> str:
    """Where the Delta table is in which the sink ``spark`` keeps marks; "": it keeps none.

    It keeps none through a Connect server, which lets nobody add marks to a commit.
    """
    sink = config.sink
    if sink.format != "spark" or sink.spark_format.lower() != "delta" or config.spark.remote:
        return ""
    return _path(sink)


def _path(sink: SinkConfig) -> str:
    return next((value for name, value in sink.options.items() if name.lower() == "path"), "")


def spark_sink(config: WorkerConfig, session: Callable[[], Any]) -> UnmarkedSink | SparkDeltaSink:
    """The sink that appends with ``config.sink.spark_format``.

    ``session``: that of the worker's engine, as it is now; raises RuntimeError if there is none. Raises
    ConfigError where rows are to replace others in a table that has no marks.
    """
    sink = config.sink
    mode = WriteMode.of(sink.mode, sink.key, None, sink.version, sink.deleted_for_ms)
    if path := table_path(config):
        from slackwater.pipeline.sinks.delta.spark_sink import SparkDeltaSink

        return SparkDeltaSink(
            config.group_id, session, path, options=sink.options, partition_by=sink.partition_by, mode=mode
        )
    if mode.key:
        raise ConfigError(
            f"is {mode.name}, which needs marks in the table: give sparkFormat delta an option path, and no "
            "spark.remote, whose clients cannot add marks to a commit",
            field="sink.mode",
        )
    spark_format = sink.spark_format

    def write(rows: pa.Table | SparkRows) -> None:
        kept = isinstance(rows, SparkRows)
        try:
            frame = rows.frame if kept else session().createDataFrame(rows)
            # One task: Spark makes a file of each.
            append(frame.coalesce(1), sink)
        except Exception as exc:
            if _OF_RECORDS.search(str(exc)):
                raise RecordsError(
                    f"the table of Spark's format {spark_format} does not take the rows: {summary(exc)}"
                ) from exc
            log.error("Spark cannot write with the format %s", spark_format, exc_info=exc)
            raise SinkError(
                f"the sink cannot write with Spark's format {spark_format}: {summary(exc)}. The batch is not "
                "committed; some of its rows may have been written"
            ) from exc
        if kept:
            rows.release()

    return UnmarkedSink(write, f"Spark's format {spark_format}", appends=True)
