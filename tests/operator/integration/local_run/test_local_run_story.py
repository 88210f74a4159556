"""A LocalRun of real workers on a real broker and on the dev broker: what each operation costs the group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slackwater.kafka.admin import AsyncAdmin
from slackwater_operator.local.launch import Launch
from slackwater_operator.local.run import LocalRun, OperationError
from slackwater_operator.local.source import read_source
from tests.operator.integration.local_run.group_files import Feed, group_of_workers
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until_async

Broker = KafkaCluster | DevBroker


async def caught_up(run: LocalRun, feed: Feed) -> None:
    await wait_until_async(
        lambda: run.snapshot().total_lag == 0 and sum(run.snapshot().ends.values()) >= feed.count
    )


async def members(bootstrap: str, group: str) -> list[str]:
    async with AsyncAdmin(bootstrap) as admin:
        described = (await admin.describe_groups([group])).unwrap()[group]
        return sorted(member.instance_id or "" for member in described.members)


@pytest.mark.parametrize(
    ("workers", "more", "protocol"),
    [(2, 3, "Classic"), (2, 3, "Consumer"), pytest.param(3, 5, "Classic", marks=pytest.mark.long)],
    ids=["2 workers", "2 workers, consumer protocol", "3 workers"],
)
async def test_restarting_killing_and_scaling_workers_loses_no_record(
    broker: Broker, tmp_path: Path, workers: int, more: int, protocol: str
) -> None:
    site = await asyncio.to_thread(
        group_of_workers,
        broker.bootstrap,
        tmp_path,
        replicas=workers,
        preflight=False,
        protocol=protocol,
    )
    file, name = site.file, site.name

    def cost(members: int) -> range:
        """The rebalances that so many members cost which come or go together; of the consumer protocol each
        is an epoch."""
        return range(1, 1 + (members if protocol == "Consumer" else 1))

    with Feed(broker.bootstrap, name) as feed:
        async with Launch(file, workdir=tmp_path / "run") as run:
            await run.wait_until_stable(60)
            first = run.reports[0]
            assert first.kind == "start"
            assert first.rebalances in cost(workers)

            roll = await run.rolling_restart()
            assert roll.rebalances == 0
            assert sorted(restart.instance for restart in roll.restarts) == [
                f"{name}-{number}" for number in range(workers)
            ]
            assert all(restart.same_generation for restart in roll.restarts)
            assert 0 < roll.longest_unowned_ms < 30_000

            victim = f"{name}-1"
            kill = await run.kill(victim)
            assert kill.rebalances == 0
            assert [restart.instance for restart in kill.restarts] == [victim]
            gap = kill.restarts[0].gap_ms
            assert gap is not None
            assert 0 < gap < 36_000  # within the budget: 60 % of the session
            shown = {worker.name: worker for worker in run.snapshot().workers}
            assert shown[victim].last_exit == -9

            up = await run.set_replicas(more)
            assert up.kind == "scale-up"
            assert up.rebalances in cost(more - workers)
            down = await run.set_replicas(workers - 1)
            assert down.kind == "scale-down"
            assert down.rebalances in cost(more - workers + 1)
            assert down.removed == tuple(f"{name}-{number}" for number in range(workers - 1, more))
            assert await members(broker.bootstrap, name) == [f"{name}-{n}" for n in range(workers - 1)]
            await asyncio.to_thread(feed.__exit__, None, None, None)
            await caught_up(run, feed)
        assert await members(broker.bootstrap, name) == []
    rows = site.rows()
    assert sum(len(offsets) for offsets in rows.values()) == feed.count  # nothing lost
    assert {times for offsets in rows.values() for times in offsets.values()} == {1}  # nothing twice


@pytest.mark.long
async def test_a_rolling_restart_survives_a_killed_worker(devbroker: DevBroker, tmp_path: Path) -> None:
    site = await asyncio.to_thread(group_of_workers, devbroker.bootstrap, tmp_path, preflight=False)
    file, name = site.file, site.name
    with Feed(devbroker.bootstrap, name):
        async with Launch(file, workdir=tmp_path / "run") as run:
            await run.wait_until_stable(60)
            rolling = asyncio.create_task(run.rolling_restart())
            while (doing := run.snapshot().operation) is None or not doing.subjects:
                await asyncio.sleep(0.01)
            other = next(
                worker.name for worker in run.snapshot().workers if worker.name not in doing.subjects
            )
            kill = await run.kill(other)
            roll = await rolling
            assert (kill.rebalances, roll.rebalances) == (0, 0)
            assert len({worker.revision for worker in run.snapshot().workers}) == 1
            assert run.snapshot().generation == 1


@pytest.mark.long
async def test_a_new_revision_that_cannot_start_stops_the_roll(devbroker: DevBroker, tmp_path: Path) -> None:
    site = await asyncio.to_thread(group_of_workers, devbroker.bootstrap, tmp_path, preflight=False)
    file = site.file
    async with Launch(file, workdir=tmp_path / "run") as run:
        await run.wait_until_stable(60)
        before = {worker.pid for worker in run.snapshot().workers}
        site.change("handlers:keep", "handlers:nothing")
        # Whichever comes first on this machine: three failures, or the budget.
        site.change("strategy: Restart", "strategy: Restart, sessionBudget: 5%")
        stopped = r"handler handlers:nothing|has been out of the group for .* more than 3 s"
        with pytest.raises(OperationError, match=stopped):
            await run.roll(read_source(file, tmp_path))
        after = {worker.pid for worker in run.snapshot().workers}
        assert len(before & after) == 2, "nobody else was restarted"
        await run.wait_until_stable(60)  # the third is back with what it had before
        assert len({worker.revision for worker in run.snapshot().workers}) == 1
        assert run.snapshot().generation == 1
