"""Fault points: off by default, and a worker passes each of them where its name says."""

from __future__ import annotations

import pytest

from slackwater.runtime.errors import ConfigError
from slackwater.runtime.fault_points import VARIABLE, Step, from_environment, no_faults
from tests.support.workers.fakes import Bench


def test_without_the_variable_they_are_off() -> None:
    assert from_environment({}) is no_faults
    assert from_environment({VARIABLE: ""}) is no_faults


def test_it_stops_once_and_only_at_the_turn_that_is_asked_for() -> None:
    stops: list[str] = []
    reached = from_environment({VARIABLE: "fenced:2"}, lambda: stops.append("stop"))
    for count in (0, 1, 1, 1):
        reached(Step.READY)
        reached(Step.FENCED)
        assert len(stops) == count


@pytest.mark.parametrize("value", ["fence", "fenced:0", "fenced:x", ":1"])
def test_a_step_that_does_not_exist_is_named(value: str) -> None:
    with pytest.raises(ConfigError, match=f"{VARIABLE} is '{value}': give one of assigned, polled, begun, "):
        from_environment({VARIABLE: value})


def test_a_worker_passes_all_steps_in_their_order() -> None:
    bench = Bench()
    bench.notes_first_batches = True
    passed: list[Step | str] = []
    bench.reached = passed.append
    bench.restart()
    a, b = bench.produce(0, "v0", "bad1"), bench.produce(1, "v0")
    bench.assign(a, b)
    bench.until_idle()
    assert passed == list(Step)


def test_a_step_is_passed_for_a_batch_and_not_for_a_record() -> None:
    bench = Bench()
    passed: list[Step] = []
    bench.reached = passed.append
    bench.restart()
    bench.assign(bench.produce(0, *(f"v{i}" for i in range(90))))
    bench.until_idle()
    assert len(passed) == len(set(passed)) <= len(Step)
