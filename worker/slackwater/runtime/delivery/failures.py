"""What follows when the handler or the sink fails on a batch: another try, smaller batches, or a search for
the records at fault."""

from __future__ import annotations

from functools import partial

from slackwater.kafka.errors import KafkaError
from slackwater.runtime.delivery.batch import DeliveryBatch, Transformed, TransformError
from slackwater.runtime.delivery.batches import Batches
from slackwater.runtime.delivery.bisection import SelectionFault
from slackwater.runtime.delivery.calls import try_to_stage
from slackwater.runtime.delivery.gathering import Gathering
from slackwater.runtime.delivery.handling import Handling, given_up, without_letters
from slackwater.runtime.delivery.isolation import BatchSizeError, Isolation, IsolationError, fault_of
from slackwater.runtime.delivery.stages import Stage
from slackwater.runtime.errors import (
    BatchTooLargeError,
    DeadLetterError,
    HandlerError,
    RecordsError,
    ended_by_batch,
    is_transient,
)
from slackwater.runtime.interfaces import SinkFencedError

LONGEST_BACKOFF_MS = 30_000
"""The longest wait before a batch is tried again, unless the first is longer."""
CONTROLLED = "it was handled to see whether the handler works; it is read again"
_MOST_LINES = 3
"""How many rejected records of a batch are named by a line of the log each."""


class Failures:
    """Decides what is done with a batch of ``batches`` that has failed."""

    def __init__(self, batches: Batches, handling: Handling, gathering: Gathering) -> None:
        self._batches, self._handling, self._gathering = batches, handling, gathering
        self._context, self._config = batches.context, batches.context.config

    def failed(self, batch: DeliveryBatch, error: Exception) -> None:
        """Goes on after ``error`` of a call. Raises where the worker must end."""
        batch.trace.failed(error)
        if batch.control_for and batch.stage is Stage.HANDLING and not ended_by_batch(error):
            self._batches.give_back(batch, CONTROLLED)
            return
        is_trial = batch.stage in (Stage.ISOLATING, Stage.TRIAL_STAGING)
        if is_trial and not _can_shrink(batch, error) and (fault := fault_of(error)) is not None:
            self.judge(batch, fault)
            return
        where = f"(handler {self._config.handler}, batch {batch})"
        if isinstance(error, TransformError):
            self._handler_raised(batch, error)
        elif isinstance(error, RecordsError):
            if _can_shrink(batch, error):
                self._shrink(batch, f"{error} {where}")
            else:
                self._isolate(batch, error, f"{error} {where}")
        elif isinstance(error, HandlerError):
            raise HandlerError(f"{error} {where}") from error
        elif isinstance(error, SinkFencedError):
            batch.staged = None
            self._batches.effects.marks_moved(batch.parts)
            self._batches.give_back(batch, str(error))
        elif isinstance(error, KafkaError):
            topic = self._config.dead_letter_topic
            raise DeadLetterError(f"dead letters of {batch} cannot be stored in {topic}: {error}") from error
        else:
            raise error

    # ---- another try

    def _handler_raised(self, batch: DeliveryBatch, error: TransformError) -> None:
        self._context.metrics.count("handler_failures")
        batch.failures += 1
        if not batch.parts:
            return
        if is_transient(error):
            self._wait_for_others(batch, error)
            return
        tries = batch.attempt - batch.transient_failures
        if tries <= self._config.retries:
            self._back_off(batch, error, tries)
            return
        times = "once" if batch.attempt == 1 else f"{batch.attempt} times"
        failure = f"the handler {self._config.handler} failed {times} on the batch {batch}: {error}"
        self._isolate(batch, error, failure)

    def _wait_for_others(self, batch: DeliveryBatch, error: TransformError) -> None:
        """Has the handler called again with the whole batch, unless what it needs is away for too long. That
        is no fault of records, so the search for some that are at fault ends."""
        now, limit = self._context.clock.mono_ms(), self._config.transient_error_timeout_ms
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
        batch.retry_at_ms = self._context.clock.mono_ms() + wait
        self._batches.enter(batch, Stage.BACKING_OFF)

    # ---- smaller batches

    def _shrink(self, batch: DeliveryBatch, failure: str) -> None:
        """Reads the batch's records again, in smaller batches."""
        if batch.gathered > 1:
            self._read_alone(batch, failure)
        elif batch.parts:
            self._batches.effects.too_large(batch.records)
            self._read_again(batch, f"{failure}; reading its records again, in smaller batches")

    def _read_alone(self, batch: DeliveryBatch, failure: str) -> None:
        """Reads again what was gathered, and writes each of its batches alone."""
        if batch.parts:
            self._gathering.write_alone(batch)
            self._read_again(batch, f"{failure}; reading its records again, to find those at fault")

    def _read_again(self, batch: DeliveryBatch, why: str) -> None:
        self._context.log.line(why)
        if batch.stage is Stage.PUBLISHING:
            batch.staged = None
        self._batches.give_back(batch, "its records are read again")

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
        if fault is None or self._batches.isolation is not None:
            raise given_up(failure) from error
        self._batches.isolation = isolation = Isolation(batch, fault, failure)
        self._context.log.line(f"{failure}; searching for the records at fault")
        self._handling.call(batch, Stage.ISOLATING, isolation.batch)

    def try_to_stage(self, batch: DeliveryBatch, transformed: Transformed) -> None:
        """The handler has accepted the records of a trial; the sink has not yet."""
        sink, isolation = self._context.sink, self._batches.isolation
        assert sink is not None
        assert isolation is not None
        if batch.parts:
            trial = partial(try_to_stage, isolation.batch, transformed, sink, self._context.reached)
            self._batches.enter(batch, Stage.TRIAL_STAGING, trial)

    def judge(self, batch: DeliveryBatch, fault: SelectionFault | None) -> None:
        """Takes in the end of a trial; None: it has passed."""
        isolation = self._batches.isolation
        assert isolation is not None
        if not batch.parts:
            return
        try:
            isolation.judge(fault, self._batches.rejected_before(batch))
        except BatchSizeError as exc:
            self._shrink(batch, f"{isolation.failure}. {exc}")
            return
        except IsolationError as exc:
            raise given_up(f"{isolation.failure}. {exc}") from exc
        if isolation.done:
            self._reject(batch, isolation)
        stage = Stage.HANDLING if isolation.done else Stage.ISOLATING
        self._handling.call(batch, stage, isolation.batch)

    def _reject(self, batch: DeliveryBatch, isolation: Isolation) -> None:
        rejected = [
            (f"{tp} offset {offset}", reason)
            for tp, records in isolation.rejected.items()
            for offset, reason in records
        ]
        if rejected and self._context.letters is None:
            raise without_letters(isolation.failure, *rejected[0])
        for record, reason in rejected[:_MOST_LINES]:
            self._context.log.line(f"rejects {record}: {reason}")
        if len(rejected) > _MOST_LINES:
            self._context.log.line(f"rejects {len(rejected) - _MOST_LINES} more records of the batch {batch}")


def _can_shrink(batch: DeliveryBatch, error: Exception) -> bool:
    """Whether the batch has failed for its size, and a smaller one may not."""
    return isinstance(error, BatchTooLargeError) and batch.records > 1
