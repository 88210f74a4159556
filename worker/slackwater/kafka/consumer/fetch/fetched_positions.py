"""How far each partition has been fetched, which is ahead of its position. No I/O; times are in s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slackwater.kafka.protocol.subscription import PartitionState
from slackwater.kafka.structs import TopicPartition


@dataclass(slots=True)
class Ahead:
    """How far a partition has been fetched since its last jump (``version``).

    ``broken``: it is not fetched past ``offset`` before what was fetched has been handed over.
    ``not_before``: the log does not reach to ``offset``, and is not asked again earlier, unless it jumps.
    """

    version: int
    offset: int
    broken: bool = False
    not_before: float = 0.0


class FetchedAhead:
    """Of all partitions. ``on_jump`` is told of each that is to be fetched from its position anew."""

    def __init__(self, *, on_jump: Callable[[TopicPartition], object]) -> None:
        self._ahead: dict[TopicPartition, Ahead] = {}
        self._on_jump = on_jump

    def of(self, state: PartitionState) -> Ahead:
        """How far it is, to be changed in place. To be called for partitions that have a position."""
        ahead = self._ahead.get(state.tp)
        if ahead is None or ahead.version != state.version:
            assert state.position is not None
            ahead = self._ahead[state.tp] = Ahead(state.version, state.position)
            self._on_jump(state.tp)
        elif state.position is not None and ahead.offset < state.position:
            # What is prefetched was moved on beyond what has been fetched of it.
            ahead.offset, ahead.broken, ahead.not_before = state.position, False, 0.0
        return ahead

    def set(self, tp: TopicPartition, ahead: Ahead) -> None:
        """More of it has been fetched."""
        self._ahead[tp] = ahead
