"""LocalRun with real processes that speak a worker's events, in a group that a test can see into."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import parse
from slackwater_operator.local.views import OperationError, RunError
from tests.unit.local.local_bench import FAST, Benches, Make, until


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes a started run with `replicas` fake workers; all it began is over afterwards."""
    benches = Benches(tmp_path)
    yield benches.build
    await benches.close()


async def test_all_start_together_and_leave_together(make: Make) -> None:
    bench = await make(3, behave={"flights-1": "slow"})
    await bench.run.wait_until_stable(20)
    shown = bench.run.snapshot()
    assert [one.name for one in shown.workers] == ["flights-0", "flights-1", "flights-2"]
    assert {one.phase for one in shown.workers} == {"running"}
    assert shown.group_state == "Stable"
    assert shown.generation == 1  # all three in one rebalance, though one was slow to warm up
    assert set(shown.owners.values()) == {"flights-0", "flights-1", "flights-2"}
    assert bench.run.reports[0].kind == "start"
    assert bench.run.reports[0].rebalances == 1
    await bench.run.stop()
    assert bench.group.members == {}


async def test_a_scale_up_costs_one_rebalance(make: Make) -> None:
    bench = await make(3)
    await bench.run.wait_until_stable(20)
    report = await bench.run.set_replicas(5)
    assert (report.kind, report.rebalances, report.outcome) == ("scale-up", 1, "done")
    assert sorted(bench.group.members) == [f"flights-{number}" for number in range(5)]


async def test_a_scale_down_removes_all_orphans_by_one_request(make: Make) -> None:
    bench = await make(4)
    await bench.run.wait_until_stable(20)
    report = await bench.run.set_replicas(2)
    assert bench.group.removals == [("flights-2", "flights-3")]
    assert (report.kind, report.rebalances) == ("scale-down", 1)
    assert report.removed == ("flights-2", "flights-3")
    assert sorted(bench.group.members) == ["flights-0", "flights-1"]
    assert len(bench.run.snapshot().workers) == 2


async def test_a_removal_that_is_lost_is_repeated(make: Make) -> None:
    bench = await make(2)
    await bench.run.wait_until_stable(20)
    bench.group.forget_removals = 2
    await bench.run.set_replicas(1)
    assert bench.group.removals == [("flights-1",)] * 3


async def test_a_rolling_restart_costs_no_rebalance_and_takes_the_leader_last(make: Make) -> None:
    bench = await make(3)
    await bench.run.wait_until_stable(20)
    order: list[str] = []
    bench.run.subscribe(lambda event: order.append(event.instance) if event.event == "exited" else None)
    report = await bench.run.rolling_restart()
    assert report.rebalances == 0
    assert order == ["flights-1", "flights-2", "flights-0"]  # flights-0 leads
    assert [one.instance for one in report.restarts] == order
    assert all(one.same_generation for one in report.restarts)
    assert 0 < report.longest_unowned_ms < 5_000
    assert {one.revision for one in bench.run.snapshot().workers} == {2}


async def test_a_restart_that_takes_too_long_stops_the_roll(make: Make, tmp_path: Path) -> None:
    bench = await make(2, rollout={"sessionBudget": "1%"})
    await bench.run.wait_until_stable(20)
    fake = json.loads((tmp_path / "fake.json").read_text())
    (tmp_path / "fake.json").write_text(json.dumps({**fake, "behave": {"flights-1": "refuse"}}))
    with pytest.raises(
        OperationError, match=r"flights-1 has been out of the group for .* more than 0\.5 s \(1% of"
    ) as raised:
        await bench.run.rolling_restart()
    assert raised.value.report.outcome != "done"
    workers = {one.name: one for one in bench.run.snapshot().workers}
    assert workers["flights-0"].restarts == 0


async def test_a_roll_that_cannot_fit_is_refused(make: Make) -> None:
    bench = await make(2)
    await bench.run.wait_until_stable(20)
    await bench.run.rolling_restart()
    tight = parse(
        {
            "apiVersion": "slackwater.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": "flights"},
            "spec": {
                "kafka": {"bootstrapServers": "127.0.0.1:1", "properties": {"session.timeout.ms": "9000"}},
                "topics": ["flights"],
                "pipeline": {"handler": "flights.pipeline:transform", "sink": {"path": "out"}},
                "rollout": {"sessionBudget": "0.1%"},
            },
        }
    )
    with pytest.raises(OperationError, match=r"raise spec\.kafka\.properties\[session\.timeout\.ms\] to \d+"):
        await bench.run.rolling_restart(tight)
    assert {one.restarts for one in bench.run.snapshot().workers} == {1}


