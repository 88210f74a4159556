"""LocalRun: the operator's controller with real processes that speak a worker's events and endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater_operator.cli.local import status_line
from slackwater_operator.local.report.views import OperationError, RunError
from slackwater_operator.specs import statefulset
from tests.operator.integration.local.local_bench import FAST, Benches, Make, quick
from tests.support.waiting import HANG_S

__all__ = ["quick"]
pytestmark = pytest.mark.usefixtures("quick")
STABLE_S = 60


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes a started run with `replicas` fake workers; all it began is over afterwards."""
    benches = Benches(tmp_path)
    yield benches.build
    await benches.close()


async def test_all_start_together_and_leave_together(make: Make) -> None:
    bench = await make(3, behave={"flights-1": "slow"}, preflight=True)
    await bench.run.wait_until_stable(STABLE_S)
    shown = bench.run.snapshot()
    assert [worker.name for worker in shown.workers] == ["flights-0", "flights-1", "flights-2"]
    assert {worker.phase for worker in shown.workers} == {"running"}
    assert shown.group_state == "Stable"
    assert shown.generation == 1  # all three in one rebalance, though one was slow to warm up
    assert set(shown.owners.values()) == {"flights-0", "flights-1", "flights-2"}
    assert bench.run.reports[0].kind == "start"
    assert bench.run.reports[0].rebalances == 1
    await bench.run.stop()
    assert bench.group.members == {}


async def test_a_scale_up_costs_one_rebalance(make: Make) -> None:
    bench = await make(3)
    await bench.run.wait_until_stable(STABLE_S)
    report = await bench.run.set_replicas(5)
    assert (report.kind, report.rebalances, report.outcome) == ("scale-up", 1, "done")
    assert sorted(bench.group.members) == [f"flights-{number}" for number in range(5)]


async def test_a_scale_down_removes_all_orphans_by_one_request(make: Make) -> None:
    bench = await make(4)
    await bench.run.wait_until_stable(STABLE_S)
    report = await bench.run.set_replicas(2)
    assert bench.group.removals == [("flights-2", "flights-3")]
    assert (report.kind, report.rebalances) == ("scale-down", 1)
    assert report.removed == ("flights-2", "flights-3")
    assert sorted(bench.group.members) == ["flights-0", "flights-1"]
    assert len(bench.run.snapshot().workers) == 2


@pytest.mark.long
async def test_a_removal_that_is_lost_is_repeated(make: Make) -> None:
    bench = await make(2)
    await bench.run.wait_until_stable(STABLE_S)
    bench.group.forget_removals = 2
    await bench.run.set_replicas(1)
    assert bench.group.removals == [("flights-1",)] * 3


async def test_a_worker_that_does_not_answer_is_ended_and_started_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the kubelet, by the pod's own liveness probe."""
    monkeypatch.setattr(statefulset, "_probe", lambda path, **_: probe(path))
    bench = await make(1, behave={"flights-0": "hang"})
    ended = ("exited", "flights-0")  # not the preflight's
    bench.run.subscribe(
        lambda event: bench.behave(behave={}) if (event.event, event.instance) == ended else None
    )
    await bench.until(lambda: [worker.restarts for worker in bench.run.snapshot().workers] == [1])
    await bench.run.wait_until_stable(STABLE_S)


def probe(path: str) -> dict[str, object]:
    """A probe that fails at once."""
    return {"httpGet": {"path": path}, "periodSeconds": 0.1, "timeoutSeconds": 0.5, "failureThreshold": 1}


async def test_a_rolling_restart_costs_no_rebalance_and_takes_the_leader_last(make: Make) -> None:
    bench = await make(3)
    await bench.run.wait_until_stable(STABLE_S)
    order: list[str] = []
    bench.run.subscribe(
        lambda event: (
            order.append(event.instance)
            if event.event == "exited" and "preflight" not in event.instance
            else None
        )
    )
    report = await bench.run.rolling_restart()
    assert report.rebalances == 0
    assert order == ["flights-1", "flights-2", "flights-0"]  # flights-0 leads
    assert [restart.instance for restart in report.restarts] == order
    assert all(restart.same_generation for restart in report.restarts)
    assert 0 < report.longest_unowned_ms < 5_000
    assert len({worker.revision for worker in bench.run.snapshot().workers}) == 1


@pytest.mark.long
async def test_a_restart_that_takes_too_long_goes_back_and_leaves_the_others(make: Make) -> None:
    bench = await make(2, rollout={"sessionBudget": "5%"})
    await bench.run.wait_until_stable(STABLE_S)
    bench.behave(behave={"flights-1": "refuse"})
    bench.run.on_notice(
        lambda notice: bench.behave(behave={}) if notice.text.startswith("RolloutStopped") else None
    )
    stopped = r"flights-1 .*(no module of this name|has been out of the group)"
    with pytest.raises(OperationError, match=stopped) as raised:
        await bench.run.rolling_restart()
    assert raised.value.report.outcome != "done"
    workers = {worker.name: worker for worker in bench.run.snapshot().workers}
    assert workers["flights-0"].restarts == 0
    assert len({worker.revision for worker in workers.values()}) == 1, "back to the revision before"
    assert "RolloutStopped" in status_line(bench.run.snapshot())
    assert bench.run.snapshot().generation == 1


