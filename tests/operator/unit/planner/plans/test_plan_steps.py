"""Rollouts by steps in virtual time, by the operator's own code: with restarts and with takeovers."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.spec.prometheus import PrometheusSecurity
from slackwater_operator.controller.group_metrics import figures
from slackwater_operator.planner.actions import DeletePod
from slackwater_operator.policies.explanations import explain
from slackwater_operator.policies.rollout.analysis import MetricValue
from slackwater_operator.specs.revision_record import HISTORY_LIMIT
from slackwater_operator.telemetry.metrics import GroupFigures
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, image, rolled, settled
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator
from tests.operator.unit.planner.simulation.takeovers import said, taking_over

LETTERS = {"name": "letters", "figure": "DeadLetterRate", "thresholdRange": {"max": 0.01}}
QUERY = {"name": "errors", "query": "sum(errors)", "thresholdRange": {"max": 0}}
PROMOTED = [{"setWorkers": 1}, {"pause": {}}]
ANALYSED = [{"setWorkers": 1}, {"analysis": {"duration": "20s"}}]

both = pytest.mark.parametrize("strategy", ["Restart", "Takeover"])
restart_first = pytest.mark.parametrize(
    "strategy", ["Restart", pytest.param("Takeover", marks=pytest.mark.long)]
)
"""Of what is decided before the strategy matters."""


async def group(
    strategy: str, steps: list[Any], *metrics: Any, replicas: int = 3, **analysis: Any
) -> tuple[Simulation, SimulatedOperator]:
    wanted = {"interval": "5s", "metrics": list(metrics), **analysis}
    rollout = {"strategy": strategy, "steps": steps, "analysis": wanted}
    simulation, operator = await taking_over(rollout=rollout, replicas=replicas)
    assert not said(simulation, "RolloutStep"), "the first rollout has no steps"
    return simulation, operator


def served_by(simulation: Simulation, tag: str) -> int:
    images = simulation.images()
    return sum(images[pod].endswith(f":{tag}") for pod in simulation.serving.values())


def paused(simulation: Simulation) -> bool:
    return bool(simulation.status["rollout"]["phase"] == "Paused" and simulation.group.state == "Stable")


async def shown(operator: SimulatedOperator) -> GroupFigures:
    """The group's gauges, as its last reconciliation gives them."""
    plan = operator.session.plan
    assert plan is not None
    return figures(operator.session, await operator.snapshot(), plan)


def unchanged(simulation: Simulation) -> tuple[int, int]:
    return simulation.group.rebalances, simulation.group.generation


@both
async def test_a_pause_holds_until_it_is_promoted(strategy: str) -> None:
    simulation, operator = await group(strategy, PROMOTED)
    before = unchanged(simulation)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: paused(simulation))
    since_s = simulation.now_ms / 1000
    await operator.pass_time(120_000)
    assert served_by(simulation, "v2") == 1
    gauges = await shown(operator)
    assert (gauges.rollout_steps, gauges.rollout_steps_completed, gauges.rollout_analysis) == (2, 1, "")
    assert gauges.rollout_phase_transitions == {"Paused": pytest.approx(since_s, abs=30)}
    assert simulation.status["rollout"]["reason"] == "step 2 of 2: paused until it is promoted"
    assert said(simulation, "RolloutPaused") == ["step 2 of 2: paused until it is promoted"]
    assert simulation.condition("RolledOut")["reason"] == "Paused"
    assert simulation.condition("Degraded")["status"] == "False"
    [line] = [text for text in explain(simulation.resource, simulation.now_ms).otherwise if "step" in text]
    assert "goes on after step 2 of 2 when it is promoted" in line
    simulation.annotate(promote="2 now")
    await operator.run(lambda: rolled(simulation, "v2"))
    assert unchanged(simulation) == before, simulation.group.why
    assert "step" not in simulation.status["rollout"]
    gauges = await shown(operator)
    assert (gauges.rollout_steps, gauges.rollout_steps_completed) == (None, None)
    assert list(gauges.rollout_phase_transitions) == ["Idle"]


