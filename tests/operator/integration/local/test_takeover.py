"""A LocalRun rolled by takeover, with real processes that speak a worker's events and endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slackwater_operator.local.machine.events import WorkerEvent
from slackwater_operator.local.report.views import OperationError, RunSnapshot
from tests.operator.integration.local.local_bench import Bench, Benches, Make, quick

__all__ = ["quick"]
pytestmark = pytest.mark.usefixtures("quick")
TAKEOVER = {"strategy": "Takeover"}
STABLE_S = 60


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes a started run with `replicas` fake workers; all it began is over afterwards."""
    benches = Benches(tmp_path)
    yield benches.build
    await benches.close()


def pods(shown: RunSnapshot) -> list[str]:
    return [worker.pod for worker in shown.workers]


async def settled(make: Make, replicas: int, rollout: object = TAKEOVER) -> Bench:
    bench = await make(replicas, rollout=rollout)
    await bench.run.wait_until_stable(STABLE_S)
    return bench


async def test_members_are_taken_over_one_by_one_without_a_rebalance(make: Make) -> None:
    bench = await settled(make, 2)
    assert pods(bench.run.snapshot()) == ["flights-a-0", "flights-a-1"]
    events: list[WorkerEvent] = []
    bench.run.subscribe(events.append)
    owners = bench.run.snapshot().owners
    report = await bench.run.roll()
    assert (report.kind, report.rebalances, report.outcome) == ("takeover", 0, "done")
    assert [(takeover.before, takeover.pod) for takeover in report.takeovers] == [
        ("flights-a-1", "flights-b-1"),
        ("flights-a-0", "flights-b-0"),
    ]
    assert all(takeover.same_generation and not takeover.forced for takeover in report.takeovers)
    assert report.restarts == ()
    assert 0 < report.longest_unowned_ms < 2_000
    assert [takeover.longest_ms for takeover in report.takeovers] == [31, 30]  # 20 and a partition's number
    assert "no partition paused for more than 31 ms" in bench.run.notices[-1].text
    shown = bench.run.snapshot()
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
    bench = await settled(make, 1)
    shown: list[RunSnapshot] = []
    bench.run.subscribe(
        lambda event: shown.append(bench.run.snapshot()) if event.data.get("phase") == "standby" else None
    )
    await bench.run.takeover()
    old, new = shown[0].workers
    assert (old.name, old.pod, old.phase) == ("flights-0", "flights-a-0", "running")
    assert (new.name, new.pod, new.phase) == ("flights-0", "flights-b-0", "standby")
    assert shown[0].operation is not None
    assert shown[0].operation.subjects == ("flights-0",)
    for pod in ("flights-a-0", "flights-b-0"):
        assert '"instance": "flights-0"' in (tmp_path / "run" / "logs" / f"{pod}.log").read_text()


@pytest.mark.long
async def test_the_next_takeover_goes_to_the_first_set_again_and_a_kill_stays_in_its_set(make: Make) -> None:
    bench = await settled(make, 2)
    await bench.run.takeover()
    kill = await bench.run.kill("flights-1")
    assert (kill.rebalances, [restart.instance for restart in kill.restarts]) == (0, ["flights-1"])
    assert pods(bench.run.snapshot()) == ["flights-b-0", "flights-b-1"]
    up = await bench.run.set_replicas(3)
    assert up.rebalances == 1
    again = await bench.run.takeover()
    assert again.rebalances == 0
    assert pods(bench.run.snapshot()) == ["flights-a-0", "flights-a-1", "flights-a-2"]
    down = await bench.run.set_replicas(1)
    assert down.removed == ("flights-1", "flights-2")
    assert pods(bench.run.snapshot()) == ["flights-a-0"]


@pytest.mark.long
async def test_strategy_restart_can_be_asked_for_and_keeps_the_set(make: Make) -> None:
    bench = await settled(make, 2)
    report = await bench.run.rolling_restart()
    assert (report.kind, report.rebalances, report.takeovers) == ("rolling-restart", 0, ())
    assert [restart.instance for restart in report.restarts] == ["flights-1", "flights-0"]
    assert pods(bench.run.snapshot()) == ["flights-a-0", "flights-a-1"]
    assert len({worker.revision for worker in bench.run.snapshot().workers}) == 1


