"""status.scaling: the last scaling decision, and what the next one needs."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator.api.v1alpha1.status.declaration import (
    COUNT,
    NUMBER,
    TEXT,
    many,
    one,
    stored,
)


@dataclass(frozen=True)
class ScalingStep:
    """The last change of the number of workers."""

    before: int = stored(COUNT, "The number of workers before it.")
    after: int = stored(COUNT, "The number of workers after it.")
    consumed_per_s_before: float | None = stored(
        NUMBER,
        "Records consumed per second before it. Absent if not measured.",
        default=None,
        name="consumedPerS",
    )
    at_ms: int = stored(
        COUNT, "When it was made (milliseconds since 1970).", default=0, required=True, name="at"
    )
    took_ms: int | None = stored(
        COUNT,
        "How long the group took to become stable, in milliseconds. Absent until it is, or if not observed.",
        default=None,
    )


@dataclass(frozen=True)
class Ceiling:
    """A number of workers that reduced the throughput."""

    replicas: int = stored(COUNT, "That number.")
    until_ms: int = stored(COUNT, "When it may be tried again (milliseconds since 1970).")


@dataclass(frozen=True)
class TooFewStatus:
    """A number of workers that proved too small after scaling down."""

    replicas: int = stored(COUNT, "That number.")
    until_ms: int = stored(COUNT, "When the group may scale down to it again (milliseconds since 1970).")
    hold_ms: int = stored(COUNT, "For how long it may not, in milliseconds; longer each time.", default=0)


@dataclass(frozen=True)
class ScalingStatus:
    """The last scaling decision, and the measurements that the next one needs."""

    raw: float | None = stored(NUMBER, "The number of workers that the targets require.", default=None)
    capped: int | None = stored(COUNT, "That number within the limits.", default=None)
    cap: str = stored(TEXT, "The limit that applied.", default="")
    damping: str = stored(TEXT, "Why a step was delayed or reduced.", default="")
    applied: int | None = stored(COUNT, "The number of workers that was decided.", default=None)
    reason: str = stored(TEXT, "Why.", default="")
    last_step: ScalingStep | None = stored(
        one(ScalingStep), "The last change of the number of workers.", default=None
    )
    ceiling: Ceiling | None = stored(
        one(Ceiling), "A number of workers that reduced the throughput.", default=None
    )
    too_few: TooFewStatus | None = stored(
        one(TooFewStatus), "A number of workers that proved too small after scaling down.", default=None
    )
    settle_ms: int | None = stored(
        COUNT, "How long the longest change has taken, in milliseconds.", default=None
    )
    lost_ms: int | None = stored(
        COUNT,
        "How long a rebalance interrupts the consumption of a partition on average, in milliseconds.",
        default=None,
    )
    capacity_per_s: float | None = stored(
        NUMBER,
        "Records per second that one worker can process, rounded to two significant digits.",
        default=None,
    )
    partitions: int | None = stored(COUNT, "The number of partitions of the topics.", default=None)
    skewed: tuple[str, ...] = stored(
        many(TEXT, 1_000),
        "Partitions whose records arrive faster than one worker can process them.",
        default=(),
    )
