"""The phases of a rebalance (prepare, join, hand out the assignment) and the timers that end them.

Three kinds of timers: a *session* for each member, a *join* timer (the rebalance timeout, or the
initial delay of an Empty group) and a *sync* timer (a rebalance timeout from the end of the join,
for the members that owe their Sync).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable

from slackwater.devbroker.group.config import GroupConfig
from slackwater.devbroker.group.group import Group, GroupState, Member
from slackwater.devbroker.group.store import GroupStore, GroupStoreError
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

Callback = Callable[[], None]
Key = tuple[str, ...]


class KeyedTimers:
    """Keyed one-shot timers. Scheduling a key again replaces what it had.

    ``now_ms`` is the time last given to :meth:`advance`; it never runs backwards. Timers due at
    the same time fire in the order in which they were scheduled.
    """

    def __init__(self) -> None:
        self.now_ms: float = 0.0
        self._active: dict[Key, tuple[float, int, Callback]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0

    def schedule(self, key: Key, delay_ms: float, callback: Callback) -> None:
        """Calls ``callback`` once, ``delay_ms`` after ``now_ms``, unless replaced or cancelled."""
        self._count += 1
        deadline_ms = self.now_ms + max(delay_ms, 0)
        self._active[key] = (deadline_ms, self._count, callback)
        heapq.heappush(self._heap, (deadline_ms, self._count, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._active):
            self._heap = [(at, count, key) for key, (at, count, _) in self._active.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: Key) -> None:
        """Forgets the key's timer; nothing happens when it has none."""
        self._active.pop(key, None)

    def clear(self) -> None:
        """Forgets every timer."""
        self._active.clear()
        self._heap.clear()

    def deadline_ms(self, key: Key) -> float | None:
        """When the key's timer is due, or None."""
        timer = self._active.get(key)
        return None if timer is None else timer[0]

    def next_deadline_ms(self) -> float | None:
        """When the earliest timer is due, or None."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def advance(self, now_ms: float) -> None:
        """Moves time on and fires what is due at ``now_ms`` or before, also what that schedules."""
        self.now_ms = max(self.now_ms, now_ms)
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= self.now_ms:
            _, _, key = heapq.heappop(self._heap)
            _, _, callback = self._active.pop(key)
            callback()

    def _is_current(self, entry: tuple[float, int, Key]) -> bool:
        timer = self._active.get(entry[2])
        return timer is not None and timer[1] == entry[1]


log = logging.getLogger(__name__)

_CAN_PREPARE = (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY)


class Rebalancer:
    """Moves groups through their states. All calls are at ``timers.now_ms``."""

    def __init__(self, config: GroupConfig, store: GroupStore, timers: KeyedTimers) -> None:
        self._config = config
        self._store = store
        self._timers = timers

    # -- sessions

    def restart_session(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """Gives the member its session timeout (or ``timeout_ms``) from now on."""
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self.watch(group, member.member_id, timeout_ms)

    def watch(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """Removes a member, or an id returned with MEMBER_ID_REQUIRED, if it sends nothing in time."""
        self._timers.schedule(
            session_key(group, member_id), timeout_ms, lambda: self._expire_session(group, member_id)
        )

    def end_session(self, group: Group, member_id: str) -> None:
        """Cancels the session timer of a removed member."""
        self._timers.cancel(session_key(group, member_id))

    def session_deadline_ms(self, group: Group, member_id: str) -> float | None:
        """When the member's session expires; None while it has no timer."""
        return self._timers.deadline_ms(session_key(group, member_id))

    def _expire_session(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if group.state is GroupState.DEAD:
            return
        if member_id in group.pending_joins:
            group.remove(member_id)
            if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
                self._complete_join(group)
        elif member is not None and not member.excused_from_heartbeat:
            self.take_out(group, member)
            reason = f"session of member {member_id} expired"
            if group.state is GroupState.PREPARING_REBALANCE:
                if group.all_joined:
                    self._complete_join(group)
            else:
                self.rebalance(group, reason)

    def take_out(self, group: Group, member: Member) -> None:
        """Removes a member: a parked join gets UNKNOWN_MEMBER_ID, a parked sync no answer at all."""
        self.end_session(group, member.member_id)
        member.finish_join(m.JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, protocol_name=None))
        group.remove(member.member_id)

    # -- preparing

    def rebalance(self, group: Group, reason: str) -> None:
        """Starts a rebalance; if one is being prepared, completes it once all have joined."""
        if group.state in _CAN_PREPARE:
            self.prepare(group, reason)
        else:
            self.complete_join_if_all_joined(group)

    def prepare(self, group: Group, reason: str) -> None:
        """Starts a rebalance: parked syncs are sent to rejoin and the join timer runs."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.revoke_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._timers.cancel(_sync_key(group))
        initial = group.state is GroupState.EMPTY
        group.transition(GroupState.PREPARING_REBALANCE)
        group.last_rebalance_reason = reason
        log.info("group %s: rebalance from generation %d: %s", group.group_id, group.generation, reason)
        if initial:
            delay_ms = self._config.initial_rebalance_delay_ms
            self._delay_initial(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        elif group.all_joined:
            self._complete_join(group)
        else:
            self._start_join_timer(group, group.rebalance_timeout_ms)

    def _delay_initial(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        self._timers.schedule(
            _join_key(group), delay_ms, lambda: self._extend_initial(group, delay_ms, remaining_ms)
        )

    def _extend_initial(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        if group.newcomer and remaining_ms > 0:
            group.newcomer = False
            extra_ms = min(self._config.initial_rebalance_delay_ms, remaining_ms)
            self._delay_initial(group, extra_ms, max(remaining_ms - delay_ms, 0))
        else:
            self._complete_join(group)

    def _start_join_timer(self, group: Group, timeout_ms: int) -> None:
        self._timers.schedule(_join_key(group), timeout_ms, lambda: self._complete_join(group))

    # -- completing the join

    def complete_join_if_all_joined(self, group: Group) -> None:
        """Ends the join phase as soon as all are there; the initial one always takes its delay."""
        preparing = group.state is GroupState.PREPARING_REBALANCE
        if preparing and group.previous_state is not GroupState.EMPTY and group.all_joined:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        self._timers.cancel(_join_key(group))
        if group.state is GroupState.DEAD:
            return
        for member in list(group.members.values()):
            if member.join_reply is None and not member.is_static:
                self.end_session(group, member.member_id)
                group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            # Nobody joined: wait until sessions end or a member joins. At least a millisecond, since the
            # timer of a group with rebalance timeouts of 0 would otherwise fire endlessly.
            self._start_join_timer(group, max(group.rebalance_timeout_ms, 1))
            return
        group.next_generation()
        if group.state is GroupState.EMPTY:
            self._store_empty(group)
        else:
            self._answer_joins(group)

    def _store_empty(self, group: Group) -> None:
        try:
            self._store.append([group.to_record()])
        except GroupStoreError as exc:
            # Kafka only warns as well: after a restart the members of the generation before are back.
            log.warning("group %s became empty, which was not stored: %s", group.group_id, exc)

    def _answer_joins(self, group: Group) -> None:
        for member in group.members.values():
            member.finish_join(join_answer(group, member))
            self.restart_session(group, member)
            member.is_new = False
            group.pending_syncs[member.member_id] = None
        self._timers.schedule(
            _sync_key(group),
            group.rebalance_timeout_ms,
            lambda: self._expire_sync(group),
        )

    # -- the assignment

    def sync_received(self, group: Group, member_id: str) -> None:
        """Records a member's sync; when all members have synced, cancels the sync timer."""
        group.pending_syncs.pop(member_id, None)
        if not group.pending_syncs:
            self._timers.cancel(_sync_key(group))

    def _expire_sync(self, group: Group) -> None:
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_syncs:
            return
        missing = list(group.pending_syncs)
        for member_id in missing:
            self.end_session(group, member_id)
            group.remove(member_id)
        self.prepare(group, f"no sync in time from {', '.join(missing)}")

    def adopt_assignment(self, group: Group, assignment: dict[str, bytes]) -> None:
        """The leader's assignment: stored, then sent to all whose Sync is parked; the group is Stable.

        If it cannot be stored, they all get COORDINATOR_NOT_AVAILABLE and the group rebalances.
        """
        for member in group.members.values():
            member.assignment = assignment.get(member.member_id, b"")
        try:
            self._store.append([group.to_record()])
        except GroupStoreError as exc:
            log.warning("group %s: assignment not stored: %s", group.group_id, exc)
            self.revoke_assignment(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.prepare(group, "the assignment could not be stored")
            return
        self._answer_syncs(group, ErrorCode.NONE)
        group.transition(GroupState.STABLE)

    def revoke_assignment(self, group: Group, error: ErrorCode) -> None:
        """Takes every assignment away and answers the parked syncs with ``error``."""
        for member in group.members.values():
            member.assignment = b""
        self._answer_syncs(group, error)

    def _answer_syncs(self, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            response = (
                sync_answer(group, member)
                if error is ErrorCode.NONE
                else m.SyncGroupResponse(error_code=error)
            )
            if member.finish_sync(response):
                # A session that ended while the sync was parked was ignored: restart its timer.
                self.restart_session(group, member)

    # -- the end

    def stop(self, groups: Iterable[Group]) -> None:
        """Ends every group and timer; parked requests get NOT_COORDINATOR."""
        for group in groups:
            group.transition(GroupState.DEAD)
            self.finish_parked(group, ErrorCode.NOT_COORDINATOR)
        self._timers.clear()

    def finish_parked(self, group: Group, error: ErrorCode) -> None:
        """Answers every parked request with an error."""
        for member in group.members.values():
            member.finish_join(
                m.JoinGroupResponse(member_id=member.member_id, error_code=error, protocol_name=None)
            )
            member.finish_sync(m.SyncGroupResponse(error_code=error))

    def forget(self, group: Group) -> None:
        """Ends a group that has been deleted, or is of the other protocol from now on."""
        group.transition(GroupState.DEAD)
        self._timers.cancel(_join_key(group))
        self._timers.cancel(_sync_key(group))
        for member_id in (*group.members, *group.pending_joins):
            self.end_session(group, member_id)


def join_answer(group: Group, member: Member, *, skip_assignment: bool = False) -> m.JoinGroupResponse:
    """The answer to a join that succeeded: the leader gets the list of members."""
    leads = group.leader == member.member_id
    return m.JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=group.joined_members() if leads else [],
    )


def sync_answer(group: Group, member: Member) -> m.SyncGroupResponse:
    """The answer to a sync that succeeded."""
    return m.SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def session_key(group: Group, member_id: str) -> Key:
    """The key of a member's session timer."""
    return ("session", group.group_id, member_id)


def _join_key(group: Group) -> Key:
    return ("join", group.group_id)


def _sync_key(group: Group) -> Key:
    return ("sync", group.group_id)
