"""What people are told of logs that have lost records: conditions, Events and the status."""

from __future__ import annotations

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.status.group_status import SKIPS_KEPT, Skip
from slackwater_operator.model.worker_status import StoppedPartition
from slackwater_operator.planner.actions import EmitEvent
from slackwater_operator.planner.lost_log import SKIPS_SHOWN_MS, take_skips
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator

A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)


async def running() -> tuple[Simulation, SimulatedOperator]:
    simulation = Simulation(spec())
    operator = SimulatedOperator(simulation)
    await operator.run(lambda: simulation.condition("Ready").get("status") == "True")
    await operator.pass_time(3_000)
    operator.actions.clear()
    return simulation, operator


def event_messages(operator: SimulatedOperator, reason: str) -> list[str]:
    events = [
        action for action in operator.actions if isinstance(action, EmitEvent) and action.reason == reason
    ]
    assert all(event.warning for event in events)
    return [event.message for event in events]


async def test_skipped_records_are_told_once_and_shown_for_an_hour() -> None:
    simulation, operator = await running()
    simulation.skipped["flights-1"] = (Skip(*A, 100, 150, "retention", simulation.now_ms),)
    await operator.run(lambda: simulation.condition("Degraded").get("status") == "True")
    degraded = simulation.condition("Degraded")
    assert degraded["reason"] == "RecordsSkipped"
    assert "flights-0: 50 records, offsets 100 to 149" in degraded["message"]
    assert simulation.condition("Ready")["status"] == "True"
    [kept] = simulation.status["skipped"]
    assert (kept["topic"], kept["partition"], kept["from"], kept["to"]) == ("flights", 0, 100, 150)
    await operator.pass_time(10_000)
    [event] = event_messages(operator, "RecordsSkipped")
    assert "flights-0: 50 records, offsets 100 to 149" in event
    # Another worker found the same, since the first one had not committed; and then there is more.
    at_ms = simulation.now_ms
    simulation.skipped["flights-0"] = (
        Skip(*A, 100, 150, "retention", at_ms),
        Skip(*B, 7, 9, "retention", at_ms),
    )
    await operator.run(lambda: len(simulation.status["skipped"]) == 2)
    assert len(event_messages(operator, "RecordsSkipped")) == 2
    assert "flights-0" not in event_messages(operator, "RecordsSkipped")[1]
    await operator.pass_time(3_000)
    assert len(event_messages(operator, "RecordsSkipped")) == 2


async def test_a_stopped_partition_is_degraded_with_its_reason_and_not_ready() -> None:
    simulation, operator = await running()
    simulation.stopped["flights-1"] = tuple(
        StoppedPartition(tp, "LogTruncated", f"{tp}: the log ends at offset 5. To go on: ...")
        for tp in (A, B)
    )
    await operator.run(lambda: simulation.condition("Degraded").get("status") == "True")
    degraded, ready = simulation.condition("Degraded"), simulation.condition("Ready")
    assert degraded["reason"] == "LogTruncated"
    assert degraded["message"].startswith("flights-0: the log ends at offset 5. To go on")
    assert "also for flights-1" in degraded["message"]
    assert (ready["status"], ready["reason"]) == ("False", "PartitionsStopped")
    assert "flights-0, flights-1" in ready["message"]
    await operator.pass_time(5_000)
    assert len(event_messages(operator, "LogTruncated")) == 1
    simulation.stopped.clear()
    await operator.run(lambda: simulation.condition("Degraded").get("status") == "False")
    assert simulation.condition("Ready")["status"] == "True"


def test_skips_end_after_an_hour_and_are_bounded() -> None:
    now_ms = 10 * SKIPS_SHOWN_MS
    old, ahead = (
        Skip(*A, 0, 1, "retention", now_ms - SKIPS_SHOWN_MS),
        Skip(*B, 0, 1, "retention", now_ms + 5_000),
    )
    kept, new = take_skips([old], [old, ahead], now_ms)
    assert kept == new == (Skip(*B, 0, 1, "retention", now_ms),)
    assert take_skips(kept, [ahead], now_ms + 1_000) == (kept, ())
    many = [Skip("t", n, 0, 1, "retention", now_ms) for n in range(SKIPS_KEPT + 20)]
    kept, new = take_skips([], many, now_ms)
    assert len(kept) == len(new) == SKIPS_KEPT
    assert take_skips(kept, many, now_ms) == (kept, ())
