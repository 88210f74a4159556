"""A Spark engine in a process of Spark's."""

from __future__ import annotations

import itertools
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka.records import ARROW_SCHEMA
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline import make_sink
from slackwater.pipeline.engines.decoding import DecodingEngine
from slackwater.pipeline.engines.hooks import LoadedHandler
from slackwater.pipeline.engines.kept_rows import keep as keep_rows
from slackwater.pipeline.engines.spark import SparkEngine
from slackwater.pipeline.values import make_decoder
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.delivery.batch import DeliveryBatch, Part, info_of, rows_of
from slackwater.runtime.delivery.calls import stage, transform
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import Range
from tests.pipeline.integration.engines.spark_process import SparkProcess, backend, end_session
from tests.support.waiting import HANG_S

EXAMPLES = Path(__file__).parents[4] / "examples"

HANDLERS = '''
import time
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

def keep(df):
    return df

def counts(df):
    """A shuffle: every record of a partition with the partition's number of records."""
    sizes = df.groupBy("partition").agg(F.count("*").alias("records"))
    return df.select("topic", "partition", "offset").join(sizes, "partition")

def dice(df):
    # Each run of the plan has another result.
    error = F.when(F.rand() < 0.5, "unlucky").alias("_error")
    return df.select("topic", "partition", "offset", F.expr("uuid()").alias("id"), error)

def from_elsewhere(df):
    return df.select("topic", "partition", (F.col("offset") * 2).alias("offset"))

def zone(df):
    return df.withColumn("zone", F.current_timezone())

def unknown_column(df):
    return df.select("topic", "partition", "offset", "nothing")

def no_offset(df):
    return df.select("topic", "partition")

def typed(df):
    return df.select("topic", "partition", "offset", "value.*")

def number_as_error(df):
    return df.select("topic", "partition", "offset", F.lit(1).alias("_error"))

def no_frame(df):
    return 3

def raises(df):
    raise KeyError("mine")

def fails_in_java(df):
    return df.withColumn("x", F.raise_error(F.concat(F.lit("bad record "), F.col("offset").cast("string"))))

def fails_in_python(df):
    @F.udf(IntegerType())
    def broken(offset):
        raise ValueError(f"offset {offset} is unlucky")
    return df.withColumn("x", broken("offset"))

def amounts(df):
    return df.select("topic", "partition", "offset", F.col("value").cast("string").cast("double").alias("n"))

def unlucky(df):
    @F.udf(IntegerType())
    def number(value):
        return int(value)
    return df.select("topic", "partition", "offset", number(F.col("value").cast("string")).alias("n"))

def times_ten(value):
    return 10 * int(value)

def function_of_the_module(df):
    number = F.udf(times_ten, IntegerType())
    return df.select("topic", "partition", "offset", number(F.col("value").cast("string")).alias("n"))

def hangs(df):
    @F.udf(IntegerType())
    def slow(offset):
        if offset == 13:
            time.sleep(600)
        return 1
    return df.withColumn("x", slow("offset"))
'''

REFERENCE = """
from pyspark.sql import functions as F

version = 0

def setup(spark):
    refresh(spark)

def refresh(spark):
    global version
    spark.createDataFrame([(version + 1,)], "version INT").createOrReplaceTempView("reference")
    version += 1

def joined(df, batch):
    place = df.select("topic", "partition", "offset", F.lit(batch.attempt).alias("attempt"))
    return place.crossJoin(df.sparkSession.table("reference"))
"""

_engine: Any = None


def table(offsets: list[int], values: list[bytes | None] | None = None) -> pa.Table:
    """Polled records of ``t-0``."""
    n = len(offsets)
    columns = {
        "topic": ["t"] * n,
        "partition": [0] * n,
        "offset": offsets,
        "timestamp": [1_357_034_400_123 + i for i in range(n)],
        "key": [None if i % 2 else b"\x00key" for i in range(n)],
        "value": values if values is not None else [f"v{i}".encode() for i in range(n)],
        "headers": [[{"key": "h", "value": b"\xff"}] if i % 3 == 0 else [] for i in range(n)],
    }
    return pa.Table.from_pydict(columns, schema=ARROW_SCHEMA)


