"""The status of a worker, which the main thread writes and the threads of the HTTP server read."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.clock import Clock

PHASES = (
    "starting",
    "warming",
    "warm",
    "standby",
    "taking-over",
    "joining",
    "running",
    "handing-over",
    "draining",
    "stopped",
    "failed",
)
"""``warm``: a new member at the gate. ``standby``: ready to take over from another pod."""

RATE_MS = 60_000
"""How far back the rate of committed records looks."""
LEAVE_WITHIN_MS = 60_000
"""How long a worker remembers that it was told to leave the group at its end: a later end is a restart."""
STALE_MS = 60_000
"""A main thread that has not turned for this long hangs: /healthz says so."""


@dataclass
class Status:
    """Facts about the worker. Values are replaced, never changed in place, so readers need no lock."""

    group: str
    instance: str
    clock: Clock
    phase: str = "starting"
    generation: int = -1
    member_id: str = ""
    is_leader: bool = False
    assignment: list[list[Any]] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    committed: dict[str, int | None] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, list[int]] = field(default_factory=dict)
    last_gap: dict[str, Any] | None = None
    error: str = ""
    turned_ms: float = 0.0
    """Monotonic time of the main thread's last turn."""
    patience_ms: float = STALE_MS
    gate: threading.Event = field(default_factory=threading.Event)
    """Opened by POST /join: a worker at the gate joins; one that runs expects others to join or leave."""
    leaves_until_ms: float = 0.0
    """Set by POST /leave: an end before that (monotonic clock) is for good."""
    started_ms: int = 0
    """When the process began; this and the times below are wall clock."""
    phase_since_ms: int = 0
    joined_ms: int | None = None
    returned: bool = False
    """Whether the last join was a return without a rebalance."""
    joins: list[dict[str, Any]] = field(default_factory=list)
    """The last generations joined: ``generation``, ``at_ms``, ``kind`` and the worker's ``reason``.

    Kinds: ``joined``, ``follow_up`` (the second half of a cooperative rebalance) and ``returned`` (without a
    rebalance)."""
    rebalance: dict[str, int | None] | None = None
    """``started_ms`` and ``ended_ms`` of the last one."""
    restart: dict[str, Any] | None = None
    process: str = field(default_factory=lambda: os.urandom(16).hex())
    """A random token of this process, which signed requests must name."""
    pod: str = ""
    """The pod's name; "": as the instance."""
    holder: str | None = None
    """The pod that is the member, as far as this worker knows."""
    standby: dict[str, Any] | None = None
    takeover: dict[str, Any] | None = None
    """The last one of this process."""
    stopped: list[dict[str, Any]] = field(default_factory=list)
    """The partitions of the assignment that nothing more is read of: partition, reason, message, since_ms."""
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """The last times that records were skipped: partition, from, to (not included), cause, at_ms."""
    last_batch: dict[str, Any] | None = None
    """The batch committed last: ``at_ms``, ``records``, ``rows``, ``dead_letters``, and ``ms`` by phase."""
    committed_records: tuple[tuple[int, int], ...] = ()
    """(at_ms, records) of the batches committed within ``RATE_MS``; those of the same second are one."""

    def enter(self, phase: str) -> None:
        """Goes to ``phase``."""
        self.phase, self.phase_since_ms = phase, self.clock.wall_ms()

    def batch(self, records: int, rows: int, dead_letters: int, ms: Mapping[str, float]) -> None:
        """A batch was committed; ``ms``: its time by phase."""
        now_ms = self.clock.wall_ms()
        by_second = {at_ms // 1000: (at_ms, count) for at_ms, count in self.committed_records}
        _, before = by_second.pop(now_ms // 1000, (0, 0))
        kept = [(at_ms, count) for at_ms, count in by_second.values() if now_ms - at_ms < RATE_MS]
        self.committed_records = (*kept, (now_ms, before + records))
        self.last_batch = {
            "at_ms": now_ms,
            "records": records,
            "rows": rows,
            "dead_letters": dead_letters,
            "ms": dict(ms),
        }

    def records_per_second(self) -> float:
        """Records committed a second, over ``RATE_MS``, or since the worker has joined if that is shorter."""
        now_ms = self.clock.wall_ms()
        records = sum(count for at_ms, count in self.committed_records if now_ms - at_ms < RATE_MS)
        since_ms = self.started_ms if self.joined_ms is None else self.joined_ms
        return round(records * 1000 / max(1000, min(RATE_MS, now_ms - since_ms)), 1)

    def leave(self) -> None:
        """POST /leave: the pod is about to be removed for good."""
        self.leaves_until_ms = self.clock.mono_ms() + LEAVE_WITHIN_MS

    @property
    def leaves(self) -> bool:
        """Whether the worker leaves the group when it ends now."""
        return self.clock.mono_ms() < self.leaves_until_ms

    @property
    def alive(self) -> bool:
        """Whether the main thread is turning."""
        return self.clock.mono_ms() - self.turned_ms < self.patience_ms

    @property
    def ready(self) -> bool:
        """Whether the worker is in the group and handles records."""
        return self.phase == "running" and self.generation >= 0

    @property
    def target(self) -> str:
        """Who requests to this process are signed for."""
        # Here, as a worker without a key needs no hmac on its way to the group.
        from slackwater.runtime.takeover.signing import target_of

        return target_of(self.pod or self.instance, self.process)

    def document(self) -> dict[str, Any]:
        """The body of /status."""
        return {
            "group": self.group,
            "instance": self.instance,
            "pod": self.pod or self.instance,
            "process": self.process,
            "holder": self.holder,
            "phase": self.phase,
            "generation": self.generation,
            "member_id": self.member_id,
            "is_leader": self.is_leader,
            "assignment": self.assignment,
            "positions": self.positions,
            "committed": self.committed,
            "lag": self.lag,
            "in_flight": self.in_flight,
            "last_gap": self.last_gap,
            "error": self.error,
            "started_ms": self.started_ms,
            "joined_ms": self.joined_ms,
            "waiting_since_ms": self.phase_since_ms if self.phase == "warm" else None,
            "running_since_ms": self.phase_since_ms if self.phase == "running" else None,
            "returned": self.returned,
            "joins": self.joins,
            "rebalance": self.rebalance,
            "restart": self.restart,
            "standby": self.standby,
            "takeover": self.takeover,
            "stopped": self.stopped,
            "skipped": self.skipped,
            "records_per_second": self.records_per_second(),
            "last_batch": self.last_batch,
        }
