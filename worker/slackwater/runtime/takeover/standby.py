"""A worker that is ready to take over. It observes the group once a second, reads ahead what its
predecessor reads, and waits for one of three things: the order to take over, the end of its member in the
group, or, where it has handed over itself, the end of its successor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from slackwater.kafka.errors import KafkaError
from slackwater.runtime.call_threads import Task
from slackwater.runtime.delivery.commits import fenced
from slackwater.runtime.delivery.loop import Delivery
from slackwater.runtime.errors import TwinError, WorkerError
from slackwater.runtime.interfaces import StandbyConsumer
from slackwater.runtime.takeover.group_observer import GroupObserver, MemberView
from slackwater.runtime.takeover.http_handler import TakeoverRequests
from slackwater.runtime.takeover.messages import HandedOver
from slackwater.runtime.takeover.roles import PROBE_EVERY_MS, RoleEvent, TakeBack
from slackwater.runtime.worker_context import MainLoop, TakeoverContext, WorkerContext

OBSERVE_EVERY_MS = 1_000.0
RETRY_MS = 1_000.0
READ_TABLE_MS = 10_000.0
"""How long a standby waits for its sink to read the table: the takeover tries again, and reports errors."""


@dataclass(frozen=True)
class FormerMembership:
    """What a worker that was the member knows of that. ``since_ms``: of its signature (wall clock);
    ``to``: None where it was fenced without having handed over.
    """

    since_ms: int
    to: HandedOver | None = None


@dataclass(frozen=True)
class StandbyEnd:
    """The event that ends a standby. ``predecessor``: of an order: its address, or "" for nobody."""

    event: RoleEvent
    predecessor: str = ""
    reason: str = ""


class WorkerStandby:
    """A worker's time as a standby. Its consumer and delivery are those that will take over."""

    def __init__(
        self,
        context: WorkerContext,
        takeover_context: TakeoverContext,
        requests: TakeoverRequests,
        observer: GroupObserver,
        loop: MainLoop,
        *,
        make_consumer: Callable[[], StandbyConsumer],
        make_delivery: Callable[[StandbyConsumer], Delivery],
        former: FormerMembership | None = None,
    ) -> None:
        self._context, self._takeover_context, self._requests, self._observer, self._loop = (
            context,
            takeover_context,
            requests,
            observer,
            loop,
        )
        self._clock, self._status = context.clock, context.status
        self._make_consumer, self._make_delivery, self._former = make_consumer, make_delivery, former
        self._take_back = TakeBack(context.config.session_timeout_ms)
        self._observing: Task | None = None
        self._probing: Task | None = None
        self._observed_ms = self._probed_ms = -float("inf")
        self._prefetched = 0
        self._since_ms, self._reason, self._ordered = 0, "", False
        self.member = MemberView(context.instance)
        self.consumer: StandbyConsumer | None = None
        self.delivery: Delivery | None = None

    # ---- getting ready

    def prepare(self) -> None:
        """Connects, observes the group once, and has the sink read its table. Waits for a broker that is
        away; raises WorkerError for what does not mend itself.
        """
        assert self._context.sink is not None
        reading = self._context.writer.submit(partial(self._context.sink.marks, []))
        while True:
            try:
                self._loop.wait_for(self._takeover_context.watcher.submit(self._connect))
                self.member = self._loop.wait_for(self._takeover_context.watcher.submit(self._observe))
                break
            except KafkaError as exc:
                if not exc.retriable:
                    raise WorkerError(f"cannot stand by: {exc}") from exc
                self._context.log.seldom("standby", f"cannot stand by yet: {exc}")
                again_ms = self._clock.mono_ms() + RETRY_MS
                self._loop.until(lambda at=again_ms: self._clock.mono_ms() >= at)  # type: ignore[misc]

        self._end_reading(reading)

    def _end_reading(self, reading: Task) -> None:
        """Waits for the sink, unless an order comes. Its libraries are loaded then, and the first rows wait
        only for what comes to the table from now on. What it has read decides nothing: the predecessor still
        writes."""
        deadline = self._clock.mono_ms() + READ_TABLE_MS

        def over() -> bool:
            return self._requests.peek_order() is not None or self._clock.mono_ms() >= deadline

        self._loop.until(lambda: reading.wait(0) or over())
        if not reading.wait(0):
            self._context.log.line("the sink has not read its table yet")
            return
        try:
            reading.result()
        except Exception as exc:
            self._context.log.line(f"the sink cannot read its table yet: {exc}")

    def _connect(self) -> None:
        """On the watcher's thread."""
        config = self._context.config
        if self.consumer is None:
            self.consumer = self._make_consumer()
            self.delivery = self._make_delivery(self.consumer)
        self.consumer.stand_by(config.topics, config.topic_pattern, self.delivery)

    def _observe(self) -> MemberView:
        return self._observer.observe(offsets=True)

    # ---- standing by

    def enter(self, reason: str = "") -> None:
        """Begins to stand by, or goes on after an order that came to nothing, with the ``reason`` for
        that.
        """
        assert self.delivery is not None
        if not self._since_ms:
            self._since_ms = self._clock.wall_ms()
            self.delivery.show()
        self._reason, self._ordered = reason, False
        if reason:
            self._requests.next_order()  # one that came while the other was carried out
        self._observed_ms = self._clock.mono_ms()
        self._take_in(self.member, self._observed_ms)
        self._loop.enter("standby")
        self._context.events.emit("standby", holder=self._status.holder, reason=reason)

    def wait(self) -> StandbyEnd:
        """Stands by until one of the three events. Raises TwinError if the holder is a pod of this name."""
        while True:
            order = self._requests.next_order()
            if order is not None:
                return StandbyEnd(RoleEvent.ORDERED, order)
            self._watch_group()
            self._watch_successor()
            if (end := self._end()) is not None:
                return end
            self._loop.turn()

    def order_taken(self) -> None:
        """An order is carried out."""
        self._ordered = True
        self._show()

    def _end(self) -> StandbyEnd | None:
        if not self.member.taken and not self._take_back.silence.answered:
            return StandbyEnd(RoleEvent.GONE)
        if self._former is None or self._former.to is None or not self.member.taken:
            return None
        reason = self._take_back.due(self._clock.mono_ms())
        return StandbyEnd(RoleEvent.SUCCESSOR_GONE, reason=reason) if reason else None

    def _watch_group(self) -> None:
        now = self._clock.mono_ms()
        if self._observing is None:
            if now - self._observed_ms >= OBSERVE_EVERY_MS:
                self._observed_ms, self._observing = now, self._takeover_context.watcher.submit(self._observe)
        elif self._observing.wait(0):
            task, self._observing = self._observing, None
            try:
                self._take_in(task.result(), self._observed_ms)
            except KafkaError as exc:
                self._context.log.seldom("look", f"cannot read the state of the group: {exc}")

    def _watch_successor(self) -> None:
        if self._former is None or self._former.to is None:
            return
        now = self._clock.mono_ms()
        if self._probing is None:
            if now - self._probed_ms >= PROBE_EVERY_MS:
                self._probed_ms = now
                probe = partial(self._takeover_context.peers.alive, self._former.to.address)
                self._probing = self._takeover_context.caller.submit(probe)
        elif self._probing.wait(0):
            task, self._probing = self._probing, None
            self._take_back.silence.probed(task.result(), self._probed_ms)

    def _take_in(self, member: MemberView, asked_ms: float) -> None:
        """Takes in an observation of the group."""
        self.member = member
        self._refuse_twin(member)
        if member.taken:
            self._take_back.observe(sorted(member.committed.items()), asked_ms)
        if member.stable:
            assert self.consumer is not None
            offsets = {tp: member.committed[tp].offset for tp in member.partitions if tp in member.committed}
            self.consumer.prefetch(offsets)
            self._prefetched = len(offsets)
        self._status.holder = self._holder(member)
        self._show()

    def _holder(self, member: MemberView) -> str | None:
        """Which pod is the member. A successor has signed nothing at first, but has sent its name before."""
        former = self._former
        if former is not None and member.holder == self._context.pod:
            return former.to.by if former.to is not None else None
        return member.holder if member.taken else None

    def _refuse_twin(self, member: MemberView) -> None:
        note, former = member.note, self._former
        if former is None or note is None or note.pod != self._context.pod:
            return
        if (note.since_ms or 0) > former.since_ms:
            raise TwinError(str(fenced()))

    def _show(self) -> None:
        self._status.standby = {
            "since_ms": self._since_ms,
            "handed_over": self._former is not None and self._former.to is not None,
            "prefetched_partitions": self._prefetched,
            "told": self._ordered,
            "reason": self._reason,
        }

    def leave(self) -> None:
        """Stands by no longer."""
        self._status.standby = None
