"""One turn of a rollout by takeover: a successor is started, told to take over, its predecessor ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from slackwater_operator.local.processes import wall_ms
from slackwater_operator.local.returns import gaps_for_budget
from slackwater_operator.local.state import RunState, TakeoverRoll
from slackwater_operator.local.worker import Worker
from slackwater_operator.policies.rollout.broker_disruptions import ForcedWatch
from slackwater_operator.policies.takeover.decision import (
    SeatView,
    TakeoverDecision,
    TakeoverInput,
    decide_takeover,
)
from slackwater_operator.policies.takeover.types import DONE, EXTEND, REFUSE, RETIRE, STOP, TELL, WITHDRAW

_ENDED = (REFUSE, STOP, DONE)
_FRESH = (EXTEND, TELL, RETIRE)
"""What is decided again on a new observation before it is done."""
_GAPS_TO_LEARN_FROM = 20

Tell = Callable[[Worker, Worker | None], Awaitable[str]]
"""Tells a standby of this machine to take over from a worker (None: there is nobody to ask).
Gives why it did not take that, "" when it did."""


class Mover:
    """Acts on a run's sets as `decide_takeover` says."""

    def __init__(
        self, state: RunState, observe: Callable[[], Awaitable[None]], forced: ForcedWatch, tell: Tell
    ) -> None:
        self._state = state
        self._observe = observe
        self._forced = forced
        self._tell = tell

    async def turn(self, roll: TakeoverRoll) -> None:
        """Takes the next step."""
        state = self._state
        if roll.decision is not None and roll.decision.action in _ENDED:
            return
        decision = self._decide(roll)
        if decision.action in _FRESH:
            await self._observe()  # what is about to be done rests on the group as it is this moment
            decision = self._decide(roll)
        roll.decision, roll.moving = decision, decision.note  # noted before it is done
        state.decided("takeover", decision.reason, decision)
        await self._act(decision)
        if state.operation is not None and state.operation.kind in ("takeover", "way-back"):
            moving = roll.moving
            subjects = () if moving is None else (state.group.instance_id(moving.ordinal),)
            state.operation.subjects = subjects

    def _decide(self, roll: TakeoverRoll) -> TakeoverDecision:
        state, moving = self._state, roll.moving
        assert state.sets.new is not None
        since_ms = moving.since_ms if moving is not None else wall_ms()
        if not roll.back:
            roll.expect(state.group, state.group_view(), state.topics.since(since_ms))
        return decide_takeover(
            roll.policy,
            TakeoverInput(
                old=state.sets.old.seen,
                new=state.sets.new.seen,
                seats=[self._seat(ordinal) for ordinal in range(state.replicas)],
                group=state.group_view(),
                moving=moving,
                gaps_ms=gaps_for_budget(state.timeline.restarts())[-_GAPS_TO_LEARN_FROM:],
                now_ms=wall_ms(),
                forced=self._forced.since(since_ms),
                sessions_since_ms=self._forced.sessions_since_ms,
                back=roll.back,
                expected=roll.expected,
            ),
        )

    def _seat(self, ordinal: int) -> SeatView:
        old, new = self._places(ordinal)
        lag = self._state.lag()
        return SeatView(
            ordinal,
            self._state.group.instance_id(ordinal),
            old.view(lag) if old is not None else None,
            new.view(lag) if new is not None else None,
        )

    def _places(self, ordinal: int) -> tuple[Worker | None, Worker | None]:
        """The member's worker in the set that is left, and the one in the set that is filled."""
        sets, pool = self._state.sets, self._state.pool
        new = pool.place(sets.new.name, ordinal) if sets.new is not None else None
        return pool.place(sets.old.name, ordinal), new

    async def _act(self, decision: TakeoverDecision) -> None:
        state, sets, ordinal = self._state, self._state.sets, decision.ordinal
        assert sets.new is not None
        match decision.action:
            case "extend":
                sets.new.add(ordinal)
            case "tell":
                await self._tell_successor(decision)
            case "retire":
                sets.old.drop(ordinal)
            case "withdraw":
                sets.new.drop(ordinal)
            case "stop":
                self._withdraw(ordinal)
            case "done":
                sets.finish()
        if decision.action in (EXTEND, TELL, RETIRE, WITHDRAW):
            state.notify(decision.reason)

    async def _tell_successor(self, decision: TakeoverDecision) -> None:
        old, new = self._places(decision.ordinal)
        if new is None or new.progress.port is None:
            return
        asked = decision.predecessor and old is not None and old.progress.port is not None
        refused = await self._tell(new, old if asked else None)
        if refused:
            self._state.notify(f"{new.pod} did not take the order to take over: {refused}")

    def _withdraw(self, ordinal: int) -> None:
        """Ends the successor of a takeover that is given up, unless it is the member by now, or its
        predecessor has been retired: the way back needs an ordinal that is in one of the sets at least."""
        old, new = self._state.sets.old, self._state.sets.new
        assert new is not None
        worker = self._state.pool.place(new.name, ordinal)
        if ordinal in old.ordinals and (worker is None or not worker.progress.member):
            new.drop(ordinal)
