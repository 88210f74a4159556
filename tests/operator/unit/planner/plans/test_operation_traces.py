"""The operator's spans of takeovers and restarts, in the simulated cluster."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan

from slackwater.tracing.context import TraceContext
from slackwater_operator.api.v1alpha1.status.group_status import GroupStatus
from slackwater_operator.api.v1alpha1.status.rollout import RolloutStatus, UnderWay
from slackwater_operator.controller.operation_traces import OperationTraces
from slackwater_operator.model.worker_status import RestartTimes, WorkerStatus
from slackwater_operator.planner.snapshot import GroupSnapshot
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, image, rolled, settled, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator
from tests.operator.unit.planner.simulation.takeovers import taking_over
from tests.support.telemetry.tracing import PRODUCER, Recorded
from tests.support.workers.fakes import VirtualClock


def context_of(span: ReadableSpan) -> str:
    return str(TraceContext(f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", True))


async def test_each_takeover_is_a_trace_whose_context_goes_with_the_order() -> None:
    recorded = Recorded()
    simulation, operator = await taking_over(tracing=recorded.tracing)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"))
    names = [f"takeover by flights-b-{ordinal}" for ordinal in (2, 1, 0)]
    takeovers = [span for span in recorded.spans if span.parent is None]
    assert [span.name for span in takeovers] == names
    orders = recorded.named("order the takeover")
    assert [context_of(order) for order in orders] == simulation.workers.traces
    assert [order.parent.span_id for order in orders if order.parent] == [
        takeover.context.span_id for takeover in takeovers
    ]
    for takeover in takeovers:
        attributes = dict(takeover.attributes or {})
        assert attributes["slackwater.takeover.outcome"] == "asked"
        assert attributes["slackwater.takeover.longest_pause_ms"] == 21
        assert attributes["k8s.pod.name"] == takeover.name.rpartition(" ")[2]


async def test_an_order_that_is_not_accepted_is_an_error_and_the_next_is_in_the_same_trace() -> None:
    recorded = Recorded()
    simulation, operator = await taking_over(tracing=recorded.tracing)
    accept = simulation.workers.take_over
    refused = 0

    async def busy(*order: object) -> tuple[int, str]:
        nonlocal refused
        refused += 1
        return (409, "is warming") if refused == 1 else await accept(*order)  # type: ignore[arg-type]

    simulation.workers.take_over = busy  # type: ignore[method-assign]
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"))
    first, second = recorded.named("order the takeover")[:2]
    assert (first.status.description, second.status.description) == ("is warming", None)
    assert first.context.trace_id == second.context.trace_id


async def test_without_traces_no_header_is_sent() -> None:
    simulation, operator = await taking_over()
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"))
    assert set(simulation.workers.traces) == {""}


async def test_each_restart_is_a_span_from_the_decision_to_the_return() -> None:
    recorded = Recorded()
    simulation = Simulation(spec())
    operator = SimulatedOperator(simulation, tracing=recorded.tracing)
    await operator.run(lambda: settled(simulation, 3))
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"))
    await operator.pass_time(2_000)
    restarts = [span for span in recorded.spans if span.parent is None]
    assert sorted(span.name for span in restarts) == [f"restart of flights-{ordinal}" for ordinal in range(3)]
    for restart in restarts:
        assert recorded.children(restart)[0] == "old pod ends"


def snapshot(*under_way: UnderWay) -> GroupSnapshot:
    memory = GroupStatus(rollout=RolloutStatus(under_way=under_way))
    return GroupSnapshot(0, "default", "flights", "uid", 1, memory)


def test_a_restart_joins_the_trace_that_the_worker_reports() -> None:
    recorded, clock = Recorded(), VirtualClock()
    traces = OperationTraces(recorded.tracing, clock)
    now = clock.wall_ms()
    traces.observe(snapshot(UnderWay("flights-0", "uid-0", since_ms=now, ended_ms=now + 300)), {}, ())
    clock.sleep(2_000)
    times = RestartTimes(started_ms=now + 900, trace=PRODUCER)
    traces.observe(snapshot(), {"flights-0": WorkerStatus("running", restart=times)}, ())
    ended, starts, restart = recorded.spans
    assert restart.parent is not None
    assert f"{restart.context.trace_id:032x}" == PRODUCER.split("-")[1]
    assert f"{restart.parent.span_id:016x}" == PRODUCER.split("-")[2]
    took = [((span.end_time or 0) - (span.start_time or 0)) / 1e6 for span in (ended, starts, restart)]
    assert (ended.name, starts.name) == ("old pod ends", "new pod starts")
    assert took == [300, 600, 2_000]
    traces.forget(("default", "flights"))
    traces.observe(snapshot(), {}, ())
    assert len(recorded.spans) == 3