@pytest.mark.long
async def test_a_roll_that_cannot_fit_is_refused(make: Make) -> None:
    bench = await make(2)
    await bench.run.wait_until_stable(STABLE_S)
    bench.behave(behave={"flights-0": "late", "flights-1": "late"})  # longer than the budget below
    await bench.run.rolling_restart()
    pids = [worker.pid for worker in bench.run.snapshot().workers]
    tight = {"bootstrapServers": "127.0.0.1:1", "properties": {"session.timeout.ms": "9000"}}
    changed = bench.source(2, kafka=tight, rollout={"sessionBudget": "0.1%"})
    with pytest.raises(OperationError, match=r"raise spec\.kafka\.properties\[session\.timeout\.ms\] to \d+"):
        await bench.run.roll(changed)
    assert [worker.pid for worker in bench.run.snapshot().workers] == pids


@pytest.mark.long
async def test_a_revision_whose_preflight_fails_restarts_no_worker(make: Make) -> None:
    bench = await make(2, preflight=True)
    await bench.run.wait_until_stable(STABLE_S)
    pids = [worker.pid for worker in bench.run.snapshot().workers]
    bench.behave(behave={"preflight": "refuse"})
    with pytest.raises(OperationError, match="the preflight failed: flights.pipeline: no module"):
        await bench.run.roll()
    assert [worker.pid for worker in bench.run.snapshot().workers] == pids
    bench.behave(behave={})
    assert (await bench.run.roll()).rebalances == 0, "a new try is a new revision"


def stepped(**pause: str) -> dict[str, object]:
    """A rollout of one worker, a pause, and the others."""
    return {"preflight": {"enabled": False}, "steps": [{"setWorkers": 1}, {"pause": pause}]}


@pytest.mark.long
async def test_a_rollout_goes_on_after_a_pause_with_a_duration(make: Make) -> None:
    bench = await make(2, rollout=stepped(duration="2s"))
    await bench.run.wait_until_stable(STABLE_S)
    notices: list[str] = []
    bench.run.on_notice(lambda notice: notices.append(notice.text))
    report = await bench.run.roll()
    assert (report.outcome, len(report.restarts)) == ("done", 2)
    assert any("step 2 of 2: paused for 2 s" in text for text in notices), notices


async def test_at_a_pause_without_a_duration_a_rollout_says_how_to_promote(make: Make) -> None:
    bench = await make(2, rollout=stepped())
    await bench.run.wait_until_stable(STABLE_S)
    with pytest.raises(OperationError, match=r"step 2 of 2: paused until it is promoted \(SIGUSR1 promotes"):
        await bench.run.roll()
    assert bench.run.failure is None
    assert [worker.phase for worker in bench.run.snapshot().workers] == ["running", "running"]
    bench.run.promote()
    await bench.until(lambda: len({worker.revision for worker in bench.run.snapshot().workers}) == 1)


async def test_a_rollout_that_the_file_pauses_ends_without_signals_that_would_not_help(make: Make) -> None:
    bench = await make(2, rollout=stepped(duration="1s"))
    await bench.run.wait_until_stable(STABLE_S)
    paused = bench.source(2, rollout={**stepped(duration="1s"), "paused": True})
    with pytest.raises(OperationError, match="the rollout is paused$"):
        await bench.run.roll(paused)


async def test_a_killed_worker_is_back_at_once_with_all_that_it_started(make: Make) -> None:
    bench = await make(3)
    await bench.run.wait_until_stable(STABLE_S)
    before = bench.run.snapshot().workers[1].pid
    report = await bench.run.kill("flights-1")
    after = bench.run.snapshot().workers[1]
    assert report.rebalances == 0
    assert after.pid != before
    assert after.last_exit == -9
    assert [restart.instance for restart in report.restarts] == ["flights-1"]
    assert bench.run.snapshot().generation == 1


async def test_a_deaf_worker_is_killed_after_the_grace(make: Make) -> None:
    bench = await make(2, behave={"flights-1": "deaf"})
    await bench.run.wait_until_stable(STABLE_S)
    await bench.run.set_replicas(1)
    assert sorted(bench.group.members) == ["flights-0"]


async def test_a_configuration_that_the_preflight_refuses_ends_the_run(make: Make) -> None:
    bench = await make(2, behave={"preflight": "refuse"}, preflight=True)
    with pytest.raises(
        RunError, match=r"the preflight failed: flights\.pipeline: no module of this name; check"
    ):
        await bench.run.wait_until_stable(STABLE_S)
    assert bench.run.failure is not None
    assert bench.run.snapshot().workers == ()


