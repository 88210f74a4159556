"""The data source ``slackwater`` for Spark: reads Kafka topics in batch queries and streams.

    from slackwater.spark import register

    register(spark)
    spark.read.format("slackwater").option("kafka.bootstrap.servers", ...).option("subscribe", ...).load()

docs/reference/spark-source.md has its options.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.extras import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["marks", "register"]


def register(spark: SparkSession) -> None:
    """Makes ``format("slackwater")`` known to a session, local or of Spark Connect.

    Switches the push-down of filters to Python data sources on in this session. The executors, and the server
    of Spark Connect, need the package ``slackwater`` too.
    """
    SPARK.require("slackwater.spark")
    from slackwater.pipeline.datasource.source import SlackwaterDataSource

    spark.dataSource.register(SlackwaterDataSource)
    # Off by default; a source that takes filters is refused then.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def marks(file: str | Path, *, secrets: str | Path | None = None, bootstrap: str = "") -> str:
    """Where the table of a group ends, for ``startingOffsets``: as JSON the next offset of each partition; -2
    (the first one) where the table has no record of a partition. It has the topics' ids, so that a query does
    not begin there in another topic of the name.

    Args:
        file: the ConsumerGroup's YAML, or a worker's configuration file.
        secrets: the folder of the Secrets that the ConsumerGroup names, a file a key: ``secrets/NAME/KEY``.
        bootstrap: brokers to ask instead of the file's.

    Raises:
        ConfigError: the file cannot be used, or the group's sink has no marks.
        StartError: a topic does not exist.
        SinkError: the table cannot be read.
        KafkaError: the brokers do not answer.
    """
    from slackwater.pipeline.datasource.offsets import StreamOffset, document_of
    from slackwater.tools.group_config import config_of_file
    from slackwater.tools.marks import marks_of

    config = config_of_file(Path(file), secrets=Path(secrets) if secrets else None, bootstrap=bootstrap)
    ends, topic_ids = marks_of(config)
    offsets = {tp: -2 if mark is None else mark for tp, mark in ends.items()}
    return json.dumps(document_of(StreamOffset(offsets, topic_ids)))
