"""Takes the handler's output apart: by partition, and into rows for the sink and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.runtime.errors import HandlerError
from slackwater.runtime.interfaces import ERROR_COLUMN, PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition


@dataclass(frozen=True)
class PartOutput:
    """One partition's output. ``rows`` has no error column; ``dead`` is (source offset, error), by offset."""

    rows: pa.Table
    dead: list[tuple[int, str]]


def split(output: Any, inputs: Mapping[TopicPartition, pa.RecordBatch]) -> dict[TopicPartition, PartOutput]:
    """The parts of ``output``, one for each of ``inputs``, in the handler's order of rows.

    Raises HandlerError where the output is no table, lacks ``topic``, ``partition`` or ``offset``, has
    them in a wrong type or with nulls, or has rows that are from none of the ``inputs``.
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
        raise HandlerError(_stray(places, inputs, output.num_rows - taken))
    return parts


def _places(output: Any) -> tuple[Any, Any, Any]:
    """The columns topic, partition and offset, as string, int32 and int64."""
    import pyarrow as pa

    if not isinstance(output, pa.Table):
        raise HandlerError(f"the handler returned {type(output).__name__}, not a table")
    types = (pa.string(), pa.int32(), pa.int64())
    found = []
    for name, wanted in zip(PLACE_COLUMNS, types, strict=True):
        if output.schema.get_all_field_indices(name).__len__() != 1:
            have = ", ".join(output.column_names) or "no columns"
            raise HandlerError(
                f"the handler's result must have the column {name} once (it has: {have}); "
                f"keep {', '.join(PLACE_COLUMNS)} of the input"
            )
        column = output.column(name)
        if column.null_count:
            raise HandlerError(f"the handler's result has {column.null_count} rows without {name}; keep it")
        try:
            found.append(column.cast(wanted))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise HandlerError(
                f"the column {name} of the handler's result is {column.type}, not {wanted}; keep it as is"
            ) from None
    return found[0], found[1], found[2]


def _errors(output: pa.Table) -> Any:
    """The error column as strings, or None where there is none."""
    import pyarrow as pa

    if ERROR_COLUMN not in output.column_names:
        return None
    column = output.column(ERROR_COLUMN)
    if not (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_null(column.type)
    ):
        raise HandlerError(
            f"the column {ERROR_COLUMN} of the handler's result is {column.type}, not string; "
            "a null says that the row is good"
        )
    return column.cast(pa.string())


def _rows_of(places: tuple[Any, Any, Any], tp: TopicPartition, batch: pa.RecordBatch) -> Any:
    """Which rows come from ``tp`` and from the offsets of ``batch``."""
    import pyarrow.compute as pc

    topic, partition, offset = places
    offsets = batch.column("offset")
    low, high = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
    mask = pc.and_(pc.equal(topic, tp.topic), pc.equal(partition, tp.partition))
    return pc.and_(mask, pc.and_(pc.greater_equal(offset, low), pc.less_equal(offset, high)))


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
    """Says which rows come from nowhere, with one example."""
    import pyarrow.compute as pc

    known = None
    for tp, batch in inputs.items():
        mask = _rows_of(places, tp, batch)
        known = mask if known is None else pc.or_(known, mask)
    stray = pc.invert(known)
    topic, partition, offset = (column.filter(stray)[0].as_py() for column in places)
    return (
        f"the handler's result has {count} rows that were not in its input, as {topic}-{partition} "
        f"offset {offset}; keep {', '.join(PLACE_COLUMNS)} as they came"
    )
