"""The broker to fetch a partition from, and pauses of partitions and brokers. No I/O; times are in s.

A leader may send a consumer with a rack to a follower that is closer (KIP-392). That holds for a while, then
the leader is asked again. A follower that fails is left for the leader, and while the leader may not know
yet that it is gone, it is not told the rack either: it would answer with that follower's name in place of
records.
"""

from __future__ import annotations

from collections.abc import Iterable

from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.structs import TopicPartition

DISTRUST_S = 10.0
"""A little more than ``broker.session.timeout.ms`` (9 s), after which the controller fences a dead broker."""


class FetchTargets:
    """``replica_age_s``: for how long a follower is read from before the leader is asked again."""

    def __init__(self, metadata: ClusterMetadata, *, replica_age_s: float) -> None:
        self._metadata, self._replica_age_s = metadata, replica_age_s
        self._replicas: dict[TopicPartition, tuple[int, float]] = {}
        self._distrusted: dict[TopicPartition, float] = {}
        self._paused: dict[TopicPartition, float] = {}
        self._throttled: dict[int, float] = {}

    def node(self, tp: TopicPartition, now: float) -> int | None:
        """The follower that the leader has named, else the leader; ``None`` while there is none."""
        replica = self._replicas.get(tp)
        if replica is not None:
            if now < replica[1] and replica[0] in self._metadata.brokers:
                return replica[0]
            if not self.is_paused(tp, now):
                del self._replicas[tp]
        return self._metadata.leader(tp)

    def prefer(self, tp: TopicPartition, node: int, now: float) -> None:
        """The leader says that this follower is closer."""
        self._replicas[tp] = (node, now + self._replica_age_s)

    def to_leader(self, tp: TopicPartition) -> int | None:
        """Goes back to the leader; gives the follower that was read from, if any."""
        replica = self._replicas.pop(tp, None)
        return replica[0] if replica is not None else None

    def replica(self, tp: TopicPartition) -> int:
        """The follower that the leader has named, -1 where it is the leader that is read from."""
        replica = self._replicas.get(tp)
        return replica[0] if replica is not None else -1

    def failed(self, node: int, partitions: Iterable[TopicPartition], now: float) -> None:
        """A broker could not be reached: what was read from it as a follower goes back to the leader."""
        for tp in partitions:
            if self.to_leader(tp) == node:
                self._distrusted[tp] = now + DISTRUST_S

    def may_tell_rack(self, partitions: Iterable[TopicPartition], now: float) -> bool:
        """Whether the leader may send these to followers."""
        if not self._distrusted:
            return True
        self._distrusted = {tp: until for tp, until in self._distrusted.items() if until > now}
        return not any(tp in self._distrusted for tp in partitions)

    def pause(self, partitions: Iterable[TopicPartition], until: float) -> None:
        """Leaves partitions alone after an error."""
        self._paused.update(dict.fromkeys(partitions, until))

    def is_paused(self, tp: TopicPartition, now: float) -> bool:
        """Whether a partition is left alone now."""
        until = self._paused.get(tp)
        if until is None:
            return False
        if until <= now:
            del self._paused[tp]
        return until > now

    def next_end(self, now: float) -> float | None:
        """When the next of those that are left alone may be asked again; None: nobody is left alone."""
        ends = (until for until in (*self._paused.values(), *self._throttled.values()) if until > now)
        return min(ends, default=None)

    def throttle(self, node: int, until: float) -> None:
        """Leaves a broker alone that has asked for it by ``throttle_time_ms`` (KIP-219)."""
        self._throttled[node] = until

    def is_throttled(self, node: int, now: float) -> bool:
        """Whether a broker is left alone now."""
        return self._throttled.get(node, now) > now
