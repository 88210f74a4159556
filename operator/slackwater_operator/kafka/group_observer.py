"""Looks at one group and its topics: what `slackwater local run` needs of :mod:`.clusters`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from slackwater.kafka.errors import KafkaError
from slackwater_operator.kafka.clusters import ClusterObserver, GroupWanted
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot


class KafkaObserver:
    """An observer (`observe.observer.Observer`) of a group on a real broker."""

    def __init__(self, cluster: ClusterObserver, wanted: GroupWanted[str]) -> None:
        """Takes over a connected observer of the cluster; `close()` closes it."""
        self._cluster, self._wanted = cluster, wanted

    @classmethod
    async def connect(cls, bootstrap_servers: str, group_id: str, properties: Mapping[str, str]) -> Self:
        """Connects to the cluster.

        Args:
            bootstrap_servers: `HOST:PORT`, several separated by commas.
            group_id: the group.
            properties: the workers' settings by Java's names.

        Raises:
            NoBrokersAvailable: none of them answers.
        """
        cluster = await ClusterObserver.connect(
            bootstrap_servers, client_id=f"{group_id}-observer", timeout_ms=10_000
        )
        wanted = GroupWanted(
            group_id,
            group_id,
            offset_reset=properties.get("auto.offset.reset", "earliest"),
            read_committed=properties.get("isolation.level") == "read_committed",
        )
        return cls(cluster, wanted)

    async def observe(self, topics: Sequence[str]) -> KafkaSnapshot:
        """What is now, with these topics; raises nothing that a broker can be blamed for."""
        at_ms = time.time_ns() // 1_000_000
        wanted = replace(self._wanted, topics=tuple(topics))
        try:
            return (await self._cluster.observe([wanted]))[wanted.key]
        except KafkaError as error:
            known = self._cluster.partitions(wanted)
            return KafkaSnapshot(at_ms, partitions=known, problems=(str(error),))

    async def remove_members(self, instance_ids: tuple[str, ...]) -> dict[str, str]:
        """Removes static members by one LeaveGroup; gives the error of each that it could not remove."""
        return await self._cluster.remove_members(self._wanted.group_id, instance_ids)

    async def close(self) -> None:
        """Closes the connections."""
        await self._cluster.close()
