"""A worker's metrics by OpenTelemetry's conventions for messaging, sent by OTLP over HTTP.

They say with standard names what a dashboard for any messaging system asks for. What is particular to
Slackwater is in :mod:`slackwater.runtime.telemetry.metrics`, for Prometheus. OpenTelemetry is imported where
they are opened, not here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.tracing.settings import MetricSettings, signal_url
from slackwater.tracing.spans import Attributes

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics.export import MetricReader

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The buckets that the conventions recommend for durations."""


class MessagingMetrics(Protocol):
    """Told of what is measured once a batch, or once a commit."""

    def processed(self, topics: Collection[str], seconds: float) -> None:
        """A batch of records of ``topics`` was processed, from poll to commit without waiting."""

    def settled(self, seconds: float, error: str) -> None:
        """A commit was answered. ``error``: its kind; "": it was accepted."""

    def close(self, timeout_ms: float) -> None:
        """Sends what is left, in that time at most."""


class NoMessagingMetrics:
    """They are off."""

    def processed(self, topics: Collection[str], seconds: float) -> None: ...

    def settled(self, seconds: float, error: str) -> None: ...

    def close(self, timeout_ms: float) -> None: ...


NO_MESSAGING_METRICS = NoMessagingMetrics()


class SdkMessagingMetrics:
    """By the SDK. Any thread may call it; a reader asks for the counters on its own."""

    def __init__(
        self,
        reader: MetricReader,
        metrics: Metrics,
        resource: Attributes,
        *,
        group: str,
        client: str,
        away: Callable[[], bool] = lambda: False,
    ) -> None:
        """``metrics``: the worker's numbers, of which the counters are taken when they are sent. ``away``:
        whether the collector does not answer, so that nothing waits for it."""
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider

        from slackwater.tracing.sdk import described

        self._metrics, self._observation, self._away = metrics, Observation, away
        self._common: Attributes = {
            "messaging.system": "kafka",
            "messaging.consumer.group.name": group,
            "messaging.client.id": client,
        }
        self._provider = MeterProvider([reader], described(resource), shutdown_on_exit=False)
        meter = self._provider.get_meter("slackwater")
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        meter.create_observable_counter(
            "messaging.client.consumed.messages",
            [self._consumed],
            "{message}",
            "Number of messages that were delivered to the application.",
        )

    def processed(self, topics: Collection[str], seconds: float) -> None:
        attributes = {
            **self._common,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
        }
        if len(topics) == 1:
            attributes["messaging.destination.name"] = next(iter(topics))
        self._process.record(seconds, attributes)

    def settled(self, seconds: float, error: str) -> None:
        attributes = {
            **self._common,
            "messaging.operation.name": "commit",
            "messaging.operation.type": "settle",
        }
        if error:
            attributes["error.type"] = error
        self._operation.record(seconds, attributes)

    def _consumed(self, _: CallbackOptions) -> Iterable[Observation]:
        for (topic, partition), count in self._metrics.series("records_in").items():
            attributes = {
                **self._common,
                "messaging.operation.name": "poll",
                "messaging.destination.name": topic,
                "messaging.destination.partition.id": partition,
            }
            yield self._observation(count, attributes)

    def close(self, timeout_ms: float) -> None:
        def end() -> None:
            self._provider.shutdown(timeout_ms)

        ending = threading.Thread(target=end, name="metrics", daemon=True)
        ending.start()
        if not self._away():
            ending.join(timeout_ms / 1000)


def open_messaging_metrics(
    settings: MetricSettings,
    metrics: Metrics,
    resource: Attributes,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    group: str,
    client: str,
) -> SdkMessagingMetrics:
    """Metrics that are sent at intervals to a collector. ``say``: takes a line for people, on any thread."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader

    from slackwater.tracing.sdk import Availability, environment_url, quieten

    quieten()
    url = signal_url(settings.endpoint, "v1/metrics") if settings.endpoint else None
    availability = Availability("metrics", url or environment_url("METRICS", environment), say)

    class Reported(OTLPMetricExporter):
        """Says once that metrics cannot be sent."""

        def export(self, *arguments: Any, **options: Any) -> MetricExportResult:
            result = super().export(*arguments, **options)
            availability.sent(result is MetricExportResult.SUCCESS)
            return result

    reader = PeriodicExportingMetricReader(Reported(endpoint=url), settings.interval_ms)
    return SdkMessagingMetrics(
        reader, metrics, resource, group=group, client=client, away=lambda: availability.away
    )
