"""The traces of a takeover and of a restart. They decide nothing; both are always sampled.

A takeover's context comes with the operator's order, and goes on to the predecessor, in the header
``traceparent`` of the requests. A restart's is in the notes of the last commits of the process that drains,
because a process and its successor in the same pod have nothing else in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.clock import Clock
from slackwater.tracing.context import TraceContext, parse
from slackwater.tracing.spans import CLIENT, INTERNAL, NO_SPAN, SERVER, Attributes, Span, Tracing


class TakeoverTrace:
    """A successor's part: from the order to the first rows of all partitions."""

    def __init__(
        self, tracing: Tracing, clock: Clock, *, member: str, pod: str, predecessor: str, order: str
    ) -> None:
        """``predecessor``: its pod, as far as it is known. ``order``: the header of the operator's order."""
        self._tracing, self._clock = tracing, clock
        attributes: Attributes = {
            "slackwater.member": member,
            "slackwater.pod": pod,
            "slackwater.predecessor": predecessor,
        }
        parent = parse(order) if order else None
        self._span = tracing.span(
            f"take over {member}",
            clock.wall_ms(),
            kind=SERVER,
            parent=parent,
            attributes=attributes,
            always=True,
        )
        self._step: Span = NO_SPAN

    def asks(self) -> str:
        """The predecessor is asked. The header to send; "" without traces."""
        self._begin("ask for the handover", CLIENT)
        return str(self._step.context) if self._step.context is not None else ""

    def joins(self) -> None:
        """It joins."""
        self._begin("join", CLIENT)

    def joined(self) -> None:
        """It is the member."""
        self._begin("first records", INTERNAL)

    def first_records(self) -> None:
        """Its handler gets records."""
        self._begin("first rows", INTERNAL)

    def refused(self, reason: str) -> None:
        """The predecessor has refused."""
        self._step.fail(reason)
        self._span.fail(reason)
        self.end({})

    def end(self, attributes: Attributes) -> None:
        """It is over."""
        now_ms = self._clock.wall_ms()
        self._step.end(now_ms)
        self._span.set(attributes)
        self._span.end(now_ms)

    def _begin(self, name: str, kind: str) -> None:
        now_ms = self._clock.wall_ms()
        self._step.end(now_ms)
        self._step = self._tracing.span(name, now_ms, kind=kind, parent=self._span, always=True)


class HandoverTrace:
    """A predecessor's part: from the request to the fence."""

    def __init__(
        self, tracing: Tracing, clock: Clock, *, member: str, pod: str, by: str, request: str
    ) -> None:
        """``by``: the pod that asks. ``request``: its header."""
        self._tracing, self._clock = tracing, clock
        attributes: Attributes = {
            "slackwater.member": member,
            "slackwater.pod": pod,
            "slackwater.successor": by,
        }
        self._span = tracing.span(
            f"hand over {member}",
            clock.wall_ms(),
            kind=SERVER,
            parent=parse(request) if request else None,
            attributes=attributes,
            always=True,
        )
        self._step = tracing.span("drain", clock.wall_ms(), parent=self._span, always=True)

    def answered(self) -> None:
        """It has answered, and waits for its successor's join."""
        now_ms = self._clock.wall_ms()
        self._step.end(now_ms)
        self._step = self._tracing.span("wait for the fence", now_ms, parent=self._span, always=True)

    def end(self, result: str, error: str = "") -> None:
        """It is over. ``result``: ``handed over``, ``resumed``, ``stopped`` or ``failed``."""
        now_ms = self._clock.wall_ms()
        if error:
            self._span.fail(error)
        self._step.end(now_ms)
        self._span.set({"slackwater.handover.result": result})
        self._span.end(now_ms)


def begin_restart(tracing: Tracing, member: str, now_ms: float) -> Span:
    """The span of a restart that begins with this process's drain. It is not ended here: the process that
    returns does that, by its context."""
    return tracing.span(f"restart {member}", now_ms, always=True)


def trace_return(tracing: Tracing, member: str, times: Mapping[str, Any], trace: str) -> TraceContext | None:
    """Records the restart of ``member``, which is over.

    ``times``: of ``RestartRecord.document()``. ``trace``: the header in the notes of the process before; "":
    it was killed, or has no traces. Returns the context of the span; None without traces.
    """
    served_ms, started_ms, joined_ms, first_ms = (
        times[name] for name in ("served_until_ms", "started_ms", "joined_ms", "first_record_ms")
    )
    begin_ms = times["drain_ms"] if times["drain_ms"] is not None else served_ms
    root = tracing.span(
        f"restart {member}",
        begin_ms,
        attributes={"slackwater.member": member, "slackwater.restart.drained": bool(times["drain_ms"])},
        always=True,
        identity=parse(trace) if trace else None,
    )
    marks = (
        ("replace", served_ms, started_ms),
        ("join", started_ms, joined_ms),
        ("first records", joined_ms, first_ms),
    )
    for name, start_ms, end_ms in marks:
        if start_ms is not None and end_ms is not None:
            tracing.span(name, start_ms, parent=root, always=True).end(max(start_ms, end_ms))
    root.end(max(begin_ms, first_ms or begin_ms))
    return root.context
