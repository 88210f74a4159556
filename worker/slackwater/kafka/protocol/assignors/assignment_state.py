"""The assignment under construction, in the general case of the sticky assignors.

Members are numbers here. Partitions that are alike (one topic, replicas in the same racks) are one kind: the
same members may read them, and the same are near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappush, heapreplace

from slackwater.kafka.structs import TopicPartition

NOBODY = -1


@dataclass(slots=True)
class PartitionClass:
    """Partitions that are alike.

    ``far``: the readers for which they are in another rack. ``at``: member -> owner -> the partitions of
    that owner that lie with the member now; the owner is the member itself where nothing has moved.
    """

    readers: tuple[int, ...]
    far: frozenset[int]
    at: dict[int, dict[int, list[TopicPartition]]] = field(default_factory=dict)


class Board:
    """All kinds, and how many partitions each member has (``load``)."""

    def __init__(self, racks: Sequence[str | None]) -> None:
        self._racks = racks
        self.load = [0] * len(racks)
        self.kinds: list[PartitionClass] = []
        self.free: list[tuple[int, TopicPartition, int]] = []
        """(kind, partition, owner) of the partitions that have no member yet."""
        self._numbers: dict[tuple[str, frozenset[str]], int] = {}
        self._far: dict[tuple[tuple[int, ...], frozenset[str]], frozenset[int]] = {}

    def add(self, tp: TopicPartition, readers: tuple[int, ...], racks: frozenset[str], owner: int) -> None:
        """A partition. It stays with its owner if that may read it, and is near or nobody is near."""
        number = self._numbers.get((tp.topic, racks))
        if number is None:
            number = self._numbers[tp.topic, racks] = len(self.kinds)
            self.kinds.append(PartitionClass(readers, self._find_far(readers, racks)))
        kind = self.kinds[number]
        if owner != NOBODY and owner in kind.readers:
            if owner not in kind.far or len(kind.far) == len(kind.readers):
                self.place(kind, tp, owner, owner)
            else:
                self.free.append((number, tp, owner))
        else:
            self.free.append((number, tp, NOBODY))

    def _find_far(self, readers: tuple[int, ...], racks: frozenset[str]) -> frozenset[int]:
        key = (readers, racks)
        if key not in self._far:
            # A member without a rack is near to everything.
            self._far[key] = frozenset(m for m in readers if self._racks[m] and self._racks[m] not in racks)
        return self._far[key]

    def place(self, kind: PartitionClass, tp: TopicPartition, owner: int, member: int) -> None:
        """Puts a partition to a member."""
        kind.at.setdefault(member, {}).setdefault(owner, []).append(tp)
        self.load[member] += 1

    def move(self, kind: PartitionClass, giver: int, owner: int, taker: int) -> None:
        """Moves one of the owner's partitions that lie with ``giver``."""
        piles = kind.at[giver]
        tp = piles[owner].pop()
        if not piles[owner]:
            del piles[owner]
            if not piles:
                del kind.at[giver]
        self.load[giver] -= 1
        self.place(kind, tp, owner, taker)

    def plan(self) -> list[list[TopicPartition]]:
        """What lies with each member."""
        by_member: list[list[TopicPartition]] = [[] for _ in self.load]
        for kind in self.kinds:
            for member, piles in kind.at.items():
                for partitions in piles.values():
                    by_member[member] += partitions
        return by_member


class _Least:
    """Finds the least loaded of some members; the same members share a heap."""

    def __init__(self, load: Sequence[int]) -> None:
        self._load = load
        self._heaps: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self._heaps_of: list[list[list[tuple[int, int]]]] = [[] for _ in load]

    def of(self, members: tuple[int, ...]) -> int:
        heap = self._heaps.get(members)
        if heap is None:
            heap = self._heaps[members] = [(self._load[member], member) for member in members]
            heapify(heap)
            for member in members:
                self._heaps_of[member].append(heap)
        # An entry may say less than the load is, never more: it is put right when it comes to the top.
        while heap[0][0] != (load := self._load[heap[0][1]]):
            heapreplace(heap, (load, heap[0][1]))
        return heap[0][1]

    def lowered(self, member: int) -> None:
        """To be called when a load has gone down."""
        for heap in self._heaps_of[member]:
            heappush(heap, (self._load[member], member))


def lay_out(board: Board) -> None:
    """Gives what is free to the least loaded, those first that fewest may read; then evens out."""
    least = _Least(board.load)
    taken = sum(board.load) + len(board.free)
    fair = -(-taken // len(board.load))
    near = [tuple(m for m in kind.readers if m not in kind.far) for kind in board.kinds]
    board.free.sort(key=lambda unassigned: (len(board.kinds[unassigned[0]].readers), unassigned[1]))
    for number, tp, owner in board.free:
        kind = board.kinds[number]
        member = least.of(kind.readers)
        if kind.far and near[number]:
            closest = least.of(near[number])
            if board.load[closest] < max(fair, board.load[member] + 1):
                member = closest
        board.place(kind, tp, owner, member)
    board.free.clear()
    for only_moved in (True, False):
        _even_out(board, least, only_moved)


def _even_out(board: Board, least: _Least, only_moved: bool) -> None:
    """Moves partitions to less loaded members; first those that have moved anyway.

    Each move lowers the sum of squared loads, so it ends.
    """
    load, moved = board.load, True
    while moved:
        moved = False
        for kind in board.kinds:
            for giver in sorted(kind.at):
                while giver in kind.at and load[giver] - load[taker := least.of(kind.readers)] >= 2:
                    owner = min(kind.at[giver], key=lambda member: member == giver)
                    if only_moved and owner == giver:
                        break
                    board.move(kind, giver, owner, taker)
                    least.lowered(giver)
                    moved = True
