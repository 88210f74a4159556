"""Commits of consumed offsets: synchronous, asynchronous and automatic, and their callbacks in order."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from slackwater.kafka.consumer.background import BackgroundTasks
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.coordinator import ConsumerCoordinator
from slackwater.kafka.consumer.standby import refuse_in_standby
from slackwater.kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from slackwater.kafka.net.outages import Outages
from slackwater.kafka.net.threads import CALLBACK_ERRORS
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition, check_partitions

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
NO_GROUP = "this needs a group_id"
Call = Callable[[], Any]


class Committer:
    """Commits what the application has consumed. All is called on the loop, unless it says otherwise."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        group: ConsumerCoordinator | None,
        background: BackgroundTasks,
        outages: Outages,
    ) -> None:
        self._outages = outages
        self._config, self._subscription, self._group = config, subscription, group
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._next_auto_commit = self._loop.time() + config.auto_commit_interval_ms / 1000
        self.on_committed: Callable[[Offsets], None] | None = None
        """Called on the loop with offsets that were stored, by whichever kind of commit."""

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit without offsets stores: the positions."""
        return {tp: OffsetAndMetadata(o, "", e) for tp, (o, e) in self._subscription.consumed().items()}

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, timeout_ms: int
    ) -> None:
        """Stores ``offsets``, ``None``: the positions; see :meth:`GroupOffsets.commit`."""
        if self._group is None:
            raise IllegalStateError(f"commit(): {NO_GROUP}")
        refuse_in_standby(self._subscription, "commit()")
        chosen = self.consumed() if offsets is None else offsets
        await self._group.offsets.commit(self._with_epochs(chosen), timeout_ms)
        self._outages.worked(log, "auto-commit")
        if self.on_committed is not None and chosen:
            self.on_committed(chosen)

    def _with_epochs(self, offsets: Offsets) -> Offsets:
        """The offsets, each with the leader epoch of the record before it, if only that is known.

        By it, the next owner of the partition finds out whether the log was cut off meanwhile.
        """
        epoch_before = self._subscription.epoch_before
        return {
            tp: at._replace(leader_epoch=epoch_before(tp, at.offset)) if at.leader_epoch < 0 else at
            for tp, at in offsets.items()
        }

    def begin_commit(self, offsets: Offsets) -> concurrent.futures.Future[None]:
        """Starts a commit, in the order of the calls, and gives its outcome: cancelled, if the consumer is
        closed before that is known."""
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

        def done(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                outcome.cancel()
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        work = self.commit(offsets, self._config.default_api_timeout_ms)
        self._background.start(work, "asynchronous commit").add_done_callback(done)
        return outcome

    async def commit_quietly(self, timeout_ms: int) -> None:
        """The commit of auto-commit before partitions go: a failure is logged, not raised."""
        offsets = self.consumed()
        if not offsets or self._group is None:
            return
        if self._subscription.by_group and not self._group.membership.in_group:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.commit(offsets, timeout_ms)
        except (KafkaError, TimeoutError) as exc:
            self._auto_commit_failed(exc or f"not answered within {timeout_ms} ms")

    def _auto_commit_failed(self, why: object) -> None:
        self._outages.failed(log, "auto-commit", f"auto-commit failed: {why}", logging.WARNING)

    @property
    def auto_commits_now(self) -> bool:
        """Whether auto-commit applies now."""
        return self._config.auto_commits and (
            not self._subscription.by_group or (self._group is not None and self._group.membership.in_group)
        )

    def auto_commit_due(self) -> bool:
        """Whether the interval has passed. From any thread."""
        dead = self._group is not None and self._group.membership.state is State.DEAD
        return self._config.auto_commits and not dead and self._loop.time() >= self._next_auto_commit

    def auto_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commits in the background what the application had consumed when it polled."""
        self._next_auto_commit = self._loop.time() + self._config.auto_commit_interval_ms / 1000
        if not offsets:
            return

        async def run() -> None:
            try:
                await self.commit(offsets, self._config.default_api_timeout_ms)
            except KafkaError as exc:
                self._auto_commit_failed(exc)

        self._background.start(run(), "auto-commit")


