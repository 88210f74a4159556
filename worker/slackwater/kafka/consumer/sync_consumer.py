"""``KafkaConsumer``: the consumer for ordinary, blocking code, with kafka-python's names."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from slackwater.extras import ARROW
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig, default_keywords
from slackwater.kafka.consumer.core import ConsumerCore
from slackwater.kafka.consumer.iteration import to_table
from slackwater.kafka.consumer.listener import callback_for, listener_error
from slackwater.kafka.consumer.lookups import Lookups
from slackwater.kafka.consumer.offsets.committer import CommitFuture, Offsets, check_offsets
from slackwater.kafka.consumer.shared_calls import INTERRUPTED_S, ConsumerBase
from slackwater.kafka.consumer.standby import refuse_in_standby
from slackwater.kafka.consumer.wakeups import Waiter, Wakeups
from slackwater.kafka.errors import IllegalStateError
from slackwater.kafka.net.threads import LoopThread, warn_unclosed
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


def _blocking(
    look_up: Callable[Concatenate[Lookups, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[KafkaConsumer, P], T]:
    """The method of the consumer that waits for one of :class:`Lookups`."""

    @functools.wraps(look_up)
    def call(self: KafkaConsumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._block(look_up(Lookups(self._core), *args, **kwargs))

    return call


class KafkaConsumer(ConsumerBase):
    """Reads topics, alone or as a member of a group.

    Takes kafka-python's keyword arguments (:class:`ConsumerConfig` lists them with their defaults);
    ``topics`` are subscribed to at once. The network lives on a thread of its own: heartbeats, fetches and
    metadata do not wait for the application, and records are fetched ahead while it works. Decoding,
    rebalance listeners, commit callbacks and interceptors are on the application's thread, inside
    :meth:`poll`.

    One thread at a time may poll; :meth:`commit`, :meth:`wakeup` and all that only looks may be called
    from any. Raises :class:`NoBrokersAvailable` (naming every address) when no broker answers within
    ``bootstrap_timeout_ms``, and :class:`KafkaConfigurationError` for options that cannot be.
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = default_keywords()

    def __init__(self, *topics: str, **configs: Any) -> None:
        self._open(ConsumerConfig.from_keywords(configs), topics)

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], *topics: str, **overrides: Any) -> Self:
        """A consumer by Java's dotted names; ``overrides`` are keyword arguments.

        Raises :class:`KafkaConfigurationError` for an unknown name, naming the nearest known one.
        """
        made = cls.__new__(cls)
        made._open(ConsumerConfig.from_properties(properties, **overrides), topics)
        return made

    def _open(self, config: ConsumerConfig, topics: Collection[str]) -> None:
        super().__init__(config)
        self._news = threading.Event()
        self._polling = threading.Lock()
        self._polled_by: int | None = None
        self._wakeups = Wakeups()
        self._closed = self._closing = self._parting = False
        self._thread = LoopThread(f"kafka-consumer {config.client_id}")
        try:
            self._attach(self._thread.run(self._start()))
            if topics:
                self.subscribe(topics)
        except BaseException:
            self._closed = True
            self._thread.stop()
            raise

    async def _start(self) -> ConsumerCore:
        core = self._new_core(self._news.set)
        try:
            await core.start()
        except BaseException:
            await core.close(leave=False)
            raise
        return core

    # -- running things on the loop --------------------------------------------------------------

    def _nudge(self) -> None:
        self._news.set()

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        async def run() -> T:
            return function(*arguments)

        if self._closed:
            raise IllegalStateError("the consumer is closed")
        return self._thread.run(run())

    def _block(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for work on the loop; :meth:`wakeup` ends it."""
        if self._closed:
            work.close()
            raise IllegalStateError("the consumer is closed")
        begun: list[asyncio.Task[Any]] = []

        async def run() -> T:
            task = asyncio.current_task()
            assert task is not None
            begun.append(task)
            if waiter.woken:
                work.close()
                raise asyncio.CancelledError
            return await work

        def interrupt() -> None:
            for task in begun:
                self._thread.loop.call_soon_threadsafe(task.cancel)

        with self._wakeups.call(interrupt) as waiter:
            try:
                return self._thread.run(run())
            except concurrent.futures.CancelledError:
                waiter.check()
                raise

    def wakeup(self) -> None:
        """Ends the blocking call under way, or the next, with :class:`WakeupError`. From any thread, or a
        signal handler.

        That is :meth:`poll`, :meth:`commit`, :meth:`position`, :meth:`committed` and what looks things up. A
        commit that is woken may have been stored. Several before the call raises count as one (as in Java).
        """
        self._wakeups.wakeup()

    def end_poll(self) -> None:
        """Has the :meth:`poll` under way, or the next, wait no longer: it returns as if its time were over.
        No other call is ended. From any thread, or a signal handler."""
        self._wakeups.end_poll()

    def _wake_poll(self) -> None:
        # By way of the loop: a signal handler may have interrupted this very Event's wait().
        self._thread.loop.call_soon_threadsafe(self._news.set)

    # -- what to read ----------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions without taking part in a group; replaces what was assigned before. None: as
        :meth:`unsubscribe`. Raises :class:`IllegalStateError` after :meth:`subscribe`."""
        chosen = check_partitions(partitions)
        if chosen:
            self._assign(chosen)
        else:
            self.unsubscribe()

    def stand_by(
        self,
        topics: Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: Any = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Gets ready to take a static member's place: brokers connected and authenticated, metadata and
        the group's coordinator known, connections to it open and kept so. Joins and fetches nothing. Then
        :meth:`prefetch` and :meth:`take_over`, before which there is nothing to poll; :meth:`unsubscribe`
        ends the standby.

        Topics, ``pattern`` and ``listener`` as for :meth:`subscribe`. Waits ``timeout_ms`` at most (default:
        ``default_api_timeout_ms``), then raises :class:`KafkaTimeoutError` with the last reason; what asking
        again does not mend is raised at once. Raises :class:`IllegalStateError` without ``group_id`` or
        ``group_instance_id``, and for a consumer that reads something already.
        """
        self._block(self._standby(topics, pattern, listener, timeout_ms))

    def unsubscribe(self) -> None:
        """Reads nothing more: commits (with auto-commit on), tells the listener, and forgets the assignment.

        A dynamic member leaves the group; a static one stays for its session.
        """
        self._iterator.clear()
        if self._closed:
            raise IllegalStateError("the consumer is closed")
        try:
            self._part(self.config.default_api_timeout_ms)
        finally:
            if not self._closed:  # by the listener
                self._thread.run(self._core.unsubscribe())
                self._listener = None

    # -- reading ---------------------------------------------------------------------------------

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to ``max_records`` records (default ``max_poll_records``); waits ``timeout_ms`` for the first.
        0: serves the group for ``timeout_ms`` and hands nothing over, while the client fetches ahead.

        ``update_offsets=False`` leaves the positions where they were. After an iteration that was broken off
        it goes on behind the last record that was given. Raises :class:`FencedInstanceIdError`
        as soon as another consumer has this one's id; errors of the group; :class:`CorruptRecordError`;
        :class:`RecordDeserializationError`, each time until the position is moved behind the record;
        :class:`NoOffsetForPartitionError`, :class:`OffsetOutOfRangeNoResetError` and
        :class:`LogTruncationError`, each time until the position is set or the partition is paused;
        :class:`RebalanceListenerError` once for a listener that raised; :class:`WakeupError`.
        """
        with self._poll_turn():
            self._stuck.check(self._core.subscription)
            self._give_back()
            columns = self._poll(timeout_ms, max_records)
            records = self._to_records(columns)
            if not update_offsets:
                for tp, rows in columns.items():
                    self._go_back(tp, rows.first_offset)
            return records

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, RecordColumns]:
        """As :meth:`poll`, with each partition's records as columns. Deserializers and interceptors do not
        apply."""
        with self._poll_turn():
            self._give_back()
            return self._poll(timeout_ms, max_records)

    def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> pa.Table:
        """As :meth:`poll_columns`, all partitions in one Arrow table of ``records.ARROW_SCHEMA``.

        Raises NotInstalledError, before it polls, where pyarrow is not installed.
        """
        ARROW.require("poll_arrow()")
        return to_table(self.poll_columns(timeout_ms, max_records))

    @contextmanager
    def _poll_turn(self) -> Iterator[None]:
        if not self._polling.acquire(blocking=False):
            raise IllegalStateError("another thread, or a listener, is polling this consumer")
        self._polled_by = threading.get_ident()
        try:
            with self._core.metrics.polling():
                yield
        finally:
            self._caller_leaves()
            self._polled_by = None
            self._polling.release()

    def _poll(self, timeout_ms: float, max_records: int | None) -> dict[TopicPartition, RecordColumns]:
        limit = self._most_records(timeout_ms, max_records)
        with self._wakeups.call(self._wake_poll, polls=True) as waiter:
            return self._poll_until(time.monotonic() + timeout_ms / 1000, limit, waiter)

    def _poll_until(self, deadline: float, limit: int, waiter: Waiter) -> dict[TopicPartition, RecordColumns]:
        core = self._core
        refuse_in_standby(core.subscription, "poll()")
        if core.committer.auto_commit_due():
            # What the application got from the poll before counts as done, now that it polls again.
            self._call(core.committer.auto_commit, core.committer.consumed())
        while True:
            self._news.clear()
            core.raise_if_failed(of_positions=False)
            waiter.check()
            self._caller_polls()
            self._run_callbacks()
            self._tell_notices()
            core.raise_if_failed()
            collected = core.buffer.collect(limit)
            left = deadline - time.monotonic()
            if collected or left <= 0 or waiter.poll_ended:
                return collected
            self._news.wait(min(left, 3_600.0))

    def _caller_polls(self) -> None:
        group = self._core.group
        if group is not None:
            if group.membership.poll_expired:
                self._call(self._core.caller_polls)
            else:
                group.membership.caller_polls(group.now_ms())

    def _caller_leaves(self) -> None:
        group = self._core.group
        if group is not None:
            group.membership.caller_leaves(group.now_ms())

    def _tell_notices(self) -> None:
        """Runs the listener here, while heartbeats go on there."""
        while self._core.notices:
            notice = self._call(self._core.next_notice)
            if notice is None:
                return
            self._caller_leaves()
            try:
                if notice.kind is NoticeKind.REVOKED:
                    self._auto_commit_now(self.config.request_timeout_ms)
                with self._core.metrics.listener_call(notice.kind):
                    self._tell(callback_for(self._listener, notice))
            finally:
                # Also when the listener raises: the partitions are revoked either way.
                self._iterator.clear_partitions(notice)
                self._call(self._core.notice_handled, notice)
                self._caller_polls()

    def _tell(self, callback: Callable[[], Any] | None) -> None:
        if callback is None:
            return
        try:
            result = callback()
            if inspect.isawaitable(result):
                asyncio.run(_finish(result))
        except Exception as exc:
            error = listener_error(callback, exc)
            if error is exc:
                raise
            raise error from exc

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record. Waits ``consumer_timeout_ms``, then ends the iteration; may be called again."""
        patience_ms = self.config.consumer_timeout_ms
        deadline = time.monotonic() + (patience_ms / 1000 if patience_ms >= 0 else float("inf"))
        while not self._closed:
            record = self._iterator.next(self._core.subscription, self._go_back)
            if record is not None:
                return record
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0:
                break
            with self._poll_turn():
                columns = self._poll(min(left_ms, 1_000), None)
                self._iterator.load(
                    columns, self._core.subscription, self.config, self._interceptors.on_consume
                )
        raise StopIteration

    # -- commits ---------------------------------------------------------------------------------

    def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Stores offsets (default: the positions) and waits until they are. May be called from any thread.

        An offset without a leader epoch is stored with that of the record before it, if this consumer has
        read it (KIP-320): the next owner of the partition then notices a log that was cut off meanwhile.

        The callbacks of asynchronous commits before it are called by then (as in Java), unless another
        thread is polling. Raises :class:`CommitFailedError` when the group has moved on,
        :class:`RebalanceInProgressError`, :class:`FencedInstanceIdError`, :class:`KafkaTimeoutError`, and
        :class:`TopicRecreatedError` for offsets of a deleted topic whose name another one has now; the
        others are stored.
        """
        chosen = check_offsets(offsets) if offsets is not None else None
        limit = self._timeout(timeout_ms)
        deadline = time.monotonic() + limit / 1000
        earlier = self._commits.under_way()
        with self._core.metrics.committing():
            self._block(self._core.committer.commit(chosen, limit))
        self._wait_for(earlier, deadline)
        if self._polled_by in (None, threading.get_ident()):
            self._run_callbacks()

    @staticmethod
    def _wait_for(commits: Collection[CommitFuture], deadline: float) -> None:
        for commit in commits:
            commit.wait(max(0.0, deadline - time.monotonic()))

    def _run_callbacks(self) -> None:
        while (call := self._commits.next_call()) is not None:
            call()

    def _auto_commit_now(self, timeout_ms: int) -> None:
        if self.config.auto_commits:
            self._thread.run(self._core.committer.commit_quietly(timeout_ms))

    # -- questions to the cluster ----------------------------------------------------------------

    position = _blocking(Lookups.position)

    @overload
    def committed(
        self, partition: TopicPartition, metadata: Literal[True], timeout_ms: float | None = None
    ) -> OffsetAndMetadata | None: ...

    @overload
    def committed(
        self, partition: TopicPartition, metadata: Literal[False] = False, timeout_ms: float | None = None
    ) -> int | None: ...

    @overload
    def committed(
        self, partition: TopicPartition, metadata: bool, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None: ...

    @overload
    def committed(
        self, partition: Collection[TopicPartition], metadata: bool = False, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def committed(self, partition: Any, metadata: bool = False, timeout_ms: float | None = None) -> Any:
        """See :meth:`Lookups.committed`."""
        return self._block(Lookups(self._core).committed(partition, metadata, timeout_ms))

    committed_many = _blocking(Lookups.committed_many)
    beginning_offsets = _blocking(Lookups.beginning_offsets)
    end_offsets = _blocking(Lookups.end_offsets)
    offsets_for_times = _blocking(Lookups.offsets_for_times)
    partitions_for_topic = _blocking(Lookups.partitions_for_topic)
    topics = _blocking(Lookups.topics)
    bootstrap = _blocking(Lookups.bootstrap)

    # -- the end ---------------------------------------------------------------------------------

    def close(
        self, autocommit: bool = True, timeout_ms: float | None = None, leave_group: bool | None = None
    ) -> None:
        """Commits (with auto-commit on), tells the listener that all is revoked, and closes.

        ``leave_group=None``: a dynamic member leaves the group, a static one does not, so that it can
        come back within its session without a rebalance. ``True``, ``False``: always, never. All within
        ``timeout_ms`` (default: the request timeout), broker or no broker, but for what the listener takes;
        once interrupted (Ctrl-C), within a second.
        May be called again.
        """
        if self._opened is None or self._closed or self._closing:
            return
        self._closing = True
        limit_ms = self.config.request_timeout_ms if timeout_ms is None else max(0, int(timeout_ms))
        deadline = time.monotonic() + limit_ms / 1000
        try:
            self._part(limit_ms if autocommit else None)
            self._wait_for(self._commits.under_way(), deadline)
        except (KeyboardInterrupt, SystemExit):
            deadline = min(deadline, time.monotonic() + INTERRUPTED_S)
            raise
        finally:
            self._closed = True
            leave = self.config.group_instance_id is None if leave_group is None else leave_group
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            try:
                self._thread.run(self._opened.close(leave=leave, timeout_ms=left_ms))
            finally:
                self._thread.stop()
            with self._closing_extensions():
                self._run_callbacks()

    def __del__(self) -> None:
        """A consumer that was dropped without :meth:`close` stops being a member; nothing is committed."""
        if getattr(self, "_closed", True) or self._opened is None:
            return
        self._closed = True
        warn_unclosed(self)
        self._thread.stop_after(self._opened.close(leave=self.config.group_instance_id is None))

    def _part(self, commit_within_ms: int | None) -> None:
        """Commits, and tells the listener that all partitions go, before they do; once, whatever it calls."""
        if self._parting:
            return
        self._parting = True
        try:
            if commit_within_ms is not None:
                self._auto_commit_now(commit_within_ms)
            self._tell(self._final_call())
        finally:
            self._parting = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(autocommit=kind is None)


async def _finish(work: Awaitable[Any]) -> None:
    await work
