"""The cluster as one peer: bootstrap, metadata, coordinators, and a connection to whom it concerns."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from slackwater.kafka.errors import (
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    NoBrokersAvailable,
    for_code,
    raise_for_code,
)
from slackwater.kafka.net.addresses import Address, parse_servers
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.connection import (
    ByVersion,
    Connect,
    Connection,
    ConnectionSettings,
    open_connection,
)
from slackwater.kafka.net.pool import Pool, Purpose
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.metadata import ANY_NODE, Broker, ClusterMetadata
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request, Response

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

_BATCHED_FIND_COORDINATOR = 4
"""FindCoordinator takes several keys from this version on (KIP-699)."""


class Cluster:
    """A Kafka cluster, seen from one event loop.

    ``bootstrap_servers``: one or more ``host:port``. Times are in ms. ``metadata`` is what is known of
    the cluster; which topics are asked for is told by :meth:`track`. ``connect`` opens connections (the
    place for TLS and SASL), ``rng`` spreads reconnects and the choice of a broker.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        *,
        client_id: str = "slackwater",
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        reconnect_backoff_ms: int = 50,
        reconnect_backoff_max_ms: int = 1_000,
        retry_backoff_ms: int = 100,
        metadata_max_age_ms: int = 300_000,
        allow_auto_topic_creation: bool = False,
        connect: Connect = open_connection,
        rng: random.Random | None = None,
    ) -> None:
        self.bootstrap_servers = parse_servers(bootstrap_servers)
        self.settings = ConnectionSettings(
            client_id=client_id,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
        )
        self.metadata = ClusterMetadata()
        self.on_metadata: list[Callable[[ClusterMetadata], None]] = []
        """Called on the loop after each refresh."""
        self._rng = rng or random.Random()
        self._connect = connect
        self._reconnect_backoff = Backoff(reconnect_backoff_ms, reconnect_backoff_max_ms, self._rng)
        self._retry_backoff = Backoff(retry_backoff_ms, 10 * retry_backoff_ms, self._rng)
        self._pool = Pool(connect, self.settings, self._reconnect_backoff)
        self._metadata_max_age_ms = metadata_max_age_ms
        self._auto_create = allow_auto_topic_creation
        self._topics: set[str] = set()
        self._all_topics = False
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_scope: frozenset[str] | None = frozenset()
        self._keeper: asyncio.Task[None] | None = None
        self._coordinators: dict[str, int] = {}
        self._closed = False

    # -- life ------------------------------------------------------------------------------------

    async def start(self, timeout_ms: int = 10_000) -> None:
        """Finds a broker that answers, and takes its metadata in.

        Goes round the bootstrap servers until ``timeout_ms`` is over (one round at least), then raises
        :class:`NoBrokersAvailable`, which names each address and what it said.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        failures = 0
        while True:
            try:
                async with asyncio.timeout_at(max(deadline, loop.time() + 1)):
                    await self.refresh()
                break
            except TimeoutError as exc:
                tried = ", ".join(str(address) for address in self.bootstrap_servers)
                raise NoBrokersAvailable(f"no broker answered within {timeout_ms} ms: {tried}") from exc
            except KafkaError as exc:
                failures += 1
                delay = self._reconnect_backoff.delay_ms(failures) / 1000
                if not exc.retriable or loop.time() + delay >= deadline:
                    raise
                await asyncio.sleep(delay)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_fresh(), name="metadata max age")

    async def close(self) -> None:
        """Closes all connections; requests under way fail with a connection error. May be called again."""
        self._closed = True
        tasks = [task for task in (self._keeper, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()

    # -- metadata --------------------------------------------------------------------------------

    def track(self, topics: Iterable[str], *, all_topics: bool = False) -> None:
        """Sets which topics :meth:`refresh` asks for: these, or all there are."""
        self._topics, self._all_topics = set(topics), all_topics

    def track_also(self, topics: Iterable[str]) -> bool:
        """Adds topics to those asked for; whether one of them is not known yet."""
        self._topics.update(topics)
        return any(topic not in self.metadata.topics for topic in topics)

    def untrack(self, topics: Iterable[str]) -> None:
        """Takes topics out of those asked for."""
        self._topics.difference_update(topics)

    async def refresh(self) -> None:
        """Asks a broker for metadata of the tracked topics.

        Calls at the same time share one request, unless the topics have changed since it was sent.
        Raises a retriable :class:`KafkaError` if no broker could be asked. An error of a single topic is
        in ``metadata.topics[name].error_code``.
        """
        if self._closed:
            raise IllegalStateError("the client is closed")
        running = self._refreshing
        if running is not None and not running.done() and self._refresh_scope != self._scope():
            await asyncio.wait([running])
            running = self._refreshing
        if running is None or running.done():
            self._refresh_scope = self._scope()
            running = self._refreshing = asyncio.create_task(self._refresh(), name="metadata refresh")
            running.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(running)

    def _scope(self) -> frozenset[str] | None:
        return None if self._all_topics else frozenset(self._topics)

    async def _refresh(self) -> None:
        scope = self._refresh_scope
        topics = None if scope is None else [m.MetadataRequestTopic(name=name) for name in sorted(scope)]
        request = m.MetadataRequest(topics=topics, allow_auto_topic_creation=self._auto_create)
        response = await self._ask_anyone(request)
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED or not response.brokers:
            response = await self._bootstrap(request)
        raise_for_code(response.error_code, "Metadata")
        if not response.brokers:
            raise for_code(ErrorCode.BROKER_NOT_AVAILABLE, "the cluster names no broker yet")
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        self.metadata.update(response, now_ms, complete=scope is None)
        for listener in self.on_metadata:
            listener(self.metadata)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._metadata_max_age_ms / 1000)
            try:
                await self.refresh()
            except KafkaError as exc:
                log.warning("metadata is more than %d ms old: %s", self._metadata_max_age_ms, exc)

    # -- asking ----------------------------------------------------------------------------------

    async def connection(self, node_id: int, purpose: Purpose = Purpose.GENERAL) -> Connection:
        """The connection to a broker for a purpose, opened if need be.

        After failures it waits first, longer each time, so that callers may simply try again. Raises
        :class:`KafkaConnectionError` with the address and the reason.
        """
        if self._closed:
            raise IllegalStateError("the client is closed")
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise KafkaConnectionError(f"broker {node_id} is not in the cluster's metadata")
        return await self._pool.get((node_id, purpose), Address(broker.host, broker.port))

    def open_connection(self, node_id: int, purpose: Purpose = Purpose.GENERAL) -> Connection | None:
        """The connection to a broker for a purpose if it is open now, else ``None``."""
        return self._pool.open((node_id, purpose))

    async def send(
        self,
        node_id: int,
        request: Request[R] | ByVersion[R],
        *,
        purpose: Purpose = Purpose.GENERAL,
        timeout_ms: int | None = None,
        version_cap: int | None = None,
    ) -> R:
        """Asks one broker (``ANY_NODE``: see :meth:`send_any`) and waits for the answer.

        ``timeout_ms`` counts from when the request is written; ``None``: the request timeout. Raises
        what :meth:`connection` and :meth:`Connection.send` do.
        """
        if node_id == ANY_NODE:
            return await self.send_any(request, timeout_ms=timeout_ms, version_cap=version_cap)
        connection = await self.connection(node_id, purpose)
        return await connection.request(request, timeout_ms, version_cap)

    async def send_any(
        self,
        request: Request[R] | ByVersion[R],
        *,
        timeout_ms: int | None = None,
        version_cap: int | None = None,
    ) -> R:
        """Asks the least loaded broker that can be reached; if none can, starts again from the bootstrap
        servers. Raises :class:`NoBrokersAvailable` if they cannot be reached either.
        """
        if not self.metadata.brokers:
            await self.refresh()
        return await self._ask_anyone(request, timeout_ms, version_cap)

    async def _ask_anyone(
        self,
        request: Request[R] | ByVersion[R],
        timeout_ms: int | None = None,
        version_cap: int | None = None,
    ) -> R:
        for node_id in self._by_load():
            try:
                connection = await self.connection(node_id)
            except KafkaConnectionError as exc:
                log.debug("passing over broker %d: %s", node_id, exc)
                continue
            return await connection.request(request, timeout_ms, version_cap)
        return await self._bootstrap(request, timeout_ms, version_cap)

    def _by_load(self) -> list[int]:
        """Brokers to try: connected ones by load, then others, without those that are backing off."""
        general = Purpose.GENERAL
        connected = {n: c for n in self.metadata.brokers if (c := self._pool.open((n, general))) is not None}
        others = [
            n for n in self.metadata.brokers if n not in connected and not self._pool.wait_ms((n, general))
        ]
        self._rng.shuffle(others)
        return [*sorted(connected, key=lambda n: connected[n].in_flight), *others]

    async def _bootstrap(
        self,
        request: Request[R] | ByVersion[R],
        timeout_ms: int | None = None,
        version_cap: int | None = None,
    ) -> R:
        """Asks the first bootstrap server that answers (KIP-899: also when all brokers known are gone)."""
        servers = list(self.bootstrap_servers)
        self._rng.shuffle(servers)
        failed: list[str] = []
        for server in servers:
            try:
                connection = await self._connect(server.host, server.port, self.settings)
            except KafkaConnectionError as exc:
                failed.append(str(exc))
                continue
            try:
                answer = await connection.request(request, timeout_ms, version_cap)
            except KafkaConnectionError as exc:
                failed.append(str(exc))
                continue
            except BaseException:
                await connection.close()
                raise
            await self._settle(server, connection, answer)
            return answer
        raise NoBrokersAvailable(f"no broker could be reached: {'; '.join(failed)}")

    async def _settle(self, server: Address, connection: Connection, answer: Response) -> None:
        """Keeps a bootstrap connection as that of the broker which is at the same address."""
        brokers = answer.brokers if isinstance(answer, m.MetadataResponse) else []
        for broker in brokers:
            if Address(broker.host, broker.port) == server:
                self._pool.adopt((broker.node_id, Purpose.GENERAL), server, connection)
                return
        await connection.close("it was for bootstrap only")

    # -- coordinators ------------------------------------------------------------------------------

    async def coordinator(self, group: str, timeout_ms: int | None = None) -> int:
        """The node id of a group's coordinator, remembered until :meth:`forget_coordinator`.

        Asks again while there is none yet, for up to ``timeout_ms`` (``None``: the request timeout).
        Raises the last error then, and one that is not retriable at once.
        """
        loop = asyncio.get_running_loop()
        limit_ms = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = loop.time() + limit_ms / 1000
        failures = 0
        while True:
            found = (await self.coordinators([group]))[group]
            if isinstance(found, int):
                return found
            failures += 1
            delay = self._retry_backoff.delay_ms(failures) / 1000
            if not _worth_repeating(found) or loop.time() + delay > deadline:
                raise found
            await asyncio.sleep(delay)

    async def coordinators(self, groups: Sequence[str]) -> dict[str, int | KafkaError]:
        """For each group its coordinator's node id, or why there is none. Asks once for those not known."""
        missing = [group for group in dict.fromkeys(groups) if group not in self._coordinators]
        errors = await self._find_coordinators(missing) if missing else {}
        return {group: errors.get(group) or self._coordinators[group] for group in groups}

    def forget_coordinator(self, group: str) -> None:
        """Says that a group's coordinator has moved or cannot be reached."""
        self._coordinators.pop(group, None)

    async def _find_coordinators(self, groups: list[str]) -> dict[str, KafkaError]:
        errors: dict[str, KafkaError] = {}
        # The first request learns whether the broker takes several keys; only an old one needs the rest.
        waiting = list(groups)
        while waiting:
            asked = list(waiting)
            try:
                response = await self.send_any(_find_coordinator_request(asked))
            except KafkaError as exc:
                return {**errors, **dict.fromkeys(waiting, exc)}
            found = response.coordinators or [
                m.FindCoordinatorResponseCoordinator(
                    key=asked[0],
                    node_id=response.node_id,
                    host=response.host,
                    port=response.port,
                    error_code=response.error_code,
                    error_message=response.error_message,
                )
            ]
            answered = {one.key for one in found}
            waiting = [group for group in waiting if group not in answered and response.coordinators == []]
            for one in found:
                if one.error_code:
                    errors[one.key] = for_code(one.error_code, f"FindCoordinator of group {one.key!r}")
                else:
                    self.metadata.learn_broker(Broker(one.node_id, one.host, one.port))
                    self._coordinators[one.key] = one.node_id
            for group in asked:
                if response.coordinators and group not in answered:
                    errors[group] = for_code(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group!r}")
        return errors


def _find_coordinator_request(groups: list[str]) -> ByVersion[m.FindCoordinatorResponse]:
    def make(version: int) -> m.FindCoordinatorRequest:
        if version >= _BATCHED_FIND_COORDINATOR:
            return m.FindCoordinatorRequest(coordinator_keys=groups)
        return m.FindCoordinatorRequest(key=groups[0])

    return ByVersion(m.FindCoordinatorRequest, make)


def _worth_repeating(error: KafkaError) -> bool:
    code = getattr(error, "code", None)
    if code is not None and action_for(m.FindCoordinatorRequest, code) is Action.RETRY:
        return True
    return error.retriable
