"""A pool of the groups' Kafka clusters, with connections and time limits."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from slackwater.kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.dialer import Resolve, resolve
from slackwater_operator.kafka.cluster_dns import resolve_in
from slackwater_operator.kafka.cluster_observer import ClusterObserver, GroupWanted, K
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot

__all__ = ["ClusterIdentity", "ClusterObserver", "Clusters", "GroupWanted", "Options", "Round", "plain_text"]

T = TypeVar("T")


@dataclass(frozen=True)
class ClusterIdentity:
    """Which cluster, and as whom: groups whose identities are equal are observed over the same connections.

    Attributes:
        bootstrap_servers: `HOST:PORT`, several separated by commas.
        properties: what the connection depends on, by Java's names (`security.protocol`, `sasl.mechanism`,
            ...), sorted. No secret values: `secrets` says where those come from.
        secrets: the Secrets used, as `NAMESPACE/NAME@RESOURCEVERSION`: a Secret that changes makes another
            identity, and thus new connections.
        namespace: in which the names of the brokers are looked up (:mod:`.cluster_dns`); "" where it makes no
            difference.
    """

    bootstrap_servers: str
    properties: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    namespace: str = ""

    def __str__(self) -> str:
        return self.bootstrap_servers


@dataclass(frozen=True)
class Round(Generic[K]):
    """What a round has found.

    Attributes:
        snapshots: for each group asked for what was found; None where the cluster could not be asked at all.
        problem: why the cluster could not be asked, "" where it could.
        took_s: how long it took.
    """

    snapshots: Mapping[K, KafkaSnapshot | None]
    problem: str = ""
    took_s: float = 0.0


Options = Callable[[ClusterIdentity], Awaitable[Mapping[str, Any]]]
"""Gives what `slackwater.kafka.net.cluster.Cluster` takes but the servers: `{"security": Security(...)}`."""


async def plain_text(_: ClusterIdentity) -> Mapping[str, Any]:
    """Options of a cluster without security: none."""
    return {}


class _Slot:
    """A cluster of the pool. `failures` and `retry_at`: since when, and until when, it is left alone."""

    def __init__(self) -> None:
        self.observer: ClusterObserver | None = None
        self.opening = asyncio.Lock()
        self.failures = 0
        self.retry_at = 0.0
        self.problem = ""


class Clusters:
    """A pool of :class:`ClusterObserver` by identity, and a time limit around each of them.

    The controller runs one `observe` for each cluster, side by side: one that is away takes its own time
    only. Nothing here raises what a broker can be blamed for.
    """

    def __init__(
        self,
        options: Options = plain_text,
        *,
        round_timeout_ms: int = 10_000,
        first_backoff_ms: float = 1_000,
        longest_backoff_ms: float = 10_000,
        rng: random.Random | None = None,
        look_up: Resolve = resolve,
        receive_message_max_bytes: int | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            options: what a cluster's connections need, read when they are opened.
            round_timeout_ms: bounds every call, with connecting.
            first_backoff_ms: the back-off after which a cluster that was away is tried again; it doubles each
                time, with a fifth of jitter. In between the cluster gives None at once.
            longest_backoff_ms: the longest back-off.
            rng: of the jitter.
            look_up: resolves the brokers' names.
            receive_message_max_bytes: the largest answer that is read; None: the client's default.
        """
        self._answer_max_bytes = receive_message_max_bytes
        self._options, self._look_up, self._timeout_s = options, look_up, round_timeout_ms / 1000
        self._backoff = Backoff(first_backoff_ms, longest_backoff_ms, rng or random.Random())
        self._slots: dict[ClusterIdentity, _Slot] = {}

    async def observe(self, cluster: ClusterIdentity, wanted: Sequence[GroupWanted[K]]) -> Round[K]:
        """One round over the groups of a cluster: all of them, or just one of which news is wanted now."""
        began = asyncio.get_running_loop().time()
        try:
            snapshots = await self._with(cluster, lambda observer: observer.observe(wanted))
        except KafkaError as error:
            took = asyncio.get_running_loop().time() - began
            return Round({group.key: None for group in wanted}, str(error), took)
        return Round(snapshots, "", asyncio.get_running_loop().time() - began)

    async def identify(self, cluster: ClusterIdentity) -> str | None:
        """Kafka's id of the cluster, "" where it tells none; None: it does not answer."""
        try:
            return await self._with(cluster, lambda observer: observer.identify())
        except KafkaError:
            return None

    async def remove_members(
        self, cluster: ClusterIdentity, group_id: str, members: Mapping[str, str]
    ) -> dict[str, str]:
        """:meth:`ClusterObserver.remove_members`; where the cluster cannot be asked, why."""
        try:
            return await self._with(cluster, lambda observer: observer.remove_members(group_id, members))
        except KafkaError as error:
            return dict.fromkeys(members, str(error))

    async def hasten_assignments(self, cluster: ClusterIdentity, group_id: str) -> str:
        """:meth:`ClusterObserver.hasten_assignments`; where the cluster cannot be asked, why."""
        try:
            return await self._with(cluster, lambda observer: observer.hasten_assignments(group_id))
        except KafkaError as error:
            return str(error)

    async def delete_group(self, cluster: ClusterIdentity, group_id: str) -> str:
        """:meth:`ClusterObserver.delete_group`; where the cluster cannot be asked, why."""
        try:
            return await self._with(cluster, lambda observer: observer.delete_group(group_id))
        except KafkaError as error:
            return str(error)

    async def retain(self, clusters: Collection[ClusterIdentity]) -> None:
        """Closes the connections to all other clusters: no group uses them any more."""
        unused = [cluster for cluster in self._slots if cluster not in set(clusters)]
        await asyncio.gather(*(self._drop(cluster) for cluster in unused))

    def requests(self) -> dict[ClusterIdentity, Counter[str]]:
        """Requests sent so far by API, of each cluster that has a connection."""
        return {
            cluster: slot.observer.requests
            for cluster, slot in self._slots.items()
            if slot.observer is not None
        }

    async def close(self) -> None:
        """Closes all connections."""
        await self.retain(())

    async def _with(self, cluster: ClusterIdentity, call: Callable[[ClusterObserver], Awaitable[T]]) -> T:
        """What `call` gives, in bounded time. Raises KafkaError, and the cluster then has a rest."""
        loop = asyncio.get_running_loop()
        slot = self._slots.setdefault(cluster, _Slot())
        if loop.time() < slot.retry_at:
            raise KafkaConnectionError(slot.problem)
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await call(await self._open(cluster, slot))
        except KafkaError as error:
            raise self._away(cluster, slot, str(error)) from error
        except TimeoutError as error:
            why = f"no response within {self._timeout_s:g} s"
            raise self._away(cluster, slot, why, timed_out=True) from error
        slot.failures, slot.retry_at, slot.problem = 0, 0.0, ""
        return result

    def _away(
        self, cluster: ClusterIdentity, slot: _Slot, why: str, *, timed_out: bool = False
    ) -> KafkaError:
        slot.failures += 1
        slot.problem = f"Kafka at {cluster}: {why}"
        slot.retry_at = asyncio.get_running_loop().time() + self._backoff.delay_ms(slot.failures) / 1000
        return KafkaTimeoutError(slot.problem) if timed_out else KafkaConnectionError(slot.problem)

    async def _open(self, cluster: ClusterIdentity, slot: _Slot) -> ClusterObserver:
        async with slot.opening:
            if slot.observer is None:
                try:
                    options = dict(await self._options(cluster))
                except (KafkaError, TimeoutError):
                    raise
                except Exception as exc:  # a Secret that is missing, a certificate that cannot be read
                    raise KafkaConnectionError(f"{exc}") from exc
                if self._answer_max_bytes is not None:
                    options["receive_message_max_bytes"] = self._answer_max_bytes
                if cluster.namespace:
                    options["resolve"] = resolve_in(cluster.namespace, self._look_up)
                connected = await ClusterObserver.connect(
                    cluster.bootstrap_servers, timeout_ms=int(self._timeout_s * 800), **options
                )
                slot.observer = connected
            return slot.observer

    async def _drop(self, cluster: ClusterIdentity) -> None:
        slot = self._slots.pop(cluster)
        if slot.observer is not None:
            await slot.observer.close()
