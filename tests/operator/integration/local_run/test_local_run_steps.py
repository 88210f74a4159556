"""A LocalRun of real workers that is rolled by steps, on the dev broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slackwater_operator.local.launch import Launch
from slackwater_operator.local.run import LocalRun, OperationError
from tests.operator.integration.local_run.group_files import Feed, group_of_workers
from tests.support.devbroker import DevBroker
from tests.support.waiting import wait_until_async

STEPS = {"preflight": {"enabled": False}, "steps": [{"setWorkers": 1}, {"pause": {}}]}


def pids(run: LocalRun) -> set[int | None]:
    return {worker.pid for worker in run.snapshot().workers if worker.phase == "running"}


@pytest.mark.long
async def test_a_pause_is_promoted_and_a_rollout_aborted(devbroker: DevBroker, tmp_path: Path) -> None:
    site = await asyncio.to_thread(group_of_workers, devbroker.bootstrap, tmp_path)
    file, name = site.file, site.name
    with Feed(devbroker.bootstrap, name):
        async with Launch(file, workdir=tmp_path / "run", rollout=STEPS) as run:
            await run.wait_until_stable(60)
            with pytest.raises(ValueError, match="no rollout is at a step"):
                run.promote()
            with pytest.raises(ValueError, match="no rollout is in progress"):
                run.abort()
            first = pids(run)
            with pytest.raises(OperationError, match="step 2 of 2: paused until it is promoted"):
                await run.roll()
            assert len(pids(run) & first) == 2, "one worker was restarted"
            run.promote()
            await wait_until_async(lambda: len(pids(run)) == 3 and not pids(run) & first)
            await run.wait_until_stable(60)
            second = pids(run)
            with pytest.raises(OperationError, match="step 2 of 2: paused"):
                await run.roll()
            paused = pids(run)
            run.abort()
            await wait_until_async(lambda: len(pids(run)) == 3 and pids(run) != paused)
            await run.wait_until_stable(60)
            assert len(pids(run) & second) == 2, "the workers that had the former revision kept it"
            assert run.snapshot().generation == 1
