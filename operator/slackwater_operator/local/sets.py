"""The sets of a run's workers: one at rest, two during a takeover, as a group's StatefulSets are.

A takeover moves the members one by one from the set that is left (`old`) to the one that is filled (`new`);
the way back is the same with the two exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from slackwater_operator.model.statefulsets import Ordinals
from slackwater_operator.policies.takeover.types import SetView


@dataclass
class WorkerSet:
    """A set of workers of one revision.

    Attributes:
        seen: its name and its ordinals, as decisions look at it.
        revision: what its processes are started with from now on.
    """

    seen: SetView
    revision: int

    @property
    def name(self) -> str:
        """Its name; its pods are called NAME-ordinal."""
        return self.seen.name

    @property
    def ordinals(self) -> Ordinals:
        """Its ordinals."""
        return self.seen.ordinals

    def pod(self, ordinal: int) -> str:
        """The name of its pod of that ordinal."""
        return f"{self.name}-{ordinal}"

    def add(self, ordinal: int) -> None:
        """Gains an ordinal. Raises ValueError where it is not next to those that the set has."""
        self.seen = self.seen.having(ordinal)

    def drop(self, ordinal: int) -> None:
        """Loses an ordinal. Raises ValueError where it is in the middle of those that the set has."""
        self.seen = self.seen.lacking(ordinal)


class Sets:
    """The sets of a group.

    Attributes:
        old: the set at rest; during a takeover the one that is left.
        new: during a takeover the one that is filled, None at rest.
    """

    def __init__(self, group: str, replicas: int, revision: int, *, takeover: bool) -> None:
        """One set with all workers.

        Args:
            group: the group's name.
            replicas: how many workers there are.
            revision: what they are started with.
            takeover: whether the group is rolled by takeover: then its pods are called GROUP-a-0 and so on.
                One that never was has pods that are called like their members.
        """
        self._group = group
        name = f"{group}-a" if takeover else group
        self.old = WorkerSet(SetView(name, Ordinals(0, replicas)), revision)
        self.new: WorkerSet | None = None

    def __iter__(self) -> Iterator[WorkerSet]:
        """The set that is left, then the one that is filled."""
        yield self.old
        if self.new is not None:
            yield self.new

    def has(self, name: str, ordinal: int) -> bool:
        """Whether the set of that name is there and has that ordinal."""
        return any(one.name == name and ordinal in one.ordinals for one in self)

    def begin(self, revision: int) -> None:
        """Makes the set that is to be filled, empty yet: `a` and `b` take turns.

        Raises:
            ValueError: there are two already.
        """
        if self.new is not None:
            raise ValueError(f"{self.old.name} is being left for {self.new.name} already")
        turn = "b" if self.old.name == f"{self._group}-a" else "a"
        self.new = WorkerSet(SetView(f"{self._group}-{turn}"), revision)

    def turn_back(self) -> None:
        """Leaves the set that was being filled, for the one that was being left."""
        assert self.new is not None
        self.old, self.new = self.new, self.old

    def finish(self) -> None:
        """Drops the set that is left, which must be empty by now."""
        assert self.new is not None
        assert not self.old.ordinals, f"{self.old.name} is not empty"
        self.old, self.new = self.new, None

    def scale(self, replicas: int) -> None:
        """Makes it `replicas` members: the set with the highest ordinals grows or shrinks.

        A set that has none left then is gone, if there are two.
        """
        for one in sorted(self, key=lambda one: one.ordinals.top, reverse=True):
            start, keeps = one.ordinals.start, max(0, replicas - one.ordinals.start)
            one.seen = replace(one.seen, ordinals=Ordinals(start if keeps else 0, keeps))
            if keeps:
                break
        if self.new is not None and not self.new.ordinals:
            self.new = None
        elif self.new is not None and not self.old.ordinals:
            self.finish()