@pytest.mark.long
async def test_workers_without_a_takeover_key_are_restarted_once(make: Make) -> None:
    bench = await settled(make, 2, rollout=None)
    assert pods(bench.run.snapshot()) == ["flights-0", "flights-1"]
    first = await bench.run.roll(bench.source(2, rollout=TAKEOVER))
    assert (first.kind, first.rebalances, first.takeovers) == ("takeover", 0, ())
    assert [restart.instance for restart in first.restarts] == ["flights-1", "flights-0"]
    assert pods(bench.run.snapshot()) == ["flights-a-0", "flights-a-1"]
    second = await bench.run.roll()
    assert len(second.takeovers) == 2
    assert pods(bench.run.snapshot()) == ["flights-b-0", "flights-b-1"]


async def test_a_successor_that_fails_stops_it_before_anything_has_moved(make: Make) -> None:
    bench = await settled(make, 2)
    before = [worker.pid for worker in bench.run.snapshot().workers]
    bench.behave(behave={"flights-b-1": "refuse"})
    with pytest.raises(OperationError, match="no module of this name"):
        await bench.run.roll(bench.source(2, rollout={**TAKEOVER, "sessionBudget": "50%"}))
    await bench.run.wait_until_stable(STABLE_S)
    shown = bench.run.snapshot()
    assert pods(shown) == ["flights-a-0", "flights-a-1"]
    assert [worker.pid for worker in shown.workers] == before
    assert shown.generation == 1


@pytest.mark.long
async def test_a_later_successor_that_fails_brings_those_before_it_back(make: Make) -> None:
    bench = await settled(make, 3)
    revisions = {worker.revision for worker in bench.run.snapshot().workers}
    bench.behave(behave={"flights-b-1": "refuse"})
    with pytest.raises(OperationError, match=r"flights-b-1.*no module of this name") as raised:
        await bench.run.takeover()
    shown = bench.run.snapshot()
    assert pods(shown) == ["flights-a-0", "flights-a-1", "flights-a-2"]
    assert {worker.revision for worker in shown.workers} == revisions
    assert shown.generation == 1  # there and back without a rebalance
    ways = [(takeover.before, takeover.pod) for takeover in raised.value.report.takeovers]
    assert ways == [("flights-a-2", "flights-b-2"), ("flights-b-2", "flights-a-2")]
    bench.behave(behave={})
    assert len((await bench.run.takeover()).takeovers) == 3


@pytest.mark.long
@pytest.mark.parametrize(("fallback", "taken"), [("Restart", True), ("Stop", False)])
async def test_a_successor_that_does_not_get_warm(make: Make, fallback: str, taken: bool) -> None:
    bench = await settled(make, 2)
    bench.behave(behave={"flights-b-1": "cold"})
    takeover = {"warmTimeout": "10s", "fallback": fallback}
    rolling = bench.run.roll(bench.source(2, rollout={**TAKEOVER, "takeover": takeover}))
    if taken:
        report = await rolling
        assert report.rebalances == 0
        assert [takeover.pod for takeover in report.takeovers] == ["flights-b-0"]
        assert [restart.instance for restart in report.restarts] == ["flights-1"]
        assert pods(bench.run.snapshot()) == ["flights-b-0", "flights-b-1"]
    else:
        with pytest.raises(OperationError, match="flights-b-1"):
            await rolling
        assert pods(bench.run.snapshot()) == ["flights-a-0", "flights-a-1"]


@pytest.mark.long
@pytest.mark.parametrize("pod", ["flights-a-1", "flights-b-1"])
async def test_a_process_killed_while_the_successor_stands_by_is_started_again(make: Make, pod: str) -> None:
    bench = await settled(make, 2)
    killed = asyncio.Event()

    def kill(event: WorkerEvent) -> None:
        if event.pod == "flights-b-1" and event.data.get("phase") == "standby" and not killed.is_set():
            killed.set()
            bench.run._backend.pods.kill(pod)

    bench.run.subscribe(kill)
    report = await bench.run.takeover()
    assert killed.is_set()
    assert report.rebalances == 0
    assert pods(bench.run.snapshot()) == ["flights-b-0", "flights-b-1"]
    assert bench.group.holders == {"flights-0": "flights-b-0", "flights-1": "flights-b-1"}


@pytest.mark.long
async def test_a_takeover_that_is_cut_short_by_the_end_leaves_nothing(make: Make) -> None:
    bench = await settled(make, 2)
    bench.behave(behave={"flights-b-1": "cold"})
    rolling = asyncio.create_task(bench.run.takeover())
    await bench.until(lambda: len(bench.run.snapshot().workers) == 3)
    await bench.run.stop()
    with pytest.raises(Exception, match="the run is being stopped"):
        await rolling
    assert bench.group.members == {}
