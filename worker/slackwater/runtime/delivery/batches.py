"""The batches in flight, in the order in which they are written, and what their stages have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.call_threads import Runner
from slackwater.runtime.delivery.batch import DeliveryBatch, describe
from slackwater.runtime.delivery.commits import CommitOutcome, DeliveryCommits
from slackwater.runtime.delivery.isolation import Isolation
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.delivery.stages import SINK_COMMITS, Stage
from slackwater.runtime.worker_context import WorkerContext


class Effects(Protocol):
    """What the batches in flight ask of the delivery around them."""

    def seek_back(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions again, from these offsets."""

    def marks_moved(self, partitions: Collection[TopicPartition]) -> None:
        """Another process has written some of these: their marks are to be read again."""

    def stop_rejected(self, why: Mapping[TopicPartition, str]) -> None:
        """Reads nothing more of partitions with too many dead letters; says ``why``."""

    def too_large(self, records: int) -> None:
        """A batch of so many records fails for its size."""

    def batch_gathered(self, batch: DeliveryBatch) -> None:
        """The handler has returned for ``batch``; its rows wait for others."""

    def rows_written(self, partitions: Collection[TopicPartition], at_ms: float) -> None:
        """The sink has rows of these partitions since ``at_ms`` (monotonic clock)."""

    def batch_ended(self, committed: DeliveryBatch | None) -> None:
        """The first batch is committed, or (None) was given up."""


class Batches:
    """At most two batches, three while one of them gathers. All but the first were handled beside it."""

    def __init__(
        self,
        context: WorkerContext,
        commits: DeliveryCommits,
        effects: Effects,
        owned: Mapping[TopicPartition, OwnedPartition],
    ) -> None:
        """``owned``: the partitions that the worker has."""
        self.context, self.commits, self.effects, self.owned = context, commits, effects, owned
        self.all: list[DeliveryBatch] = []
        """In the order in which they are written."""
        self.isolation: Isolation | None = None
        """Of the first, when it has failed as a whole."""
        self.rejected_in_a_row: int | None = None
        """How many records were rejected since the last that was handled; None: this process has committed no
        batch yet."""

    @property
    def first(self) -> DeliveryBatch | None:
        """The one that is written next."""
        return self.all[0] if self.all else None

    def ends(self) -> dict[TopicPartition, int]:
        """Up to where they reach."""
        return {tp: part.end for batch in self.all for tp, part in batch.parts.items()}

    def starts(self) -> dict[TopicPartition, int]:
        """Where they begin."""
        return {tp: part.start for batch in reversed(self.all) for tp, part in batch.parts.items()}

    def enter(
        self,
        batch: DeliveryBatch,
        stage: Stage,
        call: Callable[[], object] | None = None,
        runner: Runner | None = None,
    ) -> None:
        """Takes ``batch`` to ``stage``, in which ``call`` is made. ``runner``: for it; None: the writer."""
        batch.enter(stage, self.context.clock.mono_ms())
        if call is not None:
            batch.task = (runner or self.context.writer).submit(batch.trace.inside(call))

    def end(self, batch: DeliveryBatch, stage: Stage) -> None:
        """The first batch is COMMITTED or GIVEN_UP; the next one becomes the first."""
        self.enter(batch, stage)
        self.all, self.isolation = self.all[1:], None
        self.effects.batch_ended(batch if stage is Stage.COMMITTED else None)

    def rejected_before(self, batch: DeliveryBatch) -> int | None:
        """How many records were rejected in a row before this batch: by this process or, where it has
        committed no batch yet, by those that have committed the partitions before; None: nobody has."""
        if self.rejected_in_a_row is not None:
            return self.rejected_in_a_row
        notes = [note for part in batch.parts.values() if (note := part.owned.note) is not None]
        return max((note.rejected for note in notes if note.rejected is not None), default=None)

    # ---- commits

    def commit(self, batch: DeliveryBatch, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Whether the broker has stored ``offsets``. Where it refuses for good, the batch is given back."""
        outcome = self.commits.commit(offsets)
        if outcome is CommitOutcome.GONE:
            batch.trace.failed("the group has moved on without this member")
            self.give_back(batch, "the group has moved on without this member")
        return outcome is CommitOutcome.DONE

    # ---- what is given up

    def abandon(self, partitions: Collection[TopicPartition], why: str) -> None:
        """Gives up these partitions' parts: nothing of them is published or committed from now on."""
        again: dict[TopicPartition, int] = {}
        now = self.context.clock.mono_ms()
        for batch in self.all:
            if not self.context.config.by_record:
                again = _inseparable(batch, {*partitions, *again}) | again
            if gone := batch.give_up({*partitions, *again}):
                if batch.output is not None:
                    batch.output.closed = True  # it has rows of these partitions, which may come back
                with batch.trace.current():
                    self.context.log.line(f"abandons {describe(gone)}: {why}")
                self.context.metrics.count("batches", ("abandoned",))
                batch.trace.given_up(gone, why, now)
                if not batch.parts:
                    batch.trace.end(now, "abandoned")
        if (first := self.first) is not None and not first.parts and first.task is None:
            self.end(first, Stage.GIVEN_UP)
        if again:
            self.effects.seek_back(again)

    def give_back(self, batch: DeliveryBatch, why: str) -> None:
        """Gives up the batch, to be read again where this member still owns its partitions: the next poll
        tells."""
        first = self.starts()  # of the batch before, too: what precedes a part is given up with it
        starts = {tp: max(first[tp], part.owned.mark or 0) for tp, part in batch.parts.items()}
        self.abandon(list(starts), why)
        if starts:
            self.effects.seek_back(starts)


def _inseparable(batch: DeliveryBatch, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The starts of the other parts of ``batch`` that must be given up with ``partitions``, where rows are of
    a whole batch: all, unless the sink commits them already."""
    if batch.stage in SINK_COMMITS or batch.parts.keys().isdisjoint(partitions):
        return {}
    return {
        tp: max(part.start, part.owned.mark or 0) for tp, part in batch.parts.items() if tp not in partitions
    }
