"""The controller's loops on the simulated cluster: turns, observations, failures, and the end of a group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from slackwater.kafka.net.clock import Clock
from slackwater_operator.metrics import Metrics
from slackwater_operator.reconcile import controller as module
from slackwater_operator.reconcile.controller import Controller
from slackwater_operator.reconcile.plan import Plan
from slackwater_operator.reconcile.settings import Settings
from slackwater_operator.reconcile.turn import turn as real_turn
from slackwater_operator.reconcile.world import World
from tests.unit.reconcile.simulated import KEY, NAME, Simulation, spec
from tests.unit.reconcile.test_turn_simulated import settled

SIMULATED = ("kube", "store", "events", "clusters", "workers")
SETTINGS = Settings(worker_image="slackwater/worker:v1", busy_round_ms=20)


def made(simulation: Simulation, metrics: Metrics, **more: Any) -> Controller:
    clock = Clock(wall_ms=lambda: simulation.now_ms, monotonic_ms=lambda: float(simulation.now_ms))
    parts: dict[str, Any] = {name: getattr(simulation, name) for name in SIMULATED}
    return Controller(metrics=metrics, settings=SETTINGS, clock=clock, **parts, **more)


@contextlib.asynccontextmanager
async def running(controller: Controller, simulation: Simulation) -> AsyncIterator[None]:
    """The controller runs, and time passes ten times as fast as it does."""

    async def pass_time() -> None:
        while True:
            simulation.tick()
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(controller.run()), asyncio.create_task(pass_time())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def reached(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_group_is_looked_after_from_its_start_to_its_end() -> None:
    simulation, metrics = Simulation(spec()), Metrics()
    controller = made(simulation, metrics)
    async with running(controller, simulation):
        await reached(lambda: settled(simulation, 3))
        assert controller.groups == [KEY]
        members = b'slackwater_group_members{namespace="default",group="flights"} 3.0'
        await reached(lambda: members in metrics.text().splitlines())
        simulation.gone("ConsumerGroup", NAME)  # deleted, and the garbage collector does its work
        simulation.delete("StatefulSet", NAME, "")
        await reached(lambda: not controller.groups)
        assert simulation.group.removed[-1] == ("flights-0", "flights-1", "flights-2")
        assert b'group="flights"' not in metrics.text()


async def test_a_fault_in_a_turn_is_shown_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, metrics = Simulation(spec()), Metrics()
    controller = made(simulation, metrics)
    broken = True

    def turn(world: World) -> Plan:
        if broken:
            raise ZeroDivisionError("a fault")
        return real_turn(world)

    monkeypatch.setattr(module, "turn", turn)
    async with running(controller, simulation):
        await reached(lambda: simulation.condition("Degraded").get("reason") == "InternalError")
        assert "ZeroDivisionError: a fault" in simulation.condition("Degraded")["message"]
        assert b"slackwater_reconcile_errors_total 0.0" not in metrics.text()
        broken = False
        await reached(lambda: settled(simulation, 3))
        assert simulation.condition("Degraded")["status"] == "False"


async def test_nothing_is_done_by_who_may_not_lead() -> None:
    simulation = Simulation(spec())
    controller = made(simulation, Metrics(), may_act=lambda: False)
    async with running(controller, simulation):
        begun_ms = simulation.now_ms
        await reached(lambda: simulation.now_ms > begun_ms + 20_000)
    assert not simulation.kube.writes


async def test_nothing_is_done_before_all_is_listed() -> None:
    simulation = Simulation(spec())
    simulation.store.synced = False
    controller = made(simulation, Metrics())
    async with running(controller, simulation):
        begun_ms = simulation.now_ms
        await reached(lambda: simulation.now_ms > begun_ms + 10_000)
        assert not simulation.kube.writes
        simulation.store.synced = True
        await reached(lambda: simulation.kube.writes)


async def test_an_api_server_that_is_away_is_waited_for() -> None:
    simulation = Simulation(spec())
    controller = made(simulation, Metrics())
    simulation.kube.fail = lambda verb, kind: True
    async with running(controller, simulation):
        begun_ms = simulation.now_ms
        await reached(lambda: simulation.now_ms > begun_ms + 10_000)
        simulation.kube.fail = lambda verb, kind: False
        await reached(lambda: settled(simulation, 3))
    assert simulation.group.rebalances == 1
