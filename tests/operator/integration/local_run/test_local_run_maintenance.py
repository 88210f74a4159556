"""spec.maintenance in a local run: the Job is a process of this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slackwater_operator.local.launch import Launch
from slackwater_operator.local.source import read_source
from slackwater_operator.model import names
from tests.operator.integration.local_run.group_files import Feed, group_of_workers
from tests.operator.integration.local_run.test_local_run_story import caught_up
from tests.support.delta import DeltaFolder
from tests.support.devbroker import DevBroker
from tests.support.waiting import wait_until_async

MANY = 10


@pytest.mark.long
async def test_a_table_is_compacted_and_each_record_is_there_once(
    devbroker: DevBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the relative path of the sink starts
    site = await asyncio.to_thread(
        group_of_workers, devbroker.bootstrap, tmp_path, preflight=False, replicas=2
    )
    site.change(f"sink: {{path: {site.out}}}", "sink: {format: delta, path: out}")
    site.change("  replicas: 2\n", "  replicas: 2\n  maintenance: [{table: out, every: 24h}]\n")

    def files() -> int:
        return len(DeltaFolder(site.out).files) if (site.out / "_delta_log").exists() else 0

    with Feed(devbroker.bootstrap, site.name) as feed:
        async with Launch(site.file, workdir=tmp_path / "run") as run:
            await run.wait_until_stable(60)
            await wait_until_async(lambda: files() >= MANY)
            pids = {worker.pid for worker in run.snapshot().workers}
            site.change(
                f"metadata: {{name: {site.name}}}",
                f"metadata: {{name: {site.name}, annotations: {{{names.MAINTAIN}: now}}}}",
            )
            await run.apply(read_source(site.file, tmp_path))
            logs = tmp_path / "run" / "logs"
            await wait_until_async(
                lambda: any('"compacted"' in log.read_text() for log in logs.glob("*-maintenance-*.log"))
            )
            await asyncio.to_thread(feed.__exit__, None, None, None)
            await caught_up(run, feed)
            assert pids == {worker.pid for worker in run.snapshot().workers}
    assert files() < MANY
    places = DeltaFolder(site.out).places()
    assert (len(places), set(places.values())) == (feed.count, {1})
