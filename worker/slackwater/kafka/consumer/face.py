"""``KafkaConsumer``: the consumer for ordinary, blocking code, with kafka-python's names."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.consumer.core import Core
from slackwater.kafka.consumer.iteration import RecordIterator, as_records, to_table
from slackwater.kafka.consumer.listener import callback_for
from slackwater.kafka.consumer.lookups import Lookups, check_offsets, check_partitions
from slackwater.kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError, WakeupError
from slackwater.kafka.net.loop_thread import LoopThread
from slackwater.kafka.protocol.subscription import EARLIEST, LATEST
from slackwater.kafka.records import ConsumerRecord, RecordColumns
from slackwater.kafka.structs import (
    ConsumerGroupMetadata,
    MembershipSnapshot,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class KafkaConsumer:
    """Reads topics, alone or as a member of a group.

    Takes kafka-python's keyword arguments (:class:`ConsumerConfig` lists them with their defaults);
    ``topics`` are subscribed to at once. The network lives on a thread of its own: heartbeats, fetches and
    metadata do not wait for the application, and records are fetched ahead while it works. Decoding and
    rebalance listeners are on the application's thread, inside :meth:`poll`.

    One thread at a time may poll; :meth:`commit`, :meth:`wakeup` and all that only looks may be called
    from any. Raises :class:`NoBrokersAvailable` (naming every address) when no broker answers within
    ``bootstrap_timeout_ms``, and :class:`KafkaConfigurationError` for options that cannot be.
    """

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
        self.config = config
        self._news = threading.Event()
        self._polling = threading.Lock()
        self._woken = False
        self._closed = False
        self._callbacks: deque[Callable[[], Any]] = deque()
        self._iterator = RecordIterator()
        self._thread = LoopThread(f"kafka-consumer {config.client_id}")
        try:
            self._core = self._thread.run(self._start())
            if topics:
                self.subscribe(topics)
        except BaseException:
            self._closed = True
            self._thread.stop()
            raise

    async def _start(self) -> Core:
        core = Core(self.config, self._news.set)
        try:
            await core.start()
        except BaseException:
            await core.close(leave=False)
            raise
        return core

    # -- running things on the loop --------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        if self._closed:
            work.close()
            raise IllegalStateError("the consumer is closed")
        return self._thread.run(work, timeout_s)

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        async def run() -> T:
            return function(*arguments)

        return self._run(run())

    def _lookups(self) -> Lookups:
        return Lookups(self._core)

    def _timeout(self, timeout_ms: float | None) -> int:
        return self.config.default_api_timeout_ms if timeout_ms is None else max(1, int(timeout_ms))

    # -- what to read ----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: Any = None,
    ) -> None:
        """Reads these topics, or those that ``pattern`` matches, as a member of the group.

        Joining starts at once. ``listener``: a :class:`ConsumerRebalanceListener`. Replaces what was
        subscribed to before. Raises :class:`IllegalStateError` after :meth:`assign`, or without a group_id.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe() takes either topics or a pattern")
        self._iterator.clear()
        self._call(self._core.subscribe, names, pattern, listener)

    def unsubscribe(self) -> None:
        """Reads nothing more. A dynamic member leaves the group; a static one stays for its session."""
        self._iterator.clear()
        self._auto_commit_now(self.config.default_api_timeout_ms)
        self._run(self._core.unsubscribe())

    def subscription(self) -> set[str] | None:
        """The topics subscribed to (by now, with a pattern), or ``None``."""
        subscription = self._core.subscription
        return set(subscription.topics) if subscription.by_group else None

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions without taking part in a group; replaces what was assigned before."""
        self._iterator.clear()
        self._call(self._core.assign, check_partitions(partitions))

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer has."""
        return set(self._core.subscription.partitions)

    # -- reading ---------------------------------------------------------------------------------

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to ``max_records`` records (default ``max_poll_records``); waits ``timeout_ms`` for the first.

        ``update_offsets=False`` leaves the positions where they were. Raises :class:`FencedInstanceIdError`
        as soon as another consumer has this one's id; errors of the group; :class:`CorruptRecordError`.
        """
        columns = self._poll(timeout_ms, max_records)
        if not update_offsets:
            for tp, rows in columns.items():
                self._move_position(tp, rows.first_offset)
        return {tp: as_records(tp, rows, self.config) for tp, rows in columns.items()}

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, RecordColumns]:
        """As :meth:`poll`, with each partition's records as columns. Deserializers do not apply."""
        return self._poll(timeout_ms, max_records)

    def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> pa.Table:
        """As :meth:`poll_columns`, all partitions in one Arrow table of ``records.ARROW_SCHEMA``."""
        return to_table(self._poll(timeout_ms, max_records))

    def _poll(self, timeout_ms: float, max_records: int | None) -> dict[TopicPartition, RecordColumns]:
        limit = self.config.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise ValueError(f"max_records must be at least 1, not {limit}")
        if timeout_ms < 0:
            raise ValueError(f"timeout_ms must not be negative, but is {timeout_ms}")
        if not self._polling.acquire(blocking=False):
            raise IllegalStateError("another thread, or a listener, is polling this consumer")
        try:
            return self._poll_until(time.monotonic() + timeout_ms / 1000, limit)
        finally:
            self._caller_leaves()
            self._polling.release()

    def _poll_until(self, deadline: float, limit: int) -> dict[TopicPartition, RecordColumns]:
        core = self._core
        self._auto_commit_if_due()
        while True:
            self._news.clear()
            core.raise_if_failed()
            if self._woken:
                self._woken = False
                raise WakeupError("wakeup() was called")
            self._caller_polls()
            self._run_callbacks()
            self._tell_notices()
            found = core.buffer.collect(limit)
            if found:
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                return found
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
        group = self._core.group
        while group is not None and group.membership.notices:
            notice = self._call(self._core.next_notice)
            if notice is None:
                return
            callback = callback_for(self._core.listener, notice)
            self._caller_leaves()
            try:
                if notice.kind.value == "revoked":
                    self._auto_commit_now(self.config.request_timeout_ms)
                if callback is not None:
                    callback()
            finally:
                # Also when the listener raises: the partitions are gone whatever it thinks of it.
                self._iterator.clear_partitions(notice)
                self._call(self._core.told, notice)
                self._caller_polls()

    def _move_position(self, tp: TopicPartition, offset: int) -> None:
        state = self._core.subscription.partitions.get(tp)
        if state is not None:
            self._call(self._seek, tp, offset)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        if self._closed:
            raise StopIteration
        patience_ms = self.config.consumer_timeout_ms
        deadline = time.monotonic() + (patience_ms / 1000 if patience_ms >= 0 else float("inf"))
        while (record := self._iterator.next(self._core.subscription, self._reposition)) is None:
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0:
                raise StopIteration
            self._iterator.load(self._poll(min(left_ms, 1_000), None), self._core.subscription, self.config)
        return record

    def _reposition(self, tp: TopicPartition, offset: int) -> None:
        self._call(self._seek, tp, offset)

    def wakeup(self) -> None:
        """Makes the :meth:`poll` under way, or the next one, raise :class:`WakeupError`. From any thread."""
        self._woken = True
        self._news.set()

    # -- positions -------------------------------------------------------------------------------

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        self._core.subscription.seek(tp, offset)
        self._core.jumped()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Reads on from ``offset``. Raises :class:`IllegalStateError` if the partition is not assigned."""
        check_partitions([partition])
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ValueError(f"offset must be an integer of at least 0, not {offset!r}")
        self._iterator.clear_partition(partition)
        self._call(self._seek, partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Reads on from the first record; without partitions: of all."""
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Reads on from the next record to come; without partitions: of all."""
        self._reset(partitions, LATEST)

    def _reset(self, partitions: Collection[TopicPartition], timestamp: int) -> None:
        chosen = check_partitions(partitions) or list(self._core.subscription.partitions)
        for tp in chosen:
            self._iterator.clear_partition(tp)

        def reset() -> None:
            for tp in chosen:
                self._core.subscription.get(tp)
            for tp in chosen:
                self._core.subscription.reset(tp, timestamp)
            self._core.jumped()

        self._call(reset)

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record to be read; waits until it is known."""
        check_partitions([partition])
        deadline = time.monotonic() + self._timeout(timeout_ms) / 1000
        while True:
            self._news.clear()
            self._core.raise_if_failed()
            state = self._core.subscription.get(partition)
            if state.position is not None and state.reset_to is None:
                return state.position
            left = deadline - time.monotonic()
            if left <= 0:
                raise KafkaTimeoutError(f"no position of {partition} in time")
            self._news.wait(left)

    def highwater(self, partition: TopicPartition) -> int | None:
        """The end of the partition as of its last fetch, or ``None`` before the first. Asks nobody."""
        check_partitions([partition])
        return self._core.subscription.get(partition).highwater

    def pause(self, *partitions: TopicPartition) -> None:
        """Has :meth:`poll` give nothing of these, until :meth:`resume`. What was fetched is kept."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undoes :meth:`pause`."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Collection[TopicPartition], paused: bool) -> None:
        chosen = check_partitions(partitions)

        def apply() -> None:
            states = [self._core.subscription.get(tp) for tp in chosen]
            for state in states:
                state.paused = paused
            self._core.fetcher.wake()

        self._call(apply)
        self._news.set()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {tp for tp, state in self._core.subscription.partitions.items() if state.paused}

    # -- commits ---------------------------------------------------------------------------------

    def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Stores offsets (default: the positions) and waits until they are. May be called from any thread.

        Raises :class:`CommitFailedError` when the group has moved on, :class:`RebalanceInProgressError`,
        :class:`FencedInstanceIdError`, :class:`KafkaTimeoutError`.
        """
        chosen = check_offsets(offsets) if offsets is not None else None
        self._run(self._core.commit(chosen, self._timeout(timeout_ms)))

    def commit_async(
        self, offsets: Offsets | None = None, callback: Callable[[Offsets, Any], Any] | None = None
    ) -> Future[None]:
        """Starts a commit. ``callback(offsets, error or None)`` runs inside :meth:`poll`, in commit order."""
        if self.config.group_id is None:
            raise IllegalStateError("commit_async(): this needs a group_id")
        chosen = check_offsets(offsets) if offsets is not None else self._core.consumed()
        future = self._thread.submit(self._core.commit(chosen, self.config.default_api_timeout_ms))
        call = callback or self.config.default_offset_commit_callback
        if call is not None:
            future.add_done_callback(lambda done: self._queue_callback(call, chosen, done))
        return future

    def _queue_callback(self, call: Callable[..., Any], offsets: Offsets, done: Future[None]) -> None:
        error = KafkaError("cancelled") if done.cancelled() else done.exception()
        self._callbacks.append(lambda: call(offsets, error))
        self._news.set()

    def _run_callbacks(self) -> None:
        while self._callbacks:
            self._callbacks.popleft()()

    def _auto_commit_if_due(self) -> None:
        # What the application got from the poll before counts as done, now that it polls again.
        if self._core.auto_commit_due():
            self._call(self._core.auto_commit, self._core.consumed())

    def _auto_commit_now(self, timeout_ms: int) -> None:
        if self.config.enable_auto_commit and self.config.group_id is not None:
            self._run(self._core.commit_quietly(timeout_ms))

    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None:
        """The group's committed offset of a partition, with its metadata if asked for; ``None``: none."""
        check_partitions([partition])
        found = self.committed_many([partition], timeout_ms)[partition]
        return found if metadata or found is None else found.offset

    def committed_many(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of several partitions in one request."""
        return self._run(self._lookups().committed(check_partitions(partitions), self._timeout(timeout_ms)))

    # -- looking things up -----------------------------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._run(
            self._lookups().ends(check_partitions(partitions), EARLIEST, self._timeout(timeout_ms))
        )

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the next record to come, of each partition."""
        return self._run(
            self._lookups().ends(check_partitions(partitions), LATEST, self._timeout(timeout_ms))
        )

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since the epoch); ``None``: none is that late."""
        return self._run(self._lookups().by_time(timestamps, self._timeout(timeout_ms)))

    def partitions_for_topic(self, topic: str, timeout_ms: float | None = None) -> set[int] | None:
        """The partition numbers of a topic, or ``None`` if there is no such topic."""
        return self._run(self._lookups().partitions_for_topic(topic, self._timeout(timeout_ms)))

    def topics(self, timeout_ms: float | None = None) -> set[str]:
        """The names of all topics that this client may see."""
        return self._run(self._lookups().topics(self._timeout(timeout_ms)))

    def membership(self) -> MembershipSnapshot:
        """What this member knows of its membership. Asks nobody; from any thread."""
        return self._core.membership()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """What fences this member's commits (KIP-447)."""
        seen = self._core.membership()
        return ConsumerGroupMetadata(self.config.group_id, seen.generation, seen.member_id, seen.instance_id)

    def bootstrap_connected(self) -> bool:
        """Whether a broker has been found."""
        return bool(self._core.cluster.metadata.brokers)

    # -- the end ---------------------------------------------------------------------------------

    def close(
        self, autocommit: bool = True, timeout_ms: float | None = None, leave_group: bool | None = None
    ) -> None:
        """Commits (with auto-commit on), tells the listener that all is revoked, and closes.

        ``leave_group=None``: a dynamic member leaves the group, a static one does not, so that it can
        come back within its session without a rebalance. ``True``, ``False``: always, never. Within
        ``timeout_ms`` (default: the request timeout). May be called again.
        """
        if self._closed:
            return
        limit = self.config.request_timeout_ms if timeout_ms is None else max(0, int(timeout_ms))
        try:
            self._say_goodbye(autocommit, limit)
        finally:
            self._closed = True
            leave = self.config.group_instance_id is None if leave_group is None else leave_group
            try:
                self._thread.run(self._core.close(leave=leave, timeout_ms=limit))
            finally:
                self._thread.stop()
            self._run_callbacks()

    def _say_goodbye(self, autocommit: bool, limit_ms: int) -> None:
        group = self._core.group
        if group is None:
            return
        if autocommit:
            self._auto_commit_now(limit_ms)
        revoked = sorted(self._core.subscription.partitions)
        if self._core.listener is not None and self._core.subscription.by_group and revoked:
            lost = getattr(self._core.listener, "on_partitions_lost", None)
            if lost is None or (group.membership.in_group and group.membership.error is None):
                self._core.listener.on_partitions_revoked(revoked)
            else:
                lost(revoked)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(autocommit=kind is None)
