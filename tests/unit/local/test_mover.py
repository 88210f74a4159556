"""What a decision to stop does to the sets of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater_operator.local import mover
from slackwater_operator.local.pool import WorkerPool
from slackwater_operator.local.state import RunState, TakeoverRoll
from slackwater_operator.policies.resource_policies import takeover_policy
from slackwater_operator.policies.rollout.broker_disruptions import ForcedWatch
from slackwater_operator.policies.takeover.types import RESTART, STOP, TAKEOVER, TakeoverDecision
from tests.unit.local.local_bench import FAST, resource


async def nothing() -> None:
    """There is no broker."""


async def nobody(port: int, predecessor: str) -> str:
    raise AssertionError(f"{port} was told to take over from {predecessor}")


def state(tmp_path: Path) -> RunState:
    """Three members, the highest of which is between two sets; nothing has been started."""
    made = RunState(resource(3, rollout={"strategy": "Takeover"}), FAST)
    made.pool = WorkerPool(
        name_of=made.group.instance_id,
        command_of=lambda revision: [],
        logs=tmp_path,
        environment={},
        grace_ms=1,
        on_event=lambda event: None,
    )
    made.sets.begin(2)
    assert made.sets.new is not None
    made.sets.new.add(2)
    return made


async def stop(run: RunState, by: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """A turn that stops at the highest member; gives the sets' ordinals after it."""
    decision = TakeoverDecision(STOP, 2, by, reason="it failed")
    monkeypatch.setattr(mover, "decide_takeover", lambda policy, seen: decision)
    roll = TakeoverRoll(takeover_policy(run.group, hands_over=True))
    await mover.Mover(run, nothing, ForcedWatch(), nobody).turn(roll)
    assert roll.decision == decision
    return {one.name: list(one.ordinals) for one in run.sets}


async def test_a_successor_whose_predecessor_is_there_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await stop(state(tmp_path), TAKEOVER, monkeypatch)
    assert left == {"flights-a": [0, 1, 2], "flights-b": []}


async def test_one_whose_predecessor_was_retired_stays_for_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = state(tmp_path)
    run.sets.old.drop(2)
    left = await stop(run, RESTART, monkeypatch)
    assert left == {"flights-a": [0, 1], "flights-b": [2]}
