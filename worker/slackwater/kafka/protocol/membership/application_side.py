"""A member of a group, the half that the application sees: what it wants, what it is told, what it may do.

The other half, which speaks with the coordinator, is
:class:`~slackwater.kafka.protocol.membership.member.Membership`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from slackwater.kafka.errors import IllegalStateError, KafkaError
from slackwater.kafka.protocol.assignors import Assignor, RebalanceProtocol, common_protocol
from slackwater.kafka.protocol.diagnostics import Diagnostics
from slackwater.kafka.protocol.membership.fencing import Fence
from slackwater.kafka.protocol.membership.leader import Lead
from slackwater.kafka.protocol.membership.requests import REASON_LIMIT
from slackwater.kafka.protocol.membership.states import (
    NEVER_MS,
    TRANSITIONS,
    Event,
    Identity,
    Lane,
    MembershipConfig,
    Notice,
    NoticeKind,
    Send,
    State,
)
from slackwater.kafka.protocol.membership.stats import MembershipStats
from slackwater.kafka.protocol.membership.timers import Timers
from slackwater.kafka.protocol.notices import leave_out_unread
from slackwater.kafka.structs import GenerationSeen, MembershipSnapshot, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.schema import Request

log = logging.getLogger(__name__)

_GENERATIONS_KEPT = 1_000


class MemberCore:
    """One member of one group.

    ``owned``: gives the partitions the application holds now (the subscription's assignment).
    ``assignors``: in order of preference. ``retry_delay_ms``: how long to wait after the n-th failure in a
    row, counted from 1.
    """

    def __init__(
        self,
        config: MembershipConfig,
        assignors: Sequence[Assignor],
        owned: Callable[[], Collection[TopicPartition]],
        retry_delay_ms: Callable[[int], float],
    ) -> None:
        self.config = config
        self.state = State.OUT
        self.error: KafkaError | None = None
        """Why the member is dead."""
        self.member_id = ""
        self.generation = -1
        self.leader_id = ""
        self.protocol_name = ""
        self.group_protocol_type = ""
        """What the group is at the broker, where it has refused a Join; "": not known."""
        self.returned = False
        self.notices: deque[Notice] = deque()
        self.coordinator_lost = False
        """Set when the coordinator has to be looked up anew; the owner clears it."""
        self.departed_member_id = ""
        """Set when a dynamic member gave up: the owner sends LeaveGroup for it, and clears it."""
        self.rebalance_protocol = common_protocol(assignors)
        self.diagnostics = Diagnostics(config)
        self.stats = MembershipStats()
        self.timers = Timers(config, retry_delay_ms)
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._owned = owned
        self._topics: frozenset[str] = frozenset()
        self._reason = ""
        self._follow_up = False
        self._rejoin_wanted: str | None = None
        self._delayed = ""
        """Why it is to rejoin when the other members have its topics, too; empty: it need not."""
        self._fence = Fence()
        self._caller_away = True
        self._caller_left_at = -1
        self._wait_for_caller = False
        self._in_flight: dict[Lane, Send] = {}
        self._lead: Lead | None = None
        self._skip_sync = False
        self._missed_a_generation = False
        self._joins = 0
        self._generations: deque[GenerationSeen] = deque(maxlen=_GENERATIONS_KEPT)

    # -- what can be seen ----------------------------------------------------------------------

    @property
    def is_static(self) -> bool:
        """Whether it has a ``group.instance.id``."""
        return self.config.instance_id is not None

    @property
    def is_leader(self) -> bool:
        """Whether it leads the current generation."""
        return self.generation >= 0 and bool(self.member_id) and self.leader_id == self.member_id

    @property
    def in_group(self) -> bool:
        """Whether the coordinator counts it among the members, as far as it knows."""
        return self.generation >= 0 and bool(self.member_id)

    @property
    def identity(self) -> Identity:
        """Who commits and heartbeats speak for."""
        return Identity(self.generation, self.member_id, self._joins)

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept through a rebalance (KIP-429)."""
        return self.rebalance_protocol is RebalanceProtocol.COOPERATIVE

    @property
    def wanted_topics(self) -> frozenset[str] | None:
        """The topics whose partition counts the leader needs now; hand them in by :meth:`Membership.plan`."""
        return self._lead.wanted if self._lead is not None else None

    @property
    def group_topics(self) -> frozenset[str]:
        """The topics whose metadata has to be watched: the leader's are those of all members."""
        if self._lead is None or not self.is_leader:
            return self._topics
        return self._topics | self._lead.topics

    @property
    def poll_expired(self) -> bool:
        """Whether the member has gone quiet because ``poll()`` was not called in time."""
        return self._wait_for_caller

    @property
    def join_is_under_way(self) -> bool:
        """Whether a Join is sent and not answered: the broker may be a generation ahead of this member."""
        return self.state is State.JOINING and self._is_sending(m.JoinGroupRequest)

    def _is_sending(self, api: type[Request[Any]]) -> bool:
        sent = self._in_flight.get(Lane.GROUP)
        return sent is not None and isinstance(sent.request, api)

    def snapshot(self) -> MembershipSnapshot:
        """What this member knows of its membership."""
        return MembershipSnapshot(
            self.state.value,
            self.generation,
            self.member_id,
            self.config.instance_id,
            self.is_leader,
            tuple(self._generations),
            self.returned,
            self.protocol_name,
        )

    # -- what the application does ----------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], now_ms: int) -> None:
        """Wants to be a member with these topics; a changed set brings a rejoin.

        Partitions that were assigned and not told yet are not taken if their topic is not in it any more (as
        in Java's ``ConsumerCoordinator.onJoinComplete``, which runs in ``poll()`` as the listener does).
        """
        wanted = frozenset(topics)
        changed, self._topics = wanted != self._topics, wanted
        if self.state is State.OUT:
            if self._caller_away:
                self.caller_leaves(now_ms)
            self._move(Event.WANT)
            self._prepare(lost=False, now_ms=now_ms)
        elif changed:
            self.request_rejoin("the subscription has changed", now_ms)
            if leave_out_unread(self.notices, wanted, self._owned()):
                self._advance(now_ms)

    def request_rejoin(self, reason: str, now_ms: int) -> None:
        """Joins again as soon as this can be done; ``reason`` goes to the broker's log (KIP-800)."""
        if self.state is State.STABLE:
            self._start_rejoin(reason, now_ms)
        elif self.state in (State.SYNCING, State.ASSIGNING) or self._is_sending(m.JoinGroupRequest):
            self._rejoin_wanted = self._rejoin_wanted or reason

    def caller_polls(self, now_ms: int) -> None:
        """The application is inside ``poll()``: it is alive."""
        self._caller_away = False
        self.timers.poll_ends_at = NEVER_MS
        if self._wait_for_caller:
            self._wait_for_caller = False
            self.diagnostics.poll_resumed(now_ms - self._caller_left_at, now_ms)
            self._advance(now_ms)

    def caller_leaves(self, now_ms: int) -> None:
        """``poll()`` returns or calls a listener: max.poll.interval.ms starts to count."""
        self._caller_away = True
        if not self._wait_for_caller:
            self._caller_left_at = now_ms
        self.timers.poll_ends_at = now_ms + self.config.max_poll_interval_ms

    def notice_done(self, now_ms: int) -> None:
        """The application has been told ``notices[0]``, and the owner has changed the assignment."""
        self.notices.popleft()
        self._advance(now_ms)

    def already_gone(self, partitions: Collection[TopicPartition], now_ms: int) -> None:
        """The application was being told that these go while the member moved on: not to be told twice."""
        gone, waiting = set(partitions), list(self.notices)
        self.notices.clear()
        for notice in waiting:
            if notice.kind is NoticeKind.ASSIGNED:
                self.notices.append(notice)
            elif left := tuple(tp for tp in notice.partitions if tp not in gone):
                self.notices.append(replace(notice, partitions=left))
        self._advance(now_ms)

    def leave(self) -> str:
        """Is no longer a member; the member.id to send a LeaveGroup for, empty if there is none."""
        was_in = self.member_id if self.state is not State.DEAD else ""
        self._move(Event.LEAVE)
        self._forget(drop_id=True)
        self._clear_flights()
        self.notices.clear()
        return was_in

    def _advance(self, now_ms: int) -> None:
        """Goes on when nothing that blocks is left to be told."""
        if self._wait_for_caller or any(notice.blocking for notice in self.notices):
            return
        if self.state is State.PREPARING:
            self._move(Event.PREPARED)
        elif self.state is State.ASSIGNING:
            self._move(Event.APPLIED)
            if self._rejoin_wanted is not None:
                self._start_rejoin(self._rejoin_wanted, now_ms)

    # -- rejoining -----------------------------------------------------------------------------------

    def _start_rejoin(self, reason: str, now_ms: int) -> None:
        self._reason, self._rejoin_wanted = reason[:REASON_LIMIT], None
        self._drop_flight(Lane.GROUP)
        log.info("group %s: joining again: %s", self.config.group_id, reason)
        self._move(Event.REJOIN)
        self._prepare(lost=False, now_ms=now_ms)

    def _reset(self, reason: str, now_ms: int, *, drop_id: bool) -> None:
        """Joins again as one who is no longer in the generation: whatever is owned counts as lost."""
        log.info("group %s: joining again, partitions are lost: %s", self.config.group_id, reason)
        self._reason, self._rejoin_wanted, self._follow_up = reason[:REASON_LIMIT], None, False
        self._clear_flights()
        self.notices.clear()
        self._forget(drop_id=drop_id)
        self._move(Event.RESET)
        self._prepare(lost=True, now_ms=now_ms)

    def _forget(self, *, drop_id: bool) -> None:
        self.generation, self.leader_id = -1, ""
        self._lead, self._skip_sync = None, False
        self._missed_a_generation = False
        self.timers.out_of_group()
        if drop_id:
            self.member_id = ""
            self._fence.new_id()

    def _prepare(self, *, lost: bool, now_ms: int) -> None:
        """What the application has to be told before the Join goes out."""
        self.timers.rebalance_begins()
        self._delayed = ""
        owned = tuple(sorted(self._owned()))
        if lost and owned:
            self.notices.append(Notice(NoticeKind.LOST, owned))
        elif not lost:
            gone = (
                owned if not self.cooperative else tuple(tp for tp in owned if tp.topic not in self._topics)
            )
            if gone:
                self.notices.append(Notice(NoticeKind.REVOKED, gone))
        self._advance(now_ms)

    # -- small things ------------------------------------------------------------------------------------

    def _drop_flight(self, lane: Lane) -> None:
        """What is under way there is answered in vain from now on."""
        self._in_flight.pop(lane, None)
        if lane is Lane.GROUP:
            self.timers.request_over()

    def _clear_flights(self) -> None:
        for lane in Lane:
            self._drop_flight(lane)

    def _move(self, event: Event) -> None:
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise IllegalStateError(f"a member cannot {event.name} while {self.state.value}")
        self.state = following

    def _die(self, error: KafkaError) -> None:
        self._move(Event.DIE)
        self.error = error
        self._clear_flights()
        self.notices.clear()
        log.error("%s", error)

    def _lost_coordinator(self) -> None:
        self.coordinator_lost = True
        self._fence.coordinator_moved = True
