"""What is called for a batch on other threads: the handler, and the sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from slackwater import handler
from slackwater.clock import Clock
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.batch import (
    DeliveryBatch,
    Handled,
    Part,
    Transformed,
    TransformError,
    describe,
    rows_of,
)
from slackwater.runtime.delivery.columns import Unreadable
from slackwater.runtime.delivery.dead_letters import letters_of
from slackwater.runtime.errors import RecordsError, SinkError, WorkerError
from slackwater.runtime.fault_points import Reached, Step
from slackwater.runtime.handler_output import Output, checked_kept, checked_output
from slackwater.runtime.interfaces import (
    PLACE_COLUMNS,
    AnyEngine,
    EngineResidentRows,
    Range,
    RecordEngine,
    Sink,
    SinkFencedError,
)

if TYPE_CHECKING:
    import pyarrow as pa


def transform(
    batch: DeliveryBatch,
    info: handler.Batch,
    engine: AnyEngine,
    clock: Clock,
    reached: Reached,
    *,
    by_record: bool = True,
) -> Transformed:
    """Runs the handler on the batch, of which it is told ``info``. On the handler's thread.

    ``by_record``: whether its rows must carry the positions of their records.

    Raises TransformError, or HandlerError (RecordsError where single records are at fault).
    """
    from slackwater.kafka.records import ARROW_SCHEMA

    began = clock.mono_ms()
    parts = sorted(dict(batch.parts).items())
    unreadable = {tp: [part.columns.letter] for tp, part in parts if isinstance(part.columns, Unreadable)}
    inputs = {
        tp: part.columns.to_arrow(tp.topic, tp.partition)
        for tp, part in parts
        if len(part.columns) and tp not in unreadable
    }
    for tp, part in parts:
        part.bytes = inputs[tp].nbytes if tp in inputs else 0
    call = _call(engine, batch, info, inputs) if inputs else None
    ready = clock.mono_ms()
    try:
        result = call() if call is not None else None
    except WorkerError:
        raise
    except BaseException as exc:  # also SystemExit: a handler that calls exit() has failed
        raise TransformError(f"{type(exc).__name__}: {exc}") from exc
    ended = clock.mono_ms()
    reached(Step.HANDLED)
    if isinstance(result, EngineResidentRows):
        output = checked_kept(result, inputs)
    elif call is not None:
        output = checked_output(result, inputs, by_record=by_record)
    else:  # all records are dead letters already
        columns = PLACE_COLUMNS if by_record else ()
        output = Output(ARROW_SCHEMA.empty_table().select(columns), {}, {})
    letters = {
        tp: letters_of(inputs[tp], dead, attempt=max(1, batch.attempt)) for tp, dead in output.dead.items()
    }
    return Transformed(
        output,
        letters | unreadable,
        sum(table.nbytes for table in inputs.values()),
        {"arrow": round(ready - began, 3), "transform": round(ended - ready, 3)},
        by_record,
    )


def _call(
    engine: AnyEngine,
    batch: DeliveryBatch,
    info: handler.Batch,
    inputs: Mapping[TopicPartition, pa.RecordBatch],
) -> Callable[[], pa.Table]:
    """The engine's call, with what it takes made ready."""
    if isinstance(engine, RecordEngine):
        columns = {tp: part.columns for tp, part in dict(batch.parts).items() if tp in inputs}
        records = [
            record for tp in inputs if tp in columns for record in columns[tp].records(tp.topic, tp.partition)
        ]
        return partial(engine.transform_records, records, info)
    import pyarrow as pa

    return partial(engine.transform, pa.Table.from_batches(inputs.values()), info)


def stage(
    batch: DeliveryBatch,
    transformed: Transformed,
    sink: Sink,
    reached: Reached,
    ranges: Mapping[TopicPartition, Range] | None = None,
) -> Handled:
    """Has the sink stage the rows of the batch that are still the batch's. On the sink's thread.

    ``ranges``: what is staged covers; None: what the batch does.

    Raises SinkError, RecordsError where single records are at fault, or SinkFencedError where rows of the
    batch are in the table already; nothing stays staged then.
    """
    parts = dict(sorted(dict(batch.parts).items()))
    _check_marks(parts)
    covered = dict(ranges) if ranges is not None else {tp: part.range for tp, part in parts.items()}
    if not covered:
        return Handled(None, {}, {})
    output = transformed.output
    # Rows of a whole batch cannot be told apart: such a batch is given up as a whole.
    whole = not transformed.by_record or output.counts.keys() <= covered.keys()
    rows = output.rows if whole else rows_of(output.rows, covered)
    with sink_errors(f"write {describe(parts)}"):
        staged = sink.stage(rows, covered)
    reached(Step.STAGED)
    return Handled(
        staged,
        {tp: output.counts.get(tp, 0) for tp in covered},
        {tp: letters for tp, letters in transformed.letters.items() if tp in covered},
    )


def _check_marks(parts: Mapping[TopicPartition, Part]) -> None:
    """Raises SinkFencedError where a part begins below its mark: its start was handed over, and its mark was
    read after that."""
    for tp, part in parts.items():
        if part.owned.marks is None:
            raise SinkFencedError(f"it is not known how far the sink has rows of {tp}")
        if (part.owned.mark or 0) > part.start:
            raise SinkFencedError(f"the sink has the rows of {tp} up to {part.owned.mark} already")


def try_to_stage(batch: DeliveryBatch, transformed: Transformed, sink: Sink, reached: Reached) -> None:
    """As :func:`stage`, and nothing stays staged: shows whether the sink takes the rows."""
    handled = stage(batch, transformed, sink, reached)
    if handled.staged is not None:
        handled.staged.discard()


def publish(batch: DeliveryBatch, clock: Clock) -> float:
    """Writes what is staged. On the sink's thread. Returns when that was done (monotonic clock): the main
    thread may learn of it later. Raises SinkFencedError, SinkError or RecordsError."""
    assert batch.staged is not None
    with sink_errors(f"publish {describe(batch.parts)}"):
        batch.staged.publish()
    return clock.mono_ms()


@contextmanager
def sink_errors(what: str) -> Iterator[None]:
    """Raises what the sink raises as SinkError, or RecordsError where its format cannot hold the values; but
    SinkFencedError as it is. ``what``: what the sink cannot do then."""
    try:
        yield
    except (SinkFencedError, WorkerError, KeyboardInterrupt):  # a person may interrupt a backfill
        raise
    except BaseException as exc:
        import pyarrow as pa

        if isinstance(exc, pa.ArrowException) and not isinstance(exc, OSError | MemoryError):
            raise RecordsError(f"the sink cannot {what}: {' '.join(str(exc).split())}") from exc
        why = f"{type(exc).__name__}: {exc}"
        if isinstance(exc, OSError):
            why = f"{exc.strerror or exc}" + (f" ({exc.filename})" if exc.filename else "")
        raise SinkError(f"the sink cannot {what}: {why}; nothing of it was committed") from exc
