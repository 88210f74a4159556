"""A member's states, the classic protocol's table of transitions between them, and the member's settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

NEVER_MS = 1 << 62
JOIN_MARGIN_MS = 5_000
"""How much longer than the rebalance timeout a Join is waited for, as in Java's consumer."""

NET_MARGIN_MS = 1_000
"""The network gives a Join or Sync up this much later than the member itself does."""
SLOW_JOIN_MS = 10_000
SUBSCRIPTIONS_ASKED_MS = 3_000
"""How often a member that delays its rebalance asks which topics the other members have."""


class State(Enum):
    """The states of a member."""

    OUT = "out"
    PREPARING = "preparing"  # the application gives up partitions before the Join
    JOINING = "joining"
    SYNCING = "syncing"
    ASSIGNING = "assigning"  # the application handles the new assignment
    ACKNOWLEDGING = "acknowledging"  # the coordinator is told what the application holds (KIP-848 alone)
    STABLE = "stable"
    DEAD = "dead"  # fenced, or an error that a rejoin does not resolve


class Event(Enum):
    """The events that move a member from state to state."""

    WANT = auto()
    PREPARED = auto()
    JOINED = auto()
    SYNCED = auto()
    ASSIGNED = auto()
    APPLIED = auto()
    ACKNOWLEDGED = auto()
    REJOIN = auto()
    RESET = auto()
    LEAVE = auto()
    DIE = auto()


_S, _E = State, Event
TRANSITIONS: dict[State, dict[Event, State]] = {
    _S.OUT: {_E.WANT: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD},
    _S.PREPARING: {
        _E.PREPARED: _S.JOINING, _E.RESET: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD,
    },
    _S.JOINING: {
        _E.JOINED: _S.SYNCING, _E.REJOIN: _S.PREPARING, _E.RESET: _S.PREPARING,
        _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD,
    },
    _S.SYNCING: {
        _E.SYNCED: _S.ASSIGNING, _E.REJOIN: _S.PREPARING, _E.RESET: _S.PREPARING,
        _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD,
    },
    _S.ASSIGNING: {
        _E.APPLIED: _S.STABLE, _E.RESET: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD,
    },
    _S.STABLE: {
        _E.REJOIN: _S.PREPARING, _E.RESET: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD,
    },
    _S.DEAD: {_E.LEAVE: _S.DEAD, _E.DIE: _S.DEAD},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MembershipConfig:
    """Settings of a member, all times in ms. ``instance_id``: ``None`` for a dynamic member."""

    group_id: str
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    request_timeout_ms: int = 30_000
    rack: str | None = None
    subscription_change_max_delay_ms: int = 0
    """How long a static member that returned with other topics leaves the rebalance to the other members,
    while they have topics other than its own; 0: it asks for one at once."""

    @property
    def name(self) -> str:
        """The name of this member in messages before it has a member.id."""
        return self.instance_id or "this member"

    @property
    def join_timeout_ms(self) -> int:
        """How long a Join is waited for: it is parked until all have joined or the rebalance times out."""
        return max(self.request_timeout_ms, self.max_poll_interval_ms + JOIN_MARGIN_MS)

    @property
    def sync_timeout_ms(self) -> int:
        """How long a Sync is waited for, before it is sent again.

        It is parked until the leader has synced, and that of a member which was removed meanwhile is never
        answered (Kafka 4.3); a broker waits for Syncs no longer than the rebalance timeout.
        """
        return min(self.request_timeout_ms, self.max_poll_interval_ms)

    @property
    def slow_join_ms(self) -> int:
        """How long a Join is parked before a diagnosis asks who is waited for."""
        return max(SLOW_JOIN_MS, 3 * self.heartbeat_interval_ms)

    @property
    def heartbeat_timeout_ms(self) -> int:
        """How long a heartbeat is waited for: so that another can be sent within the session."""
        return min(self.request_timeout_ms, max(1_000, self.session_timeout_ms // 3))
