"""Where the time of a restart goes on a real node, from the old process's end to the first record."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from slackwater_operator.local.report.timeline import Restart
from tests.support.node.pods import NodePods
from tests.support.site import Group

PHASES = ("stop", "kubelet", "container", "interpreter", "join", "first records")


@dataclass(frozen=True)
class RestartPhases:
    """ms by the names of :data:`PHASES`.

    ``stop``: last commit to the process's end. ``kubelet``: to the start of the new pod's sandbox, by API
    server, StatefulSet controller, scheduler and kubelet. ``container``: to the start of the worker's
    container. ``interpreter``: to the worker's event ``started``. ``join``: to the event ``joined``.
    ``first records``: to the first record, with what is warmed up before it.
    """

    instance: str
    phases: Mapping[str, int]

    @property
    def start_to_joined_ms(self) -> int:
        """From the pod's start (its sandbox's) to the membership."""
        return sum(self.phases[name] for name in ("container", "interpreter", "join"))

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {ms} ms" for name, ms in self.phases.items())
        return f"{self.instance}: {parts}; pod's start to joined {self.start_to_joined_ms} ms"


def restart_phases(group: Group, pods: NodePods, restart: Restart) -> RestartPhases | None:
    """The phases of a restart in which the pod was replaced; None where a moment of it is not known."""
    namespace, pod = group.site.namespace, restart.instance
    ended, joined = restart.ended_ms, restart.joined_ms

    def first(times: list[int]) -> int | None:
        between = [at for at in times if ended <= at <= joined]
        return min(between) if between else None

    sandbox = first([e.ts_ms for e in pods.sandboxes(namespace, pod) if e.event == "started"])
    container = first([e.ts_ms for e in pods.journal(namespace, pod) if e.event == "started"])
    events = [event for event in group.worker_events() if event.process == pod]
    started = first([event.ts_ms for event in events if event.event == "started"])
    records = [e.ts_ms for e in events if e.event == "first_records" and e.ts_ms >= joined]
    if sandbox is None or container is None or started is None or not records or restart.gap_ms is None:
        return None
    stop = max(0, restart.gap_ms - (records[0] - ended))
    moments = [ended, sandbox, container, started, joined, records[0]]
    spans = [later - earlier for earlier, later in itertools.pairwise(moments)]
    return RestartPhases(restart.instance, dict(zip(PHASES, [stop, *spans], strict=True)))
