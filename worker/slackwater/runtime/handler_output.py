"""Checks a handler's output: that it is a table, and that each row carries the position of a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import HandlerError, RecordsError
from slackwater.runtime.interfaces import ERROR_COLUMN, PLACE_COLUMNS, EngineResidentRows

if TYPE_CHECKING:
    import pyarrow as pa

_KEEP = f"each row must carry {', '.join(PLACE_COLUMNS)} of its record, unchanged"


@dataclass(frozen=True)
class Output:
    """What a handler returned for a batch.

    ``rows``: without the error column and the rows that it rejects; topic, partition and offset are string,
    int32 and int64. EngineResidentRows where the engine has kept them. ``counts``: how many there are of each
    partition. ``dead``: what is rejected, as (source offset, error), by offset; partitions without are left
    out.
    """

    rows: pa.Table
    counts: Mapping[TopicPartition, int]
    dead: Mapping[TopicPartition, list[tuple[int, str]]]


def checked_output(
    output: Any, inputs: Mapping[TopicPartition, pa.RecordBatch], *, by_record: bool = True
) -> Output:
    """``output`` of a handler that was given ``inputs``, in the handler's order of rows.

    A record of ``inputs`` may have no row, one or several. Every row must carry the position of one of them;
    if not ``by_record``, only those that reject a record. The other rows have no position then, and count as
    rows of the first partition.

    Raises HandlerError where the output is no table, has a column twice, lacks ``topic``, ``partition`` or
    ``offset``, or has them in a wrong type. Raises RecordsError where it has a row without them, or one
    whose position is no record's of ``inputs``: of another partition, outside the batch, or in a gap that
    compaction has left in it.
    """
    import pyarrow.compute as pc

    if not by_record:
        return _output_of_batch(output, inputs)
    places = _places(output)
    errors = _errors(output)
    rows = _with_columns(output.drop_columns([ERROR_COLUMN]) if errors is not None else output, places)
    rejected = pc.is_valid(errors) if errors is not None and errors.null_count < len(errors) else None
    counts, dead = {}, {}
    taken = 0
    for tp, batch in inputs.items():
        mask = _rows_of(places, tp, batch)
        counts[tp] = count = pc.sum(mask).as_py() or 0
        taken += count
        if rejected is not None and (letters := _dead(pc.and_(mask, rejected), places[2], errors)):
            dead[tp] = sorted(letters.items())
            counts[tp] -= pc.sum(pc.and_(mask, rejected)).as_py()
    if taken != output.num_rows:
        raise RecordsError(_stray(places, inputs, output.num_rows - taken))
    return Output(rows.filter(pc.invert(rejected)) if rejected is not None else rows, counts, dead)


def checked_kept(rows: EngineResidentRows, inputs: Mapping[TopicPartition, pa.RecordBatch]) -> Output:
    """As :func:`checked_output`, for rows that the engine has kept."""
    dead = checked_output(rows.to_check, inputs).dead
    return Output(rows, {tp: rows.counts.get(tp, 0) for tp in inputs}, dead)


def _output_of_batch(output: Any, inputs: Mapping[TopicPartition, pa.RecordBatch]) -> Output:
    import pyarrow.compute as pc

    _check_table(output)
    errors = _errors(output)
    dead: Mapping[TopicPartition, list[tuple[int, str]]] = {}
    rows = output
    if errors is not None and errors.null_count < len(errors):
        dead = checked_output(output.filter(pc.is_valid(errors)), inputs).dead
        rows = output.filter(pc.is_null(errors))
    rows = rows.drop_columns([name for name in (*PLACE_COLUMNS, ERROR_COLUMN) if name in rows.column_names])
    return Output(rows, {tp: 0 if at else rows.num_rows for at, tp in enumerate(inputs)}, dead)


def _check_table(output: Any) -> None:
    """Raises HandlerError where ``output`` is no table or has a column twice."""
    import pyarrow as pa

    if not isinstance(output, pa.Table):
        raise HandlerError(f"the handler returned {type(output).__name__}, not a table")
    have = ", ".join(output.column_names)
    for name, count in Counter(output.column_names).items():
        if count > 1:
            raise HandlerError(
                f"the handler's result has the column {name} {count} times (it has: {have}); keep one of them"
            )


def checked_places(output: Any, *, may_lack: bool = False) -> pa.Table:
    """``output`` of a handler with ``topic``, ``partition``, ``offset`` and, if it has one, the error column
    as string, int32, int64 and string. Raises as :func:`checked_output`, except for rows whose position is
    no record's, and if they ``may_lack`` it, for rows without one."""
    places, errors = _places(output, may_lack=may_lack), _errors(output)
    rows = _with_columns(output, places)
    if errors is None:
        return rows
    return rows.set_column(rows.column_names.index(ERROR_COLUMN), ERROR_COLUMN, errors)


