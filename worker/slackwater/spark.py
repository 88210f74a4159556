"""The data source ``slackwater`` for Spark: reads Kafka topics in batch queries and streams.

    from slackwater.spark import register

    register(spark)
    spark.read.format("slackwater").option("kafka.bootstrap.servers", ...).option("subscribe", ...).load()

docs/spark-source.md has its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes ``format("slackwater")`` known to a session, local or of Spark Connect.

    Switches the push-down of filters to Python data sources on in this session. The executors, and the server
    of Spark Connect, need the package ``slackwater`` too.
    """
    from slackwater.pipeline.datasource.source import SlackwaterDataSource

    spark.dataSource.register(SlackwaterDataSource)
    # Off by default; a source that takes filters is refused then.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
