"""Runs a handler on records as a worker does, without a broker, a group or a table.

Engine, checks and the search for records at fault are the worker's own; only the sink is another one, which
keeps the rows in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.growth import Growth
from slackwater.pipeline.sinks.table_schema import fit
from slackwater.runtime.delivery.batch import (
    DeliveryBatch,
    Handled,
    Part,
    Transformed,
    TransformError,
    info_of,
)
from slackwater.runtime.delivery.bisection import SelectionFault
from slackwater.runtime.delivery.calls import stage, transform, try_to_stage
from slackwater.runtime.delivery.dead_letters import Letter
from slackwater.runtime.delivery.isolation import (
    Isolation,
    IsolationError,
    fault_of,
    raised_by_user,
)
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.errors import HandlerError, RecordsError
from slackwater.runtime.fault_points import no_faults
from slackwater.runtime.interfaces import PLACE_COLUMNS, AnyEngine, Columns, Range, Sink

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TrialOutcome:
    """What became of a batch. ``rows``: as the sink gets them; ``fitted``: as a table holds them.

    Each dead letter is of the partition beside it; they are in the order of their positions.
    """

    rows: pa.Table
    fitted: pa.Table
    letters: list[tuple[TopicPartition, Letter]]


class Trial:
    """Gives batches to ``engine``, which is started. ``handler``: its name, for messages. ``group_id`` and
    ``instance``: of which a handler is told that asks. ``by_record``: whether each row must carry the
    position of its record."""

    def __init__(
        self,
        engine: AnyEngine,
        handler: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        group_id: str = "test",
        instance: str = "test",
        by_record: bool = True,
    ) -> None:
        self._engine, self._handler, self._clock = engine, handler, clock
        self._group_id, self._instance, self._by_record = group_id, instance, by_record

    def run(
        self,
        columns: Mapping[TopicPartition, Columns],
        *,
        isolate: bool = True,
        schema: pa.Schema | None = None,
    ) -> TrialOutcome:
        """Handles the records of one batch.

        Args:
            columns: the records by partition; each has some.
            isolate: whether a batch that fails as a whole is searched for the records at fault, which become
                dead letters then. A batch was handled before it, as far as the search is concerned.
            schema: the table's, which the rows must fit; None: the rows make the table's schema.

        Raises:
            HandlerError: the batch cannot be handled.
            Exception: with ``isolate=False`` what the handler raised.
        """
        if not columns:
            from slackwater.kafka.records import ARROW_SCHEMA

            none = ARROW_SCHEMA.empty_table().select(PLACE_COLUMNS if self._by_record else ())
            return TrialOutcome(none, none, [])
        batch = DeliveryBatch(
            {
                tp: Part(OwnedPartition(tp, marks={}), part, part.first_offset, part.next_offset)
                for tp, part in columns.items()
            },
            attempt=1,
        )
        handled = self.handle(batch, _Memory(schema), isolate=isolate)
        letters = [(tp, letter) for tp, of_partition in handled.letters.items() for letter in of_partition]
        assert isinstance(handled.staged, _Kept)
        return TrialOutcome(
            handled.staged.rows, handled.staged.fitted, sorted(letters, key=lambda it: (it[0], it[1].offset))
        )

    def handle(self, batch: DeliveryBatch, sink: Sink, *, isolate: bool = True) -> Handled:
        """Handles ``batch`` and has ``sink`` stage its rows. ``isolate`` and errors: as :meth:`run`; and what
        ``sink`` raises that is no fault of records."""
        try:
            return stage(batch, self._transformed(batch), sink, no_faults)
        except (TransformError, RecordsError) as exc:
            failure: TransformError | RecordsError = exc
        if not isolate:
            raise raised_by_user(failure) if isinstance(failure, TransformError) else failure
        return self._isolated(batch, sink, failure)

    def _isolated(self, batch: DeliveryBatch, sink: Sink, error: TransformError | RecordsError) -> Handled:
        """The batch without the records at fault, which are dead letters."""
        failure = f"{error} (handler {self._handler})"
        fault = fault_of(error)
        if fault is None:
            raise HandlerError(failure) from error
        isolation = Isolation(batch, fault, failure)
        try:
            while not isolation.done:
                isolation.judge(self._fault(isolation.batch, sink), rejected_before=0)
        except IsolationError as exc:
            raise HandlerError(f"{failure}. {exc}") from error
        try:
            return isolation.stage_rest(self._transformed(isolation.batch), sink, no_faults)
        except TransformError as exc:
            raise HandlerError(f"{exc} (handler {self._handler})") from exc

    def _transformed(self, batch: DeliveryBatch) -> Transformed:
        info = info_of(batch, batch.parts, self._group_id, self._instance)
        return transform(batch, info, self._engine, self._clock, no_faults, by_record=self._by_record)

    def _fault(self, batch: DeliveryBatch, sink: Sink) -> SelectionFault | None:
        """Why ``batch`` cannot be handled or written; None: it can. Raises what is no fault of records."""
        try:
            try_to_stage(batch, self._transformed(batch), sink, no_faults)
        except Exception as exc:
            fault = fault_of(exc)
            if fault is None and isinstance(exc, TransformError):
                raise HandlerError(f"{exc} (handler {self._handler})") from exc
            if fault is None:
                raise
            return fault
        return None


class _Kept:
    """Staged rows, in memory."""

    def __init__(self, rows: pa.Table, fitted: pa.Table) -> None:
        self.rows, self.fitted = rows, fitted

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        raise NotImplementedError("a trial has no rebalances")

    def publish(self) -> None:
        pass

    def discard(self) -> None:
        pass


class _Memory:
    """The sink of a trial. It refuses what no sink can hold."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self._schema = schema

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        return {}

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> _Kept:
        """Keeps the rows. Raises RecordsError where they fit no table, or not the given schema."""
        return _Kept(rows, fit(rows, self._schema, growth=Growth(widens=False)))

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        return 0

    def probe(self) -> str:
        return "memory"
