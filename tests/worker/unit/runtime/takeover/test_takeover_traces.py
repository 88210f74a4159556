"""The traces of a takeover, of both sides, also where it comes to nothing."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from slackwater.runtime.takeover.http_client import Reply
from slackwater.tracing.context import parse
from tests.support.telemetry.tracing import PRODUCER, Recorded
from tests.worker.unit.runtime.takeover.takeover_bench import DEADLINE_MS, MEMBER, OTHER, POD, Scene

TAKE_OVER, HAND_OVER = f"take over {MEMBER}", f"hand over {MEMBER}"


def successor(recorded: Recorded) -> Scene:
    """The other pod serves, and this one is ordered to take over, in a trace."""
    scene = Scene()
    scene.parts.traces = recorded.tracing
    scene.serve_before()
    scene.in_phase("standby", lambda: scene.order(trace=PRODUCER), 1_500)
    return scene


def predecessor(recorded: Recorded) -> Scene:
    """This pod serves, and is asked by the other after a second, in a trace."""
    scene = Scene(holder=POD, records=2)
    scene.parts.traces = recorded.tracing
    scene.in_phase("running", lambda: scene.ask(OTHER, DEADLINE_MS, PRODUCER), 1_000)
    return scene


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    return f"{span.parent.span_id:016x}"


def test_the_steps_of_a_takeover_are_spans_and_its_request_carries_the_context() -> None:
    recorded = Recorded()
    scene = successor(recorded)
    scene.stop_when_done()
    assert scene.run() == 0
    (taken,) = recorded.named(TAKE_OVER)
    assert parent_of(taken) == PRODUCER.split("-")[2]
    assert recorded.children(taken) == ["ask for the handover", "join", "first records", "first rows"]
    (asked,) = recorded.named("ask for the handover")
    sent = parse(scene.neighbour.asked[0][2].trace)
    assert sent is not None
    assert sent.span_id == f"{asked.context.span_id:016x}"
    attributes = dict(taken.attributes or {})
    assert attributes["slackwater.predecessor"] == OTHER
    assert attributes["slackwater.takeover.forced"] is False
    assert attributes["slackwater.takeover.partitions"] == 2
    assert taken.status.status_code is StatusCode.UNSET


def test_a_refused_takeover_has_failed() -> None:
    recorded = Recorded()
    scene = successor(recorded)
    scene.neighbour.answers[0] = lambda _: Reply(409, {"error": "not now"})
    scene.in_phase("taking-over", lambda: scene.stop_in("standby", 500))
    assert scene.run() == 0
    (taken,) = recorded.named(TAKE_OVER)
    assert recorded.children(taken) == ["ask for the handover"]
    assert taken.status.status_code is StatusCode.ERROR
    assert "not now" in (taken.status.description or "")


def test_a_takeover_that_a_stop_interrupts_ends_with_the_worker() -> None:
    recorded = Recorded()
    scene = successor(recorded)
    scene.caller.durations.append(1_000)
    scene.stop_in("taking-over", 100)
    assert scene.run() == 0
    (taken,) = recorded.named(TAKE_OVER)
    assert dict(taken.attributes or {})["slackwater.takeover.interrupted"] is True


def test_a_handover_is_a_span_from_the_request_to_the_fence() -> None:
    recorded = Recorded()
    scene = predecessor(recorded)

    scene.in_phase("handing-over", lambda: scene.parts.last.fence(), 200)
    scene.stop_in("standby", 3_000)
    assert scene.run() == 0
    (handed,) = recorded.named(HAND_OVER)
    assert parent_of(handed) == PRODUCER.split("-")[2]
    assert recorded.children(handed) == ["drain", "wait for the fence"]
    attributes = dict(handed.attributes or {})
    assert (attributes["slackwater.successor"], attributes["slackwater.handover.result"]) == (
        OTHER,
        "handed over",
    )


def test_a_handover_that_is_withdrawn_says_that_the_work_was_resumed() -> None:
    recorded = Recorded()
    scene = predecessor(recorded)
    scene.in_phase("handing-over", lambda: scene.requests.withdraw(OTHER), 200)
    scene.in_phase("handing-over", lambda: scene.stop_in("running", 500))
    assert scene.run() == 0
    (handed,) = recorded.named(HAND_OVER)
    assert dict(handed.attributes or {})["slackwater.handover.result"] == "resumed"
    assert recorded.named("drain")[0].parent is not None
