"""Diagnosis of a group: one message per occurrence, with the symptom, the cause and what to change.

The member tells what happens to it; a message is given once per occurrence, and an occurrence lasts until
its end is reported. So a fault that lasts for hours is one line in the log and not one each second. Pure:
the time comes in as an argument (ms of the caller's clock). Sources: Kafka's consumer coordinator as of 3.4
and its two common complaints (a rebalance that does not end, a group that never becomes Stable), KIP-62,
KIP-345, and what brokers were seen to do with static members.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from slackwater.kafka.protocol.membership.states import JOIN_MARGIN_MS, MembershipConfig
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_FINDINGS_KEPT = 100
_FAILED_SYNCS = 3
_STORE_MS = 4_000
"""A Sync that fails this late failed at storing: brokers wait offsets.commit.timeout.ms (5 s)."""
_OFTEN = 5
_OFTEN_WINDOW_MS = 60_000
_MEMBERS_NAMED = 10


class FindingKind(Enum):
    """The kinds of findings. The values are stable, so that logs can be searched for them."""

    POLL_TOO_LATE = "poll-too-late"
    POLL_RESUMED = "poll-resumed"
    SESSION_EXPIRED = "session-expired"
    REMOVED = "removed"
    LEFT_BEHIND = "left-behind"
    FENCE_FORGIVEN = "fence-forgiven"
    COORDINATOR_SILENT = "coordinator-silent"
    REBALANCE_WAITS = "rebalance-waits"
    SYNC_UNANSWERED = "sync-unanswered"
    SYNC_FAILS = "sync-fails"
    REBALANCES_OFTEN = "rebalances-often"
    ECHO = "echo-of-a-return"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class Finding:
    """One message. ``level``: of :mod:`logging`."""

    kind: FindingKind
    at_ms: int
    level: int
    text: str


class Diagnostics:
    """The findings of one member. ``findings``: the last 100, oldest first."""

    def __init__(self, config: MembershipConfig) -> None:
        self.config = config
        self.findings: deque[Finding] = deque(maxlen=_FINDINGS_KEPT)
        self.why_out = ""
        """Why the member is not in the group, for an error that says so; empty while it is, or never was."""
        self._open: set[FindingKind] = set()
        self._late_polls = 0
        self._longest_gap_ms = 0
        self._resumed_at = 0
        self._failed_syncs = 0
        self._slowest_sync = "", 0
        self._rebalances: deque[int] = deque(maxlen=_OFTEN)
        self._returned_at: int | None = None

    def _say(self, kind: FindingKind, now_ms: int, text: str, level: int = logging.WARNING) -> None:
        finding = Finding(kind, now_ms, level, f"group {self.config.group_id}: {text}")
        self.findings.append(finding)
        log.log(level, "%s", finding.text)

    def _once(self, kind: FindingKind, now_ms: int, text: str, level: int = logging.WARNING) -> None:
        if kind not in self._open:
            self._open.add(kind)
            self._say(kind, now_ms, text, level)

    # -- the application --------------------------------------------------------------------------

    def poll_late(self, member: str, now_ms: int) -> None:
        """max.poll.interval.ms is over and the application has not called ``poll()``."""
        if now_ms - self._resumed_at >= 2 * self.config.max_poll_interval_ms:
            self._late_polls = self._longest_gap_ms = 0
        self._late_polls += 1
        if self.config.instance_id is None:
            does = "it leaves the group, and its partitions go to others"
        else:
            does = (
                "a static member does not leave: its partitions stand still until it polls again or its "
                f"session (session.timeout.ms={self.config.session_timeout_ms}) is over; "
                f"KafkaAdmin.remove_members({self.config.group_id!r}, [{self.config.instance_id!r}]) frees "
                "them at once"
            )
        again = f" This is time {self._late_polls} without a quiet interval between." if self._again() else ""
        text = (
            f"poll() was not called within max.poll.interval.ms={self.config.max_poll_interval_ms}, so "
            f"{member} stops heartbeats and fetches: {does}. It joins again by itself at the next "
            f"poll().{again} Way out: do less between two polls (lower max.poll.records), hand the work to "
            "another thread and pause() meanwhile, or raise max.poll.interval.ms."
        )
        self.why_out = f"poll() was not called within max.poll.interval.ms={self.config.max_poll_interval_ms}"
        self._say(FindingKind.POLL_TOO_LATE, now_ms, text)

    def _again(self) -> bool:
        return self._late_polls > 1

    def poll_resumed(self, gap_ms: int, now_ms: int) -> None:
        """``poll()`` is called again, ``gap_ms`` after the last one ended."""
        self._resumed_at = now_ms
        self._longest_gap_ms = max(self._longest_gap_ms, gap_ms)
        often = ""
        if self._again():
            often = (
                f" The group has rebalanced {self._late_polls} times for this, and will again, as long as "
                f"the application needs up to {self._longest_gap_ms} ms between two polls."
            )
        text = (
            f"poll() is called again after {gap_ms} ms, {gap_ms - self.config.max_poll_interval_ms} ms too "
            f"late; joining again.{often} max.poll.interval.ms above {self._longest_gap_ms} would have been "
            "enough."
        )
        self._say(FindingKind.POLL_RESUMED, now_ms, text, logging.WARNING if often else logging.INFO)

    # -- heartbeats -------------------------------------------------------------------------------

    def heard(self, now_ms: int) -> None:
        """The coordinator answered a heartbeat, Join or Sync."""
        self._open -= {FindingKind.COORDINATOR_SILENT}

    def silent(self, how_long: str, now_ms: int) -> None:
        """The coordinator does not answer."""
        text = (
            f"the coordinator has answered nothing {how_long}: it is down or cannot be reached, and may have "
            "given this member's partitions to others. Looking for the coordinator until one answers. If "
            "other clients are fine, look at this host's network."
        )
        self._once(FindingKind.COORDINATOR_SILENT, now_ms, text)

    def taken_out(self, member: str, code: str, silent_ms: int | None, now_ms: int) -> None:
        """The coordinator knows the member no more (UNKNOWN_MEMBER_ID), or has another generation.

        ``silent_ms``: since the coordinator last heard of it (``None``: it never did).
        """
        session = self.config.session_timeout_ms
        heard = "" if silent_ms is None else f" (the coordinator heard of it {silent_ms} ms ago)"
        held_up = (
            "The process was held up (a suspended machine, no CPU, a debugger, code that holds the "
            "interpreter's lock) or cut off"
        )
        if code == ErrorCode.ILLEGAL_GENERATION.name:
            kind = FindingKind.LEFT_BEHIND
            why = (
                f"the group has completed a rebalance without it{heard}, or the coordinator moved during "
                f"one. In the first case: {held_up[0].lower()}{held_up[1:]} for longer than the rebalance "
                f"waits (max.poll.interval.ms={self.config.max_poll_interval_ms})"
            )
        elif silent_ms is not None and silent_ms >= session:
            kind = FindingKind.SESSION_EXPIRED
            why = (
                f"its session expired: the coordinator had heard nothing for {silent_ms} ms, and "
                f"session.timeout.ms is {session}. {held_up}. If that is to be expected, raise "
                "session.timeout.ms"
            )
        else:
            kind = FindingKind.REMOVED
            why = (
                f"its session was not over{heard}, so somebody removed it (remove_members, a tool or "
                "operator that scales the group down) or the coordinator moved during a rebalance. To take a "
                "member away for good, stop its process first, then remove it"
            )
        self.why_out = why
        text = (
            f"{member} was taken out of the group ({code}) and joins again; what it held counts as lost: "
            f"{why}."
        )
        self._say(kind, now_ms, text)

    def epoch_ended(self, member: str, code: str, now_ms: int) -> None:
        """The coordinator has ended the member's epoch (KIP-848)."""
        self.why_out = (
            "the coordinator has ended its epoch: its session was over (the process was held up or cut off), "
            "it did not give up partitions within max.poll.interval.ms="
            f"{self.config.max_poll_interval_ms}, or somebody removed or replaced it"
        )
        text = (
            f"{member} was taken out of the group ({code}) and joins again; what it held counts as lost: "
            f"{self.why_out}."
        )
        self._say(FindingKind.REMOVED, now_ms, text)

    def fence_forgiven(self, now_ms: int) -> None:
        """FENCED_INSTANCE_ID was probably the coordinator's mistake."""
        text = (
            f"{self.config.name} was fenced, but the coordinator moved before its join was stored, so this "
            "is most likely no second consumer: joining once more. If it is fenced again, there is one."
        )
        self._say(FindingKind.FENCE_FORGIVEN, now_ms, text)

    def throttled(self, what: str, throttle_ms: int, now_ms: int) -> None:
        """An answer said ``throttle_time_ms``; 0 ends the occurrence."""
        if throttle_ms <= 0:
            self._open -= {FindingKind.THROTTLED}
            return
        text = (
            f"the broker's quota holds this client back ({what}: throttle_time_ms={throttle_ms}); requests "
            "wait as long. Raise request_percentage for its user or client.id, or send less often (commits)."
        )
        # The connection has warned of it.
        self._once(FindingKind.THROTTLED, now_ms, text, logging.DEBUG)

    # -- rebalances -------------------------------------------------------------------------------

    def join_waits(self, waited_ms: int, members: Sequence[str], now_ms: int) -> None:
        """A Join has been parked for long. ``members``: of the group."""
        who = ""
        if members:
            more = len(members) - _MEMBERS_NAMED
            rest = f" and {more} more" if more > 0 else ""
            who = f" In the group: {', '.join(members[:_MEMBERS_NAMED])}{rest}."
        text = (
            f"the rebalance has not ended for {waited_ms} ms: the coordinator waits until every member has "
            "joined again, at most for the longest max.poll.interval.ms among them (of this one: "
            f"{self.config.max_poll_interval_ms}); for a static member that is away, at most until its "
            f"session is over.{who} Look for one that works between two polls for long (its "
            "max.poll.interval.ms is how long others may wait for it), and for one whose process is gone: "
            f"start it, or KafkaAdmin.remove_members({self.config.group_id!r}, [its group.instance.id])."
        )
        self._once(FindingKind.REBALANCE_WAITS, now_ms, text)

    def joined(self, now_ms: int) -> None:
        """A Join succeeded."""
        self.heard(now_ms)
        self._open -= {FindingKind.REBALANCE_WAITS}
        self.why_out = ""

    def _often(self, now_ms: int) -> None:
        if len(self._rebalances) < _OFTEN or now_ms - self._rebalances[0] > _OFTEN_WINDOW_MS:
            self._open -= {FindingKind.REBALANCES_OFTEN}
            return
        text = (
            f"{_OFTEN} rebalances within {now_ms - self._rebalances[0]} ms. Usual reasons: members that "
            "start and end in turn (crashes; look at their restarts), handlers that exceed "
            "max.poll.interval.ms in another member, session.timeout.ms too short for how long members "
            "stall, or a topic pattern that matches other topics all the time. The broker's log names the "
            "reason of each join."
        )
        self._once(FindingKind.REBALANCES_OFTEN, now_ms, text)

    def sync_unanswered(self, waited_ms: int, now_ms: int) -> None:
        """A Sync's own time limit is over, while heartbeats are answered."""
        text = (
            f"no answer to SyncGroup for {waited_ms} ms: the leader has not sent its plan yet, or this "
            "member was removed meanwhile. Sending it again; heartbeats tell which."
        )
        self._once(FindingKind.SYNC_UNANSWERED, now_ms, text, logging.INFO)

    def sync_failed(self, code: str, took_ms: int, now_ms: int) -> None:
        """A Sync was answered with an error; ``took_ms``: after how long."""
        self._failed_syncs += 1
        if took_ms >= self._slowest_sync[1]:
            self._slowest_sync = code, took_ms
        code, took_ms = self._slowest_sync
        if self._failed_syncs < _FAILED_SYNCS:
            return
        if took_ms >= _STORE_MS:
            why = (
                "The coordinator probably cannot store the plan in the topic __consumer_offsets (it gives up "
                "after offsets.commit.timeout.ms, 5 s by default): look for partitions of that topic below "
                "min.insync.replicas or without a leader, and at the log of the coordinator"
            )
        else:
            why = (
                "Members join or leave before a rebalance ends: look for one that is restarted all the "
                "time, or for many that start one by one"
            )
        text = (
            f"the group does not become Stable: {self._failed_syncs} times in a row SyncGroup has failed, "
            f"once with {code} after {took_ms} ms. {why}."
        )
        self._once(FindingKind.SYNC_FAILS, now_ms, text)

    def synced(
        self, *, returned: bool, follow_up: bool, changed: bool, same_members: bool, now_ms: int
    ) -> None:
        """A Sync was answered well.

        ``returned``: without a rebalance. ``follow_up``: the second half of a cooperative one. ``changed``:
        this member's partitions. ``same_members``: of the group, as far as this member knows.
        """
        self.heard(now_ms)
        self._failed_syncs, self._slowest_sync = 0, ("", 0)
        self._open -= {FindingKind.SYNC_FAILS, FindingKind.SYNC_UNANSWERED}
        if returned:
            self._returned_at = now_ms
            return
        if not follow_up:
            self._rebalances.append(now_ms)
            self._often(now_ms)
        since, self._returned_at = self._returned_at, None
        limit = self.config.max_poll_interval_ms + JOIN_MARGIN_MS
        if since is None or changed or not same_members or now_ms - since > limit:
            return
        text = (
            f"a rebalance {now_ms - since} ms after this member's return changed nothing. Most likely the "
            "echo of that return: the member had been away when a rebalance ended, and the coordinator "
            "rebalances once more, one rebalance timeout (max.poll.interval.ms) later. It comes once, and "
            "nothing is to be done. To avoid it, restart members only while the group is Stable."
        )
        self._say(FindingKind.ECHO, now_ms, text, logging.INFO)
