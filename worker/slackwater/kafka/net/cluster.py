"""A Kafka cluster: bootstrap, metadata, coordinators, and requests to the broker responsible for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from slackwater.kafka.errors import (
    AuthenticationError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    NoBrokersAvailable,
    for_code,
    raise_for_code,
)
from slackwater.kafka.net import name_lookup
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.connection import ByVersion, Connect, Connection, RequestTimeoutError
from slackwater.kafka.net.connection_settings import NOT_COUNTED, ConnectionSettings, Traffic
from slackwater.kafka.net.coordinators import Coordinators, KeyType
from slackwater.kafka.net.dialer import (
    Address,
    Resolve,
    canonical_names,
    first_of,
    parse_servers,
    reason,
    resolve,
)
from slackwater.kafka.net.pool import Pool, Purpose
from slackwater.kafka.net.security.connect import connector
from slackwater.kafka.net.security.settings import PLAIN_TEXT, Security
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.metadata import ANY_NODE, ClusterMetadata
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.limits import ANSWER_BYTES
from slackwater.kafka.wire.schema import Request, Response

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

USE_ALL_DNS_IPS = "use_all_dns_ips"
DNS_LOOKUPS = (USE_ALL_DNS_IPS, "resolve_canonical_bootstrap_servers_only")
"""Values of ``client_dns_lookup``."""
REBOOTSTRAP = "rebootstrap"
RECOVERY_STRATEGIES = (REBOOTSTRAP, "none")
"""Values of ``metadata_recovery_strategy``."""
_TOPIC_PROBLEMS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)
PATIENCE_S = 1.0
"""How long a bootstrap server has before the next one is asked as well."""


class Cluster:
    """A Kafka cluster, seen from one event loop.

    ``bootstrap_servers``: one or more ``host:port``. Times are in ms. ``metadata`` is the last known
    metadata; :meth:`track` sets the topics it is requested for. ``security`` says how connections
    are made; ``connect`` replaces that. ``rng`` spreads reconnects and the choice of a broker.

    ``connections_max_idle_ms``: connections unused for this long are closed; ``None``: never.
    ``receive_buffer_bytes``, ``send_buffer_bytes``: of each socket; ``None``: the system's.
    ``receive_message_max_bytes``: size limit of answers whose API has no limit of its own.
    ``client_dns_lookup``: ``use_all_dns_ips``, or ``resolve_canonical_bootstrap_servers_only``, which puts
    the canonical names of all their addresses in place of the bootstrap servers. ``resolve`` looks names up.
    ``metadata_recovery_strategy``: ``rebootstrap`` goes back to the bootstrap servers when no known broker
    can be reached (KIP-899), when metadata could not be had for
    ``metadata_recovery_rebootstrap_trigger_ms``, or when a broker asks for it (KIP-1102); ``none`` goes on
    with the brokers that are known.
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
        connections_max_idle_ms: int | None = 540_000,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
        receive_message_max_bytes: int = ANSWER_BYTES,
        client_dns_lookup: str = USE_ALL_DNS_IPS,
        metadata_recovery_strategy: str = REBOOTSTRAP,
        metadata_recovery_rebootstrap_trigger_ms: int = 300_000,
        resolve: Resolve = resolve,
        traffic: Traffic = NOT_COUNTED,
        allow_auto_topic_creation: bool = False,
        security: Security = PLAIN_TEXT,
        connect: Connect | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.bootstrap_servers = parse_servers(bootstrap_servers)
        self.settings = ConnectionSettings(
            client_id=client_id,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            receive_buffer_bytes=receive_buffer_bytes,
            send_buffer_bytes=send_buffer_bytes,
            receive_message_max_bytes=receive_message_max_bytes,
            resolve=resolve,
            traffic=traffic,
        )
        self.outages = self.settings.outages
        self._topic_problems: dict[str, tuple[int, bool]] = {}
        """The error code of each topic that cannot be used, and whether that is logged."""
        self._dns_lookup = client_dns_lookup
        self._recovery = metadata_recovery_strategy
        self._recovery_trigger_s = metadata_recovery_rebootstrap_trigger_ms / 1000
        self._failing_since: float | None = None
        self._reported_servers: set[str] = set()
        self.metadata = ClusterMetadata()
        self.on_metadata: list[Callable[[ClusterMetadata], None]] = []
        """Called on the loop after each refresh."""
        self.rng = rng or random.Random()
        self._connect = connect or connector(security, self.rng)
        self._reconnect_backoff = Backoff(reconnect_backoff_ms, reconnect_backoff_max_ms, self.rng)
        self._retry_backoff = Backoff(retry_backoff_ms, 10 * retry_backoff_ms, self.rng)
        self._pool = Pool(
            self._connect, self.settings, self._reconnect_backoff, max_idle_ms=connections_max_idle_ms
        )
        self._metadata_max_age_ms = metadata_max_age_ms
        self._auto_create = allow_auto_topic_creation
        self._topics: set[str] = set()
        self._all_topics = False
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_scope: frozenset[str] | None = frozenset()
        self._keeper: asyncio.Task[None] | None = None
        self._coordinators = Coordinators(self._ask_for_coordinators, self.metadata, self._retry_backoff)
        self.transaction_coordinators = Coordinators(
            self._ask_for_coordinators, self.metadata, self._retry_backoff, KeyType.TRANSACTION
        )
        self._closed = False

    # -- life ------------------------------------------------------------------------------------

    async def start(self, timeout_ms: int = 10_000, *, unreachable_timeout_ms: int | None = None) -> None:
        """Finds a broker that answers and reads its metadata.

        Tries the bootstrap servers in turn until ``timeout_ms`` is over (one round at least), then raises
        :class:`NoBrokersAvailable`, which names each address and its error, or the last
        :class:`AuthenticationError`. ``unreachable_timeout_ms``: the time limit as long as no server has
        accepted a connection, where a person waits.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        failures = 0
        refused: AuthenticationError | None = None

        def limit_ms() -> int:
            if unreachable_timeout_ms is None or self.settings.addresses.reached:
                return timeout_ms
            return min(timeout_ms, unreachable_timeout_ms)

        while True:
            applied_ms = limit_ms()
            try:
                async with asyncio.timeout_at(max(began + applied_ms / 1000, loop.time() + 1)):
                    await self.refresh()
                break
            except KafkaError as exc:
                failures += 1
                delay = self._reconnect_backoff.delay_ms(failures) / 1000
                refused = exc if isinstance(exc, AuthenticationError) else refused
                if not exc.retriable or loop.time() + delay >= began + limit_ms() / 1000:
                    raise
                await asyncio.sleep(delay)
            except TimeoutError as exc:
                if refused is not None:
                    raise refused from exc
                if applied_ms < limit_ms():
                    continue  # to wait for the same request, which goes on
                tried = ", ".join(
                    f"{address}{' (the resolver has not answered)' * name_lookup.is_running(*address)}"
                    for address in self.bootstrap_servers
                )
                raise NoBrokersAvailable(f"no broker answered within {applied_ms} ms: {tried}") from exc
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
        try:
            response = await self._metadata(request)
        except KafkaError as exc:
            if self._failing_since is None:
                self._failing_since = asyncio.get_running_loop().time()
            if self._keeper is not None:  # else start() raises it
                self.outages.failed(log, "metadata", f"metadata: {exc}", logging.WARNING)
            raise
        self._failing_since = None
        self.outages.worked(log, "metadata")
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        self.metadata.update(response, now_ms, complete=scope is None)
        if scope is not None:
            self._warn_of_topics(scope)
        for listener in self.on_metadata:
            listener(self.metadata)

    def _warn_of_topics(self, names: Iterable[str]) -> None:
        """Logs once for each cause that a topic cannot be used: of a misspelt name nothing else tells."""
        before, self._topic_problems = self._topic_problems, {}
        for name in sorted(names):
            topic = self.metadata.topics.get(name)
            code = topic.error_code if topic is not None else 0
            if code not in _TOPIC_PROBLEMS:
                continue
            last, told = before.get(name, (0, False))
            # A broker that is about to make the topic first says that it does not exist.
            telling = (
                code != last if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else code == last and not told
            )
            if telling:
                log.warning("%s", for_code(code, f"of topic {name!r}", api="Metadata"))
            self._topic_problems[name] = (code, telling or (told and code == last))

    async def _metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        """An answer that names brokers, from the bootstrap servers if need be."""
        loop = asyncio.get_running_loop()
        since = self._failing_since
        if (
            since is not None
            and loop.time() - since >= self._recovery_trigger_s
            and self._rebootstrap(f"no metadata for {loop.time() - since:.0f} s")
        ):
            self._failing_since = None
        response = await self._ask_anyone(request, elsewhere=True)
        if (
            response.error_code
            and (
                action_for(m.MetadataRequest, response.error_code) is Action.REBOOTSTRAP
                and self._rebootstrap("the broker asks for it")
            )
        ) or (not response.brokers and self._recovery == REBOOTSTRAP):
            response = await self._bootstrap(request)
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED or not response.brokers:
            asked = ", ".join(str(address) for address in self.bootstrap_servers)
            raise KafkaConnectionError(
                f"Metadata: the cluster reports no broker yet; brokers asked last, or known from {asked}"
            )
        raise_for_code(response.error_code, api="Metadata")
        return response

    def _rebootstrap(self, why: str) -> bool:
        """Forgets brokers, coordinators and connections; the next request bootstraps again (KIP-1102)."""
        if self._recovery != REBOOTSTRAP:
            return False
        if self.metadata.brokers:
            log.warning("starting again from the bootstrap servers: %s", why)
        self.metadata.brokers = {}
        self._coordinators.clear()
        self.transaction_coordinators.clear()
        self._pool.drop_all("the client starts again from the bootstrap servers")
        return True

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._metadata_max_age_ms / 1000)
            with contextlib.suppress(KafkaError):  # it is logged
                await self.refresh()

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
        *,
        elsewhere: bool = False,
    ) -> R:
        """``elsewhere``: a request that changes nothing goes to the next broker if one hangs up on it."""
        problem: KafkaConnectionError | None = None
        for node_id in self._by_load():
            try:
                connection = await self.connection(node_id)
            except KafkaConnectionError as exc:
                log.debug("passing over broker %d: %s", node_id, exc)
                problem = exc
                continue
            try:
                answer = await connection.request(request, timeout_ms, version_cap)
                self.outages.worked(log, f"broker {node_id}")
                return answer
            except KafkaConnectionError as exc:
                if not elsewhere or isinstance(exc, RequestTimeoutError):
                    raise
                self.outages.failed(log, f"broker {node_id}", f"asking another broker: {exc}")
                problem = exc
        if self._recovery != REBOOTSTRAP and self.metadata.brokers:
            names = ", ".join(f"{b.host}:{b.port}" for b in self.metadata.brokers.values())
            raise problem or KafkaConnectionError(
                f"none of the known brokers can be reached ({names}), and metadata_recovery_strategy=none "
                "does not return to the bootstrap servers"
            )
        return await self._bootstrap(request, timeout_ms, version_cap)

    def _by_load(self) -> list[int]:
        """Brokers to try: connected ones by load, then others, without those that are backing off."""
        general = Purpose.GENERAL
        connected = {n: c for n in self.metadata.brokers if (c := self._pool.open((n, general))) is not None}
        others = [
            n for n in self.metadata.brokers if n not in connected and not self._pool.wait_ms((n, general))
        ]
        self.rng.shuffle(others)
        return [*sorted(connected, key=lambda n: connected[n].in_flight), *others]

    async def _bootstrap(
        self,
        request: Request[R] | ByVersion[R],
        timeout_ms: int | None = None,
        version_cap: int | None = None,
    ) -> R:
        """What the first bootstrap server answers (KIP-899: also when all brokers known are gone). One that
        accepts a connection and says nothing costs a second: then the next one is asked as well."""
        nameless: list[str] = []
        servers = await self._bootstrap_addresses(nameless)
        self.rng.shuffle(servers)

        async def ask(server: Address) -> tuple[Connection, R]:
            connection = await self._connect(server.host, server.port, self.settings)
            try:
                return connection, await connection.request(request, timeout_ms, version_cap)
            except BaseException:
                await connection.close()
                raise

        async def close(asked: tuple[Connection, R]) -> None:
            await asked[0].close("another bootstrap server has answered")

        won, lost = await first_of(servers, ask, KafkaConnectionError, discard=close, stagger_s=PATIENCE_S)
        failed = [*nameless, *(str(error) for _, error in lost)]
        if won is None:
            for _, error in reversed(lost):
                if isinstance(error, AuthenticationError):
                    raise error
            raise NoBrokersAvailable(f"no broker could be reached: {'; '.join(failed)}")
        server, (connection, answer) = won
        await self._settle(server, connection, answer)
        self._warn_of_unusable_servers(failed)
        return answer

    def _warn_of_unusable_servers(self, failed: list[str]) -> None:
        """Logs each unusable server once: a partly wrong list fails only when its good servers are down."""
        for problem in failed:
            if problem not in self._reported_servers:
                self._reported_servers.add(problem)
                log.warning("one of bootstrap_servers cannot be used: %s", problem)

    async def _bootstrap_addresses(self, failed: list[str]) -> list[Address]:
        """The bootstrap servers, by their canonical names if asked for; ``failed``: what has no name."""
        if self._dns_lookup == USE_ALL_DNS_IPS:
            return list(self.bootstrap_servers)
        addresses: list[Address] = []
        for server in self.bootstrap_servers:
            try:
                names = await canonical_names(server.host, server.port, self.settings.resolve)
            except OSError as exc:
                failed.append(f"{server}: {reason(exc)}")
            else:
                addresses += [Address(name, server.port) for name in names]
        return list(dict.fromkeys(addresses))

    async def _settle(self, server: Address, connection: Connection, answer: Response) -> None:
        """Keeps a bootstrap connection as the connection to the broker with the same address."""
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
        limit_ms = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        return await self._coordinators.wait_for(group, limit_ms)

    async def coordinators(self, groups: Sequence[str]) -> dict[str, int | KafkaError]:
        """For each group its coordinator's node id, or why there is none. Asks once for those not known."""
        return await self._coordinators.find(groups)

    async def confirm_coordinator(self, group: str, connection: Connection, timeout_ms: int) -> int:
        """Asks over this connection who coordinates a group now, and so whether the connection lives.

        Remembers the answer. Raises what the connection does, and the error of the answer.
        """

        async def ask(request: ByVersion[m.FindCoordinatorResponse]) -> m.FindCoordinatorResponse:
            return await connection.request(request, timeout_ms)

        result = await self._coordinators.ask_again(group, ask)
        if isinstance(result, KafkaError):
            raise result
        return result

    def forget_coordinator(self, group: str) -> None:
        """Forgets a group's coordinator, which has moved or cannot be reached."""
        self._coordinators.forget(group)

    async def _ask_for_coordinators(
        self, request: ByVersion[m.FindCoordinatorResponse]
    ) -> m.FindCoordinatorResponse:
        if not self.metadata.brokers:
            await self.refresh()
        return await self._ask_anyone(request, elsewhere=True)
