"""Where a process sends its traces and metrics, and how many of them; spec.telemetry of a ConsumerGroup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slackwater import fields
from slackwater.fields import spec

DEFAULT_INTERVAL_MS = 60_000
ENDPOINT = r"https?://[A-Za-z0-9._~\-\[\]:]+(/[A-Za-z0-9._~\-/]*)?"
"""The form of a collector's URL."""


def _endpoint(signal: str) -> Any:
    return spec(
        "endpoint",
        fields.text(
            pattern=ENDPOINT,
            example="http://otel-collector.observability:4318",
            max_length=512,
            in_file_too=True,
        ),
        f"The URL of a collector that accepts OTLP over HTTP, without /v1/{signal}. Defaults to the worker's "
        "environment variable OTEL_EXPORTER_OTLP_ENDPOINT (spec.template).",
        absent="",
    )


@dataclass(frozen=True)
class TraceSettings:
    """A trace of each sampled batch, and of each restart and takeover of a worker."""

    endpoint: str = _endpoint("traces")
    sample_ratio: float | None = spec(
        "sampling",
        fields.percentage(),
        "The share of batches that are traced (1%, 100%). Restarts and takeovers always are. Defaults to the "
        "sampler that OTEL_TRACES_SAMPLER names, or 1%.",
    )


@dataclass(frozen=True)
class MetricSettings:
    """Metrics by OpenTelemetry's conventions for messaging, beside those that Prometheus scrapes."""

    interval_ms: int = spec(
        "interval",
        fields.duration("1s", "1h", in_file=fields.whole(minimum=1_000, maximum=3_600_000)),
        "How often they are sent.",
        default=f"{DEFAULT_INTERVAL_MS // 1000}s",
        always=True,
    )
    endpoint: str = _endpoint("metrics")


@dataclass(frozen=True)
class TelemetryConfig:
    """What the workers send to an OpenTelemetry collector. What is absent is not sent."""

    traces: TraceSettings | None = spec(
        "traces", fields.nested(TraceSettings), "Sends traces. {} sends them with the defaults."
    )
    metrics: MetricSettings | None = spec(
        "metrics", fields.nested(MetricSettings), "Sends metrics. {} sends them with the defaults."
    )


def signal_url(endpoint: str, path: str) -> str:
    """Where a signal goes: ``endpoint`` with ``path`` (``v1/traces``), unless it has it already."""
    base = endpoint.rstrip("/")
    return base if base.endswith(f"/{path}") else f"{base}/{path}"
