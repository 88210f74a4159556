"""The traces of batches: spans, their parents, links, attributes and status."""

from __future__ import annotations

import json

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from slackwater.kafka.errors import CommitFailedError
from slackwater.runtime.errors import HandlerError
from slackwater.runtime.interfaces import SinkFencedError
from slackwater.runtime.telemetry.batch_trace import MOST_CHILDREN, MOST_LINKS
from tests.support.telemetry.tracing import PRODUCER, Recorded, links_of
from tests.support.workers.fakes import START_MS, Bench


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def traced(recorded: Recorded, max_records: int = 100, **config: object) -> Bench:
    bench = Bench(**config)
    bench.tracing = recorded.tracing
    bench.restart(max_records=max_records)
    return bench


def values(count: int) -> list[str]:
    return [f"v{i}" for i in range(count)]


def ms(span: ReadableSpan) -> tuple[float, float]:
    """Start and end after the start of time."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time // 1000 / 1000 - START_MS, span.end_time // 1000 / 1000 - START_MS


def test_a_batch_is_a_span_from_poll_to_commit_and_its_stages_are_children(recorded: Recorded) -> None:
    bench = traced(recorded)
    bench.runner.durations.append(400)
    bench.writer.usual_ms = 30
    bench.assign(bench.produce(0, *values(3)), bench.produce(1, *values(2)))
    bench.until_idle()
    (batch,) = recorded.named("process flights")
    assert batch.parent is None
    assert batch.kind is SpanKind.CONSUMER
    assert recorded.children(batch) == ["handle", "stage", "fence", "publish", "commit"]
    assert batch.status.status_code is StatusCode.UNSET
    assert batch.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": "flights",
        "messaging.client.id": "w-0",
        "messaging.destination.name": "flights",
        "messaging.batch.message_count": 5,
        "slackwater.batch.offsets": ("flights-0 0..2", "flights-1 0..1"),
        "slackwater.batch.result": "committed",
        "slackwater.batch.records": 5,
        "slackwater.batch.rows": 5,
        "slackwater.batch.dead_letters": 0,
    }
    (handle,), (publish,) = recorded.named("handle"), recorded.named("publish")
    began, ended = ms(batch)
    assert ms(handle) == (began, began + 400)
    assert ms(publish)[1] - ms(publish)[0] == 30
    assert ended == ms(recorded.named("commit")[0])[1]


def test_it_links_to_the_spans_in_the_headers_of_its_records(recorded: Recorded) -> None:
    bench = traced(recorded)
    other = PRODUCER.replace("4bf9", "5bf9")
    unsampled = PRODUCER.replace("4bf9", "6bf9")[:-2] + "00"
    bench.cluster.headers = {
        (0, 0): [("traceparent", unsampled.encode())],
        (0, 1): [("traceparent", PRODUCER.encode())],
        (0, 2): [("h", b"x"), ("traceparent", PRODUCER.encode())],
        (1, 0): [("traceparent", b"no context"), ("tracestate", b"a=b")],
        (1, 1): [("traceparent", other.encode())],
    }
    bench.assign(bench.produce(0, *values(4)), bench.produce(1, *values(2)))
    bench.until_idle()
    (batch,) = recorded.named("process flights")
    assert links_of(batch) == [PRODUCER, other, unsampled], "each once, those that are recorded first"


def test_its_links_are_limited(recorded: Recorded) -> None:
    bench = traced(recorded, max_records=1000)
    bench.cluster.headers = {
        (0, row): [("traceparent", f"00-{row + 1:032x}-{row + 1:016x}-01".encode())] for row in range(300)
    }
    bench.assign(bench.produce(0, *values(300)))
    bench.until_idle()
    (batch,) = recorded.named("process flights")
    assert len(batch.links) == MOST_LINKS
    assert batch.attributes is not None
    assert batch.attributes["slackwater.batch.links_left_out"] == 300 - MOST_LINKS
    assert batch.attributes["messaging.destination.partition.id"] == "0"


def test_headers_of_large_batches_are_read_here_and_there(recorded: Recorded) -> None:
    bench = traced(recorded, max_records=5000)
    bench.cluster.headers = {
        (0, row): [("traceparent", f"00-{row // 1000 + 1:032x}-{1:016x}-01".encode())] for row in range(5000)
    }
    bench.assign(bench.produce(0, *values(5000)))
    bench.until_idle()
    first = recorded.named("process flights")[0]
    assert len(first.links) == 5, "of all parts of it"


def test_a_batch_that_is_not_sampled_has_no_headers_read_and_its_handler_no_spans(recorded: Recorded) -> None:
    unsampled = Recorded(ParentBased(ALWAYS_OFF))
    bench = traced(unsampled)
    bench.cluster.headers = {(0, 0): [("traceparent", PRODUCER.encode())]}
    current: list[trace.SpanContext] = []
    transform = bench.engine.transform

    def handler(table, batch):  # type: ignore[no-untyped-def]
        current.append(trace.get_current_span().get_span_context())
        with unsampled.tracing.child("query"):
            return transform(table, batch)

    bench.engine.transform = handler  # type: ignore[method-assign]
    bench.assign(bench.produce(0, *values(3)))
    bench.until_idle()
    assert unsampled.spans == []
    assert [(context.is_valid, context.trace_flags.sampled) for context in current] == [(True, False)]
    assert "trace_id" not in bench.events("batch")[0]


def test_what_the_handler_starts_is_a_child_of_its_call(recorded: Recorded) -> None:
    bench = traced(recorded)
    transform = bench.engine.transform

    def handler(table, batch):  # type: ignore[no-untyped-def]
        with recorded.tracing.child("query"):
            return transform(table, batch)

    bench.engine.transform = handler  # type: ignore[method-assign]
    bench.assign(bench.produce(0, *values(3)))
    bench.until_idle()
    assert recorded.children(recorded.named("handle")[0]) == ["query"]
    assert not trace.get_current_span().get_span_context().is_valid, "nothing stays current"


def test_log_lines_and_events_of_a_batch_carry_its_trace(recorded: Recorded) -> None:
    bench = traced(recorded)
    bench.engine.errors.extend([ValueError("first")])
    bench.assign(bench.produce(0, *values(3)))
    bench.until_idle()
    (batch,) = recorded.named("process flights")
    assert batch.context is not None
    trace_id, span_id = f"{batch.context.trace_id:032x}", f"{batch.context.span_id:016x}"
    for name in ("batch", "committed"):
        (event,) = bench.events(name)
        assert (event["trace_id"], event["span_id"]) == (trace_id, span_id)
    (line,) = [line for line in bench.stderr.getvalue().splitlines() if "retrying" in line]
    assert line.endswith(f" trace_id={trace_id} span_id={span_id}")
    assert "trace_id" not in bench.events("assigned")[0]


def test_a_call_that_raises_is_an_error_of_its_span_and_not_of_the_batch(recorded: Recorded) -> None:
    bench = traced(recorded)
    bench.engine.errors.append(ValueError("no such airport"))
    bench.assign(bench.produce(0, *values(3)))
    bench.until_idle()
    (batch,) = recorded.named("process flights")
    first, second = recorded.named("handle")
    assert recorded.children(batch) == ["handle", "back off", "handle", "stage", "fence", "publish", "commit"]
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description is not None
    assert "no such airport" in first.status.description
    assert (first.attributes, second.attributes) == (
        {"slackwater.batch.attempt": 1},
        {"slackwater.batch.attempt": 2},
    )
    assert second.status.status_code is batch.status.status_code is StatusCode.UNSET


def test_the_search_for_records_at_fault_is_shown(recorded: Recorded) -> None:
    bench = traced(recorded, retries=0)
    bench.engine.failure = lambda had: ValueError("bad value") if "v2" in had else None
    tp = bench.produce(0, *values(8))
    bench.assign(tp)
    bench.until_idle()
    (batch,) = recorded.named("process flights")
    trials = recorded.named("handle a part")
    assert len(trials) > 2
    assert {trial.status.status_code for trial in trials} == {StatusCode.ERROR, StatusCode.UNSET}
    assert batch.attributes is not None
    assert batch.attributes["slackwater.batch.dead_letters"] == 1
    assert {"stage a part", "read dead letters", "write dead letters"} <= set(recorded.children(batch))


def test_a_long_search_has_a_limited_number_of_spans(recorded: Recorded) -> None:
    bench = traced(recorded, max_records=2000, retries=0)
    bench.engine.failure = lambda had: ValueError("bad") if any(v.endswith("99") for v in had) else None
    bench.assign(bench.produce(0, *values(2000)))
    bench.until_idle()
    batch = recorded.named("process flights")[0]
    assert len(recorded.children(batch)) == MOST_CHILDREN
    assert batch.attributes is not None
    left_out = batch.attributes["slackwater.batch.stages_left_out"]
    assert isinstance(left_out, int)
    assert left_out > 0


def test_a_fenced_publish_is_an_error_and_the_batch_is_abandoned(recorded: Recorded) -> None:
    bench = traced(recorded)
    tp = bench.produce(0, *values(3))
    bench.sink.publish_error = SinkFencedError("another process has written flights-0")
    bench.assign(tp)
    while not recorded.named("process flights"):
        bench.steps(1)
    bench.sink.publish_error = None
    bench.until_idle()
    abandoned, committed = recorded.named("process flights")
    assert abandoned.attributes is not None
    assert abandoned.attributes["slackwater.batch.result"] == "abandoned"
    assert [event.name for event in abandoned.events] == ["partitions given up"]
    assert recorded.named("publish")[0].status.status_code is StatusCode.ERROR
    assert committed.attributes is not None
    assert committed.attributes["slackwater.batch.result"] == "committed"
    assert abandoned.context is not None
    assert committed.context is not None
    assert committed.context.trace_id != abandoned.context.trace_id


def test_a_commit_that_the_group_refuses_is_an_error_of_its_stage(recorded: Recorded) -> None:
    bench = traced(recorded)
    bench.consumer.commit_errors.append(CommitFailedError("moved on"))
    bench.assign(bench.produce(0, *values(3)))
    bench.until_idle()
    assert recorded.named("fence")[0].status.status_code is StatusCode.ERROR
    results = [
        dict(span.attributes or {})["slackwater.batch.result"] for span in recorded.named("process flights")
    ]
    assert results == ["abandoned", "committed"]


def test_a_worker_that_ends_by_a_batch_ends_its_span_as_failed(recorded: Recorded) -> None:
    bench = traced(recorded)
    bench.engine.errors.append(HandlerError("the handler returned int, not a table"))
    bench.assign(bench.produce(0, *values(3)))
    with pytest.raises(HandlerError):
        bench.until_idle()
    (batch,) = recorded.named("process flights")
    assert batch.status.status_code is StatusCode.ERROR
    assert batch.attributes is not None
    assert batch.attributes["slackwater.batch.result"] == "failed"
    assert recorded.named("handle")[0].status.status_code is StatusCode.ERROR


def test_batches_that_are_written_together_link_to_the_first(recorded: Recorded) -> None:
    sink = {"format": "parquet", "path": "out", "maxAgeMs": 1000}
    bench = traced(recorded, max_records=2, sink=sink)
    bench.assign(bench.produce(0, *values(6)))
    bench.until_idle()
    spans = recorded.named("process flights")
    by_result: dict[object, list[ReadableSpan]] = {}
    for span in spans:
        by_result.setdefault(dict(span.attributes or {})["slackwater.batch.result"], []).append(span)
    (first,) = by_result["committed"]
    assert dict(first.attributes or {})["slackwater.batch.gathered"] == 3
    assert len(by_result["gathered"]) == 2
    assert first.context is not None
    for joined in by_result["gathered"]:
        assert [link.context.span_id for link in joined.links] == [first.context.span_id]
        assert recorded.children(joined)[0] == "handle"
    assert "gather" in recorded.children(first)
    assert recorded.children(first)[-2:] == ["publish", "commit"]


def test_partitions_that_are_given_up_are_events_of_the_span(recorded: Recorded) -> None:
    bench = traced(recorded)
    a, b = bench.produce(0, *values(3)), bench.produce(1, *values(2))
    bench.runner.durations.append(500)
    bench.assign(a, b)
    bench.steps(2)
    bench.consumer.at_poll.append(lambda: bench.consumer.lose(a))
    bench.until_idle()
    (batch,) = recorded.named("process flights")
    (event,) = batch.events
    assert json.loads(json.dumps(dict(event.attributes or {}))) == {
        "slackwater.partitions": ["flights-0"],
        "slackwater.reason": "its partitions are another member's",
    }
    assert dict(batch.attributes or {})["slackwater.batch.records"] == 2


def test_traces_that_are_off_cost_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.assign(bench.produce(0, *values(3)))
    monkeypatch.setattr("slackwater.kafka.records.RecordColumns.header_values", None)
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1, 2]
