"""Writes what the handler has returned: stages it, stores its dead letters, fences, publishes and commits.

The fence is a commit that moves nothing: the broker takes it only from the partition's owner. So a former
owner writes neither dead letters nor rows. If it is suspended after its fence, the table refuses its rows,
because the marks have moved.

The commit of a batch's end cannot be the fence of the next: the next is staged in between, for as long as
the sink takes, and a member that has lost the partition meanwhile would write. Nor can the commit wait and be
one with that fence: where the table has no marks, a crash in that time would have all rows of the batch
written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.batch import DeliveryBatch, Handled, Part, Transformed
from slackwater.runtime.delivery.batches import Batches
from slackwater.runtime.delivery.calls import publish, stage
from slackwater.runtime.delivery.dead_letters import DeadLetters, LetterRate
from slackwater.runtime.delivery.gathering import Gathering
from slackwater.runtime.delivery.stages import Stage
from slackwater.runtime.delivery.stopped_partitions import too_many_letters
from slackwater.runtime.errors import HandlerError
from slackwater.runtime.fault_points import Step

LETTERS_FENCE_MS = 1000
"""How long after the fence that announces them dead letters may still be sent. A worker that was stopped
in between may have a successor that has written them. It reads back what is stored, and asks the broker
again. The time doubles with each such try, for slow machines."""


class Writing:
    """Writes those of ``batches`` that were handled, one after another."""

    def __init__(self, batches: Batches, gathering: Gathering) -> None:
        self._batches, self._gathering = batches, gathering
        self._context, self._clock = batches.context, batches.context.clock
        self._reached = batches.context.reached
        self._letter_rate = LetterRate(batches.context.config.max_dead_letters_per_minute)

    # ---- rows

    def stage(self, batch: DeliveryBatch, transformed: Transformed) -> None:
        """What the handler has returned goes to the sink."""
        if not batch.parts:
            return
        sink, isolation = self._context.sink, self._batches.isolation
        assert sink is not None
        batch.ms.update(transformed.ms)
        batch.bytes = transformed.bytes
        if isolation is not None:
            call = partial(isolation.stage_rest, transformed, sink, self._reached)
        else:
            stages = self._gathering.stage if batch.gathered else stage
            call = partial(stages, batch, transformed, sink, self._reached)
        self._batches.enter(batch, Stage.STAGING, call)

    def staged(self, batch: DeliveryBatch, handled: Handled) -> None:
        """Takes in what is staged, without that of partitions which were given up meanwhile."""
        batch.staged = handled.staged
        if handled.staged is not None and (gone := handled.rows.keys() - batch.parts.keys()):
            if batch.parts:
                handled.staged.drop(gone)
            else:
                handled.staged.discard()
        isolation = self._batches.isolation
        for tp, part in batch.parts.items():
            part.rows_out, part.letters = handled.rows[tp], handled.letters.get(tp, [])
            rejected = isolation.rejected if isolation is not None else {}
            part.rejected = len(part.letters if batch.ended_alone else rejected.get(tp, ()))
        self.read_letters_back(batch)

    # ---- dead letters

    def read_letters_back(self, batch: DeliveryBatch) -> None:
        """Reads back which of the batch's letters are stored, unless that is known."""
        lettered = [part.owned for part in batch.parts.values() if part.letters]
        if lettered:
            self._batches.enter(batch, Stage.READING, partial(self._letters(batch).read_back, lettered))
        else:
            self._batches.enter(batch, Stage.READY)

    def _letters(self, batch: DeliveryBatch) -> DeadLetters:
        if self._context.letters is not None:
            return self._context.letters
        part = next(part for part in batch.parts.values() if part.letters)
        first = part.letters[0]
        raise HandlerError(
            f"the handler rejects {part.owned.tp} offset {first.offset} ({first.error}), "
            "and no deadLetterTopic is configured; set one to send it to"
        )

    def write_letters(self, batch: DeliveryBatch) -> bool:
        """Announces the letters in a fence, then writes them, if that begins soon enough. False: the fence is
        not stored."""
        self._reached(Step.LETTERS_READ)
        lettered = {tp: part for tp, part in batch.parts.items() if part.letters}
        now = self._clock.mono_ms()
        until_ms = now + LETTERS_FENCE_MS * 2**batch.late_letters
        if (new := sum(map(_new_letters, lettered.values()))) and not self._letter_rate.allows(new, now):
            self._stop_partitions(lettered, new)
            return True
        announced = {
            tp: part.owned.letters_fence_of(part.start, part.end, self._context.instance)
            for tp, part in lettered.items()
        }
        if announced and not self._batches.commit(batch, announced):
            return False
        self._reached(Step.LETTERS_ANNOUNCED)
        if letters := [(part.owned, part.letters) for part in lettered.values()]:
            write = partial(self._letters(batch).write, letters, until_ms)
            self._batches.enter(batch, Stage.WRITING, write)
        else:
            self._batches.enter(batch, Stage.READY)
        return True

    def letters_written(self, batch: DeliveryBatch, count: int) -> None:
        """``count`` letters are new in their topic."""
        self._letter_rate.written(count, self._clock.mono_ms())
        self._reached(Step.LETTERS_WRITTEN)
        self._batches.enter(batch, Stage.READY)

    def letters_late(self, batch: DeliveryBatch) -> None:
        """It is too late after the fence to send the letters."""
        batch.late_letters += 1
        self.read_letters_back(batch)

    def _stop_partitions(self, lettered: Mapping[TopicPartition, Part], new: int) -> None:
        """Reads no more of partitions whose dead letters would be too many; nothing of them is written."""
        why = {
            tp: too_many_letters(tp, part.start, new, self._letter_rate.most, part.letters[0])
            for tp, part in lettered.items()
            if _new_letters(part)
        }
        starts = {tp: max(lettered[tp].start, lettered[tp].owned.mark or 0) for tp in why}
        self._batches.abandon(list(why), "their dead letters are too many")
        self._batches.effects.seek_back(starts)
        self._batches.effects.stop_rejected(why)

    # ---- the end

    def publish(self, batch: DeliveryBatch) -> bool:
        """Has the table write the batch, after a fence. False: that is not stored."""
        self._reached(Step.READY)
        fences = {
            tp: part.owned.fence_of(part.start, part.end, self._context.instance)
            for tp, part in batch.parts.items()
        }
        if not self._batches.commit(batch, fences):
            return False
        self._reached(Step.FENCED)
        self._batches.enter(batch, Stage.PUBLISHING, partial(publish, batch, self._clock))
        return True

    def published(self, batch: DeliveryBatch, at_ms: float) -> None:
        """The table has the rows since ``at_ms`` (monotonic clock)."""
        batch.staged = None
        for part in batch.parts.values():
            part.owned.written_to(part.end, at_ms)
        self._batches.effects.rows_written(batch.parts, at_ms)
        self._reached(Step.PUBLISHED)
        self._batches.enter(batch, Stage.PUBLISHED)

    def commit(self, batch: DeliveryBatch) -> bool:
        """Commits the batch's end, and what else is due. False: that is not stored."""
        rejected_in_a_row = self._rejected_with(batch)
        commits = self._batches.commits
        ends = {
            tp: commits.served(part.owned, part.end, rejected_in_a_row) for tp, part in batch.parts.items()
        }
        offsets = {**commits.due(self._batches.ends()), **ends}
        self._reached(Step.COMMITTING)
        if not self._batches.commit(batch, offsets):
            return False
        self._batches.rejected_in_a_row = rejected_in_a_row
        for part in batch.parts.values():
            part.owned.passed, part.owned.begun = True, None
        self._reached(Step.COMMITTED)
        self._end_trace(batch)
        self._batches.end(batch, Stage.COMMITTED)
        return True

    def _rejected_with(self, batch: DeliveryBatch) -> int:
        """How many records will have been rejected since the last that was handled, with this batch."""
        isolation = self._batches.isolation
        if not batch.ended_alone and (isolation is None or not isolation.all_rejected):
            return 0
        rejected = sum(part.rejected for part in batch.parts.values())
        return (self._batches.rejected_before(batch) or 0) + rejected

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


def _new_letters(part: Part) -> int:
    """How many of its dead letters, which were read back, are not stored yet."""
    stored = part.owned.letters or ()
    return sum(letter.known_by not in stored for letter in part.letters)
