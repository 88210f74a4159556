"""Opens the traces of a process, if they are wanted and can be had."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slackwater.tracing.spans import NO_TRACING, Attributes, Tracing


@dataclass(frozen=True)
class TraceSettings:
    """``endpoint``: the collector's URL without ``/v1/traces``; "": what the environment says.
    ``sample_ratio``: the share of traces that are recorded; None: what the environment says, or 0.01."""

    endpoint: str = ""
    sample_ratio: float | None = None


DEFAULT_INTERVAL_MS = 60_000


@dataclass(frozen=True)
class MetricSettings:
    """``endpoint``: the collector's URL without ``/v1/metrics``; "": what the environment says.
    ``interval_ms``: how often metrics are sent."""

    endpoint: str = ""
    interval_ms: int = DEFAULT_INTERVAL_MS


ENDPOINT = r"https?://[A-Za-z0-9._~\-\[\]:]+(/[A-Za-z0-9._~\-/]*)?"
"""The form of a collector's URL."""


def is_endpoint(url: str) -> bool:
    """Whether ``url`` is a collector's, or "" for that of the environment."""
    return not url or re.fullmatch(ENDPOINT, url) is not None


def signal_url(endpoint: str, path: str) -> str:
    """Where a signal goes: ``endpoint`` with ``path`` (``v1/traces``), unless it has it already."""
    base = endpoint.rstrip("/")
    return base if base.endswith(f"/{path}") else f"{base}/{path}"


MISSING = "needs packages that are not installed; install slackwater[otel] (the images have it), or remove it"


def installed() -> bool:
    """Whether the packages of the extra ``otel`` are here. Loads none of them but their empty parents."""
    try:
        names = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
        return all(importlib.util.find_spec(name) is not None for name in names)
    except ModuleNotFoundError:
        return False


def disabled(environment: Mapping[str, str]) -> bool:
    """Whether OTEL_SDK_DISABLED turns OpenTelemetry off."""
    return environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def tracing_of(
    settings: TraceSettings | None,
    resource: Attributes,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> Tracing:
    """The traces of a process that is described by ``resource``; off where ``settings`` are None.

    ``say``: takes a line for people, on any thread. Takes some 100 ms where they are on, for imports.
    """
    if settings is None or disabled(environment):
        return NO_TRACING
    from slackwater.tracing.sdk import open_tracing

    return open_tracing(settings.endpoint, settings.sample_ratio, resource, environment, say)
