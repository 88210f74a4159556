"""When a member of a group has to do something. All times are ms of the caller's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slackwater.kafka.protocol.membership.states import (
    NEVER_MS,
    SUBSCRIPTIONS_ASKED_MS,
    Lane,
    MembershipConfig,
)


@dataclass(slots=True)
class Timers:
    """The deadlines of one member; ``NEVER_MS``: not set. A deadline is over at its very millisecond.

    ``retry_delay_ms``: how long to wait after the n-th failure in a row, counted from 1 (KIP-580).
    """

    config: MembershipConfig
    retry_delay_ms: Callable[[int], float]
    heartbeat_at: int = NEVER_MS
    session_ends_at: int = NEVER_MS
    """No heartbeat was answered for session.timeout.ms: the coordinator has to be found anew (KIP-62)."""
    poll_ends_at: int = NEVER_MS
    """max.poll.interval.ms after the application left ``poll()`` (KIP-62)."""
    request_ends_at: int = NEVER_MS
    """The time limit of the Join (rebalance timeout and a margin) or Sync that is under way."""
    diagnose_at: int = NEVER_MS
    """When a Join has been parked for so long that the user should hear why."""
    rejoin_at: int = NEVER_MS
    """When a leader's assignor wants the next rebalance (delayed assignors)."""
    subscriptions_at: int = NEVER_MS
    """When a member that delays a rebalance asks again which topics the others have."""
    delay_ends_at: int = NEVER_MS
    """When it waits no longer for them."""
    retry_at: int = 0
    failures: int = 0
    quiet_until: dict[Lane, int] = field(default_factory=dict)
    """Until when a broker's quota forbids the next request of a lane (KIP-219)."""

    def beat_next(self, now_ms: int) -> None:
        """The next heartbeat is due one interval from now."""
        self.heartbeat_at = now_ms + self.config.heartbeat_interval_ms

    def refresh_session(self, now_ms: int) -> None:
        """The coordinator has heard of this member."""
        self.session_ends_at = now_ms + self.config.session_timeout_ms

    def back_off(self, now_ms: int) -> None:
        """Something failed: the next attempt waits, longer each time."""
        self.failures += 1
        self.retry_at = now_ms + round(self.retry_delay_ms(self.failures))

    def succeeded(self) -> None:
        """A Join or Sync was answered well: the next back-off begins small."""
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
        """Whether no quota holds the lane back."""
        return now_ms >= self.quiet_until.get(lane, 0)

    def delay_rebalance(self, now_ms: int) -> None:
        """A return with other topics leaves its rebalance to the members that have not returned yet."""
        self.subscriptions_at = now_ms + SUBSCRIPTIONS_ASKED_MS
        self.delay_ends_at = now_ms + self.config.subscription_change_max_delay_ms

    def rebalance_begins(self) -> None:
        """A Join is to come: whatever was to be asked for then is in it."""
        self.rejoin_at = self.subscriptions_at = self.delay_ends_at = NEVER_MS

    def out_of_group(self) -> None:
        """No longer a member: what only a member has to do is not due any more."""
        self.rebalance_begins()
        self.heartbeat_at = self.session_ends_at = NEVER_MS
