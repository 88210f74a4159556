"""The operator's own code, from snapshots to execution, run against the simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from slackwater.tracing.spans import NO_TRACING, Tracing
from slackwater_operator.controller.execution.executor import Executor, Outcome
from slackwater_operator.controller.execution.refusals import subject_of
from slackwater_operator.controller.operation_traces import OperationTraces
from slackwater_operator.controller.rebalances import Rebalance
from slackwater_operator.controller.session import Session, new_session
from slackwater_operator.controller.session_update import new_rebalances, record_outcome
from slackwater_operator.controller.settings import Settings
from slackwater_operator.controller.snapshots.builder import SnapshotBuilder
from slackwater_operator.controller.snapshots.observation_changes import take_observation
from slackwater_operator.kubernetes.store import Key
from slackwater_operator.planner.actions import Action, Plan
from slackwater_operator.planner.plan import plan as plan_group
from slackwater_operator.planner.snapshot import GroupSnapshot
from tests.operator.unit.planner.simulation.simulated_cluster import KEY, Simulation

CALM_MS = 2_500
"""How often at least the operator looks at a cluster that shows nothing new."""


class SimulationClock:
    """The simulation's time, as the operator's clock."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def wall_ms(self) -> int:
        return self._simulation.now_ms

    def mono_ms(self) -> float:
        return float(self._simulation.now_ms)

    def sleep(self, ms: float) -> None:
        raise AssertionError("the operator waits on its loop only")


