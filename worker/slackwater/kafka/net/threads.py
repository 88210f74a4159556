"""Threads of the client: an event loop for the synchronous API, and decoders of large answers and records."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import warnings
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from slackwater.kafka.errors import IllegalStateError, KafkaTimeoutError

T = TypeVar("T")


CALLBACK_ERRORS = (Exception, asyncio.CancelledError, SystemExit)
"""What a function of the application may raise on a thread of the client's, which it must not end."""

MADE_BEFORE_FORK = (
    "this client was made before its process was forked, and its threads and connections are the parent's; "
    "make a client in each process"
)


class _Client(Protocol):
    def forked(self) -> None: ...


_clients: weakref.WeakSet[_Client] = weakref.WeakSet()


def tell_of_fork(client: _Client) -> None:
    """Has ``client.forked()`` called in each process that is forked from this one, before all else there."""
    _clients.add(client)


def _tell_clients() -> None:
    inherited = list(_clients)
    _clients.clear()
    for client in inherited:
        client.forked()


os.register_at_fork(after_in_child=_tell_clients)


def warn_unclosed(client: object) -> None:
    """Warns of a client that was dropped without ``close()``, as Python does of files and sockets."""
    warnings.warn(
        f"{client!r} was dropped without close(): call close(), or use it in a with statement",
        ResourceWarning,
        stacklevel=3,
        source=client,
    )


def close_later(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Starts closing a client that was dropped, from any thread; does not wait."""
    if loop.is_closed():
        work.close()
    else:
        asyncio.run_coroutine_threadsafe(work, loop)


class LoopThread:
    """Runs coroutines on a daemon thread. ``name`` shows in stack dumps."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    @property
    def running(self) -> bool:
        """Whether :meth:`stop` has not been called."""
        return self._thread.is_alive() and not self.loop.is_closed()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts ``work`` on the loop. Raises :class:`IllegalStateError` after :meth:`stop`."""
        if not self.running:
            work.close()
            forked = self._process != os.getpid()
            raise IllegalStateError(MADE_BEFORE_FORK if forked else "the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs ``work`` and waits for it. Raises :class:`KafkaTimeoutError` after ``timeout_s``.

        ``work`` is cancelled then, and also when the waiting thread is interrupted (Ctrl-C). Raises
        :class:`IllegalStateError` on the loop's own thread, where it would wait for itself.
        """
        self.may_wait(work)
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise KafkaTimeoutError(f"not done within {timeout_s} s") from None
        except BaseException:
            future.cancel()
            raise

    def may_wait(self, work: Coroutine[Any, Any, Any] | None = None) -> None:
        """Raises :class:`IllegalStateError` on the loop's own thread, which nothing may block.

        ``work``, which was to be waited for, is closed then.
        """
        if threading.current_thread() is self._thread:
            if work is not None:
                work.close()
            raise IllegalStateError("a blocking call from a callback of the same client would never return")

    def stop_after(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs ``work``, then ends the loop and its thread; waits for neither."""

        async def run() -> None:
            try:
                await work
            finally:
                self.loop.stop()

        if self.running:
            close_later(run(), self.loop)
        else:
            work.close()

    def stop(self) -> None:
        """Ends the loop and its thread. May be called again."""
        if self.running:
            self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()


_RECORD_DECODERS = 2


@functools.cache
def answer_decoder() -> ThreadPoolExecutor:
    """The thread that decodes large answers, of all connections one after the other."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-decode-answers")


@functools.cache
def record_decoder() -> ThreadPoolExecutor:
    """The threads that decode fetched records for event loops.

    A consumer uses one of them at a time, and only for a poll that waits for its result: that bounds the work
    that is queued."""
    return ThreadPoolExecutor(max_workers=_RECORD_DECODERS, thread_name_prefix="kafka-decode-records")


# A forked process has no such threads, and its copies of the executors would wait for them for ever.
os.register_at_fork(after_in_child=answer_decoder.cache_clear)
os.register_at_fork(after_in_child=record_decoder.cache_clear)
