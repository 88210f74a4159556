"""spec.telemetry of a ConsumerGroup: what its workers send to an OpenTelemetry collector."""

# ruff: noqa: RUF009  (`spec` gives dataclass fields)
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slackwater.tracing.settings import DEFAULT_INTERVAL_MS, ENDPOINT
from slackwater_operator.api.v1alpha1 import fields
from slackwater_operator.api.v1alpha1.fields import spec


def _endpoint(signal: str) -> Any:
    return spec(
        "endpoint",
        fields.text(pattern=ENDPOINT, example="http://otel-collector.observability:4318", max_length=512),
        f"The URL of a collector that accepts OTLP over HTTP, without /v1/{signal}. Defaults to the worker's "
        "environment variable OTEL_EXPORTER_OTLP_ENDPOINT (spec.template).",
        absent="",
    )


@dataclass(frozen=True, kw_only=True)
class Traces:
    """A trace of each sampled batch, and of each restart and takeover of a worker."""

    endpoint: str = _endpoint("traces")
    sampling: float | None = spec(
        "sampling",
        fields.percentage(),
        "The share of batches that are traced (1%, 100%). Restarts and takeovers always are. Defaults to the "
        "sampler that OTEL_TRACES_SAMPLER names, or 1%.",
    )


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics by OpenTelemetry's conventions for messaging, beside those that Prometheus scrapes."""

    endpoint: str = _endpoint("metrics")
    interval_ms: int = spec(
        "interval",
        fields.duration("1s", "1h"),
        "How often they are sent.",
        default=f"{DEFAULT_INTERVAL_MS // 1000}s",
    )


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What the workers send to an OpenTelemetry collector. What is absent is not sent."""

    traces: Traces | None = spec(
        "traces", fields.nested(Traces), "Sends traces. {} sends them with the defaults."
    )
    metrics: Metrics | None = spec(
        "metrics", fields.nested(Metrics), "Sends metrics. {} sends them with the defaults."
    )