class CommitFuture:
    """The outcome of one ``commit_async()``, with the names of kafka-python's Future."""

    def __init__(self, future: concurrent.futures.Future[None], offsets: Offsets) -> None:
        self._future = future
        self.offsets = offsets

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._future.done()

    @property
    def is_done(self) -> bool:
        """As :meth:`done`."""
        return self._future.done()

    @property
    def exception(self) -> BaseException | None:
        """Why it failed; ``None``: it has not."""
        if not self._future.done():
            return None
        return KafkaError("cancelled") if self._future.cancelled() else self._future.exception()

    @property
    def value(self) -> None:
        """A commit has no value."""

    async def finished(self) -> None:
        """Waits for the outcome, whichever it is, on an event loop."""
        outcome = asyncio.wrap_future(self._future)
        await asyncio.wait([outcome])
        if not outcome.cancelled():
            outcome.exception()

    def succeeded(self) -> bool:
        """Whether the offsets are stored."""
        return self.done() and self.exception is None

    def failed(self) -> bool:
        """Whether the commit has failed for good."""
        return self.done() and self.exception is not None

    def retriable(self) -> bool:
        """Whether the same commit may succeed later."""
        return bool(getattr(self.exception, "retriable", False))

    def get(self, timeout: float | None = None) -> None:
        """Waits up to ``timeout`` seconds. Raises :class:`KafkaTimeoutError`, or why it failed."""
        try:
            self._future.result(timeout)
        except concurrent.futures.CancelledError:
            raise KafkaError("the commit was cancelled: the consumer is closed") from None
        except TimeoutError:
            if self._future.done():
                raise
            raise KafkaTimeoutError(f"the commit is not answered after {timeout} s") from None

    result = get

    def wait(self, timeout: float) -> None:
        """Waits up to ``timeout`` seconds for the outcome, whichever it is."""
        concurrent.futures.wait([self._future], timeout)

    def add_callback(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> CommitFuture:
        """Has ``call(*args, None, **kwargs)`` called on the client's thread when the offsets are stored."""
        return self._when_done(lambda: call(*args, None, **kwargs) if self.exception is None else None)

    def add_errback(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> CommitFuture:
        """Has ``call(*args, error, **kwargs)`` called on the client's thread when the commit has failed."""
        return self._when_done(
            lambda: call(*args, self.exception, **kwargs) if self.exception is not None else None
        )

    def _when_done(self, call: Call) -> CommitFuture:
        def run(_: object) -> None:
            try:
                call()
            except CALLBACK_ERRORS:
                log.exception("a callback of a commit raised")

        self._future.add_done_callback(run)
        return self

    def add_both(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> CommitFuture:
        """Both of the above."""
        return self.add_callback(call, *args, **kwargs).add_errback(call, *args, **kwargs)


class CommitQueue:
    """Pending callbacks of commits. Filled from any thread, emptied on the application's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: deque[tuple[CommitFuture, Callable[..., Any] | None]] = deque()
        self._told: deque[Call] = deque()

    def add(self, commit: CommitFuture, callback: Callable[..., Any] | None) -> None:
        """Adds a commit; ``callback(offsets, error or None)`` runs after those of earlier commits."""
        with self._lock:
            self._running.append((commit, callback))

    def tell(self, call: Call) -> None:
        """Adds a call, which runs before pending callbacks."""
        with self._lock:
            self._told.append(call)

    def next_call(self) -> Call | None:
        """The next call, for the application's thread; ``None``: nothing now."""
        with self._lock:
            if self._told:
                return self._told.popleft()
            while self._running and self._running[0][0].done():
                commit, callback = self._running.popleft()
                if callback is not None:
                    return _bound(callback, commit)
        return None

    def under_way(self) -> list[CommitFuture]:
        """The commits whose outcome is not known yet."""
        with self._lock:
            return [commit for commit, _ in self._running if not commit.done()]


def _bound(callback: Callable[..., Any], commit: CommitFuture) -> Call:
    return lambda: callback(commit.offsets, commit.exception)


def check_offsets(
    offsets: Mapping[Any, Any], purpose: str = "commit"
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets that a user gave, for a commit or another purpose. Raises TypeError or ValueError.

    Plain integers and kafka-python's tuples are taken.
    """
    if not isinstance(offsets, Mapping):
        raise TypeError(
            f"the offsets to {purpose} must be a mapping {{TopicPartition: OffsetAndMetadata or int}}, "
            f"not {offsets!r}"
        )
    checked: dict[TopicPartition, OffsetAndMetadata] = {}
    for key, given in offsets.items():
        (tp,) = check_partitions([key])
        value = (given,) if isinstance(given, int) else given
        if not isinstance(value, tuple) or not isinstance(value[0], int) or isinstance(value[0], bool):
            raise TypeError(f"expected an OffsetAndMetadata for {tp}, not {given!r}")
        at = OffsetAndMetadata(*value)
        if not isinstance(at.metadata, str | None) or not isinstance(at.leader_epoch, int):
            raise TypeError(
                f"expected a text as metadata and an integer as leader epoch for {tp}, not {at!r}"
            )
        if not 0 <= at.offset <= 2**63 - 1:
            raise ValueError(f"the offset to {purpose} for {tp} must be 0 to 2**63 - 1, not {at.offset}")
        if not -1 <= at.leader_epoch <= 2**31 - 1:
            raise ValueError(f"the leader epoch for {tp} must be -1 to 2**31 - 1, not {at.leader_epoch}")
        checked[tp] = at._replace(metadata=at.metadata or "")
    return checked
