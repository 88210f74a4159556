"""A member of a consumer group: the consumer protocol (KIP-848) without I/O and without a clock.

The owner hands in the time, responses and the application's calls, and sends what
:meth:`ConsumerMembership.poll` returns: ConsumerGroupHeartbeat, one at a time. The coordinator assigns; an
answer brings the member's epoch and, if it has changed, the partitions that the member shall have. The member
gives up what is no longer among them, takes what is new, and tells the coordinator what it holds then: only
after that does another member get what was given up. Nobody waits for all.

Sources: KIP-848; the rules of a heartbeat as Kafka 4.3's broker keeps them, by raw requests; Java's
``ConsumerMembershipManager`` and ``ConsumerHeartbeatRequestManager`` (4.x) for what is sent when.

**Exceeding max.poll.interval.ms.** As in Java, the member leaves (a static one until its session expires, so
that its partitions stay its own), and joins again by itself when the application polls.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from slackwater.kafka.errors import FencedInstanceIdError, IllegalStateError, KafkaError, for_code
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.assignors import Racks
from slackwater.kafka.protocol.consumer_membership import requests
from slackwater.kafka.protocol.consumer_membership.requests import LEFT, RETURNS, Assignment
from slackwater.kafka.protocol.consumer_membership.states import TRANSITIONS
from slackwater.kafka.protocol.diagnostics import Diagnostics
from slackwater.kafka.protocol.membership.fatal_errors import explain
from slackwater.kafka.protocol.membership.history import MembershipStats
from slackwater.kafka.protocol.membership.notices import Notice, NoticeKind, NoticeQueue
from slackwater.kafka.protocol.membership.requests import Lane, MemberIdentity, Send
from slackwater.kafka.protocol.membership.states import NEVER_MS, Event, MembershipConfig, State
from slackwater.kafka.protocol.membership.timers import PollInterval, Timers
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.structs import GenerationSeen, MembershipSnapshot, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request, Response

log = logging.getLogger(__name__)

FAST_BEAT_MS = 200
"""How far apart heartbeats are while partitions may come: a broker tells a newcomer in the answers to its
heartbeats alone, and what another member has given up is unread until then."""
FAST_BEATS_MARGIN_MS = 2_000
"""How much longer than one heartbeat interval, in which each member hears of a change, they are that close:
a broker computes an assignment once in ``group.consumer.assignment.interval.ms``, 1 s by default."""
DISPLACED_PAUSE_MS = 1_000
"""How long a static member waits after FENCED_MEMBER_EPOCH: a successor that took its place joins first."""
REPLACE_TRIES = 5
"""How often a Join in another member's place is sent: one that finds itself fenced may join again first."""
FIRST_REBALANCE_PAUSE_MS = 10_000
"""How long a member waits that a classic group's first rebalance refuses: it takes some seconds
(``group.initial.rebalance.delay.ms``, 3 s by default), and each attempt sends its members to join anew."""
_DISPLACED = (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND)
"""What a static member hears when another one may have its place, which it does not take back."""
_FIRST_INTERVAL_MS = 5_000
"""The broker's default interval, until an answer says it."""
_GENERATIONS_KEPT = 1_000
_NO_SUCH_PROTOCOL = (
    ": the cluster has no consumer protocol: it needs Kafka 4.0 and the feature group.version 1 "
    "(kafka-features.sh describe). Set group_protocol to classic, or upgrade it"
)


