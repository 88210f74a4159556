"""The batches in flight, from the handler's call to the commit: one, and those that are handled beside it.

``advance`` takes the first as far as it goes without waiting, by the table of
:mod:`~slackwater.runtime.delivery.stages`: the handler runs on the runner's thread; all that the sink and the
dead-letter topic do, on the writer's.

Once the handler has returned for it, the next batch may begin (:attr:`InFlight.takes`): the handler is called
while the first is written. Nothing else happens to the next before the first is committed, so what is written
is in order, and one batch at a time. Where parts of the first are given up, those of the next that follow
them are, too.

With ``sink.maxAge`` a batch that is handled is gathered: the next joins it, until it is large or old enough
to be written (:mod:`slackwater.runtime.delivery.gathering`). One may gather while another is written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.batch import DeliveryBatch, Part, Transformed
from slackwater.runtime.delivery.batches import Batches, Effects
from slackwater.runtime.delivery.commits import HANDLED_EVERY_MS, DeliveryCommits
from slackwater.runtime.delivery.dead_letters import LateError
from slackwater.runtime.delivery.failures import CONTROLLED, Failures
from slackwater.runtime.delivery.gathering import Gathering
from slackwater.runtime.delivery.handling import Handling
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.delivery.stages import HANDLER_DONE, Stage
from slackwater.runtime.delivery.writing import Writing
from slackwater.runtime.telemetry.batch_trace import BatchTraces
from slackwater.runtime.worker_context import WorkerContext

_TURN_MS = 5.0
"""How long one of two calls is waited for before it is asked whether the other has ended."""


class InFlight:
    """Which batches there are, which may begin, and what is done with each next."""

    def __init__(
        self,
        context: WorkerContext,
        commits: DeliveryCommits,
        effects: Effects,
        owned: Mapping[TopicPartition, OwnedPartition],
    ) -> None:
        """``owned``: the partitions that the worker has."""
        self._context, self._config, self._clock = context, context.config, context.clock
        client = context.pod or context.instance
        self._traces = BatchTraces(lambda: context.tracing, context.clock, self._config.group_id, client)
        self._batches = Batches(context, commits, effects, owned)
        self._gathering = Gathering(self._config.sink.max_age_ms, self._config.sink.target_file_bytes)
        self._handling = Handling(self._batches)
        self._failures = Failures(self._batches, self._handling, self._gathering)
        self._writing = Writing(self._batches, self._gathering)
        self.ends, self.starts, self.abandon = self._batches.ends, self._batches.starts, self._batches.abandon

    # ---- what there is

    @property
    def batch(self) -> DeliveryBatch | None:
        """The first, which is written."""
        return self._batches.first

    @property
    def next(self) -> DeliveryBatch | None:
        """The batch that is written after the first."""
        return self._batches.all[1] if len(self._batches.all) > 1 else None

    @property
    def idle(self) -> bool:
        """Whether nothing is done: there is no batch, or one that waits for others."""
        return all(batch.stage is Stage.GATHERING for batch in self._batches.all[:1]) and self.next is None

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether some of ``partitions`` are still to be committed."""
        return not self.starts().keys().isdisjoint(partitions)

    def waiting(self) -> dict[TopicPartition, tuple[int, int]]:
        """What waits to be written with others, from where to where. Nothing before it has waited for a
        while."""
        batch = self.batch
        if batch is None or batch.stage is not Stage.GATHERING:
            return {}
        if self._clock.mono_ms() - batch.began_ms < HANDLED_EVERY_MS:
            return {}
        return {tp: (part.start, part.end) for tp, part in batch.parts.items()}

    # ---- what may begin

    @property
    def takes(self) -> bool:
        """Whether another batch may begin."""
        refresher = self._context.refresher
        return self._handler_free and not (refresher is not None and refresher.running)

    @property
    def _handler_free(self) -> bool:
        """Whether no batch needs the handler, as far as is known."""
        first = self.batch
        if first is None:
            return True
        last = self._batches.all[-1]
        if last.stage is Stage.GATHERING:
            room = bool(last.parts) and not self._gathering.full(last)
            return room and (last is first or self._is_written(first))
        return self._is_written(first) and last is first

    def _is_written(self, batch: DeliveryBatch) -> bool:
        """Whether the handler is done with the first batch."""
        handled = batch.stage in HANDLER_DONE and self._batches.isolation is None
        return handled and bool(batch.parts) and not batch.noted

    def refresh(self, *, begins: bool) -> None:
        """Takes in the end of a call of the handler's ``refresh``; if it ``begins`` one, begins one that is
        due, between two batches. Raises WorkerError where the handler cannot go on."""
        refresher = self._context.refresher
        if refresher is not None and (refresher.running or (begins and self._handler_free)):
            refresher.advance()

    def begin(self, parts: dict[TopicPartition, Part], *, control_for: OwnedPartition | None = None) -> None:
        """Hands ``parts`` to the handler, after reading back which of their records are dead letters.
        ``control_for``: see :class:`~slackwater.runtime.delivery.batch.DeliveryBatch`."""
        assert self.takes
        now = self._clock.mono_ms()
        trace = self._traces.begin(parts, now)
        batch = DeliveryBatch(parts, now, trace=trace, control_for=control_for)
        self._batches.all.append(batch)
        self._handling.start(batch)

    # ---- gathering

    def write_at_once(self, urgent: bool) -> None:
        """Whether what is gathered is to be written without waiting for more."""
        self._gathering.urgent = urgent

    def gather_no_more(self) -> None:
        """Has what is gathered now written without waiting for more."""
        for batch in self._batches.all:
            if batch.output is not None:
                batch.output.closed = True

    def due_in_ms(self) -> float:
        """When what is gathered must be written; infinite where nothing waits for that."""
        if self.batch is None or self.batch.stage is not Stage.GATHERING:
            return math.inf
        return self._gathering.due_in_ms(self.batch, self._clock.mono_ms())

    def _gather_following(self) -> None:
        """What was handled beside another batch joins the one before it, or begins to gather itself while
        the first is written."""
        before = self.batch
        for batch in self._batches.all[1:]:
            assert before is not None
            if before.output is not None and batch.stage is Stage.WAITING:
                before.output.closed = True
            if batch.stage is Stage.HANDLED and self._gather(before, batch) and before.output is not None:
                self._batches.all = [other for other in self._batches.all if other is not batch]
            else:
                before = batch

    def _gather(self, before: DeliveryBatch, batch: DeliveryBatch) -> bool:
        """Whether ``batch`` was added to the one before it, if that gathers, or has begun to gather."""
        assert batch.task is not None
        try:
            transformed = batch.task.result()
        except Exception:  # raised again when it is the first
            if before.output is not None:
                before.output.closed = True
            return False
        if before.output is None:
            if not self._is_written(before) or not self._gathering.takes(batch):
                return False
            self._begin_to_gather(batch, transformed)
            return True
        if batch.parts and not self._gathering.join(before, batch, transformed):
            return False
        batch.trace.gathered(before.trace, self._clock.mono_ms())
        batch.enter(Stage.JOINED, self._clock.mono_ms())
        self._batches.effects.batch_gathered(batch)
        return True

    def _begin_to_gather(self, batch: DeliveryBatch, transformed: Transformed) -> None:
        self._gathering.begin(batch, transformed)
        batch.noted, batch.task = False, None
        self._batches.enter(batch, Stage.GATHERING)
        self._batches.effects.batch_gathered(batch)

    def _write_gathered(self, batch: DeliveryBatch) -> bool:
        """Writes what was gathered, if it is due. The process may end with that, too: of memory."""
        if self._gathering.due_in_ms(batch, self._clock.mono_ms()) > 0:
            return False
        if not self._gathering.urgent and not self._handling.note_begun(batch):
            return False
        assert batch.output is not None
        transformed, batch.output = batch.output.transformed(), None
        self._writing.stage(batch, transformed)
        return True

    # ---- what is done next

    def wait(self, timeout_ms: float) -> bool:
        """Waits for what runs of the first batch, and for the handler where its output is to be gathered, or
        for a refresh; False where none runs, and a poll or the time must help."""
        batches = self._batches.all
        tasks = [batch.task for batch in batches[:1] if batch.task is not None]
        if len(batches) > 1 and batches[-2].stage is Stage.GATHERING:
            tasks += [batch.task for batch in batches[-1:] if batch.task and batch.stage is Stage.HANDLING]
        if not tasks:
            refresher = self._context.refresher
            return refresher is not None and refresher.wait(timeout_ms)
        deadline = self._clock.mono_ms() + timeout_ms
        while not any(task.wait(0) for task in tasks):
            left = deadline - self._clock.mono_ms()
            if left <= 0:
                break
            tasks[0].wait(min(left, _TURN_MS) if len(tasks) > 1 else left)
        return True

    def advance(self) -> None:
        """Goes on as far as possible. Raises WorkerError where the worker must end."""
        for batch in self._batches.all[1:]:
            if batch.stage is Stage.HANDLING and batch.task is not None:
                if batch.task.wait(0):  # what it returned is taken in when the first batch is committed
                    batch.enter(Stage.HANDLED, self._clock.mono_ms())
                else:
                    self._handling.check_time(batch)
        self._gather_following()
        while (first := self.batch) is not None:
            with first.trace.current():
                try:
                    if not self._step(first):
                        return
                except Exception as exc:
                    first.trace.end(self._clock.mono_ms(), "failed", error=exc)
                    raise

    def _step(self, batch: DeliveryBatch) -> bool:
        """One step of the first batch; False where something must be waited for."""
        if batch.task is not None:
            if batch.task.wait(0):
                self._call_ended(batch)
                return True
            self._handling.check_time(batch)
            return False
        if not batch.parts:
            self._batches.end(batch, Stage.GIVEN_UP)
            return True
        match batch.stage:
            case Stage.WAITING:
                return self._handling.start(batch)
            case Stage.BACKING_OFF:
                return self._clock.mono_ms() >= batch.retry_at_ms and self._handling.hand_over(batch)
            case Stage.GATHERING:
                return self._write_gathered(batch)
            case Stage.WRITING:
                return self._writing.write_letters(batch)
            case Stage.READY:
                return self._writing.publish(batch)
            case Stage.PUBLISHED:
                return self._writing.commit(batch)
        raise AssertionError(f"nothing is done for a batch that is {batch.stage.value}")

    def _call_ended(self, batch: DeliveryBatch) -> None:
        task, batch.task = batch.task, None
        assert task is not None
        try:
            result = task.result()
        except LateError as exc:
            batch.trace.failed(exc)
            self._writing.letters_late(batch)
            return
        except Exception as exc:
            self._failures.failed(batch, exc)
            return
        match batch.stage:
            case Stage.READING_FIRST if batch.parts:
                self._handling.hand_over(batch)
            case Stage.HANDLING if batch.control_for:
                self._batches.give_back(batch, CONTROLLED)
            case Stage.HANDLING | Stage.HANDLED:
                alone = batch.suspect or batch.ended_alone or self._batches.isolation is not None
                if not alone and self._gathering.takes(batch):
                    self._begin_to_gather(batch, result)
                else:
                    self._writing.stage(batch, result)
            case Stage.ISOLATING:
                self._failures.try_to_stage(batch, result)
            case Stage.TRIAL_STAGING:
                self._failures.judge(batch, None)
            case Stage.STAGING:
                self._writing.staged(batch, result)
            case Stage.READING:
                self._batches.enter(batch, Stage.WRITING)
            case Stage.WRITING:
                self._writing.letters_written(batch, result)
            case Stage.PUBLISHING:
                self._writing.published(batch, result)
