"""The data source ``slackwater``, as Spark calls it: batch queries and streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from slackwater.pipeline.datasource.client import config_of, open_admin, without_secrets
from slackwater.pipeline.datasource.filters import Bounds
from slackwater.pipeline.datasource.offsets import TopicOffsets, ranges_of
from slackwater.pipeline.datasource.options import SourceOptions, parse
from slackwater.pipeline.datasource.schema import arrow_schema, check_schema, spark_schema
from slackwater.pipeline.datasource.stream import StreamReader
from slackwater.pipeline.datasource.tasks import RangePartition, read_task, tasks
from slackwater.pipeline.datasource.values import decoded_type


class BatchReader(DataSourceReader):
    """Reads the ranges that the options and the query's filters leave."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(schema)
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Takes the filters that decide which offsets are read."""
        return list(self._bounds.take(filters))

    def partitions(self) -> list[RangePartition]:
        """One task a partition, or more by ``minPartitions``.

        Raises OptionError, KafkaError, DataLossError.
        """
        properties = self._options.properties
        with open_admin(properties) as admin, without_secrets(properties):
            log = TopicOffsets(admin, config_of(properties).isolation_level)
            ranges = self._bounds.narrow(ranges_of(log, self._options), log)
        return tasks(ranges, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return read_task(partition, self._options, self._schema)


class SlackwaterDataSource(DataSource):
    """``format("slackwater")``: Kafka topics, with the options and columns of Spark's own Kafka source."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "slackwater"

    def schema(self) -> StructType:
        """The columns. Raises OptionError; StartError where a schema registry does not answer."""
        return _schema_of(parse(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        """For ``spark.read``. Raises OptionError."""
        return BatchReader(_checked(self.options, schema).for_batch(), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """For ``spark.readStream``. Raises OptionError."""
        return StreamReader(_checked(self.options, schema).for_stream(), schema)


def _checked(given: Mapping[str, str], schema: StructType) -> SourceOptions:
    options = parse(given)
    check_schema(schema, _schema_of(options))
    config_of(options.properties)
    return options


def _schema_of(options: SourceOptions) -> StructType:
    decoded = {column: decoded_type(column, config) for column, config in options.decoded}
    return spark_schema(options.columns, decoded)
