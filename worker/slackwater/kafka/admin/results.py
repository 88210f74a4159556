"""Arguments and results of the admin client."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar
from uuid import UUID

from slackwater.kafka.errors import KafkaError
from slackwater.kafka.protocol.metadata import Broker, Partition
from slackwater.kafka.structs import TopicPartition

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

EARLIEST = -2
"""For ``list_offsets``: the first offset that is still there."""
LATEST = -1
"""For ``list_offsets``: the offset that the next record will get."""


class PerItem(dict[K, V | KafkaError]):
    """Outcomes by item: the result, or the error."""

    @property
    def errors(self) -> dict[K, KafkaError]:
        """The items that failed."""
        return {item: outcome for item, outcome in self.items() if isinstance(outcome, KafkaError)}

    @property
    def values_ok(self) -> dict[K, V]:
        """The items that did not fail."""
        return {item: outcome for item, outcome in self.items() if not isinstance(outcome, KafkaError)}

    def unwrap(self) -> dict[K, V]:
        """All outcomes; raises the first error if there is one."""
        for error in self.errors.values():
            raise error
        return self.values_ok


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1: the broker's default. ``configs`` by Kafka's names."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


class TopicOperation(IntEnum):
    """What a client may do with a topic, by Kafka's ``AclOperation``."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic's id and partitions. ``operations``: what this client may do with it; None: not known."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: Mapping[int, Partition]
    operations: frozenset[TopicOperation] | None = None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's id and brokers. ``controller_id`` is -1 if there is none."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]


class ResourceType(IntEnum):
    """Kinds of resources that have a configuration."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigResource(NamedTuple):
    """A resource with a configuration: a topic's name, a broker's node id, a group's id."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. ``value`` is ``None`` for a sensitive one. ``source``: Kafka's number (5: default)."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool

    @property
    def number(self) -> int | None:
        """The value as a whole number of 64 bits; None: it is none."""
        text = self.value or ""
        number = int(text) if re.fullmatch(r"-?\d{1,19}", text, re.ASCII) else None
        return number if number is not None and -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as a broker lists it; ``state`` and ``type`` are empty where the broker does not say."""

    group_id: str
    protocol_type: str
    state: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group.

    ``assignment``: its partitions, empty outside Stable; ``None`` if the group is not of consumers, or the
    bytes could not be read. ``subscription``: the topics it asks for, likewise. ``metadata`` and
    ``assignment_bytes``: as the member sent and got them. ``epoch``: of a group with a member of the consumer
    protocol; -2: it is away for a moment.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: tuple[str, ...] | None
    assignment: tuple[TopicPartition, ...] | None
    metadata: bytes
    assignment_bytes: bytes
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. A group that does not exist is ``Dead``, without members.

    ``state``: ``Empty``, ``PreparingRebalance``, ``CompletingRebalance``, ``Stable`` or ``Dead``; with a
    member of the consumer protocol (KIP-848) also ``Assigning`` or ``Reconciling``. ``protocol_type``:
    ``consumer`` for both protocols of consumers; of a ``share`` or ``streams`` group no members are shown.
    ``protocol``: the assignor that was chosen. ``coordinator``: a node id. ``epoch``: the group's, with a
    member of the consumer protocol. ``at_rest``: whether no partition is on its way between members, also
    where members are away for a moment.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]
    coordinator: int
    epoch: int | None = None
    at_rest: bool = False
