"""``AsyncConsumer``: the same consumer for asyncio code."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.consumer.core import Core
from slackwater.kafka.consumer.iteration import as_records
from slackwater.kafka.consumer.listener import callback_for
from slackwater.kafka.consumer.lookups import Lookups, check_offsets, check_partitions
from slackwater.kafka.errors import IllegalStateError, KafkaTimeoutError
from slackwater.kafka.protocol.membership import NoticeKind
from slackwater.kafka.protocol.subscription import EARLIEST, LATEST
from slackwater.kafka.records import ConsumerRecord, RecordColumns
from slackwater.kafka.structs import MembershipSnapshot, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class AsyncConsumer:
    """Reads topics, alone or as a member of a group, on the running event loop.

    Takes the same keyword arguments as :class:`KafkaConsumer`, or a :class:`ConsumerConfig`. Decoding is
    done on the loop, inside :meth:`poll`. Listeners may be coroutine functions.
    """

    def __init__(self, config: ConsumerConfig | None = None, **configs: Any) -> None:
        self.config = config if config is not None else ConsumerConfig.from_keywords(configs)
        self._opened: Core | None = None
        self._news = asyncio.Event()

    async def start(self) -> None:
        """Finds a broker. Raises :class:`NoBrokersAvailable` naming every address."""
        core = Core(self.config, self._news.set)
        try:
            await core.start()
        except BaseException:
            await core.close(leave=False)
            raise
        self._opened = core

    @property
    def _core(self) -> Core:
        if self._opened is None:
            raise IllegalStateError("call start() first")
        return self._opened

    async def stop(self, *, autocommit: bool = True, leave_group: bool | None = None) -> None:
        """Commits (with auto-commit on), tells the listener, and closes; see :meth:`KafkaConsumer.close`."""
        if self._opened is None or self._opened.closed:
            return
        core, group = self._opened, self._opened.group
        try:
            if group is not None:
                if autocommit and self.config.enable_auto_commit:
                    await core.commit_quietly(self.config.request_timeout_ms)
                revoked = sorted(core.subscription.partitions)
                if core.listener is not None and core.subscription.by_group and revoked:
                    await _await(core.listener.on_partitions_revoked(revoked))
        finally:
            leave = self.config.group_instance_id is None if leave_group is None else leave_group
            await core.close(leave=leave)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(autocommit=kind is None)

    # -- what to read ----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: Any = None,
    ) -> None:
        """Reads these topics, or those that ``pattern`` matches, as a member of the group."""
        names = [topics] if isinstance(topics, str) else list(topics)
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe() takes either topics or a pattern")
        self._core.subscribe(names, pattern, listener)

    async def unsubscribe(self) -> None:
        """Reads nothing more; a dynamic member leaves the group."""
        await self._core.unsubscribe()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions without taking part in a group."""
        self._core.assign(check_partitions(partitions))

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer has."""
        return set(self._core.subscription.partitions)

    # -- reading ---------------------------------------------------------------------------------

    async def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, RecordColumns]:
        """Up to ``max_records`` records as columns, waiting up to ``timeout_ms`` for the first."""
        core = self._core
        limit = self.config.max_poll_records if max_records is None else max_records
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        if core.auto_commit_due():
            core.auto_commit(core.consumed())
        try:
            while True:
                self._news.clear()
                core.raise_if_failed()
                core.caller_polls()
                await self._tell_notices()
                found = core.buffer.collect(limit)
                if found or asyncio.get_running_loop().time() >= deadline:
                    return found
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._news.wait()
                except TimeoutError:
                    continue
        finally:
            if core.group is not None:
                core.group.membership.caller_leaves(core.group.now_ms())

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As :meth:`poll_columns`, as records with the deserializers applied."""
        columns = await self.poll_columns(timeout_ms, max_records)
        return {tp: as_records(tp, rows, self.config) for tp, rows in columns.items()}

    async def _tell_notices(self) -> None:
        core = self._core
        while (notice := core.next_notice()) is not None:
            callback = callback_for(core.listener, notice)
            assert core.group is not None
            core.group.membership.caller_leaves(core.group.now_ms())
            try:
                if notice.kind is NoticeKind.REVOKED and self.config.enable_auto_commit:
                    await core.commit_quietly(self.config.request_timeout_ms)
                if callback is not None:
                    await _await(callback())
            finally:
                core.told(notice)
                core.caller_polls()

    # -- positions, commits, questions -----------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Reads on from ``offset``."""
        self._core.subscription.seek(partition, offset)
        self._core.jumped()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Reads on from the first record; without partitions: of all."""
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Reads on from the next record to come; without partitions: of all."""
        self._reset(partitions, LATEST)

    def _reset(self, partitions: Iterable[TopicPartition], timestamp: int) -> None:
        for tp in check_partitions(partitions) or list(self._core.subscription.partitions):
            self._core.subscription.reset(tp, timestamp)
        self._core.jumped()

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record to be read; waits until it is known."""
        loop = asyncio.get_running_loop()
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = loop.time() + limit / 1000
        while True:
            self._news.clear()
            self._core.raise_if_failed()
            state = self._core.subscription.get(partition)
            if state.position is not None and state.reset_to is None:
                return state.position
            if loop.time() >= deadline:
                raise KafkaTimeoutError(f"no position of {partition} within {limit} ms")
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                continue

    def highwater(self, partition: TopicPartition) -> int | None:
        """The end of the partition as of its last fetch."""
        return self._core.subscription.get(partition).highwater

    def pause(self, *partitions: TopicPartition) -> None:
        """Gives nothing of these until :meth:`resume`. What was fetched is kept."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undoes :meth:`pause`."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        for state in [self._core.subscription.get(tp) for tp in partitions]:
            state.paused = paused
        self._core.fetcher.wake()
        self._news.set()

    async def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Stores offsets (default: the positions); see :meth:`KafkaConsumer.commit`."""
        chosen = check_offsets(offsets) if offsets is not None else None
        await self._core.commit(chosen, self._timeout(timeout_ms))

    def _timeout(self, timeout_ms: float | None) -> int:
        return self.config.default_api_timeout_ms if timeout_ms is None else max(1, int(timeout_ms))

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; ``None``: none."""
        return await Lookups(self._core).committed(check_partitions(partitions), self._timeout(timeout_ms))

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await Lookups(self._core).ends(check_partitions(partitions), EARLIEST, self._timeout(None))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the next record to come, of each partition."""
        return await Lookups(self._core).ends(check_partitions(partitions), LATEST, self._timeout(None))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since the epoch); ``None``: none is that late."""
        return await Lookups(self._core).by_time(timestamps, self._timeout(None))

    def membership(self) -> MembershipSnapshot:
        """What this member knows of its membership. Asks nobody."""
        return self._core.membership()


async def _await(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
