"""Structured Streaming on the same topic, in a process of its own: `format("kafka")` to Parquet.

Its settings are the best that were found on two cores: no adaptive execution and no limit a trigger in bulk.
Prints one line of JSON: begin and end of the query, and its batches (rows and ms), as it reports them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.pipeline.handlers import spark as handler
from tests.support.spark import kafka_source_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def session() -> SparkSession:
    """A local session on two cores with Spark's own Kafka source."""
    from pyspark.sql import SparkSession

    from slackwater.pipeline.engines.spark_session import prepare_environment

    prepare_environment()
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, kafka_source_jars())))
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def query(bootstrap: str, topic: str, folder: Path, per_trigger: int) -> dict[str, Any]:
    """Reads ``topic`` to its end into ``folder``. ``per_trigger``: most records of a batch; 0: no limit."""
    spark = session()
    spark.range(10).selectExpr("sum(id)").collect()
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
    )
    if per_trigger:
        source = source.option("maxOffsetsPerTrigger", per_trigger)
    writer = handler(source.load()).writeStream.format("parquet").trigger(availableNow=True)
    began = time.time()
    running = writer.start(str(folder / "out"), checkpointLocation=str(folder / "checkpoint"))
    running.awaitTermination()
    return {"began": began, "ended": time.time(), "batches": batches_of(running)}


def batches_of(running: StreamingQuery) -> list[tuple[int, float]]:
    """Rows and ms of each batch that had some."""
    return [
        (progress["numInputRows"], progress["durationMs"]["triggerExecution"])
        for progress in map(dict, running.recentProgress)
        if progress["numInputRows"]
    ]


if __name__ == "__main__":
    result = query(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    print(json.dumps(result), flush=True)
    os._exit(0)
