"""The broker: owns the data folder, the listening socket, and the handlers of all requests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import socket
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from slackwater.devbroker.api.fetch import handle_fetch
from slackwater.devbroker.api.fetch_sessions import FetchSessions
from slackwater.devbroker.api.groups import CoordinatorHost
from slackwater.devbroker.api.log_offsets import handle_list_offsets, handle_offset_for_leader_epoch
from slackwater.devbroker.api.metadata import (
    handle_api_versions,
    handle_describe_cluster,
    handle_metadata,
)
from slackwater.devbroker.api.produce import handle_init_producer_id, handle_produce
from slackwater.devbroker.api.topics import (
    handle_create_topics,
    handle_delete_topics,
    handle_describe_configs,
)
from slackwater.devbroker.control import ControlServer
from slackwater.devbroker.faults.rules import ActiveFault, Faults
from slackwater.devbroker.group import GroupStoreError
from slackwater.devbroker.network.connection import ClientConnection, Exchange
from slackwater.devbroker.network.request_log import RequestLog
from slackwater.devbroker.network.router import APIS, Handler, Router
from slackwater.devbroker.options import BrokerOptions
from slackwater.devbroker.storage.topics import DataFolderError, TopicStore
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.primitives import Reader

log = logging.getLogger(__name__)

_BACKLOG = 1024
_GRACE_S = 1.0
_ANY_ADDRESS = ("0.0.0.0", "::", "")


class BrokerStartError(Exception):
    """The broker cannot start; the message says why."""


class DevBroker:
    """One broker in this process, which must run an event loop; an async context manager.

    ``settings``: options by Kafka's dotted names (``BrokerOptionError`` for one that does not exist).
    ``port`` 0 takes a free one. ``control_port``: also serve HTTP on loopback; ``None`` does not.
    If ``host`` means all addresses, each client gets the address that it connected to.
    """

    def __init__(
        self,
        data: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        control_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        make_uuid: Callable[[], UUID] = uuid.uuid4,
        rng: random.Random | None = None,
    ) -> None:
        self._given = dict(settings or {})
        self.options = BrokerOptions.from_settings(self._given)
        self._host = host
        self._port = port
        self._wanted_control_port = control_port
        self._make_uuid = make_uuid
        self.topics = TopicStore(data, self.options, make_uuid)
        self.sessions = FetchSessions(
            self.options.max_incremental_fetch_session_cache_slots, rng or random.Random()
        )
        self.faults = Faults(self.topics.topic_name)
        self.requests = RequestLog(self.clock_ms, self.topics.topic_name)
        self._coordination: CoordinatorHost | None = None
        self._router: Router | None = None
        self._server: asyncio.Server | None = None
        self._control: ControlServer | None = None
        self._connections: set[ClientConnection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    # -- life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Locks and loads the data folder, and starts listening. Raises :class:`BrokerStartError`."""
        self._loop = asyncio.get_running_loop()
        try:
            self.topics.open()
            self._start_coordination()
            await self._listen()
            self._sweep()
        except (DataFolderError, GroupStoreError) as exc:
            await self.stop()
            raise BrokerStartError(str(exc)) from exc
        except BaseException:
            await self.stop()
            raise

    def _start_coordination(self) -> None:
        coordination = CoordinatorHost(
            self.topics.data / "groups.log", self.options, self.topics, self._make_uuid, self.clock_ms
        )
        self._coordination = coordination
        self.topics.on_delete = coordination.topic_deleted
        coordination.load()
        handlers = self._handlers(coordination)
        self._router = Router(
            handlers,
            self._handle_fetch,
            handlers[m.ApiVersionsRequest.api_key],
            self.faults,
            coordination.move,
            self.requests,
        )

    async def _listen(self) -> None:
        listener = _bind(self._host, self._port)
        self._port = listener.getsockname()[1]
        assert self._loop is not None
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self, self.options.socket_request_max_bytes),
            sock=listener,
            backlog=_BACKLOG,
        )
        if self._wanted_control_port is not None:
            control = ControlServer(self, _bind("127.0.0.1", self._wanted_control_port))
            await control.start()
            self._control = control

    async def stop(self) -> None:
        """Stops listening, answers parked requests, flushes all data to disk, and unlocks the folder."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._control is not None:
            await self._control.stop()
            self._control = None
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._coordination is not None:
            self._coordination.close()
            self._coordination = None
        await self._end_connections()
        self.topics.close()

    def _sweep(self) -> None:
        """Closes the connections on which nothing moved for ``connections.max.idle.ms``, as Kafka does.

        Every half of that time, each connection's activity flag is checked and reset. This also closes
        connections whose client has gone while its request is parked: their sockets are not read.
        """
        idle_ms = self.options.connections_max_idle_ms
        if idle_ms < 0 or self._loop is None:
            return
        for connection in list(self._connections):
            if not connection.active and connection.was_idle:
                connection.close()
            connection.was_idle = not connection.active
            connection.active = False
        self._sweeper = self._loop.call_later(max(idle_ms / 2, 10) / 1000, self._sweep)

    async def _end_connections(self) -> None:
        for connection in list(self._connections):
            connection.close()
        deadline = asyncio.get_running_loop().time() + _GRACE_S
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()

    # -- for users ---------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address it was started with."""
        return self._host

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def control_port(self) -> int | None:
        """The HTTP control port on loopback, if there is one."""
        return self._control.port if self._control else None

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        host = "127.0.0.1" if self._host in _ANY_ADDRESS else self._host
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    def move_coordinator(self, down_ms: float = 0) -> None:
        """Unloads the group coordinator for ``down_ms``, see :meth:`CoordinatorHost.move`."""
        if self._coordination is not None:
            self._coordination.move(down_ms)

    def state(self) -> dict[str, Any]:
        """The state as plain values: topics with end offsets, groups with generations and members."""
        coordination = self._coordination
        return {
            "cluster_id": self.topics.cluster_id,
            "node_id": self.options.node_id,
            "connections": len(self._connections),
            "fetch_sessions": len(self.sessions),
            "coordinator_available": bool(coordination and coordination.available),
            "topics": {
                topic.name: {
                    "topic_id": str(topic.topic_id),
                    "configs": topic.configs,
                    "partitions": [
                        {"partition": p.index, "end_offset": p.end_offset, "size_bytes": p.size_bytes}
                        for p in topic.partitions
                    ],
                }
                for topic in self.topics
            },
            "groups": coordination.coordinator.describe() if coordination else [],
        }

    # -- for connections (RequestHandler) ----------------------------------------------------

    def connected(self, connection: ClientConnection) -> None:
        self._connections.add(connection)

    def disconnected(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)

    def handle(self, exchange: Exchange, reader: Reader) -> None:
        assert self._router is not None
        self._router.route(exchange, reader)

    def clock_ms(self) -> float:
        """A clock that never runs backwards."""
        assert self._loop is not None
        return self._loop.time() * 1000

    def now_ms(self) -> int:
        """The same clock in whole milliseconds."""
        return int(self.clock_ms())

    def _address(self, exchange: Exchange) -> tuple[str, int]:
        """The address at which this client reaches this broker."""
        return exchange.local_address if self._host in _ANY_ADDRESS else (self._host, self._port)

    def _handle_fetch(self, exchange: Exchange, request: m.FetchRequest, fault: ActiveFault | None) -> None:
        handle_fetch(self, exchange, request, self.options.fetch_max_bytes, fault)

    def _handlers(self, coordination: CoordinatorHost) -> dict[int, Handler]:
        topics, options = self.topics, self.options
        ranges = {key: (api.min_version, api.max_version) for key, api in APIS.items()}
        handlers: dict[int, Handler] = dict.fromkeys(coordination.coordinator.api_keys, coordination.handle)
        handlers |= {
            m.ProduceRequest.api_key: functools.partial(handle_produce, topics, options),
            m.ListOffsetsRequest.api_key: functools.partial(handle_list_offsets, topics),
            m.OffsetForLeaderEpochRequest.api_key: functools.partial(handle_offset_for_leader_epoch, topics),
            m.InitProducerIdRequest.api_key: functools.partial(handle_init_producer_id, topics),
            m.ApiVersionsRequest.api_key: functools.partial(handle_api_versions, ranges),
            m.CreateTopicsRequest.api_key: functools.partial(handle_create_topics, topics, options),
            m.DeleteTopicsRequest.api_key: functools.partial(handle_delete_topics, topics),
            m.DescribeConfigsRequest.api_key: functools.partial(
                handle_describe_configs, topics, options, self._given
            ),
            m.MetadataRequest.api_key: lambda exchange, request: handle_metadata(
                topics, options, self._address(exchange), exchange, request
            ),
            m.DescribeClusterRequest.api_key: lambda exchange, request: handle_describe_cluster(
                topics, options, self._address(exchange), exchange, request
            ),
            m.FindCoordinatorRequest.api_key: lambda exchange, request: coordination.find(
                exchange, request, self._address(exchange)
            ),
        }
        return handlers


def _bind(host: str, port: int) -> socket.socket:
    """A socket bound to the first address of ``host``. Raises :class:`BrokerStartError`."""
    try:
        candidates = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as exc:
        raise BrokerStartError(f"host {host!r}: {exc.strerror}; give an address of this machine") from exc
    family, kind, protocol, _, address = candidates[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as exc:
        bound.close()
        raise BrokerStartError(
            f"cannot listen on {host}:{port}: {exc.strerror}; stop what uses it or give another port"
        ) from exc
    return bound
