"""A handler's rows that stay in Spark, for a sink that writes them there.

The handler's plan runs once: its result is kept in the session, and the check of the positions and the write
read it there. Only the rejected rows come to the worker, and all positions where the check needs them.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.handler_output import checked_output
from slackwater.runtime.interfaces import ERROR_COLUMN, PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_PLACE_TYPES = {"topic": "string", "partition": "int", "offset": "bigint"}

_numbers = count(1)
log = logging.getLogger(__name__)


class KeptFrame:
    """A data frame whose rows the session keeps, under a view, until :meth:`release`.

    A view, because a Connect server analyses a data frame anew for each query: a handler's ``uuid()`` would
    be another one, and the kept rows would not be taken for its result.
    """

    def __init__(self, spark: SparkSession, result: DataFrame) -> None:
        self._spark, self._name = spark, f"_slackwater_rows_{next(_numbers)}"
        result.createOrReplaceTempView(self._name)
        self.frame = spark.table(self._name).persist()
        self._end = weakref.finalize(self, _unused.append, (spark, self._name))
        self._end.atexit = False

    def release(self) -> None:
        """Lets the session drop the rows. The frame cannot be read any more."""
        if self._end.detach() is not None:
            _drop(self._spark, self._name)


_unused: list[tuple[SparkSession, str]] = []
"""Views of frames that nobody has any more. They are dropped later: Python ends objects on any thread."""


def drop_unused() -> None:
    """Has sessions drop the rows of batches that were given up, which nobody has released."""
    while _unused:
        _drop(*_unused.pop())


def _drop(spark: SparkSession, name: str) -> None:
    try:
        spark.catalog.dropTempView(name)  # and what is kept of it
    except Exception as exc:
        # A session that is lost keeps nothing.
        log.debug("the view %s was not dropped: %s", name, exc)


class SparkRows:
    """The rows of a batch, in Spark: a :class:`~slackwater.runtime.interfaces.EngineResidentRows`.

    ``frame``: the rows that are to be written. ``counts``: how many there are of each partition.
    ``to_check``: positions and errors of the rejected rows; of all rows if some positions may be wrong.
    """

    def __init__(
        self,
        kept: KeptFrame,
        frame: DataFrame,
        column_names: Sequence[str],
        counts: Mapping[TopicPartition, int],
        to_check: pa.Table,
    ) -> None:
        self._kept, self.frame, self.column_names = kept, frame, column_names
        self.counts, self.to_check = dict(counts), to_check

    @property
    def num_rows(self) -> int:
        return sum(self.counts.values())

    def of(self, partitions: Collection[TopicPartition]) -> SparkRows:
        """The rows whose positions are in ``partitions``."""
        from pyspark.sql.functions import col, lit

        condition = lit(False)
        for tp in partitions:
            condition |= (col("topic") == tp.topic) & (col("partition") == tp.partition)
        counts = {tp: rows for tp, rows in self.counts.items() if tp in partitions}
        return SparkRows(self._kept, self.frame.where(condition), self.column_names, counts, self.to_check)

    def with_rejected(self, rejected: pa.Table) -> SparkRows:
        """These rows, and some that were rejected before the handler: their positions and reasons."""
        import pyarrow as pa

        to_check = pa.concat_tables([self.to_check, rejected.cast(self.to_check.schema)])
        return SparkRows(self._kept, self.frame, self.column_names, self.counts, to_check)

    def places(self) -> pa.Table:
        """The positions of the rows, in no order."""
        return self.frame.select(*PLACE_COLUMNS).toArrow()

    def at(self, places: pa.Table, numbers: Sequence[int]) -> SparkRows:
        """The rows at those of ``places`` that have these ``numbers``."""
        chosen = places.take(list(numbers))
        counts = Counter(map(TopicPartition, chosen["topic"].to_pylist(), chosen["partition"].to_pylist()))
        other = self.frame.sparkSession.createDataFrame(chosen).distinct()
        frame = self.frame.join(other, list(PLACE_COLUMNS), "left_semi")
        return SparkRows(self._kept, frame, self.column_names, counts, self.to_check)

    def release(self) -> None:
        """Called when they are written. Rows that are given up need not be released."""
        self._kept.release()


def keep(spark: SparkSession, result: DataFrame, table: pa.Table) -> SparkRows:
    """The rows of ``result``, which the handler has made of ``table``. Runs the handler's plan.

    Raises HandlerError for a result that lacks ``topic``, ``partition`` or ``offset``, has them in a wrong
    type, or has a column twice; and what Spark raises.
    """
    names = checked_names(result)
    rejects = ERROR_COLUMN in names
    drop_unused()
    kept = KeptFrame(spark, _with_places(result))
    try:
        counts, rejected, certain = _count(kept.frame, table, rejects=rejects)
        to_check = _to_check(kept.frame, rejects, rejected, certain)
        written = [name for name in names if name != ERROR_COLUMN]
        return SparkRows(kept, _accepted(kept.frame, rejects), written, counts, to_check)
    except BaseException:
        kept.release()
        raise


def checked_names(result: DataFrame, *, by_record: bool = True) -> list[str]:
    """The names of the result's columns. Runs no query. Raises HandlerError as :func:`checked_output` does
    for a result without rows; ``by_record``: as there."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    checked = (*PLACE_COLUMNS, ERROR_COLUMN)
    fields = result.schema.fields
    types = [to_arrow_type(field.dataType) if field.name in checked else pa.null() for field in fields]
    names = [field.name for field in fields]
    checked_output(
        pa.Table.from_arrays([pa.nulls(0, kind) for kind in types], names), {}, by_record=by_record
    )
    return names


