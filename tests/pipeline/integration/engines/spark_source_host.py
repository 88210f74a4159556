"""Queries of the data source in a process of Spark's, beside the same queries of Spark's own Kafka source."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.datasource.options import BESIDE_TOPICS
from tests.pipeline.integration.engines.spark_process import session
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

OURS, PEER = "slackwater", "kafka"
_batches: dict[str, list[int]] = {}
"""Stream -> rows of each of its batches."""


def frame(source: str, options: Mapping[str, str], where: str = "") -> DataFrame:
    """What a batch query reads."""
    read: DataFrame = session().read.format(source).options(**options).load()
    return read.where(where) if where else read


def rows(options: Mapping[str, str], where: str = "") -> list[dict[str, Any]]:
    """The rows of our source, in the order of their places."""
    read = frame(OURS, options, where)
    columns = {"topic", "partition", "offset"} & set(read.columns)
    return [row.asDict(recursive=True) for row in read.orderBy(*sorted(columns)).collect()]


def differences(options: Mapping[str, str], where: str = "") -> dict[str, Any]:
    """The rows of both sources: how many, and how many one has and the other has not; and our plan."""
    own, peer = frame(OURS, options, where), frame(PEER, options, where)
    ours, theirs = (Counter(map(repr, read.collect())) for read in (own, peer))
    return {
        "same schema": own.schema == peer.schema,
        "rows": theirs.total(),
        "only ours": (ours - theirs).total(),
        "only theirs": (theirs - ours).total(),
        "plan": plan(own),
    }


def exceptions(options: Mapping[str, str]) -> dict[str, int]:
    """What ``exceptAll`` gives both ways."""
    own, peer = frame(OURS, options), frame(PEER, options)
    return {"only ours": own.exceptAll(peer).count(), "only theirs": peer.exceptAll(own).count()}


def error_of(options: Mapping[str, str]) -> str:
    """What a query of ours raises, with the traceback of Spark's Python process in it."""
    try:
        frame(OURS, options).collect()
    except Exception as exc:
        return str(exc)
    return ""


def plan(read: DataFrame) -> str:
    """The plan, in all its stages."""
    text: str = read._jdf.queryExecution().toString()
    return text


def plan_of(options: Mapping[str, str]) -> str:
    """The plan of a query of ours."""
    return plan(frame(OURS, options))


def decoded_differences(options: Mapping[str, str], ours: Mapping[str, str], schema: str) -> dict[str, int]:
    """Values that our source decodes, and those of ``from_json``: rows that one has and the other has not."""
    own = frame(OURS, {**options, **ours}).where("_error IS NULL").selectExpr("offset", "value.*")
    text = f"from_json(cast(value AS string), '{schema}') AS v"
    peer = frame(PEER, options).selectExpr("offset", text).selectExpr("offset", "v.*")
    return {
        "rows": own.count(),
        "only ours": own.exceptAll(peer).count(),
        "only theirs": peer.exceptAll(own).count(),
    }


def stream(options: Mapping[str, str], folder: str, source: str = OURS) -> list[int]:
    """Runs a stream to the present end of the log, into Parquet; the rows of each batch."""
    read = session().readStream.format(source).options(**options).load()
    writer = read.writeStream.format("parquet").trigger(availableNow=True)
    query = _started(lambda: writer.start(f"{folder}/out", checkpointLocation=f"{folder}/checkpoint"))
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress]


def _started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """The stream that ``start`` starts, once it works or has ended. Raises RuntimeError where it fails.

    Spark gives the Python process of a source 10 s to connect, which nothing changes, and fails the stream
    otherwise, before it has done anything. On a loaded machine that says nothing: it is started again.
    """
    while True:
        query = start()
        wait_until(lambda: not query.isActive or query.lastProgress is not None, "the stream's first report")  # noqa: B023
        failure = query.exception()
        if failure is None:
            return query
        if "Python worker failed to connect back" not in str(failure):
            raise RuntimeError(str(failure))  # Spark's own cannot be sent to another process


def start_stream(name: str, source: str, options: Mapping[str, str], folder: str) -> None:
    """Starts a stream that goes on until :func:`stop_streams`."""

    def count(rows: DataFrame, _: int) -> None:
        # Not from recentProgress: Spark keeps 100 reports, and a stream that waits makes ten a second.
        if number := rows.count():
            _batches.setdefault(name, []).append(number)

    read = session().readStream.format(source).options(**options).load()
    stream = read.writeStream.queryName(name).foreachBatch(count)
    _started(lambda: stream.start(checkpointLocation=f"{folder}/{name}"))


def progress(name: str) -> tuple[list[int], int]:
    """The rows of each batch of a stream, and how many records it knows of that wait for more of them."""
    (query,) = (query for query in session().streams.active if query.name == name)
    rows, report = _batches.get(name, []), query.lastProgress
    if report is None or report.numInputRows:
        return rows, 0
    (source,) = report.sources
    ended, latest = json.loads(source.endOffset), json.loads(source.latestOffset)
    return rows, sum(
        offset - ended[topic][number]
        for topic, partitions in latest.items()
        if topic != BESIDE_TOPICS
        for number, offset in partitions.items()
    )


def stop_streams() -> None:
    """Ends all streams."""
    for query in session().streams.active:
        query.stop()


def forget_last_batch(folder: str) -> None:
    """Leaves checkpoint and table as a process does that dies before the table's commit of the last batch."""
    for log in (f"{folder}/checkpoint/commits", f"{folder}/out/_spark_metadata"):
        last = max(
            (path for path in Path(log).iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
        )
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()


def table_differences(folder: str, options: Mapping[str, str]) -> dict[str, int]:
    """A stream's table beside all that Spark's own Kafka source reads now."""
    table, peer = session().read.parquet(f"{folder}/out"), frame(PEER, options)
    return {
        "rows": table.count(),
        "only ours": table.exceptAll(peer).count(),
        "only theirs": peer.exceptAll(table).count(),
    }
