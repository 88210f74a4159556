"""Rollouts of a run, from what is asked for to the group being settled again: by restart, and by takeover."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.local.operations import OperationStopped
from slackwater_operator.local.prepare import Source
from slackwater_operator.local.revisions import Revisions
from slackwater_operator.local.state import Rollout, RunState, TakeoverRoll
from slackwater_operator.local.views import OperationError, OperationReport, RunError
from slackwater_operator.policies.resource_policies import rollout_policy, takeover_policy

Operate = Callable[..., Coroutine[Any, Any, OperationReport]]
"""Waits until something is done, and reports: kind, text, timeout_s, and what `operations.operate` takes."""


class Rolls:
    """Rolls the workers of a run. Only one rollout may be under way."""

    def __init__(self, state: RunState, revisions: Revisions, operate: Operate) -> None:
        self._state = state
        self._revisions = revisions
        self._operate = operate

    async def restart(self, group: ConsumerGroup | None, timeout_s: float) -> OperationReport:
        """Restarts all workers within their sets. As `LocalRun.rolling_restart`, whose errors it raises."""
        state = self._state
        source, revisions = self._revisions.source, [one.revision for one in state.sets]
        newest = self._revise(group)
        for one in state.sets:
            one.revision = newest
        state.rollout = Rollout(rollout_policy(state.group))
        try:
            return await self._operate(
                "rolling-restart", "restart all workers", timeout_s, done=self._restarts_left
            )
        except OperationError:
            if group is not None:
                self._restart_back(source, revisions)
            raise
        finally:
            state.rollout = None

    async def take_over(self, group: ConsumerGroup | None, timeout_s: float) -> OperationReport:
        """Fills a new set, member by member. As `LocalRun.takeover`, whose errors it raises."""
        if not self._revisions.key:
            raise ValueError("takeovers need a key, and this run was given none")
        state, source = self._state, self._revisions.source
        if state.sets.new is not None:  # an earlier way back did not come to its end
            await self._go_back(timeout_s)
        state.sets.begin(self._revise(group, takes_over=True))
        state.takeover = TakeoverRoll(takeover_policy(state.group, hands_over=True))
        try:
            return await self._operate(
                "takeover", "take over all workers", timeout_s, done=self._takeovers_left
            )
        except OperationError as error:
            if state.sets.new is not None:  # else all have gone over, but the group has not come to rest
                self._take(source)
                await self._back_after(error, timeout_s)
            raise
        finally:
            state.takeover = None

    def _revise(self, group: ConsumerGroup | None, *, takes_over: bool = False) -> int:
        """Writes the next configuration, from `group` where it has changed; gives its number."""
        before = self._revisions.source
        if group is not None:
            self._revisions.replace(group)
        try:
            newest = self._revisions.write(takes_over=takes_over)
        except RunError:
            self._revisions.source = before
            raise
        self._state.group = self._revisions.source.group
        return newest

    def _take(self, source: Source) -> None:
        self._revisions.source, self._state.group = source, source.group

    def _restarts_left(self) -> str:
        """What a rolling restart still has to do; raises where it must not go on."""
        return _left(self._state.rollout)

    def _takeovers_left(self) -> str:
        """What a rollout by takeover still has to do; raises where it must not go on."""
        return _left(self._state.takeover)

    def _restart_back(self, source: Source, revisions: list[int]) -> None:
        """Takes the resource before back, for the workers that did not come up with the new one and for all
        that start from now on."""
        state = self._state
        failed = [
            one.pod
            for one in state.wanted
            if one.revision == state.revision and one.progress.phase != "running"
        ]
        self._take(source)
        for one, revision in zip(state.sets, revisions, strict=True):
            one.revision = revision
        state.pool.start_again(failed)
        state.notify(f"back to the configuration before{': ' if failed else ''}{', '.join(failed)}")

    async def _back_after(self, error: OperationError, timeout_s: float) -> None:
        """Ends the set that was to be filled; those that have gone over to it go back first."""
        try:
            self._state.sets.turn_back()
            await self._go_back(timeout_s)
        except OperationError as second:
            raise OperationError(f"{error}; and then: {second}", error.report) from second

    async def _go_back(self, timeout_s: float) -> None:
        """Fills the set of before again; the sets have been exchanged."""
        state = self._state
        state.pool.start_again([one.pod for one in state.pool.workers if one.process is None])
        assert state.sets.new is not None
        hands_over = self._revisions.keyed(state.sets.new.revision)
        state.takeover = TakeoverRoll(takeover_policy(state.group, hands_over=hands_over), back=True)
        try:
            await self._operate(
                "way-back", "back to the configuration before", timeout_s, done=self._takeovers_left
            )
        finally:
            state.takeover = None


def _left(roll: Any) -> str:
    decision = roll.decision if roll is not None else None
    if decision is None:
        return "not begun"
    if decision.action in ("refuse", "stop"):
        raise OperationStopped(decision.reason)
    return "" if decision.action == "done" else str(decision.reason)
