"""A rewind by the annotation in the file of a local run: the Job is a process of this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slackwater_operator.local.launch import Launch
from slackwater_operator.local.source import read_source
from slackwater_operator.model import names
from tests.operator.integration.local_run.group_files import Feed, group_of_workers
from tests.operator.integration.local_run.test_local_run_story import caught_up
from tests.support.devbroker import DevBroker


@pytest.mark.long
async def test_a_rewind_writes_the_records_again_and_each_is_there_once(
    devbroker: DevBroker, tmp_path: Path
) -> None:
    site = await asyncio.to_thread(
        group_of_workers, devbroker.bootstrap, tmp_path, preflight=False, replicas=2
    )
    file, name = site.file, site.name
    with Feed(devbroker.bootstrap, name) as feed:
        async with Launch(file, workdir=tmp_path / "run") as run:
            await run.wait_until_stable(60)
            pids = {worker.pid for worker in run.snapshot().workers}
            text = file.read_text(encoding="utf-8")
            request = f'"{name}:0:1 {name}:1:start"'
            assert f"metadata: {{name: {name}}}" in text
            file.write_text(
                text.replace(
                    f"metadata: {{name: {name}}}",
                    f"metadata: {{name: {name}, annotations: {{{names.REWIND}: {request}}}}}",
                )
            )
            report = await run.apply(read_source(file, tmp_path))
            assert report.outcome == "done", report
            await run.wait_until_stable(60)
            assert not pids & {worker.pid for worker in run.snapshot().workers}
            await asyncio.to_thread(feed.__exit__, None, None, None)
            await caught_up(run, feed)
    logs = [log.read_text() for log in (tmp_path / "run" / "logs").glob("*-rewind-*.log")]
    assert any(f"{name}-1: the group continues at offset 0" in log for log in logs), logs
    rows = site.rows()
    assert sum(len(offsets) for offsets in rows.values()) == feed.count
    assert {times for offsets in rows.values() for times in offsets.values()} == {1}
