"""The rebalances of one member: kept for its snapshot, reported to the diagnosis and the metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from slackwater.kafka.protocol.diagnostics import Diagnostics
from slackwater.kafka.structs import GenerationSeen, TopicPartition

_GENERATIONS_KEPT = 1_000


class MembershipStats:
    """Receives the time that each request took, and the time of the answer on the member's clock; both in ms.

    This class ignores them; ``consumer/metrics/group.py`` keeps them.
    """

    def joined(self, took_ms: int, now_ms: int) -> None:
        """A Join succeeded."""

    def synced(self, took_ms: int, since_join_ms: int, *, rebalanced: bool, now_ms: int) -> None:
        """A Sync succeeded; ``rebalanced``: false for a static member's return (KIP-345)."""

    def reconciled(self, took_ms: int, now_ms: int) -> None:
        """The application has given up and taken what the coordinator has assigned (KIP-848)."""

    def failed(self, now_ms: int) -> None:
        """A Sync was refused: the rebalance has to be repeated."""

    def committed(self, took_ms: int, now_ms: int) -> None:
        """An OffsetCommit was answered."""

    def beat(self, took_ms: int, now_ms: int) -> None:
        """A heartbeat was answered."""


class RebalanceHistory:
    """The generations that the member has joined, and what the last of them changed."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._generations: deque[GenerationSeen] = deque(maxlen=_GENERATIONS_KEPT)
        self._members: frozenset[str] | None = None
        self._assigned: frozenset[TopicPartition] = frozenset()

    @property
    def generations(self) -> tuple[GenerationSeen, ...]:
        """The generations, oldest first; at most the last 1,000."""
        return tuple(self._generations)

    def joined(
        self, generation: int, now_ms: int, *, returned: bool, follow_up: bool, reason: str = ""
    ) -> None:
        """A Join succeeded; ``follow_up``: it is the second half of a cooperative rebalance (KIP-429).
        ``reason``: that of the Join (KIP-800)."""
        if returned and self._generations and self._generations[-1].generation == generation:
            return
        self._generations.append(GenerationSeen(generation, follow_up, now_ms, reason))

    def synced(
        self,
        assigned: Collection[TopicPartition],
        members: frozenset[str] | None,
        now_ms: int,
        *,
        returned: bool,
    ) -> None:
        """A Sync succeeded. ``members``: of the group, if this member leads it, else ``None``."""
        if members is None:
            members = self._members
        self._diagnostics.synced(
            returned=returned,
            follow_up=bool(self._generations) and self._generations[-1].follow_up,
            changed=set(assigned) != self._assigned,
            same_members=self._members is None or members == self._members,
            now_ms=now_ms,
        )
        self._members, self._assigned = members, frozenset(assigned)
