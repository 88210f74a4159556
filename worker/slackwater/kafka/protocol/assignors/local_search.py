"""Improves an assignment by moving partitions along cycles of negative cost, until none is left.

The general case of the sticky assignors is a minimum-cost flow: partitions flow to members, each further
partition of a member costs more than the one before (balance), reading across racks costs less than that, and
moving a partition away from its owner least. A flow has minimum cost if and only if its residual graph has
no cycle of negative cost (Klein 1967). Since the costs by load are convex, the outcome has the lowest
balance score that there is: it is an optimal semi-matching (Harvey et al. 2003), which single moves, such as
Java's, do not always reach.

Nodes are members, kinds of partitions, and one that stands for "one more here, one fewer there".
Negative cycles are found by Bellman and Ford's passes, in the graph of predecessors.
"""

from __future__ import annotations

from slackwater.kafka.protocol.assignors.assignment_state import NOBODY, Board, PartitionClass

MAX_STEPS = 1_500_000
"""How many arcs may be looked at: what bounds the time for large groups, at less than the optimum."""


def improve(board: Board, max_steps: int = MAX_STEPS) -> bool:
    """Makes the board as good as it gets; whether that was within ``max_steps``."""
    search = _Search(board)
    if search.arcs > max_steps:
        return False
    while search.steps < max_steps:
        cycles = search.find(max_steps)
        if not cycles:
            return search.steps < max_steps
        for cycle in cycles:
            search.apply(cycle)
    return False


class _Search:
    """One board's residual graph. Nodes: members, then kinds, then the one for loads."""

    def __init__(self, board: Board) -> None:
        self.board, self.steps = board, 0
        self._members = len(board.load)
        self._hub = self._members + len(board.kinds)
        partitions = sum(board.load)
        self._far_cost = partitions + 1
        self._load_cost = (self._far_cost + 1) * (partitions + 1)
        self.arcs = sum(len(kind.at) + len(kind.readers) for kind in board.kinds)
        """About how many there are, each of which a pass looks at once."""
        self._returns = [0] * len(board.load)
        """For a member that was last reached by getting back what it owns: of which kind that was."""

    def find(self, max_steps: int) -> list[list[tuple[int, int]]]:
        """Cycles of negative cost with no node in common, as (node, node) arcs; none if there is none."""
        dist = [0] * (self._hub + 1)
        via = [-1] * (self._hub + 1)
        changed = True
        while changed and self.steps < max_steps:
            changed = self._pass(dist, via)
            if changed and (cycles := _cycles(via)):
                return cycles
        return []

    def _pass(self, dist: list[int], via: list[int]) -> bool:
        changed = self._through_hub(dist, via)
        for number, kind in enumerate(self.board.kinds, self._members):
            changed |= self._through_kind(number, kind, dist, via)
        return changed

    def _through_hub(self, dist: list[int], via: list[int]) -> bool:
        """A member that takes one more, and one that gives one up."""
        load, cost, hub = self.board.load, self._load_cost, self._hub
        self.steps += 2 * len(load)
        changed = False
        best, taker = min((dist[m] + cost * (2 * load[m] + 1), m) for m in range(len(load)))
        if best < dist[hub]:
            dist[hub], via[hub], changed = best, taker, True
        for member, held in enumerate(load):
            if held and (distance := dist[hub] - cost * (2 * held - 1)) < dist[member]:
                dist[member], via[member], changed = distance, hub, True
        return changed

    def _through_kind(self, number: int, kind: PartitionClass, dist: list[int], via: list[int]) -> bool:
        """Members give a partition of the kind, members take one; or it goes back to its owner."""
        far, far_cost = kind.far, self._far_cost
        here, giver = dist[number], -1
        changed = False
        self.steps += len(kind.at)
        for member, piles in kind.at.items():
            base = dist[member] - (far_cost if member in far else 0)
            loose = len(piles) > 1 or member not in piles
            if base + (not loose) < here:
                here, giver = base + (not loose), member
            for owner in piles if loose else ():
                if owner not in (NOBODY, member):
                    distance = base - 1 + (far_cost if owner in far else 0)
                    if distance < dist[owner]:
                        dist[owner], via[owner], changed = distance, member, True
                        self._returns[owner] = number - self._members
        if giver >= 0:
            dist[number], via[number], changed = here, giver, True
        self.steps += len(kind.readers)
        for member in kind.readers:
            distance = here + (far_cost if member in far else 0)
            if distance < dist[member]:
                dist[member], via[member], changed = distance, number, True
        return changed

    def apply(self, cycle: list[tuple[int, int]]) -> None:
        """Moves one partition along each part of the cycle."""
        arcs = dict(cycle)
        for giver, node in cycle:
            if giver >= self._members or node == self._hub:
                continue
            if node < self._members:
                self.board.move(self.board.kinds[self._returns[node]], giver, node, node)
            else:
                kind = self.board.kinds[node - self._members]
                owner = min(kind.at[giver], key=lambda candidate: (candidate == giver, candidate))
                self.board.move(kind, giver, owner, arcs[node])


def _cycles(via: list[int]) -> list[list[tuple[int, int]]]:
    """The cycles among predecessors; each node has one, so they have no node in common."""
    visited = [0] * len(via)
    cycles: list[list[tuple[int, int]]] = []
    for start in range(len(via)):
        node, mark = start, start + 1
        while node >= 0 and not visited[node]:
            visited[node] = mark
            node = via[node]
        if node >= 0 and visited[node] == mark:
            cycle: list[tuple[int, int]] = []
            first = node
            while not cycle or node != first:
                cycle.append((via[node], node))
                node = via[node]
            cycles.append(cycle)
    return cycles
