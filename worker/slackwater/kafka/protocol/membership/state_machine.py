"""The state and the identity of one group member, and what each event changes.

The states and the transitions between them are in :data:`~slackwater.kafka.protocol.membership.states
.TRANSITIONS`; only :meth:`StateMachine.move` changes the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from slackwater.kafka.errors import IllegalStateError, KafkaError
from slackwater.kafka.protocol.membership.fatal_errors import Fence
from slackwater.kafka.protocol.membership.leader import Lead
from slackwater.kafka.protocol.membership.notices import Notice, NoticeKind, NoticeQueue
from slackwater.kafka.protocol.membership.requests import REASON_LIMIT, InFlightRequests, Lane, MemberIdentity
from slackwater.kafka.protocol.membership.states import TRANSITIONS, Event, MembershipConfig, State
from slackwater.kafka.protocol.membership.timers import PollInterval, Timers
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m

log = logging.getLogger(__name__)


class StateMachine:
    """One member of one group: where it is, who it is, and what waits for the application or the next Join.

    ``owned``: gives the partitions that the application holds now. ``cooperative``: partitions are kept
    during a rebalance (KIP-429).
    """

    def __init__(
        self,
        config: MembershipConfig,
        owned: Callable[[], Collection[TopicPartition]],
        timers: Timers,
        *,
        cooperative: bool,
    ) -> None:
        self.config = config
        self.owned = owned
        self.timers = timers
        self.cooperative = cooperative
        self.state = State.OUT
        self.error: KafkaError | None = None
        """Why the member is dead."""
        self.member_id = ""
        self.generation = -1
        self.leader_id = ""
        self.protocol_name = ""
        self.lead: Lead | None = None
        """The plan of the current generation, if this member leads it; its own topics, if nobody leads."""
        self.missed_a_generation = False
        """Another member may have owned the partitions since, so the next assignment declares them lost."""
        self.topics: frozenset[str] = frozenset()
        """The topics that the application subscribes to."""
        self.join_reason = ""
        """The reason that the next Join carries (KIP-800)."""
        self.rejoin_reason: str | None = None
        """Why the member joins again as soon as it can; ``None``: it need not."""
        self.delayed_reason = ""
        """Why it joins again once the other members have its topics; empty: it need not."""
        self.follow_up = False
        """The next Join is the second half of a cooperative rebalance: this member revoked partitions."""
        self.follow_up_generation = -1
        """The generation that is such a second half by this leader's own plan; -1: none."""
        self.notices = NoticeQueue()
        self.in_flight = InFlightRequests()
        self.poll_interval = PollInterval(config.max_poll_interval_ms)
        self.fence = Fence()
        self._joins = 0

    # -- state and identity ------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether the member leads the current generation."""
        return self.in_group and self.leader_id == self.member_id

    @property
    def in_group(self) -> bool:
        """Whether the coordinator counts it among the members, as far as it knows."""
        return self.generation >= 0 and bool(self.member_id)

    @property
    def identity(self) -> MemberIdentity:
        """The identity that commits and heartbeats are sent with."""
        return MemberIdentity(self.generation, self.member_id, self._joins)

    @property
    def join_is_under_way(self) -> bool:
        """Whether a Join is sent and not answered: the broker may be a generation ahead of this member."""
        return self.state is State.JOINING and self.in_flight.has(m.JoinGroupRequest)

    @property
    def lost(self) -> frozenset[TopicPartition]:
        """Partitions that other members may own by now, and that the application still holds."""
        return frozenset(self.owned()) if self.missed_a_generation else self.notices.lost

    def move(self, event: Event) -> None:
        """Changes the state. Raises :class:`IllegalStateError` for an event that the state does not allow."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise IllegalStateError(f"a member cannot {event.name} while {self.state.value}")
        self.state = following

    def adopt_id(self, member_id: str) -> None:
        """Takes the member.id that the broker gave before the Join (KIP-394)."""
        self.member_id = member_id
        self.fence.new_id()
        self.fence.joined()

    def joined(self, response: m.JoinGroupResponse) -> None:
        """Takes the identity in the generation that the Join gave; the state does not change yet."""
        # If a generation came and went in between, another member may have owned the partitions. The
        # application learns it with the assignment, so the flag survives a Sync that is refused.
        if 0 <= self.generation < response.generation_id - 1:
            self.missed_a_generation = True
        if response.member_id != self.member_id:
            self.fence.new_id()
        self.fence.joined()
        self.member_id, self.generation = response.member_id, response.generation_id
        self._joins += 1
        self.leader_id, self.protocol_name = response.leader, response.protocol_name or ""

    def take_follow_up(self) -> bool:
        """Whether the current generation is the second half of a cooperative rebalance; true once."""
        follow_up = self.follow_up or self.generation == self.follow_up_generation
        self.follow_up, self.follow_up_generation = False, -1
        return follow_up

    # -- requests in flight --------------------------------------------------------------------------

    def drop_request(self, lane: Lane) -> None:
        """From now on an answer to the lane's request is ignored."""
        self.in_flight.remove(lane)
        if lane is Lane.GROUP:
            self.timers.request_over()

    def _drop_requests(self) -> None:
        for lane in Lane:
            self.drop_request(lane)

    # -- events ----------------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str], now_ms: int) -> None:
        """The application subscribes to these topics, instead of those before."""
        changed, self.topics = topics != self.topics, topics
        if self.state is State.OUT:
            if self.poll_interval.away:
                self.poll_interval.leave(now_ms)
            self.move(Event.WANT)
            self._prepare(lost=False, now_ms=now_ms)
        elif changed:
            self.request_rejoin("the subscription has changed", now_ms)
            if self.notices.keep_subscribed(topics, self.owned()):
                self.advance(now_ms)

    def request_rejoin(self, reason: str, now_ms: int) -> None:
        """Joins again now, or when the rebalance under way is over."""
        if self.state is State.STABLE:
            self.start_rejoin(reason, now_ms)
        elif self.state in (State.SYNCING, State.ASSIGNING) or self.in_flight.has(m.JoinGroupRequest):
            self.rejoin_after(reason)

    def rejoin_after(self, reason: str) -> None:
        """Joins again when the rebalance under way is over; an earlier reason is kept."""
        self.rejoin_reason = self.rejoin_reason or reason

    def start_rejoin(self, reason: str, now_ms: int) -> None:
        """Joins again as a member of the current generation."""
        self.join_reason, self.rejoin_reason = reason[:REASON_LIMIT], None
        self.drop_request(Lane.GROUP)
        log.info("group %s: joining again: %s", self.config.group_id, reason)
        self.move(Event.REJOIN)
        self._prepare(lost=False, now_ms=now_ms)

    def reset(self, reason: str, now_ms: int, *, drop_id: bool) -> None:
        """Joins again as a member that has left the generation: all owned partitions are lost."""
        log.info("group %s: joining again, partitions are lost: %s", self.config.group_id, reason)
        self.join_reason, self.rejoin_reason, self.follow_up = reason[:REASON_LIMIT], None, False
        self._drop_requests()
        self.notices.clear()
        self._leave_generation(drop_id=drop_id)
        self.move(Event.RESET)
        self._prepare(lost=True, now_ms=now_ms)

    def leave(self) -> str:
        """Ends the membership. Returns the member.id to send a LeaveGroup for, empty if there is none."""
        member_id = self.member_id if self.state is not State.DEAD else ""
        self.move(Event.LEAVE)
        self._leave_generation(drop_id=True)
        self._drop_requests()
        self.notices.clear()
        return member_id

    def die(self, error: KafkaError) -> None:
        """Ends the membership for good; the application gets ``error``."""
        self.move(Event.DIE)
        self.error = error
        self._drop_requests()
        self.notices.clear()
        log.error("%s", error)

    def assign(self, assigned: tuple[TopicPartition, ...], now_ms: int) -> None:
        """Queues the notices that lead from the partitions that are held to those of a Sync."""
        held = set(self.owned())
        if self.missed_a_generation and held:
            self.notices.add(Notice(NoticeKind.LOST, tuple(sorted(held))))
            held = set()
        self.missed_a_generation = False
        revoked = tuple(sorted(held - set(assigned)))
        added = tuple(sorted(set(assigned) - held))
        if revoked:
            self.notices.add(Notice(NoticeKind.REVOKED, revoked))
            self.follow_up = True
            self.rejoin_reason = f"{len(revoked)} partitions were revoked and can be assigned now"
        self.notices.add(Notice(NoticeKind.ASSIGNED, added, blocking=bool(added)))
        self.advance(now_ms)

    def advance(self, now_ms: int) -> None:
        """Goes on if neither a notice nor the poll interval holds the member back."""
        if self.poll_interval.exceeded or self.notices.is_blocking:
            return
        if self.state is State.PREPARING:
            self.move(Event.PREPARED)
        elif self.state is State.ASSIGNING:
            self.move(Event.APPLIED)
            if self.rejoin_reason is not None:
                self.start_rejoin(self.rejoin_reason, now_ms)

    def _leave_generation(self, *, drop_id: bool) -> None:
        self.generation, self.leader_id, self.lead = -1, "", None
        self.missed_a_generation = False
        self.timers.out_of_group()
        if drop_id:
            self.member_id = ""
            self.fence.new_id()

    def _prepare(self, *, lost: bool, now_ms: int) -> None:
        """Queues what the application gives up before the Join."""
        self.timers.rebalance_begins()
        self.delayed_reason = ""
        owned = tuple(sorted(self.owned()))
        if lost and owned:
            self.notices.add(Notice(NoticeKind.LOST, owned))
        elif not lost:
            revoked = (
                owned if not self.cooperative else tuple(tp for tp in owned if tp.topic not in self.topics)
            )
            if revoked:
                self.notices.add(Notice(NoticeKind.REVOKED, revoked))
        self.advance(now_ms)
