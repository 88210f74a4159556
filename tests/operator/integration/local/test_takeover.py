"""A LocalRun rolled by takeover, with real processes that speak a worker's events and endpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slackwater_operator.local.machine.events import WorkerEvent
from slackwater_operator.local.report.views import OperationError, RunSnapshot
from tests.operator.integration.local.fake_run import FakeRun, Make, make, quick

__all__ = ["make", "quick"]
pytestmark = pytest.mark.usefixtures("quick")
TAKEOVER = {"strategy": "Takeover"}
STABLE_S = 60


def pods(shown: RunSnapshot) -> list[str]:
    return [worker.pod for worker in shown.workers]


async def settled(make: Make, replicas: int, rollout: object = TAKEOVER) -> FakeRun:
    fakes = await make(replicas, rollout=rollout)
    await fakes.run.wait_until_stable(STABLE_S)
    return fakes


async def test_members_are_taken_over_one_by_one_without_a_rebalance(make: Make) -> None:
    fakes = await settled(make, 2)
    assert pods(fakes.run.snapshot()) == ["flights-a-0", "flights-a-1"]
    events: list[WorkerEvent] = []
    fakes.run.subscribe(events.append)
    owners = fakes.run.snapshot().owners
    report = await fakes.run.roll()
    assert (report.kind, report.rebalances, report.outcome) == ("takeover", 0, "done")
    assert [(takeover.before, takeover.pod) for takeover in report.takeovers] == [
        ("flights-a-1", "flights-b-1"),
        ("flights-a-0", "flights-b-0"),
    ]
    assert all(takeover.same_generation and not takeover.forced for takeover in report.takeovers)
    assert report.restarts == ()
    assert 0 < report.longest_unowned_ms < 2_000
    assert [takeover.longest_ms for takeover in report.takeovers] == [31, 30]  # 20 and a partition's number
    assert "no partition paused for more than 31 ms" in fakes.run.notices[-1].text
    shown = fakes.run.snapshot()
    assert pods(shown) == ["flights-b-0", "flights-b-1"]
    assert len({worker.revision for worker in shown.workers}) == 1
    assert (shown.owners, shown.generation) == (owners, 1)
    # Each predecessor was asked, was fenced, and ended only then; nobody was killed.
    order = [
        (event.event, event.pod)
        for event in events
        if event.event in ("handover", "handed_over", "exited") and "preflight" not in event.pod
    ]
    way = ("handover", "handed_over", "exited")
    assert order == [(what, pod) for pod in ("flights-a-1", "flights-a-0") for what in way]
    assert {event.data["code"] for event in events if event.event == "exited"} == {0}


@pytest.mark.long
async def test_both_processes_of_a_member_are_shown_and_have_logs_of_their_own(
    make: Make, tmp_path: Path
) -> None:
    fakes = await settled(make, 1)
    shown: list[RunSnapshot] = []
    fakes.run.subscribe(
        lambda event: shown.append(fakes.run.snapshot()) if event.data.get("phase") == "standby" else None
    )
    await fakes.run.takeover()
    old, new = shown[0].workers
    assert (old.name, old.pod, old.phase) == ("flights-0", "flights-a-0", "running")
    assert (new.name, new.pod, new.phase) == ("flights-0", "flights-b-0", "standby")
    assert shown[0].operation is not None
    assert shown[0].operation.subjects == ("flights-0",)
    for pod in ("flights-a-0", "flights-b-0"):
        assert '"instance": "flights-0"' in (tmp_path / "run" / "logs" / f"{pod}.log").read_text()


async def test_a_successor_that_fails_stops_it_before_anything_has_moved(make: Make) -> None:
    fakes = await settled(make, 2)
    before = [worker.pid for worker in fakes.run.snapshot().workers]
    fakes.behave(behave={"flights-b-1": "refuse"})
    with pytest.raises(OperationError, match="no module of this name"):
        await fakes.run.roll(fakes.source(2, rollout={**TAKEOVER, "sessionBudget": "50%"}))
    await fakes.run.wait_until_stable(STABLE_S)
    shown = fakes.run.snapshot()
    assert pods(shown) == ["flights-a-0", "flights-a-1"]
    assert [worker.pid for worker in shown.workers] == before
    assert shown.generation == 1


@pytest.mark.long
async def test_a_later_successor_that_fails_brings_those_before_it_back(make: Make) -> None:
    fakes = await settled(make, 3)
    revisions = {worker.revision for worker in fakes.run.snapshot().workers}
    fakes.behave(behave={"flights-b-1": "refuse"})
    with pytest.raises(OperationError, match=r"flights-b-1.*no module of this name") as raised:
        await fakes.run.takeover()
    shown = fakes.run.snapshot()
    assert pods(shown) == ["flights-a-0", "flights-a-1", "flights-a-2"]
    assert {worker.revision for worker in shown.workers} == revisions
    assert shown.generation == 1  # there and back without a rebalance
    ways = [(takeover.before, takeover.pod) for takeover in raised.value.report.takeovers]
    assert ways == [("flights-a-2", "flights-b-2"), ("flights-b-2", "flights-a-2")]
    fakes.behave(behave={})
    assert len((await fakes.run.takeover()).takeovers) == 3


@pytest.mark.long
async def test_a_takeover_that_is_cut_short_by_the_end_leaves_nothing(make: Make) -> None:
    fakes = await settled(make, 2)
    fakes.behave(behave={"flights-b-1": "cold"})
    rolling = asyncio.create_task(fakes.run.takeover())
    await fakes.until(lambda: len(fakes.run.snapshot().workers) == 3)
    await fakes.run.stop()
    with pytest.raises(Exception, match="the run is being stopped"):
        await rolling
    assert fakes.group.members == {}
