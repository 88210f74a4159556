"""Coordinates a worker with the other pod of its member: standby, succession and handover.

The worker calls it at each point of its life at which a takeover may begin or end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slackwater.kafka.errors import KafkaError
from slackwater.runtime.delivery.commits import HandedOverOffsets
from slackwater.runtime.delivery.loop import Delivery
from slackwater.runtime.interfaces import Consumer, StandbyConsumer
from slackwater.runtime.shutdown import Stopping
from slackwater.runtime.takeover.group_observer import GroupObserver, MemberView
from slackwater.runtime.takeover.http_handler import TakeoverHandler, TakeoverRequests
from slackwater.runtime.takeover.messages import join_address
from slackwater.runtime.takeover.predecessor import Handover
from slackwater.runtime.takeover.roles import Role, RoleEvent, Roles
from slackwater.runtime.takeover.signing import Verifier
from slackwater.runtime.takeover.standby import FormerMembership, StandbyEnd, WorkerStandby
from slackwater.runtime.takeover.successor import TakeoverAttempt, TakeoverOutcome
from slackwater.runtime.telemetry.timings import TakeoverRecord
from slackwater.runtime.worker_context import MainLoop, TakeoverContext, WorkerContext

CLOSE_MS = 3_000.0
IS_MEMBER = "this pod is the member, or about to be"


class TakeoverCoordinator:
    """All calls come from the main thread."""

    def __init__(
        self,
        context: WorkerContext,
        takeover_context: TakeoverContext,
        observer: GroupObserver,
        loop: MainLoop,
        roles: Roles,
        stopping: Stopping,
    ) -> None:
        self._context, self._takeover_context, self._observer, self._loop, self._roles = (
            context,
            takeover_context,
            observer,
            loop,
            roles,
        )
        self._requests = TakeoverRequests(context.clock)
        self._handover = Handover(context, takeover_context, self._requests, loop, roles, stopping)
        self.takeover_handler = TakeoverHandler(
            takeover_context.key,
            Verifier(takeover_context.key, context.clock, context.status.target),
            self._requests,
            context.status,
            loop.wake,
        )
        self._address = ""
        self._former: FormerMembership | None = None
        self._standby: WorkerStandby | None = None
        self._record: TakeoverRecord | None = None
        self._attempt: TakeoverAttempt | None = None

    def listens(self, host: str, port: int) -> None:
        """Where this worker answers."""
        self._address = join_address(host, port)

    # ---- before this pod is the member

    def expect(self) -> None:
        """Another pod is the member: accepts orders to take over."""
        self._requests.refuse_handovers("this pod is not the member")
        self._requests.accept_orders()

    def ordered_alone(self) -> bool:
        """Whether there is an order to take over from nobody."""
        return self._requests.peek_order() == ""

    def takes_over_alone(self) -> MemberView | None:
        """Carries out that order before this worker is warm. Returns the member as the group has it now; None
        where the group cannot be read."""
        self._requests.refuse_orders(IS_MEMBER)
        self._record = self._new_record()
        self._context.metrics.count("takeovers", ("forced",))
        observing = self._takeover_context.watcher.submit(partial(self._observer.observe, offsets=False))
        try:
            member: MemberView = self._loop.wait_for(observing)
        except KafkaError as exc:
            self._context.log.line(f"cannot read the state of the group: {exc}")
            return None
        return member

    def prepare(
        self,
        make_consumer: Callable[[], StandbyConsumer],
        make_delivery: Callable[[StandbyConsumer], Delivery],
    ) -> None:
        """Makes all ready to take over."""
        self._standby = WorkerStandby(
            self._context,
            self._takeover_context,
            self._requests,
            self._observer,
            self._loop,
            make_consumer=make_consumer,
            make_delivery=make_delivery,
            former=self._former,
        )
        self._standby.prepare()
        self._standby.enter()

    def take_over(self, adopt: Callable[[Consumer, Delivery], None]) -> bool:
        """Stands by until it has begun to join in its predecessor's place, with what it passes to ``adopt``.

        False: the member is no longer in the group, and this worker is to join as a new one, by
        :meth:`take_standby`.
        """
        standby = self._standby
        assert standby is not None
        while True:
            end = standby.wait()
            self._roles.take(end.event)
            if end.event is RoleEvent.GONE:
                self._requests.refuse_orders(IS_MEMBER)
                return False
            outcome = self._carry_out(standby, end)
            if not outcome.refused:
                break
            self._roles.take(RoleEvent.REFUSED)
            if self._record is not None:
                self._record.refused(outcome.refused)
            self._context.metrics.count("takeovers", ("refused",))
            self._context.log.line(f"takeover refused: {outcome.refused}")
            standby.enter(outcome.refused)
        self._join(outcome, end, adopt)
        return True

    def _new_record(self) -> TakeoverRecord:
        return TakeoverRecord(self._context, self._context.status.holder or "", self._requests.trace)

    def _carry_out(self, standby: WorkerStandby, end: StandbyEnd) -> TakeoverOutcome:
        record = self._record = self._new_record()
        self._attempt = None
        standby.order_taken()
        self._loop.enter("taking-over")
        if end.event is RoleEvent.SUCCESSOR_GONE:
            self._context.events.emit("took_back", reason=end.reason)
            self._context.log.line(f"resumes its membership: {end.reason}")
            return TakeoverOutcome()
        if not end.predecessor:
            return TakeoverOutcome()
        self._attempt = TakeoverAttempt(
            self._context,
            self._takeover_context,
            self._observer,
            self._loop,
            record,
            predecessor=end.predecessor,
            target=self._requests.target,
            address=self._address,
        )
        return self._attempt.run()

    def _join(
        self, outcome: TakeoverOutcome, end: StandbyEnd, adopt: Callable[[Consumer, Delivery], None]
    ) -> None:
        """Begins the join first; everything that can wait comes after it."""
        standby, record = self._standby, self._record
        assert standby is not None
        assert standby.consumer is not None
        assert standby.delivery is not None
        assert record is not None
        answer = outcome.answer
        record.joins()
        member = self._attempt.member if self._attempt is not None else standby.member
        if member.taken:
            standby.consumer.replace_member(member.member_id, member.epoch)
        if answer is not None:
            standby.delivery.take_over(record, HandedOverOffsets(answer.offsets, answer.generation))
            standby.consumer.take_over(answer.offsets, answer.generation)
        else:
            standby.delivery.take_over(record, HandedOverOffsets())
            standby.consumer.take_over({})
        self._standby = None
        adopt(standby.consumer, standby.delivery)
        taken_back = end.event is RoleEvent.SUCCESSOR_GONE
        how = "taken_back" if taken_back else "asked" if answer is not None else "forced"
        self._context.metrics.count("takeovers", (how,))
        self._requests.refuse_orders(IS_MEMBER)
        standby.leave()

    def joined(self) -> None:
        """The join is done: the predecessor is fenced."""
        self._attempt, self._former = None, None

    def take_standby(self) -> tuple[StandbyConsumer, Delivery] | None:
        """The consumer that stands by, and its delivery, if there is one: they are the caller's from now
        on.
        """
        standby, self._standby = self._standby, None
        if standby is None or standby.consumer is None or standby.delivery is None:
            return None
        standby.leave()
        return standby.consumer, standby.delivery

    def joins(self, delivery: Delivery) -> None:
        """Called when a join begins that is not a handover. If it was ordered, it replaces a predecessor."""
        if self._record is not None and self._roles.role is Role.TAKING_OVER:
            self._record.joins()
            delivery.take_over(self._record, HandedOverOffsets())

    # ---- while this pod is the member

    def serves(self) -> None:
        """This worker is the member and runs: its successor may ask."""
        self._former = None
        self._takeover_context.watcher.submit(self._observer.close)
        self._requests.refuse_orders(IS_MEMBER)
        self._requests.accept_handovers()

    def ends(self) -> None:
        """It stops: refuses requests for the handover from now on."""
        self._requests.refuse_handovers("this worker stops")

    def hand_over(self, delivery: Delivery) -> bool:
        """Hands over if it was asked to. Returns whether the worker is to end as it is (see
        :meth:`Handover.run`).
        """
        asked = self._requests.next_handover()
        return asked is not None and self._handover.run(delivery, asked)

    def fenced(self, delivery: Delivery) -> None:
        """Another pod has joined as the member."""
        self._requests.refuse_handovers("another pod is the member now")
        self._attempt = None
        given = self._handover.given if self._roles.role is Role.HANDING_OVER else None
        since = max(delivery.commits.since_ms, self._context.status.joined_ms or 0)
        self._former = FormerMembership(since, given)
        if given is not None:
            self._context.events.emit("handed_over", by=given.by)
        else:
            self._context.events.emit("fenced")
            self._context.log.line(
                "another pod has joined as the member; this worker stops writing and stands by"
            )

    def close(self) -> None:
        """Withdraws what was asked, and closes what stands by."""
        if self._attempt is not None:
            self._attempt.withdraw()
        if self._record is not None:
            self._record.ends()
        standby, self._standby = self._standby, None
        if standby is not None and standby.consumer is not None:
            if standby.delivery is not None:
                standby.delivery.closing = True
            standby.consumer.close(timeout_ms=CLOSE_MS)
