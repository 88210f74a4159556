"""The admin client for asyncio."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from slackwater.kafka.admin import configs, groups, offsets, topics
from slackwater.kafka.admin.attempts import Attempts
from slackwater.kafka.admin.results import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    GroupDescription,
    GroupListing,
    NewTopic,
    PerItem,
    TopicDescription,
)
from slackwater.kafka.errors import IllegalStateError
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.cluster import Cluster
from slackwater.kafka.net.security import options as security_options
from slackwater.kafka.net.security.connect import kept_by_client
from slackwater.kafka.net.threads import MADE_BEFORE_FORK, tell_of_fork
from slackwater.kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

_ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


class AsyncAdmin:
    """Administers a cluster from the running event loop.

    Operations on several items return a :class:`PerItem`: the outcome or the error of each. Retriable errors
    are retried until ``timeout_ms`` (default: ``request_timeout_ms``). Every method
    raises :class:`NoBrokersAvailable` when no broker can be reached, unless its outcomes are per item.
    ``unreachable_timeout_ms`` is the limit in place of ``bootstrap_timeout_ms`` as long as no server has
    accepted a connection.
    Other ``options`` are :class:`~slackwater.kafka.net.cluster.Cluster`'s (``security`` among them), and
    kafka-python's ``security_protocol``, ``sasl_*`` and ``ssl_*``.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        *,
        client_id: str = "slackwater-admin",
        request_timeout_ms: int = 30_000,
        bootstrap_timeout_ms: int = 10_000,
        unreachable_timeout_ms: int | None = None,
        retry_backoff_ms: int = 100,
        rng: random.Random | None = None,
        **options: Any,
    ) -> None:
        rng = rng or random.Random()
        self._security, options = security_options.from_keywords(options)
        self._cluster = Cluster(
            bootstrap_servers,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            rng=rng,
            security=kept_by_client(self._security),
            **options,
        )
        self._timeout_ms = request_timeout_ms
        self._bootstrap_timeout_ms = bootstrap_timeout_ms
        self._unreachable_timeout_ms = unreachable_timeout_ms
        self._backoff = Backoff(retry_backoff_ms, 1_000, rng)
        self._started = self._of_parent = False

    async def start(self) -> Self:
        """Connects to the cluster. Raises :class:`NoBrokersAvailable`, which names the addresses tried."""
        try:
            await self._cluster.start(
                self._bootstrap_timeout_ms, unreachable_timeout_ms=self._unreachable_timeout_ms
            )
        except BaseException:
            await self._cluster.close()
            raise
        self._started = True
        tell_of_fork(self)
        return self

    def forked(self) -> None:
        """Called in a process that was forked: every call raises."""
        self._started, self._of_parent = False, True

    async def close(self) -> None:
        """Closes all connections. May be called again."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _attempts(self, timeout_ms: int | None) -> Attempts:
        if not self._started:
            raise IllegalStateError(MADE_BEFORE_FORK if self._of_parent else "call start() first")
        return Attempts(self._timeout_ms if timeout_ms is None else timeout_ms, self._backoff)

    # -- topics and the cluster --------------------------------------------------------------------

    async def create_topics(
        self, new_topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> PerItem[str, TopicDescription]:
        """Creates topics. See :meth:`wait_for_topic` for when they can be used."""
        return await topics.create(
            self._cluster, self._attempts(timeout_ms), new_topics, validate_only=validate_only
        )

    async def delete_topics(
        self, names: Iterable[str], *, timeout_ms: int | None = None
    ) -> PerItem[str, None]:
        """Deletes topics with all their records."""
        return await topics.delete(self._cluster, self._attempts(timeout_ms), names)

    async def list_topics(self, *, internal: bool = False, timeout_ms: int | None = None) -> list[str]:
        """The names of all topics, sorted."""
        described = await topics.describe(self._cluster, self._attempts(timeout_ms), None)
        return sorted(
            name for name, topic in described.values_ok.items() if internal or not topic.is_internal
        )

    async def describe_topics(
        self,
        names: Iterable[str] | None = None,
        *,
        operations: bool = False,
        timeout_ms: int | None = None,
    ) -> PerItem[str, TopicDescription]:
        """Topics with their partitions and leaders; ``None``: all.

        ``operations``: also what this client may do with each named topic (brokers from 2.3 on).

        UNKNOWN_TOPIC_OR_PARTITION for a topic that the broker asked does not know (yet).
        """
        return await topics.describe(self._cluster, self._attempts(timeout_ms), names, operations=operations)

    async def wait_for_topic(
        self, name: str, partitions: int | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Waits until every broker has the topic, with (at least ``partitions``) partitions that all have a
        leader. Raises :class:`KafkaTimeoutError`.
        """
        await topics.wait_for(self._cluster, self._attempts(timeout_ms), name, partitions, there=True)

    async def wait_for_topic_deleted(self, name: str, *, timeout_ms: int | None = None) -> None:
        """Waits until no broker has the topic. Raises :class:`KafkaTimeoutError`."""
        await topics.wait_for(self._cluster, self._attempts(timeout_ms), name, None, there=False)

    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """The cluster's id, controller and brokers."""
        return await topics.describe_cluster(self._cluster, self._attempts(timeout_ms))

    async def describe_features(self, *, timeout_ms: int | None = None) -> dict[str, int]:
        """The cluster's finalized features and their levels, such as ``group.version`` (KIP-584); none where
        the brokers are older than features."""
        return await topics.describe_features(self._cluster, self._attempts(timeout_ms))

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, timeout_ms: int | None = None
    ) -> PerItem[ConfigResource, dict[str, ConfigEntry]]:
        """The settings of topics, brokers or groups."""
        return await configs.describe_configs(self._cluster, self._attempts(timeout_ms), resources)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> PerItem[ConfigResource, None]:
        """Changes settings of topics, brokers or groups, and leaves the others as they are. ``None`` takes a
        setting back to its default. ``validate_only``: changes nothing. INVALID_CONFIG, POLICY_VIOLATION."""
        return await configs.alter_configs(
            self._cluster, self._attempts(timeout_ms), changes, validate_only=validate_only
        )

    # -- groups ------------------------------------------------------------------------------------

    async def list_groups(
        self, states: Iterable[str] = (), *, timeout_ms: int | None = None
    ) -> list[GroupListing]:
        """All groups of all brokers by id, or those in one of ``states`` (``"Stable"``)."""
        return await groups.list_groups(self._cluster, self._attempts(timeout_ms), states)

    async def describe_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> PerItem[str, GroupDescription]:
        """Groups with their members, of the classic and of the consumer protocol (KIP-848); one that does not
        exist has the state ``Dead``."""
        return await groups.describe(self._cluster, self._attempts(timeout_ms), group_ids)

    async def delete_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> PerItem[str, None]:
        """Deletes groups without members, with their offsets. NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
        return await groups.delete(self._cluster, self._attempts(timeout_ms), group_ids)

    async def remove_members(
        self,
        group_id: str,
        instance_ids: Iterable[str],
        *,
        reason: str = "",
        member_ids: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> PerItem[str, None]:
        """Removes static members from a group by one LeaveGroup (v3+, KIP-345): one rebalance for all.

        ``member_ids``: the member id that was observed for an instance id (:meth:`describe_groups`). Only the
        member with that id is then removed: a process that has joined since with the same instance id stays,
        and the outcome is FENCED_INSTANCE_ID. Without it, whoever holds the instance id is removed.

        UNKNOWN_MEMBER_ID: the group has no such member (any more). A removal does not stop a live member,
        which joins again, and it is lost if the coordinator moves before the group's next generation is
        complete: check with :meth:`describe_groups` and repeat. Raises :class:`IllegalArgumentError` for an
        empty instance id, and for an instance id in ``member_ids`` that is not in ``instance_ids``.
        """
        return await groups.remove_members(
            self._cluster, self._attempts(timeout_ms), group_id, instance_ids, reason, member_ids or {}
        )

    # -- offsets -----------------------------------------------------------------------------------

    async def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> PerItem[TopicPartition, OffsetAndTimestamp]:
        """Offsets by partition: :data:`EARLIEST`, :data:`LATEST`, or a time in ms.

        For a time: the first record at or after it, offset -1 if there is none. Sends one request per leader.
        """
        return await offsets.list_offsets(
            self._cluster, self._attempts(timeout_ms), wanted, isolation_level=_ISOLATION[isolation_level]
        )

    async def committed_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """A group's committed offsets with metadata; ``None``: all. Partitions without one are left out.

        A group that does not exist has committed nothing. Raises the broker's error.
        """
        outcomes = await self.committed_offsets_of_groups([group_id], partitions, timeout_ms=timeout_ms)
        return outcomes.unwrap()[group_id].unwrap()

    async def committed_offsets_of_groups(
        self,
        group_ids: Iterable[str],
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> PerItem[str, offsets.Committed]:
        """:meth:`committed_offsets` of several groups, with one request per coordinator.

        The error of a group or partition takes the place of its outcome.
        """
        asked = None if partitions is None else list(partitions)
        return await offsets.committed(self._cluster, self._attempts(timeout_ms), group_ids, asked)
