"""A member of a consumer group: the classic group protocol without I/O and without a clock.

The owner hands in the time, responses and the application's calls, and sends what :meth:`Membership.poll`
returns. Sources: KIP-62 (timers), KIP-219 (quotas), KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED),
KIP-429 (cooperative), KIP-800 (reasons), KIP-814 (skip_assignment), KAFKA-12759, and how a broker answers
static members, which the conformance suite holds row by row.

:class:`Membership` decides when to send what, and what an answer means. It owns a ``StateMachine`` (state,
identity, transitions), a ``JoinSync`` (the exchange that makes a generation), ``Timers`` and ``Diagnostics``.

**Exceeding max.poll.interval.ms.** As in Java, heartbeats and fetches stop and a dynamic member leaves. A
static member does not leave: its partitions are idle until it polls again (then it joins by itself) or its
session expires.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from slackwater.kafka.errors import FencedInstanceIdError, KafkaError, for_code
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.assignors import Assignor, Racks, RebalanceProtocol, common_protocol
from slackwater.kafka.protocol.diagnostics import Diagnostics
from slackwater.kafka.protocol.membership import requests
from slackwater.kafka.protocol.membership.fatal_errors import explain
from slackwater.kafka.protocol.membership.history import MembershipStats
from slackwater.kafka.protocol.membership.join_sync import JoinSync
from slackwater.kafka.protocol.membership.notices import NoticeQueue
from slackwater.kafka.protocol.membership.requests import Lane, MemberIdentity, Send
from slackwater.kafka.protocol.membership.state_machine import StateMachine
from slackwater.kafka.protocol.membership.states import (
    NEVER_MS,
    SUBSCRIPTIONS_ASKED_MS,
    MembershipConfig,
    State,
)
from slackwater.kafka.protocol.membership.static_return import read_description
from slackwater.kafka.protocol.membership.timers import Timers
from slackwater.kafka.structs import MembershipSnapshot, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request, Response

_BEATING = (State.PREPARING, State.SYNCING, State.ASSIGNING, State.STABLE)
"""States with heartbeats. While a Join is parked the session does not expire, so none are needed."""
_MEMBER_ERRORS = (
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
)


class Membership:
    """One member of one group.

    ``owned``: gives the partitions that the application holds now (the subscription's assignment).
    ``assignors``: in order of preference. ``retry_delay_ms``: how long to wait after the n-th failure in a
    row, counted from 1. ``stats``: receives durations for metrics.
    """

    reader = None
    """Committed offsets are asked for without saying who asks."""
    leaves_by = m.LeaveGroupRequest
    returns = False
    """Whether a static member that ends for a moment says so."""

    def __init__(
        self,
        config: MembershipConfig,
        assignors: Sequence[Assignor],
        owned: Callable[[], Collection[TopicPartition]],
        retry_delay_ms: Callable[[int], float],
        stats: MembershipStats | None = None,
    ) -> None:
        self.config = config
        self.group_protocol_type = ""
        """The group's protocol type at the broker, if it has refused a Join; "": not known."""
        self.coordinator_lost = False
        """Set when the coordinator has to be looked up again; the owner clears it."""
        self._place: tuple[int, str] | None = None
        """The generation and member.id that a static member has had, until it knows that no other process has
        its place."""
        self.departed_member_id = ""
        """Set when a dynamic member gave up: the owner sends LeaveGroup for it, and clears it."""
        self.diagnostics = Diagnostics(config)
        self.stats = stats or MembershipStats()
        self.timers = Timers(config, retry_delay_ms)
        cooperative = common_protocol(assignors) is RebalanceProtocol.COOPERATIVE
        self._machine = StateMachine(config, owned, self.timers, cooperative=cooperative)
        self._exchange = JoinSync(self._machine, assignors, self.diagnostics, self.stats)
        self._beat_sent_at = -1

    # -- state -------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the member."""
        return self._machine.state

    @property
    def error(self) -> KafkaError | None:
        """Why the member is dead."""
        return self._machine.error

    @property
    def member_id(self) -> str:
        """The member.id; empty: none."""
        return self._machine.member_id

    @property
    def generation(self) -> int:
        """The generation that the member has joined; -1: none."""
        return self._machine.generation

    @property
    def identity(self) -> MemberIdentity:
        """The identity that commits and heartbeats are sent with."""
        return self._machine.identity

    @property
    def in_group(self) -> bool:
        """Whether the coordinator counts it among the members, as far as it knows."""
        return self._machine.in_group

    @property
    def is_leader(self) -> bool:
        """Whether it leads the current generation."""
        return self._machine.is_leader

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance (KIP-429)."""
        return self._machine.cooperative

    @property
    def returned(self) -> bool:
        """Whether the last Join was a static member's return without a rebalance (KIP-345)."""
        return self._exchange.returned

    @property
    def notices(self) -> NoticeQueue:
        """The changes of the assignment that the application has not handled yet."""
        return self._machine.notices

    @property
    def lost(self) -> frozenset[TopicPartition]:
        """Partitions that other members may own by now, and that the application still holds."""
        return self._machine.lost

    @property
    def join_is_under_way(self) -> bool:
        """Whether a Join is sent and not answered: the broker may be a generation ahead of this member."""
        return self._machine.join_is_under_way

    @property
    def poll_expired(self) -> bool:
        """Whether the member is silent because ``poll()`` was not called in time."""
        return self._machine.poll_interval.exceeded

    @property
    def wanted_topics(self) -> frozenset[str] | None:
        """The topics whose partition counts the leader needs now; pass them to :meth:`plan`."""
        return self._machine.lead.wanted if self._machine.lead is not None else None

    @property
    def group_topics(self) -> frozenset[str]:
        """The topics whose metadata has to be watched: a leader watches those of all members."""
        machine = self._machine
        if machine.lead is None or not machine.is_leader:
            return machine.topics
        return machine.topics | machine.lead.topics

    def snapshot(self) -> MembershipSnapshot:
        """The membership as this member knows it."""
        machine = self._machine
        return MembershipSnapshot(
            machine.state.value,
            machine.generation,
            machine.member_id,
            self.config.instance_id,
            machine.is_leader,
            self._exchange.history.generations,
            self._exchange.returned,
            machine.protocol_name,
        )

    # -- calls of the application ------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], now_ms: int) -> None:
        """Joins with these topics; a changed set causes a rejoin.

        Partitions that were assigned and whose notice the application has not handled are dropped if their
        topic is no longer in the set (as in Java's ``ConsumerCoordinator.onJoinComplete``, which runs in
        ``poll()`` like the listener).
        """
        self._machine.subscribe(frozenset(topics), now_ms)

    def expect_rebalance(self, now_ms: int) -> None:
        """Does nothing: all members of a rebalance wait for each other."""

    def replace(self, member_id: str, epoch: int | None) -> None:
        """Does nothing: a Join without a member id fences whoever has the instance id (KIP-345)."""

    def request_rejoin(self, reason: str, now_ms: int) -> None:
        """Joins again as soon as possible; ``reason`` goes to the broker's log (KIP-800)."""
        self._machine.request_rejoin(reason, now_ms)

    def caller_polls(self, now_ms: int) -> None:
        """The application is inside ``poll()``."""
        away_ms = self._machine.poll_interval.enter(now_ms)
        if away_ms is not None:
            self.diagnostics.poll_resumed(away_ms, now_ms)
            self._machine.advance(now_ms)

    def caller_leaves(self, now_ms: int) -> None:
        """``poll()`` returns or calls a listener: max.poll.interval.ms begins."""
        self._machine.poll_interval.leave(now_ms)

    def notice_done(self, now_ms: int) -> None:
        """The application has handled ``notices[0]``, and the owner has changed the assignment."""
        self.notices.remove_first()
        self._machine.advance(now_ms)

    def already_gone(self, partitions: Collection[TopicPartition], now_ms: int) -> None:
        """The application gave these up for a notice that was dropped meanwhile; no notice repeats them."""
        self.notices.drop_given_up(partitions)
        self._machine.advance(now_ms)

    def leave(self) -> str:
        """Ends the membership. Returns the member.id to send a LeaveGroup for, empty if there is none."""
        self._place = None
        return self._machine.leave()

    def leave_request(
        self, member_id: str, version: int, reason: str, *, for_good: bool
    ) -> m.LeaveGroupRequest:
        """LeaveGroup for a member.id that this member has or had, as ``version`` wants it."""
        return requests.leave_request(self.config, member_id, version, reason)

    # -- partition counts for the leader -------------------------------------------------------------

    def plan(self, counts: Mapping[str, int], now_ms: int, racks: Racks | None = None) -> None:
        """Takes the partition counts of :attr:`wanted_topics`, without the topics that do not exist.

        ``racks``: where the replicas of the partitions are, for assignors that use racks (KIP-881).
        """
        self._exchange.plan(counts, now_ms, racks)

    def metadata_changed(self, counts: Mapping[str, int], now_ms: int, racks: Racks | None = None) -> None:
        """A leader requests a rejoin when a topic of the group has got or lost partitions.

        So does each member for its own topics where nobody leads, since the broker assigns.

        Also, if the leader has a rack itself (as in Java), when the ``racks`` of replicas have changed.
        """
        self._exchange.metadata_changed(counts, now_ms, racks)

    # -- time --------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> tuple[list[Send], int]:
        """The requests to send now, and when to call this again at the latest (ms)."""
        self._check_timers(now_ms)
        sends: list[Send] = []
        if self._may_send(Lane.GROUP, now_ms) and now_ms >= self.timers.retry_at:
            sends += self._sent(self._next_group_request(now_ms))
        if self._may_send(Lane.COORDINATOR, now_ms):
            if self._beats and now_ms >= self.timers.heartbeat_at:
                sends += self._sent(self._heartbeat(now_ms))
            elif self.state is State.JOINING and now_ms >= self.timers.diagnose_at:
                sends += self._sent(self._ask_who_is_missing(now_ms))
            elif self.state is State.STABLE and now_ms >= self.timers.subscriptions_at:
                sends += self._sent(self._ask_for_subscriptions(now_ms))
        return sends, self._wake_at(now_ms)

    @property
    def _beats(self) -> bool:
        return self.in_group and self.state in _BEATING

    def _may_send(self, lane: Lane, now_ms: int) -> bool:
        return lane not in self._machine.in_flight and self.timers.may_send(lane, now_ms)

    def _sent(self, send: Send | None) -> list[Send]:
        if send is None:
            return []
        self._machine.in_flight.add(send)
        return [send]

    def _wake_at(self, now_ms: int) -> int:
        if self.state in (State.OUT, State.DEAD):
            return NEVER_MS
        timers, in_flight = self.timers, self._machine.in_flight
        poll_ends_at = self._machine.poll_interval.ends_at
        times = [poll_ends_at, timers.request_ends_at, timers.rejoin_at, timers.delay_ends_at]
        if self._beats:
            times.append(timers.session_ends_at)
        if Lane.COORDINATOR not in in_flight:
            quiet = timers.quiet_until.get(Lane.COORDINATOR, 0)
            if self._beats:
                times.append(max(timers.heartbeat_at, quiet))
            elif self.state is State.JOINING:
                times.append(max(timers.diagnose_at, quiet))
            if self.state is State.STABLE:
                times.append(max(timers.subscriptions_at, quiet))
        if self.state in (State.JOINING, State.SYNCING) and Lane.GROUP not in in_flight:
            again = max(timers.retry_at, timers.quiet_until.get(Lane.GROUP, 0))
            if again > now_ms:
                times.append(again)
        return min(times)

    def _check_timers(self, now_ms: int) -> None:
        timers = self.timers
        if self.state in (State.OUT, State.DEAD):
            return
        if now_ms >= self._machine.poll_interval.ends_at and self._machine.poll_interval.expire():
            self._poll_expired(now_ms)
        if self._beats and now_ms >= timers.session_ends_at:
            self.diagnostics.silent(f"for session.timeout.ms={self.config.session_timeout_ms}", now_ms)
            timers.refresh_session(now_ms)
            self._lose_coordinator()
        if now_ms >= timers.request_ends_at:
            self._request_expired(now_ms)
        if now_ms >= timers.rejoin_at:
            timers.rejoin_at = NEVER_MS
            self.request_rejoin("partitions that were held back are due", now_ms)
        if now_ms >= timers.delay_ends_at:
            timers.delay_ends_at = NEVER_MS
            self.request_rejoin(self._machine.delayed_reason, now_ms)

    def _poll_expired(self, now_ms: int) -> None:
        self.diagnostics.poll_late(self.config.instance_id or self.member_id or self.config.name, now_ms)
        if self.config.instance_id is None:
            self.departed_member_id = self.member_id
        self._remember_place()
        self._machine.reset("max.poll.interval.ms was exceeded", now_ms, drop_id=True)

    def _request_expired(self, now_ms: int) -> None:
        """The member's own time limit of the Join or Sync is over, which is independent of the network's."""
        syncing, sync_sent_at = self._machine.in_flight.has(m.SyncGroupRequest), self._exchange.sync_sent_at
        self._machine.drop_request(Lane.GROUP)
        if syncing and self.timers.heard_at >= sync_sent_at:
            # The coordinator is alive; of two parked Syncs it answers the latest.
            self.diagnostics.sync_unanswered(now_ms - sync_sent_at, now_ms)
            return
        self._lose_coordinator()
        self.timers.back_off(now_ms)

    # -- requests out --------------------------------------------------------------------------------

    def _next_group_request(self, now_ms: int) -> Send | None:
        if self.state is State.JOINING:
            return self._exchange.join(now_ms) if self._place is None else self._ask_for_place(*self._place)
        return self._exchange.sync(now_ms) if self.state is State.SYNCING else None

    def _send(self, request: Request[Any], timeout_ms: int) -> Send:
        return Send(request, Lane.COORDINATOR, timeout_ms, self.identity)

    def _heartbeat(self, now_ms: int) -> Send:
        self._beat_sent_at = now_ms
        request = requests.heartbeat_request(self.config, self.generation, self.member_id)
        return self._send(request, self.config.heartbeat_timeout_ms)

    def _remember_place(self) -> None:
        if self.config.instance_id is not None and self.in_group:
            self._place = (self.generation, self.member_id)

    def _ask_for_place(self, generation: int, member_id: str) -> Send:
        """A heartbeat with the former identity: a Join without one would displace a process that has come
        since, and that a broker only defends against a known member.id (FENCED_INSTANCE_ID)."""
        self.timers.diagnose_at = NEVER_MS
        request = requests.heartbeat_request(self.config, generation, member_id)
        return Send(request, Lane.GROUP, self.config.heartbeat_timeout_ms, self.identity)

    def _ask_who_is_missing(self, now_ms: int) -> Send:
        """Asks the coordinator for the group's members while a Join is parked for long.

        This also detects a coordinator that has vanished (no power, no route) before the rebalance timeout.
        """
        limit = self.config.heartbeat_timeout_ms
        self.timers.diagnose_at = now_ms + max(self.config.slow_join_ms, limit)
        return self._send(requests.describe_request(self.config), limit)

    def _ask_for_subscriptions(self, now_ms: int) -> Send:
        """Asks whether the other members still have other topics than this member."""
        limit = self.config.heartbeat_timeout_ms
        self.timers.subscriptions_at = now_ms + SUBSCRIPTIONS_ASKED_MS
        return self._send(requests.describe_request(self.config), limit)

    # -- responses in --------------------------------------------------------------------------------

    def on_ahead(self, send: Send, response: Response | None) -> None:
        """The answer to ``send.ahead``, ``None`` if there was none; to be called before the Join's answer."""
        if self._machine.in_flight.expects(send) and isinstance(response, m.DescribeGroupsResponse):
            self._exchange.described(response)

    def on_response(self, send: Send, response: Response, now_ms: int) -> None:
        """The answer to ``send``. One to a request that was given up is ignored."""
        if not self._machine.in_flight.expects(send):
            return
        self._machine.drop_request(send.lane)
        if self.state in (State.OUT, State.DEAD):
            return
        self.on_throttle(type(send.request), getattr(response, "throttle_time_ms", 0), send.lane, now_ms)
        if isinstance(response, m.HeartbeatResponse) and send.lane is Lane.GROUP:
            self._on_place(send, response.error_code, now_ms)
        elif isinstance(response, m.HeartbeatResponse):
            self._on_heartbeat(send, response.error_code, now_ms)
        elif isinstance(response, m.DescribeGroupsResponse):
            self._on_described(response, now_ms)
        elif isinstance(response, m.JoinGroupResponse) and self.state is State.JOINING:
            if response.error_code:
                self._on_error(send, response.error_code, now_ms, adopt=response.member_id)
            else:
                self._exchange.on_joined(response, now_ms)
        elif isinstance(response, m.SyncGroupResponse) and self.state is State.SYNCING:
            if response.error_code:
                took = now_ms - self._exchange.sync_sent_at
                self.stats.failed(now_ms)
                self.diagnostics.sync_failed(ErrorCode.name_of(response.error_code), took, now_ms)
                self._on_error(send, response.error_code, now_ms)
            else:
                self._exchange.on_synced(response, now_ms)

    def on_throttle(self, api: type[Request[Any]], throttle_ms: int, lane: Lane, now_ms: int) -> None:
        """An answer on ``lane`` had ``throttle_time_ms``: nothing more goes out there before (KIP-219)."""
        self.timers.throttle(lane, throttle_ms, now_ms)
        self.diagnostics.throttled(api.__name__.removesuffix("Request"), throttle_ms, now_ms)

    def on_failure(self, send: Send, now_ms: int) -> None:
        """``send`` was not answered: connection lost or timed out. The coordinator is looked up again."""
        if not self._machine.in_flight.expects(send):
            return
        self._machine.drop_request(send.lane)
        self._lose_coordinator()
        if isinstance(send.request, m.DescribeGroupsRequest):
            if self.join_is_under_way:
                self.diagnostics.silent(
                    f"for {self.config.heartbeat_timeout_ms} ms during a rebalance", now_ms
                )
            self._give_up_join(now_ms)
            return
        self.timers.back_off(now_ms)
        if send.lane is Lane.COORDINATOR:
            self.timers.heartbeat_at = self.timers.retry_at

    def on_fatal(self, error: KafkaError, send: Send | None = None) -> None:
        """An error that a repetition does not resolve (an unsupported version, no authorization).

        ``send``: the request that failed; the error is ignored if that request was given up meanwhile.
        """
        if send is None or self._machine.in_flight.expects(send):
            self._machine.die(error)

    def on_commit_error(self, code: int, identity: MemberIdentity, now_ms: int) -> None:
        """An OffsetCommit sent with ``identity`` was refused; the code may concern the membership.

        In a group with members of the consumer protocol a commit is not held to the instance id, so a static
        member that was replaced hears UNKNOWN_MEMBER_ID. It must not join and replace its successor: the
        heartbeat that follows says whether there is one.
        """
        if identity == self.identity and code in _MEMBER_ERRORS and self.state is not State.DEAD:
            if code == ErrorCode.UNKNOWN_MEMBER_ID and self.config.instance_id is not None:
                self.beat_at_once(now_ms)
            else:
                self._on_member_error(action_for(m.HeartbeatRequest, code), code, now_ms)
        elif code == ErrorCode.NOT_COORDINATOR:
            self._lose_coordinator()

    def coordinator_forgotten(self) -> None:
        """Another part of the consumer looks for the coordinator: the next one may not know the member.id."""
        self._machine.fence.coordinator_moved = True

    def beat_at_once(self, now_ms: int) -> None:
        """An OffsetCommit was answered REBALANCE_IN_PROGRESS: a heartbeat is sent to learn more.

        That answer alone does not require a rejoin: a broker also gives it while the group waits for the
        leader's Sync of a rebalance that this member has joined, and a rejoin would cause another rebalance.
        """
        self.timers.heartbeat_at = min(self.timers.heartbeat_at, now_ms)

    def commit_accepted(self, now_ms: int) -> None:
        """An accepted commit refreshes the session like a heartbeat."""
        if self.in_group:
            self.timers.heard(now_ms)

    def _on_heartbeat(self, send: Send, code: int, now_ms: int) -> None:
        self.timers.beat_next(now_ms)
        self.stats.beat(now_ms - self._beat_sent_at, now_ms)
        if send.identity != self.identity:
            return
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.timers.heard(now_ms)
            self.diagnostics.heard(now_ms)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._on_group_rebalances(now_ms)
        elif code:
            self._on_error(send, code, now_ms)

    def _on_place(self, send: Send, code: int, now_ms: int) -> None:
        """The answer to a heartbeat with the former identity: only a fenced one must not join."""
        action = action_for(type(send.request), code) if code else None
        if action in (Action.RETRY, Action.FIND_COORDINATOR, Action.FENCED, Action.FATAL):
            self._on_error(send, code, now_ms)
        else:
            self._place = None

    def _on_described(self, response: m.DescribeGroupsResponse, now_ms: int) -> None:
        if self.state is State.STABLE and self._machine.delayed_reason:
            self._exchange.on_subscriptions(read_description(response, self.config.instance_id), now_ms)
        if self.state is not State.JOINING:
            return
        for group in response.groups[:1]:
            if group.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                self._lose_coordinator()
                self._give_up_join(now_ms)
                return
            members = [
                f"{member.group_instance_id or member.member_id} "
                f"(client {member.client_id}, {member.client_host})"
                for member in group.members
            ]
            self.diagnostics.join_waits(now_ms - self._exchange.join_sent_at, members, now_ms)

    def _give_up_join(self, now_ms: int) -> None:
        """The coordinator of a parked Join does not answer: the Join goes to the current coordinator.

        If that is the same broker, this does no harm: of two Joins of a member it answers the latest.
        """
        if self.join_is_under_way:
            self._machine.drop_request(Lane.GROUP)
            self.timers.back_off(now_ms)

    def _on_group_rebalances(self, now_ms: int) -> None:
        reason = "the group is rebalancing"
        if self.state in (State.STABLE, State.SYNCING):
            self._machine.start_rejoin(reason, now_ms)
        elif self.state is State.ASSIGNING:
            self._machine.rejoin_after(reason)

    def _on_error(self, send: Send, code: int, now_ms: int, adopt: str = "") -> None:
        action = action_for(type(send.request), code)
        if action is Action.ADOPT_ID:
            self._machine.adopt_id(adopt)
        elif action in (Action.RETRY, Action.FIND_COORDINATOR):
            if action is Action.FIND_COORDINATOR:
                self._lose_coordinator()
            elif code == ErrorCode.REBALANCE_IN_PROGRESS and adopt:
                # Members of the consumer protocol have come, and the parked Join has to be sent anew. Without
                # its id, a static member would replace the one of them that may have replaced it.
                self._machine.adopt_id(adopt)
            self.timers.back_off(now_ms)
            if send.lane is Lane.COORDINATOR:
                self.timers.heartbeat_at = self.timers.retry_at
        else:
            api = type(send.request).__name__.removesuffix("Request")
            self._on_member_error(action, code, now_ms, api)

    def _on_member_error(self, action: Action, code: int, now_ms: int, api: str = "") -> None:
        name = ErrorCode.name_of(code)
        if action is Action.REJOIN_KEEPING_ID:
            self._on_group_rebalances(now_ms)
        elif action is Action.REJOIN_LOSING:
            if self.join_is_under_way:
                # The Join may have completed, with its answer still on its way over the other connection.
                return
            self._report_removal(name, now_ms)
            self._machine.reset(f"the broker answered {name}", now_ms, drop_id=False)
        elif action is Action.REJOIN_DROPPING_ID:
            self._report_removal(name, now_ms)
            self._remember_place()
            self.timers.back_off(now_ms)
            self._machine.reset(f"the broker answered {name}", now_ms, drop_id=True)
        elif action is Action.FENCED:
            self._on_fenced(now_ms)
        else:
            what = explain(code, self.config, self._exchange.assignor_names, self.group_protocol_type)
            self._machine.die(for_code(code, what, api=api))

    def _report_removal(self, code: str, now_ms: int) -> None:
        """Reports only the first error: a member that is out of the group was reported before."""
        if not self.in_group:
            return
        silent = now_ms - self.timers.heard_at if self.timers.heard_at >= 0 else None
        self.diagnostics.taken_out(self.config.instance_id or self.member_id, code, silent, now_ms)

    def _on_fenced(self, now_ms: int) -> None:
        if self.config.instance_id is not None and self._machine.fence.forgive():
            self.diagnostics.fence_forgiven(now_ms)
            self._machine.reset("fenced by a coordinator that moved during the join", now_ms, drop_id=True)
            return
        what = explain(ErrorCode.FENCED_INSTANCE_ID, self.config, self._exchange.assignor_names)
        self._machine.die(FencedInstanceIdError(what))

    def _lose_coordinator(self) -> None:
        self.coordinator_lost = True
        self._machine.fence.coordinator_moved = True
