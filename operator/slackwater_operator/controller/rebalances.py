"""Counts rebalances by cause.

A generation that the workers join is a rebalance; with the consumer protocol, an epoch. One whose join was
asked for by a member that had just revoked (the second half of a cooperative one) counts as one with the
generation before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slackwater_operator.model.group import Terms

SCALE, ROLLOUT, TOPICS, UNPLANNED = "scale", "rollout", "topics", "unplanned"
OURS_FOR_MS = 60_000
"""For how long after we let members in, or took some out, a rebalance is taken for ours."""
_SOON_MS = 5_000
"""Within this time after we let members in, or took some out, the rebalance that this costs has begun."""
_BEFORE_MS = 2_000
"""So much earlier a worker's clock may have it."""
UNPLANNED_KEPT_MS = 600_000
"""For how long an unplanned rebalance is told of."""


@dataclass(frozen=True)
class Rebalance:
    """A rebalance.

    Attributes:
        generation: the group's generation after it.
        at_ms: when the first worker joined it.
        cause: `scale`, `rollout`, `topics` (partitions or topics have come or gone) or `unplanned`.
        took_ms: how long it took the slowest worker; None: not known.
    """

    generation: int
    at_ms: int
    cause: str
    took_ms: int | None = None


class RebalanceWatch:
    """Counts one group's rebalances. In memory only: generations before its start do not count."""

    def __init__(self) -> None:
        self._newest: int | None = None
        self._scaled_ms: int | None = None
        self._announced_ms: int | None = None
        self._topics_ms: tuple[int, int] | None = None  # between which two looks they have changed
        self._looked_ms: int | None = None
        self._awaits_ms: int | None = None
        self._away: tuple[int, str] | None = None
        self._unplanned: deque[tuple[int, int, str]] = deque(maxlen=5)  # when, generation, cause or ""

    def scaled(self, now_ms: int) -> None:
        """Members have just been admitted or removed."""
        self._scaled_ms = now_ms

    def announced(self, now_ms: int) -> None:
        """A rollout is under way that makes the group rebalance by itself."""
        self._announced_ms = now_ms

    def topics_changed(self, now_ms: int) -> None:
        """A topic has changed its number of partitions, was created or deleted."""
        if self._topics_ms is None or self._topics_ms[1] != now_ms:
            looked_ms = self._looked_ms if self._looked_ms is not None else now_ms
            self._topics_ms = (max(looked_ms, now_ms - OURS_FOR_MS), now_ms)

    def away(self, why: str, now_ms: int) -> None:
        """A worker does not respond, or fails: it leaves the group when its session ends, which may show here
        before that, and joins again later.

        Args:
            why: which worker and what is known, in words; "" if there is none now.
            now_ms: wall clock.
        """
        if not why:
            return
        self._away = (now_ms, why)
        self._unplanned = deque(
            (
                (at_ms, generation, cause or (why if now_ms - at_ms < OURS_FOR_MS else ""))
                for at_ms, generation, cause in self._unplanned
            ),
            maxlen=self._unplanned.maxlen,
        )

    def awaits(self, topics_ms: int | None) -> bool:
        """Whether a rebalance was not counted before the topics had been looked at, and by now they have."""
        return self._awaits_ms is not None and topics_ms is not None and topics_ms >= self._awaits_ms

    def observe(
        self,
        generations: Iterable[tuple[int, bool, int]],
        *,
        now_ms: int,
        restarting: bool,
        forced: str = "",
        took_ms: Mapping[int, int] | None = None,
        topics_ms: int | None = None,
    ) -> list[Rebalance]:
        """Takes in what the workers joined; gives the rebalances that are new.

        Args:
            generations: (generation, whether it was a second half, when) of all workers.
            now_ms: wall clock.
            restarting: whether a restart of ours is under way.
            forced: why the broker may have done it; "".
            took_ms: how long each generation's rebalance took, where known.
            topics_ms: when the topics were looked at last; None: not known. The members see a change before
                that shows here, so a rebalance without another cause as near is not counted before the
                topics have been looked at.
        """
        self._looked_ms = topics_ms if topics_ms is not None else self._looked_ms
        first: dict[int, tuple[bool, int]] = {}
        for generation, second_half, at_ms in generations:
            before = first.get(generation)
            follows = second_half or (before is not None and before[0])
            first[generation] = (follows, at_ms if before is None else min(at_ms, before[1]))
        self._awaits_ms = None
        if not first:
            return []
        if self._newest is None:
            self._newest = max(first)
            return []
        rebalances: list[Rebalance] = []
        for generation in sorted(number for number in first if number > self._newest):
            follows, at_ms = first[generation]
            if not (follows and generation == self._newest + 1):
                cause, away_ms = self._cause(at_ms, restarting=restarting, forced=forced)
                looked = topics_ms is None or topics_ms >= at_ms or now_ms - at_ms >= OURS_FOR_MS
                if away_ms and not looked:
                    self._awaits_ms = at_ms
                    break
                rebalances.append(Rebalance(generation, at_ms, cause, (took_ms or {}).get(generation)))
                if cause == UNPLANNED:
                    self._unplanned.append((now_ms, generation, forced or self._why_away(now_ms)))
            self._newest = generation
        return rebalances

    def unplanned(self, now_ms: int, terms: Terms) -> tuple[str, ...]:
        """The unplanned rebalances of the last ten minutes, a line each. `terms`: the group's."""
        return tuple(
            f"{terms.generation} {generation}: {why or 'no known cause'}"
            for at_ms, generation, why in self._unplanned
            if now_ms - at_ms < UNPLANNED_KEPT_MS
        )

    def _why_away(self, now_ms: int) -> str:
        since_ms, why = self._away or (0, "")
        return why if now_ms - since_ms < UNPLANNED_KEPT_MS else ""

    def _cause(self, at_ms: int, *, restarting: bool, forced: str) -> tuple[str, int]:
        """The cause that lies nearest in time of those that fit, and how far away it is (ms); of two that are
        equally near the one that is ours.

        What the broker may have done, and a restart, have no time of their own: they count where nothing else
        fits, the former as no distance, since looking at the topics would not change that.
        """
        near: list[tuple[int, str]] = []
        if self._scaled_ms is not None and at_ms - self._scaled_ms > -_BEFORE_MS:
            near.append((max(0, at_ms - self._scaled_ms - _SOON_MS), SCALE))
        if self._announced_ms is not None:
            near.append((max(0, abs(at_ms - self._announced_ms) - _SOON_MS), ROLLOUT))
        if self._topics_ms is not None:
            since_ms, until_ms = self._topics_ms
            near.append((max(0, since_ms - at_ms, at_ms - until_ms), TOPICS))
        away_ms, cause = min(near, key=lambda each: each[0], default=(OURS_FOR_MS, UNPLANNED))
        if away_ms < OURS_FOR_MS:
            return cause, away_ms
        if forced:
            return UNPLANNED, 0
        return (ROLLOUT, 0) if restarting else (UNPLANNED, OURS_FOR_MS)
