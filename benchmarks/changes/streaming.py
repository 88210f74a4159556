"""Structured Streaming on the same topic, in a process of its own: `foreachBatch` with MERGE into Delta.

Its settings are those of `benchmarks.pipeline.streaming`. Prints one line of JSON: begin and end of the
query, and its batches (rows and ms), as it reports them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.changes.load import COLUMNS, SCHEMA
from benchmarks.pipeline.streaming import batches_of
from tests.support.spark import delta_conf, kafka_source_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MERGE = """
merge into delta.`{path}` t using (
    select * from (
        select *, row_number() over (partition by id order by version desc) place from changes
    ) where place = 1
) s on t.id = s.id
when matched and s._op = 'delete' and s.version >= t.version then delete
when matched and s._op <> 'delete' and s.version >= t.version then update set {changes}
when not matched and s._op <> 'delete' then insert ({columns}) values ({values})
"""


def session() -> SparkSession:
    """A local session on two cores with Spark's own Kafka source and Delta."""
    from pyspark.sql import SparkSession

    from slackwater.pipeline.engines.spark_session import prepare_environment

    prepare_environment()
    conf = delta_conf()
    conf["spark.jars"] = ",".join([*map(str, kafka_source_jars()), conf["spark.jars"]])
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "3g")
    for name, value in {
        **conf,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def query(bootstrap: str, topic: str, path: str, per_trigger: int, vectors: bool) -> dict[str, Any]:
    """Applies the changes of ``topic`` to the table at ``path``. ``vectors``: with deletion vectors."""
    from pyspark.sql.functions import col, from_json

    spark = session()
    if vectors:
        spark.sql(f"alter table delta.`{path}` set tblproperties ('delta.enableDeletionVectors' = true)")
    sql = MERGE.format(
        path=path,
        changes=", ".join(f"{name} = s.{name}" for name in COLUMNS),
        columns=", ".join(COLUMNS),
        values=", ".join(f"s.{name}" for name in COLUMNS),
    )

    def merge(batch: DataFrame, _: int) -> None:
        batch.createOrReplaceTempView("changes")
        batch.sparkSession.sql(sql)

    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_trigger)
    )
    rows = source.load().select(from_json(col("value").cast("string"), SCHEMA).alias("v")).select("v.*")
    began = time.time()
    running = (
        rows.writeStream.foreachBatch(merge)
        .trigger(availableNow=True)
        .option("checkpointLocation", f"{path}-checkpoint")
        .start()
    )
    running.awaitTermination()
    return {"began": began, "ended": time.time(), "batches": batches_of(running)}


if __name__ == "__main__":
    result = query(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "vectors")
    print(json.dumps(result), flush=True)
    os._exit(0)
