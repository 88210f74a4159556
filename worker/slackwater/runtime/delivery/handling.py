"""Has the handler called for batches: after what must be known before, again later, and in time."""

from __future__ import annotations

from functools import partial

from slackwater.runtime.delivery.batch import DeliveryBatch, info_of
from slackwater.runtime.delivery.batches import Batches
from slackwater.runtime.delivery.bisection import ALWAYS
from slackwater.runtime.delivery.calls import transform
from slackwater.runtime.delivery.ended_processes import (
    ENDED_THE_PROCESS,
    begin_notes,
    ended_alone,
    rejected_whole,
)
from slackwater.runtime.delivery.stages import HANDLER_RUNS, SINK_STAGES, Stage
from slackwater.runtime.errors import HandlerError, HandlerTimeoutError, SinkError
from slackwater.runtime.fault_points import Step

GRACE_MS = 2000
"""What a hanging handler gets on top of its time limit, so that an engine that can stop it does so first."""


class Handling:
    """Calls the handler for ``batches``."""

    def __init__(self, batches: Batches) -> None:
        self._batches, self._context, self._config = batches, batches.context, batches.context.config
        self._clock = batches.context.clock

    def start(self, batch: DeliveryBatch) -> bool:
        """Calls the handler for a batch that was polled, or first reads dead letters of an earlier try back.
        False: it must wait."""
        letters = self._context.letters
        unread = [part.owned for part in batch.parts.values() if part.owned.may_have_letters(part.start)]
        if unread and batch is not self._batches.first:
            self._batches.enter(batch, Stage.WAITING)
            return False
        if not unread or letters is None:
            return self.hand_over(batch)
        self._batches.enter(batch, Stage.READING_FIRST, partial(letters.read_back, unread))
        return True

    def hand_over(self, batch: DeliveryBatch) -> bool:
        """Calls the handler. False where the broker has not stored yet that the batch is begun."""
        if not batch.attempt:
            for part in batch.parts.values():
                part.leave_out_stored_letters()
            batch.ended_alone = 0 if batch.control_for else ended_alone(batch.parts)
        if not batch.ended_alone and not self.note_begun(batch):
            if batch.parts and not batch.attempt and batch.stage is not Stage.WAITING:
                self._batches.enter(batch, Stage.WAITING)
            return False
        batch.attempt += 1
        if batch is self._batches.first:
            self._batches.isolation = None
        if batch.ended_alone:
            self._reject_alone(batch)
        else:
            self.call(batch, Stage.HANDLING, batch)
        return True

    def note_begun(self, batch: DeliveryBatch) -> bool:
        """Commits that the batch is begun, where that is needed, and that those which wait for the write are
        not any more; False where the broker has not stored it yet, or will not."""
        begun = [] if batch.noted else begin_notes(batch, self._batches.ends())
        if not begun:
            return True
        starts, instance = self._batches.starts(), self._context.instance
        offsets = {
            owned.tp: owned.begun_of(starts.get(owned.tp, owned.committed or 0), note, instance)
            for owned, note in begun
        }
        waiting = [other.parts for other in self._batches.all if other.output is not None]
        handled = [part.owned for parts in waiting for tp, part in parts.items() if tp not in batch.parts]
        offsets |= {owned.tp: offset for owned in handled if (offset := owned.not_begun_of())}
        if not self._batches.commit(batch, offsets):
            return False
        batch.noted = True
        for owned in handled:
            owned.begun = None
        for owned, note in begun:
            owned.begun = note
        self._context.reached(Step.BEGUN)
        return True

    def call(self, batch: DeliveryBatch, stage: Stage, records: DeliveryBatch) -> None:
        """Calls the handler for ``records``, which are those of ``batch`` or some of them."""
        engine, config = self._context.engine, self._config
        assert engine is not None, "records are taken after the warm-up only"
        info = info_of(records, self._batches.owned, config.group_id, self._context.instance)
        reached, by_record = self._context.reached, config.by_record
        call = partial(transform, records, info, engine, self._clock, reached, by_record=by_record)
        self._batches.enter(batch, stage, call, self._context.runner)

    def _reject_alone(self, batch: DeliveryBatch) -> None:
        """Makes a dead letter of the batch's one record, with which processes have ended."""
        reason = ENDED_THE_PROCESS.format(ends=batch.ended_alone)
        before = self._batches.rejected_before(batch) or 0
        if before >= ALWAYS:
            raise given_up(
                f"{batch}: {reason}. So did the {before} records before, and at most {ALWAYS} in a row are "
                "rejected: the handler or its environment is at fault"
            )
        if self._context.letters is None:
            raise without_letters("A record ends the worker's process", str(batch), reason)
        self._context.log.line(f"rejects {batch}: {reason}")
        for owned in self._batches.owned.values():
            owned.suspect = None  # the record is known with which processes have ended
        call = partial(rejected_whole, batch, reason, by_record=self._config.by_record)
        self._batches.enter(batch, Stage.HANDLING, call, self._context.runner)

    def check_time(self, batch: DeliveryBatch) -> None:
        """Raises HandlerTimeoutError or SinkError where the call for ``batch`` takes too long."""
        limit, since_ms = self._config.handler_timeout_ms, batch.since_ms
        last = self._batches.all[-1]
        if batch.stage in HANDLER_RUNS and batch is not last:
            # The handler is called for the last batch first: that was there when this one failed.
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
        if batch.stage in HANDLER_RUNS:
            raise HandlerTimeoutError(
                f"the handler {self._config.handler} did not return within handlerTimeoutMs ({limit}); "
                f"the batch ({batch}) is not committed"
            )
        if batch.stage is Stage.PUBLISHING or batch.stage in SINK_STAGES:
            does = "commit" if batch.stage is Stage.PUBLISHING else "take"
            raise SinkError(
                f"the sink did not {does} the batch ({batch}) within handlerTimeoutMs ({limit}): check that "
                "the table can be reached"
            )


def given_up(failure: str) -> HandlerError:
    """The error of a worker that cannot go on beyond a batch."""
    return HandlerError(
        f"{failure}; it is not committed. Correct the handler, or let it set _error on the records that "
        "it cannot take"
    )


def without_letters(failure: str, record: str, reason: str) -> HandlerError:
    """The same where a record is to be rejected."""
    return given_up(
        f"{failure}. The record at fault is {record} ({reason}), and "
        "no deadLetterTopic is configured; set one to reject such records"
    )
