"""One turn of a LocalRun: compare what is with what should be, and do what the decisions say."""

from __future__ import annotations

import asyncio
from pathlib import Path

from slackwater_operator.kafka.observer import Observer
from slackwater_operator.local.events import EXIT_BAD_CONFIG, WorkerEvent
from slackwater_operator.local.gatekeeper import GateError, open_gate
from slackwater_operator.local.mover import Mover, Tell
from slackwater_operator.local.processes import wall_ms
from slackwater_operator.local.returns import gaps_for_budget
from slackwater_operator.local.state import Rollout, RunState
from slackwater_operator.local.views import RunError
from slackwater_operator.policies.rollout.broker_disruptions import ForcedWatch
from slackwater_operator.policies.rollout.gate import decide_gate
from slackwater_operator.policies.rollout.member_removal import decide_removal
from slackwater_operator.policies.rollout.restarts import (
    RestartView,
    RolloutDecision,
    RolloutInput,
    decide_rollout,
)
from slackwater_operator.policies.scaling.autoscaler import Autoscaler

_GAPS_TO_LEARN_FROM = 20


class Reconciler:
    """Acts on a run's state. Idempotent: what was done, or failed, is seen in the next observation."""

    def __init__(
        self,
        state: RunState,
        observer: Observer,
        autoscaler: Autoscaler,
        logs: Path,
        tell: Tell,
        *,
        key: bytes = b"",
    ) -> None:
        """`key`: what workers that can take over from each other open their gates for; "": there are none."""
        self._state = state
        self._key = key
        self._autoscaler = autoscaler
        self._forced = ForcedWatch()
        self._observer = observer
        self._logs = logs
        self._mover = Mover(state, self.observe, self._forced, tell)

    async def observe(self) -> None:
        """Asks the broker how things are."""
        state = self._state
        state.observed(await self._observer.observe(self._state.group.spec.topics))
        if state.seen is not None:
            state.topics.observe(state.seen, now_ms=wall_ms(), topics=state.group.spec.topics)
        for change in state.topics.untold:
            state.notify(change.message)
        state.topics.told(state.topics.untold)
        away = [one.name for one in state.wanted if one.process is None or one.progress.phase == "starting"]
        rolling = set(state.rollout.under_way) if state.rollout is not None else set()
        if state.takeover is not None and state.takeover.moving is not None:
            rolling = {state.group.instance_id(state.takeover.moving.ordinal)}
        self._forced.observe(state.seen, now_ms=wall_ms(), away=[one for one in away if one in rolling])

    async def turn(self) -> None:
        """Does what is to be done now.

        Raises:
            OSError: a worker's process cannot be started.
        """
        state = self._state
        state.pool.stop_surplus(state.sets)
        await state.pool.start_missing(state.sets)
        self._give_up_if_hopeless()
        await self._open_gates()
        await self._remove_orphans()
        if state.rollout is not None:
            await self._roll(state.rollout)
        if state.takeover is not None:
            await self._mover.turn(state.takeover)
        if state.unsettled():
            state.settled_since_ms = None
        elif state.settled_since_ms is None:
            state.settled_since_ms = wall_ms()

    async def leave(self, timeout_s: float) -> None:
        """Takes our static members out of the group: it is empty at once, not only after a session."""
        try:
            async with asyncio.timeout(timeout_s):
                seen = await self._observer.observe(self._state.group.spec.topics)
                ours = tuple(self._state.own_members(seen.group))
                if ours:
                    await self._observer.remove_members(ours)
        except TimeoutError:
            self._state.notify("the members could not be taken out of the group: no answer from the broker")

    async def _open_gates(self) -> None:
        state = self._state
        patience = state.settings.gate_patience_ms
        decision = decide_gate(state.group_view(), state.views(), now_ms=wall_ms(), patience_ms=patience)
        state.decided("gate", decision.reason, decision)
        ports = [
            (one, one.progress.port)
            for one in state.wanted
            if one.name in decision.open and one.progress.port is not None
        ]
        opened = await asyncio.gather(
            *(open_gate(port, one.pod, one.progress.process, key=self._key) for one, port in ports),
            return_exceptions=True,
        )
        for (one, _), result in zip(ports, opened, strict=True):
            if isinstance(result, GateError):
                state.notify(f"{one.name}'s gate did not open: {result}")
            elif isinstance(result, BaseException):
                raise result

    async def _remove_orphans(self) -> None:
        state = self._state
        group = state.group_view()
        decision = decide_removal(
            group,
            ours=state.own_members(group),
            wanted=[state.group.instance_id(ordinal) for ordinal in range(state.replicas)],
            alive=[one.name for one in state.pool.workers if one.process is not None],
        )
        state.decided("membership", decision.reason, decision)
        if not decision.remove:
            return
        failed = await self._observer.remove_members(decision.remove)
        done = [one for one in decision.remove if one not in failed]
        for name in done:
            state.take(WorkerEvent(wall_ms(), "removed", name))
            if state.operation is not None and name not in state.operation.removed:
                state.operation.removed.append(name)
        if done:
            state.notify(f"removed {', '.join(done)} from the group: {decision.reason}")
        for name, error in failed.items():
            state.notify(f"could not remove {name} from the group: {error}")
        await self.observe()  # a removal that was not stored is seen here, and tried again

    async def _roll(self, rollout: Rollout) -> None:
        state = self._state
        if rollout.decision and rollout.decision.action in ("refuse", "stop"):
            return
        decision = self._decide_rollout(rollout)
        if decision.restart:
            await self.observe()  # what is about to be done rests on the group as it is this moment
            decision = self._decide_rollout(rollout)
        rollout.decision = decision
        for name in decision.back:
            rollout.under_way.pop(name, None)
        state.decided("rollout", decision.reason, decision)
        views = {one.name: one for one in state.views()}
        for name in decision.restart:
            view = views[name]
            rollout.under_way[name] = RestartView(name, view.generation, view.lag, since_ms=wall_ms())
            state.notify(f"restart {name}: {decision.reason}")
        serving = [state.serving(name) for name in decision.restart]
        state.pool.restart([one.pod for one in serving if one is not None])
        if state.operation is not None and state.operation.kind == "rolling-restart":
            state.operation.subjects = tuple(rollout.under_way)

    def _decide_rollout(self, rollout: Rollout) -> RolloutDecision:
        state = self._state
        under_way = list(rollout.under_way.values())
        begun_ms = min((one.since_ms for one in under_way), default=wall_ms())
        rollout.expect(state.group, state.group_view(), state.topics.since(begun_ms))
        return decide_rollout(
            rollout.policy,
            RolloutInput(
                revision=str(state.revision),
                group=state.group_view(),
                workers=state.views(),
                under_way=under_way,
                gaps_ms=gaps_for_budget(state.timeline.restarts())[-_GAPS_TO_LEARN_FROM:],
                now_ms=wall_ms(),
                produced_per_s=self._autoscaler.produced_per_s,
                capacity_per_s=self._autoscaler.capacity_per_s,
                forced=self._forced.since(begun_ms),
                sessions_since_ms=self._forced.sessions_since_ms,
                expected=rollout.expected,
            ),
        )

    def _give_up_if_hopeless(self) -> None:
        state = self._state
        if state.rollout is not None or state.takeover is not None:
            return  # one that does not work out is ended by its own decisions, and the run goes on as before
        workers = state.wanted
        if workers and all(one.last_exit == EXIT_BAD_CONFIG for one in workers):
            refused = next((one.last_error for one in workers if one.last_error), "")
            state.fail(RunError(refused or f"{workers[0].name} refused its configuration"))
        for worker in workers:
            if worker.failures >= state.settings.max_failures:
                error = worker.last_error or f"exit code {worker.last_exit}"
                times = f"{worker.failures} times in a row"
                log = self._logs / f"{worker.pod}.err"
                state.fail(RunError(f"{worker.name} failed {times}: {error} (see {log})"))
