"""A receiver of OTLP over HTTP that keeps what it is sent, decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_TRACES, _METRICS = "/v1/traces", "/v1/metrics"


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, its ids in hex; ``parent_id``: "" without one. ``links``: the trace and span ids."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    resource: dict[str, Any]
    failed: bool
    start_ms: float
    end_ms: float


class OtlpReceiver:
    """``url``: for ``telemetry.traces.endpoint``. ``answer``: the status of its answers."""

    def __init__(self) -> None:
        self.answer = 200
        self._spans: list[ReceivedSpan] = []
        self._metrics: list[tuple[str, Any, dict[str, Any]]] = []
        self.requests = 0
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                status = receiver.take(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path: str, body: bytes) -> int:
        """Takes a request in. Its answer's status."""
        with self._lock:
            self.requests += 1
            if self.answer != 200:
                return self.answer
            if path == _TRACES:
                self._spans += _spans(ExportTraceServiceRequest.FromString(body))
            elif path == _METRICS:
                self._metrics += _points(ExportMetricsServiceRequest.FromString(body))
            else:
                return 404
            return 200

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All so far."""
        with self._lock:
            return list(self._spans)

    def named(self, name: str) -> list[ReceivedSpan]:
        """Those of that name so far."""
        return [span for span in self.spans if span.name == name]

    def children(self, span: ReceivedSpan) -> list[ReceivedSpan]:
        """The children of a span so far, in the order of their starts."""
        own = [other for other in self.spans if other.parent_id == span.span_id]
        return sorted(own, key=lambda other: other.start_ms)

    def points(self, metric: str) -> list[tuple[Any, dict[str, Any]]]:
        """The data points of a metric so far, each with its attributes."""
        with self._lock:
            return [(point, attributes) for name, point, attributes in self._metrics if name == metric]


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver that listens on a free port."""
    receiver = OtlpReceiver()
    thread = threading.Thread(target=receiver.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of_process in request.resource_spans:
        resource = _values(of_process.resource.attributes)
        for of_scope in of_process.scope_spans:
            for span in of_scope.spans:
                yield _span(span, resource)


def _span(span: Span, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        _values(span.attributes),
        resource,
        span.status.code == 2,
        span.start_time_unix_nano / 1e6,
        span.end_time_unix_nano / 1e6,
    )


def _points(request: ExportMetricsServiceRequest) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for of_process in request.resource_metrics:
        for of_scope in of_process.scope_metrics:
            for metric in of_scope.metrics:
                data = getattr(metric, str(metric.WhichOneof("data")))
                for point in data.data_points:
                    yield metric.name, point, _values(point.attributes)


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: _value(pair) for pair in attributes}


def _value(pair: KeyValue) -> Any:
    kind = pair.value.WhichOneof("value")
    if kind == "array_value":
        return [value.string_value for value in pair.value.array_value.values]
    return getattr(pair.value, str(kind))
