"""A member of a consumer group: the classic group protocol as one state machine.

No I/O, no clock: the owner hands in the time, responses and what the application did, and sends what
:meth:`Membership.poll` gives out. Sources: KIP-62 (timers), KIP-219 (quotas), KIP-345 (static members),
KIP-394 (MEMBER_ID_REQUIRED), KIP-429 (cooperative), KIP-800 (reasons), KIP-814 (skip_assignment),
KAFKA-12759, and how a broker answers static members, which the conformance suite holds row by row.

States and their table: ``membership_states``. What the application sees: ``membership_core``. Deadlines:
``membership_timers``. The leader's work: ``membership_leader``. Returns: ``membership_return``. The fence:
``membership_fence``. Messages: ``diagnostics``.

**Exceeding max.poll.interval.ms.** As Java: heartbeats and fetches stop, a dynamic member leaves; a static
one does not: its partitions are idle until it polls again (then it joins by itself) or its session expires.
"""

from __future__ import annotations

from typing import Any

from slackwater.kafka.errors import FencedInstanceIdError, KafkaError, for_code
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.membership import requests
from slackwater.kafka.protocol.membership.error_hints import explain
from slackwater.kafka.protocol.membership.joining import JoiningMember
from slackwater.kafka.protocol.membership.states import (
    NET_MARGIN_MS,
    NEVER_MS,
    SUBSCRIPTIONS_ASKED_MS,
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
from slackwater.kafka.protocol.membership.static_return import read_described
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request, Response

__all__ = [
    "NEVER_MS",
    "TRANSITIONS",
    "Event",
    "Identity",
    "Lane",
    "Membership",
    "MembershipConfig",
    "Notice",
    "NoticeKind",
    "Send",
    "State",
]

_BEATING = (State.PREPARING, State.SYNCING, State.ASSIGNING, State.STABLE)
"""While a Join is parked the session does not expire, and the coordinator has nothing to tell."""
_MEMBER_ERRORS = (
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
)


class Membership(JoiningMember):
    """One member of one group: the half that speaks with the coordinator, and so the whole."""

    _beat_sent_at = -1

    # -- time ------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> tuple[list[Send], int]:
        """What to send now, and when to come back (ms) if nothing else happens before."""
        self._check_timers(now_ms)
        sends: list[Send] = []
        if self._may_send(Lane.GROUP, now_ms) and now_ms >= self.timers.retry_at:
            sends += self._sent(self._next_group_request(now_ms), now_ms)
        if self._may_send(Lane.COORDINATOR, now_ms):
            if self._beats and now_ms >= self.timers.heartbeat_at:
                sends += self._sent(self._heartbeat(now_ms), now_ms)
            elif self.state is State.JOINING and now_ms >= self.timers.diagnose_at:
                sends += self._sent(self._ask_who_is_missing(now_ms), now_ms)
            elif self.state is State.STABLE and now_ms >= self.timers.subscriptions_at:
                sends += self._sent(self._ask_for_subscriptions(now_ms), now_ms)
        return sends, self._wake_at(now_ms)

    @property
    def _beats(self) -> bool:
        return self.in_group and self.state in _BEATING

    def _may_send(self, lane: Lane, now_ms: int) -> bool:
        return lane not in self._in_flight and self.timers.may_send(lane, now_ms)

    def _sent(self, send: Send | None, now_ms: int) -> list[Send]:
        if send is None:
            return []
        self._in_flight[send.lane] = send
        return [send]

    def _wake_at(self, now_ms: int) -> int:
        if self.state in (State.OUT, State.DEAD):
            return NEVER_MS
        timers = self.timers
        times = [timers.poll_ends_at, timers.request_ends_at, timers.rejoin_at, timers.delay_ends_at]
        if self._beats:
            times.append(timers.session_ends_at)
        if Lane.COORDINATOR not in self._in_flight:
            quiet = timers.quiet_until.get(Lane.COORDINATOR, 0)
            if self._beats:
                times.append(max(timers.heartbeat_at, quiet))
            elif self.state is State.JOINING:
                times.append(max(timers.diagnose_at, quiet))
            if self.state is State.STABLE:
                times.append(max(timers.subscriptions_at, quiet))
        if self.state in (State.JOINING, State.SYNCING) and Lane.GROUP not in self._in_flight:
            again = max(timers.retry_at, timers.quiet_until.get(Lane.GROUP, 0))
            if again > now_ms:
                times.append(again)
        return min(times)

    def _check_timers(self, now_ms: int) -> None:
        timers = self.timers
        if self.state in (State.OUT, State.DEAD):
            return
        if now_ms >= timers.poll_ends_at:
            timers.poll_ends_at = NEVER_MS
            self._poll_expired(now_ms)
        if self._beats and now_ms >= timers.session_ends_at:
            self.diagnostics.silent(f"for session.timeout.ms={self.config.session_timeout_ms}", now_ms)
            timers.refresh_session(now_ms)
            self._lost_coordinator()
        if now_ms >= timers.request_ends_at:
            self._request_expired(now_ms)
        if now_ms >= timers.rejoin_at:
            timers.rejoin_at = NEVER_MS
            self.request_rejoin("partitions that were held back are due", now_ms)
        if now_ms >= timers.delay_ends_at:
            timers.delay_ends_at = NEVER_MS
            self.request_rejoin(self._delayed, now_ms)

    def _poll_expired(self, now_ms: int) -> None:
        if not self._caller_away or self._wait_for_caller:
            return
        self.diagnostics.poll_late(self.config.instance_id or self.member_id or self.config.name, now_ms)
        self._wait_for_caller = True
        if not self.is_static:
            self.departed_member_id = self.member_id
        self._reset("max.poll.interval.ms was exceeded", now_ms, drop_id=True)

    def _request_expired(self, now_ms: int) -> None:
        """The Join or Sync has a time limit of its own, whatever the network's is."""
        syncing = self._is_sending(m.SyncGroupRequest)
        self._drop_flight(Lane.GROUP)
        if syncing and self._heard_at >= self._sync_sent_at:
            # The coordinator lives; of two parked Syncs it answers the latest.
            self.diagnostics.sync_unanswered(now_ms - self._sync_sent_at, now_ms)
            return
        self._lost_coordinator()
        self.timers.back_off(now_ms)

    # -- requests out ------------------------------------------------------------------------------

    def _send(
        self, request: Request[Any], lane: Lane, timeout_ms: int, ahead: Request[Any] | None = None
    ) -> Send:
        return Send(request, lane, timeout_ms, self.identity, ahead)

    def _next_group_request(self, now_ms: int) -> Send | None:
        if self.state is State.JOINING:
            return self._join(now_ms)
        ready = self._lead is None or self._lead.plan is not None or self._skip_sync
        return self._sync(now_ms) if self.state is State.SYNCING and ready else None

    def _join(self, now_ms: int) -> Send | None:
        config = self.config
        protocols = self._ask_assignors(self._protocols)
        if protocols is None:
            return None
        # What was asked for since an earlier Join that came to nothing is in this one.
        self._reason, self._rejoin_wanted = self._reason or self._rejoin_wanted or "", None
        self._sent_topics, self._described, ahead = self._topics, None, None
        if self.is_static and not self.member_id:
            ahead = requests.describe_request(config)
        self._join_sent_at = now_ms
        self.timers.request_sent(now_ms, config.join_timeout_ms)
        self.timers.diagnose_at = now_ms + config.slow_join_ms
        request = requests.join_request(config, self.member_id, protocols, self._reason)
        return self._send(request, Lane.GROUP, config.join_timeout_ms + NET_MARGIN_MS, ahead)

    def _protocols(self) -> list[tuple[str, bytes]]:
        """Each assignor's name with the subscription in its words.

        With the generation also where nothing is owned, as Java: bytes that differ from the last ones make a
        broker rebalance for a member that it knows.
        """
        owned = tuple(self._owned()) if self.cooperative else ()
        topics, generation = self._topics, self.generation
        return [
            (name, requests.subscription_bytes(self.config, topics, owned, generation, data))
            for name, data in (
                (one.name, one.user_data(topics, generation)) for one in self._assignors.values()
            )
        ]

    def _sync(self, now_ms: int) -> Send:
        plan = self._lead.encoded() if self._lead is not None and not self._skip_sync else {}
        self._sync_sent_at = now_ms
        limit = self.config.sync_timeout_ms
        self.timers.request_sent(now_ms, limit)
        who = self.config, self.generation, self.member_id
        request = requests.sync_request(*who, self.protocol_name, plan)
        return self._send(request, Lane.GROUP, limit + NET_MARGIN_MS)

    def _heartbeat(self, now_ms: int) -> Send:
        self._beat_sent_at = now_ms
        request = requests.heartbeat_request(self.config, self.generation, self.member_id)
        return self._send(request, Lane.COORDINATOR, self.config.heartbeat_timeout_ms)

    def _ask_who_is_missing(self, now_ms: int) -> Send:
        """Of a Join that is parked for long: who is waited for, and does the coordinator live at all?

        One that has vanished (no power, no route) would else not be missed before the rebalance timeout.
        """
        limit = self.config.heartbeat_timeout_ms
        self.timers.diagnose_at = now_ms + max(self.config.slow_join_ms, limit)
        return self._send(requests.describe_request(self.config), Lane.COORDINATOR, limit)

    def _ask_for_subscriptions(self, now_ms: int) -> Send:
        """Of a group whose other members have other topics yet: do they still?"""
        limit = self.config.heartbeat_timeout_ms
        self.timers.subscriptions_at = now_ms + SUBSCRIPTIONS_ASKED_MS
        return self._send(requests.describe_request(self.config), Lane.COORDINATOR, limit)

    def leave_request(self, member_id: str, version: int, reason: str) -> m.LeaveGroupRequest:
        """LeaveGroup for a member.id that this member has or had, as ``version`` wants it."""
        return requests.leave_request(self.config, member_id, version, reason)

    # -- responses in --------------------------------------------------------------------------------

    def on_ahead(self, send: Send, response: Response | None) -> None:
        """The answer to ``send.ahead``; ``None`` if there was none. It is of use only before the Join's."""
        if self._in_flight.get(send.lane) is send and isinstance(response, m.DescribeGroupsResponse):
            self._described = read_described(response, self.config.instance_id)

    def on_response(self, send: Send, response: Response, now_ms: int) -> None:
        """The answer to ``send``. One to a request that was given up is ignored."""
        if self._in_flight.get(send.lane) is not send:
            return
        self._drop_flight(send.lane)
        if self.state in (State.OUT, State.DEAD):
            return
        self.on_throttle(type(send.request), getattr(response, "throttle_time_ms", 0), send.lane, now_ms)
        if isinstance(response, m.HeartbeatResponse):
            self._on_heartbeat(send, response.error_code, now_ms)
        elif isinstance(response, m.DescribeGroupsResponse):
            self._on_described(response, now_ms)
        elif isinstance(response, m.JoinGroupResponse) and self.state is State.JOINING:
            if response.error_code:
                self._on_error(send, response.error_code, now_ms, adopt=response.member_id)
            else:
                self._on_joined(response, now_ms)
        elif isinstance(response, m.SyncGroupResponse) and self.state is State.SYNCING:
            if response.error_code:
                took = now_ms - self._sync_sent_at
                self.stats.failed(now_ms)
                self.diagnostics.sync_failed(ErrorCode.name_of(response.error_code), took, now_ms)
                self._on_error(send, response.error_code, now_ms)
            else:
                self._on_synced(response, now_ms)

    def on_throttle(self, api: type[Request[Any]], throttle_ms: int, lane: Lane, now_ms: int) -> None:
        """An answer on ``lane`` had ``throttle_time_ms``: nothing more goes out there before (KIP-219)."""
        self.timers.throttle(lane, throttle_ms, now_ms)
        self.diagnostics.throttled(api.__name__.removesuffix("Request"), throttle_ms, now_ms)

    def on_failure(self, send: Send, now_ms: int) -> None:
        """``send`` was not answered: connection lost or timed out. The coordinator is looked up again."""
        if self._in_flight.get(send.lane) is not send:
            return
        self._drop_flight(send.lane)
        self._lost_coordinator()
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
        """Something that sending again does not mend (an unsupported version, no authorization).

        ``send``: what it is the answer to; if that was given up meanwhile, so is its failure.
        """
        if send is None or self._in_flight.get(send.lane) is send:
            self._die(error)

    def on_commit_error(self, code: int, identity: Identity, now_ms: int) -> None:
        """What an OffsetCommit sent with ``identity`` was answered tells of the membership, too."""
        if identity == self.identity and code in _MEMBER_ERRORS:
            self._on_member_error(action_for(m.HeartbeatRequest, code), code, now_ms)
        elif code == ErrorCode.NOT_COORDINATOR:
            self._lost_coordinator()

    def commit_refused_by_rebalance(self, now_ms: int) -> None:
        """An OffsetCommit was answered REBALANCE_IN_PROGRESS: a heartbeat is to ask at once what is going on.

        The answer alone does not tell: a broker gives it while the group waits for the leader's Sync (a
        rebalance this member is part of already), where a rejoin would bring one rebalance more.
        """
        self.timers.heartbeat_at = min(self.timers.heartbeat_at, now_ms)

    def commit_accepted(self, now_ms: int) -> None:
        """An accepted commit refreshes the session like a heartbeat."""
        if self.in_group:
            self.timers.refresh_session(now_ms)
            self._heard_at = now_ms

    def _on_heartbeat(self, send: Send, code: int, now_ms: int) -> None:
        self.timers.beat_next(now_ms)
        self.stats.beat(now_ms - self._beat_sent_at, now_ms)
        if send.identity != self.identity:
            return
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.timers.refresh_session(now_ms)
            self._heard_at = now_ms
            self.diagnostics.heard(now_ms)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._on_group_rebalances(now_ms)
        elif code:
            self._on_error(send, code, now_ms)

    def _on_described(self, response: m.DescribeGroupsResponse, now_ms: int) -> None:
        if self.state is State.STABLE and self._delayed:
            self._on_subscriptions(read_described(response, self.config.instance_id), now_ms)
        if self.state is not State.JOINING:
            return
        for group in response.groups[:1]:
            if group.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                self._lost_coordinator()
                self._give_up_join(now_ms)
                return
            members = [
                f"{one.group_instance_id or one.member_id} (client {one.client_id}, {one.client_host})"
                for one in group.members
            ]
            self.diagnostics.join_waits(now_ms - self._join_sent_at, members, now_ms)

    def _give_up_join(self, now_ms: int) -> None:
        """The coordinator of a parked Join cannot be asked: it is sent again, to whoever coordinates now.

        If it was the same broker after all, no harm is done: of two Joins of a member it answers the latest.
        """
        if self.join_is_under_way:
            self._drop_flight(Lane.GROUP)
            self.timers.back_off(now_ms)

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
            self._fence.new_id()
            self._fence.joined()
        elif action in (Action.RETRY, Action.FIND_COORDINATOR):
            if action is Action.FIND_COORDINATOR:
                self._lost_coordinator()
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
            self._say_taken_out(name, now_ms)
            self._reset(f"the broker answered {name}", now_ms, drop_id=False)
        elif action is Action.REJOIN_DROPPING_ID:
            self._say_taken_out(name, now_ms)
            self.timers.back_off(now_ms)
            self._reset(f"the broker answered {name}", now_ms, drop_id=True)
        elif action is Action.FENCED:
            self._on_fenced(now_ms)
        else:
            what = explain(code, self.config, list(self._assignors), self.group_protocol_type)
            self._die(for_code(code, what, api=api))

    def _say_taken_out(self, code: str, now_ms: int) -> None:
        """Only of one that was in: a Join that meets UNKNOWN_MEMBER_ID has been told of before."""
        if not self.in_group:
            return
        silent = now_ms - self._heard_at if self._heard_at >= 0 else None
        self.diagnostics.taken_out(self.config.instance_id or self.member_id, code, silent, now_ms)

    def _on_fenced(self, now_ms: int) -> None:
        if self.is_static and self._fence.forgive():
            self.diagnostics.fence_forgiven(now_ms)
            self._reset("fenced by a coordinator that moved during the join", now_ms, drop_id=True)
            return
        what = explain(ErrorCode.FENCED_INSTANCE_ID, self.config, list(self._assignors))
        self._die(FencedInstanceIdError(what))
