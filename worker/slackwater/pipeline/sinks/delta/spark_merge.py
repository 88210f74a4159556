"""Modes ``upsert`` and ``changes`` of a Delta table that Spark writes: Delta's own MERGE, with the marks.

The rows stay in Spark. Keys, versions, operations and positions come to the worker, which checks them, and
notes deleted keys, by the code of the sink ``delta``: so both have the same notes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.pipeline.engines.kept_rows import SparkRows
from slackwater.pipeline.sinks import changes
from slackwater.pipeline.sinks.delta.types import with_delta_types
from slackwater.pipeline.sinks.modes import WriteMode, check_key_types, last_rows
from slackwater.runtime.errors import ConfigError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.pipeline.sinks.deleted_keys import DeletedKeys
    from slackwater.pipeline.sinks.delta.spark_table import SparkTable, Transaction

_COMPUTED = ("delta.generationExpression", "delta.identity.start")
"""In the metadata of columns that Delta computes where a row lacks them."""
_AT = "_slackwater_at"
_SOURCE, _TARGET = "source", "target"
_numbers = count(1)
T = TypeVar("T")


@dataclass(frozen=True)
class KeyedRows:
    """The rows of a batch. ``frame``: as the handler gave them; ``last``: key, version, position and
    operation (a boolean) of the last row of each key."""

    frame: DataFrame
    last: pa.Table


def keyed_rows(spark: SparkSession, rows: Any, mode: WriteMode) -> KeyedRows:
    """``rows``: an Arrow table, :class:`SparkRows` or a data frame.

    Raises RecordsError for rows without a key or version, and for unknown operations; HandlerError for
    types that cannot be compared.
    """
    import pyarrow as pa

    is_table = isinstance(rows, pa.Table)
    frame: DataFrame = rows.frame if isinstance(rows, SparkRows) else rows
    if is_table:
        frame = spark.createDataFrame(rows)
    # A column without any value, and so without a type, is none.
    frame = frame.drop(*(field.name for field in frame.schema.fields if field.dataType.typeName() == "void"))
    wanted = {*mode.key, mode.version, changes.OP if mode.deletes else "", *PLACE_COLUMNS}
    names = [name for name in frame.columns if name in wanted]
    if missing := {*mode.key, mode.version} - {"", *names}:
        mode.check(frame.limit(1).toArrow())
        names = [name for name in names if name not in missing]  # there is no row
    narrow = with_delta_types(rows.select(names) if is_table else frame.select(*map(quoted, names)).toArrow())
    mode.check(narrow)
    if mode.deletes:
        narrow = changes.marked(narrow, mode.key, mode.version)
    check_key_types(narrow.schema, mode.key)
    changes.check_version_type(narrow.schema, mode.version)
    return KeyedRows(frame, last_rows(narrow, mode.key, mode.version))


class SparkMerge:
    """Merges batches into ``table`` by ``mode``. ``deleted``: the keys that are remembered; None: none are.
    ``adds``: whether columns that the table lacks are added to it."""

    def __init__(
        self, table: SparkTable, mode: WriteMode, deleted: DeletedKeys | None, *, adds: bool
    ) -> None:
        self._table, self._mode, self._deleted, self._adds = table, mode, deleted, adds

    def tried(self, transaction: Transaction, rows: KeyedRows) -> None:
        """Writes files as a merge of ``rows`` would, which no commit names. Raises what that raises."""
        frame = self._folded(rows.frame)
        if transaction.is_first:
            transaction.written(self._upserts(frame))
        else:
            self._merge(frame, rows, transaction, transaction.merged)

    def prepare(self, rows: KeyedRows) -> bool:
        """Adds columns that the table lacks to it, in a commit of its own. Returns whether there were any.
        Raises ConfigError where the table has no such key, RecordsError where columns are not to be added,
        and what Spark raises."""
        has = self._table.column_names()
        if missing := [name for name in self._mode.key if name not in has]:
            raise ConfigError(
                f"names {missing[0]}, and the table {self._table.path} has no such column: correct the key, "
                "or change the path",
                field="sink.key",
            )
        if self._only_deletes(rows):
            return False
        lacks = set(self._columns(rows.frame)) - has
        if not lacks:
            return False
        if not self._adds:
            raise self._table.refused(
                f'it lacks the column {min(lacks)}; add it, or set mergeSchema: "true" in sink.options'
            )
        fields = [field for field in rows.frame.schema.fields if field.name in lacks]
        columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
        self._table.spark.sql(f"ALTER TABLE {self._table.sql_name} ADD COLUMNS ({columns})")
        return True

    def commit(self, transaction: Transaction, rows: KeyedRows, versions: Mapping[str, int]) -> bool:
        """Commits a merge, as :meth:`Transaction.commit`. Raises WorkerError where notes cannot be read or
        written, too."""
        frame = self._current(rows)
        if transaction.is_first:
            none = self._folded(rows.frame).limit(0)
            return transaction.commit(self._upserts(none if frame is None else frame), versions)
        if frame is None:
            return transaction.commit(None, versions)
        return self._merge(frame, rows, transaction, lambda text: transaction.merge(text, versions))

    def _merge(
        self, frame: DataFrame, rows: KeyedRows, transaction: Transaction, call: Callable[[str], T]
    ) -> T:
        """``call`` of the statement that merges ``frame``, the last row of each key."""
        view = f"_slackwater_source_{next(_numbers)}"
        if self._only_deletes(rows):
            frame = frame.select(*map(quoted, rows.last.column_names))
        frame.createOrReplaceTempView(view)
        try:
            return call(self._statement(view, frame.columns, transaction.schema()))
        finally:
            self._table.spark.catalog.dropTempView(view)

    def _current(self, rows: KeyedRows) -> DataFrame | None:
        """The last row of each key, without those that an earlier delete makes outdated; None: there is
        none. Notes the keys that they delete."""
        kept = rows.last
        if self._deleted is not None and kept.num_rows:
            kept = self._deleted.apply(kept, self._mode.key, self._mode.version)
        if not kept.num_rows:
            return None
        frame = self._folded(rows.frame)
        if kept.num_rows < rows.last.num_rows:
            frame = frame.join(self._outdated(rows.last, kept), list(self._mode.key), "left_anti")
        return frame

    def _columns(self, frame: DataFrame) -> list[str]:
        return [name for name in frame.columns if not (self._mode.deletes and name == changes.OP)]

    def _only_deletes(self, rows: KeyedRows) -> bool:
        return self._mode.deletes and changes.only_deletes(rows.last)

    def _folded(self, frame: DataFrame) -> DataFrame:
        """The last row of each key, as :func:`last_rows` has it, with booleans in the column ``_op``."""
        from pyspark.sql import Window
        from pyspark.sql.functions import coalesce, col, lit, monotonically_increasing_id, row_number

        if self._mode.deletes:
            given = col(changes.OP) if changes.OP in frame.columns else lit(None)
            frame = frame.withColumn(changes.OP, coalesce(given == changes.DELETE, lit(False)))
        order = [*filter(None, [self._mode.version]), *PLACE_COLUMNS, _AT]
        latest_first = Window.partitionBy(*map(quoted, self._mode.key)).orderBy(
            *(col(quoted(name)).desc() for name in order)
        )
        numbered = frame.withColumn(_AT, monotonically_increasing_id())
        return numbered.withColumn(_AT, row_number().over(latest_first)).where(f"{_AT} = 1").drop(_AT)

    def _upserts(self, frame: DataFrame) -> DataFrame:
        return frame.where(f"NOT {changes.OP}").drop(changes.OP) if self._mode.deletes else frame

    def _outdated(self, last: pa.Table, kept: pa.Table) -> DataFrame:
        keys = list(self._mode.key)
        return self._table.spark.createDataFrame(
            last.select(keys).join(kept.select(keys), keys, join_type="left anti")
        )

    def _statement(self, view: str, names: Sequence[str], schema: str) -> str:
        mode, of_table = self._mode, json.loads(schema)["fields"]
        kept = {field["name"] for field in of_table}
        computed = {
            field["name"] for field in of_table if any(name in field["metadata"] for name in _COMPUTED)
        }
        values = {
            name: f"{_SOURCE}.{quoted(name)}" if name in names else "NULL"
            for name in (field["name"] for field in of_table)
            if name in names or name not in computed
        }
        same = " AND ".join(f"{_TARGET}.{quoted(name)} = {_SOURCE}.{quoted(name)}" for name in mode.key)
        deletes = f"{_SOURCE}.{changes.OP}" if mode.deletes else "FALSE"
        newer = "TRUE"
        if mode.version in kept:
            old, new = (f"{side}.{quoted(mode.version)}" for side in (_TARGET, _SOURCE))
            newer = f"({old} IS NULL OR {new} >= {old})"
        clauses = [f"WHEN MATCHED AND {deletes} AND {newer} THEN DELETE"] if mode.deletes else []
        updates = ", ".join(
            f"{_TARGET}.{quoted(name)} = {value}" for name, value in values.items() if name not in mode.key
        )
        if updates:
            clauses.append(f"WHEN MATCHED AND NOT {deletes} AND {newer} THEN UPDATE SET {updates}")
        clauses.append(
            f"WHEN NOT MATCHED AND NOT {deletes} THEN INSERT ({', '.join(map(quoted, values))}) "
            f"VALUES ({', '.join(values.values())})"
        )
        target = f"{self._table.sql_name} AS {_TARGET}"
        return f"MERGE INTO {target} USING {view} AS {_SOURCE} ON {same} {' '.join(clauses)}"


def quoted(name: str) -> str:
    """A name in Spark's SQL."""
    return f"`{name.replace('`', '``')}`"
