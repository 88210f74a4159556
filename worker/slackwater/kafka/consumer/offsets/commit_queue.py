"""Commits that nobody waits for: their outcomes, told in the order of the commits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from slackwater.kafka.errors import KafkaError, KafkaTimeoutError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Call = Callable[[], Any]


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
        """Whether they are not, for good."""
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
        self._future.add_done_callback(
            lambda _: call(*args, None, **kwargs) if self.exception is None else None
        )
        return self

    def add_errback(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> CommitFuture:
        """Has ``call(*args, error, **kwargs)`` called on the client's thread when the commit has failed."""
        self._future.add_done_callback(
            lambda _: call(*args, self.exception, **kwargs) if self.exception is not None else None
        )
        return self

    def add_both(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> CommitFuture:
        """Both of the above."""
        return self.add_callback(call, *args, **kwargs).add_errback(call, *args, **kwargs)


class CommitQueue:
    """What the application is to be told of commits. Filled from any thread, emptied on the application's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: deque[tuple[CommitFuture, Callable[..., Any] | None]] = deque()
        self._told: deque[Call] = deque()

    def add(self, commit: CommitFuture, callback: Callable[..., Any] | None) -> None:
        """A commit under way; ``callback(offsets, error or None)`` is to be called after those before it."""
        with self._lock:
            self._running.append((commit, callback))

    def tell(self, call: Call) -> None:
        """Has something called at the next occasion."""
        with self._lock:
            self._told.append(call)

    def next_call(self) -> Call | None:
        """What to call next, on the application's thread; ``None``: nothing now."""
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
