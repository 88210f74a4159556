"""The group's StatefulSets: which of two is the target of a rollout and which the source, and their
ordinals.

A group normally has one StatefulSet. While its members are taken over by pods of another revision it has
two: the *source* loses ordinals, the *target* gets them, and together they have all ordinals from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slackwater_operator.model.names import SETS

Manifest = dict[str, Any]
"""A Kubernetes object as the API server returns or takes it."""


@dataclass(frozen=True)
class StatefulSetSnapshot:
    """One of the group's StatefulSets.

    Attributes:
        name: its name.
        suffix: its suffix (`names.SETS`).
        uid: its uid.
        start: spec.ordinals.start, its first pod's ordinal.
        replicas: spec.replicas.
        existing: status.replicas, the number of its pods.
        template: the hash of its template (`slackwater.dev/revision`); "" without one.
        update_revision: status.updateRevision; "" while the controller has not processed the newest spec
            (status.observedGeneration is behind), since an earlier one would make outdated pods count as up
            to date.
        deleting: whether it has a deletionTimestamp.
        created_ms: when it was created.
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
    """The ordinals from `start` to `start + replicas - 1`; none if `replicas` is 0."""

    start: int
    replicas: int

    @property
    def end(self) -> int:
        """The first ordinal after it; 0 if it is empty."""
        return self.start + self.replicas if self.replicas else 0

    @property
    def top(self) -> int:
        """Its highest ordinal; -1 if it is empty."""
        return self.end - 1

    def __len__(self) -> int:
        return self.replicas

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.start + self.replicas))

    def __contains__(self, ordinal: object) -> bool:
        return isinstance(ordinal, int) and self.start <= ordinal < self.start + self.replicas

    def with_(self, ordinal: int) -> Ordinals:
        """These ordinals with another one, and those in between."""
        if not self.replicas:
            return Ordinals(ordinal, 1)
        start = min(self.start, ordinal)
        return Ordinals(start, max(self.end, ordinal + 1) - start)

    def without(self, ordinal: int) -> Ordinals:
        """These ordinals without the first or the last one; unchanged for any other, which cannot be removed
        alone."""
        if ordinal not in self:
            return self
        if ordinal == self.start and self.replicas > 1:
            return Ordinals(self.start + 1, self.replicas - 1)
        return Ordinals(self.start, self.replicas - 1) if ordinal == self.end - 1 else self

    def below(self, count: int) -> Ordinals:
        """Its ordinals below `count`."""
        return Ordinals(self.start, max(0, min(self.replicas, count - self.start)))


NO_ORDINALS = Ordinals(0, 0)


@dataclass(frozen=True)
class Arrangement:
    """Which of the StatefulSets is the target of a rollout, and which its source.

    Attributes:
        target: the only set, or of two the one that gets the members; None without any.
        source: of two the one that loses the members; None if there is only one.
    """

    target: StatefulSetSnapshot | None = None
    source: StatefulSetSnapshot | None = None


def arrange(
    sets: Mapping[str, StatefulSetSnapshot], *, wanted: str, failed: str = "", taking_over: str = ""
) -> Arrangement:
    """Determines target and source of two sets.

    The first rule that selects a single set determines the target:

    1. the set whose pod has been told to take over: that takeover is completed first, whatever is wanted now;
    2. the set that is not being deleted;
    3. the set without the failed template: a rollback;
    4. the set with the wanted template: a rollout, or a user's return to an earlier spec;
    5. if neither has it (a third revision during a rollout), or both (pods that somebody has made outdated),
       the younger set, which was created as a target; if that very template failed, the older one.

    Args:
        sets: the group's sets by their suffix.
        wanted: the hash of the wanted template.
        failed: the hash of the failed template; "" without one.
        taking_over: the name of the set whose pod has been told to take over; "" without one.
    """
    existing = [sets[suffix] for suffix in SETS if suffix in sets]
    if len(existing) < 2:
        return Arrangement(*existing)
    moving = [statefulset for statefulset in existing if statefulset.name == taking_over]
    if moving:
        return _two(moving[0], existing)
    candidates = [statefulset for statefulset in existing if not statefulset.deleting] or existing
    for kept in (
        [statefulset for statefulset in candidates if not failed or statefulset.template != failed],
        [statefulset for statefulset in candidates if statefulset.template == wanted and wanted != failed],
    ):
        if len(kept) == 1:
            return _two(kept[0], existing)
        candidates = kept or candidates
    stays_failed = bool(failed) and all(statefulset.template == failed for statefulset in candidates)
    by_age = sorted(candidates, key=lambda statefulset: statefulset.created_ms)
    return _two(by_age[0] if stays_failed else by_age[-1], existing)


def _two(target: StatefulSetSnapshot, existing: Iterable[StatefulSetSnapshot]) -> Arrangement:
    return Arrangement(target, next(statefulset for statefulset in existing if statefulset is not target))


def members(sets: Mapping[str, StatefulSetSnapshot]) -> int:
    """The number of members that the sets have together: the ordinals from 0 to the highest."""
    return max((statefulset.span.end for statefulset in sets.values()), default=0)


def scaled(spans: Mapping[str, Ordinals], count: int, *, target: str) -> dict[str, Ordinals]:
    """The sets' ordinals for that many members: the set with the highest ordinals grows or shrinks.

    Args:
        spans: by suffix, the present ordinals of each set.
        count: the wanted number of members.
        target: the suffix of the set that grows if both end at the same ordinal, or have none.
    """
    result = {suffix: span.below(count) for suffix, span in spans.items()}
    end = max(span.end for span in result.values())
    if end < count:
        top = max(result, key=lambda suffix: (result[suffix].end, suffix == target))
        span = result[top]
        result[top] = Ordinals(span.start, count - span.start) if span.replicas else Ordinals(0, count)
    return result


def next_suffix(suffix: str) -> str:
    """The suffix of a rollout's target, from that of its source: `a` and `b` in turn."""
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
