"""Rebalances that nobody here asked for: what the broker was seen to do.

A worker that comes back in another generation than it left shows that the group rebalanced. If the broker
made it (its coordinator moved, a broker restarted), the new revision is not to blame: a coordinator that
moves in the middle of a return forgets it, fences the rightful pod and makes the group rebalance (seen on
Kafka 4.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from slackwater_operator.model.kafka_snapshot import KafkaSnapshot

_KEPT = 20
_LINGERS_MS = 60_000
"""What a broker does shows in the group up to this much later: a rebalance waits for its members'
timeouts."""


class ForcedWatch:
    """Remembers, for one group, when the broker was seen to disturb it. In memory only.

    Attributes:
        sessions_since_ms: when the coordinator was last seen to move, or not to answer: it begins all
            sessions anew; 0 before.
    """

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._seen: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        self._coordinator: int | None = None
        self._brokers: frozenset[int] = frozenset()
        self._moving = False
        self.sessions_since_ms = 0

    def observe(self, snapshot: KafkaSnapshot | None, *, now_ms: int, away: Collection[str] = ()) -> None:
        """Takes an observation in.

        Args:
            snapshot: the newest; None: the cluster did not answer.
            now_ms: when.
            away: workers that are being restarted and whose new process has not begun to join. A rebalance
                that begins while they are away is not theirs.
        """
        if self._began_ms is None:
            self._began_ms = now_ms
        if snapshot is None or snapshot.group is None:
            self._note(now_ms, "the group's coordinator did not respond", sessions=True)
            return
        self._observe_brokers(snapshot, now_ms)
        moving = snapshot.group.rebalancing
        if moving and not self._moving and away:
            names = ", ".join(sorted(away))
            self._note(now_ms, f"the group began to rebalance while {names} was restarting", sessions=False)
        self._moving = moving

    def since(self, at_ms: int) -> str:
        """Why the broker may have made the group rebalance since `at_ms`, in words; "" if it was not seen to.

        What it did shortly before counts, too: its rebalance may come later. When nobody was watching at
        `at_ms` (the operator was started later) that is the answer: it cannot be told, and a worker that is
        in the group and running is taken for well.
        """
        if self._began_ms is None or self._began_ms > at_ms:
            return "nobody was watching when it began"
        return next((why for when, why in reversed(self._seen) if when >= at_ms - _LINGERS_MS), "")

    def _observe_brokers(self, snapshot: KafkaSnapshot, now_ms: int) -> None:
        before, after = self._coordinator, snapshot.coordinator
        if before is not None and after is not None and before != after:
            why = f"the group's coordinator moved from broker {before} to broker {after}"
            self._note(now_ms, why, sessions=True)
        if after is not None:
            self._coordinator = after
        gone, come = self._brokers - snapshot.brokers, snapshot.brokers - self._brokers
        if self._brokers and snapshot.brokers:
            for brokers, what in ((gone, "went away"), (come, "came back")):
                if brokers:
                    names = ", ".join(str(one) for one in sorted(brokers))
                    self._note(now_ms, f"broker {names} {what}", sessions=False)
        self._brokers = snapshot.brokers or self._brokers

    def _note(self, at_ms: int, why: str, *, sessions: bool) -> None:
        if sessions:
            self.sessions_since_ms = at_ms
        if self._seen and self._seen[-1][1] == why:
            self._seen.pop()  # it goes on: the latest time counts
        self._seen.append((at_ms, why))
