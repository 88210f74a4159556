"""The operator's spans of takeovers and restarts. They decide nothing, and can be lost at any moment.

A takeover's trace begins here: its context goes to the successor with the order. A restart's is begun by the
process that drains, which nothing can be sent to before its pod is deleted; its successor reports it in
/status, and the operator's span is added when the pod is back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.tracing.context import parse
from slackwater.tracing.spans import CLIENT, NO_TRACING, Span, Tracing, Value
from slackwater_operator.api.v1alpha1.status.rollout import UnderWay
from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.planner.actions import RequestTakeover
from slackwater_operator.planner.snapshot import GroupSnapshot

GroupKey = tuple[str, str]

LONGEST_MS = 3_600_000
"""A takeover whose end was not observed is given up then."""


@dataclass
class _Takeover:
    """One that was ordered: its span, and since when."""

    span: Span
    since_ms: float


class OperationTraces:
    """Of all groups. Used on the controller's event loop."""

    def __init__(self, tracing: Tracing, clock: Clock) -> None:
        self._tracing, self._clock = tracing, clock
        self._takeovers: dict[GroupKey, dict[str, _Takeover]] = {}
        self._restarts: dict[GroupKey, dict[str, UnderWay]] = {}

    def order(self, snapshot: GroupSnapshot, action: RequestTakeover) -> Span:
        """Begins the span of an order, in the trace of the takeover, which a repeated order continues."""
        now_ms = self._clock.wall_ms()
        key = (snapshot.namespace, snapshot.name)
        takeovers = self._takeovers.setdefault(key, {}) if self._tracing.on else {}
        if action.pod not in takeovers:
            attributes = _attributes(key, action.pod)
            span = self._tracing.span(f"takeover by {action.pod}", now_ms, attributes=attributes, always=True)
            takeovers[action.pod] = _Takeover(span, now_ms)
        details: Mapping[str, Value] = {"slackwater.predecessor": action.predecessor}
        parent = takeovers[action.pod].span
        return self._tracing.span(
            "order the takeover", now_ms, kind=CLIENT, parent=parent, attributes=details, always=True
        )

    def ordered(self, span: Span, error: str) -> None:
        """The order was answered. `error`: why it was not accepted; "": it was."""
        if error:
            span.fail(error)
        span.end(self._clock.wall_ms())

    def observe(
        self, snapshot: GroupSnapshot, workers: Mapping[str, WorkerStatus | None], outcomes: tuple[str, ...]
    ) -> None:
        """Ends what is over. `workers`: what the pods said last. `outcomes`: of the takeover that has
        ended in this reconciliation, of which there is one at a time."""
        if not self._tracing.on:
            return
        key = (snapshot.namespace, snapshot.name)
        self._end_takeovers(key, workers, outcomes)
        self._end_restarts(key, snapshot, workers)

    def forget(self, key: GroupKey) -> None:
        """The group is gone."""
        self._takeovers.pop(key, None)
        self._restarts.pop(key, None)

    def _end_takeovers(
        self, key: GroupKey, workers: Mapping[str, WorkerStatus | None], outcomes: tuple[str, ...]
    ) -> None:
        takeovers, now_ms = self._takeovers.get(key, {}), self._clock.wall_ms()
        for pod, takeover in list(takeovers.items()):
            if not outcomes and now_ms - takeover.since_ms <= LONGEST_MS:
                continue
            status = workers.get(pod)
            takeover.span.set({"slackwater.takeover.outcome": outcomes[0] if outcomes else "unknown"})
            if status is not None and status.takeover is not None and status.takeover.pause_ms is not None:
                takeover.span.set({"slackwater.takeover.longest_pause_ms": status.takeover.pause_ms})
            takeover.span.end(now_ms)
            del takeovers[pod]

    def _end_restarts(
        self, key: GroupKey, snapshot: GroupSnapshot, workers: Mapping[str, WorkerStatus | None]
    ) -> None:
        noted = {restart.name: restart for restart in snapshot.memory.rollout.under_way}
        before, self._restarts[key] = self._restarts.get(key, {}), noted
        for name in before.keys() - noted.keys():
            self._restarted(key, before[name], workers.get(name))

    def _restarted(self, key: GroupKey, restart: UnderWay, status: WorkerStatus | None) -> None:
        now_ms = self._clock.wall_ms()
        times = status.restart if status is not None else None
        parent = parse(times.trace) if times is not None else None
        span = self._tracing.span(
            f"restart of {restart.name}",
            restart.since_ms,
            parent=parent,
            attributes=_attributes(key, restart.name),
            always=True,
        )
        gone_ms = restart.ended_ms
        if gone_ms is not None:
            self._tracing.span("old pod ends", restart.since_ms, parent=span, always=True).end(gone_ms)
            started_ms = times.started_ms if times is not None else None
            if started_ms is not None:
                self._tracing.span("new pod starts", gone_ms, parent=span, always=True).end(
                    max(gone_ms, started_ms)
                )
        span.end(now_ms)


def _attributes(key: GroupKey, pod: str) -> dict[str, Value]:
    return {"k8s.namespace.name": key[0], "slackwater.consumer_group": key[1], "k8s.pod.name": pod}


NO_TRACES = OperationTraces(NO_TRACING, SYSTEM_CLOCK)
"""Traces that are off."""