def _start(spec: str, path: list[str], options: dict[str, Any]) -> None:
    global _engine
    _close()
    value, elsewhere = options.pop("value", None), options.pop("elsewhere", False)
    made = SparkEngine(spec, path, **options)
    if "conf" in options:
        end_session()  # a process has one context
    elif "remote" not in options:
        made._backend = backend()
    _engine = made
    if value is not None:
        make = partial(make_decoder, value, timeout_ms=5_000, start_timeout_ms=5_000)
        _engine = DecodingEngine(made, {"value": make})
    _engine.start()
    if elsewhere:  # as for a server on another machine, which reads no files of ours
        made._backend.files = None  # type: ignore[attr-defined]


def _call(name: str, *arguments: Any) -> Any:
    assert _engine is not None
    return getattr(_engine, name)(*arguments)


def _close() -> None:
    global _engine
    if _engine is not None:
        _engine.close()
        _engine = None


def _java_pid() -> int:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    return int(gateway.proc.pid)


def _forget_session() -> None:
    """Lets the server drop this engine's session, as it does by itself after a time without queries."""
    assert _engine is not None
    spark: Any = _engine._spark
    spark.client.release_session()


def _kept() -> tuple[list[str], list[str]]:
    """The temporary views of this engine's session and the files for its server, while a large batch is with
    its handler, and after.

    Fails if the client lets the server keep the batch for the whole session.
    """
    assert _engine is not None
    spark: Any = _engine._spark
    inside: list[str] = []

    def kept_now() -> list[str]:
        files = _engine._backend.files
        names = [path.name for path in files._folder.glob("*.parquet")] if files is not None else []
        return [view.name for view in spark.catalog.listTables()] + names

    def keeps(_session: Any, _blobs: list[bytes]) -> list[str]:
        raise AssertionError("the server would keep the batch until the session ends")

    def handler(frame: Any, _batch: Any) -> Any:
        inside.extend(kept_now())
        return frame

    kept, type(spark.client).cache_artifacts = type(spark.client).cache_artifacts, keeps
    own, _engine._loaded = _engine._loaded, LoadedHandler(handler, handler)
    try:
        records = table(list(range(6_000)), [b"x" * 400] * 6_000)
        assert _engine.transform(records).to_pylist() == records.to_pylist()
    finally:
        type(spark.client).cache_artifacts, _engine._loaded = kept, own
    return inside, kept_now()


def _plan(table: pa.Table) -> str:
    """Spark's physical plan for a handler that makes a column of each record's value."""
    import contextlib
    import io

    from pyspark.sql.functions import col, length

    assert _engine is not None
    text = io.StringIO()

    def handler(frame: Any, _batch: Any) -> Any:
        result = frame.select("topic", "partition", "offset", length(col("value").cast("string")).alias("n"))
        with contextlib.redirect_stdout(text):
            result.explain()
        return result

    own, _engine._loaded = _engine._loaded, LoadedHandler(handler, handler)
    try:
        rows = _engine.transform(table)
    finally:
        _engine._loaded = own
    assert rows.num_rows == table.num_rows
    return text.getvalue()


def _traced_rows() -> tuple[str, str, list[tuple[str, bool]], list[dict[str, Any]]]:
    """The engine handles a batch whose trace is recorded, and then one whose is not, with a handler whose
    tasks return what their job is labelled with.

    Returns the batch's trace id, the tags that a Connect session has meanwhile, the spans within the batch
    (name, and whether it is a child of it), and the rows of both batches.
    """
    from opentelemetry.sdk.trace.sampling import DEFAULT_ON

    from tests.support.telemetry.tracing import Recorded

    assert _engine is not None
    recorded, tags = Recorded(DEFAULT_ON), []
    spark: Any = _engine._spark
    connect = _engine._backend.parallelism is None

    def label(batches: Any) -> Any:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        names = ("spark.job.description", "slackwater.trace_id")
        values = [context.getLocalProperty(name) for name in names]
        for batch in batches:
            rows = len(batch)
            yield batch.assign(description=[values[0]] * rows, trace=[values[1]] * rows)

    def handler(frame: Any, _batch: Any) -> Any:
        if connect:
            tags.extend(spark.getTags())
        schema = "topic STRING, partition INT, offset LONG, description STRING, trace STRING"
        return frame.select("topic", "partition", "offset").mapInPandas(label, schema)

    own, _engine._loaded = _engine._loaded, LoadedHandler(handler, handler)
    before, _engine._tracing = _engine._tracing, recorded.tracing
    try:
        span = recorded.tracing.span("handle", 1.0)
        with span.current():
            rows = _engine.transform(table([1])).to_pylist()
        span.end(2.0)
        rows += _engine.transform(table([2])).to_pylist()
    finally:
        _engine._loaded, _engine._tracing = own, before
    assert span.context is not None
    inside = [(made.name, made.parent is not None) for made in recorded.spans]
    return span.context.trace_id, " ".join(tags), inside, rows


