"""``AsyncConsumer``: the same consumer for asyncio code."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from slackwater.extras import ARROW
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.iteration import to_table
from slackwater.kafka.consumer.listener import callback_for, listener_error
from slackwater.kafka.consumer.lookups import Lookups
from slackwater.kafka.consumer.offsets.committer import CommitFuture, Offsets, check_offsets
from slackwater.kafka.consumer.shared_calls import INTERRUPTED_S, ConsumerBase
from slackwater.kafka.consumer.standby import refuse_in_standby
from slackwater.kafka.consumer.wakeups import Waiter, Wakeups
from slackwater.kafka.errors import IllegalStateError
from slackwater.kafka.net.threads import close_later, record_decoder, warn_unclosed
from slackwater.kafka.protocol.membership.notices import NoticeKind
from slackwater.kafka.records import ConsumerRecord, RecordColumns
from slackwater.kafka.structs import (
    OffsetAndMetadata,
    TopicPartition,
    check_partitions,
)

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")


def _waiting(
    look_up: Callable[Concatenate[Lookups, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[AsyncConsumer, P], Coroutine[Any, Any, T]]:
    """The method of the consumer that is one of :class:`Lookups`, which :meth:`wakeup` ends."""

    @functools.wraps(look_up)
    async def call(self: AsyncConsumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._block(look_up(Lookups(self._core), *args, **kwargs))

    return call


class AsyncConsumer(ConsumerBase):
    """Reads topics, alone or as a member of a group, on the running event loop.

    Takes the same keyword arguments as :class:`KafkaConsumer`, or a :class:`ConsumerConfig`, and has the same
    calls: those that wait are coroutines, the others are the same. :meth:`poll` decodes a few KiB on the
    loop, and more on another thread while the loop goes on. Listeners, commit callbacks and interceptors are
    called on the loop; listeners and callbacks may be coroutine functions. One task at a time may poll.
    """

    def __init__(
        self, *topics: str | ConsumerConfig, config: ConsumerConfig | None = None, **configs: Any
    ) -> None:
        whole = [argument for argument in (config, *topics) if isinstance(argument, ConsumerConfig)]
        super().__init__(whole[0] if whole else ConsumerConfig.from_keywords(configs))
        self._topics = [topic for topic in topics if isinstance(topic, str)]
        self._news = asyncio.Event()
        self._wakeups = Wakeups()
        self._polling = False
        self._decoding: asyncio.Future[None] | None = None
        """Under way on another thread. It outlives a cancelled poll, and the next poll waits for it."""
        self._closed = self._closing = self._parting = False

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], *topics: str, **overrides: Any) -> Self:
        """A consumer by Java's dotted names; ``overrides`` are keyword arguments."""
        return cls(*topics, config=ConsumerConfig.from_properties(properties, **overrides))

    async def start(self) -> Self:
        """Finds a broker. Raises :class:`NoBrokersAvailable` naming every address."""
        self._loop = asyncio.get_running_loop()
        core = self._new_core(self._news.set)
        try:
            await core.start()
        except BaseException:
            await core.close(leave=False)
            raise
        self._attach(core)
        if self._topics:
            self.subscribe(self._topics)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(autocommit=kind is None)

    def _nudge(self) -> None:
        self._news.set()

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        if self._closed:
            raise IllegalStateError("the consumer is closed")
        return function(*arguments)

    async def _block(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for work; :meth:`wakeup` ends it."""
        if self._closed:
            work.close()
            raise IllegalStateError("the consumer is closed")
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        with self._wakeups.call(lambda: loop.call_soon_threadsafe(task.cancel)) as waiter:
            if waiter.woken:
                task.cancel()
            try:
                return await task
            except asyncio.CancelledError:
                if task.cancelled():
                    waiter.check()
                task.cancel()
                raise

    def wakeup(self) -> None:
        """As :meth:`KafkaConsumer.wakeup`: from any thread or task."""
        self._wakeups.wakeup()

    def end_poll(self) -> None:
        """As :meth:`KafkaConsumer.end_poll`: from any thread or task."""
        self._wakeups.end_poll()

    # -- what to read ----------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions without taking part in a group; none: reads nothing.

        Raises :class:`IllegalStateError` after :meth:`subscribe`: await :meth:`unsubscribe` first.
        """
        chosen = check_partitions(partitions)
        self._assign(chosen)
        if not chosen:
            self._core.read_nothing()
            self._listener = None

    async def stand_by(
        self,
        topics: Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: Any = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Gets ready to take a static member's place; see :meth:`KafkaConsumer.stand_by`."""
        await self._block(self._standby(topics, pattern, listener, timeout_ms))

    async def unsubscribe(self) -> None:
        """Reads nothing more; see :meth:`KafkaConsumer.unsubscribe`."""
        self._iterator.clear()
        try:
            await self._part(self.config.default_api_timeout_ms)
        finally:
            if not self._closed:  # by the listener
                await self._core.unsubscribe()
                self._listener = None

    # -- reading ---------------------------------------------------------------------------------

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As :meth:`KafkaConsumer.poll`."""
        self._stuck.check(self._core.subscription)
        columns = await self.poll_columns(timeout_ms, max_records)
        records = self._to_records(columns)
        if not update_offsets:
            for tp, rows in columns.items():
                self._go_back(tp, rows.first_offset)
        return records

    async def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> pa.Table:
        """As :meth:`poll_columns`, all partitions in one Arrow table of ``records.ARROW_SCHEMA``.

        Raises NotInstalledError, before it polls, where pyarrow is not installed.
        """
        ARROW.require("poll_arrow()")
        return to_table(await self.poll_columns(timeout_ms, max_records))

    async def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, RecordColumns]:
        """Up to ``max_records`` records as columns, waiting up to ``timeout_ms`` for the first; 0: as
        :meth:`KafkaConsumer.poll`."""
        self._give_back()
        return await self._poll(timeout_ms, max_records)

    async def _poll(self, timeout_ms: float, max_records: int | None) -> dict[TopicPartition, RecordColumns]:
        limit = self._most_records(timeout_ms, max_records)
        if self._polling:
            raise IllegalStateError("another task, or a listener, is polling this consumer")
        core, loop, self._polling = self._core, asyncio.get_running_loop(), True

        def look_again() -> None:
            loop.call_soon_threadsafe(self._news.set)

        try:
            with core.metrics.polling(), self._wakeups.call(look_again, polls=True) as waiter:
                deadline = loop.time() + timeout_ms / 1000
                return await self._poll_until(deadline, limit, waiter)
        finally:
            self._polling = False
            if core.group is not None:
                core.group.membership.caller_leaves(core.group.now_ms())

    async def _poll_until(
        self, deadline: float, limit: int, waiter: Waiter
    ) -> dict[TopicPartition, RecordColumns]:
        core, loop = self._core, asyncio.get_running_loop()
        refuse_in_standby(core.subscription, "poll()")
        if core.committer.auto_commit_due():
            core.committer.auto_commit(core.committer.consumed())
        while True:
            self._news.clear()
            core.raise_if_failed(of_positions=False)
            waiter.check()
            core.caller_polls()
            await self._run_callbacks()
            await self._tell_notices()
            core.raise_if_failed()
            if core.buffer.needs_thread(limit):
                await self._decode_ahead(limit)
                continue
            collected = core.buffer.collect(limit)
            if collected or loop.time() >= deadline or waiter.poll_ended:
                return collected
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _decode_ahead(self, limit: int) -> None:
        """Has what the next ``limit`` records need decoded by another thread, once at a time."""
        if self._decoding is None or self._decoding.done():
            loop = asyncio.get_running_loop()
            self._decoding = loop.run_in_executor(record_decoder(), self._core.buffer.decode_ahead, limit)
        await asyncio.shield(self._decoding)

    async def _tell_notices(self) -> None:
        core = self._core
        while (notice := core.next_notice()) is not None:
            if core.group is not None:
                core.group.membership.caller_leaves(core.group.now_ms())
            try:
                if notice.kind is NoticeKind.REVOKED and self.config.auto_commits:
                    await core.committer.commit_quietly(self.config.request_timeout_ms)
                with core.metrics.listener_call(notice.kind):
                    await self._tell(callback_for(self._listener, notice))
            finally:
                self._iterator.clear_partitions(notice)
                core.notice_handled(notice)
                core.caller_polls()

    async def _tell(self, callback: Callable[[], Any] | None) -> None:
        if callback is None:
            return
        try:
            await _await(callback())
        except Exception as exc:
            error = listener_error(callback, exc)
            if error is exc:
                raise
            raise error from exc

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record. Waits ``consumer_timeout_ms``, then ends the iteration; may be asked again."""
        loop = asyncio.get_running_loop()
        patience_ms = self.config.consumer_timeout_ms
        deadline = loop.time() + (patience_ms / 1000 if patience_ms >= 0 else float("inf"))
        while not self._closed:
            record = self._iterator.next(self._core.subscription, self._go_back)
            if record is not None:
                return record
            left_ms = (deadline - loop.time()) * 1000
            if left_ms <= 0:
                break
            columns = await self._poll(min(left_ms, 1_000), None)
            self._iterator.load(columns, self._core.subscription, self.config, self._interceptors.on_consume)
        raise StopAsyncIteration

    position = _waiting(Lookups.position)

    # -- commits ---------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Stores offsets (default: the positions); see :meth:`KafkaConsumer.commit`."""
        chosen = check_offsets(offsets) if offsets is not None else None
        limit = self._timeout(timeout_ms)
        deadline = asyncio.get_running_loop().time() + limit / 1000
        earlier = self._commits.under_way()
        with self._core.metrics.committing():
            await self._block(self._core.committer.commit(chosen, limit))
        await self._wait_for(earlier, deadline)
        await self._run_callbacks()

    @staticmethod
    async def _wait_for(commits: Collection[CommitFuture], deadline: float) -> None:
        for commit in commits:
            try:
                async with asyncio.timeout_at(deadline):
                    await commit.finished()
            except TimeoutError:
                return

    async def _run_callbacks(self) -> None:
        while (call := self._commits.next_call()) is not None:
            await _await(call())

    @overload
    async def committed(
        self, partition: TopicPartition, metadata: Literal[True], timeout_ms: float | None = None
    ) -> OffsetAndMetadata | None: ...

    @overload
    async def committed(
        self, partition: TopicPartition, metadata: Literal[False] = False, timeout_ms: float | None = None
    ) -> int | None: ...

    @overload
    async def committed(
        self, partition: TopicPartition, metadata: bool, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None: ...

    @overload
    async def committed(
        self, partition: Collection[TopicPartition], metadata: bool = False, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    async def committed(self, partition: Any, metadata: bool = False, timeout_ms: float | None = None) -> Any:
        """See :meth:`Lookups.committed`."""
        return await self._block(Lookups(self._core).committed(partition, metadata, timeout_ms))

    committed_many = _waiting(Lookups.committed_many)
    beginning_offsets = _waiting(Lookups.beginning_offsets)
    end_offsets = _waiting(Lookups.end_offsets)
    offsets_for_times = _waiting(Lookups.offsets_for_times)
    partitions_for_topic = _waiting(Lookups.partitions_for_topic)
    topics = _waiting(Lookups.topics)
    bootstrap = _waiting(Lookups.bootstrap)

    # -- the end ---------------------------------------------------------------------------------

    async def close(
        self, autocommit: bool = True, timeout_ms: float | None = None, leave_group: bool | None = None
    ) -> None:
        """Commits (with auto-commit on), tells the listener, and closes; see :meth:`KafkaConsumer.close`."""
        if self._opened is None or self._closed or self._closing:
            return
        self._closing = True
        loop = asyncio.get_running_loop()
        limit_ms = self.config.request_timeout_ms if timeout_ms is None else max(0, int(timeout_ms))
        deadline = loop.time() + limit_ms / 1000
        try:
            await self._part(limit_ms if autocommit else None)
            await self._wait_for(self._commits.under_way(), deadline)
        except asyncio.CancelledError:
            deadline = min(deadline, loop.time() + INTERRUPTED_S)
            raise
        finally:
            self._closed = True
            leave = self.config.group_instance_id is None if leave_group is None else leave_group
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            await self._opened.close(leave=leave, timeout_ms=left_ms)
            with self._closing_extensions():
                await self._run_callbacks()

    stop = close

    def __del__(self) -> None:
        """See :meth:`KafkaConsumer.__del__`."""
        if getattr(self, "_closed", True) or self._opened is None or self._opened.closed:
            return
        self._closed = True
        warn_unclosed(self)
        close_later(self._opened.close(leave=self.config.group_instance_id is None), self._loop)

    async def _part(self, commit_within_ms: int | None) -> None:
        if self._parting:
            return
        self._parting = True
        try:
            if commit_within_ms is not None and self.config.auto_commits:
                await self._core.committer.commit_quietly(commit_within_ms)
            await self._tell(self._final_call())
        finally:
            self._parting = False


async def _await(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
