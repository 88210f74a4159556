"""The coordinator's settings, and its view of topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of Apache Kafka's broker that touch groups, with its defaults.

    ``initial_rebalance_delay_ms`` is ``group.initial.rebalance.delay.ms``, the session bounds are
    ``group.min.session.timeout.ms`` and ``group.max.session.timeout.ms``, ``max_size`` is
    ``group.max.size`` and ``max_offset_metadata_chars`` is ``offset.metadata.max.bytes``, which
    the broker compares with the length of a Java string: UTF-16 units, not bytes.
    ``new_member_join_timeout_ms`` is a constant of the broker: how long a join without a member id
    may stay parked. Those that begin with ``consumer_`` are ``group.consumer.*``, of the consumer protocol.
    """

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 0x7FFF_FFFF
    new_member_join_timeout_ms: int = 300_000
    max_offset_metadata_chars: int = 4_096
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_assignment_interval_ms: int = 1_000

    def __post_init__(self) -> None:
        if self.initial_rebalance_delay_ms < 0:
            raise ValueError(
                f"initial_rebalance_delay_ms is {self.initial_rebalance_delay_ms}; 0 or more is needed"
            )
        if not 0 <= self.min_session_timeout_ms <= self.max_session_timeout_ms:
            raise ValueError(
                f"session bounds {self.min_session_timeout_ms}..{self.max_session_timeout_ms} ms are empty"
            )


class TopicLookup(Protocol):
    """Topics, to validate commits (KIP-848's topic ids at v10)."""

    def names(self) -> list[str]:
        """All topics."""

    def topic_id(self, name: str) -> UUID | None:
        """The id of the topic, or None when there is no such topic."""

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id, or None when no topic has it."""

    def partition_count(self, name: str) -> int | None:
        """How many partitions the topic has, or None when there is no such topic."""
