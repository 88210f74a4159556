"""Parts of the log as Spark data frames, through the data source: executors read them, not this process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.offsets import StreamOffset, document_of
from slackwater.runtime.interfaces import ERROR_COLUMN, PLACE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.handler import OffsetRange
    from slackwater.runtime.config.worker_config import SecurityConfig, WorkerConfig

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""Those of a poll, in their order."""
_NOT_OF_THE_SOURCE = ("auto.offset.reset", "client.id")
"""Properties of a worker that the data source refuses, or has itself."""
_NO_HEADERS = "coalesce(headers, cast(array() AS array<struct<key:string,value:binary>>)) AS headers"


class LogReader:
    """Reads with a group's settings. ``topic_ids``: by topic; of another topic of the name nothing is read.
    ``decoded``: whether the executors decode values and keys by ``config``. ``tasks``: into how many tasks a
    part is divided at least."""

    def __init__(
        self, config: WorkerConfig, topic_ids: Mapping[str, str], *, decoded: bool, tasks: int
    ) -> None:
        self._ids = topic_ids
        self._decoded, self._tasks = decoded and bool(config.decoded), tasks
        self._options = {
            "kafka.bootstrap.servers": config.bootstrap_servers,
            "kafka.client.id": "slackwater-backfill",
            "columns": ",".join(COLUMNS),
            **_client_options(config),
        }
        if self._decoded:
            self._options |= _decoder_options(config)

    def read(self, spark: SparkSession, part: Mapping[TopicPartition, OffsetRange]) -> DataFrame:
        """The records of ``part``, as a handler gets them, and with decoded values also ``_error``."""
        numbers: dict[str, list[int]] = {}
        for topic, partition in part:
            numbers.setdefault(topic, []).append(partition)
        starts = StreamOffset({tp: span.start for tp, span in part.items()}, self._ids)
        ends = StreamOffset({tp: span.end for tp, span in part.items()}, self._ids)
        places = {
            "assign": json.dumps(numbers),
            "startingOffsets": json.dumps(document_of(starts)),
            "endingOffsets": json.dumps(document_of(ends)),
            "minPartitions": str(self._tasks),
        }
        frame = spark.read.format("slackwater").options(**self._options, **places).load()
        # A worker's records without headers have none, those of the data source have null.
        return frame.selectExpr(*COLUMNS[:-1], _NO_HEADERS, *([ERROR_COLUMN] if self._decoded else []))

    def good(self, frame: DataFrame) -> DataFrame:
        """Of a data frame of :meth:`read`, what the handler gets."""
        return frame.where(f"{ERROR_COLUMN} IS NULL").drop(ERROR_COLUMN) if self._decoded else frame

    def with_rejected(self, frame: DataFrame, rows: DataFrame) -> DataFrame:
        """``rows`` of the handler, and one for each record of ``frame`` that cannot be decoded."""
        if not self._decoded:
            return rows
        rejected = frame.where(f"{ERROR_COLUMN} IS NOT NULL").select(*PLACE_COLUMNS, ERROR_COLUMN)
        return rows.unionByName(rejected, allowMissingColumns=True)


def _client_options(config: WorkerConfig) -> dict[str, str]:
    properties = {name: value for name, value in config.properties.items() if name not in _NOT_OF_THE_SOURCE}
    return {f"kafka.{name}": value for name, value in {**properties, **security_of(config.security)}.items()}


def security_of(security: SecurityConfig) -> dict[str, str]:
    """The client's properties for ``security``, by Java's names; files stay files."""
    properties = {
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username.file": security.username_file,
        "sasl.password.file": security.password_file,
        "ssl.cafile": security.ca_file,
        "ssl.certfile": security.cert_file,
        "ssl.keyfile": security.key_file,
    }
    return {name: value for name, value in properties.items() if value is not None}


def _decoder_options(config: WorkerConfig) -> dict[str, str]:
    from slackwater.fields import file_document

    sections = [_flat(column, file_document(given)) for column, given in config.decoded.items()]
    return dict(itertools.chain(*sections))


def _flat(prefix: str, document: Mapping[str, Any]) -> list[tuple[str, str]]:
    options = []
    for name, item in document.items():
        path = f"{prefix}.{name}"
        options += _flat(path, item) if isinstance(item, Mapping) else [(path, str(item))]
    return options
