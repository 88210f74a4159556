"""A member of a consumer group: the classic group protocol as one state machine.

No I/O, no clock: the owner hands in the time, responses and what the application did, and sends what
:meth:`Membership.poll` gives out. Sources: KIP-62 (timers), KIP-345 (static members), KIP-394
(MEMBER_ID_REQUIRED), KIP-429 (cooperative), KIP-800 (reasons), KIP-814 (skip_assignment), and how a
broker answers static members, which the conformance suite holds row by row.

**The fence.** FENCED_INSTANCE_ID means that another consumer joined with this ``group.instance.id``:
delivery stops and the error is raised. One exception: a static rejoin during a rebalance is stored only
with the leader's Sync, so a coordinator that moves before that brings the old member.id back and
fences the rightful owner of the id. So a member whose current member.id has never had a Sync answered,
and whose coordinator was lost since it got that id, joins once more with an empty member.id; a second
fence is final. Two consumers can never go back and forth by this rule: it is used up until a Sync succeeds,
and a member that has synced never uses it.

**Exceeding max.poll.interval.ms.** As Java: heartbeats and fetches stop, a dynamic member leaves, a static
one does not, and its partitions are idle until it polls again (it then rejoins by itself) or its session
expires.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slackwater.kafka.errors import (
    FencedInstanceIdError,
    IllegalStateError,
    KafkaError,
    KafkaProtocolError,
    for_code,
)
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.assignors import Assignor, RebalanceProtocol, common_protocol
from slackwater.kafka.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from slackwater.kafka.protocol.membership_states import (
    NEVER_MS,
    TRANSITIONS,
    Event,
    Lane,
    MembershipConfig,
    Notice,
    NoticeKind,
    Send,
    State,
)
from slackwater.kafka.structs import GenerationSeen, MembershipSnapshot, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError, ErrorCode
from slackwater.kafka.wire.schema import Request, Response

__all__ = [
    "NEVER_MS",
    "TRANSITIONS",
    "Event",
    "Lane",
    "Membership",
    "MembershipConfig",
    "Notice",
    "NoticeKind",
    "Send",
    "State",
]

log = logging.getLogger(__name__)

_GENERATIONS_KEPT = 1_000


@dataclass(slots=True)
class _Probe:
    """What DescribeGroups said just before a static member's first Join."""

    stable: bool = False
    protocol: str = ""
    mine: bytes | None = None
    covered: frozenset[TopicPartition] | None = None


@dataclass(slots=True)
class _Timers:
    heartbeat_at: int = NEVER_MS
    session_ends_at: int = NEVER_MS
    poll_ends_at: int = NEVER_MS
    retry_at: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Lead:
    """A leader's work: members' subscriptions, and the partition counts its plan was made of."""

    members: dict[str, MemberSubscription] = field(default_factory=dict)
    audit: bool = False
    wanted: frozenset[str] | None = None
    counts: dict[str, int] | None = None
    plan: dict[str, list[TopicPartition]] | None = None


