"""LocalRun: the operator's controller with real processes that speak a worker's events and endpoints."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater_operator.cli.local import status_line
from slackwater_operator.local.report.views import OperationError, RunError
from slackwater_operator.specs import statefulset
from tests.operator.integration.local.fake_run import FAST, Make, make, quick
from tests.support.waiting import HANG_S

__all__ = ["make", "quick"]
pytestmark = pytest.mark.usefixtures("quick")
STABLE_S = 60


async def test_all_start_together_and_leave_together(make: Make) -> None:
    fakes = await make(3, behave={"flights-1": "slow"}, preflight=True)
    await fakes.run.wait_until_stable(STABLE_S)
    shown = fakes.run.snapshot()
    assert [worker.name for worker in shown.workers] == ["flights-0", "flights-1", "flights-2"]
    assert {worker.phase for worker in shown.workers} == {"running"}
    assert shown.group_state == "Stable"
    assert shown.generation == 1  # all three in one rebalance, though one was slow to warm up
    assert set(shown.owners.values()) == {"flights-0", "flights-1", "flights-2"}
    assert fakes.run.reports[0].kind == "start"
    assert fakes.run.reports[0].rebalances == 1
    await fakes.run.stop()
    assert fakes.group.members == {}


async def test_a_scale_up_costs_one_rebalance(make: Make) -> None:
    fakes = await make(3)
    await fakes.run.wait_until_stable(STABLE_S)
    report = await fakes.run.set_replicas(5)
    assert (report.kind, report.rebalances, report.outcome) == ("scale-up", 1, "done")
    assert sorted(fakes.group.members) == [f"flights-{number}" for number in range(5)]


async def test_a_scale_down_removes_all_orphans_by_one_request(make: Make) -> None:
    fakes = await make(4)
    await fakes.run.wait_until_stable(STABLE_S)
    report = await fakes.run.set_replicas(2)
    assert fakes.group.removals == [("flights-2", "flights-3")]
    assert (report.kind, report.rebalances) == ("scale-down", 1)
    assert report.removed == ("flights-2", "flights-3")
    assert sorted(fakes.group.members) == ["flights-0", "flights-1"]
    assert len(fakes.run.snapshot().workers) == 2


async def test_a_worker_that_does_not_answer_is_ended_and_started_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the kubelet, by the pod's own liveness probe."""
    monkeypatch.setattr(statefulset, "_probe", lambda path, **_: probe(path))
    fakes = await make(1, behave={"flights-0": "hang"})
    ended = ("exited", "flights-0")  # not the preflight's
    fakes.run.subscribe(
        lambda event: fakes.behave(behave={}) if (event.event, event.instance) == ended else None
    )
    await fakes.until(lambda: [worker.restarts for worker in fakes.run.snapshot().workers] == [1])
    await fakes.run.wait_until_stable(STABLE_S)


def probe(path: str) -> dict[str, object]:
    """A probe that fails at once."""
    return {"httpGet": {"path": path}, "periodSeconds": 0.1, "timeoutSeconds": 0.5, "failureThreshold": 1}


async def test_a_rolling_restart_costs_no_rebalance_and_takes_the_leader_last(make: Make) -> None:
    fakes = await make(3)
    await fakes.run.wait_until_stable(STABLE_S)
    order: list[str] = []
    fakes.run.subscribe(
        lambda event: (
            order.append(event.instance)
            if event.event == "exited" and "preflight" not in event.instance
            else None
        )
    )
    report = await fakes.run.rolling_restart()
    assert report.rebalances == 0
    assert order == ["flights-1", "flights-2", "flights-0"]  # flights-0 leads
    assert [restart.instance for restart in report.restarts] == order
    assert all(restart.same_generation for restart in report.restarts)
    assert 0 < report.longest_unowned_ms < 5_000
    assert len({worker.revision for worker in fakes.run.snapshot().workers}) == 1