@restart_first
async def test_an_operator_that_starts_in_a_pause_goes_on_there(strategy: str) -> None:
    simulation, operator = await group(strategy, [*PROMOTED, {"setWorkers": "60%"}, {"pause": {}}])
    simulation.change(pipeline=image("v2"))
    operator.dies = lambda action, number: True
    await operator.run(lambda: paused(simulation))
    assert served_by(simulation, "v2") == 1
    simulation.annotate(promote="2 now")
    await operator.run(lambda: paused(simulation) and served_by(simulation, "v2") == 2)
    await operator.pass_time(30_000)
    assert served_by(simulation, "v2") == 2
    assert operator.deaths > 5
    simulation.annotate(promote="all now")
    await operator.run(lambda: rolled(simulation, "v2"))


@both
@pytest.mark.parametrize("replicas", [3, pytest.param(1, marks=pytest.mark.long)])
async def test_a_revision_that_dead_letters_is_rolled_back(strategy: str, replicas: int) -> None:
    """With one worker the analysis follows the last restart: the previous revision is still there."""
    simulation, operator = await group(strategy, ANALYSED, LETTERS, replicas=replicas)
    simulation.dead = 0.5
    simulation.change(pipeline=image("letters"))
    await operator.run(
        lambda: settled(simulation, replicas, phase="Stopped") and len(simulation.spans()) == 1
    )
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert max(served_by(simulation, "letters"), 0) == 0
    touched = {name for name in simulation.pods_ever if name.startswith("flights-b")}
    deleted = {action.name for action in operator.actions if isinstance(action, DeletePod)}
    assert len(touched if strategy == "Takeover" else deleted) == 1, "only one worker had the revision"
    why = "the analysis of step 2 of 2 failed: letters is 0.5, more than 0.01"
    assert why in simulation.condition("Degraded")["message"]
    assert simulation.condition("Degraded")["reason"] == "RolloutStopped"
    assert said(simulation, "RolloutStopped") == [f"{why}; rolling back to the previous revision"]
    assert why in "\n".join(explain(simulation.resource, simulation.now_ms).lines())
    await operator.pass_time(60_000)
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}, "tried again"


@restart_first
async def test_a_revision_whose_metrics_hold_is_rolled_out(strategy: str) -> None:
    simulation, operator = await group(strategy, ANALYSED, LETTERS, QUERY)
    simulation.answer = MetricValue(0.0)
    simulation.change(pipeline=image("letters"))
    begun = simulation.now_ms
    await operator.run(lambda: rolled(simulation, "letters"))
    assert simulation.now_ms - begun > 20_000
    assert any("all metrics have held for 20 s" in text for text in said(simulation, "RolloutStep"))


@restart_first
async def test_a_prometheus_that_is_away_never_lets_it_go_on(strategy: str) -> None:
    simulation, operator = await group(strategy, ANALYSED, QUERY, inconclusiveLimit=2)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "AnalysisInconclusive")
    assert "Prometheus: away" in simulation.condition("Degraded")["message"]
    assert said(simulation, "AnalysisInconclusive")
    assert (await shown(operator)).rollout_analysis == "inconclusive"
    await operator.pass_time(60_000)
    assert served_by(simulation, "v2") == 1
    assert paused(simulation)
    operator.die()
    await operator.pass_time(30_000)
    assert served_by(simulation, "v2") == 1
    simulation.answer = MetricValue(0.0)
    await operator.run(lambda: rolled(simulation, "v2"))
    assert simulation.condition("Degraded")["status"] == "False"


async def test_prometheus_is_asked_with_the_secrets_of_the_group() -> None:
    simulation, operator = await group("Restart", ANALYSED, QUERY, LETTERS, prometheus={"tokenSecret": "t"})
    assert simulation.asked == []
    simulation.answer = MetricValue(None, "Prometheus is not asked: Secret default/t does not exist")
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "default/t" in simulation.status["rollout"].get("reason", ""))
    assert set(simulation.asked) == {("default", PrometheusSecurity(token_secret="t"), ("sum(errors)",))}
    simulation.answer = MetricValue(0.0)
    await operator.run(lambda: rolled(simulation, "v2"))