def _with_columns(rows: pa.Table, places: tuple[Any, Any, Any]) -> pa.Table:
    """``rows`` with ``places`` as its place columns."""
    for name, column in zip(PLACE_COLUMNS, places, strict=True):
        if rows.column(name).type != column.type:
            rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _dead(mask: Any, offsets: Any, errors: Any) -> dict[int, str]:
    """The first error of each offset in the rows of ``mask``."""
    dead: dict[int, str] = {}
    for offset, error in zip(offsets.filter(mask).to_pylist(), errors.filter(mask).to_pylist(), strict=True):
        dead.setdefault(offset, error)
    return dead


def _places(output: Any, *, may_lack: bool = False) -> tuple[Any, Any, Any]:
    """The columns topic, partition and offset, as string, int32 and int64."""
    import pyarrow as pa

    _check_table(output)
    have = ", ".join(output.column_names) or "no columns"
    for name in PLACE_COLUMNS:
        if name not in output.column_names:
            raise HandlerError(f"the handler's result must have the column {name} (it has: {have}); {_KEEP}")
    types = (pa.string(), pa.int32(), pa.int64())
    topic, partition, offset = (
        _place(output, name, wanted, may_lack) for name, wanted in zip(PLACE_COLUMNS, types, strict=True)
    )
    return topic, partition, offset


def _place(output: pa.Table, name: str, wanted: pa.DataType, may_lack: bool) -> pa.ChunkedArray:
    """The column ``name`` as ``wanted``: integers of any width are taken, and any encoding of text. A float
    is not, because it cannot hold every offset, and neither is text that reads as a number."""
    import pyarrow as pa

    column = output.column(name)
    if column.null_count and not may_lack:
        kind_of_error = HandlerError if column.null_count == len(column) else RecordsError
        raise kind_of_error(
            f"the handler's result has no {name} in {column.null_count} of {len(column)} rows; {_KEEP}"
        )
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    fits = pa.types.is_integer(kind) if pa.types.is_integer(wanted) else _is_text(kind)
    untyped = pa.types.is_null(kind) and (may_lack or not len(column))
    if not fits and not untyped:
        raise HandlerError(
            f"the column {name} of the handler's result is {column.type}, not {wanted}; {_KEEP}"
        )
    try:
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise HandlerError(
            f"the column {name} of the handler's result is {column.type} and has values that are no "
            f"{wanted}; {_KEEP}"
        ) from None


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _errors(output: pa.Table) -> Any:
    """The error column as strings, or None where there is none."""
    import pyarrow as pa

    if ERROR_COLUMN not in output.column_names:
        return None
    column = output.column(ERROR_COLUMN)
    if not (_is_text(column.type) or pa.types.is_null(column.type)):
        raise HandlerError(
            f"the column {ERROR_COLUMN} of the handler's result is {column.type}, not string; "
            "null means that the row is good"
        )
    return column.cast(pa.string())


def _rows_of(places: tuple[Any, Any, Any], tp: TopicPartition, batch: pa.RecordBatch) -> Any:
    """Which rows carry the position of a record of ``batch``, whose offsets ascend."""
    import pyarrow.compute as pc

    topic, partition, offset = places
    offsets = batch.column("offset")
    low, high = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
    mask = pc.and_(pc.equal(topic, tp.topic), pc.equal(partition, tp.partition))
    mask = pc.and_(mask, pc.and_(pc.greater_equal(offset, low), pc.less_equal(offset, high)))
    if high - low + 1 == len(offsets):
        return mask
    return pc.and_(mask, pc.is_in(offset, value_set=offsets))


def _stray(places: tuple[Any, Any, Any], inputs: Mapping[TopicPartition, pa.RecordBatch], count: int) -> str:
    """Names the first row whose position is no record's, and the position that it carries."""
    import pyarrow.compute as pc

    known = None
    for tp, batch in inputs.items():
        mask = _rows_of(places, tp, batch)
        known = mask if known is None else pc.or_(known, mask)
    at = pc.index(known, False).as_py() if known is not None else 0
    topic, partition, offset = (column[at].as_py() for column in places)
    rows = f"{count} rows whose positions are" if count > 1 else "a row whose position is"
    return (
        f"the handler's result has {rows} not among the batch's records: row {at} says {topic}-{partition} "
        f"offset {offset}; {_KEEP}, and write them after the payload's fields, which may have the same names"
    )
