"""What workers say of logs that have lost records: partitions that they stopped at, and what they skip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.status_schema import SKIPS_KEPT

SKIPS_SHOWN_MS = 3_600_000
"""For how long skipped records keep the group Degraded."""
_NAMED = 5


@dataclass(frozen=True)
class StoppedPartition:
    """A partition that its worker reads nothing more of until a person has decided where to go on.

    Attributes:
        partition: which one.
        reason: `LogTruncated` or `TopicRecreated`.
        message: what happened and what to do.
    """

    partition: TopicPartition
    reason: str
    message: str


@dataclass(frozen=True)
class Skip:
    """Records that were gone from the log before a worker read them.

    Attributes:
        partition: whose.
        from_offset: the first offset that was skipped.
        to_offset: where the worker went on.
        cause: why they are gone: `retention`, which is also DeleteRecords.
        at_ms: when it was noticed (wall clock).
    """

    partition: TopicPartition
    from_offset: int
    to_offset: int
    cause: str
    at_ms: int

    @property
    def records(self) -> int:
        """How many offsets; a compacted log may have had fewer records."""
        return self.to_offset - self.from_offset

    def __str__(self) -> str:
        return f"{self.partition}: {self.records} records, offsets {self.from_offset} to {self.to_offset - 1}"


def take_skips(
    kept: Sequence[Skip], told: Iterable[Skip], now_ms: int
) -> tuple[tuple[Skip, ...], tuple[Skip, ...]]:
    """What is to be kept of the skips, oldest first, and what of it is new.

    A skip that is told twice counts once: the worker that had the partition may have ended before its commit.
    No more than `SKIPS_KEPT` are kept; what is beyond that shows in the workers' metrics alone.

    Args:
        kept: those of before.
        told: what the workers say.
        now_ms: wall clock; a worker's clock that is ahead of it does not count.
    """
    since_ms = now_ms - SKIPS_SHOWN_MS
    recent = [skip for skip in kept if skip.at_ms > since_ms]
    known = {replace(skip, at_ms=0) for skip in recent}
    new = []
    for skip in sorted(told, key=lambda skip: (skip.at_ms, skip.partition)):
        if skip.at_ms > since_ms and replace(skip, at_ms=0) not in known:
            known.add(replace(skip, at_ms=0))
            new.append(replace(skip, at_ms=min(skip.at_ms, now_ms)))
    new = new[: SKIPS_KEPT - len(recent)]
    return (*recent, *new), tuple(new)


def skips_text(skips: Sequence[Skip]) -> str:
    """What was skipped, for a message."""
    named = "; ".join(map(str, skips[:_NAMED]))
    more = f"; and {len(skips) - _NAMED} more ranges" if len(skips) > _NAMED else ""
    return (
        "Kafka deleted records before the group consumed them (retention, or DeleteRecords); they were "
        f"skipped: {named}{more}"
    )


def stopped_text(stopped: Sequence[StoppedPartition]) -> str:
    """Why partitions of one reason are stopped: the first one's message, and which others there are."""
    names = [str(one.partition) for one in stopped[1:]]
    if not names:
        return stopped[0].message
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{stopped[0].message} (also for {', '.join(names[:_NAMED])}{more})"


def by_reason(stopped: Iterable[StoppedPartition]) -> dict[str, list[StoppedPartition]]:
    """The stopped partitions by their reason, in order."""
    found: dict[str, list[StoppedPartition]] = {}
    for one in sorted(stopped, key=lambda one: (one.reason, one.partition)):
        found.setdefault(one.reason, []).append(one)
    return found