def run_in_test(handler: str, values: list[bytes | None]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """What ``slackwater.testing.run`` makes of ``values`` on this engine's session, which it leaves open.
    Returns rows, and reasons by offset."""
    from slackwater.testing import run

    assert _engine is not None
    result = run(handler, values, "spark", spark=_engine._spark, splits=1, singles=2)
    return result.to_pylist(), {letter.offset: letter.reason for letter in result.dead_letters}


def _read_with_spark(path: str) -> dict[str, list[Any]]:
    """The columns that a Spark reader with its defaults sees."""
    assert _engine is not None
    columns: dict[str, list[Any]] = _session().read.parquet(path).toArrow().to_pydict()
    return columns


def write_in_test(document: dict[str, Any], batches: list[pa.Table]) -> None:
    """Writes ``batches`` by the sink of a worker's configuration, which has this engine's session."""
    sink = make_sink(parse(document), _engine)
    for rows in batches:
        sink.stage(rows, {TopicPartition("t", 0): Range("", 0, 1, None)}).publish()


def write_concurrently_in_test(document: dict[str, Any], writers: int, batches: int) -> None:
    """Writes as several workers do, each of them single rows, with offsets from 0 in all. Raises what is
    raised."""
    offsets = itertools.count()
    turns = [[next(offsets) for _ in range(batches)] for _ in range(writers)]

    def write(mine: list[int]) -> None:
        write_in_test(document, [table([offset]) for offset in mine])

    with ThreadPoolExecutor(writers) as pool:
        for done in [pool.submit(write, mine) for mine in turns]:
            done.result()


class Polled:
    """The records of one partition, as a batch has them."""

    def __init__(self, records: pa.Table) -> None:
        (self._records,) = records.combine_chunks().to_batches()
        offsets = self._records.column("offset")
        self.first_offset, self.next_offset = offsets[0].as_py(), offsets[-1].as_py() + 1

    def __len__(self) -> int:
        return self._records.num_rows

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        return self._records

    def records(self, topic: str, partition: int) -> list[Any]:
        raise NotImplementedError


def deliver_in_test(document: dict[str, Any], records: pa.Table) -> dict[str, Any]:
    """Handles and writes a batch as a worker does. Returns offset -> reason of what was rejected, how many
    positions came back from Spark, and the kept views before and after the write."""
    assert _engine is not None
    spark = _session()
    tp = TopicPartition("t", 0)
    polled = Polled(records)
    part = Part(OwnedPartition(tp, marks={}), polled, polled.first_offset, polled.next_offset)
    batch = DeliveryBatch({tp: part}, attempt=1)
    info = info_of(batch, batch.parts, "g", "w-0")
    transformed = transform(batch, info, _engine, SYSTEM_CLOCK, lambda _step: None)
    checked = transformed.output.rows.to_check.num_rows
    handled = stage(batch, transformed, make_sink(parse(document), _engine), lambda _step: None)
    assert handled.staged is not None
    held = _views(spark)
    handled.staged.publish()
    return {
        "dead": {letter.offset: letter.error for letter in handled.letters.get(tp, [])},
        "rows": handled.rows[tp], "checked": checked, "held": held, "kept": _views(spark),
        "stored": _stored(spark),
    }  # fmt: skip


def refuse_in_test(url: str) -> tuple[list[str], list[int]]:
    """Writes six records into a table of Derby that refuses the fourth, as a worker does which looks for the
    record at fault. Returns the errors, and the offsets that are in the table."""
    spark = _session()
    jvm = spark._jvm
    connection = jvm.org.apache.derby.jdbc.EmbeddedDriver().connect(
        f"{url};create=true", jvm.java.util.Properties()
    )
    connection.createStatement().execute(
        'create table "t" ("topic" varchar(9), "partition" int, "offset" bigint, "n" bigint check ("n" <> 3))'
    )
    options = {"url": url, "dbtable": '"t"', "driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    document = {
        "groupId": "g", "topics": ["t"], "bootstrapServers": "127.0.0.1:1", "handler": "m:f",
        "engine": "spark", "sink": {"format": "spark", "sparkFormat": "jdbc", "options": options},
    }  # fmt: skip
    sink, ranges, errors = (
        make_sink(parse(document), _engine),
        {TopicPartition("t", 0): Range("", 0, 6, None)},
        [],
    )
    for numbers in ([0, 1, 2, 3, 4, 5], [0, 1, 2], [3], [0, 1, 2, 4, 5]):
        columns = {"topic": ["t"] * len(numbers), "partition": pa.array([0] * len(numbers), pa.int32())}
        given = pa.table({**columns, "offset": numbers, "n": numbers})
        rows: Any = keep_rows(spark, spark.createDataFrame(given), given)
        try:
            staged = sink.stage(rows, ranges)
            if len(numbers) > 3:
                staged.publish()
        except RecordsError as exc:
            errors.append(str(exc))
    stored = spark.read.format("jdbc").options(**options).load().toArrow()["offset"].to_pylist()
    return errors, sorted(stored)


def give_up_in_test(records: pa.Table) -> list[int]:
    """Handles batches of which nothing is written. Returns how many kept views there are after each."""
    assert _engine is not None
    counts = []
    for _ in range(5):
        _engine.transform(records)
        counts.append(len(_views(_session())))
    return counts


def narrowed_in_test(records: pa.Table) -> list[tuple[int, list[int]]]:
    """Rows of a batch of which a partition was given up: how many, and the offsets that would be written."""
    assert _engine is not None
    rows = _engine.transform(records)
    parts = [rows_of(rows, partitions) for partitions in ([TopicPartition("t", 1)], [TopicPartition("t", 3)])]
    return [(part.num_rows, sorted(part.frame.toArrow()["offset"].to_pylist())) for part in parts]


def _session() -> Any:
    return (_engine.engine if isinstance(_engine, DecodingEngine) else _engine).session


def _stored(spark: Any) -> int:
    """How many results a local session keeps. A Connect server does not tell."""
    remote = type(spark).__module__.startswith("pyspark.sql.connect.")
    return 0 if remote else int(spark.sparkContext._jsc.getPersistentRDDs().size())


def _views(spark: Any) -> list[str]:
    return [view.name for view in spark.catalog.listTables() if "_slackwater_" in view.name]


def write_handlers(folder: Path) -> None:
    """Writes the modules of the handlers."""
    (folder / "sh_handlers.py").write_text(HANDLERS)
    (folder / "sh_reference.py").write_text(REFERENCE)


class EngineHost:
    """Runs a SparkEngine's methods in ``process``, on its local session or on its server.

    ``folder``: with the modules of the handlers.
    """

    def __init__(self, process: SparkProcess, folder: Path) -> None:
        self._path = [str(folder), str(EXAMPLES)]
        self._options = {"remote": process.remote} if process.remote else {}
        self.is_local = not process.remote
        self.run = process.run

    def start(self, handler: str, **options: Any) -> None:
        spec = handler if ":" in handler else f"sh_handlers:{handler}"
        self.run(_start, spec, self._path, {"timeout_ms": round(HANG_S * 1000), **self._options, **options})

    def warm_up(self) -> None:
        self.run(_call, "warm_up")

    def transform(self, records: pa.Table) -> pa.Table:
        rows: pa.Table = self.run(_call, "transform", records)
        return rows

    def refresh(self) -> None:
        self.run(_call, "refresh")

    def close_engine(self) -> None:
        self.run(_close)

    def kill_java(self) -> None:
        os.kill(self.run(_java_pid), signal.SIGKILL)

    def forget_session(self) -> None:
        self.run(_forget_session)

    def kept(self) -> tuple[list[str], list[str]]:
        views: tuple[list[str], list[str]] = self.run(_kept)
        return views

    def plan(self, records: pa.Table) -> str:
        text: str = self.run(_plan, records)
        return text

    def traced_rows(self) -> tuple[str, str, list[tuple[str, bool]], list[dict[str, Any]]]:
        traced: tuple[str, str, list[tuple[str, bool]], list[dict[str, Any]]] = self.run(_traced_rows)
        return traced

    def read_with_spark(self, path: Path) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = self.run(_read_with_spark, str(path))
        return columns
