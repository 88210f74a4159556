"""The admin client for code that is not asyncio's."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from slackwater.kafka.admin.async_admin import AsyncAdmin
from slackwater.kafka.admin.offsets import Committed
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
from slackwater.kafka.net.threads import LoopThread, warn_unclosed
from slackwater.kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

T = TypeVar("T")


class KafkaAdmin:
    """:class:`AsyncAdmin` with calls that block; each method is that of the same name there.

    ``options``: :class:`AsyncAdmin`'s. Raises :class:`NoBrokersAvailable`, which names what was tried.
    """

    def __init__(self, bootstrap_servers: str | Iterable[str] = "localhost:9092", **options: Any) -> None:
        self._thread = LoopThread("slackwater-admin")
        try:
            self._admin = self._thread.run(_start(bootstrap_servers, options))
        except BaseException:
            self._thread.stop()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def close(self) -> None:
        """Closes all connections. May be called again."""
        if self._thread.running:
            self._run(self._admin.close())
        self._thread.stop()

    def __del__(self) -> None:
        admin: AsyncAdmin | None = getattr(self, "_admin", None)
        if admin is not None and self._thread.running:
            warn_unclosed(self)
            self._thread.stop_after(admin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_topics(
        self, new_topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> PerItem[str, TopicDescription]:
        """See :meth:`AsyncAdmin.create_topics`."""
        return self._run(
            self._admin.create_topics(new_topics, validate_only=validate_only, timeout_ms=timeout_ms)
        )

    def delete_topics(self, names: Iterable[str], *, timeout_ms: int | None = None) -> PerItem[str, None]:
        """See :meth:`AsyncAdmin.delete_topics`."""
        return self._run(self._admin.delete_topics(names, timeout_ms=timeout_ms))

    def list_topics(self, *, internal: bool = False, timeout_ms: int | None = None) -> list[str]:
        """See :meth:`AsyncAdmin.list_topics`."""
        return self._run(self._admin.list_topics(internal=internal, timeout_ms=timeout_ms))

    def describe_topics(
        self,
        names: Iterable[str] | None = None,
        *,
        operations: bool = False,
        timeout_ms: int | None = None,
    ) -> PerItem[str, TopicDescription]:
        """See :meth:`AsyncAdmin.describe_topics`."""
        return self._run(self._admin.describe_topics(names, operations=operations, timeout_ms=timeout_ms))

    def wait_for_topic(
        self, name: str, partitions: int | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """See :meth:`AsyncAdmin.wait_for_topic`."""
        self._run(self._admin.wait_for_topic(name, partitions, timeout_ms=timeout_ms))

    def wait_for_topic_deleted(self, name: str, *, timeout_ms: int | None = None) -> None:
        """See :meth:`AsyncAdmin.wait_for_topic_deleted`."""
        self._run(self._admin.wait_for_topic_deleted(name, timeout_ms=timeout_ms))

    def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """See :meth:`AsyncAdmin.describe_cluster`."""
        return self._run(self._admin.describe_cluster(timeout_ms=timeout_ms))

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, timeout_ms: int | None = None
    ) -> PerItem[ConfigResource, dict[str, ConfigEntry]]:
        """See :meth:`AsyncAdmin.describe_configs`."""
        return self._run(self._admin.describe_configs(resources, timeout_ms=timeout_ms))

    def list_groups(self, states: Iterable[str] = (), *, timeout_ms: int | None = None) -> list[GroupListing]:
        """See :meth:`AsyncAdmin.list_groups`."""
        return self._run(self._admin.list_groups(states, timeout_ms=timeout_ms))

    def describe_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> PerItem[str, GroupDescription]:
        """See :meth:`AsyncAdmin.describe_groups`."""
        return self._run(self._admin.describe_groups(group_ids, timeout_ms=timeout_ms))

    def delete_groups(self, group_ids: Iterable[str], *, timeout_ms: int | None = None) -> PerItem[str, None]:
        """See :meth:`AsyncAdmin.delete_groups`."""
        return self._run(self._admin.delete_groups(group_ids, timeout_ms=timeout_ms))

    def remove_members(
        self,
        group_id: str,
        instance_ids: Iterable[str],
        *,
        reason: str = "",
        member_ids: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> PerItem[str, None]:
        """See :meth:`AsyncAdmin.remove_members`."""
        return self._run(
            self._admin.remove_members(
                group_id, instance_ids, reason=reason, member_ids=member_ids, timeout_ms=timeout_ms
            )
        )

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> PerItem[TopicPartition, OffsetAndTimestamp]:
        """See :meth:`AsyncAdmin.list_offsets`."""
        return self._run(
            self._admin.list_offsets(wanted, isolation_level=isolation_level, timeout_ms=timeout_ms)
        )

    def committed_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """See :meth:`AsyncAdmin.committed_offsets`."""
        return self._run(self._admin.committed_offsets(group_id, partitions, timeout_ms=timeout_ms))

    def committed_offsets_of_groups(
        self,
        group_ids: Iterable[str],
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> PerItem[str, Committed]:
        """See :meth:`AsyncAdmin.committed_offsets_of_groups`."""
        return self._run(
            self._admin.committed_offsets_of_groups(group_ids, partitions, timeout_ms=timeout_ms)
        )


async def _start(bootstrap_servers: str | Iterable[str], options: dict[str, Any]) -> AsyncAdmin:
    return await AsyncAdmin(bootstrap_servers, **options).start()
