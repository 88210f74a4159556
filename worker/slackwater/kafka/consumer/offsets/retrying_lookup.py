"""Repeats a look-up with a back-off until nothing is pending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from slackwater.kafka.errors import KafkaError
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.outages import Outages
from slackwater.kafka.protocol.subscription import PartitionState

log = logging.getLogger(__name__)

Pending = Callable[[], list[PartitionState]]
Look = Callable[[Sequence[PartitionState]], Awaitable[bool]]


class Looking:
    """One kind of look-up. Each has a task of its own, so that none waits for another.

    ``pending`` gives what is to be looked for now, ``known`` whether there is somebody to ask for each of
    them, ``look`` looks once and gives whether something has to be looked for again. ``on_change`` is called
    after each look, ``refresh`` before each repetition. An error that is not retriable goes to ``on_error``,
    and ends this until the next :meth:`wake`.
    """

    def __init__(
        self,
        what: str,
        backoff: Backoff,
        pending: Pending,
        look: Look,
        *,
        known: Callable[[Sequence[PartitionState]], bool],
        on_change: Callable[[], None],
        on_error: Callable[[KafkaError], None],
        refresh: Callable[[], None],
        outages: Outages,
    ) -> None:
        self._outages = outages
        self._what, self._backoff = what, backoff
        self._pending, self._known, self._look = pending, known, look
        self._on_change, self._on_error, self._refresh = on_change, on_error, refresh
        self._task: asyncio.Task[None] | None = None
        self._again = asyncio.Event()

    def wake(self) -> None:
        """Looks, if there is anything to look for; one that waits to look again does so soon."""
        self._again.set()
        self.start()

    def start(self) -> None:
        """Looks, if there is anything to look for, and this is not under way."""
        if (self._task is None or self._task.done()) and self._pending():
            self._task = asyncio.create_task(self._run(), name=self._what)

    async def _run(self) -> None:
        failures = 0
        while wanted := self._pending():
            self._again.clear()
            was_known = self._known(wanted)
            try:
                missing = await self._look(wanted)
            except KafkaError as exc:
                if not exc.retriable:
                    self._on_error(exc)
                    return
                self._outages.failed(log, self._what, f"{self._what}: {exc}")
                missing = True
            else:
                self._outages.worked(log, self._what)
            self._on_change()
            if missing:
                failures += 1
                self._refresh()
                await self._pause(failures, at_least=was_known or failures > 1)

    async def _pause(self, failures: int, *, at_least: bool) -> None:
        # The first look of all mostly fails because the cluster is not known yet: the news ends that.
        least = max(self._backoff.delay_ms(1), 1) / 1000 if at_least else 0.0
        most = self._backoff.delay_ms(failures + 1) / 1000
        # From then on never less than one back-off: news may come with answers that have brought nothing.
        await asyncio.sleep(min(least, max(most, 0.001)))
        try:
            async with asyncio.timeout(max(most - least, 0)):
                await self._again.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        """Stops looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
