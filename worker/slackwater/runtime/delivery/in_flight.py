"""The batches in flight, from the handler's call to the commit: one, and those that are handled beside it.

``advance`` takes the first as far as it goes without waiting: the handler (on the runner's thread), staging
(on the writer's, as all that the sink and the dead-letter topic do), dead letters read back, announced in a
fence and written, then fence, publish, commit. The fence is a commit that moves nothing: the broker takes it
only from the partition's owner. So a former owner writes neither dead letters nor rows. If it is suspended
after its fence, the table refuses its rows, because the marks have moved.

Once the handler has returned for it, the next batch may begin (:attr:`InFlight.takes`): the handler is called
while the first is written. Nothing else happens to the next before the first is committed, so what is written
is in order, and one batch at a time. Where parts of the first are given up, those of the next that follow
them are, too.

With ``sink.maxAge`` a batch that is handled is gathered: the next joins it, until it is large or old enough
to be written (:mod:`slackwater.runtime.delivery.gathering`). One may gather while another is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial

from slackwater.kafka.errors import KafkaError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.call_threads import Runner
from slackwater.runtime.delivery.batch import (
    DeliveryBatch,
    Handled,
    Part,
    Transformed,
    TransformError,
    describe,
    info_of,
    publish,
    stage,
    transform,
    try_to_stage,
)
from slackwater.runtime.delivery.bisection import ALWAYS, SelectionFault
from slackwater.runtime.delivery.commits import (
    HANDLED_EVERY_MS,
    CommitOutcome,
    DeliveryCommitter,
    PositionCommits,
)
from slackwater.runtime.delivery.dead_letters import DeadLetters, LateError, LetterRate
from slackwater.runtime.delivery.ended_processes import (
    ENDED_THE_PROCESS,
    begin_notes,
    ended_alone,
    rejected_whole,
)
from slackwater.runtime.delivery.gathering import Gathering
from slackwater.runtime.delivery.isolation import BatchSizeError, Isolation, IsolationError, fault_of
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.delivery.stages import HANDLER_DONE, HANDLER_RUNS, SINK_COMMITS, SINK_STAGES, Stage
from slackwater.runtime.delivery.stopped_partitions import too_many_letters
from slackwater.runtime.errors import (
    BatchTooLargeError,
    DeadLetterError,
    HandlerError,
    HandlerTimeoutError,
    RecordsError,
    SinkError,
    ended_by_batch,
    is_transient,
)
from slackwater.runtime.fault_points import Step
from slackwater.runtime.interfaces import SinkFencedError
from slackwater.runtime.telemetry.batch_trace import BatchTraces
from slackwater.runtime.worker_context import WorkerContext

GRACE_MS = 2000
"""What a hanging handler gets on top of its time limit, so that an engine that can stop it does so first."""


LETTERS_FENCE_MS = 1000
"""How long after the fence that announces them dead letters may still be sent. A worker that was stopped
in between may have a successor that has written them. It reads back what is stored, and asks the broker
again. The time doubles with each such try, for slow machines."""
LONGEST_BACKOFF_MS = 30_000
"""The longest wait before a batch is tried again, unless the first is longer."""
CONTROLLED = "it was handled to see whether the handler works; it is read again"
_MOST_LINES = 3
"""How many rejected records of a batch are named by a line of the log each."""
_TURN_MS = 5.0
"""How long one of two calls is waited for before it is asked whether the other has ended."""


class InFlight:
    """Holds at most two batches, three while one of them gathers. It calls its delivery through the functions
    it is given."""

    def __init__(
        self,
        context: WorkerContext,
        committer: DeliveryCommitter,
        position_commits: PositionCommits,
        *,
        assignment: Callable[[], Collection[TopicPartition]],
        seek_back: Callable[[Mapping[TopicPartition, int]], None],
        marks_moved: Callable[[Collection[TopicPartition]], None],
        stop: Callable[[Mapping[TopicPartition, str]], None],
        handled: Callable[[DeliveryBatch], None],
        written: Callable[[Collection[TopicPartition], float], None],
        ended: Callable[[DeliveryBatch | None], None],
        too_large: Callable[[int], None],
        found: Callable[[], None],
    ) -> None:
        """``assignment``: the partitions that the worker has. ``seek_back``: reads partitions again from
        offsets. ``marks_moved``: the marks of partitions must be read again. ``stop``: reads nothing more of
        partitions with too many dead letters, and says why. ``handled``: told each batch that is gathered.
        ``written``: told of which partitions the sink has rows, and since when (monotonic clock). ``ended``:
        told the batch that is committed, or None. ``too_large``: told of how many records a batch was that
        fails for its size. ``found``: told that the record is known with which processes have ended."""
        self._context, self._config, self._clock = context, context.config, context.clock
        self._reached = context.reached
        self._committer, self._position_commits = committer, position_commits
        self._assignment, self._stop = assignment, stop
        self._letter_rate = LetterRate(context.config.max_dead_letters_per_minute)
        self._seek_back, self._marks_moved = seek_back, marks_moved
        self._handled, self._written, self._ended = handled, written, ended
        self._too_large, self._found = too_large, found
        client = context.pod or context.instance
        self._traces = BatchTraces(lambda: context.tracing, context.clock, self._config.group_id, client)
        self._gathering = Gathering(self._config.sink.max_age_ms, self._config.sink.target_file_bytes)
        self.batch: DeliveryBatch | None = None
        self._following: list[DeliveryBatch] = []
        """Handled beside ``batch``, and written after it, in order. Empty without ``batch``."""
        self._isolation: Isolation | None = None
        """Of this batch, when it has failed as a whole."""
        self._rejected_in_a_row: int | None = None
        """How many records were rejected since the last that was handled; None: this process has committed no
        batch yet."""

    @property
    def next(self) -> DeliveryBatch | None:
        """The batch that is written after the first."""
        return self._following[0] if self._following else None

    @property
    def idle(self) -> bool:
        """Whether nothing is done: there is no batch, or one that waits for others."""
        return self.batch is None or (self.batch.stage is Stage.GATHERING and not self._following)

    @property
    def takes(self) -> bool:
        """Whether another batch may begin."""
        return self._handler_free and not self._refreshing

    @property
    def _refreshing(self) -> bool:
        return self._context.refresher is not None and self._context.refresher.running

    @property
    def _handler_free(self) -> bool:
        """Whether no batch needs the handler, as far as is known."""
        batch = self.batch
        if batch is None:
            return True
        last = self._following[-1] if self._following else batch
        if last.stage is Stage.GATHERING:
            room = bool(last.parts) and not self._gathering.full(last)
            return room and (last is batch or self._is_written(batch))
        return self._is_written(batch) and not self._following

    def _is_written(self, batch: DeliveryBatch) -> bool:
        """Whether the handler is done with the first batch."""
        handled = batch.stage in HANDLER_DONE and batch.attempt > 0 and self._isolation is None
        return handled and bool(batch.parts) and not batch.noted

    def waiting(self) -> dict[TopicPartition, tuple[int, int]]:
        """What waits to be written with others, from where to where. Nothing before it has waited for a
        while."""
        batch = self.batch
        if batch is None or batch.stage is not Stage.GATHERING:
            return {}
        if self._clock.mono_ms() - batch.began_ms < HANDLED_EVERY_MS:
            return {}
        return {tp: (part.start, part.end) for tp, part in batch.parts.items()}

    def write_at_once(self, urgent: bool) -> None:
        """Whether what is gathered is to be written without waiting for more."""
        self._gathering.urgent = urgent

    def gather_no_more(self) -> None:
        """Has what is gathered now written without waiting for more."""
        for batch in self._batches():
            if batch.output is not None:
                batch.output.closed = True

    def due_in_ms(self) -> float:
        """When what is gathered must be written; infinite where nothing waits for that."""
        if self.batch is None or self.batch.stage is not Stage.GATHERING:
            return math.inf
        return self._gathering.due_in_ms(self.batch, self._clock.mono_ms())

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
        if self.batch is None:
            self.batch = batch
            self._start(batch)
            return
        self._following.append(batch)
        if self._unread_letters(batch):
            self._enter(batch, Stage.WAITING)
        else:
            self._hand_over(batch)

    def _start(self, batch: DeliveryBatch) -> None:
        if self._context.letters is not None and (unread := self._unread_letters(batch)):
            self._enter(batch, Stage.READING_FIRST, partial(self._context.letters.read_back, unread))
        else:
            self._hand_over(batch)

    def _unread_letters(self, batch: DeliveryBatch) -> list[OwnedPartition]:
        """The partitions of which it is not known which records are dead letters already."""
        return [part.owned for part in batch.parts.values() if part.owned.may_have_letters(part.start)]

    def ends(self) -> dict[TopicPartition, int]:
        """Up to where the batches in flight reach."""
        return {tp: part.end for batch in self._batches() for tp, part in batch.parts.items()}

    def starts(self) -> dict[TopicPartition, int]:
        """Where what is in flight begins, by partition."""
        return {tp: part.start for batch in reversed(self._batches()) for tp, part in batch.parts.items()}

    def _batches(self) -> list[DeliveryBatch]:
        """In the order in which they are written."""
        return [self.batch, *self._following] if self.batch is not None else []

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether some of ``partitions`` are still to be committed."""
        return not self.starts().keys().isdisjoint(partitions)

    def wait(self, timeout_ms: float) -> bool:
        """Waits for what runs of the first batch, and for the handler where its output is to be gathered, or
        for a refresh; False where none runs, and a poll or the time must help."""
        batches = self._batches()
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

    def abandon(self, partitions: Collection[TopicPartition], why: str) -> None:
        """Gives up these partitions' parts: nothing of them is published or committed from now on."""
        batch = self.batch
        if batch is None:
            return
        again: dict[TopicPartition, int] = {}
        for holder in self._batches():
            if not self._config.by_record:
                again = self._inseparable(holder, {*partitions, *again}) | again
            if gone := holder.give_up({*partitions, *again}):
                if holder.output is not None:
                    holder.output.closed = True  # it has rows of these partitions, which may come back
                with holder.trace.current():
                    self._context.log.line(f"abandons {describe(gone)}: {why}")
                self._context.metrics.count("batches", ("abandoned",))
                holder.trace.given_up(gone, why, self._clock.mono_ms())
                if not holder.parts:
                    holder.trace.end(self._clock.mono_ms(), "abandoned")
        if not batch.parts and batch.task is None:
            self._end(batch, Stage.GIVEN_UP)
        if again:
            self._seek_back(again)

    @staticmethod
    def _inseparable(
        batch: DeliveryBatch, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The starts of the other parts of ``batch`` that must be given up with ``partitions``, where rows
        are of a whole batch: all, unless the sink commits them already."""
        if batch.stage in SINK_COMMITS or batch.parts.keys().isdisjoint(partitions):
            return {}
        return {
            tp: max(part.start, part.owned.mark or 0)
            for tp, part in batch.parts.items()
            if tp not in partitions
        }

    def advance(self) -> None:
        """Goes on as far as possible. Raises WorkerError where the worker must end."""
        for batch in self._following:
            self._look_at_next(batch)
        self._gather_following()
        while self.batch is not None and self._advance_traced(self.batch):
            pass

    def _look_at_next(self, batch: DeliveryBatch) -> None:
        """Notes when the handler has returned; what it returned is taken in when the first batch is
        committed."""
        if batch.stage is Stage.HANDLING and batch.task is not None:
            if batch.task.wait(0):
                batch.enter(Stage.HANDLED, self._clock.mono_ms())
            else:
                self._check_time(batch)

    def _advance_traced(self, batch: DeliveryBatch) -> bool:
        """As :meth:`_advance_once`, in the batch's trace."""
        with batch.trace.current():
            try:
                return self._advance_once(batch)
            except Exception as exc:
                batch.trace.end(self._clock.mono_ms(), "failed", error=exc)
                raise

    def _advance_once(self, batch: DeliveryBatch) -> bool:
        """One step; False where something must be waited for."""
        if batch.task is not None:
            if batch.task.wait(0):
                self._task_ended(batch)
                return True
            self._check_time(batch)
            return False
        if not batch.parts:
            self._end(batch, Stage.GIVEN_UP)
            return True
        if batch.stage is Stage.WAITING:
            self._start(batch)
            return batch.stage is not Stage.WAITING
        if batch.stage is Stage.GATHERING:
            return self._write_gathered(batch)
        if batch.stage is Stage.BACKING_OFF:
            return self._retry(batch)
        if batch.stage is Stage.WRITING:
            return self._write_letters(batch)
        if batch.stage is Stage.READY:
            return self._publish(batch)
        return self._commit_ends(batch)

    def _enter(
        self,
        batch: DeliveryBatch,
        stage: Stage,
        call: Callable[[], object] | None = None,
        runner: Runner | None = None,
    ) -> None:
        """``runner``: for the call; None: the writer."""
        batch.enter(stage, self._clock.mono_ms())
        if call:
            batch.task = (runner or self._context.writer).submit(batch.trace.inside(call))

    def _end(self, batch: DeliveryBatch, stage: Stage) -> None:
        """The first batch is COMMITTED or GIVEN_UP; the next one becomes the first."""
        self._enter(batch, stage)
        self.batch, self._isolation = self._following.pop(0) if self._following else None, None
        self._ended(batch if stage is Stage.COMMITTED else None)

    # ---- what is written together

    def _gather_following(self) -> None:
        """What was handled beside another batch joins the one before it, or begins to gather itself while
        the first is written."""
        before = self.batch
        for batch in list(self._following):
            assert before is not None
            if before.output is not None and batch.stage is Stage.WAITING:
                before.output.closed = True
            if batch.stage is Stage.HANDLED and self._gather(before, batch) and before.output is not None:
                self._following.remove(batch)
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
        self._handled(batch)
        return True

    def _begin_to_gather(self, batch: DeliveryBatch, transformed: Transformed) -> None:
        self._gathering.begin(batch, transformed)
        batch.noted, batch.task = False, None
        self._enter(batch, Stage.GATHERING)
        self._handled(batch)

    def _write_gathered(self, batch: DeliveryBatch) -> bool:
        """Writes what was gathered, if it is due. The process may end with that, too: of memory."""
        if self._gathering.due_in_ms(batch, self._clock.mono_ms()) > 0:
            return False
        if not self._gathering.urgent and not self._note_begun(batch):
            return False
        assert batch.output is not None
        transformed, batch.output = batch.output.transformed(), None
        self._stage(batch, transformed)
        return True

    def _read_alone(self, batch: DeliveryBatch, failure: str) -> None:
        """Reads again what was gathered, and writes each of its batches alone."""
        self._gathering.write_alone(batch)
        self._read_again(batch, f"{failure}; reading its records again, to find those at fault")

    def _read_again(self, batch: DeliveryBatch, why: str) -> None:
        self._context.log.line(why)
        if batch.stage is Stage.PUBLISHING:
            batch.staged = None
        self._give_back(batch, "its records are read again")

    # ---- the handler

    def _hand_over(self, batch: DeliveryBatch) -> None:
        if not batch.attempt:
            for part in batch.parts.values():
                part.leave_out_stored_letters()
            batch.ended_alone = 0 if batch.control_for else ended_alone(batch.parts)
        if not batch.ended_alone and not self._note_begun(batch):
            if batch.parts and batch.stage is not Stage.WAITING:
                self._enter(batch, Stage.WAITING)
            return
        batch.attempt += 1
        if batch is self.batch:
            self._isolation = None
        if batch.ended_alone:
            self._reject_alone(batch)
        else:
            self._transform(batch, Stage.HANDLING, batch)

    def _note_begun(self, batch: DeliveryBatch) -> bool:
        """Commits that the batch is begun, where that is needed, and that those which wait for the write are
        not any more; False where the broker has not taken it yet, or will not."""
        begun = [] if batch.noted else begin_notes(batch, self.ends())
        if not begun:
            return True
        starts = self.starts()
        offsets = {}
        for owned, note in begun:
            start = starts.get(owned.tp, owned.committed or 0)
            offsets[owned.tp] = owned.begun_of(start, note, self._context.instance)
        waiting = [other for other in self._batches() if other.output is not None]
        handled = [
            part.owned for other in waiting for tp, part in other.parts.items() if tp not in batch.parts
        ]
        offsets |= {owned.tp: offset for owned in handled if (offset := owned.not_begun_of())}
        if not self._commit(batch, offsets):
            return False
        batch.noted = True
        for owned in handled:
            owned.begun = None
        for owned, note in begun:
            owned.begun = note
        self._reached(Step.BEGUN)
        return True

    def _transform(self, batch: DeliveryBatch, stage: Stage, records: DeliveryBatch) -> None:
        """Calls the handler for ``records``, which are those of ``batch`` or some of them."""
        engine = self._context.engine
        assert engine is not None, "records are taken after the warm-up only"
        info = info_of(records, self._assignment(), self._config.group_id, self._context.instance)
        by_record = self._config.by_record
        call = partial(transform, records, info, engine, self._clock, self._reached, by_record=by_record)
        self._enter(batch, stage, call, self._context.runner)

    def _stage(self, batch: DeliveryBatch, transformed: Transformed) -> None:
        """What the handler has returned goes to the sink."""
        if not batch.parts:
            return
        sink, isolation = self._context.sink, self._isolation
        assert sink is not None
        batch.ms.update(transformed.ms)
        batch.bytes = transformed.bytes
        if isolation is not None:
            self._enter(batch, Stage.STAGING, partial(isolation.stage_rest, transformed, sink, self._reached))
        elif batch.gathered:
            gathered = partial(self._gathering.stage, batch, transformed, sink, self._reached)
            self._enter(batch, Stage.STAGING, gathered)
        else:
            self._enter(batch, Stage.STAGING, partial(stage, batch, transformed, sink, self._reached))

    def _retry(self, batch: DeliveryBatch) -> bool:
        if self._clock.mono_ms() < batch.retry_at_ms:
            return False
        self._hand_over(batch)
        return True

    def _check_time(self, batch: DeliveryBatch) -> None:
        limit, since_ms = self._config.handler_timeout_ms, batch.since_ms
        if batch is self.batch and self._following and batch.stage in HANDLER_RUNS:
            # The handler is called for the last batch first: that was there when this one failed.
            last = self._following[-1]
            if last.stage is Stage.HANDLING:
                return
            since_ms = max(since_ms, last.since_ms)
        refresher = self._context.refresher
        if refresher is not None and batch.stage in HANDLER_RUNS:
            # A refresh may have begun before the sink refused records that are now looked for.
            if refresher.running:
                return
            since_ms = max(since_ms, refresher.ended_ms)
        if self._clock.mono_ms() - since_ms <= limit + GRACE_MS:
            return
        if batch.stage is Stage.PUBLISHING:
            raise SinkError(
                f"the sink did not commit the batch ({batch}) within handlerTimeoutMs ({limit}): check that "
                "the table can be reached"
            )
        if batch.stage in SINK_STAGES:
            raise SinkError(
                f"the sink did not take the batch ({batch}) within handlerTimeoutMs ({limit}): check that "
                "the table can be reached"
            )
        if batch.stage in HANDLER_RUNS:
            raise HandlerTimeoutError(
                f"the handler {self._config.handler} did not return within handlerTimeoutMs ({limit}); "
                f"the batch ({batch}) is not committed"
            )

    def _task_ended(self, batch: DeliveryBatch) -> None:
        task, batch.task = batch.task, None
        assert task is not None
        try:
            result = task.result()
        except Exception as exc:
            batch.trace.failed(exc)
            if batch.control_for and batch.stage is Stage.HANDLING and not ended_by_batch(exc):
                self._give_back(batch, CONTROLLED)
                return
            is_trial = batch.stage in (Stage.ISOLATING, Stage.TRIAL_STAGING)
            if is_trial and not _can_shrink(batch, exc) and (fault := fault_of(exc)) is not None:
                self._judge(batch, fault)
                return
            self._task_failed(batch, exc)
            return
        if batch.control_for and batch.stage is Stage.HANDLING:
            self._give_back(batch, CONTROLLED)
        elif batch.stage in (Stage.HANDLING, Stage.HANDLED):
            alone = batch.suspect or batch.ended_alone or self._isolation is not None
            if not alone and self._gathering.takes(batch):
                self._begin_to_gather(batch, result)
            else:
                self._stage(batch, result)
        elif batch.stage is Stage.STAGING:
            self._take_in(batch, result)
        elif batch.stage is Stage.READING_FIRST:
            self._hand_over(batch)
        elif batch.stage is Stage.READING:
            self._enter(batch, Stage.WRITING)
        elif batch.stage is Stage.ISOLATING:
            self._try_to_stage(batch, result)
        elif batch.stage is Stage.TRIAL_STAGING:
            self._judge(batch, None)
        elif batch.stage is Stage.PUBLISHING:
            self._published(batch, result)
        else:
            self._letter_rate.written(result, self._clock.mono_ms())
            self._reached(Step.LETTERS_WRITTEN)
            self._enter(batch, Stage.READY)

    def _task_failed(self, batch: DeliveryBatch, error: Exception) -> None:
        """Goes on after ``error``. Raises where the worker must end."""
        try:
            raise error
        except TransformError as exc:
            self._handler_raised(batch, exc)
        except RecordsError as exc:
            failure = f"{exc} (handler {self._config.handler}, batch {batch})"
            if _can_shrink(batch, exc):
                self._shrink(batch, failure)
            else:
                self._isolate(batch, exc, failure)
        except HandlerError as exc:
            raise HandlerError(f"{exc} (handler {self._config.handler}, batch {batch})") from exc
        except SinkFencedError as exc:
            batch.staged = None
            self._marks_moved(batch.parts)
            self._give_back(batch, str(exc))
        except LateError:
            batch.late_letters += 1
            self._read_letters_back(batch)
        except KafkaError as exc:
            topic = self._config.dead_letter_topic
            raise DeadLetterError(f"dead letters of {batch} cannot be stored in {topic}: {exc}") from exc

    def _handler_raised(self, batch: DeliveryBatch, error: TransformError) -> None:
        self._context.metrics.count("handler_failures")
        batch.failures += 1
        if not batch.parts:
            return
        if is_transient(error):
            self._wait_for_others(batch, error)
            return
        if batch.attempt - batch.transient_failures > self._config.retries:
            tries = "once" if batch.attempt == 1 else f"{batch.attempt} times"
            failure = f"the handler {self._config.handler} failed {tries} on the batch {batch}: {error}"
            self._isolate(batch, error, failure)
            return
        self._back_off(batch, error, batch.attempt - batch.transient_failures)

    def _wait_for_others(self, batch: DeliveryBatch, error: TransformError) -> None:
        """Has the handler called again with the whole batch, unless what it needs is away for too long. That
        is no fault of records, so the search for some that are at fault ends."""
        now, limit = self._clock.mono_ms(), self._config.transient_error_timeout_ms
        batch.transient_failures += 1
        if batch.transient_failures == 1:
            batch.transient_since_ms = now
        if now - batch.transient_since_ms >= limit:
            raise HandlerError(
                f"the handler {self._config.handler} cannot handle the batch {batch} because something that "
                f"it needs is away, for {limit} ms (transientErrorTimeoutMs): {error}; it is not committed. "
                "Make sure that the workers can reach it"
            ) from error
        self._back_off(batch, error, batch.transient_failures)

    def _back_off(self, batch: DeliveryBatch, error: TransformError, failures: int) -> None:
        """Has the handler called again later: after ``failures``, each twice as long as after the one before,
        up to :data:`LONGEST_BACKOFF_MS`."""
        first = self._config.retry_backoff_ms
        wait = min(first * 2 ** min(failures - 1, 100), max(first, LONGEST_BACKOFF_MS))
        self._context.log.line(f"the handler failed on {batch}; retrying in {wait} ms: {error}")
        batch.retry_at_ms = self._clock.mono_ms() + wait
        self._enter(batch, Stage.BACKING_OFF)

    # ---- batches that are too large

    def _shrink(self, batch: DeliveryBatch, failure: str) -> None:
        """Reads the batch's records again, in smaller batches."""
        if not batch.parts:
            return
        if batch.gathered > 1:
            self._read_alone(batch, failure)
            return
        self._too_large(batch.records)
        self._read_again(batch, f"{failure}; reading its records again, in smaller batches")

    # ---- the records at fault

    def _isolate(self, batch: DeliveryBatch, error: Exception, failure: str) -> None:
        """Looks for the records that the batch fails with. Raises HandlerError where ``error`` is not theirs,
        or they have been looked for already."""
        if not batch.parts:
            return
        batch.failures += 1
        if batch.gathered:
            self._read_alone(batch, failure)
            return
        fault = fault_of(error)
        if fault is None or self._isolation is not None:
            raise self._given_up(failure) from error
        self._isolation = Isolation(batch, fault, failure)
        self._context.log.line(f"{failure}; searching for the records at fault")
        self._try_next(batch, self._isolation)

    def _try_next(self, batch: DeliveryBatch, isolation: Isolation) -> None:
        stage = Stage.HANDLING if isolation.done else Stage.ISOLATING
        self._transform(batch, stage, isolation.batch)

    def _try_to_stage(self, batch: DeliveryBatch, transformed: Transformed) -> None:
        """The handler has accepted the records of a trial; the sink has not yet."""
        sink, isolation = self._context.sink, self._isolation
        assert sink is not None
        assert isolation is not None
        if batch.parts:
            trial = partial(try_to_stage, isolation.batch, transformed, sink, self._reached)
            self._enter(batch, Stage.TRIAL_STAGING, trial)

    def _judge(self, batch: DeliveryBatch, fault: SelectionFault | None) -> None:
        """Takes in the end of a trial."""
        isolation = self._isolation
        assert isolation is not None
        if not batch.parts:
            return
        try:
            isolation.judge(fault, self._rejected_before(batch))
        except BatchSizeError as exc:
            self._shrink(batch, f"{isolation.failure}. {exc}")
            return
        except IsolationError as exc:
            raise self._given_up(f"{isolation.failure}. {exc}") from exc
        if isolation.done:
            self._reject(batch, isolation)
        self._try_next(batch, isolation)

    def _rejected_before(self, batch: DeliveryBatch) -> int | None:
        """How many records were rejected in a row before this batch: by this process or, where it has
        committed no batch yet, by those that have committed the partitions before; None: nobody has."""
        if self._rejected_in_a_row is not None:
            return self._rejected_in_a_row
        notes = [note for part in batch.parts.values() if (note := part.owned.note) is not None]
        return max((note.rejected for note in notes if note.rejected is not None), default=None)

    def _reject(self, batch: DeliveryBatch, isolation: Isolation) -> None:
        rejected = [
            (f"{tp} offset {offset}", reason)
            for tp, records in isolation.rejected.items()
            for offset, reason in records
        ]
        self._check_letters(rejected, isolation.failure)
        for record, reason in rejected[:_MOST_LINES]:
            self._context.log.line(f"rejects {record}: {reason}")
        if len(rejected) > _MOST_LINES:
            self._context.log.line(f"rejects {len(rejected) - _MOST_LINES} more records of the batch {batch}")

    def _check_letters(self, rejected: list[tuple[str, str]], failure: str) -> None:
        """Raises HandlerError where records are ``rejected`` (where, why) and there are no dead letters."""
        if rejected and self._context.letters is None:
            record, reason = rejected[0]
            raise self._given_up(
                f"{failure}. The record at fault is {record} ({reason}), and "
                "no deadLetterTopic is configured; set one to reject such records"
            )

    def _reject_alone(self, batch: DeliveryBatch) -> None:
        """Makes a dead letter of the batch's one record, with which processes have ended."""
        reason = ENDED_THE_PROCESS.format(ends=batch.ended_alone)
        before = self._rejected_before(batch) or 0
        record = str(batch)
        if before >= ALWAYS:
            raise self._given_up(
                f"{record}: {reason}. So did the {before} records before, and at most {ALWAYS} in a row are "
                "rejected: the handler or its environment is at fault"
            )
        self._check_letters([(record, reason)], "A record ends the worker's process")
        self._context.log.line(f"rejects {record}: {reason}")
        self._found()
        call = partial(rejected_whole, batch, reason, by_record=self._config.by_record)
        self._enter(batch, Stage.HANDLING, call, self._context.runner)

    def _given_up(self, failure: str) -> HandlerError:
        return HandlerError(
            f"{failure}; it is not committed. Correct the handler, or let it set _error on the records that "
            "it cannot take"
        )

    def _take_in(self, batch: DeliveryBatch, handled: Handled) -> None:
        """Takes in the handler's results, without those of partitions that were given up meanwhile."""
        batch.staged = handled.staged
        if handled.staged is not None and (gone := handled.rows.keys() - batch.parts.keys()):
            if batch.parts:
                handled.staged.drop(gone)
            else:
                handled.staged.discard()
        for tp, part in batch.parts.items():
            part.rows_out, part.letters = handled.rows[tp], handled.letters.get(tp, [])
            rejected = self._isolation.rejected if self._isolation is not None else {}
            part.rejected = len(part.letters if batch.ended_alone else rejected.get(tp, ()))
        self._read_letters_back(batch)

    # ---- dead letters

    def _read_letters_back(self, batch: DeliveryBatch) -> None:
        """Reads back which of the batch's letters are stored, unless that is known."""
        lettered = [part.owned for part in batch.parts.values() if part.letters]
        if lettered:
            self._enter(batch, Stage.READING, partial(self._letters(batch).read_back, lettered))
        else:
            self._enter(batch, Stage.READY)

    def _letters(self, batch: DeliveryBatch) -> DeadLetters:
        if self._context.letters is not None:
            return self._context.letters
        part = next(part for part in batch.parts.values() if part.letters)
        first = part.letters[0]
        raise HandlerError(
            f"the handler rejects {part.owned.tp} offset {first.offset} ({first.error}), "
            "and no deadLetterTopic is configured; set one to send it to"
        )

    def _write_letters(self, batch: DeliveryBatch) -> bool:
        """Announces the letters in a fence, then writes them, if that begins soon enough."""
        self._reached(Step.LETTERS_READ)
        lettered = {tp: part for tp, part in batch.parts.items() if part.letters}
        until_ms = self._clock.mono_ms() + LETTERS_FENCE_MS * 2**batch.late_letters
        if (new := sum(map(_new_letters, lettered.values()))) and not self._letter_rate.allows(
            new, self._clock.mono_ms()
        ):
            self._stop_partitions(batch, lettered, new)
            return True
        announced = {
            tp: part.owned.letters_fence_of(part.start, part.end, self._context.instance)
            for tp, part in lettered.items()
        }
        if announced and not self._commit(batch, announced):
            return False
        self._reached(Step.LETTERS_ANNOUNCED)
        letters = [(part.owned, part.letters) for part in lettered.values()]
        if letters:
            write = partial(self._letters(batch).write, letters, until_ms)
            self._enter(batch, Stage.WRITING, write)
        else:
            self._enter(batch, Stage.READY)
        return True

    def _stop_partitions(
        self, batch: DeliveryBatch, lettered: Mapping[TopicPartition, Part], new: int
    ) -> None:
        """Reads no more of partitions whose dead letters would be too many; nothing of them is written."""
        why = {
            tp: too_many_letters(tp, part.start, new, self._letter_rate.most, part.letters[0])
            for tp, part in lettered.items()
            if _new_letters(part)
        }
        starts = {tp: max(lettered[tp].start, lettered[tp].owned.mark or 0) for tp in why}
        self.abandon(list(why), "their dead letters are too many")
        self._seek_back(starts)
        self._stop(why)

    # ---- the end

    def _rejected_with(self, batch: DeliveryBatch) -> int:
        """How many records will have been rejected since the last that was handled, with this batch."""
        searched = self._isolation is not None and self._isolation.all_rejected
        if not searched and not batch.ended_alone:
            return 0
        rejected = sum(part.rejected for part in batch.parts.values())
        return (self._rejected_before(batch) or 0) + rejected

    def _commit(self, batch: DeliveryBatch, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Whether the broker has taken ``offsets``. Where it refuses for good, the batch is given back."""
        outcome = self._committer.commit(offsets)
        if outcome is CommitOutcome.DONE:
            self._position_commits.stored(offsets)
            return True
        if outcome is CommitOutcome.GONE:
            batch.trace.failed("the group has moved on without this member")
            self._give_back(batch, "the group has moved on without this member")
        return False

    def _give_back(self, batch: DeliveryBatch, why: str) -> None:
        """Gives up the batch, to be read again where this member still owns its partitions: the next poll
        tells."""
        first = self.starts()  # of the batch before, too: what precedes a part is given up with it
        starts = {tp: max(first[tp], part.owned.mark or 0) for tp, part in batch.parts.items()}
        self.abandon(list(starts), why)
        if starts:
            self._seek_back(starts)

    def _publish(self, batch: DeliveryBatch) -> bool:
        self._reached(Step.READY)
        fences = {
            tp: part.owned.fence_of(part.start, part.end, self._context.instance)
            for tp, part in batch.parts.items()
        }
        if not self._commit(batch, fences):
            return False
        self._reached(Step.FENCED)
        self._enter(batch, Stage.PUBLISHING, partial(publish, batch, self._clock))
        return True

    def _published(self, batch: DeliveryBatch, at_ms: float) -> None:
        batch.staged = None
        for part in batch.parts.values():
            part.owned.written_to(part.end, at_ms)
        self._written(batch.parts, at_ms)
        self._reached(Step.PUBLISHED)
        self._enter(batch, Stage.PUBLISHED)

    def _commit_ends(self, batch: DeliveryBatch) -> bool:
        rejected_in_a_row = self._rejected_with(batch)
        ends = {
            tp: self._position_commits.served(part.owned, part.end, rejected_in_a_row)
            for tp, part in batch.parts.items()
        }
        offsets = {**self._position_commits.due(self.ends()), **ends}
        self._reached(Step.COMMITTING)
        if self._commit(batch, offsets):
            self._rejected_in_a_row = rejected_in_a_row
            for part in batch.parts.values():
                part.owned.passed, part.owned.begun = True, None
            self._reached(Step.COMMITTED)
            self._end_trace(batch)
            self._end(batch, Stage.COMMITTED)
            return True
        return False

    def _end_trace(self, batch: DeliveryBatch) -> None:
        parts = batch.parts.values()
        counts = {
            "records": batch.records,
            "rows": sum(part.rows_out for part in parts),
            "dead_letters": sum(part.dead for part in parts),
        }
        if batch.gathered > 1:
            counts["gathered"] = batch.gathered
        batch.trace.end(self._clock.mono_ms(), "committed", counts=counts)


def _can_shrink(batch: DeliveryBatch, error: Exception) -> bool:
    """Whether the batch has failed for its size, and a smaller one may not."""
    return isinstance(error, BatchTooLargeError) and batch.records > 1


def _new_letters(part: Part) -> int:
    """How many of its dead letters, which were read back, are not stored yet."""
    stored = part.owned.letters or ()
    return sum(letter.offset not in stored for letter in part.letters)