class ConsumerMembership:
    """One member of one group.

    Args:
        config: the settings; of the intervals only ``max_poll_interval_ms`` counts, which is the rebalance
            timeout: the others are the broker's.
        owned: gives the partitions that the application holds now.
        metadata: the topics' names by id, and ids by name.
        retry_delay_ms: how long to wait after the n-th failure in a row, counted from 1.
        member_id: a new one for each process (KIP-1082).
        remote_assignor: the broker's assignor; ``None``: its first.
        stats: receives durations for metrics.
    """

    cooperative = True
    """Partitions are kept while others move."""
    join_is_under_way = False
    departed_member_id = ""
    """The member says itself, by a heartbeat, that it leaves."""
    leaves_by = m.ConsumerGroupHeartbeatRequest

    def __init__(
        self,
        config: MembershipConfig,
        owned: Callable[[], Collection[TopicPartition]],
        metadata: ClusterMetadata,
        retry_delay_ms: Callable[[int], float],
        *,
        member_id: str,
        remote_assignor: str | None = None,
        stats: MembershipStats | None = None,
    ) -> None:
        self.config = config
        self.group_protocol_type = ""
        self.coordinator_lost = False
        """Set when the coordinator has to be looked up again; the owner clears it."""
        self.diagnostics = Diagnostics(config)
        self.stats = stats or MembershipStats()
        self.timers = Timers(config, retry_delay_ms)
        self.state = State.OUT
        self.error: KafkaError | None = None
        """Why the member is dead."""
        self.member_id = member_id
        self.generation = -1
        """The member's epoch; -1: it is in no group."""
        self.notices = NoticeQueue()
        """The changes of the assignment that the application has not handled yet."""
        self._owned, self._metadata, self._assignor = owned, metadata, remote_assignor
        self._topics: frozenset[str] = frozenset()
        self._regex: str | None = None
        """The regular expression that the broker matches; "": none any more; ``None``: there was none."""
        self._poll_interval = PollInterval(config.max_poll_interval_ms)
        self._in_flight: Send | None = None
        self._joins = self._assigned_join = 0
        self._generations: deque[GenerationSeen] = deque(maxlen=_GENERATIONS_KEPT)
        self._target: Assignment | None = None
        """What the coordinator has assigned last; ``None``: nothing since the Join."""
        self._ids: dict[TopicPartition, UUID] = {}
        """The topic that each partition of a notice is of, and each that the application holds."""
        self._holds: list[m.ConsumerGroupHeartbeatTopicPartitions] = []
        """What the coordinator is told: what the application held when it had handled all notices."""
        self._unknown: frozenset[UUID] = frozenset()
        """Topics of the target that the metadata does not know yet."""
        self._metadata_at, self._metadata_asked = NEVER_MS, 0
        """When the metadata of unknown topics is asked for, and how often it was."""
        self._wants_metadata = False
        self._confirmed: dict[str, Any] = {}
        """The fields of heartbeats that the coordinator has taken; those of a lost one are sent again."""
        self._sending: dict[str, Any] = {}
        self._acknowledges = False
        """The heartbeat in flight tells what is held after all notices."""
        self._interval_ms, self._fast_until, self._sent_at, self._assigned_at = _FIRST_INTERVAL_MS, 0, 0, 0
        self._leaving_epoch: int | None = None
        """The epoch by which the next heartbeat says that the member is away."""
        self._may_be_member = False
        """The coordinator may count this process among the members, perhaps at an epoch that it has lost."""
        self._predecessor, self._replaced = "", 0
        self._epoch_before: int | None = None
        """The member id to end with the next Join, the tries so far, and the group's epoch before."""
        self.returned = False
        """Whether the last Join was in another process's place, and no partition has moved since."""

    # -- state -------------------------------------------------------------------------------------

    @property
    def identity(self) -> MemberIdentity:
        """The identity that commits are sent with."""
        return MemberIdentity(self.generation, self.member_id if self.in_group else "", self._joins)

    @property
    def reader(self) -> tuple[str, int] | None:
        """The member id and the epoch that committed offsets are asked for with; ``None``: with none."""
        return (self.member_id, self.generation) if self.in_group else None

    @property
    def in_group(self) -> bool:
        """Whether the coordinator counts it among the members, as far as it knows."""
        return self.generation >= 0

    @property
    def returns(self) -> bool:
        """Whether a static member that ends for a moment says so."""
        return self.config.instance_id is not None

    @property
    def lost(self) -> frozenset[TopicPartition]:
        """Partitions that other members may own by now, and that the application still holds."""
        return self.notices.lost

    @property
    def poll_expired(self) -> bool:
        """Whether the member is away because ``poll()`` was not called in time."""
        return self._poll_interval.exceeded

    @property
    def wanted_topics(self) -> frozenset[str] | None:
        """The topics whose metadata is needed now to know what was assigned; then call :meth:`plan`."""
        return self._topics if self._wants_metadata else None

    @property
    def group_topics(self) -> frozenset[str]:
        """The topics whose metadata has to be watched."""
        return self._topics

    def snapshot(self) -> MembershipSnapshot:
        """The membership as this member knows it; an epoch in place of the generation."""
        return MembershipSnapshot(
            self.state.value,
            self.generation,
            self.member_id,
            self.config.instance_id,
            is_leader=False,
            generations=tuple(self._generations),
            returned=self.returned,
        )

    # -- calls of the application ------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], now_ms: int) -> None:
        """Joins with these topics; of a changed set the coordinator is told at once.

        What was assigned of a topic that is no longer in the set is given up, or not taken.
        """
        self._subscribe(frozenset(topics), None if self._regex is None else "", now_ms)

    def subscribe_regex(self, regex: str, now_ms: int) -> None:
        """Joins for the topics whose whole name ``regex`` matches, in RE2/J's syntax."""
        self._subscribe(frozenset(), regex, now_ms)

    def _subscribe(self, topics: frozenset[str], regex: str | None, now_ms: int) -> None:
        changed = (topics, regex) != (self._topics, self._regex)
        self._topics, self._regex = topics, regex
        if self.state is State.OUT:
            if self._poll_interval.away:
                self._poll_interval.leave(now_ms)
            self._move(Event.WANT)
            if odd := tuple(sorted(tp for tp in self._owned() if not self._reads(tp.topic))):
                self.notices.add(Notice(NoticeKind.REVOKED, odd))
            self._advance(now_ms)
        elif changed:
            self.timers.heartbeat_at = min(self.timers.heartbeat_at, now_ms)
            if not regex and self.notices.keep_subscribed(topics, self._owned()):
                self._advance(now_ms)
            self._reconcile(now_ms)

    def replace(self, member_id: str, epoch: int | None) -> None:
        """The next Join is in the place of the member that has this instance id under ``member_id``, which is
        fenced by it: the coordinator refuses an instance id whose member lives. ``epoch``: the group's."""
        self._predecessor, self._epoch_before, self._replaced = member_id, epoch, 0

    def request_rejoin(self, reason: str, now_ms: int) -> None:
        """Does nothing: the coordinator assigns by itself (as in Java)."""
        log.warning(
            "group %s: a rebalance that is asked for has no effect: by the consumer protocol the broker "
            "assigns", self.config.group_id,
        )  # fmt: skip

    def caller_polls(self, now_ms: int) -> None:
        """The application is inside ``poll()``."""
        away_ms = self._poll_interval.enter(now_ms)
        if away_ms is not None:
            self.diagnostics.poll_resumed(away_ms, now_ms)
            self._advance(now_ms)

    def caller_leaves(self, now_ms: int) -> None:
        """``poll()`` returns or calls a listener: max.poll.interval.ms begins."""
        self._poll_interval.leave(now_ms)

    def notice_done(self, now_ms: int) -> None:
        """The application has handled ``notices[0]``, and the owner has changed the assignment."""
        self.notices.remove_first()
        self._advance(now_ms)

    def already_gone(self, partitions: Collection[TopicPartition], now_ms: int) -> None:
        """The application gave these up for a notice that was dropped meanwhile; no notice repeats them."""
        self.notices.drop_given_up(partitions)
        self._advance(now_ms)

    def leave(self) -> str:
        """Ends the membership. Returns the member id to send :meth:`leave_request` for; "": there is none."""
        known = self._may_be_member or self._in_flight is not None or self._leaving_epoch is not None
        member_id = self.member_id if known and self.state not in (State.OUT, State.DEAD) else ""
        self._move(Event.LEAVE)
        self._forget_group()
        self._leaving_epoch, self._predecessor = None, ""
        return member_id

    def leave_request(
        self, member_id: str, version: int, reason: str, *, for_good: bool
    ) -> m.ConsumerGroupHeartbeatRequest:
        """The heartbeat by which a member leaves. ``for_good``: also a static one, whose partitions are kept
        for one session else."""
        epoch = RETURNS if self.returns and not for_good else LEFT
        return requests.heartbeat(self.config, member_id, epoch, {})

    # -- metadata ----------------------------------------------------------------------------------

    def plan(self, counts: Mapping[str, int], now_ms: int, racks: Racks | None = None) -> None:
        """The metadata of :attr:`wanted_topics` was asked for."""
        self._wants_metadata = False
        self._metadata_asked += 1
        self._metadata_at = now_ms + round(self.timers.retry_delay_ms(self._metadata_asked))
        self._reconcile(now_ms)

    def metadata_changed(self, counts: Mapping[str, int], now_ms: int, racks: Racks | None = None) -> None:
        """Topics may be known by now that were assigned before."""
        self._reconcile(now_ms)

    # -- time --------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> tuple[list[Send], int]:
        """The requests to send now, and when to call this again at the latest (ms)."""
        if self.state in (State.OUT, State.DEAD):
            return [], NEVER_MS
        if now_ms >= self._poll_interval.ends_at and self._poll_interval.expire():
            self._poll_expired(now_ms)
        if self._unknown and now_ms >= self._metadata_at:
            self._wants_metadata = True
        due_at = self._due_at()
        sends = [self._send(now_ms)] if now_ms >= due_at else []
        metadata_at = self._metadata_at if self._unknown and not self._wants_metadata else NEVER_MS
        return sends, min(self._poll_interval.ends_at, metadata_at, self._due_at())

    def _due_at(self) -> int:
        """When the next heartbeat is to be sent, by what is known now."""
        timers = self.timers
        if self._in_flight is not None:
            return NEVER_MS
        if self._leaving_epoch is not None or self.state is State.JOINING:
            due_at = 0
        else:
            due_at = timers.heartbeat_at if self.in_group else NEVER_MS
        return max(due_at, timers.retry_at, timers.quiet_until.get(Lane.COORDINATOR, 0))

    def _poll_expired(self, now_ms: int) -> None:
        self.diagnostics.poll_late(self.config.instance_id or self.member_id, now_ms)
        if self._may_be_member:
            self._leaving_epoch = RETURNS if self.returns else LEFT
        self._lose("max.poll.interval.ms was exceeded", now_ms)

    # -- requests out --------------------------------------------------------------------------------

    def _send(self, now_ms: int) -> Send:
        epoch, self._sending = self._leaving_epoch, {}
        self._acknowledges = self.state is State.ACKNOWLEDGING
        if epoch is None:
            epoch = max(self.generation, 0)
            fields = {
                "rebalance_timeout_ms": self.config.max_poll_interval_ms,
                "rack_id": self.config.rack,
                "server_assignor": self._assignor,
                **self._subscription(),
                "topic_partitions": self._holds,
            }
            self._sending = {
                name: value
                for name, value in fields.items()
                if name not in self._confirmed
                or self._confirmed[name] != value
                or (self._acknowledges and name == "topic_partitions")
            }
        self._sent_at = now_ms
        request = requests.heartbeat(self.config, self.member_id, epoch, self._sending)
        ahead = None
        if epoch == 0 and self._predecessor:
            self._replaced += 1
            ahead = requests.heartbeat(self.config, self._predecessor, RETURNS, {})
        self._in_flight = Send(
            request, Lane.COORDINATOR, self.config.heartbeat_timeout_ms, self.identity, ahead
        )
        return self._in_flight

    # -- responses in --------------------------------------------------------------------------------

    def on_ahead(self, send: Send, response: Response | None) -> None:
        """The answer to the heartbeat in the predecessor's name says nothing that the Join's does not."""

    def on_response(self, send: Send, response: Response, now_ms: int) -> None:
        """The answer to ``send``. One to a request that was given up is ignored."""
        if send is not self._in_flight or not isinstance(response, m.ConsumerGroupHeartbeatResponse):
            return
        self._in_flight = None
        self.on_throttle(type(send.request), response.throttle_time_ms, send.lane, now_ms)
        self.stats.beat(now_ms - self._sent_at, now_ms)
        if response.error_code:
            self._on_error(response.error_code, response.error_message or "", now_ms)
        elif self._leaving_epoch is not None:
            self._left()
        else:
            self._on_heartbeat(response, now_ms)

    def _left(self) -> None:
        self._leaving_epoch, self._may_be_member = None, False

    def _on_heartbeat(self, response: m.ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        self._confirmed.update(self._sending)
        self.timers.succeeded()
        self.timers.heard(now_ms)
        self.diagnostics.joined(now_ms)
        self._interval_ms = max(response.heartbeat_interval_ms, 1)
        changed = response.member_epoch != self.generation
        self.generation, self._may_be_member = response.member_epoch, True
        if changed:
            self.returned = self.generation == self._epoch_before
            self._generations.append(GenerationSeen(self.generation, False, now_ms))
        if self.state is State.JOINING:
            self._joins += 1
            self._predecessor, self._epoch_before = "", None
            self._move(Event.JOINED)
        elif self._acknowledges:
            self._move(Event.ACKNOWLEDGED)
        if response.assignment is not None:
            target = requests.read_assignment(response.assignment)
            changed, self._target = changed or target != self._target, target
        if changed:
            self._beat_fast(now_ms)
        self.timers.heartbeat_at = now_ms + self._beat_in_ms(now_ms)
        self._reconcile(now_ms)

    def _subscription(self) -> dict[str, Any]:
        """The fields of a heartbeat that say what the member reads."""
        return {"subscribed_topic_names": sorted(self._topics), "subscribed_topic_regex": self._regex}

    def _reads(self, topic: str) -> bool:
        return bool(self._regex) or topic in self._topics

    def _beat_in_ms(self, now_ms: int) -> int:
        unsaid = any(self._confirmed[name] != value for name, value in self._subscription().items())
        if unsaid or self.state is State.ACKNOWLEDGING:
            return 0
        return min(self._interval_ms, FAST_BEAT_MS if now_ms < self._fast_until else NEVER_MS)

    def on_throttle(self, api: type[Request[Any]], throttle_ms: int, lane: Lane, now_ms: int) -> None:
        """An answer had ``throttle_time_ms``: nothing more goes out before (KIP-219)."""
        self.timers.throttle(lane, throttle_ms, now_ms)
        self.diagnostics.throttled(api.__name__.removesuffix("Request"), throttle_ms, now_ms)

    def on_failure(self, send: Send, now_ms: int) -> None:
        """``send`` was not answered: connection lost or timed out. The coordinator is looked up again, and
        is told everything once more, since what it has heard is not known."""
        if send is not self._in_flight:
            return
        self._in_flight = None
        self._may_be_member = True  # also a Join may have been heard
        if self.in_group and now_ms - self.timers.heard_at >= self.config.session_timeout_ms:
            self.diagnostics.silent(f"for {now_ms - self.timers.heard_at} ms", now_ms)
        self._retry(now_ms, lost=True)

    def _retry(self, now_ms: int, *, lost: bool) -> None:
        self.coordinator_lost = self.coordinator_lost or lost
        self._confirmed.clear()
        self.timers.back_off(now_ms)
        self.timers.heartbeat_at = self.timers.retry_at

    def on_fatal(self, error: KafkaError, send: Send | None = None) -> None:
        """An error that a repetition does not resolve (an unsupported version, no authorization).

        ``send``: the request that failed; the error is ignored if that request was given up meanwhile.
        """
        if send is None or send is self._in_flight:
            if getattr(error, "code", 0) == ErrorCode.UNSUPPORTED_VERSION:
                error = self._explained(ErrorCode.UNSUPPORTED_VERSION, str(error))
            self._die(error)

    def on_commit_error(self, code: int, identity: MemberIdentity, now_ms: int) -> None:
        """An OffsetCommit sent with ``identity`` was refused; the code may concern the membership.

        A commit is not held to the instance id. A static member may have been replaced by one of the classic
        protocol, which it must not replace in turn: the heartbeat that follows says so.
        """
        dead = self.state is State.DEAD
        if code == ErrorCode.UNKNOWN_MEMBER_ID and identity == self.identity and self.in_group and not dead:
            if self.returns:
                self.beat_at_once(now_ms)
            else:
                self._on_error(code, "", now_ms)
        elif code == ErrorCode.NOT_COORDINATOR:
            self.coordinator_lost = True

    def coordinator_forgotten(self) -> None:
        """Does nothing: the member keeps its id at any coordinator."""

    def beat_at_once(self, now_ms: int) -> None:
        """A request was refused for its epoch: a heartbeat is sent at once, whose answer has the new one."""
        self.timers.heartbeat_at = min(self.timers.heartbeat_at, now_ms)

    def expect_rebalance(self, now_ms: int) -> None:
        """Other members are about to come or to go: heartbeats are close for a while, the first at once."""
        self._beat_fast(now_ms)
        self.beat_at_once(now_ms)

    def _beat_fast(self, now_ms: int) -> None:
        self._fast_until = now_ms + self._interval_ms + FAST_BEATS_MARGIN_MS

    def commit_accepted(self, now_ms: int) -> None:
        """Does nothing: only heartbeats restart the session."""

    # -- errors --------------------------------------------------------------------------------------

    def _on_error(self, code: int, message: str, now_ms: int) -> None:
        action = action_for(m.ConsumerGroupHeartbeatRequest, code)
        joining = self.state is State.JOINING
        unreleased = joining and code == ErrorCode.UNRELEASED_INSTANCE_ID
        if action in (Action.RETRY, Action.FIND_COORDINATOR):
            self._retry(now_ms, lost=action is Action.FIND_COORDINATOR)
        elif joining and code == ErrorCode.UNKNOWN_SERVER_ERROR:
            self._wait_for_first_rebalance(now_ms)
        elif self._leaving_epoch is not None and not (
            self.returns and self.poll_expired and code in _DISPLACED
        ):
            self._left()  # a member that the coordinator does not know, or knows as another, has left
        elif action is Action.REJOIN_LOSING and not (
            code == ErrorCode.GROUP_ID_NOT_FOUND and (joining or self.returns)
        ):
            name = ErrorCode.name_of(code)
            self.diagnostics.epoch_ended(self.config.instance_id or self.member_id, name, now_ms)
            if self.returns and code == ErrorCode.FENCED_MEMBER_EPOCH:
                self.timers.retry_at = now_ms + DISPLACED_PAUSE_MS
            self._lose(f"the broker answered {name}", now_ms)
        elif unreleased and self._may_be_member:
            # Epoch 0 is refused while an epoch of the instance id lives, also this process' own.
            self._leaving_epoch = RETURNS
        elif unreleased and self._predecessor and self._replaced < REPLACE_TRIES:
            self._retry(now_ms, lost=False)
        elif code == ErrorCode.FENCED_INSTANCE_ID or (unreleased and self._joins):
            # A member whose instance id is taken when it joins again was displaced meanwhile.
            what = explain(ErrorCode.FENCED_INSTANCE_ID, self.config, [])
            self._die(FencedInstanceIdError(what))
        else:
            self._die(self._explained(code, message))

    def _wait_for_first_rebalance(self, now_ms: int) -> None:
        """A broker cannot migrate a classic group in its first rebalance; its members have to join anew."""
        self._retry(now_ms, lost=False)
        self.timers.retry_at = self.timers.heartbeat_at = now_ms + FIRST_REBALANCE_PAUSE_MS
        log.warning(
            "group %s: the broker answered UNKNOWN_SERVER_ERROR to the join, as it does while a classic "
            "group has its first rebalance; joining again in %d ms",
            self.config.group_id, FIRST_REBALANCE_PAUSE_MS,
        )  # fmt: skip

    def _explained(self, code: int, message: str) -> KafkaError:
        assignors = [self._assignor] if self._assignor else []
        what = explain(code, self.config, assignors)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            what += _NO_SUCH_PROTOCOL
        elif code == ErrorCode.GROUP_ID_NOT_FOUND and self.in_group:
            what = (
                f"group {self.config.group_id!r}: this consumer is no member any more, and the group is one "
                "of the classic protocol: a consumer of that protocol may have its group.instance.id "
                f"{self.config.instance_id!r} now"
            )
        elif message and what == f"group {self.config.group_id!r}":
            what += f" ({message})"
        return for_code(code, what, api="ConsumerGroupHeartbeat")

    # -- events --------------------------------------------------------------------------------------

    def _move(self, event: Event) -> None:
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise IllegalStateError(f"a member cannot {event.name} while {self.state.value}")
        self.state = following

    def _reconcile(self, now_ms: int) -> None:
        """Queues the notices that lead from what is held to the target, as far as its topics are known."""
        if self.state is not State.STABLE or self._target is None:
            return
        names = {topic_id: self._name(topic_id) for topic_id in {each for each, _ in self._target}}
        self._unknown = frozenset(topic_id for topic_id, name in names.items() if name is None)
        wanted = {
            TopicPartition(name, number): topic_id
            for topic_id, number in self._target
            if (name := names[topic_id]) is not None and self._reads(name)
        }
        if self._unknown and self._metadata_at == NEVER_MS:
            self._metadata_at, self._metadata_asked = now_ms, 0
        elif not self._unknown:
            self._metadata_at, self._wants_metadata = NEVER_MS, False
        held = {tp: self._ids.get(tp) for tp in self._owned()}
        # A topic that was created again has its old name and another id: it is given up, and taken anew.
        gone = tuple(sorted(tp for tp, topic_id in held.items() if wanted.get(tp) != topic_id))
        new = tuple(sorted(tp for tp, topic_id in wanted.items() if held.get(tp) != topic_id))
        if not gone and not new and self._assigned_join == self._joins:
            return
        if internal := sorted({tp.topic for tp in new if tp.topic.startswith("__")} - self._topics):
            log.warning(
                "group %s: its regular expression matches internal topics, which are read: %s",
                self.config.group_id, ", ".join(internal),
            )  # fmt: skip
        self._move(Event.ASSIGNED)
        self._assigned_join, self._assigned_at = self._joins, now_ms
        if gone:
            self.notices.add(Notice(NoticeKind.REVOKED, gone))
        self.notices.add(Notice(NoticeKind.ASSIGNED, new, blocking=bool(new)))
        self._ids = {tp: topic_id for tp, topic_id in held.items() if topic_id is not None} | wanted
        self._advance(now_ms)

    def _name(self, topic_id: UUID) -> str | None:
        held = (tp.topic for tp, known in self._ids.items() if known == topic_id)
        return self._metadata.topic_name(topic_id) or next(held, None)

    def _advance(self, now_ms: int) -> None:
        """Goes on if neither a notice nor the poll interval holds the member back."""
        if self._poll_interval.exceeded or self.notices.is_blocking:
            return
        if self.state is State.PREPARING:
            self._move(Event.PREPARED)
        elif self.state is State.ASSIGNING:
            self._holds = requests.topic_partitions(self._owned(), self._ids)
            self._move(Event.APPLIED)
            self.timers.heartbeat_at = now_ms
            self.stats.reconciled(now_ms - self._assigned_at, now_ms)

    def _lose(self, reason: str, now_ms: int) -> None:
        """Joins again as a new member: all owned partitions are lost."""
        log.info("group %s: joining again, partitions are lost: %s", self.config.group_id, reason)
        self._forget_group()
        self._move(Event.RESET)
        if owned := tuple(sorted(self._owned())):
            self.notices.add(Notice(NoticeKind.LOST, owned))
        self._advance(now_ms)

    def _die(self, error: KafkaError) -> None:
        self._move(Event.DIE)
        self.error = error
        self._in_flight = self._leaving_epoch = None
        self.notices.clear()
        log.error("%s", error)

    def _forget_group(self) -> None:
        self._in_flight, self.generation, self._target, self._holds = None, -1, None, []
        self._unknown, self._metadata_at, self._wants_metadata = frozenset(), NEVER_MS, False
        self._confirmed.clear()
        self.notices.clear()
        self.timers.out_of_group()
