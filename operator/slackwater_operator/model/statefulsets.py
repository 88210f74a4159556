"""The group's StatefulSets: which of two is filled and which is left, and which ordinals each has.

A group is at rest in one set. While its members are taken over by pods of another revision there are two:
the one that is *left* loses ordinals, the one that is *filled* gets them, and together they have the ordinals
from 0 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slackwater_operator.model.names import SETS

Manifest = dict[str, Any]
"""A Kubernetes object as the API server gives or takes it."""


@dataclass(frozen=True)
class StatefulSetSnapshot:
    """One of the group's StatefulSets.

    Attributes:
        name: its name.
        suffix: which of the group's sets (`names.SETS`) it is.
        uid: its uid.
        start: spec.ordinals.start, its first pod's ordinal.
        replicas: spec.replicas.
        existing: status.replicas, the pods that it has.
        template: the HASH of its template (`slackwater.dev/revision`), "" without.
        update_revision: status.updateRevision, "" when the controller has not looked at the newest spec yet
            (status.observedGeneration is behind): an older one would call pods up to date that are not.
        deleting: whether it has a deletionTimestamp.
        created_ms: when it was made.
        manifest: the object.
    """

    name: str
    suffix: str
    uid: str
    start: int
    replicas: int
    existing: int
    template: str
    update_revision: str
    deleting: bool
    created_ms: int
    manifest: Manifest

    @property
    def span(self) -> Ordinals:
        """The ordinals of its pods."""
        return Ordinals(self.start, self.replicas)


@dataclass(frozen=True)
class Ordinals:
    """The ordinals `start` to `start + replicas - 1`; none where `replicas` is 0."""

    start: int
    replicas: int

    @property
    def end(self) -> int:
        """The first ordinal after it; 0 where it is empty."""
        return self.start + self.replicas if self.replicas else 0

    @property
    def top(self) -> int:
        """Its highest ordinal; -1 where it is empty."""
        return self.end - 1

    def __len__(self) -> int:
        return self.replicas

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.start + self.replicas))

    def __contains__(self, ordinal: object) -> bool:
        return isinstance(ordinal, int) and self.start <= ordinal < self.start + self.replicas

    def with_(self, ordinal: int) -> Ordinals:
        """With that ordinal, and those in between."""
        if not self.replicas:
            return Ordinals(ordinal, 1)
        start = min(self.start, ordinal)
        return Ordinals(start, max(self.end, ordinal + 1) - start)

    def without(self, ordinal: int) -> Ordinals:
        """Without that ordinal, where it is the first or the last: the others in between would go, too."""
        if ordinal not in self:
            return self
        if ordinal == self.start and self.replicas > 1:
            return Ordinals(self.start + 1, self.replicas - 1)
        return Ordinals(self.start, self.replicas - 1) if ordinal == self.end - 1 else self

    def below(self, count: int) -> Ordinals:
        """Those of its ordinals that are below `count`."""
        return Ordinals(self.start, max(0, min(self.replicas, count - self.start)))


NO_ORDINALS = Ordinals(0, 0)


@dataclass(frozen=True)
class Arrangement:
    """Which set is which.

    Attributes:
        filled: the set at rest, or of two the one that is filled; None when there is none.
        left: of two the one that is left; None at rest.
    """

    filled: StatefulSetSnapshot | None = None
    left: StatefulSetSnapshot | None = None


def arrange(
    sets: Mapping[str, StatefulSetSnapshot], *, wanted: str, failed: str = "", filled: str = ""
) -> Arrangement:
    """Tells of two sets which is filled and which is left.

    The first of these that names one alone is filled:

    1. the set whose pod has been told to take over: that is ended first, whatever is wanted by now;
    2. the set that is not being deleted;
    3. the set that has not the template that failed: the way back;
    4. the set that has the template that is wanted: a roll, or a user's way back to what was before;
    5. with neither (a third revision in the middle of a roll), or both (pods that a hand has made outdated),
       the younger set, which was made to be filled; the older one, where that very template failed.

    Args:
        sets: the group's sets by their suffix.
        wanted: the HASH of the template that is wanted.
        failed: the HASH of the template that failed, "" when none has.
        filled: the name of the set whose pod has been told to take over, "" when none has.
    """
    there = [sets[suffix] for suffix in SETS if suffix in sets]
    if len(there) < 2:
        return Arrangement(*there)
    moving = [statefulset for statefulset in there if statefulset.name == filled]
    if moving:
        return _two(moving[0], there)
    left = [statefulset for statefulset in there if not statefulset.deleting] or there
    for kept in (
        [statefulset for statefulset in left if not failed or statefulset.template != failed],
        [statefulset for statefulset in left if statefulset.template == wanted and wanted != failed],
    ):
        if len(kept) == 1:
            return _two(kept[0], there)
        left = kept or left
    stays_failed = bool(failed) and all(statefulset.template == failed for statefulset in left)
    by_age = sorted(left, key=lambda statefulset: statefulset.created_ms)
    return _two(by_age[0] if stays_failed else by_age[-1], there)


def _two(filled: StatefulSetSnapshot, there: Iterable[StatefulSetSnapshot]) -> Arrangement:
    return Arrangement(filled, next(statefulset for statefulset in there if statefulset is not filled))


def members(sets: Mapping[str, StatefulSetSnapshot]) -> int:
    """How many members the sets have together: the ordinals from 0 to the highest."""
    return max((statefulset.span.end for statefulset in sets.values()), default=0)


def scaled(spans: Mapping[str, Ordinals], count: int, *, filled: str) -> dict[str, Ordinals]:
    """The sets' ordinals with that many members: the set with the highest ordinals grows or shrinks.

    Args:
        spans: by suffix what each set has.
        count: how many members there are to be.
        filled: the set that grows where both end at the same ordinal, or none has any.
    """
    result = {suffix: span.below(count) for suffix, span in spans.items()}
    end = max(span.end for span in result.values())
    if end < count:
        top = max(result, key=lambda suffix: (result[suffix].end, suffix == filled))
        span = result[top]
        result[top] = Ordinals(span.start, count - span.start) if span.replicas else Ordinals(0, count)
    return result


def next_suffix(suffix: str) -> str:
    """The set that a roll goes to from this one: `a` and `b` in turn."""
    return "b" if suffix == "a" else "a"


__all__ = [
    "NO_ORDINALS",
    "Arrangement",
    "Manifest",
    "Ordinals",
    "StatefulSetSnapshot",
    "arrange",
    "members",
    "next_suffix",
    "scaled",
]
