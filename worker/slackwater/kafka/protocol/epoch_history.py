"""The leader epochs of the records that were read of one partition, for commits (KIP-320).

A committed offset is stored with the leader epoch of the record before it. By that, the next owner of the
partition can ask the leader whether the log was cut off there meanwhile, and has grown again since.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

UNKNOWN = -1
_MOST_EPOCHS = 64
"""A leader changes seldom; a broker that claims more epochs has the oldest forgotten."""


class EpochHistory:
    """From the offset where reading began to the position. Written by one thread at a time, read by any."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: tuple[tuple[int, int], ...] = ()
        """Up to which position each epoch goes, in order. The first entry holds for its position alone."""

    @property
    def end(self) -> int:
        """The position; -1 where there is none."""
        return self._ends[-1][0] if self._ends else -1

    def begin(self, offset: int, epoch: int) -> None:
        """Reading begins at ``offset``. With an unknown ``epoch``, what is known up to there is kept."""
        known = epoch if epoch != UNKNOWN else self.before(offset)
        kept = [each for each in self._ends if epoch == UNKNOWN != known and each[0] < offset]
        self._ends = (*kept, (offset, known))

    def learn(self, offset: int, epoch: int) -> None:
        """Takes in the epoch that is committed with ``offset``, where reading has begun there without one."""
        if self._ends and self._ends[0] == (offset, UNKNOWN):
            self._ends = ((offset, epoch), *self._ends[1:])

    def extend(self, epochs: Iterable[tuple[int, int]], position: int) -> None:
        """What was read now goes up to ``position``. ``epochs``: of the batches it is from, each with the
        position that it goes up to."""
        if not self._ends:
            return
        ends = list(self._ends)
        for end, epoch in epochs:
            reached = min(end, position)
            if reached > ends[-1][0]:
                if len(ends) > 1 and ends[-1][1] == epoch:
                    ends.pop()
                ends.append((reached, epoch))
        if ends[-1][0] < position:
            # Behind the last batch that is left by compaction or is a marker: the record before is of it.
            ends.append((position, ends[-1][1]))
        self._ends = tuple(ends[-_MOST_EPOCHS:])

    def before(self, offset: int) -> int:
        """The leader epoch of the record before ``offset``; -1 where that is not known."""
        ends = self._ends
        if ends and ends[0][0] == offset:
            return ends[0][1]
        for (begin, _), (end, epoch) in pairwise(ends):
            if begin < offset <= end:
                return epoch
        return UNKNOWN

    def clear(self) -> None:
        """Forgets all: what is read from now on is another log, or another place in it."""
        self._ends = ()
