"""The sink of Delta tables that Spark writes, in the process of a
:class:`~tests.pipeline.integration.engines.spark_process.SparkProcess`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from slackwater.pipeline.engines.kept_rows import keep
from slackwater.pipeline.sinks.delta.spark_sink import SparkDeltaSink
from slackwater.pipeline.sinks.delta.spark_table import SparkTable, Transaction
from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.runtime.errors import WorkerError
from slackwater.runtime.interfaces import PLACE_COLUMNS, Range, SinkFencedError
from tests.pipeline.integration.engines.spark_process import session
from tests.support.sinks import (
    MODES,
    OLD,
    A,
    B,
    Died,
    Steps,
    die,
    marks as marks_by_partition,
    mode_rows,
    rows,
    stage,
    write_all,
    write_at_once,
)

RECORDS = 8
STEPS: list[tuple[Any, str]] = [
    (SparkTable, "begin"), (Transaction, "versions"), (Transaction, "written"), (Transaction, "_commit"),
]  # fmt: skip
"""What a publish consists of, in order."""
MERGE_STEPS = [*STEPS, (Transaction, "merged")]
"""The same in mode changes, where the first batch is written and others are merged."""


def sink(path: str, group: str = "g", **options: str) -> SparkDeltaSink:
    return SparkDeltaSink(group, session, path, options={"path": path, **options})


def keyed(path: str, settings: Mapping[str, Any]) -> SparkDeltaSink:
    """A sink of a mode with a key, which adds columns."""
    mode = {"aggregates": None, "version": "", "deleted_for_ms": 0, **settings}
    mode["name"] = mode.pop("mode")
    options = {"path": path, "mergeSchema": "true"}
    return SparkDeltaSink("g", session, path, options=options, mode=WriteMode.of(**mode))


def put_keyed(
    path: str, settings: Mapping[str, Any], rows: Any, ranges: Mapping[Any, Range], in_spark: bool
) -> None:
    """Writes a batch by :func:`keyed`. ``in_spark``: its rows are there already."""
    given = keep(session(), session().createDataFrame(rows), rows) if in_spark and rows.num_rows else rows
    try:
        keyed(path, settings).stage(cast(Any, given), ranges).publish()
    except WorkerError as exc:
        exc.__cause__ = None  # that of Spark's cannot be pickled
        raise


def searched(path: str, settings: Mapping[str, Any], rows: Any) -> list[str]:
    """Writes three rows, of which the table does not take the second, as the search for records does:
    the errors of the batch, of each row as a part of it, and of the other two in the end."""
    made, ranges = keyed(path, settings), {A: Range(OLD, 1, 4, 1)}
    calls: list[Callable[[], object]] = [
        lambda: made.stage(rows, ranges).publish(),
        lambda: made.stage(rows.slice(0, 1), ranges).discard(),
        lambda: made.stage(rows.slice(1, 1), ranges).discard(),
        lambda: made.stage(rows.slice(2, 1), ranges).discard(),
        lambda: made.stage(rows.take([0, 2]), ranges).publish(),
    ]
    return [_error(call) for call in calls]


def rewind_keyed(path: str, settings: Mapping[str, Any], starts: Mapping[Any, tuple[str, int]]) -> int:
    """Rewinds the sink of these settings."""
    return keyed(path, settings).rewind(starts)


def marks_in(path: str, partitions: Sequence[Any]) -> Any:
    return sink(path).marks(partitions)


def refused(path: str, bad: dict[str, Any]) -> list[str]:
    """Writes a good and a bad row to a table with rules, then the good one as the search for records at fault
    does: the errors of the batch, of each row as a part of it, and of the good row in the end."""
    import pyarrow as pa

    columns = "topic string, partition int, offset bigint, n bigint not null, v varchar(3)"
    values = [{"n": 1}, {"n": 1, **bad}]
    session().sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
    session().sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (n > 0 OR n IS NULL)")
    both = rows([0, 1], **{name: pa.array([value.get(name) for value in values]) for name in values[1]})
    made, ranges = sink(path), {A: Range(OLD, 0, 2, None)}
    calls: list[Callable[[], object]] = [
        lambda: made.stage(both, ranges).publish(),
        lambda: made.stage(both.slice(0, 1), ranges).discard(),
        lambda: made.stage(both.slice(1, 1), ranges).discard(),
        lambda: made.stage(both.slice(0, 1).select([*PLACE_COLUMNS, "n"]), ranges).publish(),
    ]
    return [_error(call) for call in calls]


def _error(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""


def marks(path: str) -> dict[str, int]:
    return {str(tp.partition): mark for tp, mark in marks_by_partition(sink(path)).items()}


def put(path: str, batches: list[dict[int, tuple[int, int]]], **options: str) -> str:
    """Writes batches: of each partition a start and an end. Returns the name of an error."""
    made = sink(path, **options)
    try:
        for batch in batches:
            at = made.marks([A, B])
            parts = {A if partition == 0 else B: span for partition, span in batch.items()}
            ranges = {tp: Range(OLD, *span, at.get(tp, {}).get(OLD)) for tp, span in parts.items()}
            made.stage(_table(parts), ranges).publish()
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""


def _table(parts: dict[Any, tuple[int, int]]) -> Any:
    import pyarrow as pa

    return pa.concat_tables([rows(range(*span), tp.partition) for tp, span in parts.items()])


def put_kept(path: str, count: int) -> int:
    """Writes rows that a handler has left in Spark, of two partitions, of which one is given up. Returns how
    many results the session keeps then."""
    import pyarrow as pa

    records = pa.concat_tables([rows(range(count), tp.partition) for tp in (A, B)])
    kept = keep(session(), session().createDataFrame(records), records)
    staged = sink(path).stage(cast(pa.Table, kept), {tp: Range(OLD, 0, count, None) for tp in (A, B)})
    staged.drop([B])
    staged.publish()
    return sum("_slackwater_" in view.name for view in session().catalog.listTables())


def repeat(path: str, ranges: dict[int, tuple[int, int, int | None]]) -> str:
    """Writes a batch of which the worker knows the marks that ``ranges`` name last."""
    parts = {A if partition == 0 else B: span for partition, span in ranges.items()}
    staged = sink(path).stage(
        _table({tp: span[:2] for tp, span in parts.items()}),
        {tp: Range(OLD, *span) for tp, span in parts.items()},
    )
    try:
        staged.publish()
    except SinkFencedError as exc:
        return str(exc)
    return ""


def _of(mode: str, path: str) -> SparkDeltaSink:
    return keyed(path, MODES[mode]) if MODES[mode] else sink(path)


def _write_all(mode: str, path: str, seed: int) -> None:
    make = partial(mode_rows, mode=mode)
    write_all(_of(mode, path), random.Random(seed), records=RECORDS, make=make)


def interrupted(path: str, turn: int, *, after: bool, goes_on: bool, mode: str = "append") -> str:
    """A worker writes all batches. At call number ``turn`` it dies, or is suspended while its heir writes
    all; afterwards a worker writes what is missing. Returns how the first one ended; "": it makes fewer
    calls."""
    steps = Steps(turn, (lambda _: _write_all(mode, path, 3)) if goes_on else die, after=after)
    first, ended = _of(mode, path), "done"
    with steps.watching(MERGE_STEPS if MODES[mode] else STEPS):
        try:
            at = marks_by_partition(first)
            while any(start < RECORDS for start in at.values()):
                make = partial(mode_rows, mode=mode)
                stage(first, at, 5, records=RECORDS, make=make).publish()
                at = {tp: min(start + 5, RECORDS) for tp, start in at.items()}
        except (Died, SinkFencedError) as exc:
            ended = type(exc).__name__
    if steps.count < turn:
        return ""
    _write_all(mode, path, 5)
    return ended


def at_once(path: str, records: int, mode: str = "append") -> None:
    """Three workers write the same partitions."""
    make = partial(mode_rows, mode=mode)
    write_at_once(lambda: _of(mode, path), lambda made, rng: write_all(made, rng, records=records, make=make))


def make_with_deletion_vectors(path: str, mapping: str) -> None:
    """A table with the keys 0 to 9, of which deletion vectors have deleted 3 and 4. ``mapping``: its
    ``delta.columnMapping.mode``."""
    columns = "topic string, partition int, offset bigint, k bigint, carrier string"
    properties = f"'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = '{mapping}'"
    session().sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta TBLPROPERTIES ({properties})")
    session().sql(f"INSERT INTO delta.`{path}` SELECT 'x', 9, id, id, 'spark' FROM range(10)")
    session().sql(f"DELETE FROM delta.`{path}` WHERE k IN (3, 4)")


def carriers(path: str) -> list[tuple[int, str]]:
    """The keys of such a table, each with its carrier, as Spark reads them."""
    return sorted((row.k, row.carrier) for row in session().read.format("delta").load(path).collect())
