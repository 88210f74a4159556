"""Retries of admin operations, item by item, until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from slackwater.kafka.admin.results import PerItem
from slackwater.kafka.errors import KafkaError, UnknownTopicOrPartitionError
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.cluster import Cluster

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Attempt = Callable[[list[K]], Awaitable[Mapping[K, V | KafkaError]]]


class Attempts:
    """The retries of one operation: its deadline and the back-off between attempts."""

    def __init__(self, timeout_ms: int, backoff: Backoff) -> None:
        self.timeout_ms = timeout_ms
        self._backoff = backoff
        self._deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        self._failures = 0

    @property
    def left_ms(self) -> int:
        """Time left, at least 1 ms."""
        return max(1, int((self._deadline - asyncio.get_running_loop().time()) * 1000))

    async def again(self) -> bool:
        """Waits before the next attempt; False, at once, if that would be past the deadline."""
        self._failures += 1
        delay = self._backoff.delay_ms(self._failures) / 1000
        if asyncio.get_running_loop().time() + delay >= self._deadline:
            return False
        await asyncio.sleep(delay)
        return True

    async def each(self, items: Iterable[K], attempt: Attempt[K, V]) -> PerItem[K, V]:
        """Runs ``attempt`` on the items, and again on those whose error is retriable."""
        left = list(dict.fromkeys(items))
        results: PerItem[K, V] = PerItem(dict.fromkeys(left, KafkaError("not attempted")))
        while left:
            try:
                outcome = await attempt(left)
            except KafkaError as exc:
                outcome = dict.fromkeys(left, exc)
            results.update(outcome)
            left = [item for item in left if _retriable(outcome.get(item))]
            if left and not await self.again():
                break
        return results

    async def by_coordinator(
        self,
        cluster: Cluster,
        groups: Iterable[str],
        ask: Callable[[int, list[str]], Awaitable[Mapping[str, V | KafkaError]]],
    ) -> PerItem[str, V]:
        """Runs ``ask(node_id, groups)`` at each group's coordinator, and finds it again when it has moved."""

        async def attempt(left: list[str]) -> Mapping[str, V | KafkaError]:
            coordinators = await cluster.coordinators(left)
            results: dict[str, V | KafkaError] = {
                g: e for g, e in coordinators.items() if isinstance(e, KafkaError)
            }
            nodes: dict[int, list[str]] = {}
            for group, node in coordinators.items():
                if isinstance(node, int):
                    nodes.setdefault(node, []).append(group)
            await _ask_each(nodes, ask, results)
            for group, outcome in results.items():
                if _retriable(outcome):
                    cluster.forget_coordinator(group)
            return results

        return await self.each(groups, attempt)

    async def by_leader(
        self,
        cluster: Cluster,
        partition_leader: Callable[[K], int | None],
        items: Iterable[K],
        ask: Callable[[int, list[K]], Awaitable[Mapping[K, V | KafkaError]]],
        unknown: Callable[[K], KafkaError],
    ) -> PerItem[K, V]:
        """Runs ``ask(node_id, items)`` at each item's leader, with new metadata before each attempt."""

        async def attempt(left: list[K]) -> Mapping[K, V | KafkaError]:
            await cluster.refresh()
            results: dict[K, V | KafkaError] = {}
            nodes: dict[int, list[K]] = {}
            for item in left:
                leader = partition_leader(item)
                if leader is None:
                    results[item] = unknown(item)
                else:
                    nodes.setdefault(leader, []).append(item)
            await _ask_each(nodes, ask, results)
            return results

        return await self.each(items, attempt)


async def _ask_each(
    nodes: Mapping[int, list[K]],
    ask: Callable[[int, list[K]], Awaitable[Mapping[K, V | KafkaError]]],
    results: dict[K, V | KafkaError],
) -> None:
    """Asks each node for its items; an error of the node is that of each item."""
    for node_id, at_node in nodes.items():
        try:
            results.update(await ask(node_id, at_node))
        except KafkaError as exc:
            results.update(dict.fromkeys(at_node, exc))


def _retriable(outcome: object) -> bool:
    # An unknown topic is the answer and not a reason to retry: see AsyncAdmin.wait_for_topic.
    if isinstance(outcome, UnknownTopicOrPartitionError):
        return False
    return isinstance(outcome, KafkaError) and outcome.retriable
