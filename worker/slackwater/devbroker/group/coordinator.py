"""The group coordinator: requests in, answers out, now or later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from slackwater.devbroker.group.config import GroupConfig, TopicLookup
from slackwater.devbroker.group.consumer.classic_members import ClassicMemberHandler
from slackwater.devbroker.group.consumer.group import ConsumerGroup
from slackwater.devbroker.group.consumer.handler import ConsumerGroupHandler
from slackwater.devbroker.group.consumer.lifecycle import GroupLifecycle
from slackwater.devbroker.group.describe import (
    check_delete,
    consumer_snapshot,
    describe_groups,
    list_groups,
    snapshot,
    tombstones,
)
from slackwater.devbroker.group.group import Client, Group, GroupError
from slackwater.devbroker.group.member_requests import (
    Join,
    JoinHandler,
    check_join,
    check_protocol_named,
    heartbeat,
    leave,
    refusal,
    sync,
)
from slackwater.devbroker.group.offsets import OffsetHandler
from slackwater.devbroker.group.rebalance import KeyedTimers, Rebalancer
from slackwater.devbroker.group.store import GroupStore, GroupStoreError
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request, Response

Reply = Callable[[Response], None]


class _Phase(Enum):
    """Whether the coordinator serves requests, and its error while it does not."""

    ACTIVE = ErrorCode.NONE
    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    UNLOADED = ErrorCode.NOT_COORDINATOR


class GroupCoordinator:
    """The group protocols of Apache Kafka 4.3 (classic, and consumer), without sockets and without a clock.

    A new coordinator is loading; :meth:`load` makes it serve what ``store`` holds.
    ``make_member_id`` gets the instance id or the client id and gives a member id that has never
    been given before (Kafka: prefix, dash, random UUID). ``now_ms`` is any clock that does not run
    backwards. Replies are called when the state is settled, so a reply may call :meth:`handle`.
    """

    def __init__(
        self,
        config: GroupConfig,
        store: GroupStore,
        make_member_id: Callable[[str], str],
        topics: TopicLookup,
    ) -> None:
        self._config, self._store = config, store
        self._timers = KeyedTimers()
        self._groups: dict[str, Group] = {}
        self._consumer_groups: dict[str, ConsumerGroup] = {}
        self._phase = _Phase.LOADING
        self._outbox: deque[tuple[Reply, Response]] = deque()
        self._sending = False
        self._rebalancer = Rebalancer(config, store, self._timers)
        self._join = JoinHandler(config, store, self._rebalancer, self._groups, make_member_id)
        self._offsets = OffsetHandler(
            config, store, self._rebalancer, self._groups, self._consumer_groups, topics
        )
        self._lifecycle = GroupLifecycle(
            config, store, self._rebalancer, self._timers, topics, self._consumer_groups, self._groups
        )
        self._consumers = ConsumerGroupHandler(config, self._lifecycle, topics, self._consumer_groups)
        self._classic_members = ClassicMemberHandler(self._lifecycle, topics, make_member_id)
        self._handlers: dict[int, Callable[[Any, int, Client, Reply], None]] = {
            m.JoinGroupRequest.api_key: self._handle_join,
            m.SyncGroupRequest.api_key: self._handle_sync,
            m.HeartbeatRequest.api_key: self._handle_heartbeat,
            m.LeaveGroupRequest.api_key: self._handle_leave,
            m.OffsetCommitRequest.api_key: self._handle_commit,
            m.OffsetFetchRequest.api_key: self._handle_fetch,
            m.DescribeGroupsRequest.api_key: self._handle_describe,
            m.ListGroupsRequest.api_key: self._handle_list,
            m.DeleteGroupsRequest.api_key: self._handle_delete,
            m.ConsumerGroupHeartbeatRequest.api_key: self._handle_consumer_heartbeat,
            m.ConsumerGroupDescribeRequest.api_key: self._handle_consumer_describe,
        }

    # -- what the server calls

    @property
    def api_keys(self) -> frozenset[int]:
        """The keys of the requests that :meth:`handle` takes."""
        return frozenset(self._handlers)

    def handle(
        self,
        request: Request[Any],
        *,
        version: int,
        client_id: str | None,
        client_host: str,
        now_ms: float,
        reply: Reply,
        connection: object | None = None,
    ) -> None:
        """Takes a request in, after the timers that are due before it.

        ``reply`` is called once with the response for ``version``, before this returns or, for a
        parked JoinGroup or SyncGroup, later from any call of this object; never, where Kafka never
        answers (the parked Sync of a member that was removed, and a parked request that the same
        member has repeated). ``connection`` is not looked at: a parked request outlives its socket.
        Raises ``KeyError`` for a request that is not in :attr:`api_keys`. :meth:`poll` must be
        called afterwards, because timers may be due earlier than before.
        """
        handler = self._handlers[request.api_key]
        self._timers.advance(now_ms)
        host = client_host if client_host.startswith("/") else f"/{client_host}"
        handler(request, version, Client(client_id or "", host), self._deferred(reply))
        self._send()

    def poll(self, now_ms: float) -> float | None:
        """Fires the timers that are due at ``now_ms``; gives the time of the next one, or None."""
        self._timers.advance(now_ms)
        self._send()
        return self._timers.next_deadline_ms()

    def describe(self) -> list[dict[str, Any]]:
        """Every group as plain values (JSON), by name. Times are those of the caller's clock."""
        image = self._store.image
        described = [snapshot(group, self._rebalancer, image) for group in self._groups.values()]
        described += [consumer_snapshot(group, image) for group in self._consumer_groups.values()]
        return sorted(described, key=lambda group: str(group["group"]))

    def unload(self) -> None:
        """Stops serving: what is parked, and every request from now on, gets NOT_COORDINATOR."""
        self._phase = _Phase.UNLOADED
        self._drop_groups()
        self._send()

    def start_loading(self) -> None:
        """Answers COORDINATOR_LOAD_IN_PROGRESS until :meth:`load`, and heartbeats with no error."""
        self._phase = _Phase.LOADING
        self._drop_groups()
        self._send()

    def load(self, now_ms: float) -> None:
        """Serves the stored groups. Sessions restart; a rebalance in progress is lost."""
        self._drop_groups()
        self._timers.advance(now_ms)
        image = self._store.image
        for group_id in image.offsets:
            if group_id not in image.consumer_groups:
                self._groups[group_id] = Group(group_id)
        for group_id, record in image.groups.items():
            group = self._groups[group_id] = Group.from_record(record)
            for member in group.members.values():
                self._rebalancer.restart_session(group, member)
        self._lifecycle.load()
        self._phase = _Phase.ACTIVE
        self._send()

    def topics_deleted(self, names: list[str]) -> None:
        """Drops all groups' offsets of topics that are no more. Raises ``GroupStoreError``."""
        self._offsets.forget_topics(names)

    # -- one method a request

    def _handle_join(self, request: m.JoinGroupRequest, version: int, client: Client, reply: Reply) -> None:
        def answer(response: m.JoinGroupResponse) -> None:
            if version < 7 and response.protocol_name is None:
                response.protocol_name = ""
            reply(response)

        join = Join(request, version, client, answer)
        try:
            self._serve_join(join)
        except GroupError as exc:
            answer(refusal(request.member_id if self._phase is _Phase.ACTIVE else "", exc.code))
        except GroupStoreError:
            answer(refusal("", ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _serve_join(self, join: Join) -> None:
        """An empty group of the consumer protocol becomes a classic one."""
        if self._phase is not _Phase.ACTIVE:
            raise GroupError(self._phase.value)
        check_join(join.request, self._config)
        consumers = self._consumer_groups.get(join.request.group_id)
        if consumers is not None and consumers.members:
            join.reply(self._classic_members.join(consumers, join))
            return
        if consumers is not None:
            self._lifecycle.make_classic(consumers, consumers.epoch)
        self._join.handle(join)

    def _handle_sync(self, request: m.SyncGroupRequest, version: int, client: Client, reply: Reply) -> None:
        try:
            check_protocol_named(request, version)
            group = self._serving(request.group_id)
            consumers = self._consumer_groups.get(request.group_id)
            if consumers is not None:
                reply(self._classic_members.sync(consumers, request))
            else:
                sync(group, request, self._rebalancer, reply)
        except GroupError as exc:
            reply(m.SyncGroupResponse(error_code=exc.code))

    def _handle_heartbeat(
        self, request: m.HeartbeatRequest, version: int, client: Client, reply: Reply
    ) -> None:
        error = ErrorCode.NONE
        try:
            group = self._serving(request.group_id)
            consumers = self._consumer_groups.get(request.group_id)
            if consumers is not None:
                self._classic_members.heartbeat(consumers, request)
            else:
                heartbeat(group, request, self._rebalancer)
        except GroupError as exc:
            # As Kafka: a loading coordinator does not know its members, and must not make them rejoin.
            error = ErrorCode.NONE if exc.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else exc.code
        reply(m.HeartbeatResponse(error_code=error))

    def _handle_leave(self, request: m.LeaveGroupRequest, version: int, client: Client, reply: Reply) -> None:
        try:
            group = self._serving(request.group_id)
        except GroupError as exc:
            reply(m.LeaveGroupResponse(error_code=exc.code))
            return
        consumers = self._consumer_groups.get(request.group_id)
        if consumers is not None:
            reply(self._classic_members.leave(consumers, request, version))
        else:
            reply(leave(group, request, version, self._rebalancer))

    def _handle_commit(
        self, request: m.OffsetCommitRequest, version: int, client: Client, reply: Reply
    ) -> None:
        reply(self._offsets.commit(request, version, self._phase.value))

    def _handle_fetch(
        self, request: m.OffsetFetchRequest, version: int, client: Client, reply: Reply
    ) -> None:
        reply(self._offsets.fetch(request, version, self._phase.value))

    def _handle_describe(
        self, request: m.DescribeGroupsRequest, version: int, client: Client, reply: Reply
    ) -> None:
        reply(describe_groups(self._groups, request, version, self._phase.value))

    def _handle_list(self, request: m.ListGroupsRequest, version: int, client: Client, reply: Reply) -> None:
        if self._phase is _Phase.LOADING:
            reply(m.ListGroupsResponse(error_code=self._phase.value))
        else:
            reply(list_groups(self._groups.values(), self._consumer_groups.values(), request))

    def _handle_delete(
        self, request: m.DeleteGroupsRequest, version: int, client: Client, reply: Reply
    ) -> None:
        results = [
            m.DeleteGroupsResponseResult(
                group_id=group_id, error_code=self._phase.value or self._delete(group_id)
            )
            for group_id in dict.fromkeys(request.groups_names)
        ]
        reply(m.DeleteGroupsResponse(results=results))

    def _handle_consumer_heartbeat(
        self, request: m.ConsumerGroupHeartbeatRequest, version: int, client: Client, reply: Reply
    ) -> None:
        reply(self._consumers.heartbeat(request, client, self._phase.value))

    def _handle_consumer_describe(
        self, request: m.ConsumerGroupDescribeRequest, version: int, client: Client, reply: Reply
    ) -> None:
        reply(self._consumers.describe(request, self._phase.value))

    # -- inside

    def _serving(self, group_id: str) -> Group | None:
        """The group, or None when there is none. Raises :class:`GroupError` while not serving."""
        if self._phase is not _Phase.ACTIVE:
            raise GroupError(self._phase.value)
        if not group_id:
            raise GroupError(ErrorCode.INVALID_GROUP_ID)
        return self._groups.get(group_id)

    def _delete(self, group_id: str) -> ErrorCode:
        group = self._groups.get(group_id) or self._consumer_groups.get(group_id)
        error = check_delete(group)
        if group is None or error:
            return error
        try:
            self._store.append(tombstones(self._store.image, group_id))
        except GroupStoreError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if isinstance(group, Group):
            self._rebalancer.forget(group)
        self._groups.pop(group_id, None)
        self._consumer_groups.pop(group_id, None)
        return ErrorCode.NONE

    def _drop_groups(self) -> None:
        self._rebalancer.stop(self._groups.values())
        self._groups.clear()
        self._consumer_groups.clear()

    def _deferred(self, reply: Reply) -> Reply:
        return lambda response: self._outbox.append((reply, response))

    def _send(self) -> None:
        """Calls the replies that are due; those of a call made by a reply are sent by the outer one."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._outbox:
                reply, response = self._outbox.popleft()
                reply(response)
        finally:
            self._sending = False
