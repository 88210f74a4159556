"""Looks at one group and its topics through the admin client.

An observation is a few requests at the same time: DescribeGroups, OffsetFetch, one ListOffsets a leader, and
now and then Metadata. What cannot be found out is missing in the snapshot: an unknown lag is never zero.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from slackwater.kafka.admin import EARLIEST, LATEST, AsyncAdmin
from slackwater.kafka.admin.results import GroupDescription, MemberDescription
from slackwater.kafka.errors import KafkaError, UnknownMemberIdError, UnknownTopicOrPartitionError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater_operator.decide.view import STABLE, GroupView, MemberView
from slackwater_operator.observe.snapshot import KafkaSnapshot

REQUEST_TIMEOUT_MS = 3_000
TOPICS_MAX_AGE_S = 10.0
"""How long the number of partitions is taken as known."""

Committed = dict[TopicPartition, OffsetAndMetadata]


class KafkaObserver:
    """An observer (`observe.snapshot.Observer`) of a group on a real broker."""

    def __init__(
        self, admin: AsyncAdmin, group_id: str, topics: Sequence[str], *, offset_reset: str = "earliest"
    ) -> None:
        """Takes over a started admin client; `close()` closes it.

        Args:
            admin: the client.
            group_id: the group.
            topics: its topics.
            offset_reset: the workers' auto.offset.reset: where the group starts without a committed offset.
        """
        self._admin = admin
        self._group_id = group_id
        self._topics = tuple(topics)
        self._offset_reset = offset_reset
        self._partitions: tuple[TopicPartition, ...] = ()
        self._topics_at_s = float("-inf")

    @classmethod
    async def connect(
        cls, bootstrap_servers: str, group_id: str, topics: Sequence[str], properties: Mapping[str, str]
    ) -> Self:
        """Connects to the cluster.

        Args:
            bootstrap_servers: `HOST:PORT`, several separated by commas.
            group_id: the group.
            topics: its topics.
            properties: the workers' settings by Java's names.

        Raises:
            NoBrokersAvailable: none of them answers.
        """
        servers = [one.strip() for one in bootstrap_servers.split(",")]
        admin = AsyncAdmin(servers, client_id=f"{group_id}-observer", request_timeout_ms=REQUEST_TIMEOUT_MS)
        await admin.start()
        return cls(admin, group_id, topics, offset_reset=properties.get("auto.offset.reset", "earliest"))

    async def observe(self) -> KafkaSnapshot:
        """What is now; raises nothing that a broker can be blamed for."""
        at_ms = time.time_ns() // 1_000_000
        problems: list[str] = []
        await self._refresh_topics(problems)
        group, committed, ends = await asyncio.gather(
            self._group(problems),
            self._committed(problems),
            self._offsets(self._partitions, LATEST, problems),
        )
        positions: dict[TopicPartition, int] = {}
        if committed is not None:
            positions = {one: committed[one].offset for one in self._partitions if one in committed}
            fresh = [one for one in self._partitions if one not in committed]
            positions.update(await self._starts(fresh, ends, problems))
        return KafkaSnapshot(at_ms, group, self._partitions, ends, positions, tuple(dict.fromkeys(problems)))

    async def remove_members(self, instance_ids: tuple[str, ...]) -> dict[str, str]:
        """Removes static members by one LeaveGroup; gives the error of each that it could not remove."""
        try:
            found = await self._admin.remove_members(
                self._group_id, instance_ids, reason="scaled down", timeout_ms=REQUEST_TIMEOUT_MS
            )
        except KafkaError as error:
            return dict.fromkeys(instance_ids, str(error))
        return {
            one: str(error)
            for one, error in found.errors.items()
            if not isinstance(error, UnknownMemberIdError)  # gone already, which is what was wanted
        }

    async def close(self) -> None:
        """Closes the connections."""
        await self._admin.close()

    async def _refresh_topics(self, problems: list[str]) -> None:
        if time.monotonic() - self._topics_at_s < TOPICS_MAX_AGE_S:
            return
        try:
            found = await self._admin.describe_topics(self._topics, timeout_ms=REQUEST_TIMEOUT_MS)
        except KafkaError as error:
            problems.append(str(error))
            return
        for topic, failed in found.errors.items():
            missing = isinstance(failed, UnknownTopicOrPartitionError)
            problems.append(f"topic {topic} does not exist; create it" if missing else str(failed))
        if not found.errors:
            self._topics_at_s = time.monotonic()
            self._partitions = tuple(
                TopicPartition(topic, number)
                for topic, told in sorted(found.values_ok.items())
                for number in sorted(told.partitions)
            )

    async def _group(self, problems: list[str]) -> GroupView | None:
        try:
            found = await self._admin.describe_groups([self._group_id], timeout_ms=REQUEST_TIMEOUT_MS)
            return group_view(found.unwrap()[self._group_id])
        except KafkaError as error:
            problems.append(f"group {self._group_id}: {error}")
            return None

    async def _committed(self, problems: list[str]) -> Committed | None:
        try:
            return await self._admin.committed_offsets(self._group_id, timeout_ms=REQUEST_TIMEOUT_MS)
        except KafkaError as error:
            problems.append(f"committed offsets of {self._group_id}: {error}")
            return None

    async def _offsets(
        self, partitions: Iterable[TopicPartition], which: int, problems: list[str]
    ) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, which)
        if not wanted:
            return {}
        try:
            found = await self._admin.list_offsets(wanted, timeout_ms=REQUEST_TIMEOUT_MS)
        except KafkaError as error:
            problems.append(f"offsets: {error}")
            return {}
        for partition, failed in found.errors.items():
            problems.append(f"offsets of {partition}: {failed}")
        return {one: told.offset for one, told in found.values_ok.items()}

    async def _starts(
        self, fresh: list[TopicPartition], ends: Mapping[TopicPartition, int], problems: list[str]
    ) -> dict[TopicPartition, int]:
        """Where the group starts in partitions without a committed offset, as far as that is known.

        With `latest` it depends on when the member asks; known only where there is nothing to read.
        """
        starts = await self._offsets(fresh, EARLIEST, problems)
        if self._offset_reset == "earliest":
            return starts
        return {one: start for one, start in starts.items() if start == ends.get(one)}


def group_view(told: GroupDescription) -> GroupView:
    """The group as the decisions look at it."""
    stable = told.state == STABLE
    return GroupView(told.state, tuple(_member(one, stable) for one in told.members))


def _member(told: MemberDescription, stable: bool) -> MemberView:
    return MemberView(
        member_id=told.member_id,
        instance_id=told.instance_id,
        partitions=frozenset(told.assignment or ()),
        synced=stable and bool(told.assignment_bytes),
    )
