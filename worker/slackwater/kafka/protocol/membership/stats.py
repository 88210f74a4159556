"""What a member tells of its requests, for metrics."""

from __future__ import annotations


class MembershipStats:
    """Is told of each answer, with how long it took, and the time of the member's clock; both in ms.

    Nothing is kept here: ``consumer/metrics/group.py`` does that.
    """

    def joined(self, took_ms: int, now_ms: int) -> None:
        """A Join was answered well."""

    def synced(self, took_ms: int, since_join_ms: int, *, rebalanced: bool, now_ms: int) -> None:
        """A Sync was answered well; a static member's return (KIP-345) is no rebalance."""

    def failed(self, now_ms: int) -> None:
        """A Sync was refused: the rebalance has to be made again."""

    def committed(self, took_ms: int, now_ms: int) -> None:
        """An OffsetCommit was answered."""

    def beat(self, took_ms: int, now_ms: int) -> None:
        """A heartbeat was answered."""
