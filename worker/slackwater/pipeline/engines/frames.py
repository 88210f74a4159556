"""A batch's table as a Spark data frame, in the form in which Spark reads it fastest.

A local session reads a table's pieces in place, one task each. The rows of a small table
(``SMALL_TABLE_BYTES`` of ``spark_session.py``) become part of the plan. Spark's optimizer evaluates that as
far as it can, without generating code.

A Connect server makes rows of a table on its driver, and its optimizer then evaluates expressions over these
rows one by one, on one thread (``ConvertToLocalRelation``). It also keeps a large table, and the plans that
contain one, for as long as the session lives. So a large batch goes to a server on the same machine in a file
(:mod:`slackwater.pipeline.engines.batch_files`). To any other it is sent as few rows, each of which holds
many records, into a temporary view that is dropped after the query; the server unpacks the records in its
tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from slackwater.pipeline.engines import batch_files
from slackwater.pipeline.engines.batch_files import BatchFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TASKS_A_CORE = 2
"""Into how many tasks a large batch is split: while the rows of one are read, another runs."""
ROWS_A_TASK = 2_500
"""Fewer cost less than another task."""
VIEW_ROWS, VIEW_BYTES = 5_000, 1024 * 1024
"""From either on a batch goes to a Connect server in a file or by a view. A smaller one takes less time
without."""
_PACKED = "records"

_numbers = count(1)
log = logging.getLogger(__name__)


@contextmanager
def frame(
    spark: SparkSession, table: pa.Table, parallelism: int | None, files: BatchFiles | None = None
) -> Iterator[DataFrame]:
    """``table`` as a data frame of ``spark``, with the same columns. It can be queried until the context
    ends.

    ``parallelism``: how many tasks a local session runs at once; None: of a Connect server. ``files``: for
    large batches, where that server may read them.
    """
    if not table.num_rows:
        yield _without_rows(spark, table.schema)
    elif parallelism is not None:
        yield spark.createDataFrame(split(table, parallelism))
    elif table.num_rows < VIEW_ROWS and table.nbytes < VIEW_BYTES:
        yield spark.createDataFrame(table)
    elif files is not None and (path := files.write(spark, table)) is not None:
        try:
            yield batch_files.read(spark, path, table.schema)
        finally:
            batch_files.remove(path)
    else:
        from pyspark.sql.functions import inline

        name = f"_slackwater_batch_{next(_numbers)}"
        # Unpacked by the plans that read the view: each level of a plan around the records copies them once
        # more in the client.
        spark.createDataFrame(packed(table)).createOrReplaceTempView(name)
        try:
            yield spark.table(name).select(inline(_PACKED))
        finally:
            _drop_view(spark, name)


def _without_rows(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """A row that is filtered out where Spark runs.

    Spark Connect refuses a table without rows, and both kinds of session would optimise the whole query away
    and warm nothing up. So the filter is one whose result the optimizer does not know (it knows the bounds of
    ``rand()``), and the row is packed: on the rows of a plan the optimizer evaluates any filter.
    """
    import pyarrow as pa
    from pyspark.sql.functions import inline, spark_partition_id

    row = dict.fromkeys(schema.names)
    rows = packed(pa.Table.from_pylist([row], schema=schema))
    return spark.createDataFrame(rows).select(inline(_PACKED)).where(spark_partition_id() < 0)


def _drop_view(spark: SparkSession, name: str) -> None:
    try:
        spark.catalog.dropTempView(name)
    except Exception as exc:
        # The query's own error is the one to report, and a session that is lost has no views.
        log.debug("the view %s was not dropped: %s", name, exc)


def split(table: pa.Table, parallelism: int) -> pa.Table:
    """``table`` in as many pieces as it is to have tasks: a local session makes one of each piece, and a
    batch has at least one for each partition of its topic."""
    import pyarrow as pa

    tasks = max(1, min(parallelism * TASKS_A_CORE, table.num_rows // ROWS_A_TASK))
    return pa.Table.from_batches(_pieces(table, -(-table.num_rows // tasks)), table.schema)


def packed(table: pa.Table) -> pa.Table:
    """``table`` with a single column, whose every value is a list of up to ``ROWS_A_TASK`` rows."""
    import pyarrow as pa

    kind = pa.list_(pa.struct(list(table.schema)))
    lists = [
        pa.ListArray.from_arrays(pa.array([0, piece.num_rows], pa.int32()), piece.to_struct_array(), kind)
        for piece in _pieces(table, ROWS_A_TASK)
    ]
    return pa.table({_PACKED: pa.chunked_array(lists, kind)})


def _pieces(table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of ``rows`` rows, the last of which may have fewer. Each is a copy where it is not the whole:
    PySpark cannot take a slice of lists some of which are null."""
    import pyarrow as pa

    whole = table.combine_chunks()
    if table.num_rows <= rows:
        yield from whole.to_batches()
        return
    for piece in whole.to_batches(max_chunksize=rows):
        yield pa.ipc.read_record_batch(piece.serialize(), piece.schema)
