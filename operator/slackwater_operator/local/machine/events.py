"""Parses the events that a worker writes to stdout (docs/reference/worker.md, "Events")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.untrusted import json_object

EXIT_BAD_CONFIG = 2
EXIT_HANDLER_OR_SINK = 4


@dataclass(frozen=True)
class WorkerEvent:
    """An event of a worker.

    The supervisor adds its own: `spawned {pid, revision}`, `exited {code}` (negative: a signal) and
    `removed {}` (as a static member, from the group).

    Attributes:
        ts_ms: when, by the wall clock.
        event: its name.
        instance: the member that the worker is, or is to be.
        data: everything else.
        pod: the name of its process: a member may have two. "": as the member.
    """

    ts_ms: int
    event: str
    instance: str
    data: Mapping[str, Any] = field(default_factory=dict)
    pod: str = ""

    @property
    def process(self) -> str:
        """The name of the process that it is about."""
        return self.pod or self.instance

    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that an `assigned`, `revoked` or `lost` event names."""
        partitions = self.data.get("partitions", [])
        return frozenset(TopicPartition(str(topic), int(number)) for topic, number in partitions)


def parse_event(line: bytes | str, *, instance: str, now_ms: int, pod: str = "") -> WorkerEvent | None:
    """Reads a line of a worker's stdout; None for one that is no event.

    Args:
        line: the line.
        instance: the worker whose stdout it is; it counts, whatever the line says.
        now_ms: the time to take where the line has none.
        pod: the name of its process; "": as the worker.
    """
    try:
        fields = json_object(line)
    except ValueError:
        return None
    if not isinstance(fields.get("event"), str):
        return None
    at = fields.pop("ts_ms", now_ms)
    name = fields.pop("event")
    fields.pop("instance", None)
    if isinstance(at, bool) or not isinstance(at, int | float):
        at = now_ms
    return WorkerEvent(int(at), name, instance, fields, pod)
