"""Traces by OpenTelemetry's SDK. Importing this module needs the extra ``otel``.

Spans go to an exporter by way of a queue of limited size (OTEL_BSP_MAX_QUEUE_SIZE, 2048): where the collector
is away or slow, spans are lost, and nothing waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from opentelemetry import context as otel_context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from slackwater.tracing.context import TraceContext
from slackwater.tracing.settings import signal_url
from slackwater.tracing.spans import INTERNAL, NO_SPAN, Attributes, Span

SCOPE = "slackwater"
"""The name of the instrumentation scope."""
DEFAULT_SAMPLE_RATIO = 0.01

T = TypeVar("T")


class SdkSpan:
    """A span of the SDK, recorded or not: the children of one that is not are not recorded either."""

    def __init__(self, span: trace.Span) -> None:
        self.otel = span

    @property
    def recording(self) -> bool:
        return self.otel.is_recording()

    @property
    def context(self) -> TraceContext | None:
        own = self.otel.get_span_context()
        if not own.is_valid:
            return None
        return TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", own.trace_flags.sampled)

    def set(self, attributes: Attributes) -> None:
        if self.otel.is_recording():
            self.otel.set_attributes(dict(attributes))

    def link(self, context: TraceContext) -> None:
        self.otel.add_link(_remote(context))

    def event(self, name: str, at_ms: float, attributes: Attributes | None = None) -> None:
        self.otel.add_event(name, dict(attributes or {}), _ns(at_ms))

    def fail(self, error: str) -> None:
        self.otel.set_status(Status(StatusCode.ERROR, error))

    def end(self, at_ms: float) -> None:
        if self.otel.is_recording():  # the SDK warns of what comes after the end
            self.otel.end(_ns(at_ms))

    def inside(self, call: Callable[[], T]) -> Callable[[], T]:
        def called() -> T:
            with self.current():
                return call()

        return called

    def current(self) -> AbstractContextManager[object]:
        return _attached(self.otel)


@contextmanager
def _attached(span: trace.Span) -> Iterator[None]:
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        otel_context.detach(token)


class AgreedIds(RandomIdGenerator):
    """Random ids, except for a span whose ids were agreed upon."""

    def __init__(self) -> None:
        self._next = threading.local()

    @contextmanager
    def using(self, identity: TraceContext | None) -> Iterator[None]:
        """The next span of this thread gets these ids."""
        self._next.identity = identity
        try:
            yield
        finally:
            self._next.identity = None

    def generate_span_id(self) -> int:
        identity: TraceContext | None = getattr(self._next, "identity", None)
        return int(identity.span_id, 16) if identity is not None else super().generate_span_id()

    def generate_trace_id(self) -> int:
        identity: TraceContext | None = getattr(self._next, "identity", None)
        return int(identity.trace_id, 16) if identity is not None else super().generate_trace_id()

    def is_trace_id_random(self) -> bool:
        return False


class SdkTracing:
    """:class:`~slackwater.tracing.spans.Tracing` by the SDK."""

    on = True

    def __init__(
        self,
        processor: SpanProcessor,
        resource: Attributes,
        sampler: Sampler | None,
        away: Callable[[], bool] = lambda: False,
    ) -> None:
        """``resource``: what describes the process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before
        it. ``sampler``: None: the one that OTEL_TRACES_SAMPLER names.
        ``away``: whether the collector does not answer, so that nothing waits for it."""
        self._processor, self._ids, self._away = processor, AgreedIds(), away
        process = described(resource)
        self.provider = TracerProvider(sampler, process, shutdown_on_exit=False)
        always = TracerProvider(DEFAULT_ON, process, shutdown_on_exit=False, id_generator=self._ids)
        for provider in (self.provider, always):
            provider.add_span_processor(processor)
        self._tracer, self._always = self.provider.get_tracer(SCOPE), always.get_tracer(SCOPE)

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
        within = otel_context.Context()  # not what happens to be current on this thread
        if isinstance(parent, SdkSpan):
            within = trace.set_span_in_context(parent.otel, within)
        elif isinstance(parent, TraceContext):
            within = trace.set_span_in_context(NonRecordingSpan(_remote(parent)), within)
        tracer = self._always if always else self._tracer
        with self._ids.using(identity) if identity is not None else nullcontext():
            span = tracer.start_span(
                name,
                within,
                kind=SpanKind[kind.upper()],
                attributes=dict(attributes or {}),
                start_time=_ns(start_ms),
            )
        return SdkSpan(span)

    @contextmanager
    def child(self, name: str, attributes: Attributes | None = None) -> Iterator[Span]:
        if not trace.get_current_span().get_span_context().is_valid:
            yield NO_SPAN
            return
        with self._tracer.start_as_current_span(name, attributes=dict(attributes or {})) as span:
            yield SdkSpan(span)

    def fields(self) -> Mapping[str, str]:
        own = trace.get_current_span().get_span_context()
        if not own.trace_flags.sampled:
            return {}
        return {"trace_id": f"{own.trace_id:032x}", "span_id": f"{own.span_id:016x}"}

    def share(self) -> None:
        trace.set_tracer_provider(self.provider)

    def close(self, timeout_ms: float) -> None:
        ending = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
        ending.start()
        if not self._away():
            ending.join(timeout_ms / 1000)


def described(resource: Attributes) -> Resource:
    """The process, by ``resource`` and by OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which go first."""
    named = Resource.create()
    known = {name for name, value in named.attributes.items() if not str(value).startswith("unknown_service")}
    return named.merge(Resource({name: value for name, value in resource.items() if name not in known}))


class Availability:
    """Says once that a collector cannot be reached, and once that it can be again."""

    def __init__(self, what: str, where: str, say: Callable[[str], None]) -> None:
        """``what``: is sent, ``traces`` or ``metrics``. ``where``: the URL."""
        self._what, self._where, self._say = what, where, say
        self.away = False

    def sent(self, success: bool) -> None:
        """An export has ended."""
        if not success and not self.away:
            self._say(
                f"{self._what} cannot be sent to {self._where} and are lost until it answers; work continues"
                f". Start the collector, or correct the endpoint of the {self._what}"
            )
        elif success and self.away:
            self._say(f"{self._what} are sent to {self._where} again")
        self.away = not success


class ReportedExporter(SpanExporter):
    """Sends spans by ``exporter``, and tells ``availability`` how that ends."""

    def __init__(self, exporter: SpanExporter, availability: Availability) -> None:
        self._exporter, self._availability = exporter, availability

    def export(self, spans: Any) -> SpanExportResult:
        result = self._exporter.export(spans)
        self._availability.sent(result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def open_tracing(
    endpoint: str,
    sample_ratio: float | None,
    resource: Attributes,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> SdkTracing:
    """Traces that are sent by OTLP over HTTP.

    ``endpoint``: the collector's URL without ``/v1/traces``; "": what OpenTelemetry's variables say, such as
    OTEL_EXPORTER_OTLP_ENDPOINT. ``sample_ratio``: of traces without a parent; None: what OTEL_TRACES_SAMPLER
    says, or 0.01. ``say``: takes a line for people, on any thread.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    quieten()
    url = signal_url(endpoint, "v1/traces") if endpoint else None
    exporter = OTLPSpanExporter(endpoint=url)
    availability = Availability("traces", url or environment_url("TRACES", environment), say)
    processor = BatchSpanProcessor(ReportedExporter(exporter, availability))
    sampler = sampler_of(sample_ratio, environment)
    return SdkTracing(processor, resource, sampler, lambda: availability.away)


def sampler_of(sample_ratio: float | None, environment: Mapping[str, str]) -> Sampler | None:
    """The sampler of traces: it follows a span's parent, and else takes a share of them. None: the one that
    the environment names."""
    if sample_ratio is None and environment.get("OTEL_TRACES_SAMPLER"):
        return None
    return ParentBased(TraceIdRatioBased(DEFAULT_SAMPLE_RATIO if sample_ratio is None else sample_ratio))


def environment_url(signal: str, environment: Mapping[str, str]) -> str:
    """Where the SDK sends a signal (``TRACES``, ``METRICS``) without an endpoint."""
    own = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    return own or signal_url(base, f"v1/{signal.lower()}")


def quieten() -> None:
    """The SDK logs each failed export, some several times: :class:`Availability` says it once."""
    own = logging.getLogger("opentelemetry")
    if not own.handlers:
        own.addHandler(logging.NullHandler())
    own.propagate = False


def _remote(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), True, flags)


def _ns(at_ms: float) -> int:
    return round(at_ms * 1_000) * 1_000
