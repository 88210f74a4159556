"""``metrics(raw=True)``: one object for each metric, which reads the current value on each access.

The shape is kafka-python's: ``{MetricName: KafkaMetric}``, where a name has a group and tags. The tags are
Java's (``client-id``; ``topic``, ``partition``, ``node-id``), and so are the groups, but for a broker's,
which is ``consumer-node-metrics.node-ID`` as in kafka-python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slackwater.kafka.metrics.sensors import Values


@dataclass(frozen=True, slots=True)
class Source:
    """Where the figures of one group come from: ``read`` gives them as of a time (ms of the client's clock).

    ``group`` and ``tags``: what they have in their :class:`MetricName`.
    """

    group: str
    read: Callable[[float], Values]
    tags: Mapping[str, str] = field(default_factory=dict)


Sources = dict[str, Source]
"""By the name of the group in ``metrics()``."""


@dataclass(frozen=True, slots=True)
class MetricName:
    """A figure's name. Equal where name, group and tags are. ``description`` is always empty."""

    name: str
    group: str
    description: str = field(default="", compare=False)
    tags: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.name, self.group, frozenset(self.tags.items())))


@dataclass(frozen=True, slots=True)
class KafkaMetric:
    """One figure."""

    metric_name: MetricName
    _read: Callable[[float], Values] = field(repr=False)
    _now_ms: Callable[[], float] = field(repr=False)

    def value(self, time_ms: float | None = None) -> float:
        """The figure as of ``time_ms`` (default: now) of ``time.monotonic()`` in ms; NaN once there is no
        such thing any more. From any thread, and when the consumer is closed, too."""
        now = self._now_ms() if time_ms is None else time_ms
        return float(self._read(now).get(self.metric_name.name, math.nan))


def values(sources: Sources, now_ms: float) -> dict[str, Values]:
    """All figures as of one time, by group."""
    return {name: source.read(now_ms) for name, source in sources.items()}


def raw(sources: Sources, now_ms: Callable[[], float], client_id: str) -> dict[MetricName, KafkaMetric]:
    """Each figure that there is now."""
    metrics = {}
    now = now_ms()
    for source in sources.values():
        tags = {"client-id": client_id, **source.tags}
        for figure in source.read(now):
            name = MetricName(figure, source.group, tags=tags)
            metrics[name] = KafkaMetric(name, source.read, now_ms)
    return metrics
