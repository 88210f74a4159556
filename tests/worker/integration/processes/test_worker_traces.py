"""Traces of real worker processes, as a receiver of OTLP gets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.devbroker import DevBroker
from tests.support.processes import reserve_ports
from tests.support.telemetry.otlp import OtlpReceiver, otlp_receiver
from tests.support.telemetry.tracing import PRODUCER
from tests.support.waiting import wait_until
from tests.support.workers.delivery_site import DeliverySite
from tests.support.workers.takeover_site import TakeoverSite

TRACED_HANDLER = """
from opentelemetry import trace
import site_handler

tracer = trace.get_tracer("mine")

def transform(table):
    with tracer.start_as_current_span("look up"):
        return site_handler.transform(table)
"""
TRACED = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_TIMEOUT": "1000"}


@pytest.fixture
def collector() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


def test_a_batch_is_linked_to_its_producers_and_sent(site: DeliverySite, collector: OtlpReceiver) -> None:
    site.write([(0, b"v-0"), (1, b"v-1")], headers={"traceparent": PRODUCER.encode()})
    telemetry = {
        "traces": {"endpoint": collector.url, "sampleRatio": 1.0},
        "metrics": {"endpoint": collector.url},
    }
    site.write_handler("traced_handler", TRACED_HANDLER)
    handler = "traced_handler:transform"
    worker = site.worker(telemetry=telemetry, handler=handler, environment=TRACED)
    site.until_committed(why=site.why)
    wait_until(lambda: collector.named(f"process {site.topic}"), lambda: (collector.spans, worker.stderr))
    assert worker.terminate() == 0, worker.stderr
    batches = collector.named(f"process {site.topic}")
    assert {link for batch in batches for link in batch.links} == {tuple(PRODUCER.split("-")[1:3])}
    batch = batches[0]
    stages = [span.name for span in collector.children(batch)]
    assert stages == ["handle", "stage", "fence", "publish", "commit"]
    assert (batch.parent_id, batch.failed) == ("", False)
    handle = collector.children(batch)[0]
    assert [span.name for span in collector.children(handle)] == ["look up"], "the handler's own"
    assert batch.resource["service.name"] == site.group
    assert batch.resource["slackwater.member"] == "w-0"
    consumed = collector.points("messaging.client.consumed.messages")
    assert sum(point.as_double or point.as_int for point, _ in consumed) == 2, "sent at the end"
    assert {named["messaging.destination.name"] for _, named in consumed} == {site.topic}
    assert collector.points("messaging.process.duration")
    event = worker.named("batch")[0]
    assert (event["trace_id"], event["span_id"]) == (batch.trace_id, batch.span_id)


@pytest.mark.long
def test_a_collector_that_is_away_costs_nothing_but_spans(site: DeliverySite) -> None:
    """Nothing listens at its port; the environment says where it is, and that its queue holds two spans."""
    (port,) = reserve_ports(1)
    environment = {
        **TRACED,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_TRACES_SAMPLER": "always_on",
        "OTEL_BSP_MAX_QUEUE_SIZE": "2",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1",
    }
    worker = site.worker(telemetry={"traces": {}}, environment=environment)
    for _ in range(5):
        site.produce(20)
        site.until_committed(why=site.why)
    wait_until(lambda: "traces cannot be sent" in worker.stderr, lambda: worker.stderr)
    assert worker.terminate() == 0
    site.check()
    lines = worker.stderr.splitlines()
    warnings = [line for line in lines if "traces" in line]
    assert len(warnings) == 1, lines
    assert f"cannot be sent to http://127.0.0.1:{port}/v1/traces" in warnings[0]
    assert not [line for line in lines if "Traceback" in line or "Transient" in line]


@pytest.mark.long
def test_a_takeover_is_a_trace_across_both_workers(
    devbroker: DevBroker, collector: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order brings its context, as the operator's does; of batches none is sampled."""
    for name, value in TRACED.items():
        monkeypatch.setenv(name, value)
    with TakeoverSite(devbroker.bootstrap, tmp_path, 2) as site:
        site.flow.start(100)
        telemetry = {"traces": {"endpoint": collector.url, "sampleRatio": 0}}
        before = site.start(0, "a", telemetry=telemetry)
        before.phase("running")
        after = site.start(0, "b", telemetry=telemetry)
        after.phase("standby")
        site.until_handled(before.pod, 1)
        assert site.key.order(after, before, trace=PRODUCER)[0] == 202
        after.until("takeover")
        before.in_phase("standby")
        site.until_handled(after.pod, 1)
        site.flow.stop()
        site.until_committed(why=site.why)
        wait_until(lambda: len(collector.spans) >= 8, lambda: collector.spans)
        assert (before.terminate(), after.terminate()) == (0, 0)
    (taken,), (handed,) = collector.named("take over g-0"), collector.named("hand over g-0")
    _, trace_id, span_id, _ = PRODUCER.split("-")
    assert {span.trace_id for span in (taken, handed)} == {trace_id}
    assert taken.parent_id == span_id
    asked, *others = collector.children(taken)
    assert [span.name for span in (asked, *others)] == [
        "ask for the handover",
        "join",
        "first records",
        "first rows",
    ]
    assert handed.parent_id == asked.span_id, "the request carries the context"
    assert [span.name for span in collector.children(handed)] == ["drain", "wait for the fence"]
    assert handed.attributes["slackwater.handover.result"] == "handed over"
    assert (taken.resource["k8s.pod.name"], handed.resource["k8s.pod.name"]) == (after.pod, before.pod)
    assert taken.attributes["slackwater.takeover.forced"] is False
    assert not [span for span in collector.spans if span.name.startswith("process")]


@pytest.mark.long
def test_a_restart_is_a_trace_of_both_processes(site: DeliverySite, collector: OtlpReceiver) -> None:
    telemetry = {"traces": {"endpoint": collector.url, "sampleRatio": 0}}
    site.produce(20)
    first = site.worker(telemetry=telemetry, environment=TRACED)
    site.until_committed(why=site.why)
    assert first.terminate() == 0
    site.produce(20)
    second = site.worker(telemetry=telemetry, environment=TRACED)
    site.until_committed(why=site.why)
    wait_until(lambda: collector.named("restart w-0"), lambda: (collector.spans, second.stderr))
    restart = second.status()["restart"]
    second.process.kill()
    second.wait()
    site.produce(20)
    third = site.worker(telemetry=telemetry, environment=TRACED)
    site.until_committed(why=site.why)
    assert third.terminate() == 0
    root, killed = collector.named("restart w-0")
    assert root.parent_id == ""
    assert restart["traceparent"] == f"00-{root.trace_id}-{root.span_id}-01"
    assert [span.name for span in collector.children(root)] == ["drain", "replace", "join", "first records"]
    assert root.attributes["slackwater.restart.drained"] is True
    assert killed.trace_id != root.trace_id, "a process that was killed has left no context"
    assert [span.name for span in collector.children(killed)] == ["replace", "join", "first records"]
    assert killed.attributes["slackwater.restart.drained"] is False
