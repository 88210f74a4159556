"""Notices: changes of the assignment that the application's listener has to handle, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from slackwater.kafka.structs import TopicPartition


class NoticeKind(Enum):
    """Which of the listener's methods a notice calls."""

    REVOKED = "revoked"
    LOST = "lost"
    ASSIGNED = "assigned"


@dataclass(frozen=True, slots=True)
class Notice:
    """A change of the assignment, handled on the application's thread.

    Partitions of a REVOKED or LOST notice leave the assignment after the listener has returned; those of an
    ASSIGNED notice enter it before the listener is called. ``blocking``: the member waits for the listener.
    """

    kind: NoticeKind
    partitions: tuple[TopicPartition, ...]
    blocking: bool = True


class NoticeQueue:
    """The notices that the application has not handled yet, oldest first."""

    def __init__(self) -> None:
        self._waiting: deque[Notice] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Notice]:
        return iter(self._waiting)

    def __getitem__(self, index: int) -> Notice:
        return self._waiting[index]

    @property
    def is_blocking(self) -> bool:
        """Whether the member has to wait for the application."""
        return any(notice.blocking for notice in self._waiting)

    @property
    def lost(self) -> frozenset[TopicPartition]:
        """The partitions of the LOST notices."""
        lost = (notice.partitions for notice in self._waiting if notice.kind is NoticeKind.LOST)
        return frozenset(tp for partitions in lost for tp in partitions)

    def add(self, notice: Notice) -> None:
        """Appends a notice."""
        self._waiting.append(notice)

    def extend(self, notices: Iterable[Notice]) -> None:
        """Appends several notices."""
        self._waiting.extend(notices)

    def remove_first(self) -> None:
        """The application has handled the first notice."""
        self._waiting.popleft()

    def clear(self) -> None:
        """Drops all notices."""
        self._waiting.clear()

    def keep_subscribed(self, topics: Collection[str], owned: Collection[TopicPartition]) -> bool:
        """Removes partitions of topics other than ``topics`` from ASSIGNED notices; returns whether any were.

        ``owned``: the partitions that the application holds. If it holds partitions of the first notice, its
        listener is handling that notice now: the notice stays, and the partitions have to be revoked later.
        Partitions that are removed here never entered the assignment. A notice without partitions does not
        block.
        """
        changed = False
        for index, notice in enumerate(self._waiting):
            if notice.kind is not NoticeKind.ASSIGNED:
                continue
            if index == 0 and any(tp in owned for tp in notice.partitions):
                continue
            kept = tuple(tp for tp in notice.partitions if tp.topic in topics)
            if kept != notice.partitions:
                self._waiting[index] = replace(notice, partitions=kept, blocking=bool(kept))
                changed = True
        return changed

    def drop_given_up(self, partitions: Collection[TopicPartition]) -> None:
        """Removes partitions that the application has given up from all notices but the ASSIGNED ones."""
        given_up, waiting = set(partitions), list(self._waiting)
        self._waiting.clear()
        for notice in waiting:
            if notice.kind is NoticeKind.ASSIGNED:
                self._waiting.append(notice)
            elif kept := tuple(tp for tp in notice.partitions if tp not in given_up):
                self._waiting.append(replace(notice, partitions=kept))
