"""Engines arrow and python: the handler runs in Spark's Python processes, on what each task reads.

A task hands on what a worker's batch would give: rows, and dead letters with their original bytes. Both come
as bytes, so that Spark neither needs one schema for all rows nor converts them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slackwater.backfill.frames import LogReader
from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka.records import ARROW_SCHEMA
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline import make_engine
from slackwater.pipeline.engines.spark_session import failure_of
from slackwater.pipeline.trial import Trial
from slackwater.runtime.config.sink_config import SinkConfig
from slackwater.runtime.errors import RefreshFailed
from slackwater.runtime.interfaces import PLACE_COLUMNS
from slackwater.runtime.startup import warm_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.handler import OffsetRange
    from slackwater.kafka.records import ConsumerRecord
    from slackwater.runtime.config.worker_config import WorkerConfig
    from slackwater.runtime.delivery.dead_letters import Letter
    from slackwater.runtime.interfaces import AnyEngine

INSTANCE = "backfill"
RESULT = pa.schema([("rows", pa.binary()), ("letters", pa.binary())])
RESULT_DDL = "rows binary, letters binary"


class ExecutorHandler:
    """Runs the handler of ``config`` on what ``reader`` reads."""

    def __init__(self, config: WorkerConfig, spark: SparkSession, reader: LogReader, run_id: str) -> None:
        """``run_id``: another one for each run of the command: processes keep the handler for a run."""
        self._spark, self._reader = spark, reader
        self._empty = ARROW_SCHEMA.empty_table().select(PLACE_COLUMNS if config.by_record else ())
        # The executors write to no table, and need none of its secrets. They have the handler on their path.
        needed = replace(config, sink=SinkConfig("parquet", path="none"), handler_path=())
        self._task = HandlerTask(needed, run_id)

    def run(
        self, part: Mapping[TopicPartition, OffsetRange]
    ) -> tuple[pa.Table, list[tuple[TopicPartition, Letter]]]:
        """The rows and the dead letters of ``part``. Raises SparkFailure."""
        frame = self._reader.read(self._spark, part)
        try:
            results = frame.mapInArrow(self._task, RESULT_DDL).toArrow()
        except Exception as exc:
            raise failure_of(exc) from exc
        tables = [pa.ipc.open_stream(rows.as_buffer()).read_all() for rows in results.column("rows")]
        letters = [letter for given in results.column("letters") for letter in pickle.loads(given.as_py())]
        return rows_together(tables, self._empty), letters


def rows_together(tables: list[pa.Table], empty: pa.Table) -> pa.Table:
    """``tables`` as one; ``empty`` if there are none. A column that only some of them have is null in the
    others. Raises ArrowTypeError for a column whose types have none in common."""
    kept = [table for table in tables if table.num_rows] or tables[:1] or [empty]
    return pa.concat_tables(kept, promote_options="permissive")


class HandlerTask:
    """What Spark calls in its Python processes. It is pickled; the handler is loaded where it runs."""

    def __init__(self, config: WorkerConfig, run_id: str) -> None:
        self._config, self._run_id = config, run_id

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows and dead letters of each of ``batches``."""
        opened = _opened(self._run_id, self._config)
        for batch in batches:
            if not batch.num_rows:
                continue
            outcome = opened.trial().run(partitions_of(batch))
            letters = pickle.dumps(outcome.letters)
            yield pa.record_batch([[_ipc(outcome.rows)], [letters]], schema=RESULT)


class _Opened:
    """The engine of a process."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._engine: AnyEngine = make_engine(config)
        self._engine.start()
        warm_up(self._engine, config.handler)
        self._fresh_ms = SYSTEM_CLOCK.mono_ms()

    def trial(self) -> Trial:
        """What handles a batch; the handler's tables are refreshed before, if it is time."""
        every_ms = self._config.refresh_every_ms
        if every_ms and SYSTEM_CLOCK.mono_ms() - self._fresh_ms >= every_ms:
            self._fresh_ms = SYSTEM_CLOCK.mono_ms()
            with suppress(RefreshFailed):  # is logged; what the handler had stays in use
                self._engine.refresh()
        return Trial(
            self._engine,
            self._config.handler,
            group_id=self._config.group_id,
            instance=INSTANCE,
            by_record=self._config.by_record,
        )

    def close(self) -> None:
        self._engine.close()


_open: dict[str, _Opened] = {}
"""Of this process: Spark uses a Python process for many tasks, one at a time."""


def _opened(run_id: str, config: WorkerConfig) -> _Opened:
    if run_id not in _open:
        for other in list(_open):
            _open.pop(other).close()
        _open[run_id] = _Opened(config)
    return _open[run_id]


def partitions_of(batch: pa.RecordBatch) -> dict[TopicPartition, BatchColumns]:
    """The records of ``batch`` by partition; those of a partition are in the order of their offsets."""
    import pyarrow.compute as pc

    places = pa.table({"topic": batch.column("topic"), "partition": batch.column("partition")})
    distinct = places.group_by(["topic", "partition"]).aggregate([]).to_pylist()
    parts = {}
    for place in distinct:
        tp = TopicPartition(place["topic"], place["partition"])
        own = batch
        if len(distinct) > 1:
            of_topic = pc.equal(batch.column("topic"), tp.topic)
            own = batch.filter(pc.and_(of_topic, pc.equal(batch.column("partition"), tp.partition)))
        parts[tp] = BatchColumns(own)
    return parts


class BatchColumns:
    """One partition's records in an Arrow batch of Spark's, as
    :class:`slackwater.runtime.interfaces.Columns`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        columns = [_cast(batch.column(field.name), field.type) for field in ARROW_SCHEMA]
        self._batch = pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
        offsets = self._batch.column("offset")
        self.next_offset: int = offsets[-1].as_py() + 1

    @property
    def first_offset(self) -> int:
        offset: int = self._batch.column("offset")[0].as_py()
        return offset

    def __len__(self) -> int:
        rows: int = self._batch.num_rows
        return rows

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        """All columns of a poll."""
        return self._batch

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        """The same as records."""
        from slackwater.kafka.records import ConsumerRecord

        times = self._batch.column("timestamp").cast(pa.int64())
        rows: Any = zip(
            *(self._batch.column(name).to_pylist() for name in ("offset", "key", "value", "headers")),
            times.to_pylist(),
            strict=True,
        )
        return [
            ConsumerRecord(
                topic, partition, -1, offset, time, 0, key, value,
                [(header["key"], header["value"]) for header in headers or ()],
            )
            for offset, key, value, headers, time in rows
        ]  # fmt: skip

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        """The values of the header ``name`` in ``rows``."""
        headers = self._batch.column("headers")
        return [
            header["value"]
            for row in rows
            for header in headers[row].as_py() or ()
            if header["key"] == name and header["value"] is not None
        ]


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return sink.getvalue()
