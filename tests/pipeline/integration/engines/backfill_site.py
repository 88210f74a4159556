"""A topic with JSON records, a handler of them for each engine, and what a backfill has written."""

from __future__ import annotations

import json

import pyarrow as pa

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.interfaces import Range
from tests.support.workers.group_site import GroupSite

PARTITIONS = 3
HANDLER = '''
import json
import os

import pyarrow as pa


def transform(df):
    from pyspark.sql import functions as F

    fields = F.from_json(F.col("value").cast("string"), "id LONG, kind STRING").alias("v")
    rows = df.select("topic", "partition", "offset", fields)
    error = F.when(F.col("v.kind") == "rejected", F.concat(F.lit("rejected "), F.col("v.id").cast("string")))
    return rows.select("topic", "partition", "offset", "v.id", error.alias("_error"))


def accepting(df):
    return transform(df).drop("_error")


def number(value):
    return 10 // value


def decoded(df, batch):
    """A value of 0 breaks the batch. The UDF is of this module: executors import it."""
    from pyspark.sql import functions as F

    assert batch.instance in ("backfill", ""), "that of the warm-up has none"
    tenth = F.udf(number, "int")(F.col("value.id"))
    return df.select("topic", "partition", "offset", "value.id", tenth.alias("tenth"))


def arrow(table):
    ids = [json.loads(value)["id"] for value in table["value"].to_pylist()]
    if 0 in ids:
        raise ValueError("id is 0")
    return table.select(["topic", "partition", "offset"]).append_column("id", pa.array(ids, pa.int64()))


def ending(table):
    if b'{"id": 7, "kind": "good"}' in table["value"].to_pylist():
        os._exit(1)
    return whole(table)


def rejecting(table):
    kinds = [json.loads(value)["kind"] for value in table["value"].to_pylist()]
    errors = ["rejected" if kind == "rejected" else None for kind in kinds]
    return arrow(table).append_column("_error", pa.array(errors, pa.string()))


def whole(table):
    ids = [json.loads(value)["id"] for value in table["value"].to_pylist()]
    rows = table.select(["topic", "partition", "offset", "value"])
    return rows.append_column("id", pa.array(ids, pa.int64()))


def store(rows, options):
    with open(options["file"], "a") as file:
        file.writelines(f"{number}\\n" for number in rows["id"].to_pylist())
'''


def write(site: GroupSite, ids: range, rejected: int = 0) -> None:
    """JSON records in turn to each partition; each ``rejected``-th is one that the handler rejects."""
    site.write(
        (
            (
                number % PARTITIONS,
                json.dumps(
                    {"id": number, "kind": "rejected" if rejected and number % rejected == 0 else "good"}
                ).encode(),
            )
            for number in ids
        ),
        headers={"h": b"x"},
    )


def ids(site: GroupSite) -> list[int]:
    return sorted(row["id"] for row in site.output.rows("id"))


def group_rows(site: GroupSite, count: int) -> ParquetSink:
    """What a worker of the group has written to the table: the first ``count`` records of partition 0."""
    sink = ParquetSink(site.group, str(site.out))
    rows = pa.table(
        {
            "topic": [site.topic] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "id": pa.array(range(0, PARTITIONS * count, PARTITIONS), pa.int64()),
        }
    )
    sink.stage(rows, {TopicPartition(site.topic, 0): Range(topic_id(site), 0, count, None)}).publish()
    return sink


def topic_id(site: GroupSite) -> str:
    from slackwater.kafka import KafkaAdmin
    from slackwater.runtime.delivery.stopped_partitions import id_text

    with KafkaAdmin(site.bootstrap) as admin:
        return id_text(admin.describe_topics([site.topic]).unwrap()[site.topic].topic_id)
