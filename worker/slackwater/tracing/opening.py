"""Opens the traces of a process, if they are wanted and can be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slackwater.tracing.settings import TraceSettings
from slackwater.tracing.spans import NO_TRACING, Attributes, Tracing


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
