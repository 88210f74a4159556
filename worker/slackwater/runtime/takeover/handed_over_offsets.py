"""Committed offsets that a predecessor has left, and the proof that they still hold.

They are worked from at once, because looking them up first would lengthen the pause. While the handler
has the first records they are compared with the broker's: a predecessor that believed its successor dead
may have gone on after its answer, or a rebalance may have come in between. From the join on the broker
refuses its commits, so what the broker has by then is final. Before that comparison nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition


class HandedOverOffsets:
    """Offsets that are to be used at the first assignment, and those that are to be compared."""

    def __init__(
        self, left: Mapping[TopicPartition, OffsetAndMetadata] | None = None, generation: int = -1
    ) -> None:
        """``generation``: the group's when they were left. In another one the partitions may have been
        others' in between, and the client asks for the committed offsets itself.
        """
        self._left, self._generation = dict(left or {}), generation
        self._unproven: dict[TopicPartition, OffsetAndMetadata] = {}

    def take(
        self, assigned: Collection[TopicPartition], generation: int
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What was left of the partitions that the first assignment brings, in that ``generation``."""
        left, self._left = self._left, {}
        taken = {tp: left[tp] for tp in assigned if tp in left} if generation == self._generation else {}
        self._unproven.update(taken)
        return taken

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions that are gone."""
        for tp in partitions:
            self._unproven.pop(tp, None)

    @property
    def proven(self) -> bool:
        """Whether all that was taken is known to hold."""
        return not self._unproven

    def prove(
        self, look: Callable[[list[TopicPartition]], Mapping[TopicPartition, OffsetAndMetadata | None]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Compares what was taken with what ``look`` finds; what is different comes back, as it was found.

        Raises what ``look`` raises; nothing is proven then.
        """
        found = look(sorted(self._unproven))
        wrong = {}
        for tp, left in self._unproven.items():
            there = found.get(tp)
            if there is None or (there.offset, there.metadata) != (left.offset, left.metadata):
                wrong[tp] = there
        self._unproven.clear()
        return wrong