@pytest.mark.long
async def test_a_restart_that_takes_too_long_goes_back_and_leaves_the_others(make: Make) -> None:
    fakes = await make(2, rollout={"sessionBudget": "5%"})
    await fakes.run.wait_until_stable(STABLE_S)
    fakes.behave(behave={"flights-1": "refuse"})
    fakes.run.on_notice(
        lambda notice: fakes.behave(behave={}) if notice.text.startswith("RolloutStopped") else None
    )
    stopped = r"flights-1 .*(no module of this name|has been out of the group)"
    with pytest.raises(OperationError, match=stopped) as raised:
        await fakes.run.rolling_restart()
    assert raised.value.report.outcome != "done"
    workers = {worker.name: worker for worker in fakes.run.snapshot().workers}
    assert workers["flights-0"].restarts == 0
    assert len({worker.revision for worker in workers.values()}) == 1, "back to the revision before"
    assert "RolloutStopped" in status_line(fakes.run.snapshot())
    assert fakes.run.snapshot().generation == 1


@pytest.mark.long
async def test_a_roll_that_cannot_fit_is_refused(make: Make) -> None:
    fakes = await make(2)
    await fakes.run.wait_until_stable(STABLE_S)
    fakes.behave(behave={"flights-0": "late", "flights-1": "late"})  # longer than the budget below
    await fakes.run.rolling_restart()
    pids = [worker.pid for worker in fakes.run.snapshot().workers]
    tight = {"bootstrapServers": "127.0.0.1:1", "properties": {"session.timeout.ms": "9000"}}
    changed = fakes.source(2, kafka=tight, rollout={"sessionBudget": "0.1%"})
    with pytest.raises(OperationError, match=r"raise spec\.kafka\.properties\[session\.timeout\.ms\] to \d+"):
        await fakes.run.roll(changed)
    assert [worker.pid for worker in fakes.run.snapshot().workers] == pids


def stepped(**pause: str) -> dict[str, object]:
    """A rollout of one worker, a pause, and the others."""
    return {"preflight": {"enabled": False}, "steps": [{"setWorkers": 1}, {"pause": pause}]}


async def test_at_a_pause_without_a_duration_a_rollout_says_how_to_promote(make: Make) -> None:
    fakes = await make(2, rollout=stepped())
    await fakes.run.wait_until_stable(STABLE_S)
    with pytest.raises(OperationError, match=r"step 2 of 2: paused until it is promoted \(SIGUSR1 promotes"):
        await fakes.run.roll()
    assert fakes.run.failure is None
    assert [worker.phase for worker in fakes.run.snapshot().workers] == ["running", "running"]
    fakes.run.promote()
    await fakes.until(lambda: len({worker.revision for worker in fakes.run.snapshot().workers}) == 1)


async def test_a_rollout_that_the_file_pauses_ends_without_signals_that_would_not_help(make: Make) -> None:
    fakes = await make(2, rollout=stepped(duration="1s"))
    await fakes.run.wait_until_stable(STABLE_S)
    paused = fakes.source(2, rollout={**stepped(duration="1s"), "paused": True})
    with pytest.raises(OperationError, match="the rollout is paused$"):
        await fakes.run.roll(paused)


async def test_a_killed_worker_is_back_at_once_with_all_that_it_started(make: Make) -> None:
    fakes = await make(3)
    await fakes.run.wait_until_stable(STABLE_S)
    before = fakes.run.snapshot().workers[1].pid
    report = await fakes.run.kill("flights-1")
    after = fakes.run.snapshot().workers[1]
    assert report.rebalances == 0
    assert after.pid != before
    assert after.last_exit == -9
    assert [restart.instance for restart in report.restarts] == ["flights-1"]
    assert fakes.run.snapshot().generation == 1


async def test_a_deaf_worker_is_killed_after_the_grace(make: Make) -> None:
    fakes = await make(2, behave={"flights-1": "deaf"})
    await fakes.run.wait_until_stable(STABLE_S)
    await fakes.run.set_replicas(1)
    assert sorted(fakes.group.members) == ["flights-0"]


async def test_a_configuration_that_the_preflight_refuses_ends_the_run(make: Make) -> None:
    fakes = await make(2, behave={"preflight": "refuse"}, preflight=True)
    with pytest.raises(
        RunError, match=r"the preflight failed: flights\.pipeline: no module of this name; check"
    ):
        await fakes.run.wait_until_stable(STABLE_S)
    assert fakes.run.failure is not None
    assert fakes.run.snapshot().workers == ()


