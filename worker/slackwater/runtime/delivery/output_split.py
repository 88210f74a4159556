"""Takes the handler's output apart: by partition, and into rows for the sink and dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.runtime.errors import HandlerError, RecordsError
from slackwater.runtime.interfaces import ERROR_COLUMN, PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition

_KEEP = f"each row must carry {', '.join(PLACE_COLUMNS)} of its record, unchanged"


@dataclass(frozen=True)
class PartOutput:
    """One partition's output. ``rows`` has no error column; ``dead`` is (source offset, error), by offset."""

    rows: pa.Table
    dead: list[tuple[int, str]]


def split(output: Any, inputs: Mapping[TopicPartition, pa.RecordBatch]) -> dict[TopicPartition, PartOutput]:
    """The parts of ``output``, one for each of ``inputs``, in the handler's order of rows.

    A record of ``inputs`` may have no row, one or several. Every row must carry the position of one of them.

    Raises HandlerError where the output is no table, has a column twice, lacks ``topic``, ``partition`` or
    ``offset``, or has them in a wrong type. Raises RecordsError where it has a row without them, or one
    whose position is no record's of ``inputs``: of another partition, outside the batch, or in a gap that
    compaction has left in it.
    """
    places = _places(output)
    errors = _errors(output)
    rows = output.drop_columns([ERROR_COLUMN]) if errors is not None else output
    parts = {}
    taken = 0
    for tp, batch in inputs.items():
        mask = _rows_of(places, tp, batch)
        part = rows.filter(mask)
        taken += part.num_rows
        parts[tp] = _part(part, mask, places[2], errors)
    if taken != output.num_rows:
        raise RecordsError(_stray(places, inputs, output.num_rows - taken))
    return parts


def _places(output: Any) -> tuple[Any, Any, Any]:
    """The columns topic, partition and offset, as string, int32 and int64."""
    import pyarrow as pa

    if not isinstance(output, pa.Table):
        raise HandlerError(f"the handler returned {type(output).__name__}, not a table")
    have = ", ".join(output.column_names) or "no columns"
    for name in PLACE_COLUMNS:
        if name not in output.column_names:
            raise HandlerError(f"the handler's result must have the column {name} (it has: {have}); {_KEEP}")
    for name, count in Counter(output.column_names).items():
        if count > 1:
            raise HandlerError(
                f"the handler's result has the column {name} {count} times (it has: {have}); keep one of them"
            )
    types = (pa.string(), pa.int32(), pa.int64())
    topic, partition, offset = (
        _place(output, name, wanted) for name, wanted in zip(PLACE_COLUMNS, types, strict=True)
    )
    return topic, partition, offset


def _place(output: pa.Table, name: str, wanted: pa.DataType) -> pa.ChunkedArray:
    """The column ``name`` as ``wanted``: integers of any width are taken, and any encoding of text. A float
    is not, because it cannot hold every offset, and neither is text that reads as a number."""
    import pyarrow as pa

    column = output.column(name)
    if column.null_count:
        kind_of_error = HandlerError if column.null_count == len(column) else RecordsError
        raise kind_of_error(
            f"the handler's result has no {name} in {column.null_count} of {len(column)} rows; {_KEEP}"
        )
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    fits = pa.types.is_integer(kind) if pa.types.is_integer(wanted) else _is_text(kind)
    untyped = pa.types.is_null(kind) and not len(column)
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


def _part(part: pa.Table, mask: Any, offsets: Any, errors: Any) -> PartOutput:
    import pyarrow.compute as pc

    if errors is None:
        return PartOutput(part, [])
    part_errors = errors.filter(mask)
    if part_errors.null_count == len(part_errors):
        return PartOutput(part, [])
    bad = pc.is_valid(part_errors)
    dead: dict[int, str] = {}
    for offset, error in zip(
        offsets.filter(mask).filter(bad).to_pylist(), part_errors.filter(bad).to_pylist(), strict=True
    ):
        dead.setdefault(offset, error)
    return PartOutput(part.filter(pc.invert(bad)), sorted(dead.items()))


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
