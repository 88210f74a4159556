"""Drives a :class:`Membership` over the network: its requests, its timers, commits and committed offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import count
from typing import Any, TypeVar

from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    for_code,
)
from slackwater.kafka.net import ByVersion, Cluster, Connection, Purpose
from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.membership import Lane, Membership, MembershipConfig, Send, State
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import EncodeError, ErrorCode
from slackwater.kafka.wire.schema import Request, Response

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)
_LEAVE_TIMEOUT_MS = 5_000
Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Group:
    """The group side of one consumer. Lives on the client's loop; ``on_news`` is called when the
    application should look: there is something to tell it, or the member is dead."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: Subscription,
        *,
        on_news: Callable[[], None],
    ) -> None:
        assert config.group_id is not None
        self.group_id = config.group_id
        self._cluster, self._config, self._subscription = cluster, config, subscription
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        settings = MembershipConfig(
            config.group_id,
            config.group_instance_id,
            config.session_timeout_ms,
            config.heartbeat_interval_ms,
            config.max_poll_interval_ms,
            config.request_timeout_ms,
            config.retry_backoff_ms,
            config.retry_backoff_max_ms,
            config.client_rack or None,
        )
        self.membership = Membership(settings, config.assignors(), lambda: subscription.partitions.keys())
        self._wake = asyncio.Event()
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._group_task: asyncio.Task[None] | None = None
        self._planning = False
        self._commit_numbers = count()
        self._accepted: dict[TopicPartition, int] = {}
        self._driver: asyncio.Task[None] | None = None

    def now_ms(self) -> int:
        """The loop's clock, which the membership's times are in."""
        return int(self._loop.time() * 1000)

    # -- driving the membership ------------------------------------------------------------------

    def touch(self) -> None:
        """Has the membership polled: something was put into it."""
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive(), name=f"member of {self.group_id}")
        self._wake.set()

    async def _drive(self) -> None:
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

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except KafkaError as exc:
                log.info("group %s: %s", self.group_id, exc)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _transmit(self, send: Send) -> None:
        stale = None
        if send.lane is Lane.GROUP:
            stale, self._group_task = self._group_task, None
        task = self._spawn(self._exchange(send, stale))
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
                member.on_fatal(exc)
        except EncodeError as exc:
            member.on_fatal(for_code(ErrorCode.UNSUPPORTED_VERSION, f"the broker is too old for this: {exc}"))
        else:
            member.on_response(send, response, self.now_ms())
        self.touch()

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
        """Ends a request that is parked: behind it, the broker would answer nothing on its connection."""
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
                    await asyncio.sleep(self._backoff_ms(failures) / 1000)
                    continue
                member.plan(self._cluster.metadata.partition_counts(topics), self.now_ms())
        finally:
            self._planning = False
        self.touch()

    def metadata_changed(self) -> None:
        """To be called after each refresh of the metadata."""
        topics = self.membership.group_topics
        self.membership.metadata_changed(self._cluster.metadata.partition_counts(topics), self.now_ms())
        self.touch()

    def _backoff_ms(self, failures: int) -> int:
        return min(self._config.retry_backoff_ms << min(failures - 1, 16), self._config.retry_backoff_max_ms)

    # -- asking the coordinator ------------------------------------------------------------------

    async def _coordinate(self, request: Request[R] | ByVersion[R], deadline_ms: int, cap: int) -> R:
        """Sends to the coordinator once, within the deadline; a lost connection forgets the coordinator."""
        left = deadline_ms - self.now_ms()
        if left <= 0:
            raise KafkaTimeoutError(f"group {self.group_id!r}: the coordinator did not answer in time")
        node = await self._cluster.coordinator(self.group_id, left)
        timeout_ms = max(1, min(self._config.request_timeout_ms, deadline_ms - self.now_ms()))
        try:
            return await self._cluster.send(node, request, timeout_ms=timeout_ms, version_cap=cap)
        except KafkaError as exc:
            if exc.retriable:
                self._cluster.forget_coordinator(self.group_id)
            raise

    async def _pause(self, failures: int, deadline_ms: int, why: KafkaError) -> None:
        delay = self._backoff_ms(failures)
        if self.now_ms() + delay >= deadline_ms:
            raise KafkaTimeoutError(
                f"group {self.group_id!r}: gave up after the timeout; last: {why}"
            ) from why
        await asyncio.sleep(delay / 1000)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets; ``None`` where there is none. Raises what is not retriable, or a timeout."""
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        deadline, failures = self.now_ms() + timeout_ms, 0
        while missing := [tp for tp in partitions if tp not in found]:
            error: KafkaError | None = None
            try:
                request = self._offset_fetch(missing)
                response = await self._coordinate(request, deadline, o.FETCH_VERSION_CAP)
            except KafkaError as exc:
                if not exc.retriable or self.now_ms() >= deadline:
                    raise
                error = exc
            else:
                code, offsets, errors = o.read_offset_fetch(response)
                found.update(offsets)
                for one in [code, *errors.values()]:
                    if one:
                        error = self._offset_fetch_error(one)
            if error is not None:
                failures += 1
                await self._pause(failures, deadline, error)
        return found

    def _offset_fetch(self, partitions: list[TopicPartition]) -> ByVersion[m.OffsetFetchResponse]:
        return ByVersion(
            m.OffsetFetchRequest,
            lambda version: o.offset_fetch_request(self.group_id, partitions, version),
        )

    def _offset_fetch_error(self, code: int) -> KafkaError:
        """The error to retry after; raises one that is fatal."""
        error = for_code(code, f"committed offsets of group {self.group_id!r}")
        action = action_for(m.OffsetFetchRequest, code)
        if action is Action.FATAL:
            raise error
        if action is Action.FIND_COORDINATOR:
            self._cluster.forget_coordinator(self.group_id)
        return error

    # -- commits ---------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, timeout_ms: int) -> None:
        """Stores offsets, repeating what is worth it until the time is over.

        While the group rebalances, a cooperative member keeps its partitions, so a commit for those is
        repeated in the new generation. Raises :class:`CommitFailedError` when the group has moved on,
        :class:`RebalanceInProgressError`, :class:`FencedInstanceIdError`, :class:`KafkaTimeoutError`.
        """
        deadline, failures = self.now_ms() + timeout_ms, 0
        number = next(self._commit_numbers)
        while offsets := self._not_superseded(offsets, number):
            self._may_commit()
            identity = self.membership.identity if self._subscription.by_group else (-1, "")
            request = self._commit_request(offsets, identity)
            try:
                response = await self._coordinate(request, deadline, o.COMMIT_VERSION_CAP)
            except KafkaError as exc:
                if not exc.retriable or self.now_ms() >= deadline:
                    raise
                failures += 1
                await self._pause(failures, deadline, exc)
                continue
            errors = o.commit_errors(response)
            if not errors:
                self.membership.commit_accepted(self.now_ms())
                self._accepted.update(dict.fromkeys(offsets, number))
                return
            failures += 1
            await self._mend(offsets, errors, identity, failures, deadline)

    def _not_superseded(self, offsets: Offsets, number: int) -> Offsets:
        """Without the partitions of which a later commit was stored while this one was being repeated."""
        return {tp: one for tp, one in offsets.items() if self._accepted.get(tp, -1) < number}

    def _may_commit(self) -> None:
        member = self.membership
        if not self._subscription.by_group:
            return
        if member.state is State.DEAD and member.error is not None:
            raise member.error
        if not member.in_group:
            raise CommitFailedError

    def _commit_request(self, offsets: Offsets, identity: tuple[int, str]) -> m.OffsetCommitRequest:
        instance = self._config.group_instance_id if self._subscription.by_group else None
        return o.commit_request(
            self.group_id, offsets, generation=identity[0], member_id=identity[1], instance_id=instance
        )

    async def _mend(
        self,
        offsets: Offsets,
        errors: dict[TopicPartition, int],
        identity: tuple[int, str],
        failures: int,
        deadline: int,
    ) -> None:
        """Returns when the commit should be repeated; raises when it should not."""
        tp, code = next(iter(errors.items()))
        action = action_for(m.OffsetCommitRequest, code)
        error = for_code(code, f"commit of {tp} in group {self.group_id!r}")
        member = self.membership
        if action in (Action.RETRY, Action.FIND_COORDINATOR, Action.REFRESH_METADATA):
            if action is Action.FIND_COORDINATOR:
                self._cluster.forget_coordinator(self.group_id)
            await self._pause(failures, deadline, error)
            return
        if not self._subscription.by_group:
            raise (
                CommitFailedError(
                    f"group {self.group_id!r} has members, so with assign() nothing can be committed: {error}"
                )
                if action is Action.COMMIT_FAILED
                else error
            )
        kept = member.cooperative and all(one in self._subscription.partitions for one in offsets)
        if action in (Action.REJOIN_KEEPING_ID, Action.COMMIT_FAILED) and kept and member.in_group:
            if member.identity != identity:
                return
            if action is Action.REJOIN_KEEPING_ID:
                member.commit_refused_by_rebalance(self.now_ms())
                self.touch()
            if action is Action.REJOIN_KEEPING_ID or member.join_is_under_way:
                await self._next_generation(identity, deadline, error)
                return
        member.on_commit_error(code, identity, self.now_ms())
        self.touch()
        if action is Action.FENCED:
            raise member.error or error
        if action is Action.REJOIN_KEEPING_ID:
            raise RebalanceInProgressError(
                f"group {self.group_id!r}: call poll() to take part, then commit again"
            )
        if action is Action.COMMIT_FAILED:
            raise CommitFailedError from error
        raise error

    async def _next_generation(self, identity: tuple[int, str], deadline: int, error: KafkaError) -> None:
        """Waits out a rebalance: until this member syncs, is out of the group, or the time is over."""
        member = self.membership
        waits = (State.JOINING, State.SYNCING, State.PREPARING, State.STABLE)
        member_was = member.state
        while member.in_group and member.state in waits:
            if member.state is State.STABLE and (
                member.identity != identity or member_was is not State.STABLE
            ):
                return
            left = deadline - self.now_ms()
            if left <= 0:
                raise error
            # A heartbeat will tell of the rebalance; do not wait for it longer than a back-off.
            limit = min(left, self._config.retry_backoff_max_ms if member.state is State.STABLE else left)
            try:
                async with asyncio.timeout(limit / 1000):
                    await asyncio.shield(self._changed)
            except TimeoutError:
                if member.state is State.STABLE:
                    return

    # -- leaving ---------------------------------------------------------------------------------

    async def leave(self, reason: str, *, tell: bool, timeout_ms: int = _LEAVE_TIMEOUT_MS) -> None:
        """Is no longer a member; ``tell``: the coordinator hears of it at once, not by the session's end."""
        member_id = self.membership.leave()
        if self._group_task is not None:
            self._group_task.cancel()
        if tell and member_id:
            await self._leave(member_id, reason, timeout_ms)

    async def _leave(self, member_id: str, reason: str, timeout_ms: int = _LEAVE_TIMEOUT_MS) -> None:
        member = self.membership
        request = ByVersion(
            m.LeaveGroupRequest, lambda version: member.leave_request(member_id, version, reason)
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                node = await self._cluster.coordinator(self.group_id, timeout_ms)
                response = await self._cluster.send(node, request, timeout_ms=timeout_ms)
        except (KafkaError, TimeoutError) as exc:
            log.warning("group %s: could not say that %s leaves: %s", self.group_id, member_id, exc)
            return
        codes = [response.error_code, *(one.error_code for one in response.members)]
        if any(codes):
            log.info("group %s: leaving: %s", self.group_id, [ErrorCode.name_of(code) for code in codes])

    async def close(self) -> None:
        """Ends all that runs. Membership is not touched."""
        tasks = [task for task in (self._driver, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pulse()

    def require(self) -> None:
        """Raises what has ended the membership for good."""
        if self.membership.state is State.DEAD:
            raise self.membership.error or IllegalStateError("the member is dead")
