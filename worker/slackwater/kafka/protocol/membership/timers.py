"""Deadlines of a group member. All times are ms of the caller's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slackwater.kafka.protocol.membership.requests import Lane
from slackwater.kafka.protocol.membership.states import (
    NEVER_MS,
    SUBSCRIPTIONS_ASKED_MS,
    MembershipConfig,
)

FIRST_BEAT_MS, LAST_BEAT_MS = 100, 1_600
"""How long the first heartbeats after the Sync of a cooperative rebalance are apart: each twice as long as
the one before. These five come within 3.1 s; then heartbeat.interval.ms counts."""


class PollInterval:
    """max.poll.interval.ms, which runs while the application is outside ``poll()`` (KIP-62)."""

    def __init__(self, limit_ms: int) -> None:
        self.ends_at = NEVER_MS
        self.away = True
        """The application is outside ``poll()``."""
        self.exceeded = False
        """The interval is over, and the application has not polled since."""
        self._limit_ms = limit_ms
        self._left_at = -1

    def enter(self, now_ms: int) -> int | None:
        """The application calls ``poll()``. How long it was away, if that exceeded the interval."""
        self.away, self.ends_at = False, NEVER_MS
        if not self.exceeded:
            return None
        self.exceeded = False
        return now_ms - self._left_at

    def leave(self, now_ms: int) -> None:
        """``poll()`` returns or calls a listener: the interval begins."""
        self.away = True
        if not self.exceeded:
            self._left_at = now_ms
        self.ends_at = now_ms + self._limit_ms

    def expire(self) -> bool:
        """The interval is over. Whether that is news: false if it was exceeded before."""
        self.ends_at = NEVER_MS
        if not self.away or self.exceeded:
            return False
        self.exceeded = True
        return True


@dataclass(slots=True)
class Timers:
    """The deadlines of one member; ``NEVER_MS``: not set. A deadline is over at its very millisecond.

    ``retry_delay_ms``: how long to wait after the n-th failure in a row, counted from 1 (KIP-580).
    """

    config: MembershipConfig
    retry_delay_ms: Callable[[int], float]
    heartbeat_at: int = NEVER_MS
    session_ends_at: int = NEVER_MS
    """No heartbeat was answered for session.timeout.ms: the coordinator is looked up again (KIP-62)."""
    heard_at: int = -1
    """When the coordinator last confirmed the membership; -1: never."""
    request_ends_at: int = NEVER_MS
    """The time limit of the Join (rebalance timeout and a margin) or Sync that is under way."""
    diagnose_at: int = NEVER_MS
    """When a parked Join is diagnosed, for a message to the user."""
    rejoin_at: int = NEVER_MS
    """When a leader's assignor wants the next rebalance (delayed assignors)."""
    subscriptions_at: int = NEVER_MS
    """When a member that delays a rebalance asks again which topics the others have."""
    delay_ends_at: int = NEVER_MS
    """When a delayed rebalance is requested at the latest."""
    beat_ms: int = NEVER_MS
    """How long to wait for the next heartbeat, if that is less than heartbeat.interval.ms. It doubles with
    each."""
    retry_at: int = 0
    failures: int = 0
    quiet_until: dict[Lane, int] = field(default_factory=dict)
    """Until when a broker's quota forbids the next request of a lane (KIP-219)."""

    def beat_next(self, now_ms: int) -> None:
        """The next heartbeat is due one interval from now, or sooner where a rebalance may follow."""
        self.heartbeat_at = now_ms + min(self.beat_ms, self.config.heartbeat_interval_ms)
        self.beat_ms = 2 * self.beat_ms if self.beat_ms < LAST_BEAT_MS else NEVER_MS

    def rebalance_may_follow(self, now_ms: int) -> None:
        """Another member may begin the second rebalance of a cooperative one (KIP-429). A broker says so in
        the answers to heartbeats only, and the group's partitions that move are unread until the last member
        knows."""
        self.beat_ms = FIRST_BEAT_MS
        self.beat_next(now_ms)

    def refresh_session(self, now_ms: int) -> None:
        """The session restarts, by the member's own clock."""
        self.session_ends_at = now_ms + self.config.session_timeout_ms

    def heard(self, now_ms: int) -> None:
        """The coordinator has confirmed the membership, so it has restarted the session."""
        self.heard_at = now_ms
        self.refresh_session(now_ms)

    def back_off(self, now_ms: int) -> None:
        """Something failed: the next attempt waits, longer each time."""
        self.failures += 1
        self.retry_at = now_ms + round(self.retry_delay_ms(self.failures))

    def succeeded(self) -> None:
        """A Join or Sync succeeded: the next back-off is the shortest again."""
        self.failures, self.retry_at = 0, 0

    def request_sent(self, now_ms: int, limit_ms: int) -> None:
        """A Join or Sync went out, which may take ``limit_ms``."""
        self.request_ends_at = now_ms + limit_ms

    def request_over(self) -> None:
        """No Join or Sync is under way any more."""
        self.request_ends_at = self.diagnose_at = NEVER_MS

    def throttle(self, lane: Lane, throttle_ms: int, now_ms: int) -> None:
        """A broker's answer said ``throttle_time_ms``: nothing more on that lane before (KIP-219)."""
        if throttle_ms > 0:
            self.quiet_until[lane] = max(self.quiet_until.get(lane, 0), now_ms + throttle_ms)

    def may_send(self, lane: Lane, now_ms: int) -> bool:
        """Whether the broker's quota allows a request on this lane."""
        return now_ms >= self.quiet_until.get(lane, 0)

    def delay_rebalance(self, now_ms: int) -> None:
        """A rebalance for changed topics waits for the other members to return with the same topics."""
        self.subscriptions_at = now_ms + SUBSCRIPTIONS_ASKED_MS
        self.delay_ends_at = now_ms + self.config.subscription_change_max_delay_ms

    def rebalance_begins(self) -> None:
        """A Join follows, so rejoins that were scheduled are obsolete."""
        self.rejoin_at = self.subscriptions_at = self.delay_ends_at = NEVER_MS

    def out_of_group(self) -> None:
        """The member is out of the group: deadlines of a membership no longer apply."""
        self.rebalance_begins()
        self.heartbeat_at = self.session_ends_at = NEVER_MS
