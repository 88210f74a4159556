"""Traces that stay in memory, for tests."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler

from slackwater.tracing.context import TraceContext
from slackwater.tracing.sdk import SdkTracing

PRODUCER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
"""A header of W3C Trace Context, of a span that is sampled."""


class Recorded:
    """``tracing`` records into ``spans``."""

    def __init__(self, sampler: Sampler | None = DEFAULT_ON) -> None:
        self._exporter = InMemorySpanExporter()
        described = {"service.name": "flights"}
        self.tracing = SdkTracing(SimpleSpanProcessor(self._exporter), described, sampler)

    @property
    def resource(self) -> Mapping[str, object]:
        """What describes the process."""
        return self.tracing.provider.resource.attributes

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in that order."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Those with this name, in the order of their ends."""
        return [span for span in self.spans if span.name == name]

    def children(self, parent: ReadableSpan) -> list[str]:
        """The names of a span's children, in the order of their starts."""
        own = [
            span
            for span in self.spans
            if span.parent is not None and span.parent.span_id == parent.context.span_id
        ]
        return [span.name for span in sorted(own, key=lambda span: span.start_time or 0)]


def links_of(span: ReadableSpan) -> list[str]:
    """What a span links to, as headers."""
    return [
        str(
            TraceContext(
                f"{link.context.trace_id:032x}",
                f"{link.context.span_id:016x}",
                link.context.trace_flags.sampled,
            )
        )
        for link in span.links
    ]