async def test_a_configuration_that_all_refuse_ends_the_run_with_their_line(make: Make) -> None:
    bench = await make(2, behave={"flights-0": "refuse", "flights-1": "refuse"})
    with pytest.raises(RunError, match=r"^flights\.pipeline: no module of this name; check"):
        await bench.run.wait_until_stable(STABLE_S)
    assert bench.run.failure is not None


@pytest.mark.parametrize("behave", [{"preflight": "broken"}, {"flights-0": "broken"}])
async def test_a_process_that_does_not_start_ends_the_run_with_its_output(
    make: Make, behave: dict[str, str]
) -> None:
    bench = await make(2, behave=behave, preflight="preflight" in behave)
    with pytest.raises(RunError, match="ModuleNotFoundError: No module named 'flights'"):
        await bench.until(lambda: len(bench.group.members) == 2)


async def test_a_worker_that_fails_again_and_again_ends_the_run(make: Make) -> None:
    bench = await make(2, behave={"flights-1": "crash"})
    async with asyncio.timeout(HANG_S):
        await bench.run.wait_failed()
    with pytest.raises(RunError, match="flights-1 failed 2 times in a row: the sink is full"):
        await bench.run.wait_until_stable(STABLE_S)


@pytest.mark.long
async def test_scales_by_itself_where_a_target_is_given(make: Make) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 3, "lagPerReplica": 100}
    settings = replace(FAST, settle_ms=100, down_window_ms=500, up_window_ms=100)
    bench = await make(1, scaling=scaling, settings=settings)
    await bench.run.wait_until_stable(STABLE_S)
    bench.group.lag = 1_000
    await bench.until(lambda: bench.run.replicas == 3 and len(bench.group.members) == 3)
    await bench.run.wait_until_stable(STABLE_S)
    assert "maxReplicas" in bench.run.snapshot().decisions["scaling"].reason
    bench.group.lag = 0
    await bench.until(lambda: bench.run.replicas == 1 and sorted(bench.group.members) == ["flights-0"])
    await bench.run.wait_until_stable(STABLE_S)
    with pytest.raises(ValueError, match="spec.scaling has a target, which decides"):
        await bench.run.set_replicas(2)


@pytest.mark.long
async def test_a_suspended_group_has_no_workers_until_it_goes_on(make: Make) -> None:
    bench = await make(2)
    await bench.run.wait_until_stable(STABLE_S)
    await bench.run.apply(bench.source(2, suspend=True))
    assert bench.run.snapshot().workers == ()
    assert bench.group.members == {}
    report = await bench.run.apply(bench.source(2))
    assert report.rebalances == 1
    assert sorted(bench.group.members) == ["flights-0", "flights-1"]


@pytest.mark.long
async def test_none_run_while_there_is_nothing_to_read_where_that_is_allowed(make: Make) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 2, "lagPerReplica": 100}
    settings = replace(FAST, settle_ms=100, down_window_ms=500, up_window_ms=100)
    bench = await make(None, scaling=scaling, settings=settings)
    await bench.until(lambda: bench.run.replicas == 0 and not bench.group.members)
    bench.group.lag = 100
    await bench.until(lambda: bool(bench.group.members))
    await bench.run.wait_until_stable(STABLE_S)


async def test_the_group_is_deleted_with_the_run_where_the_policy_says_so(make: Make) -> None:
    bench = await make(1, deletionPolicy="Delete")
    await bench.run.wait_until_stable(STABLE_S)
    await bench.run.stop()
    assert bench.group.members == {}
    assert bench.group.deleted


async def test_impossible_operations_are_refused(make: Make) -> None:
    bench = await make(1)
    await bench.run.wait_until_stable(STABLE_S)
    with pytest.raises(ValueError, match="there is no worker flights-7"):
        await bench.run.kill("flights-7")
    with pytest.raises(ValueError, match="spec.scaling allows at least 0"):
        await bench.run.set_replicas(-1)


async def test_a_worker_that_cannot_be_started_ends_the_run_and_nothing_waits_for_it(
    make: Make, tmp_path: Path
) -> None:
    bench = await make(1)
    await bench.run.wait_until_stable(STABLE_S)
    log = tmp_path / "run" / "logs" / "flights-1.err"
    log.mkdir()
    scaling = asyncio.create_task(bench.run.set_replicas(2))
    with pytest.raises(RunError, match=r"flights-1\.err: Is a directory"):
        await scaling
    async with asyncio.timeout(HANG_S):
        await bench.run.stop()


async def test_logs_are_kept(make: Make, tmp_path: Path) -> None:
    bench = await make(1)
    await bench.run.wait_until_stable(STABLE_S)
    logged = (tmp_path / "run" / "logs" / "flights-0.log").read_text()
    assert "a line that is no event" in logged
    assert '"event": "started"' in logged
    assert (tmp_path / "run" / "logs" / "flights-0.err").exists()
