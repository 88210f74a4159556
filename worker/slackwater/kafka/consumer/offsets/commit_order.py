"""Keeps commits of one partition in order while several are under way and each may be repeated.

An answer can get lost after the broker has stored the offset. So whether a later commit was stored is not
always known, and an earlier one that is repeated behind it could set the offset back: it is never sent
after a later one of the same partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import count

from slackwater.kafka.errors import KafkaError, KafkaTimeoutError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class OvertakenError(Exception):
    """A later commit (``number``) of a partition was sent before this one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class CommitOrder:
    """Numbers commits, and knows of each partition which was sent last and which was stored last."""

    def __init__(self) -> None:
        self._numbers = count()
        self._sent: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int] = {}
        self._under_way: dict[int, asyncio.Future[KafkaError | None]] = {}

    def begin(self) -> int:
        """The number of a new commit."""
        number = next(self._numbers)
        self._under_way[number] = asyncio.get_running_loop().create_future()
        return number

    def end(self, number: int, error: KafkaError | None) -> None:
        """A commit is over: stored (``None``), or failed."""
        self._under_way.pop(number).set_result(error)

    def sending(self, partitions: Iterable[TopicPartition], number: int) -> None:
        """To be called when a commit is written. Raises :class:`OvertakenError`: then it must not be."""
        partitions = list(partitions)
        latest = max(self._sent.get(tp, -1) for tp in partitions)
        if latest > number:
            raise OvertakenError(latest)
        self._sent.update(dict.fromkeys(partitions, number))

    def stored(self, partitions: Iterable[TopicPartition], number: int) -> None:
        """A commit was accepted."""
        self._stored.update(dict.fromkeys(partitions, number))

    def left(self, offsets: Offsets, number: int) -> Offsets:
        """Without the partitions of which a later commit was stored: those are done."""
        return {tp: one for tp, one in offsets.items() if self._stored.get(tp, -1) < number}

    async def follow(self, later: int, timeout_ms: int) -> None:
        """Waits for the outcome of a later commit: where that one fails, so has the earlier one.

        Raises what it failed with, or :class:`KafkaTimeoutError`.
        """
        outcome = self._under_way.get(later)
        error: KafkaError | None = KafkaTimeoutError(
            "a later commit of the same partitions was not answered; whether it is stored is not known"
        )
        if outcome is not None:
            await asyncio.wait([outcome], timeout=max(timeout_ms, 0) / 1000)
            error = outcome.result() if outcome.done() else error
        if error is not None:
            raise error
