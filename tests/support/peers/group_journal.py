"""What a group's members said they read and committed, held against what was produced.

The rules, for members that commit each poll before the next one:

- Every record that was produced was read by somebody (nothing is lost).
- Nobody starts behind the furthest that was read, for then somebody skipped records.
- Nobody reads what was committed before it was assigned the partition: duplicates are only what its last
  owner had read but not committed.
- No committed offset goes back.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One line of a member: who, when (wall clock, ms), what, and the rest of it."""

    member: str
    at_ms: int
    kind: str
    fields: Mapping[str, Any]


@dataclass
class Verdict:
    """``problems``: sentences, none if all hold. ``read``: how often each (partition, offset) was read."""

    problems: list[str] = field(default_factory=list)
    read: Counter[tuple[int, int]] = field(default_factory=Counter)
    commits: int = 0
    refused: int = 0

    @property
    def again(self) -> int:
        """How many reads were of a record that had been read before."""
        return self.read.total() - len(self.read)


class _Partition:
    """One partition while the journal is gone through."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.furthest = -1
        self.committed = 0
        self.by = "nobody"
        self.floor: dict[str, int] = {}
        """By member: what was committed when it was last assigned the partition."""
        self.position: dict[str, int] = {}
        self.stale: set[str] = set()
        """Members that have read, since they were assigned it, what somebody had committed by then."""

    def assigned(self, member: str) -> None:
        self.floor[member] = self.committed
        self.position.pop(member, None)
        self.stale.discard(member)

    def read(self, event: Event, offsets: Sequence[int], paused: Set[str] | None) -> Iterable[str]:
        member, first = event.member, offsets[0]
        where = f"{member} at {event.at_ms}, partition {self.number}: read {first} to {offsets[-1]}"
        expected = self.position.get(member)
        if paused is not None and first < self.committed:
            if member in self.stale:
                yield f"{where}, the second poll of what was committed ({self.committed}, by {self.by})"
            self.stale.add(member)
        if first < self.floor.get(member, 0) and member not in (paused or ()):
            yield f"{where}, though {self.floor[member]} was committed before it was assigned the partition"
        elif paused is None and expected is not None and first != expected and first < self.committed:
            yield f"{where}, after it had read up to {expected}; {self.by} has committed {self.committed}"
        if first > self.furthest + 1:
            yield f"{where}, though nobody has read {self.furthest + 1} to {first - 1}"
        self.position[member] = offsets[-1] + 1
        self.furthest = max(self.furthest, offsets[-1])

    def commit(self, event: Event, offset: int) -> Iterable[str]:
        if offset < self.committed:
            yield (
                f"{event.member} at {event.at_ms}, partition {self.number}: the committed offset goes back to"
                f" {offset} from {self.committed}, committed by {self.by}"
            )
        self.committed, self.by = max(self.committed, offset), event.member


def check(
    events: Iterable[Event],
    produced: Mapping[int, Mapping[int, int]],
    *,
    paused: Set[str] | None = None,
) -> Verdict:
    """``produced``: partition -> offset -> number, of each record that is known to be stored.

    The log has every offset: no transactions, no compaction. ``paused``: given where members stand still
    or lose their coordinator for longer than a session, those that stood still. A member may then hear of
    an answer when others have gone on: one poll of what others have committed meanwhile is no fault, if
    its commit is refused; and what a member says of its commits does not prove their order.
    """
    verdict = Verdict()
    partitions: dict[int, _Partition] = {}

    def at(number: int) -> _Partition:
        return partitions.setdefault(number, _Partition(number))

    numbers: dict[tuple[int, int], int] = {}
    owned: dict[str, set[int]] = defaultdict(set)
    for event in sorted(events, key=lambda event: event.at_ms):
        if event.kind in ("assigned", "owned"):
            now = set(event.fields["partitions"])
            # Listeners are told what is new (cooperative) or all (eager): both start from what is committed.
            for number in now if event.kind == "assigned" else now - owned[event.member]:
                if event.kind == "assigned" or event.member not in at(number).floor:
                    at(number).assigned(event.member)
            if event.kind == "owned":
                owned[event.member] = now
        elif event.kind == "read":
            for key, records in event.fields["records"].items():
                offsets = [offset for offset, _ in records]
                for offset, number in records:
                    numbers.setdefault((int(key), offset), number)
                    verdict.read[int(key), offset] += 1
                verdict.problems += _in_order(event, int(key), offsets)
                verdict.problems += at(int(key)).read(event, offsets, paused)
        elif event.kind == "committed":
            verdict.commits += 1
            for key, offset in event.fields["offsets"].items():
                faults = list(at(int(key)).commit(event, offset))
                verdict.problems += faults if paused is None else []
        elif event.kind == "refused":
            verdict.refused += 1
    verdict.problems += _missing(produced, numbers)
    return verdict


def _in_order(event: Event, partition: int, offsets: Sequence[int]) -> list[str]:
    whole = all(b == a + 1 for a, b in itertools.pairwise(offsets))
    return [] if whole else [f"{event.member}, partition {partition}: one poll has {offsets}"]


def _missing(produced: Mapping[int, Mapping[int, int]], read: Mapping[tuple[int, int], int]) -> list[str]:
    problems = []
    for partition, stored in produced.items():
        lost = sorted(offset for offset in stored if (partition, offset) not in read)
        if lost:
            problems.append(
                f"partition {partition}: {len(lost)} of {len(stored)} records were never read,"
                f" from {lost[0]} to {lost[-1]}"
            )
        wrong = [
            offset for offset, number in stored.items() if read.get((partition, offset), number) != number
        ]
        if wrong:
            problems.append(f"partition {partition}: other records than were produced at {wrong[:10]}")
    return problems
