"""The interface of traces, and what stands for it where they are off.

Times are wall clock, in ms, and come from the caller: a span may be recorded after what it describes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

from slackwater.tracing.context import TraceContext

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]

T = TypeVar("T")

INTERNAL, CONSUMER, CLIENT, SERVER = "internal", "consumer", "client", "server"
"""Kinds of spans."""


class Span(Protocol):
    """Something that takes time. All methods may be called where it is not recorded, and do nothing then."""

    @property
    def recording(self) -> bool:
        """Whether it will be exported, unless the collector is away."""

    @property
    def context(self) -> TraceContext | None:
        """Where it is; None where traces are off."""

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""

    def link(self, context: TraceContext) -> None:
        """Names a span elsewhere that it has to do with."""

    def event(self, name: str, at_ms: float, attributes: Attributes | None = None) -> None:
        """Something that has happened meanwhile."""

    def fail(self, error: str) -> None:
        """It has failed; ``error``: a line that says how."""

    def end(self, at_ms: float) -> None:
        """Ends it; the first end counts."""

    def inside(self, call: Callable[[], T]) -> Callable[[], T]:
        """``call`` with this as the current span, on any thread: what it starts are children."""

    def current(self) -> AbstractContextManager[object]:
        """In it, this is the current span."""


class Tracing(Protocol):
    """Makes spans. Any thread may call it."""

    @property
    def on(self) -> bool:
        """Whether spans are made at all."""

    def span(
        self,
        name: str,
        start_ms: float,
        *,
        kind: str = INTERNAL,
        parent: Span | TraceContext | None = None,
        attributes: Attributes | None = None,
        always: bool = False,
        identity: TraceContext | None = None,
    ) -> Span:
        """Begins a span; without a parent, a trace, which is sampled or not.

        ``always``: it is sampled in any case: for what is rare. ``identity``: its own context, where that was
        agreed upon; with ``always`` only.
        """

    def child(self, name: str, attributes: Attributes | None = None) -> AbstractContextManager[Span]:
        """A child of the current span, and the current one in it, by the machine's own clock. An exception
        marks it as failed."""

    def fields(self) -> Mapping[str, str]:
        """``trace_id`` and ``span_id`` of the current span, for a log line; empty without one that is
        recorded."""

    def share(self) -> None:
        """Makes these traces those of this process, for other code that uses OpenTelemetry, such as a
        handler."""

    def close(self, timeout_ms: float) -> None:
        """Sends what is left, in that time at most."""


class NoSpan:
    """A span where traces are off."""

    recording = False
    context: TraceContext | None = None

    def set(self, attributes: Attributes) -> None: ...

    def link(self, context: TraceContext) -> None: ...

    def event(self, name: str, at_ms: float, attributes: Attributes | None = None) -> None: ...

    def fail(self, error: str) -> None: ...

    def end(self, at_ms: float) -> None: ...

    def inside(self, call: Callable[[], T]) -> Callable[[], T]:
        """``call`` itself."""
        return call

    def current(self) -> AbstractContextManager[object]:
        """Changes nothing."""
        return nullcontext()


NO_SPAN = NoSpan()


class NoTracing:
    """Traces that are off."""

    on = False

    def span(
        self,
        name: str,
        start_ms: float,
        *,
        kind: str = INTERNAL,
        parent: Span | TraceContext | None = None,
        attributes: Attributes | None = None,
        always: bool = False,
        identity: TraceContext | None = None,
    ) -> Span:
        return NO_SPAN

    def child(self, name: str, attributes: Attributes | None = None) -> AbstractContextManager[Span]:
        return nullcontext(NO_SPAN)

    def fields(self) -> Mapping[str, str]:
        return {}

    def share(self) -> None: ...

    def close(self, timeout_ms: float) -> None: ...


NO_TRACING = NoTracing()