class SimulatedOperator:
    """The operator's turns on the simulation.

    `dies` is told of each action done and its number, and says whether the operator dies of it: all that it
    had in memory is lost. Until `away_until_ms` nobody takes its place.
    """

    def __init__(self, simulation: Simulation, *, every_ms: int = 500, tracing: Tracing = NO_TRACING) -> None:
        self.simulation = simulation
        self.every_ms = every_ms
        self.dies: Callable[[Action, int], bool] = lambda action, number: False
        self.actions: list[Action] = []
        self.acted_ms: list[int] = []
        self.deaths = 0
        self.taken_over: list[str] = []
        self.rebalances: list[Rebalance] = []
        self.away_until_ms = 0
        self.before_act: list[Callable[[Action, GroupSnapshot], None]] = []
        settings = Settings(worker_image="slackwater/worker:v1")
        clock = SimulationClock(simulation)
        kube: Any = simulation.kube
        clusters: Any = simulation.clusters
        workers: Any = simulation.workers
        events: Any = simulation.events
        self._snapshots = SnapshotBuilder(
            kube, simulation.store, clusters, workers, clock, settings, simulation.prometheus
        )
        self._traces = OperationTraces(tracing, clock)
        self._executor = Executor(kube, simulation.store, clusters, workers, events, traces=self._traces)
        self.session = self._new_session()
        self._turned_ms = 0
        self._shown: object = None
        self._shown_ms = 0  # since when the cluster shows that
        self._changed = True
        simulation.store.on_change(self._wake)

    def _new_session(self) -> Session:
        return new_session(
            KEY, now_ms=self.simulation.now_ms, window_ms=20_000, down_window_ms=60_000, settle_ms=10_000
        )

    def introduce(self, key: Key) -> None:
        """The operator has read another ConsumerGroup of the Store, which it looks after, too."""
        self._snapshots.preload(
            new_session(key, now_ms=self.simulation.now_ms, window_ms=1, down_window_ms=1, settle_ms=1)
        )

    def die(self) -> None:
        """All that was in memory is lost."""
        self.deaths += 1
        self._shown = None
        self.session = self._new_session()

    async def run(self, until: Callable[[], object], *, timeout_ms: int = 120_000) -> None:
        """Lets time pass, with a turn every now and then, until the condition holds."""
        deadline = self.simulation.now_ms + timeout_ms
        while not until():
            assert self.simulation.now_ms < deadline, self._stuck()
            self.simulation.tick()
            if self.simulation.now_ms >= max(self._next_ms(), self.away_until_ms):
                self._turned_ms = self.simulation.now_ms
                await self.turn()

    def _next_ms(self) -> int:
        """When the next turn is due: the longer nothing but figures changes, the later."""
        now_ms, shown = self.simulation.now_ms, self.simulation.shown()
        if shown != self._shown or now_ms < self.away_until_ms:
            self._shown, self._shown_ms = shown, now_ms
        wait_ms = min(max(self.every_ms, (now_ms - self._shown_ms) // 2), CALM_MS)
        return self._turned_ms + wait_ms

    async def pass_time(self, ms: int) -> None:
        """Lets some time pass."""
        end = self.simulation.now_ms + ms
        await self.run(lambda: self.simulation.now_ms >= end, timeout_ms=ms + 1_000)

    def _stuck(self) -> str:
        status = self.simulation.status
        shown = {name: status.get(name) for name in ("desiredReplicas", "members", "rollout")}
        message = "; ".join(
            f"{condition['type']}={condition['status']} {condition['message']}"
            for condition in status.get("conditions", [])
        )
        state, images = self.simulation.group.view().state, self.simulation.images()
        return f"not reached: {shown}; {message}; {state} {images}"

    def _due(self) -> bool:
        """Whether there is a reason for a turn besides what the cluster has said."""
        plan, changed = self.session.plan, self._changed
        self._changed = False
        return changed or plan is None or self.simulation.now_ms >= plan.wake_ms

    def _wake(self, _: Key) -> None:
        self._changed = True

    async def snapshot(self) -> GroupSnapshot:
        """What it would plan from now, without another observation of Kafka."""
        snapshot = await self._snapshots.build(self.session)
        assert snapshot is not None
        return snapshot

    async def turn(self) -> Plan | None:
        """One turn, as the controller makes it."""
        worth = await self._clusters_round()
        if not worth and self.session.plan is not None and not self._due():
            return None
        snapshot = await self._snapshots.build(self.session)
        await asyncio.sleep(0)  # for what is asked beside the planner
        if snapshot is None:
            return None
        plan = plan_group(snapshot)
        if plan.needs_fresh:
            snapshot = await self._snapshots.build(self.session, fresh=True)
            assert snapshot is not None
            plan = plan_group(snapshot)
        await self._execute(snapshot, plan)
        return plan

    async def _clusters_round(self) -> bool:
        session = self.session
        if session.wanted is None:
            self._snapshots.preload(session)
        if session.next_cluster is not None:
            session.next_id = await self.simulation.clusters.identify(session.next_cluster)
        if session.wanted is not None:
            observed = await self.simulation.clusters.observe(session.cluster, [session.wanted])
            return take_observation(session, observed.snapshots[session.key], self.simulation.now_ms)
        return True

    def _check_events(self) -> None:
        """A reason of Degraded that was never posted as an Event is an error."""
        degraded = self.simulation.condition("Degraded")
        if degraded.get("status") == "True" and not self.deaths:
            assert degraded["reason"] in {reason for reason, _ in self.simulation.events.said}, degraded

    async def _execute(self, snapshot: GroupSnapshot, plan: Plan) -> None:
        """The plan's actions one by one; the operator may die after each."""
        self.session.problems = ()
        self.session.refusals.keep({subject_of(snapshot, action) for action in plan.actions})
        self.session.act_failures.keep(plan.actions)
        for action in plan.actions:
            for check in self.before_act:
                check(action, snapshot)
            partial_plan = Plan((action,), plan.status)
            outcome: Outcome = await self._executor.execute(
                self.session, snapshot, partial_plan, now_ms=self.simulation.now_ms
            )
            if outcome.error:
                problem = [outcome.problem] if outcome.problem is not None else []
                self.session.problems = (*self.session.shown_failures, *problem)
                self.session.plan = plan
                return
            self.actions.append(action)
            self.acted_ms.append(self.simulation.now_ms)
            if self.dies(action, len(self.actions)):
                self.die()
                return
        self._check_events()
        self.taken_over += plan.taken_over
        record_outcome(self.session, snapshot, plan, done=len(plan.actions))
        self._traces.observe(snapshot, self.session.workers, plan.taken_over)
        self.rebalances += new_rebalances(self.session, snapshot)
