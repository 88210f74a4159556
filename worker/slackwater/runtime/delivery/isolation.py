"""Finds the records at fault in a batch that fails as a whole, and handles the others."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.batch import DeliveryBatch, Handled, Transformed, TransformError
from slackwater.runtime.delivery.bisection import (
    ALWAYS,
    SelectionFault,
    SizeFaultError,
    TooManyFaultsError,
    limit,
    search,
)
from slackwater.runtime.delivery.calls import stage
from slackwater.runtime.delivery.columns import Selected, Whole
from slackwater.runtime.delivery.dead_letters import MAX_STACK_CHARS, letters_of, shortened
from slackwater.runtime.errors import (
    HandlerRaised,
    QueryFailed,
    RecordsError,
    SinkRaisedError,
    causes,
    is_environment,
)
from slackwater.runtime.fault_points import Reached
from slackwater.runtime.interfaces import Sink

_BY_VALUE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What Python raises for a value that does not fit. Of another exception it is not known whether the record
causes it, or something that the handler works with."""


_NONE = "The handler or its environment is at fault, so no record is rejected"


class IsolationError(Exception):
    """Records are not at fault. The message says why, as a sentence without a full stop."""


class BatchSizeError(IsolationError):
    """The batch's parts succeed alone and fail together."""


def fault_of(exc: BaseException) -> SelectionFault | None:
    """The fault in records that ``exc`` may show; None where the surroundings of the handler or of the user's
    sink have failed."""
    if isinstance(exc, RecordsError) and not isinstance(exc, SinkRaisedError):
        return SelectionFault(str(exc), reasons=exc.reasons)
    if not isinstance(exc, TransformError | SinkRaisedError) or is_environment(exc.__cause__):
        return None
    by_value = any(isinstance(cause, (*_BY_VALUE, QueryFailed)) for cause in causes(exc.__cause__))
    stack = "".join(traceback.format_exception(raised_by_user(exc)))
    return SelectionFault(str(exc), by_value, shortened(stack, MAX_STACK_CHARS))


def raised_by_user(exc: TransformError | SinkRaisedError) -> BaseException:
    """The exception that the handler, its query, or the user's sink has raised."""
    raised: BaseException = exc.__cause__ or exc
    while isinstance(raised, HandlerRaised | QueryFailed) and raised.__cause__ is not None:
        raised = raised.__cause__
    return raised


class Isolation:
    """The search for the records at fault in ``batch``, one trial after another."""

    def __init__(self, batch: DeliveryBatch, fault: SelectionFault, failure: str) -> None:
        """``failure``: what the batch has failed with, for a message."""
        self.failure = failure
        self.rejected: dict[TopicPartition, list[tuple[int, str]]] = {}
        """When done: offset and reason, by offset."""
        self._stacks: dict[TopicPartition, dict[int, str]] = {}
        self._attempt = batch.attempt
        self._parts = {
            tp: replace(part, columns=Whole(part.columns, tp)) for tp, part in sorted(batch.parts.items())
        }
        self._rows = [(tp, row) for tp, part in self._parts.items() for row in range(len(part.columns))]
        self._left: Sequence[int] = ()
        self._search = search(
            len(self._rows), fault, limit(len(self._rows)), lambda record: self._places[record]
        )
        self._trial: Sequence[int] | None = next(self._search)

    @property
    def done(self) -> bool:
        """Whether the records at fault are known."""
        return self._trial is None

    @property
    def all_rejected(self) -> bool:
        """Whether no record is left, when done."""
        return not self._left

    @property
    def batch(self) -> DeliveryBatch:
        """What is to be tried next; when done, what is left of the batch."""
        parts: dict[TopicPartition, list[int]] = {}
        for record in self._left if self._trial is None else self._trial:
            tp, row = self._rows[record]
            parts.setdefault(tp, []).append(row)
        selected = {
            tp: replace(self._parts[tp], columns=Selected(self._parts[tp].columns, rows))
            for tp, rows in parts.items()
        }
        return DeliveryBatch(selected, attempt=self._attempt)

    def judge(self, fault: SelectionFault | None, rejected_before: int | None) -> None:
        """Takes in how the trial ended. ``rejected_before``: how many records in a row were rejected in the
        batches before, with none handled in between; None where no batch was handled before.

        Raises:
            BatchSizeError: no record is at fault, and smaller batches pass.
            IsolationError: the handler is at fault, or something that it works with.
        """
        try:
            self._trial = self._search.send(fault)
        except StopIteration as end:
            self._finish(end.value, rejected_before)
        except TooManyFaultsError as exc:
            raise IsolationError(
                f"More than {exc.most} of its {len(self._rows)} records fail, for example with: "
                f"{exc.first.reason}. {_NONE}"
            ) from None
        except SizeFaultError:
            raise BatchSizeError(
                "Its parts succeed alone and fail together: the batch is too large, no record is at fault"
            ) from None

    @cached_property
    def _places(self) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of each record."""
        return [
            (tp.topic, tp.partition, offset)
            for tp, part in self._parts.items()
            for offset in part.columns.to_arrow(tp.topic, tp.partition).column("offset").to_pylist()
        ]

    def _finish(self, faults: Mapping[int, SelectionFault], rejected_before: int | None) -> None:
        self._trial = None
        self._left = [record for record in range(len(self._rows)) if record not in faults]
        if not self._left:
            self._check_all(faults, rejected_before)
        for record, fault in sorted(faults.items()):
            tp, offset = self._rows[record][0], self._places[record][2]
            self.rejected.setdefault(tp, []).append(
                (offset, f"the batch fails with this record: {fault.reason}")
            )
            self._stacks.setdefault(tp, {})[offset] = fault.stack

    def _check_all(self, faults: Mapping[int, SelectionFault], rejected_before: int | None) -> None:
        """Raises IsolationError if the handler may be at fault: no record passed, so nothing shows that it
        works."""
        other = next((fault for fault in faults.values() if not fault.by_value), None)
        if other is not None:
            raise IsolationError(
                f"All its records fail, and the error does not indicate a fault in their values. {_NONE}"
            )
        if rejected_before is None:
            raise IsolationError(
                f"All its records fail, and no batch of the partition was handled before. {_NONE}"
            )
        if rejected_before + len(faults) > ALWAYS:
            raise IsolationError(
                f"All its records fail, as did the {rejected_before} before. At most {ALWAYS} records "
                f"in a row are rejected. {_NONE}"
            )

    def stage_rest(self, transformed: Transformed, sink: Sink, reached: Reached) -> Handled:
        """Stages what is left of the batch and was ``transformed``; those at fault become dead letters. On
        the sink's thread, when done.

        Raises as :func:`~slackwater.runtime.delivery.batch.stage`; nothing stays staged then.
        """
        ranges = {tp: part.range for tp, part in self._parts.items()}
        handled = stage(self.batch, transformed, sink, reached, ranges)
        try:
            for tp, rejected in self.rejected.items():
                records = self._parts[tp].columns.to_arrow(tp.topic, tp.partition)
                letters = handled.letters.get(tp, []) + letters_of(
                    records, rejected, attempt=max(1, self._attempt), stacks=self._stacks[tp]
                )
                handled.letters[tp] = sorted(letters, key=lambda letter: letter.offset)
        except BaseException:
            if handled.staged is not None:
                handled.staged.discard()
            raise
        return handled
