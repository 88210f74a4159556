"""Handlers of the engine ``python`` that are coroutine functions: several are called at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.runtime.errors import HandlerError

if TYPE_CHECKING:
    from slackwater.kafka import ConsumerRecord


class AsyncCalls:
    """Awaits a handler for each record of a batch. All batches have the same event loop, so that a handler
    can keep a client of another system. Used by one thread."""

    def __init__(self, concurrency: int) -> None:
        """``concurrency``: how many calls are under way at most."""
        self._concurrency = concurrency
        self._runner = asyncio.Runner()

    def rows(
        self, call: Callable[[ConsumerRecord], Coroutine[Any, Any, Any]], records: Sequence[ConsumerRecord]
    ) -> list[Mapping[str, Any]]:
        """The rows of all records, in the records' order. Raises what a call raises first, after the others
        have been cancelled and have ended; HandlerError for what are no rows."""
        results = self._runner.run(self._call_all(call, records))
        return [row for result in results for row in _rows_of(result)]

    async def _call_all(
        self, call: Callable[[ConsumerRecord], Coroutine[Any, Any, Any]], records: Sequence[ConsumerRecord]
    ) -> list[Any]:
        results: list[Any] = [None] * len(records)
        waiting = iter(enumerate(records))

        async def work() -> None:
            for at, record in waiting:
                results[at] = await call(record)

        tasks = [asyncio.create_task(work()) for _ in range(min(self._concurrency, len(records)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return results

    def close(self) -> None:
        """Closes the event loop."""
        self._runner.close()


def _rows_of(result: Any) -> Iterable[Mapping[str, Any]]:
    if result is None:
        return ()
    if isinstance(result, Mapping):
        return (result,)
    if isinstance(result, Iterable) and not isinstance(result, str | bytes):
        return result
    raise HandlerError(
        f"the handler returned {type(result).__name__} for a record: return a mapping, a list of mappings, "
        "or None for no row"
    )