class Membership:
    """One member of one group.

    ``owned``: gives the partitions the application holds now (the subscription's assignment).
    ``assignors``: in order of preference.
    """

    def __init__(
        self,
        config: MembershipConfig,
        assignors: Sequence[Assignor],
        owned: Callable[[], Collection[TopicPartition]],
    ) -> None:
        self.config = config
        self.state = State.OUT
        self.error: KafkaError | None = None
        """Why the member is dead."""
        self.member_id = ""
        self.generation = -1
        self.leader_id = ""
        self.protocol_name = ""
        self.returned = False
        self.notices: deque[Notice] = deque()
        self.coordinator_lost = False
        """Set when the coordinator has to be looked up anew; the owner clears it."""
        self.departed_member_id = ""
        """Set when a dynamic member gave up: the owner sends LeaveGroup for it, and clears it."""
        self.rebalance_protocol = common_protocol(assignors)
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._owned = owned
        self._topics: frozenset[str] = frozenset()
        self._reason = ""
        self._follow_up = False
        self._follow_up_due = -1
        self._rejoin_wanted: str | None = None
        self._missed_a_generation = False
        self._confirmed = False
        self._coordinator_moved = False
        self._fence_forgiven = False
        self._caller_away = True
        self._wait_for_caller = False
        self._assigned: tuple[TopicPartition, ...] = ()
        self._timers = _Timers()
        self._in_flight: dict[Lane, Send] = {}
        self._lead: _Lead | None = None
        self._probe: _Probe | None = None
        self._probed = False
        self._skip_sync = False
        self._previous_generation = -1
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
    def identity(self) -> tuple[int, str]:
        """The generation and member.id that commits and heartbeats carry."""
        return self.generation, self.member_id

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept through a rebalance (KIP-429)."""
        return self.rebalance_protocol is RebalanceProtocol.COOPERATIVE

    @property
    def wanted_topics(self) -> frozenset[str] | None:
        """The topics whose partition counts the leader needs now; hand them in by :meth:`plan`."""
        return self._lead.wanted if self._lead is not None else None

    @property
    def group_topics(self) -> frozenset[str]:
        """The topics whose metadata has to be watched: the leader's are those of all members."""
        if self._lead is None or not self.is_leader:
            return self._topics
        return self._topics.union(*(member.topics for member in self._lead.members.values()))

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
        """Wants to be a member with these topics; a changed set brings a rejoin."""
        wanted = frozenset(topics)
        changed, self._topics = wanted != self._topics, wanted
        if self.state is State.OUT:
            if self._caller_away:
                self._timers.poll_ends_at = now_ms + self.config.max_poll_interval_ms
            self._move(Event.WANT)
            self._prepare(lost=False, now_ms=now_ms)
        elif changed:
            self.request_rejoin("the subscription has changed", now_ms)

    def request_rejoin(self, reason: str, now_ms: int) -> None:
        """Joins again as soon as this can be done; ``reason`` goes to the broker's log (KIP-800)."""
        if self.state is State.STABLE:
            self._start_rejoin(reason, now_ms)
        elif self.state in (State.SYNCING, State.ASSIGNING) or self._is_sending(m.JoinGroupRequest):
            self._rejoin_wanted = self._rejoin_wanted or reason

    def caller_polls(self, now_ms: int) -> None:
        """The application is inside ``poll()``: it is alive."""
        self._caller_away = False
        self._timers.poll_ends_at = NEVER_MS
        if self._wait_for_caller:
            self._wait_for_caller = False
            self._advance(now_ms)

    def caller_leaves(self, now_ms: int) -> None:
        """``poll()`` returns or calls a listener: max.poll.interval.ms starts to count."""
        self._caller_away = True
        self._timers.poll_ends_at = now_ms + self.config.max_poll_interval_ms

    def notice_done(self, now_ms: int) -> None:
        """The application has been told ``notices[0]``, and the owner has changed the assignment."""
        self.notices.popleft()
        self._advance(now_ms)

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

    def leave(self) -> str:
        """Is no longer a member; the member.id to send a LeaveGroup for, empty if there is none."""
        was_in = self.member_id if self.state is not State.DEAD else ""
        self._move(Event.LEAVE)
        self._forget(drop_id=True)
        self._in_flight.clear()
        self.notices.clear()
        return was_in

    def leave_request(self, member_id: str, version: int, reason: str) -> m.LeaveGroupRequest:
        """LeaveGroup for a member.id that this member has or had, as ``version`` wants it."""
        if version < 3:
            return m.LeaveGroupRequest(group_id=self.config.group_id, member_id=member_id)
        member = m.LeaveGroupRequestMember(
            member_id=member_id, group_instance_id=self.config.instance_id, reason=reason[:255]
        )
        return m.LeaveGroupRequest(group_id=self.config.group_id, members=[member])

    # -- time ------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> tuple[list[Send], int]:
        """What to send now, and when to come back (ms) if nothing else happens before."""
        self._check_timers(now_ms)
        sends: list[Send] = []
        if Lane.GROUP not in self._in_flight and now_ms >= self._timers.retry_at:
            send = self._next_group_request()
            if send is not None:
                self._in_flight[Lane.GROUP] = send
                sends.append(send)
        if (
            self._heartbeats
            and Lane.COORDINATOR not in self._in_flight
            and now_ms >= self._timers.heartbeat_at
        ):
            beat = self._heartbeat()
            self._in_flight[Lane.COORDINATOR] = beat
            sends.append(beat)
        return sends, self._wake_at(now_ms)

    @property
    def _heartbeats(self) -> bool:
        # While a Join is parked the session does not expire, and the coordinator has nothing to tell.
        return self.in_group and self.state in (
            State.PREPARING, State.SYNCING, State.ASSIGNING, State.STABLE,
        )  # fmt: skip

    def _wake_at(self, now_ms: int) -> int:
        times = [NEVER_MS]
        if self._heartbeats:
            times += [self._timers.session_ends_at]
            if Lane.COORDINATOR not in self._in_flight:
                times += [self._timers.heartbeat_at]
        if self.state not in (State.OUT, State.DEAD):
            times += [self._timers.poll_ends_at]
        waits = self.state in (State.JOINING, State.SYNCING) and Lane.GROUP not in self._in_flight
        if waits and self._timers.retry_at > now_ms:
            times += [self._timers.retry_at]
        return min(times)

    def _check_timers(self, now_ms: int) -> None:
        if self.state in (State.OUT, State.DEAD):
            return
        if now_ms >= self._timers.poll_ends_at:
            self._timers.poll_ends_at = NEVER_MS
            self._poll_expired(now_ms)
        if self._heartbeats and now_ms >= self._timers.session_ends_at:
            log.warning(
                "group %s: no heartbeat was answered for session.timeout.ms=%d; finding the coordinator",
                self.config.group_id, self.config.session_timeout_ms,
            )  # fmt: skip
            self._timers.session_ends_at = now_ms + self.config.session_timeout_ms
            self._lost_coordinator()

    @property
    def poll_expired(self) -> bool:
        """Whether the member has gone quiet because ``poll()`` was not called in time."""
        return self._wait_for_caller

    def _poll_expired(self, now_ms: int) -> None:
        if not self._caller_away or self._wait_for_caller:
            return
        held = (
            "until then, or until its session expires, its partitions are idle: static members do not leave"
            if self.is_static
            else "it leaves the group"
        )
        log.warning(
            "group %s: poll() was not called within max.poll.interval.ms=%d. This member (%s) stops "
            "heartbeats and fetches and joins again at the next poll(); %s. Way out: poll more often, "
            "lower max.poll.records, or raise max.poll.interval.ms.",
            self.config.group_id, self.config.max_poll_interval_ms,
            self.config.instance_id or self.member_id or "not yet joined", held,
        )  # fmt: skip
        self._wait_for_caller = True
        if not self.is_static:
            self.departed_member_id = self.member_id
        self._reset("max.poll.interval.ms was exceeded", now_ms, drop_id=True)

    # -- requests out ------------------------------------------------------------------------------

    def _send(
        self, request: Request[Any], lane: Lane, timeout_ms: int, ahead: Request[Any] | None = None
    ) -> Send:
        return Send(request, lane, timeout_ms, self.identity, ahead)

    def _is_sending(self, api: type[Request[Any]]) -> bool:
        sent = self._in_flight.get(Lane.GROUP)
        return sent is not None and isinstance(sent.request, api)

    def _next_group_request(self) -> Send | None:
        if self.state is State.JOINING:
            return self._join()
        if self.state is State.SYNCING and (
            self._lead is None or self._lead.plan is not None or self._skip_sync
        ):
            return self._sync()
        return None

    def _join(self) -> Send:
        config = self.config
        owned = tuple(self._owned()) if self.cooperative else ()
        generation = self.generation if owned else -1
        protocols = [
            m.JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=encode_subscription(
                    MemberSubscription(
                        tuple(self._topics), owned, generation,
                        assignor.user_data(self._topics, generation), config.rack,
                    )
                ),
            )
            for assignor in self._assignors.values()
        ]  # fmt: skip
        request = m.JoinGroupRequest(
            group_id=config.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=config.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=self._reason or None,
        )
        ahead = None
        if self.is_static and not self.member_id and self._generations_empty():
            ahead = m.DescribeGroupsRequest(groups=[config.group_id])
        return self._send(request, Lane.GROUP, config.join_timeout_ms, ahead)

    def _generations_empty(self) -> bool:
        return not self._generations and not self._probed

    def _sync(self) -> Send:
        assignments = []
        if self._lead is not None and self._lead.plan is not None and not self._skip_sync:
            assignments = [
                m.SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
                for member, partitions in sorted(self._lead.plan.items())
            ]
        request = m.SyncGroupRequest(
            group_id=self.config.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.config.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self.protocol_name,
            assignments=assignments,
        )
        # The Sync of a member that was removed is never answered: heartbeats tell of it, and after
        # this time the Sync is repeated (of two parked Syncs a broker answers the latest).
        return self._send(request, Lane.GROUP, self.config.request_timeout_ms)

    def _heartbeat(self) -> Send:
        request = m.HeartbeatRequest(
            group_id=self.config.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.config.instance_id,
        )
        return self._send(request, Lane.COORDINATOR, self.config.heartbeat_timeout_ms)

    # -- responses in --------------------------------------------------------------------------------

    def on_ahead(self, send: Send, response: Response | None) -> None:
        """The answer to ``send.ahead``; ``None`` if there was none. It is of use only before the Join's."""
        self._probed = True
        if self._in_flight.get(send.lane) is not send or not isinstance(response, m.DescribeGroupsResponse):
            return
        try:
            self._probe = _read_probe(response, self.config.instance_id)
        except DecodeError as exc:
            log.debug("group %s: a member's assignment cannot be read: %s", self.config.group_id, exc)

    def on_response(self, send: Send, response: Response, now_ms: int) -> None:
        """The answer to ``send``. One to a request that was given up is ignored."""
        if self._in_flight.get(send.lane) is not send:
            return
        del self._in_flight[send.lane]
        if self.state in (State.OUT, State.DEAD):
            return
        if isinstance(response, m.HeartbeatResponse):
            self._on_heartbeat(send, response.error_code, now_ms)
        elif isinstance(response, m.JoinGroupResponse) and self.state is State.JOINING:
            if response.error_code:
                self._on_error(send, response.error_code, now_ms, adopt=response.member_id)
            else:
                self._on_joined(response, now_ms)
        elif isinstance(response, m.SyncGroupResponse) and self.state is State.SYNCING:
            if response.error_code:
                self._on_error(send, response.error_code, now_ms)
            else:
                self._on_synced(response, now_ms)

    def on_failure(self, send: Send, now_ms: int) -> None:
        """``send`` was not answered: connection lost or timed out. The coordinator is looked up again."""
        if self._in_flight.get(send.lane) is not send:
            return
        del self._in_flight[send.lane]
        self._lost_coordinator()
        self._back_off(now_ms)
        if send.lane is Lane.COORDINATOR:
            self._timers.heartbeat_at = self._timers.retry_at

    def on_fatal(self, error: KafkaError) -> None:
        """Something that sending again does not mend (an unsupported version, no authorization)."""
        self._die(error)

    def on_commit_error(self, code: int, identity: tuple[int, str], now_ms: int) -> None:
        """What an OffsetCommit sent with ``identity`` was answered tells of the membership, too."""
        if identity == self.identity and code in (
            ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION,
        ):  # fmt: skip
            self._on_member_error(action_for(m.HeartbeatRequest, code), code, now_ms)
        elif code == ErrorCode.NOT_COORDINATOR:
            self._lost_coordinator()

    def commit_refused_by_rebalance(self, now_ms: int) -> None:
        """An OffsetCommit was answered REBALANCE_IN_PROGRESS: a heartbeat is to ask at once what is going on.

        The answer alone does not tell: a broker gives it while the group waits for the leader's Sync (a
        rebalance this member is part of already), where a rejoin would bring one rebalance more.
        """
        self._timers.heartbeat_at = min(self._timers.heartbeat_at, now_ms)

    @property
    def join_is_under_way(self) -> bool:
        """Whether a Join is sent and not answered: the broker may be a generation ahead of this member."""
        return self.state is State.JOINING and self._is_sending(m.JoinGroupRequest)

    def commit_accepted(self, now_ms: int) -> None:
        """An accepted commit refreshes the session like a heartbeat."""
        if self.in_group:
            self._timers.session_ends_at = now_ms + self.config.session_timeout_ms

    def _on_heartbeat(self, send: Send, code: int, now_ms: int) -> None:
        self._timers.heartbeat_at = now_ms + self.config.heartbeat_interval_ms
        if send.identity != self.identity:
            return
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._timers.session_ends_at = now_ms + self.config.session_timeout_ms
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._on_group_rebalances(now_ms)
        elif code:
            self._on_error(send, code, now_ms)

    def _on_group_rebalances(self, now_ms: int) -> None:
        reason = "the group is rebalancing"
        if self.state in (State.STABLE, State.SYNCING):
            self._start_rejoin(reason, now_ms)
        elif self.state is State.ASSIGNING:
            self._rejoin_wanted = self._rejoin_wanted or reason

    def _on_error(self, send: Send, code: int, now_ms: int, adopt: str = "") -> None:
        action = action_for(type(send.request), code)
        if action is Action.ADOPT_ID:
            self.member_id = adopt
            self._confirmed = self._coordinator_moved = False
        elif action in (Action.RETRY, Action.FIND_COORDINATOR):
            if action is Action.FIND_COORDINATOR:
                self._lost_coordinator()
            self._back_off(now_ms)
            if send.lane is Lane.COORDINATOR:
                self._timers.heartbeat_at = self._timers.retry_at
        else:
            self._on_member_error(action, code, now_ms)

    def _on_member_error(self, action: Action, code: int, now_ms: int) -> None:
        name = ErrorCode.name_of(code)
        if action is Action.REJOIN_KEEPING_ID:
            self._on_group_rebalances(now_ms)
        elif action is Action.REJOIN_LOSING:
            if self.join_is_under_way:
                # The Join may have completed, with its answer still on its way over the other connection.
                return
            self._reset(f"the broker answered {name}", now_ms, drop_id=False)
        elif action is Action.REJOIN_DROPPING_ID:
            self._back_off(now_ms)
            self._reset(f"the broker answered {name}", now_ms, drop_id=True)
        elif action is Action.FENCED:
            self._on_fenced(now_ms)
        else:
            self._die(for_code(code, self._explain(code)))

    def _on_fenced(self, now_ms: int) -> None:
        if self.is_static and not self._confirmed and self._coordinator_moved and not self._fence_forgiven:
            self._fence_forgiven = True
            log.warning(
                "group %s: %s was fenced, but the coordinator moved before its join was stored: rejoining",
                self.config.group_id, self.config.instance_id,
            )  # fmt: skip
            self._reset("fenced by a coordinator that moved during the join", now_ms, drop_id=True)
            return
        self._die(
            FencedInstanceIdError(
                f"group {self.config.group_id!r}: another consumer has joined with "
                f"group.instance.id {self.config.instance_id!r}, so this one must stop"
            )
        )

    # -- joining -----------------------------------------------------------------------------------

    def _on_joined(self, response: m.JoinGroupResponse, now_ms: int) -> None:
        first = self.member_id == ""
        # Another generation came and went in between, so what is held may have been another's since.
        self._missed_a_generation = 0 <= self.generation < response.generation_id - 1
        if response.member_id != self.member_id:
            self._confirmed = False
        self.member_id, self.generation = response.member_id, response.generation_id
        self.leader_id, self.protocol_name = response.leader, response.protocol_name or ""
        self._coordinator_moved = False
        self._timers.failures, self._timers.retry_at = 0, 0
        self._timers.heartbeat_at = now_ms + self.config.heartbeat_interval_ms
        self._timers.session_ends_at = now_ms + self.config.session_timeout_ms
        if self.protocol_name not in self._assignors:
            self._die(
                KafkaProtocolError(f"the group chose {self.protocol_name!r}, which this member did not offer")
            )
            return
        self._skip_sync = bool(response.skip_assignment)
        self.returned = self._skip_sync or (first and self.generation == self._previous_generation)
        follow_up = self._follow_up or self.generation == self._follow_up_due
        if not (self.returned and self._generations and self._generations[-1].generation == self.generation):
            self._generations.append(GenerationSeen(self.generation, follow_up, now_ms))
        self._follow_up, self._follow_up_due, self._previous_generation = False, -1, self.generation
        self._move(Event.JOINED)
        self._lead = None
        if self.is_leader:
            self._take_lead(response)

    def _take_lead(self, response: m.JoinGroupResponse) -> None:
        members: dict[str, MemberSubscription] = {}
        for member in response.members:
            try:
                members[member.member_id] = decode_subscription(member.metadata, member.group_instance_id)
            except DecodeError as exc:
                log.warning(
                    "group %s: the subscription of member %s cannot be read, so it gets nothing: %s",
                    self.config.group_id, member.member_id, exc,
                )  # fmt: skip
                members[member.member_id] = MemberSubscription((), instance_id=member.group_instance_id)
        topics = frozenset(topic for one in members.values() for topic in one.topics)
        self._lead = _Lead(members, self._skip_sync, topics)

    def plan(self, counts: Mapping[str, int], now_ms: int) -> None:
        """Hands in the partition counts of :attr:`wanted_topics`; a topic that does not exist is left out."""
        lead = self._lead
        if lead is None or lead.wanted is None:
            return
        lead.counts = {topic: counts[topic] for topic in sorted(lead.wanted) if topic in counts}
        lead.wanted = None
        if lead.audit:
            self._audit(lead, now_ms)
            return
        assignor = self._assignors[self.protocol_name]
        lead.plan = assignor.assign(lead.counts, lead.members)
        planned = sum(len(partitions) for partitions in lead.plan.values())
        if self.cooperative and planned < sum(lead.counts.values()):
            self._follow_up_due = self.generation + 1

    def _audit(self, lead: _Lead, now_ms: int) -> None:
        """A leader that came back: has a topic or partition come or gone in its absence (KIP-814)?"""
        expected = {TopicPartition(t, n) for t, count in (lead.counts or {}).items() for n in range(count)}
        covered = self._probe.covered if self._probe is not None else None
        if covered is None:
            log.debug(
                "group %s: the group's assignment is not known, so it is not checked", self.config.group_id
            )
        elif covered != expected:
            self.request_rejoin("topics or partitions changed while the leader was away", now_ms)

    def metadata_changed(self, counts: Mapping[str, int], now_ms: int) -> None:
        """The leader's watch: a rejoin when a topic of the group has got or lost partitions."""
        lead = self._lead
        if lead is None or lead.counts is None or not self.is_leader:
            return
        topics = frozenset(topic for one in lead.members.values() for topic in one.topics)
        now = {topic: counts[topic] for topic in sorted(topics) if topic in counts}
        if now != lead.counts:
            changed = sorted(topic for topic in topics if now.get(topic) != lead.counts.get(topic))
            self.request_rejoin(f"partitions of {', '.join(changed)} changed", now_ms)

    def _on_synced(self, response: m.SyncGroupResponse, now_ms: int) -> None:
        try:
            assigned = decode_assignment(response.assignment)
        except DecodeError as exc:
            self._die(
                KafkaProtocolError(f"group {self.config.group_id!r}: the assignment cannot be read: {exc}")
            )
            return
        self._confirmed, self._fence_forgiven = True, False
        probe = self._probe
        if probe is not None and len(self._generations) == 1 and not self.returned:
            self.returned = (
                probe.stable and probe.mine == response.assignment and probe.protocol == self.protocol_name
            )
        self._timers.failures, self._timers.retry_at = 0, 0
        self._timers.session_ends_at = now_ms + self.config.session_timeout_ms
        self._move(Event.SYNCED)
        self._reason, self._skip_sync = "", False
        self._assignors[self.protocol_name].on_assignment(assigned, self.generation)
        self._tell_assignment(assigned, now_ms)

    def _tell_assignment(self, assigned: tuple[TopicPartition, ...], now_ms: int) -> None:
        held = set(self._owned())
        if self._missed_a_generation and held:
            self.notices.append(Notice(NoticeKind.LOST, tuple(sorted(held))))
            held = set()
        # A topic that was unsubscribed while the leader planned is not taken; the rejoin is on its way.
        self._assigned = tuple(tp for tp in assigned if tp.topic in self._topics)
        revoked = tuple(sorted(held - set(self._assigned)))
        added = tuple(sorted(set(self._assigned) - held))
        if revoked:
            self.notices.append(Notice(NoticeKind.REVOKED, revoked))
            self._follow_up = True
            self._rejoin_wanted = f"{len(revoked)} partitions were revoked and can be assigned now"
        self.notices.append(Notice(NoticeKind.ASSIGNED, added, blocking=bool(added)))
        self._advance(now_ms)

    # -- rejoining -----------------------------------------------------------------------------------

    def _start_rejoin(self, reason: str, now_ms: int) -> None:
        self._reason, self._rejoin_wanted = reason[:255], None
        self._in_flight.pop(Lane.GROUP, None)
        log.info("group %s: joining again: %s", self.config.group_id, reason)
        self._move(Event.REJOIN)
        self._prepare(lost=False, now_ms=now_ms)

    def _reset(self, reason: str, now_ms: int, *, drop_id: bool) -> None:
        """Joins again as one who is no longer in the generation: whatever is owned counts as lost."""
        log.info("group %s: joining again, partitions are lost: %s", self.config.group_id, reason)
        self._reason, self._rejoin_wanted, self._follow_up = reason[:255], None, False
        self._in_flight.clear()
        self.notices.clear()
        self._forget(drop_id=drop_id)
        self._move(Event.RESET)
        self._prepare(lost=True, now_ms=now_ms)

    def _forget(self, *, drop_id: bool) -> None:
        self.generation, self.leader_id = -1, ""
        self._lead, self._skip_sync = None, False
        self._timers.heartbeat_at = self._timers.session_ends_at = NEVER_MS
        if drop_id:
            self.member_id = ""
            self._confirmed = False

    def _prepare(self, *, lost: bool, now_ms: int) -> None:
        """What the application has to be told before the Join goes out."""
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

    def _move(self, event: Event) -> None:
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise IllegalStateError(f"a member cannot {event.name} while {self.state.value}")
        self.state = following

    def _die(self, error: KafkaError) -> None:
        self._move(Event.DIE)
        self.error = error
        self._in_flight.clear()
        self.notices.clear()
        log.error("%s", error)

    def _lost_coordinator(self) -> None:
        self.coordinator_lost = True
        self._coordinator_moved = True

    def _back_off(self, now_ms: int) -> None:
        delay = self.config.retry_backoff_ms << min(self._timers.failures, 16)
        self._timers.failures += 1
        self._timers.retry_at = now_ms + min(delay, self.config.retry_backoff_max_ms)

    def _explain(self, code: int) -> str:
        config = self.config
        where = f"group {config.group_id!r}"
        if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            offers = ", ".join(self._assignors)
            return (
                f"{where} has members that use none of this one's assignors ({offers}); set "
                "partition_assignment_strategy to one they have in common"
            )
        if code == ErrorCode.INVALID_SESSION_TIMEOUT:
            return (
                f"{where}: session_timeout_ms={config.session_timeout_ms} is outside what the broker allows "
                "(its group.min.session.timeout.ms to group.max.session.timeout.ms)"
            )
        if code == ErrorCode.GROUP_MAX_SIZE_REACHED:
            return f"{where} is full (the broker's group.max.size)"
        return where


def _read_probe(response: m.DescribeGroupsResponse, instance_id: str | None) -> _Probe:
    probe = _Probe()
    for group in response.groups[:1]:
        probe.stable = group.error_code == 0 and group.group_state == "Stable"
        probe.protocol = group.protocol_data
        if not probe.stable:
            continue
        covered: set[TopicPartition] = set()
        for member in group.members:
            covered.update(decode_assignment(member.member_assignment))
            if member.group_instance_id == instance_id:
                probe.mine = member.member_assignment
        probe.covered = frozenset(covered)
    return probe