@both
async def test_an_operator_that_dies_after_each_action_rolls_back_by_the_analysis(strategy: str) -> None:
    simulation, operator = await group(strategy, ANALYSED, QUERY)
    simulation.answer = MetricValue(3.0)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: (simulation.status["rollout"].get("step") or {}).get("index") == 1)
    operator.dies = lambda action, number: True
    await operator.run(lambda: settled(simulation, 3, phase="Stopped") and len(simulation.spans()) == 1)
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert "errors is 3, more than 0" in simulation.condition("Degraded")["message"]


@both
@pytest.mark.parametrize("steps", [[], PROMOTED], ids=["rolling", "paused"])
async def test_an_aborted_rollout_goes_back(strategy: str, steps: list[Any]) -> None:
    simulation, operator = await group(strategy, steps)
    before = unchanged(simulation)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: served_by(simulation, "v2") == 1 and simulation.group.state == "Stable")
    simulation.annotate(abort=simulation.status["rollout"]["wanted"])
    await operator.run(lambda: settled(simulation, 3, phase="Stopped") and len(simulation.spans()) == 1)
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert unchanged(simulation) == before, simulation.group.why
    assert "aborted" in simulation.condition("Degraded")["message"]
    await operator.pass_time(30_000)
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    simulation.annotate(retry="1", abort="")
    await operator.run(lambda: served_by(simulation, "v2") >= 1)


@restart_first
async def test_a_rollout_is_aborted_before_it_begins(strategy: str) -> None:
    simulation, operator = await group(strategy, [])
    simulation.timing.job = 5_000
    operator.actions.clear()
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: simulation.status["rollout"]["phase"] == "Preflight")
    simulation.annotate(abort=simulation.status["rollout"]["wanted"])
    await operator.run(lambda: settled(simulation, 3, phase="Stopped"))
    await operator.pass_time(10_000)
    assert not [action for action in operator.actions if isinstance(action, DeletePod)]
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}


@restart_first
async def test_an_abort_of_the_revision_that_all_workers_have_does_nothing(strategy: str) -> None:
    simulation, operator = await group(strategy, PROMOTED)
    simulation.annotate(abort=simulation.status["rollout"]["wanted"])
    await operator.pass_time(10_000)
    assert settled(simulation, 3)


@both
async def test_the_way_back_to_the_good_revision_has_no_steps(strategy: str) -> None:
    simulation, operator = await group(strategy, PROMOTED)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: paused(simulation))
    simulation.change(pipeline=image("v1"))
    await operator.run(lambda: rolled(simulation, "v1"))


@restart_first
async def test_a_newer_revision_in_a_pause_begins_at_the_first_step(strategy: str) -> None:
    simulation, operator = await group(strategy, PROMOTED)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: paused(simulation))
    simulation.change(pipeline=image("v3"))
    await operator.run(lambda: paused(simulation) and served_by(simulation, "v3") == 1)
    await operator.pass_time(20_000)
    assert served_by(simulation, "v3") == 1
    simulation.annotate(promote="2 now")
    await operator.run(lambda: rolled(simulation, "v3"))


@restart_first
async def test_a_group_scales_while_it_is_paused_or_analysed(strategy: str) -> None:
    simulation, operator = await group(strategy, ANALYSED, QUERY)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: (simulation.status["rollout"].get("step") or {}).get("index") == 1)
    simulation.change(replicas=5)
    await operator.run(lambda: len(simulation.serving) == 5)
    assert served_by(simulation, "v1") >= 2


@pytest.mark.long
async def test_the_specs_of_the_last_revisions_are_kept() -> None:
    simulation, operator = await group("Takeover", [])
    first = simulation.status["revision"]
    for number in range(HISTORY_LIMIT + 2):
        simulation.change(pipeline=image(f"w{number}"))
        await operator.run(lambda tag=f"w{number}": rolled(simulation, tag))  # type: ignore[misc]
    await operator.pass_time(3_000)
    kept = simulation.numbers
    assert len(kept) == HISTORY_LIMIT
    assert first not in kept
    assert kept[simulation.status["revision"]] == HISTORY_LIMIT + 3
    simulation.change(pipeline=image(f"w{HISTORY_LIMIT}"))
    await operator.run(lambda: rolled(simulation, f"w{HISTORY_LIMIT}"))
    assert simulation.numbers[simulation.status["revision"]] == HISTORY_LIMIT + 4, "wanted again"
