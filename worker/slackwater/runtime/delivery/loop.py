"""The delivery loop: polls, hands batches to the handler, publishes and commits, and handles rebalances.

The main thread owns everything here but the handler, which runs on the runner's thread, and the sink, which
runs on the writer's. It goes on polling meanwhile and asks for no records, so that rebalances and
max.poll.interval.ms are served; the client goes on fetching. Once the handler has returned, the next batch
may begin while the sink writes. A poll may call the listener methods below. Their errors are raised after the
poll, because the client must be able to end its rebalance.

docs/design/worker.md says how each record is delivered once: by commits after the write, and by marks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping

from slackwater.kafka.errors import (
    CorruptRecordError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    KafkaError,
    LogTruncationError,
    TopicRecreatedError,
    UnreleasedInstanceIdError,
)
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.delivery.batch import DeliveryBatch, Part, describe
from slackwater.runtime.delivery.columns import Unreadable
from slackwater.runtime.delivery.commits import (
    DeliveryCommits,
    HandedOverOffsets,
    differ,
    fenced,
)
from slackwater.runtime.delivery.dead_letters import unreadable
from slackwater.runtime.delivery.ended_processes import Parts, before_suspects, control_of, narrowed
from slackwater.runtime.delivery.in_flight import InFlight
from slackwater.runtime.delivery.marks import MarkReader
from slackwater.runtime.delivery.pace import BatchInterval, BatchSize
from slackwater.runtime.delivery.partition import OwnedPartition, Stopped
from slackwater.runtime.delivery.stages import Stage
from slackwater.runtime.delivery.stopped_partitions import (
    LOG_TRUNCATED,
    TOO_MANY_DEAD_LETTERS,
    TOPIC_RECREATED,
    UNREADABLE_BATCH,
    TopicIdentities,
    recreated,
    truncated,
    unreadable_batch,
)
from slackwater.runtime.errors import WorkerError
from slackwater.runtime.fault_points import Step
from slackwater.runtime.interfaces import Columns, Consumer
from slackwater.runtime.telemetry.report import SETTLED, WorkerReport
from slackwater.runtime.telemetry.timings import IDLE_MS, TakeoverRecord
from slackwater.runtime.worker_context import WorkerContext

SLICE_MS = 50.0
"""The longest time between two polls while a batch is in flight."""
LOOK_UP_TIMEOUT_MS = 2000
LEAST_TOO_LARGE = 200
"""Of fewer records than these it is not the number with which a process ends."""


class Delivery:
    """Takes records and brings them to the sink. It is the consumer's rebalance listener too."""

    def __init__(
        self,
        consumer: Consumer,
        context: WorkerContext,
        *,
        held: bool = False,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """``held``: takes no records before ``release``. ``give_up``: asked while waiting for a batch; True
        ends the wait (a second SIGTERM).
        """
        self._consumer, self._context, self._give_up = consumer, context, give_up
        self._clock, self._config = context.clock, context.config
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        self._held = held
        self._identities = TopicIdentities(consumer)
        self._pace = BatchInterval(context.config.batch_interval_ms)
        config = context.config
        self._size = BatchSize(config.batch_duration_ms, config.max_poll_records, config.max_batch_bytes)
        self._nothing_next = False
        """Whether no record was there when a next batch was last asked for beside the one in flight."""
        self._refetched: dict[TopicPartition, bytes] = {}
        """By partition, the digest of the last batch that could not be read."""
        self._failure: Exception | None = None
        self.closing = False
        """Set before the consumer is closed. Closing calls the listener with revoked partitions, but those of
        a static member stay with it, so the calls are ignored.
        """
        self._polled_at_ms: float | None = None
        self._handed_over, self._takes_over = HandedOverOffsets(), False
        self.commits = DeliveryCommits(consumer, context, self._owned)
        self._mark_reader = MarkReader(context, self._owned)
        self.in_flight = InFlight(context, self.commits, self, self._owned)
        self.in_flight.write_at_once(held)
        self._report = WorkerReport(consumer, context, self._owned, self.in_flight)

    # ---- the loop

    def hold(self) -> None:
        """Takes no records from now on; a batch in flight goes on, and what is gathered is written."""
        self._held = True
        self.in_flight.write_at_once(True)
        self._consumer.pause(*self._consumer.assignment())

    def release(self) -> None:
        """Takes records again."""
        self._held, self.commits.drain_ms, self.commits.drain_trace = False, None, ""
        self.in_flight.write_at_once(False)
        self._resume()

    def show(self) -> None:
        """Brings /status up to date."""
        self._report.show()
        self._report.lag()

    def take_over(self, record: TakeoverRecord, handed_over: HandedOverOffsets) -> None:
        """Call it before a successor joins. ``handed_over``: its predecessor's offsets, which are used
        without looking them up.
        """
        self._report.take_over(record)
        self._handed_over, self._takes_over = handed_over, True

    def step(self, timeout_ms: float = 100) -> None:
        """Polls once and handles the result, in ``timeout_ms`` or little more.

        Raises WorkerError where the worker must end.
        """
        self.in_flight.refresh(begins=not self._held)
        busy, takes = not self.in_flight.idle, self.in_flight.takes and not self._writes_first_rows()
        self._mark_reader.advance()
        slice_ms = min(timeout_ms, SLICE_MS)
        if busy and takes and not self._nothing_next:
            timeout_ms = 0  # a next batch may be there already
        elif self.in_flight.wait(slice_ms) or self._mark_reader.wait(slice_ms):
            timeout_ms = 0
        wait_ms = min(timeout_ms, SLICE_MS) if busy else self._rest(timeout_ms)
        polled = self._poll(min(wait_ms, self.in_flight.due_in_ms()), takes=takes)
        self._nothing_next = busy and takes and not polled
        self._mark_reader.advance()
        self._mark_reader.check_time(alone=self.in_flight.idle)
        self._look_up()
        self._identify()
        self._go_to_starts()
        polled = self._readable(polled)
        before = self.in_flight.batch  # a listener within the poll may have ended the one that was there
        if polled:
            self._report.quiet(polled)
            self._begin(polled)
        if before is not None:
            self._advance()
        if (before is None or before.stage is Stage.GATHERING) and not polled and not self._held:
            self._report.quiet(polled)
            if self._verified() and (due := self.commits.due(self.in_flight.ends())):
                self.commits.commit(due)
                self._report.show()
        if self._verified():
            self.commits.handled(self.in_flight.waiting())
            self.commits.sign()
        self._report.lag()

    def _writes_first_rows(self) -> bool:
        """Whether the rows that partitions which were taken over wait for are all on their way. The next
        batch waits for them: its handling would take their time on the processor."""
        awaited = {tp for tp, owned in self._owned.items() if owned.awaited}
        batch = self.in_flight.batch
        return batch is not None and bool(awaited) and awaited <= batch.parts.keys()

    def drain(self, timeout_ms: float, trace: str = "") -> None:
        """Finishes or gives up the batch in flight, and commits. The partitions stay assigned.

        What has come for a batch whose time has not come makes that batch at once. All commits say since
        when the partitions are drained, and name the ``trace`` of the restart ("": none). What was given up
        is read again after a :meth:`release`.
        """
        now, began = self._clock.mono_ms(), self._clock.wall_ms()
        deadline = now + timeout_ms
        self.take_back_begun()
        for owned in self._owned.values():
            if self._is_idle(owned, now):
                owned.served_ms = now
        self.commits.drain_ms, self.commits.drain_trace = began, trace
        self._cut_rest()
        self.hold()
        while self.in_flight.holds(self._owned) and not self._give_up():
            left, batch = deadline - self._clock.mono_ms(), self.in_flight.batch
            if left <= 0 or (batch is not None and batch.stage is Stage.BACKING_OFF):
                break
            self.step(min(left, SLICE_MS))
        starts = self.in_flight.starts()
        self.abandon_all()
        self.seek_back(starts)
        if self._verified():
            self.commits.commit(self.commits.due())

    def take_back_begun(self) -> None:
        """The worker ends, and not because of what is in flight: says so to the next process."""
        self.commits.take_back_begun(list(self._owned))

    def abandon_all(self) -> None:
        """Gives up the batch in flight, if there is one, and removes what it has staged."""
        self.in_flight.abandon(list(self._owned), "the worker stops")

    def retire(self) -> InFlight:
        """Another process is the member: gives up all, and asks nothing more of the consumer.

        Returns what may still run on the handler's thread: to be advanced until it holds no batch.
        """
        self.closing = True
        self.in_flight.abandon(list(self._owned), "another pod is the member now")
        return self.in_flight

    # ---- the handover

    @property
    def settled(self) -> bool:
        """Whether the group is at rest, as far as this member knows."""
        return self._consumer.membership().state == SETTLED

    def offsets_for_successor(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets, for a successor."""
        return {} if self._unverified() else self.commits.offsets_for_successor()

    def unserved_ms(self, now: float) -> dict[TopicPartition, int]:
        """For how long each partition was not served by ``now`` (monotonic clock), for a successor: since
        rows of it were published, or since the drain began if it was idle then."""
        return {
            tp: max(0, round(now - (owned.assigned_ms if owned.served_ms is None else owned.served_ms)))
            for tp, owned in self._owned.items()
            if owned.stopped is None
        }

    def _is_idle(self, owned: OwnedPartition, now: float) -> bool:
        """Whether there is nothing to write of it, and was nothing for a while."""
        since = owned.assigned_ms if owned.served_ms is None else owned.served_ms
        nothing = self._consumer.current_lag(owned.tp) == 0 and owned.tp not in self.in_flight.ends()
        return nothing and now - since >= IDLE_MS

    # ---- the listener, called within a poll

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """New partitions: nothing is taken of them before their committed offset and their mark are known, or
        what a predecessor has left of them."""
        new = [tp for tp in assigned if tp not in self._owned]
        signature, now = self.commits.signature(), self._clock.mono_ms()
        self._owned.update({tp: OwnedPartition(tp, now, signature=signature) for tp in new})
        for tp in new:
            self._owned[tp].awaited = self._takes_over
        left, self._handed_over = self._handed_over, HandedOverOffsets()
        if left.generation == self._consumer.membership().generation:
            for owned in (self._owned[tp] for tp in new if tp in left.offsets):
                owned.handed_over, owned.unverified = True, left.offsets[owned.tp]
                self._set_committed(owned, owned.unverified)
        waiting = [tp for tp in new if self._held or not self._owned[tp].handed_over]
        if waiting:
            self._consumer.pause(*waiting)
        self._report.moved("assigned", assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Partitions that another member gets: finishes their part of the batch, or gives it up in time."""
        if self.closing:
            return
        try:
            self._finish(revoked)
            self.commits.take_back_begun(revoked)
        except Exception as exc:
            self._failure = exc
        self._leave("revoked", revoked, "its partitions go to another member")

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Partitions that are another member's already: no commit can count."""
        if self.closing:
            return
        self._leave("lost", lost, "its partitions are another member's")

    def _leave(self, event: str, partitions: Collection[TopicPartition], why: str) -> None:
        self.in_flight.abandon(partitions, why)
        for tp in partitions:
            self._owned.pop(tp, None)
        self._report.moved(event, partitions)

    def _finish(self, partitions: Collection[TopicPartition]) -> None:
        """Brings a batch with some of ``partitions`` to its end, without polling, while there is time."""
        limit = min(self._config.drain_timeout_ms, self._config.max_poll_interval_ms / 2)
        deadline = self._clock.mono_ms() + limit
        self.in_flight.write_at_once(True)
        try:
            self._advance()
            while self.in_flight.holds(partitions) and not self._give_up():
                left = min(deadline - self._clock.mono_ms(), SLICE_MS)
                if left <= 0:
                    return
                if not self.in_flight.wait(left):
                    self._clock.sleep(left)
                self._report.turned()
                self._advance()
        finally:
            self.in_flight.write_at_once(self._held)

    # ---- polling

    def _poll(self, timeout_ms: float, *, takes: bool) -> Mapping[TopicPartition, Columns]:
        """``takes``: whether records are asked for."""
        now = self._clock.mono_ms()
        if self._polled_at_ms is not None:
            self._context.metrics.observe("poll_interval_seconds", (now - self._polled_at_ms) / 1000)
        self._polled_at_ms = now
        polled: Mapping[TopicPartition, Columns] = {}
        try:
            polled = self._consumer.poll_columns(timeout_ms, self._size.records if takes else 0)
        except LogTruncationError as exc:
            self._log_lost(exc)
        except KafkaError as exc:
            if self._is_fenced(exc):
                raise fenced() from exc
            if isinstance(exc, CorruptRecordError) and exc.topic_partition is not None:
                polled = self._unreadable(exc)
            elif not exc.retriable:
                raise WorkerError(f"polling failed and cannot continue: {exc}") from exc
            else:
                self._context.log.seldom("poll", f"a poll failed and will be retried: {exc}")
                self._clock.sleep(min(SLICE_MS, timeout_ms))
        self._report.turned()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._report.membership()
        for skipped in self._consumer.skipped_records():
            self._report.skipped(skipped)
        polled = {tp: columns for tp, columns in polled.items() if len(columns)}
        if polled and (self._held or not takes):
            raise WorkerError(
                f"the client delivered records that were not asked for: {sorted(map(str, polled))}"
            )
        if polled and not self.in_flight.takes:  # a listener within the poll has found a batch to fail
            self.seek_back({tp: columns.first_offset for tp, columns in polled.items()})
            return {}
        return polled

    def _unreadable(self, error: CorruptRecordError) -> Mapping[TopicPartition, Columns]:
        """The batch as a dead letter. It is fetched twice, since its bytes may have changed on their way."""
        tp, digest = error.topic_partition, hashlib.sha256(error.batch).digest()
        if tp not in self._owned:
            return {}
        if self._refetched.get(tp) != digest:
            self._refetched[tp] = digest
            self._context.log.line(f"fetching a batch again that cannot be read: {error}")
            self.seek_back({tp: error.position})
            return {}
        end = self._consumer.highwater(tp)
        is_placed = error.batch and (end is None or error.last_offset < end)
        if self._context.letters is None or not is_placed:
            self._stop(tp, UNREADABLE_BATCH, unreadable_batch(error, self._config.group_id))
            return {}
        self.seek_back({tp: error.next_offset})
        return {tp: Unreadable(unreadable(error), error.next_offset)}

    def _log_lost(self, error: LogTruncationError) -> None:
        """Logs that end before what was read of them: another place is for a person to choose."""
        for tp, position in error.offsets.items():
            if isinstance(error, TopicRecreatedError):
                self._topic_recreated(tp)
                continue
            end = error.divergent_offsets.get(tp)
            message = truncated(tp, position, end.offset if end is not None else None, self._config.group_id)
            self._stop(tp, LOG_TRUNCATED, message)

    def _stop(self, tp: TopicPartition, reason: str, message: str) -> None:
        """Reads nothing more of a partition, which stays this worker's. What is in flight is finished: it was
        read before."""
        owned = self._owned.get(tp)
        if owned is None or owned.stopped is not None:
            return
        owned.stopped = Stopped(reason, message, self._clock.wall_ms())
        self._consumer.pause(tp)
        self._report.stopped(owned)

    # ---- where to begin

    def _go_to_starts(self) -> None:
        """Goes to where each new partition is to be read from, and takes from it."""
        known = [owned for owned in self._owned.values() if owned.has_start and owned.identified]
        new = [owned for owned in known if not owned.at_start and not self._awaits_confirmation(owned)]
        if not new:
            return
        for owned in new:
            owned.at_start = True
            if owned.stopped is None and owned.mark is not None and owned.mark > (owned.committed or 0):
                self._skip_written(owned, owned.mark)
        self._resume()
        self._report.show()

    def _awaits_confirmation(self, owned: OwnedPartition) -> bool:
        """Whether it is to go on at its mark, and the leader has not confirmed the committed offset yet. A
        log that was cut off is noticed by that: no leader epoch is known of a mark."""
        if owned.stopped is not None or owned.committed is None or owned.mark is None:
            return False
        if owned.mark <= owned.committed or owned.tp not in self._consumer.assignment():
            return False
        return not self._consumer.position_confirmed(owned.tp)

    def _skip_written(self, owned: OwnedPartition, mark: int) -> None:
        """Goes to the mark: a worker was stopped between the table's commit and Kafka's, or a person has set
        the offset back."""
        committed = "no offset" if owned.committed is None else f"offset {owned.committed}"
        self._context.log.line(
            f"{owned.tp}: {committed} is committed, and the sink has all rows up to {mark}; continuing there "
            "(to write rows again, use slackwater rewind)"
        )
        self.seek_back({owned.tp: mark})

    # ---- which topic it is

    def _identify(self) -> None:
        """Makes sure that new partitions are of the topics that their positions belong to; then takes from
        these."""
        new = [owned for owned in self._owned.values() if owned.has_start and not owned.identified]
        if not new:
            return
        if any(self._identities.predecessor(owned) for owned in new):
            try:  # what this client knows of the topics may be older than what is committed
                self._consumer.bootstrap(LOOK_UP_TIMEOUT_MS, refresh=True)
            except KafkaError as exc:
                self._not_looked_up("the topics' ids", exc)
                return
        for owned in new:
            owned.identified = True
            if not self._identities.take(owned):
                self._topic_recreated(owned.tp)

    def _topic_recreated(self, tp: TopicPartition) -> None:
        owned = self._owned.get(tp)
        if owned is not None:
            current = self._identities.current(tp)
            now = current if current != owned.topic_id else ""
            self._stop(tp, TOPIC_RECREATED, recreated(tp, owned.topic_id, now, self._config.group_id))

    def _readable(self, polled: Mapping[TopicPartition, Columns]) -> dict[TopicPartition, Columns]:
        """What of ``polled`` may be handled. What is of another topic is not; what is of a topic that is not
        identified yet is read again."""
        for tp in polled:
            owned = self._owned[tp]
            changed = owned.readable and self._identities.current(tp) not in ("", owned.topic_id)
            if changed and not self._identities.take(owned):
                self._topic_recreated(tp)
        again = [tp for tp in polled if not self._owned[tp].readable]
        if again:
            self._consumer.pause(*again)
            self.seek_back({tp: polled[tp].first_offset for tp in again})
        return {tp: columns for tp, columns in polled.items() if tp not in again}

    def _look_up(self) -> None:
        """Asks for the committed offsets of new partitions, of all at once, then takes from these too."""
        new = [tp for tp, owned in self._owned.items() if not owned.looked_up]
        committed = (
            self._committed(new, f"the committed offsets of {', '.join(map(str, new))}") if new else None
        )
        for tp, offset in (committed or {}).items():
            self._set_committed(self._owned[tp], offset)

    def _committed(
        self, partitions: Collection[TopicPartition], what: str
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None] | None:
        """What the broker has committed of ``partitions``; None: it does not say now."""
        try:
            committed: Mapping[TopicPartition, OffsetAndMetadata | None] = self._consumer.committed(
                sorted(partitions), metadata=True, timeout_ms=LOOK_UP_TIMEOUT_MS
            )
        except KafkaError as exc:
            self._not_looked_up(what, exc)
            return None
        return committed

    def _is_fenced(self, exc: KafkaError) -> bool:
        """Whether another process has this worker's instance id, or may have it: a group that was of the
        consumer protocol, and is a classic one again, does not say who."""
        taken = isinstance(exc, FencedInstanceIdError | UnreleasedInstanceIdError)
        was_member = self._context.status.generation >= 0
        return taken or (was_member and isinstance(exc, GroupIdNotFoundError))

    def _not_looked_up(self, what: str, exc: KafkaError) -> None:
        """Continues without ``what``, which is looked up again. Raises for an error that a repetition does
        not mend."""
        if self._is_fenced(exc):
            raise fenced() from exc
        if not exc.retriable:
            raise WorkerError(f"cannot read {what}: {exc}") from exc
        self._context.log.seldom("committed", f"cannot read {what} yet; retrying: {exc}")

    def _set_committed(self, owned: OwnedPartition, committed: OffsetAndMetadata | None) -> None:
        self.commits.set_committed(owned, committed)
        self._report.committed_known(owned)

    # ---- offsets that a predecessor has handed over

    def _advance(self) -> None:
        """Takes the batch in flight further; nothing of it is written before its start is verified."""
        if self._verified():
            self.in_flight.advance()

    def _verified(self) -> bool:
        """Whether all partitions begin where the broker says; asks it if need be."""
        unverified = self._unverified()
        if not unverified:
            return True
        committed = self._committed(unverified, "the committed offsets that were taken over")
        if committed is None:
            self._clock.sleep(SLICE_MS)  # a handler that is done would have the loop turn without end
            return False
        for tp, left in unverified.items():
            self._owned[tp].unverified = None
            if differ(left, committed.get(tp)):
                self._correct(self._owned[tp], committed.get(tp))
        return True

    def _unverified(self) -> dict[TopicPartition, OffsetAndMetadata]:
        if not self._takes_over:
            return {}
        return {tp: left for tp, owned in self._owned.items() if (left := owned.unverified) is not None}

    def _correct(self, owned: OwnedPartition, committed: OffsetAndMetadata | None) -> None:
        """Begins a partition anew: more was committed of it after the predecessor's answer."""
        before = owned.committed
        self._set_committed(owned, committed)
        if owned.committed in (None, before):
            return
        self._context.log.line(
            f"{owned.tp}: {before} was handed over, but {owned.committed} is committed; continuing there"
        )
        self.in_flight.abandon([owned.tp], "more was committed than was handed over")
        self.seek_back({owned.tp: owned.start or owned.committed})

    def _rest(self, timeout_ms: float) -> float:
        """How long to poll for: not beyond the rest between two batches. At its end there is a moment for the
        client to fetch what has come meanwhile."""
        rest_ms = self._pace.rest_ms(self._clock.mono_ms())
        if rest_ms > 0:
            return min(timeout_ms, rest_ms)
        if self._pace.resting:
            self._pace.end()
            if not self._held:
                self._resume()
                self._clock.sleep(self._pace.gather_ms)
        return timeout_ms

    def _cut_rest(self) -> None:
        """Begins the next batch at once, with what the client has, or what comes first: whoever goes on from
        the last commit is to find no partition that was left alone since the batch before."""
        if self._pace.resting and self.in_flight.idle and not self._held:
            self._pace.end()
            self._resume()
            self.step(self._pace.gather_ms)

    def _resume(self) -> None:
        if self._held or self._pace.resting:
            return
        assigned = self._consumer.assignment()
        self._consumer.resume(*[tp for tp, owned in self._owned.items() if owned.readable and tp in assigned])

    def _begin(self, polled: Mapping[TopicPartition, Columns]) -> None:
        parts, ends = {}, self.in_flight.ends()
        for tp, columns in polled.items():
            owned, first = self._owned[tp], columns.first_offset
            # Not the first record's offset: compaction may remove records in between.
            before = ends.get(tp, owned.start)
            start = first if before is None else min(before, first)
            parts[tp] = Part(owned, columns, start, columns.next_offset)
        parts, control_for = self._cautiously(parts)
        if not parts:
            return
        self._context.reached(Step.POLLED)
        for part in parts.values():
            part.owned.taken = True
        if self._config.batch_interval_ms:
            now = self._clock.mono_ms()
            self._pace.began(now, pressing=self._is_pressing(parts, now))
            if self._pace.resting:
                self._consumer.pause(*self._consumer.assignment())
        self.in_flight.begin(parts, control_for=control_for)
        for tp in parts:
            self._report.first_records(self._owned[tp], polled[tp].first_offset)
        self._report.show()

    def _cautiously(self, parts: Parts) -> tuple[Parts, OwnedPartition | None]:
        """What is taken of ``parts``, and the partition that it is a control for: what is before records with
        which processes have ended; or of those half; or all. What is left out is read again."""
        taken, control_for = before_suspects(parts), None
        if taken is None:
            taken, control_for = self._trial(parts)
        if taken is parts:
            return parts, None
        again = [tp for tp, part in parts.items() if taken.get(tp) is not part]
        self.seek_back({tp: taken[tp].end if tp in taken else parts[tp].columns.first_offset for tp in again})
        return taken, control_for

    def _trial(self, parts: Parts) -> tuple[Parts, OwnedPartition | None]:
        """As :meth:`_cautiously`. Nothing where the batch in flight is to be committed first."""
        taken = narrowed(parts)
        if taken is None:
            return parts, None
        if self.in_flight.batch is not None:
            self.in_flight.gather_no_more()
            self._consumer.pause(*parts)  # until the end of that batch
            return {}, None
        self._size.too_large(max(LEAST_TOO_LARGE, 2 * sum(len(part.columns) for part in taken.values())))
        control_for = None
        line = f"a process has ended before it has committed these records; tries {describe(taken)}"
        if control := control_of(parts, taken, self._clock.wall_ms()):
            line += f", and before them {describe(control)}, to see whether the handler works"
            control_for, taken = next(iter(taken.values())).owned, control
        self._context.log.line(line)
        return taken, control_for

    def _is_pressing(self, parts: Mapping[TopicPartition, Part], now: float) -> bool:
        """Whether what comes after ``parts`` is not to be kept waiting: the first records of a partition are
        still to come, or there is as much left to read as they have, as far as the client knows. A few
        records always come meanwhile."""
        taken = left = 0
        before = self.in_flight.ends()
        for tp, owned in self._owned.items():
            part, end = parts.get(tp), self._consumer.highwater(tp)
            if self._awaits_first(owned, now):
                return True
            taken += len(part.columns) if part is not None else 0
            at = part.end if part is not None else before.get(tp, owned.start)
            left += max(0, end - at) if at is not None and end is not None else 0
        return left >= taken

    def _awaits_first(self, owned: OwnedPartition, now: float) -> bool:
        """Whether it is new here, and no record of it was taken yet. Not for longer than an interval where
        there is nothing to read."""
        new = now < owned.assigned_ms + self._config.batch_interval_ms
        return not owned.taken and (new or not owned.had_records)

    # ---- effects: what the batches in flight ask for

    def seek_back(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions again from these offsets, if they are still this worker's and read."""
        assigned = self._consumer.assignment()
        for tp, start in starts.items():
            if tp in assigned and ((owned := self._owned.get(tp)) is None or owned.stopped is None):
                self._consumer.seek(tp, start)

    def marks_moved(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing is taken of these before their marks are read anew."""
        for tp in partitions:
            owned = self._owned[tp]
            owned.marks, owned.at_start, owned.handed_over = None, False, False
        self._consumer.pause(*set(partitions).intersection(self._consumer.assignment()))

    def stop_rejected(self, why: Mapping[TopicPartition, str]) -> None:
        for tp, message in why.items():
            self._stop(tp, TOO_MANY_DEAD_LETTERS, message)

    def too_large(self, records: int) -> None:
        self._size.too_large(records)

    def batch_gathered(self, batch: DeliveryBatch) -> None:
        """A batch of this size was right for the handler alone."""
        self._measure(batch)
        self._report.show()

    def rows_written(self, partitions: Collection[TopicPartition], at_ms: float) -> None:
        self._report.written(partitions, at_ms)

    def batch_ended(self, committed: DeliveryBatch | None) -> None:
        """Reports it, and takes records again."""
        if self.closing:
            return
        if committed is not None:
            self._report.batch(committed)
            if not committed.gathered:
                self._measure(committed)
        self._resume()
        self._report.show()

    def _measure(self, batch: DeliveryBatch) -> None:
        if batch.failures:
            self._size.failed()
        else:
            self._size.committed(batch.records, batch.bytes, batch.work_ms)
