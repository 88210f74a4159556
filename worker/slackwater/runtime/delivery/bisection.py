"""Finds the records with which a batch fails: selections to try come out, verdicts go in. It does no I/O.

Records are numbered in the batch's order. A record is at fault where it fails alone, or where it fails with
records that are good together: a text in a column in which most records have numbers is a column of text when
it is alone.

For ``k`` records at fault of ``n`` it asks for at most ``4 * k * (log2(n) + 1) + 3 * k + 1`` trials. Where
a fault names the records, they are left out, and one trial shows whether the others pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST = 100
"""The most records of one batch that may be at fault, whatever its size."""
MOST_SHARE = 0.1
"""The largest share of a batch that may be at fault, where that is more than :data:`ALWAYS`."""
ALWAYS = 10
"""So many may be at fault in any batch; and in a row, over several batches, with no good one in between."""


@dataclass(frozen=True)
class SelectionFault:
    """Why a selection failed.

    ``reason``: in one line. ``by_value``: whether it is of a kind that records cause by what is in them (a
    value or type that does not fit), so that it tells something even where nothing succeeds. ``stack``: the
    traceback of what the handler raised; "": it raised nothing. ``reasons``: by record, why it is at
    fault for certain, whatever else is tried with it; any number may be.
    """

    reason: str
    by_value: bool = True
    stack: str = ""
    reasons: Mapping[Any, str] = field(default_factory=dict)


class TooManyFaultsError(Exception):
    """More records fail than may be at fault: it is the handler. ``first`` is one of the faults."""

    def __init__(self, most: int, first: SelectionFault) -> None:
        self.most, self.first = most, first
        super().__init__(f"more than {most} records fail")


class SizeFaultError(Exception):
    """The batch fails for its size: its parts pass. No record is at fault."""


Search = Generator[Sequence[int], SelectionFault | None, dict[int, SelectionFault]]
"""Yields the numbers of the records to try together, in order; is sent the fault, or None where they pass.
Returns the records at fault. All others passed together."""


def limit(count: int) -> int:
    """How many records of a batch of ``count`` may be at fault."""
    return max(ALWAYS, min(MOST, int(count * MOST_SHARE)))


def search(count: int, fault: SelectionFault, most: int, key: Callable[[int], Any] = int) -> Search:
    """The records at fault in a batch of ``count``, which failed with ``fault``.

    ``key``: the record with this number in the ``reasons`` of faults.

    Raises:
        TooManyFaultsError: more than ``most`` are.
        SizeFaultError: none is.
    """
    if len(_named(range(count), fault, key)) == count:
        # Once more: what the handler works with may have been away for a moment.
        again = yield range(count)
        if again is None:
            return {}
        fault = again
    named: dict[int, SelectionFault] = {}
    bad, pieces = yield from _failing_alone(range(count), fault, most, key, named)
    for record in sorted(bad):  # once more: what the handler works with may have been away for a moment
        again = yield [record]
        if again is None:
            del bad[record]
            pieces.append(range(record, record + 1))
    rest = sorted(record for piece in pieces for record in piece)
    if not rest or pieces == [rest]:
        return bad | named
    together = yield rest
    if together is not None:
        yield from _failing_together(pieces, rest, together, bad, most)
    return bad | named


def _failing_alone(
    records: Sequence[int],
    fault: SelectionFault,
    most: int,
    key: Callable[[int], Any],
    named: dict[int, SelectionFault],
) -> Generator[Sequence[int], SelectionFault | None, tuple[dict[int, SelectionFault], list[Sequence[int]]]]:
    """The records that fail by themselves, and the pieces of the batch that pass by themselves. Those that a
    fault names are added to ``named``, and are in neither."""
    bad: dict[int, SelectionFault] = {}
    passing: list[Sequence[int]] = []
    failing = deque([(records, fault)])
    while failing:
        # There is at least one record at fault in each failing piece, and no record is in two.
        if len(failing) + len(bad) > most:
            raise TooManyFaultsError(most, failing[0][1])
        piece, fault = failing.popleft()
        if found := _named(piece, fault, key):
            named.update(found)
            tried: list[Sequence[int]] = [[record for record in piece if record not in found]]
        elif len(piece) == 1:
            bad[piece[0]] = fault
            continue
        else:
            tried = list(_halves(piece))
        for part in filter(None, tried):
            fault_of_part = yield part
            if fault_of_part is None:
                passing.append(part)
            else:
                failing.append((part, fault_of_part))
    return bad, passing


def _named(
    records: Sequence[int], fault: SelectionFault, key: Callable[[int], Any]
) -> dict[int, SelectionFault]:
    """Those of ``records`` that ``fault`` names."""
    if not fault.reasons:
        return {}
    named = {record: fault.reasons.get(key(record)) for record in records}
    return {record: SelectionFault(reason) for record, reason in named.items() if reason is not None}


def _failing_together(
    pieces: list[Sequence[int]],
    rest: list[int],
    fault: SelectionFault,
    bad: dict[int, SelectionFault],
    most: int,
) -> Generator[Sequence[int], SelectionFault | None, None]:
    """Adds to ``bad`` the records of ``pieces`` that fail with the largest piece, which counts as good."""
    sizes = [len(piece) for piece in pieces]
    good = list(pieces[sizes.index(max(sizes))])
    known = set(good)
    others = [record for record in rest if record not in known]
    failing: deque[tuple[Sequence[int], SelectionFault]] = deque([(others, fault)])
    shown = False
    while failing:
        if len(failing) + len(bad) > most:
            raise TooManyFaultsError(most, failing[0][1])
        # At first straight to one record, which shows whether it is the batch's size, then in breadth.
        piece, fault = failing.popleft() if shown else failing.pop()
        if len(piece) == 1:
            yield from _check_not_size(piece[0], good)
            shown = True
            bad[piece[0]] = fault
            continue
        for half in _halves(piece):
            fault_of_half = yield sorted([*good, *half])
            if fault_of_half is None:
                good.extend(half)
            else:
                failing.append((half, fault_of_half))


def _check_not_size(
    record: int, good: Sequence[int]
) -> Generator[Sequence[int], SelectionFault | None, None]:
    """Raises SizeFaultError where ``record``, which fails with all of ``good``, passes with either half."""
    for half in _halves(good):
        fault = yield sorted([*half, record])
        if fault is not None:
            return
    raise SizeFaultError


def _halves(piece: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    middle = len(piece) // 2
    return piece[:middle], piece[middle:]
