"""The worker's loop: poll, hand over, write, fence, publish, commit; and what a rebalance does to it.

The main thread owns everything here but the handler, which runs on the runner's thread. It goes on
polling meanwhile, with all partitions paused, so that rebalances and max.poll.interval.ms are served.
A poll may call the listener methods below; what they find wrong is raised after the poll, because the
client must be able to end its rebalance.

At least once: offsets are committed after the write. Effectively once in files: a batch's file is named
by the committed offset, so a replay overwrites it; and a fence before the publish shows that the
partition is still this member's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from slackwater.kafka.errors import FencedInstanceIdError, KafkaError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.batch import Batch, Part, Stage
from slackwater.runtime.commits import Committer, Outcome, fenced
from slackwater.runtime.errors import WorkerError
from slackwater.runtime.inflight import InFlight
from slackwater.runtime.interfaces import Columns, Consumer
from slackwater.runtime.partition import OwnedPartition
from slackwater.runtime.report import Report
from slackwater.runtime.tools import Tools

SLICE_MS = 50.0
"""The longest time between two polls while a batch is in flight."""
LOOK_UP_TIMEOUT_MS = 2000


class Delivery:
    """Takes records and brings them to the sink. It is the consumer's rebalance listener too."""

    def __init__(
        self,
        consumer: Consumer,
        tools: Tools,
        *,
        held: bool = False,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """``held``: takes no records before ``release``. ``give_up``: asked while waiting for a batch; True
        ends the wait (a second SIGTERM).
        """
        self._consumer, self._tools, self._give_up = consumer, tools, give_up
        self._clock, self._config = tools.clock, tools.config
        self._committer = Committer(consumer, tools.clock, tools.metrics, tools.log)
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        self._report = Report(consumer, tools, self._owned)
        self._held = held
        self._failure: Exception | None = None
        self.closing = False
        """Set before the consumer is closed, which tells its listener that partitions are revoked: a static
        member's stay with it, so nobody is to hear of that.
        """
        self._polled_at_ms: float | None = None
        self._refresh_ms = max(1000, self._config.session_timeout_ms // 10)
        self.in_flight = InFlight(
            tools,
            self._committer,
            seek_back=self._seek_back,
            extra_commits=self._stale,
            stored=self._stored,
            ended=self._batch_ended,
        )

    # ---- the loop

    def hold(self) -> None:
        """Takes no records from now on; a batch in flight goes on."""
        self._held = True
        self._consumer.pause(*self._consumer.assignment())

    def release(self) -> None:
        """Takes records again."""
        self._held = False
        self._resume()

    def step(self, timeout_ms: float = 100) -> None:
        """One turn: a poll and what follows from it, in ``timeout_ms`` or little more.

        Raises WorkerError where the worker must end.
        """
        busy = self.in_flight.batch is not None
        if self.in_flight.wait(min(timeout_ms, SLICE_MS)):
            timeout_ms = 0
        polled = self._poll(min(timeout_ms, SLICE_MS) if busy else timeout_ms)
        self._look_up()
        if self.in_flight.batch is not None:
            self.in_flight.advance()
        elif polled:
            # Also where there was a batch before the poll: a listener within it may have ended that, and
            # then the poll goes on to hand records over.
            self._report.quiet(polled)
            self._begin(polled)
        elif not self._held:
            self._report.quiet(polled)
            self._note_service(self._stale())
        self._report.lag()

    def drain(self, timeout_ms: float) -> None:
        """Finishes or gives up the batch in flight, and commits. The partitions stay assigned."""
        deadline, began = self._clock.mono_ms() + timeout_ms, self._clock.wall_ms()
        self.hold()
        while self.in_flight.holds(self._owned) and not self._give_up():
            left = deadline - self._clock.mono_ms()
            if left <= 0 or self._backs_off():
                break
            self.step(min(left, SLICE_MS))
        self.abandon_all()
        now = self._clock.wall_ms()
        self._note_service(
            {
                tp: owned.commit_of(owned.committed, now, self._tools.instance, began)
                for tp, owned in self._owned.items()
                if owned.committed is not None and owned.had_records
            }
        )

    def abandon_all(self) -> None:
        """Gives up the batch in flight, if there is one, and removes what it has staged."""
        self.in_flight.abandon(list(self._owned), "the worker stops")

    def _backs_off(self) -> bool:
        batch = self.in_flight.batch
        return batch is not None and batch.stage is Stage.BACKING_OFF

    # ---- the listener, called within a poll

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """New partitions: nothing is taken of them before their committed offset is known."""
        new = [tp for tp in assigned if tp not in self._owned]
        self._owned.update({tp: OwnedPartition(tp) for tp in new})
        if new:
            self._consumer.pause(*new)
        self._report.moved("assigned", assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Partitions that another member gets: finishes their part of the batch, or gives it up in time."""
        if self.closing:
            return
        try:
            self._finish(revoked)
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
        self.in_flight.advance()
        while self.in_flight.holds(partitions) and not self._give_up():
            left = min(deadline - self._clock.mono_ms(), SLICE_MS)
            if left <= 0:
                return
            if not self.in_flight.wait(left):
                self._clock.sleep(left)
            self._report.turned()
            self.in_flight.advance()

    # ---- polling

    def _poll(self, timeout_ms: float) -> Mapping[TopicPartition, Columns]:
        now = self._clock.mono_ms()
        if self._polled_at_ms is not None:
            self._tools.metrics.observe("poll_interval_seconds", (now - self._polled_at_ms) / 1000)
        self._polled_at_ms = now
        polled: Mapping[TopicPartition, Columns] = {}
        try:
            polled = self._consumer.poll_columns(timeout_ms=timeout_ms)
        except FencedInstanceIdError as exc:
            raise fenced() from exc
        except KafkaError as exc:
            if not exc.retriable:
                raise WorkerError(f"cannot go on polling: {exc}") from exc
            self._tools.log.seldom("poll", f"a poll failed, and is repeated: {exc}")
            self._clock.sleep(min(SLICE_MS, timeout_ms))
        self._report.turned()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._report.membership()
        polled = {tp: columns for tp, columns in polled.items() if len(columns)}
        if polled and (self._held or self.in_flight.batch is not None):
            raise WorkerError(
                f"the client delivered records of paused partitions: {sorted(map(str, polled))}"
            )
        return polled

    def _look_up(self) -> None:
        """Asks for the committed offsets of new partitions, then takes from these too."""
        new = [owned for owned in self._owned.values() if not owned.looked_up]
        for owned in new:
            try:
                found = self._consumer.committed(owned.tp, metadata=True, timeout_ms=LOOK_UP_TIMEOUT_MS)
            except FencedInstanceIdError as exc:
                raise fenced() from exc
            except KafkaError as exc:
                if not exc.retriable:
                    raise WorkerError(f"cannot read the committed offset of {owned.tp}: {exc}") from exc
                self._tools.log.seldom("committed", f"no committed offset of {owned.tp} yet: {exc}")
                return
            owned.found(found.offset if found else None, found.metadata if found else "")
            self._report.found(owned)
        if new:
            self._resume()
            self._report.show()

    def _resume(self) -> None:
        if self._held or self.in_flight.batch is not None:
            return
        assigned = self._consumer.assignment()
        self._consumer.resume(
            *[tp for tp, owned in self._owned.items() if owned.looked_up and tp in assigned]
        )

    def _begin(self, polled: Mapping[TopicPartition, Columns]) -> None:
        parts = {}
        for tp, columns in polled.items():
            owned, first = self._owned[tp], columns.first_offset
            self._report.first_records(owned, first)
            # The committed offset, not the first record's: compaction may remove records in between.
            start = first if owned.committed is None else min(owned.committed, first)
            parts[tp] = Part(owned, columns, start, columns.next_offset)
        self._consumer.pause(*self._consumer.assignment())
        self.in_flight.begin(parts)
        self._report.in_flight = self.in_flight.batch
        self._report.show()

    # ---- what the batch in flight asks for

    def _seek_back(self, starts: Mapping[TopicPartition, int]) -> None:
        assigned = self._consumer.assignment()
        for tp, start in starts.items():
            if tp in assigned:
                self._consumer.seek(tp, start)

    def _batch_ended(self, committed: Batch | None) -> None:
        if committed is not None:
            self._report.batch(committed)
        self._report.in_flight = None
        self._resume()
        self._report.show()

    def _stored(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for tp, offset in offsets.items():
            self._owned[tp].stored(offset)

    # ---- the note in the commits

    def _stale(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commits that move nothing and say that partitions without new records are still served.

        Without them, a restart gap would count from a quiet partition's last record.
        """
        now, batch = self._clock.wall_ms(), self.in_flight.batch
        found = {}
        for tp, owned in self._owned.items():
            if owned.committed is None or not owned.had_records or (batch is not None and tp in batch.parts):
                continue
            note = owned.note
            if note is None or note.at_ms is None or now - note.at_ms >= self._refresh_ms:
                found[tp] = owned.commit_of(owned.committed, now, self._tools.instance)
        return found

    def _note_service(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commits ``offsets``, which move nothing; the next try mends what fails here."""
        if offsets and self._committer.commit(offsets) is Outcome.DONE:
            self._stored(offsets)