async def test_a_configuration_that_all_refuse_ends_the_run_with_their_line(make: Make) -> None:
    fakes = await make(2, behave={"flights-0": "refuse", "flights-1": "refuse"})
    with pytest.raises(RunError, match=r"^flights\.pipeline: no module of this name; check"):
        await fakes.run.wait_until_stable(STABLE_S)
    assert fakes.run.failure is not None


@pytest.mark.parametrize("behave", [{"preflight": "broken"}, {"flights-0": "broken"}])
async def test_a_process_that_does_not_start_ends_the_run_with_its_output(
    make: Make, behave: dict[str, str]
) -> None:
    fakes = await make(2, behave=behave, preflight="preflight" in behave)
    with pytest.raises(RunError, match="ModuleNotFoundError: No module named 'flights'"):
        await fakes.until(lambda: len(fakes.group.members) == 2)


async def test_a_worker_that_fails_again_and_again_ends_the_run(make: Make) -> None:
    fakes = await make(2, behave={"flights-1": "crash"})
    async with asyncio.timeout(HANG_S):
        await fakes.run.wait_failed()
    with pytest.raises(RunError, match="flights-1 failed 2 times in a row: the sink is full"):
        await fakes.run.wait_until_stable(STABLE_S)


@pytest.mark.long
async def test_scales_by_itself_where_a_target_is_given(make: Make) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 3, "lagPerReplica": 100}
    settings = replace(FAST, settle_ms=100, down_window_ms=500, up_window_ms=100)
    fakes = await make(1, scaling=scaling, settings=settings)
    await fakes.run.wait_until_stable(STABLE_S)
    fakes.group.lag = 1_000
    await fakes.until(lambda: fakes.run.replicas == 3 and len(fakes.group.members) == 3)
    await fakes.run.wait_until_stable(STABLE_S)
    assert "maxReplicas" in fakes.run.snapshot().decisions["scaling"].reason
    fakes.group.lag = 0
    await fakes.until(lambda: fakes.run.replicas == 1 and sorted(fakes.group.members) == ["flights-0"])
    await fakes.run.wait_until_stable(STABLE_S)
    with pytest.raises(ValueError, match="spec.scaling has a target, which decides"):
        await fakes.run.set_replicas(2)


@pytest.mark.long
async def test_a_suspended_group_has_no_workers_until_it_goes_on(make: Make) -> None:
    fakes = await make(2)
    await fakes.run.wait_until_stable(STABLE_S)
    await fakes.run.apply(fakes.source(2, suspend=True))
    assert fakes.run.snapshot().workers == ()
    assert fakes.group.members == {}
    report = await fakes.run.apply(fakes.source(2))
    assert report.rebalances == 1
    assert sorted(fakes.group.members) == ["flights-0", "flights-1"]


async def test_the_group_is_deleted_with_the_run_where_the_policy_says_so(make: Make) -> None:
    fakes = await make(1, deletionPolicy="Delete")
    await fakes.run.wait_until_stable(STABLE_S)
    await fakes.run.stop()
    assert fakes.group.members == {}
    assert fakes.group.deleted


async def test_impossible_operations_are_refused(make: Make) -> None:
    fakes = await make(1)
    await fakes.run.wait_until_stable(STABLE_S)
    with pytest.raises(ValueError, match="there is no worker flights-7"):
        await fakes.run.kill("flights-7")
    with pytest.raises(ValueError, match="spec.scaling allows at least 0"):
        await fakes.run.set_replicas(-1)


async def test_a_worker_that_cannot_be_started_ends_the_run_and_nothing_waits_for_it(
    make: Make, tmp_path: Path
) -> None:
    fakes = await make(1)
    await fakes.run.wait_until_stable(STABLE_S)
    log = tmp_path / "run" / "logs" / "flights-1.err"
    log.mkdir()
    scaling = asyncio.create_task(fakes.run.set_replicas(2))
    with pytest.raises(RunError, match=r"flights-1\.err: Is a directory"):
        await scaling
    async with asyncio.timeout(HANG_S):
        await fakes.run.stop()


async def test_logs_are_kept(make: Make, tmp_path: Path) -> None:
    fakes = await make(1)
    await fakes.run.wait_until_stable(STABLE_S)
    logged = (tmp_path / "run" / "logs" / "flights-0.log").read_text()
    assert "a line that is no event" in logged
    assert '"event": "started"' in logged
    assert (tmp_path / "run" / "logs" / "flights-0.err").exists()
