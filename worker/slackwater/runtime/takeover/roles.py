"""Which role a worker has, and the rules by which that changes. No I/O, no clock.

A member (``flights-3``) has up to two processes: the one that is in the group, and one that stands by. Who
joins last is the member: the broker fences the other (KIP-345).
"""

from __future__ import annotations

from enum import Enum

from slackwater.runtime.takeover.group_observer import MemberView
from slackwater.times import duration


class Role(Enum):
    """A process's role with regard to its member."""

    STARTING = "starting"
    NEW = "new"
    """The group does not know the member: join when ready."""
    RETURNING = "returning"
    """This pod is the member still: join at once, since the session runs out."""
    SUCCESSOR = "successor"
    """Another pod is the member: get ready beside it."""
    STANDBY = "standby"
    """Ready to take over."""
    TAKING_OVER = "taking over"
    RUNNING = "running"
    HANDING_OVER = "handing over"


class RoleEvent(Enum):
    """What changes a role."""

    ABSENT = "the group does not know the member"
    OWN = "this pod is the member"
    OTHERS = "another pod is the member"
    WARM = "all is loaded"
    ORDERED = "it was ordered to take over"
    GONE = "the member is no longer in the group"
    SUCCESSOR_GONE = "the pod that took over is gone"
    REFUSED = "the predecessor refused"
    JOINED = "it is the member, and all is loaded"
    ASKED = "its successor asked for the handover"
    KEPT = "its successor did not join"
    FENCED = "another pod has joined as the member"


TABLE: dict[tuple[Role, RoleEvent], Role] = {
    (Role.STARTING, RoleEvent.ABSENT): Role.NEW,
    (Role.STARTING, RoleEvent.OWN): Role.RETURNING,
    (Role.STARTING, RoleEvent.OTHERS): Role.SUCCESSOR,
    (Role.NEW, RoleEvent.JOINED): Role.RUNNING,
    (Role.RETURNING, RoleEvent.JOINED): Role.RUNNING,
    (Role.SUCCESSOR, RoleEvent.WARM): Role.STANDBY,
    (Role.SUCCESSOR, RoleEvent.ORDERED): Role.TAKING_OVER,
    (Role.STANDBY, RoleEvent.ORDERED): Role.TAKING_OVER,
    (Role.STANDBY, RoleEvent.SUCCESSOR_GONE): Role.TAKING_OVER,
    (Role.STANDBY, RoleEvent.GONE): Role.NEW,
    (Role.TAKING_OVER, RoleEvent.REFUSED): Role.STANDBY,
    (Role.TAKING_OVER, RoleEvent.JOINED): Role.RUNNING,
    (Role.RUNNING, RoleEvent.ASKED): Role.HANDING_OVER,
    (Role.HANDING_OVER, RoleEvent.KEPT): Role.RUNNING,
    # Whoever is fenced gets ready to succeed its successor; what is loaded stays loaded.
    (Role.NEW, RoleEvent.FENCED): Role.SUCCESSOR,
    (Role.RETURNING, RoleEvent.FENCED): Role.SUCCESSOR,
    (Role.TAKING_OVER, RoleEvent.FENCED): Role.SUCCESSOR,
    (Role.RUNNING, RoleEvent.FENCED): Role.SUCCESSOR,
    (Role.HANDING_OVER, RoleEvent.FENCED): Role.SUCCESSOR,
}


class Roles:
    """The role, which changes by :data:`TABLE` alone."""

    def __init__(self) -> None:
        self.role = Role.STARTING

    def take(self, event: RoleEvent) -> Role:
        """Changes the role. An event that it has no row for is a fault of the worker: RuntimeError."""
        try:
            self.role = TABLE[self.role, event]
        except KeyError:
            raise RuntimeError(f"{event.value}, but the worker is {self.role.value}") from None
        return self.role


def at_start(member: MemberView, pod: str, *, takes_over: bool) -> RoleEvent:
    """What the group says to a worker that starts in ``pod``. Without a key for takeovers
    (``takes_over``) the process before is gone whatever its pod was called.
    """
    if not member.taken:
        return RoleEvent.ABSENT
    return RoleEvent.OTHERS if takes_over and member.holder != pod else RoleEvent.OWN


TRIES = 3
"""How many questions in a row must have failed before a worker counts as gone."""
SILENT_MS = 2_000.0
"""And for how long."""
PROBE_EVERY_MS = 500.0


class Silence:
    """Whether a worker is gone, by its answers to GET /healthz. Times: monotonic ms."""

    def __init__(self) -> None:
        self._failures = 0
        self._since_ms: float | None = None
        self.answered = False
        """Its last answer, if there was one, said that it lives."""

    def probed(self, alive: bool, asked_ms: float) -> None:
        """Takes in whether it answered the probe that was sent at ``asked_ms``."""
        self.answered = alive
        if alive:
            self._failures, self._since_ms = 0, None
            return
        self._failures += 1
        if self._since_ms is None:
            self._since_ms = asked_ms

    def gone(self, now_ms: float) -> bool:
        """Whether :data:`TRIES` failed over :data:`SILENT_MS`."""
        return self._since_ms is not None and self._failures >= TRIES and now_ms - self._since_ms >= SILENT_MS


STILL_AT_LEAST_MS = 3_000.0


class TakeBack:
    """When a worker that has handed over joins again: its successor does not answer, and does not
    show in the group either. If it commits, it lives, and only the way between the two is cut.

    A holder commits every tenth of a session, at least a note; two of these have to be missing.
    """

    def __init__(self, session_timeout_ms: int) -> None:
        self.silence = Silence()
        self._still_ms = max(STILL_AT_LEAST_MS, session_timeout_ms / 5)
        self._committed: object = None
        self._unchanged_since_ms: float | None = None
        self._observed_ms = 0.0

    def observe(self, committed: object, asked_ms: float) -> None:
        """Takes in the holder's commits, notes and all, as they were at ``asked_ms`` or later."""
        if self._unchanged_since_ms is None or committed != self._committed:
            self._committed, self._unchanged_since_ms = committed, asked_ms
        self._observed_ms = asked_ms

    def due(self, now_ms: float) -> str:
        """Why to join again now; "" where there is no reason to."""
        if self._unchanged_since_ms is None or not self.silence.gone(now_ms):
            return ""
        still = self._observed_ms - self._unchanged_since_ms
        if still < self._still_ms:
            return ""
        return f"its successor does not answer, and has committed nothing for {duration(still)}"


class Unfenced:
    """When a worker that has answered its successor goes on with its work: that is gone, or does not come.

    Should it come after all, it looks at the committed offsets before it writes anything.
    """

    def __init__(self, answered_ms: float, deadline_ms: float) -> None:
        self.silence = Silence()
        self._answered_ms, self._deadline_ms = answered_ms, deadline_ms
        self.withdrawn = False
        """The successor has said itself that it does not come."""

    def due(self, now_ms: float) -> str:
        """Why to go on now; "" where there is no reason to."""
        waited = now_ms - self._answered_ms
        if self.withdrawn:
            return "its successor has withdrawn"
        if self.silence.gone(now_ms):
            return "its successor is gone"
        if waited >= 2 * self._deadline_ms or (waited >= self._deadline_ms and not self.silence.answered):
            return f"its successor did not join within {waited:.0f} ms"
        return ""
