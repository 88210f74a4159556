"""Drives a member of a group over the network: its requests, its timers, the metadata that it needs.

A :class:`Membership` speaks the classic protocol, a :class:`ConsumerMembership` the consumer protocol
(KIP-848). What uses the coordinator does not ask which.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from slackwater.kafka.consumer.config.consumer_config import CONSUMER_PROTOCOL, ConsumerConfig
from slackwater.kafka.consumer.offsets.group_offsets import GroupOffsets
from slackwater.kafka.errors import (
    IllegalStateError,
    KafkaError,
    for_code,
)
from slackwater.kafka.net import ByVersion, Cluster, Connection, Purpose
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.group_protocols import describe_others
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.assignors import marked_member_id
from slackwater.kafka.protocol.consumer_membership.member import ConsumerMembership
from slackwater.kafka.protocol.membership.history import MembershipStats
from slackwater.kafka.protocol.membership.member import Membership
from slackwater.kafka.protocol.membership.requests import Lane, Send
from slackwater.kafka.protocol.membership.states import MembershipConfig, State
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import EncodeError, ErrorCode
from slackwater.kafka.wire.schema import Request, Response

log = logging.getLogger(__name__)

_LEAVE_TIMEOUT_MS = 5_000
_LEAVE_RETRIES = 3


class ConsumerCoordinator:
    """The group side of one consumer, on the client's loop.

    ``on_news`` is called when there is a notice for the application, or the member is dead. ``backoff``: the
    delays of repetitions.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: Subscription,
        backoff: Backoff,
        *,
        on_news: Callable[[], None],
        stats: MembershipStats | None = None,
    ) -> None:
        assert config.group_id is not None
        self.group_id = config.group_id
        self._cluster, self._config, self._subscription = cluster, config, subscription
        self._backoff, self._on_news = backoff, on_news
        self._loop = asyncio.get_running_loop()
        settings = MembershipConfig(
            config.group_id,
            config.group_instance_id,
            config.session_timeout_ms,
            config.heartbeat_interval_ms,
            config.max_poll_interval_ms,
            config.request_timeout_ms,
            config.client_rack or None,
            config.subscription_change_max_delay_ms,
        )

        def owned() -> Collection[TopicPartition]:
            return subscription.partitions.keys()

        self.membership: Membership | ConsumerMembership
        if config.group_protocol == CONSUMER_PROTOCOL:
            random_id = str(uuid.UUID(int=cluster.rng.getrandbits(128), version=4))
            self.membership = ConsumerMembership(
                settings, owned, cluster.metadata, backoff.delay_ms,
                member_id=marked_member_id(random_id, config.subscription_owner),
                remote_assignor=config.group_remote_assignor, stats=stats,
            )  # fmt: skip
        else:
            self.membership = Membership(settings, config.assignors(), owned, backoff.delay_ms, stats)
        self._wake = asyncio.Event()
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._exchanges: set[asyncio.Task[None]] = set()
        self._group_task: asyncio.Task[None] | None = None
        self._planning = False
        self._driver: asyncio.Task[None] | None = None
        self.offsets = GroupOffsets(
            cluster, config, subscription, self.membership, backoff,
            now_ms=self.now_ms, touch=self.touch, changed=lambda: self._changed,
        )  # fmt: skip

    def now_ms(self) -> int:
        """The loop's clock, which the membership's times are in."""
        return int(self._loop.time() * 1000)

    def subscribe_at_broker(self, regex: str) -> None:
        """Joins, by the consumer protocol, for the topics whose whole name a regular expression matches."""
        assert isinstance(self.membership, ConsumerMembership)
        self.membership.subscribe_regex(regex, self.now_ms())
        self.touch()

    # -- driving the membership ------------------------------------------------------------------

    def touch(self) -> None:
        """Has the membership polled, since its input has changed."""
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive(), name=f"member of {self.group_id}")
        self._wake.set()

    async def _drive(self) -> None:
        try:
            await self._drive_on()
        except Exception as exc:
            log.exception("group %s: this member has failed", self.group_id)
            error = KafkaError(f"group {self.group_id!r}: this member has failed: {exc!r}")
            error.__cause__ = exc
            self.membership.on_fatal(error)
            self._pulse()
            self._on_news()

    async def _drive_on(self) -> None:
        while True:
            self._wake.clear()
            wake_at = self._step()
            # The application's thread sets the poll deadline without waking the loop, so look again in time.
            wait = min(wake_at - self.now_ms(), self._config.heartbeat_interval_ms)
            try:
                async with asyncio.timeout(max(wait, 0) / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _step(self) -> int:
        member, before = self.membership, self.membership.state
        sends, wake_at = member.poll(self.now_ms())
        if member.coordinator_lost:
            member.coordinator_lost = False
            self._cluster.forget_coordinator(self.group_id)
        for send in sends:
            self._transmit(send)
        if member.departed_member_id:
            self._spawn(self._leave(member.departed_member_id, "poll() was not called in time"))
            member.departed_member_id = ""
        if member.wanted_topics is not None and not self._planning:
            self._planning = True
            self._spawn(self._plan())
        self._pulse()
        if member.notices or member.state is State.DEAD or member.state is not before:
            self._on_news()
        return wake_at

    def _pulse(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        if not changed.done():
            changed.set_result(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except KafkaError as exc:
                log.info("group %s: %s", self.group_id, exc)
            except Exception as exc:
                log.exception("group %s: this member has failed", self.group_id)
                self.membership.on_fatal(KafkaError(f"group {self.group_id!r}: {exc!r}"))
                self.touch()

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # If the task is cancelled before it has begun, the coroutine is never awaited.
        task.add_done_callback(lambda _: work.close())
        return task

    def _transmit(self, send: Send) -> None:
        stale = None
        if send.lane is Lane.GROUP:
            stale, self._group_task = self._group_task, None
        task = self._spawn(self._exchange(send, stale))
        self._exchanges.add(task)
        task.add_done_callback(self._exchanges.discard)
        if send.lane is Lane.GROUP:
            self._group_task = task

    async def _exchange(self, send: Send, stale: asyncio.Task[None] | None) -> None:
        member = self.membership
        try:
            if stale is not None and not stale.done():
                await self._give_up(stale)
            node = await self._cluster.coordinator(self.group_id, self._config.retry_backoff_max_ms)
            purpose = Purpose.GROUP if send.lane is Lane.GROUP else Purpose.GENERAL
            connection = await self._cluster.connection(node, purpose)
            response = await self._ask(connection, send)
        except KafkaError as exc:
            log.debug("group %s: %s", self.group_id, exc)
            if exc.retriable:
                member.on_failure(send, self.now_ms())
            else:
                member.on_fatal(exc, send)
        except EncodeError as exc:
            error = for_code(ErrorCode.UNSUPPORTED_VERSION, f"the broker is too old: {exc}")
            member.on_fatal(error, send)
        else:
            refused = isinstance(response, m.JoinGroupResponse) and response.error_code
            if refused == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                member.group_protocol_type = await self._protocol_type(node)
            member.on_response(send, response, self.now_ms())
        self.touch()

    async def _protocol_type(self, node: int) -> str:
        """The group's protocol type, or that of a share or streams group; "" if the broker does not tell."""
        send = partial(self._cluster.send, node)
        try:
            answer = await send(m.DescribeGroupsRequest(groups=[self.group_id]))
            if any(group.protocol_type for group in answer.groups):
                return answer.groups[0].protocol_type
            other = (await describe_others([self.group_id], send)).get(self.group_id)
        except KafkaError as exc:
            log.debug("group %s: could not be described: %s", self.group_id, exc)
            return ""
        return other.protocol_type if isinstance(other, m.ListGroupsResponseGroup) else ""

    async def _ask(self, connection: Connection, send: Send) -> Response:
        ahead: asyncio.Future[Response] | None = None
        if send.ahead is not None:
            try:
                ahead = connection.send(send.ahead, timeout_ms=send.timeout_ms)
            except (KafkaError, EncodeError) as exc:
                log.debug("group %s: not asked: %s", self.group_id, exc)
        future: asyncio.Future[Response] = connection.send(send.request, timeout_ms=send.timeout_ms)
        if send.ahead is not None:
            answer = None
            if ahead is not None:
                try:
                    answer = await ahead
                except KafkaError as exc:
                    log.debug("group %s: %s", self.group_id, exc)
            self.membership.on_ahead(send, answer)
        return await future

    async def _give_up(self, stale: asyncio.Task[None]) -> None:
        """Ends a parked request: the broker answers nothing on its connection until it is over."""
        done, _ = await asyncio.wait([stale], timeout=0.05)
        if done:
            return
        stale.cancel()
        for node in list(self._cluster.metadata.brokers):
            connection = self._cluster.open_connection(node, Purpose.GROUP)
            if connection is not None and connection.in_flight:
                await connection.close("a parked request was given up")

    async def _plan(self) -> None:
        """Gets the partition counts for the leader's plan."""
        member = self.membership
        failures = 0
        try:
            while (topics := member.wanted_topics) is not None:
                self._cluster.track_also(topics)
                try:
                    await self._cluster.refresh()
                except KafkaError as exc:
                    failures += 1
                    log.info("group %s: no metadata for the assignment: %s", self.group_id, exc)
                    await asyncio.sleep(self._backoff.delay_ms(failures) / 1000)
                    continue
                metadata = self._cluster.metadata
                member.plan(metadata.partition_counts(topics), self.now_ms(), metadata.replica_racks(topics))
        finally:
            self._planning = False
        self.touch()

    def metadata_changed(self) -> None:
        """To be called after each refresh of the metadata."""
        topics, metadata = self.membership.group_topics, self._cluster.metadata
        racks = metadata.replica_racks(topics) if self._config.client_rack else None
        self.membership.metadata_changed(metadata.partition_counts(topics), self.now_ms(), racks)
        self.touch()

    # -- leaving ---------------------------------------------------------------------------------

    async def leave(self, reason: str, *, tell: bool, timeout_ms: int = _LEAVE_TIMEOUT_MS) -> None:
        """Ends the membership; ``tell``: the coordinator is told, instead of its session's end. A static
        member of the consumer protocol says that it will be back, where ``tell`` is False."""
        member_id = self.membership.leave()
        # What still waits for a connection would join the group after its end.
        for task in self._exchanges:
            task.cancel()
        if member_id and (tell or self.membership.returns):
            await self._leave(member_id, reason, timeout_ms, for_good=tell)

    async def _leave(
        self, member_id: str, reason: str, timeout_ms: int = _LEAVE_TIMEOUT_MS, *, for_good: bool = True
    ) -> None:
        member = self.membership
        api: type[Request[Any]] = member.leaves_by

        def make(version: int) -> Request[Any]:
            return member.leave_request(member_id, version, reason, for_good=for_good)

        request: ByVersion[Any] = ByVersion(api, make)
        failures = 0
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    node = await self._cluster.coordinator(self.group_id, timeout_ms)
                    response = await self._cluster.send(node, request, timeout_ms=timeout_ms)
                    members = getattr(response, "members", ())
                    codes = [response.error_code, *(each.error_code for each in members)]
                    code = next((error_code for error_code in codes if error_code), 0)
                    action = action_for(api, code) if code else Action.DONE
                    if action not in (Action.RETRY, Action.FIND_COORDINATOR) or failures == _LEAVE_RETRIES:
                        break
                    if action is Action.FIND_COORDINATOR:
                        self._cluster.forget_coordinator(self.group_id)
                    failures += 1
                    await asyncio.sleep(self._backoff.delay_ms(failures) / 1000)
        except (KafkaError, TimeoutError) as exc:
            log.warning("group %s: could not announce that %s leaves: %s", self.group_id, member_id, exc)
            return
        if action not in (Action.DONE, Action.REJOIN_LOSING, Action.FENCED):
            name = api.__name__.removesuffix("Request")
            log.warning("%s", for_code(code, f"of member {member_id} of group {self.group_id!r}", api=name))

    async def close(self) -> None:
        """Cancels all tasks. The membership does not change."""
        tasks = [task for task in (self._driver, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pulse()

    def require(self) -> None:
        """Raises the error that has ended the membership, if one has."""
        if self.membership.state is State.DEAD:
            raise self.membership.error or IllegalStateError("the member has failed")
