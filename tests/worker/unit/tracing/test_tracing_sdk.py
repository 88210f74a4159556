"""The SDK behind the interface: sampling, agreed ids, resources, and a collector that is away."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode

from slackwater.commands.worker import check_telemetry
from slackwater.runtime.errors import ConfigError
from slackwater.tracing.context import TraceContext, parse
from slackwater.tracing.opening import tracing_of
from slackwater.tracing.sdk import Availability, ReportedExporter, sampler_of
from slackwater.tracing.settings import TraceSettings
from slackwater.tracing.spans import NO_TRACING
from tests.support.telemetry.tracing import PRODUCER, Recorded
from tests.support.workers.fakes import worker_config


def test_operations_are_sampled_whatever_the_sampler_says() -> None:
    recorded = Recorded(ParentBased(ALWAYS_OFF))
    recorded.tracing.span("batch", 1.0).end(2.0)
    restart = recorded.tracing.span("restart", 1.0, always=True)
    recorded.tracing.span("drain", 1.0, parent=restart, always=True).end(1.5)
    recorded.tracing.span("batch of the drain", 1.0, parent=restart).end(1.25)
    restart.end(2.0)
    restart.end(3.0)
    assert [span.name for span in recorded.spans] == ["drain", "batch of the drain", "restart"]
    assert recorded.spans[-1].end_time == 2_000_000, "the first end counts"


def test_a_span_gets_the_ids_that_were_agreed_upon() -> None:
    recorded = Recorded()
    identity = parse(PRODUCER)
    assert identity is not None
    recorded.tracing.span("restart", 1.0, identity=identity, always=True).end(2.0)
    recorded.tracing.span("another", 1.0, always=True).end(2.0)
    first, second = recorded.spans
    assert first.parent is None
    assert (f"{first.context.trace_id:032x}", f"{first.context.span_id:016x}") == identity[:2]
    assert second.context.trace_id != first.context.trace_id


def test_a_child_has_a_parent_elsewhere_and_not_what_is_current_here() -> None:
    recorded = Recorded()
    with recorded.tracing.span("current", 1.0).current():
        recorded.tracing.span("asked", 1.0, parent=parse(PRODUCER), always=True).end(2.0)
        recorded.tracing.span("alone", 1.0).end(2.0)
    asked, alone = recorded.spans
    assert asked.parent is not None
    assert asked.parent.is_remote
    assert f"{asked.parent.span_id:016x}" == PRODUCER.split("-")[2]
    assert alone.parent is None


def test_a_child_by_the_machines_clock_needs_a_current_span_and_shows_an_exception() -> None:
    recorded = Recorded()
    with recorded.tracing.child("no trace of its own"):
        pass
    assert recorded.spans == []
    with (
        recorded.tracing.span("batch", 1.0).current(),
        pytest.raises(ValueError, match="no"),
        recorded.tracing.child("spark job"),
    ):
        raise ValueError("no")
    (job,) = recorded.spans
    assert job.status.status_code is StatusCode.ERROR


def test_fields_are_those_of_a_span_that_is_recorded() -> None:
    recorded = Recorded()
    assert recorded.tracing.fields() == {}
    span = recorded.tracing.span("batch", 1.0)
    assert isinstance(span.context, TraceContext)
    with span.current():
        assert recorded.tracing.fields() == {
            "trace_id": span.context.trace_id,
            "span_id": span.context.span_id,
        }


@pytest.mark.parametrize(
    ("ratio", "environment", "description"),
    [
        (None, {}, "root:TraceIdRatioBased{0.01}"),
        (0.5, {}, "root:TraceIdRatioBased{0.5}"),
        (0.5, {"OTEL_TRACES_SAMPLER": "always_on"}, "root:TraceIdRatioBased{0.5}"),
    ],
)
def test_a_share_of_traces_without_parents_is_sampled(
    ratio: float | None, environment: dict[str, str], description: str
) -> None:
    sampler = sampler_of(ratio, environment)
    assert sampler is not None
    assert sampler.get_description().startswith("ParentBased{" + description)


def test_the_environment_names_the_sampler_where_no_share_is_given() -> None:
    assert sampler_of(None, {"OTEL_TRACES_SAMPLER": "always_on"}) is None, "the SDK reads it"


def test_the_process_is_described_and_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Recorded().resource["service.name"] == "flights"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "pipeline")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=lake")
    described = Recorded().resource
    assert (described["service.name"], described["team"]) == ("pipeline", "lake")


class Away(SpanExporter):
    """Takes spans as long as it is not ``away``."""

    def __init__(self) -> None:
        self.away = False

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.FAILURE if self.away else SpanExportResult.SUCCESS


def test_a_collector_that_is_away_is_said_once_and_its_return_too() -> None:
    lines: list[str] = []
    exporter = Away()
    availability = Availability("traces", "http://otel:4318/v1/traces", lines.append)
    reported = ReportedExporter(exporter, availability)
    spans: list[ReadableSpan] = []
    for away in (False, True, True, True, False, False):
        exporter.away = away
        reported.export(spans)
        assert availability.away is away
    lost, back = lines
    assert lost.startswith(
        "traces cannot be sent to http://otel:4318/v1/traces and are lost until it answers"
    )
    assert back == "traces are sent to http://otel:4318/v1/traces again"


def test_without_a_setting_or_with_the_sdk_disabled_there_are_no_traces() -> None:
    for settings, environment in ((None, {}), (TraceSettings(), {"OTEL_SDK_DISABLED": "TRUE"})):
        assert tracing_of(settings, {}, environment, print) is NO_TRACING


def test_missing_packages_are_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_telemetry(worker_config(telemetry={"traces": {}}), "worker.yaml")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    check_telemetry(worker_config(), "worker.yaml")
    with pytest.raises(ConfigError, match=r"worker.yaml: telemetry.traces: .* 'slackwater\[otel\]'"):
        check_telemetry(worker_config(telemetry={"traces": {}}), "worker.yaml")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    check_telemetry(worker_config(telemetry={"traces": {}}), "worker.yaml")
