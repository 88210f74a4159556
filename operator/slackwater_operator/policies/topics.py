"""Detects changes of a group's topics: added partitions, created and deleted topics.

Each such change causes a rebalance when the group's leader refreshes its metadata. It is reported by name,
so that the rebalance has a known cause.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.model.wording import enumerated

TOPIC_MISSING = "TopicMissing"
"""The reason of the Event and of the condition Degraded where a topic does not exist."""
CREATED, GREW = "TopicCreated", "PartitionsAdded"

_KEPT = 20
_NAMED = 5
_LINGERS_MS = 60_000
"""The members look at the metadata by themselves: their rebalance comes up to this much earlier or later."""


@dataclass(frozen=True)
class TopicChange:
    """A change of a topic.

    Attributes:
        at_ms: when it was observed.
        reason: the Event's reason: `TopicMissing`, `TopicCreated` or `PartitionsAdded`.
        action: what happened, beginning with a verb, for the decision records: `grow flights to 9`.
        message: a sentence: `topic flights grew from 6 to 9 partitions`.
    """

    at_ms: int
    reason: str
    action: str
    message: str

    @property
    def warning(self) -> bool:
        """Whether a person has to act."""
        return self.reason == TOPIC_MISSING


def missing_topics_message(topics: Sequence[str]) -> str:
    """Which topics are missing, and what to do."""
    single = len(topics) == 1
    what = f"topic{'' if single else 's'} {enumerated(topics, _NAMED)} {'does' if single else 'do'} not exist"
    return f"{what}; create {'it' if single else 'them'}, or correct the spec"


class TopicWatch:
    """Follows one group's topics. In memory only: the first observation shows no change.

    Attributes:
        unreported: the changes that have not been reported yet, oldest first.
    """

    def __init__(self) -> None:
        self._topics: tuple[str, ...] | None = None
        self._counts: Counter[str] | None = None
        self._missing: frozenset[str] = frozenset()
        self._seen: deque[TopicChange] = deque(maxlen=_KEPT)
        self.unreported: tuple[TopicChange, ...] = ()

    def observe(self, snapshot: KafkaSnapshot, *, now_ms: int, topics: Collection[str]) -> None:
        """Takes in an observation.

        Args:
            snapshot: the newest one.
            now_ms: the time.
            topics: the topics that the spec lists; empty with a pattern. A change of the list is not a
                change of the topics.
        """
        listed = tuple(sorted(topics))
        counts, missing = (
            Counter(partition.topic for partition in snapshot.partitions),
            frozenset(snapshot.missing),
        )
        before, was_missing = self._counts, self._missing
        same = listed == self._topics
        self._topics, self._counts, self._missing = listed, counts, missing
        if before is None or not same:
            changes = [_missing(now_ms, topic) for topic in sorted(missing - was_missing)]
        else:
            changes = _changes(before, counts, was_missing, missing, listed, now_ms)
        self._seen += changes
        self.unreported = (*self.unreported, *changes)[-_KEPT:]

    def since(self, at_ms: int) -> str:
        """The changes since `at_ms`, or shortly before, in words; "" without any."""
        messages = [change.message for change in self._seen if change.at_ms >= at_ms - _LINGERS_MS]
        return "; ".join(dict.fromkeys(messages))

    def mark_reported(self, changes: Collection[TopicChange]) -> None:
        """Marks changes as reported."""
        self.unreported = tuple(change for change in self.unreported if change not in changes)


def _changes(
    before: Counter[str],
    counts: Counter[str],
    was_missing: frozenset[str],
    missing: frozenset[str],
    listed: Collection[str],
    now_ms: int,
) -> list[TopicChange]:
    result = [_missing(now_ms, topic, deleted=topic in before) for topic in sorted(missing - was_missing)]
    for topic in sorted(before.keys() | counts.keys()):
        old, new = before[topic], counts[topic]
        if old and new and old != new:
            message = f"topic {topic} grew from {old} to {new} partitions"
            change = TopicChange(now_ms, GREW, f"grow {topic} to {new}", message)
            if new < old:  # no topic loses partitions
                message = f"topic {topic} was recreated with {new} partitions (before: {old})"
                change = TopicChange(now_ms, CREATED, f"create {topic}", message)
            result.append(change)
        elif new and not old and (not listed or topic in was_missing):
            message = f"topic {topic} was created, with {new} partition{'' if new == 1 else 's'}"
            result.append(TopicChange(now_ms, CREATED, f"create {topic}", message))
        elif old and not new and not listed:
            result.append(_missing(now_ms, topic, deleted=True))
    return result


def _missing(now_ms: int, topic: str, *, deleted: bool = False) -> TopicChange:
    if deleted:
        return TopicChange(now_ms, TOPIC_MISSING, f"delete {topic}", f"topic {topic} was deleted")
    return TopicChange(now_ms, TOPIC_MISSING, f"miss {topic}", f"topic {topic} does not exist; create it")