async def test_a_killed_worker_is_back_at_once_with_all_that_it_started(make: Make) -> None:
    bench = await make(3)
    await bench.run.wait_until_stable(20)
    before = bench.run.snapshot().workers[1].pid
    report = await bench.run.kill("flights-1")
    after = bench.run.snapshot().workers[1]
    assert report.rebalances == 0
    assert after.pid != before
    assert after.last_exit == -9
    assert [one.instance for one in report.restarts] == ["flights-1"]
    assert bench.run.snapshot().generation == 1


async def test_a_deaf_worker_is_killed_after_the_grace(make: Make) -> None:
    bench = await make(2, behave={"flights-1": "deaf"})
    await bench.run.wait_until_stable(20)
    await bench.run.set_replicas(1)
    assert sorted(bench.group.members) == ["flights-0"]


async def test_a_configuration_that_all_refuse_ends_the_run_with_their_line(make: Make) -> None:
    bench = await make(2, behave={"flights-0": "refuse", "flights-1": "refuse"})
    with pytest.raises(RunError, match=r"^flights\.pipeline: no module of this name; check"):
        await bench.run.wait_until_stable(20)
    assert bench.run.failure is not None


async def test_a_worker_that_fails_again_and_again_ends_the_run(make: Make) -> None:
    bench = await make(2, behave={"flights-1": "crash"})
    async with asyncio.timeout(60):
        await bench.run.wait_failed()
    with pytest.raises(RunError, match="flights-1 failed 2 times in a row: the sink is full"):
        await bench.run.wait_until_stable(20)


async def test_scales_by_itself_where_a_target_is_given(make: Make) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 3, "lagPerReplica": 100}
    settings = replace(FAST, settle_ms=100, down_window_ms=500)
    bench = await make(1, scaling=scaling, settings=settings)
    await bench.run.wait_until_stable(20)
    bench.group.lag = 1_000
    await until(lambda: bench.run.replicas == 3 and len(bench.group.members) == 3)
    await bench.run.wait_until_stable(20)
    decision = bench.run.snapshot().decisions["scaling"]
    assert "limited by maxReplicas" in decision.reason
    bench.group.lag = 0
    await until(lambda: bench.run.replicas == 1 and sorted(bench.group.members) == ["flights-0"])
    await bench.run.wait_until_stable(20)
    # What a worker can do was never seen, so that the number is halved: 3, 2, 1.
    assert [one.kind for one in bench.run.reports] == ["start", "scale-up", "scale-down", "scale-down"]


async def test_decisions_are_only_shown_where_that_is_wanted(make: Make) -> None:
    settings = replace(FAST, settle_ms=0, autoscale=False)
    bench = await make(1, scaling={"lagPerReplica": 100}, settings=settings)
    bench.group.lag = 1_000
    await bench.run.wait_until_stable(20)
    await until(lambda: getattr(bench.run.snapshot().decisions["scaling"].decision, "applied", 0) == 12)
    assert bench.run.replicas == 1


async def test_what_cannot_be_done_is_refused(make: Make) -> None:
    bench = await make(1)
    await bench.run.wait_until_stable(20)
    with pytest.raises(ValueError, match="there is no worker flights-7"):
        await bench.run.kill("flights-7")
    with pytest.raises(ValueError, match="spec.scaling allows at least 0"):
        await bench.run.set_replicas(-1)


async def test_a_worker_that_cannot_be_started_ends_the_run_and_nothing_waits_for_it(
    make: Make, tmp_path: Path
) -> None:
    bench = await make(1)
    await bench.run.wait_until_stable(20)
    log = tmp_path / "run" / "logs" / "flights-1.err"
    log.mkdir()
    scaling = asyncio.create_task(bench.run.set_replicas(2))
    with pytest.raises(RunError, match=r"flights-1\.err: Is a directory"):
        await scaling
    async with asyncio.timeout(60):
        await bench.run.stop()


async def test_logs_are_kept(make: Make, tmp_path: Path) -> None:
    bench = await make(1)
    await bench.run.wait_until_stable(20)
    logged = (tmp_path / "run" / "logs" / "flights-0.log").read_text()
    assert "a line that is no event" in logged
    assert '"event": "started"' in logged
    assert (tmp_path / "run" / "logs" / "flights-0.err").exists()