def _with_places(result: DataFrame) -> DataFrame:
    """``result`` with its positions in the types that a sink gets."""
    types = {field.name: field.dataType.simpleString() for field in result.schema.fields}
    for name, wanted in _PLACE_TYPES.items():
        if types[name] != wanted:
            result = result.withColumn(name, result[name].cast(wanted))
    return result


def _count(
    frame: DataFrame, table: pa.Table, *, rejects: bool
) -> tuple[dict[TopicPartition, int], int, bool]:
    """How many accepted rows there are of each partition, how many are rejected in all, and whether it is
    certain that each carries the position of a record of ``table``."""
    from pyspark.sql import functions as f

    of_records = {
        TopicPartition(row["topic"], row["partition"]): row
        for row in table.select(PLACE_COLUMNS)
        .group_by(["topic", "partition"])
        .aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
        .to_pylist()
    }
    summary = frame.groupBy("topic", "partition").agg(
        f.count(f.lit(1)).alias("rows"),
        f.count(ERROR_COLUMN if rejects else f.lit(None)).alias("rejected"),
        f.count("offset").alias("offsets"),
        f.min("offset").alias("low"),
        f.max("offset").alias("high"),
    )
    counts, rejected, certain = {}, 0, True
    for row in summary.toArrow().to_pylist():
        tp = TopicPartition(row["topic"], row["partition"])
        counts[tp] = row["rows"] - row["rejected"]
        rejected += row["rejected"]
        certain = certain and _within(row, of_records.get(tp))
    return counts, rejected, certain


def _within(row: Mapping[str, Any], records: Mapping[str, Any] | None) -> bool:
    """Whether the rows that ``row`` sums up can only be those of ``records``, which have no gaps then."""
    if records is None or row["offsets"] < row["rows"]:
        return False
    low, high = records["offset_min"], records["offset_max"]
    without_gaps: bool = high - low + 1 == records["offset_count"]
    return without_gaps and low <= row["low"] and row["high"] <= high


def _accepted(frame: DataFrame, rejects: bool) -> DataFrame:
    return frame.where(frame[ERROR_COLUMN].isNull()).drop(ERROR_COLUMN) if rejects else frame


def _to_check(frame: DataFrame, rejects: bool, rejected: int, certain: bool) -> pa.Table:
    import pyarrow as pa
    from pyspark.sql.functions import col, lit

    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), ERROR_COLUMN: pa.string()}
    schema = pa.schema(list(types.items()))
    if certain and not rejected:
        return schema.empty_table()
    error = (col(ERROR_COLUMN) if rejects else lit(None)).cast("string").alias(ERROR_COLUMN)
    rows = frame.select(*PLACE_COLUMNS, error)
    return (rows.where(col(ERROR_COLUMN).isNotNull()) if certain else rows).toArrow().cast(schema)
