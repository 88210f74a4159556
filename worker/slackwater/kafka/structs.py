"""Value types of the client's API. Field names and order are kafka-python's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next one to read, a note stored with it, and the leader epoch (-1: unknown)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class SkippedRecords(NamedTuple):
    """Offsets that a consumer skipped because the log begins after them: retention or DeleteRecords.

    From ``from_offset`` up to ``to_offset`` (not included), where it goes on.
    """

    partition: TopicPartition
    from_offset: int
    to_offset: int

    @property
    def records(self) -> int:
        """How many offsets; a compacted log may have had fewer records."""
        return self.to_offset - self.from_offset


class OffsetAndTimestamp(NamedTuple):
    """An offset found by time, with its record's timestamp in ms and the leader epoch (-1: unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class MemberState:
    """The state of a group member, in kafka-python's terms."""

    UNJOINED = "<unjoined>"
    REBALANCING = "<rebalancing>"
    STABLE = "<stable>"


class ConsumerGroupMetadata(NamedTuple):
    """The fencing data of this member's commits (KIP-447), and its state (one of :class:`MemberState`)."""

    group_id: str | None = None
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    state: str = MemberState.UNJOINED


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """A regular expression that the group's coordinator matches, for ``subscribe(pattern=...)`` with the
    consumer protocol (KIP-848).

    In RE2/J's syntax; it has to match a topic's whole name, and matches internal topics, too. A topic that
    the user may not describe is left out.
    """

    pattern: str


class GenerationSeen(NamedTuple):
    """A generation this member joined.

    ``follow_up``: the join was asked for by a member that had just revoked, so that this generation
    is the second half of a cooperative rebalance (KIP-429). ``at_ms``: when, by the member's clock.
    ``reason``: why the member has joined (KIP-800); "": its first Join.
    """

    generation: int
    follow_up: bool
    at_ms: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MembershipSnapshot:
    """A member's view of its membership.

    ``state``: a name of ``protocol.membership.State``. ``generation``: -1 outside the group.
    ``returned``: the last join was a static member's return into the generation that already was, so
    that no rebalance happened; while the state is ``syncing`` this is not known yet. ``generations``: the
    log, oldest first.
    """

    state: str
    generation: int
    member_id: str
    instance_id: str | None
    is_leader: bool
    generations: tuple[GenerationSeen, ...] = ()
    returned: bool = False
    protocol: str = ""


def check_partitions(partitions: Iterable[Any]) -> list[TopicPartition]:
    """The partitions of an argument as a list; accepts plain pairs. Raises TypeError for anything else."""
    given = list(partitions)
    for pair in given:
        if not is_partition(pair) or not isinstance(pair[1], int):
            raise TypeError(f"expected a TopicPartition, not {pair!r}")
    return [pair if isinstance(pair, TopicPartition) else TopicPartition(*pair) for pair in given]


def is_partition(given: Any) -> bool:
    """Whether ``given`` is one partition, and not a collection of them."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)
