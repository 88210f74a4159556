"""A LocalRun of real workers that is rolled by takeover, on a real broker and on the dev broker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.local.launch import Launch
from slackwater_operator.local.machine.events import WorkerEvent
from slackwater_operator.local.run import LocalRun, OperationError, OperationReport
from slackwater_operator.local.source import read_source
from slackwater_operator.policies.takeover import context as takeover_case
from tests.operator.integration.local_run.group_files import Feed, group_of_workers, join_by_consumer_protocol
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until_async
from tests.support.workers.local_run_site import LocalRunSite

Broker = KafkaCluster | DevBroker


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor has to run for a shorter time before its predecessor goes, and is told again sooner."""
    monkeypatch.setattr(takeover_case, "FIRST_PROOF_MS", 500)
    monkeypatch.setattr(takeover_case, "PROOF_MS", 200)
    monkeypatch.setattr(takeover_case, "REQUEST_RETRY_MS", 2_000)


def pods(run: LocalRun) -> list[str]:
    return [worker.pod for worker in run.snapshot().workers]


async def group_of(
    bootstrap: str, folder: Path, *, replicas: int = 3, protocol: str = "Classic"
) -> LocalRunSite:
    """A group rolled by takeover, and its topic."""
    return await asyncio.to_thread(
        group_of_workers,
        bootstrap,
        folder,
        replicas=replicas,
        strategy="Takeover",
        preflight=False,
        protocol=protocol,
    )


async def all_handled(run: LocalRun, feed: Feed, site: LocalRunSite) -> None:
    """Waits until all that was produced is handled; then it is in the output once, no more and no less."""
    await asyncio.to_thread(feed.__exit__, None, None, None)
    await wait_until_async(
        lambda: run.snapshot().total_lag == 0 and sum(run.snapshot().ends.values()) >= feed.count
    )
    rows = site.rows()
    assert sum(len(offsets) for offsets in rows.values()) == feed.count
    assert {times for offsets in rows.values() for times in offsets.values()} == {1}


def check_taken_over(
    report: OperationReport, name: str, replicas: int, owners: Collection[TopicPartition]
) -> None:
    """All were taken over in one generation, and each partition's pause was told."""
    assert (report.kind, report.rebalances, report.restarts) == ("takeover", 0, ())
    assert sorted((takeover.before, takeover.pod) for takeover in report.takeovers) == [
        (f"{name}-a-{number}", f"{name}-b-{number}") for number in range(replicas)
    ]
    assert all(takeover.same_generation and not takeover.forced for takeover in report.takeovers)
    paused = {partition for takeover in report.takeovers for partition in takeover.pauses_ms}
    assert paused == set(owners)


@pytest.mark.long
async def test_all_workers_are_taken_over_twice_under_load(broker: Broker, tmp_path: Path) -> None:
    site = await group_of(broker.bootstrap, tmp_path)
    file, name = site.file, site.name
    with Feed(broker.bootstrap, name) as feed:
        async with Launch(file, workdir=tmp_path / "run") as run:
            await run.wait_until_stable(60)
            owners = run.snapshot().owners
            first = await run.roll()
            check_taken_over(first, name, 3, owners)
            assert run.snapshot().owners == owners
            killed = await run.kill(f"{name}-1")
            assert (killed.rebalances, len(killed.restarts)) == (0, 1)
            add_handler(site)
            second = await run.roll(read_source(file, tmp_path))
            assert (second.rebalances, len(second.takeovers)) == (0, 3)
            assert {worker.pod for worker in run.snapshot().workers} == {
                f"{name}-a-{number}" for number in range(3)
            }
            assert run.snapshot().generation == 1
            await all_handled(run, feed, site)
    assert (tmp_path / "also").exists()


@pytest.mark.parametrize(
    ("protocol", "migrates"),
    [
        pytest.param("Classic", False, marks=pytest.mark.long, id="Classic"),
        pytest.param("Consumer", False, marks=pytest.mark.long, id="Consumer"),
        pytest.param("Classic", True, id="Classic to Consumer"),
    ],
)
async def test_workers_are_taken_over_by_a_new_revision_under_load(
    broker: Broker, tmp_path: Path, protocol: str, migrates: bool
) -> None:
    site = await group_of(broker.bootstrap, tmp_path, replicas=2, protocol=protocol)
    name = site.name
    with Feed(broker.bootstrap, name) as feed:
        async with Launch(site.file, workdir=tmp_path / "run") as run:
            await run.wait_until_stable(60)
            owners, generation = run.snapshot().owners, run.snapshot().generation
            add_handler(site)
            if migrates:
                join_by_consumer_protocol(site)
            rolled = await run.roll(read_source(site.file, tmp_path))
            check_taken_over(rolled, name, 2, owners)
            assert (run.snapshot().owners, run.snapshot().generation) == (owners, generation)
            await all_handled(run, feed, site)
    assert (tmp_path / "also").exists()


def add_handler(site: LocalRunSite) -> None:
    """A new revision, whose handler tells that it has run."""
    site.change("handlers:keep", "handlers:also")
    handlers = site.folder / "handlers.py"
    handlers.write_text(handlers.read_text() + ALSO)


ALSO = """

def also(table):
    pathlib.Path(__file__).with_name("also").touch()
    return table
"""


@pytest.mark.long
async def test_a_revision_that_cannot_start_stops_before_any_worker_is_replaced(
    devbroker: DevBroker, tmp_path: Path
) -> None:
    site = await group_of(devbroker.bootstrap, tmp_path)
    file, name = site.file, site.name
    with Feed(devbroker.bootstrap, name) as feed:
        async with Launch(file, workdir=tmp_path / "run") as run:
            await run.wait_until_stable(60)
            before = [(worker.pod, worker.pid) for worker in run.snapshot().workers]
            site.change("handlers:keep", "handlers:nothing")
            with pytest.raises(
                OperationError, match=f"{name}-b-2 has failed 3 times.*handlers:nothing"
            ) as failure:
                await run.roll(read_source(file, tmp_path))
            assert failure.value.report.rebalances == 0
            assert (
                failure.value.report.longest_unowned_ms == 0
            )  # no partition was without its worker at any time
            assert [(worker.pod, worker.pid) for worker in run.snapshot().workers] == before
            await all_handled(run, feed, site)


@pytest.mark.long
async def test_a_takeover_killed_in_any_phase_loses_nothing_and_disturbs_no_other_member(
    devbroker: DevBroker, tmp_path: Path
) -> None:
    site = await group_of(devbroker.bootstrap, tmp_path)
    file, name = site.file, site.name
    moments = {
        (f"{name}-b-2", "standby"): f"{name}-b-2",  # the successor, before it is told
        (f"{name}-a-1", "handing-over"): f"{name}-a-1",  # the predecessor, when it is asked
        (f"{name}-b-0", "taking-over"): f"{name}-b-0",  # the successor, when it has asked
    }
    with Feed(devbroker.bootstrap, name) as feed:
        async with Launch(file, workdir=tmp_path / "run") as run:
            await run.wait_until_stable(60)
            run.subscribe(killer(run, moments))
            report = await run.roll()
            assert moments == {}, "each was killed"
            assert (report.rebalances, run.snapshot().generation) == (0, 1)
            assert {worker.pod for worker in run.snapshot().workers} == {
                f"{name}-b-{number}" for number in range(3)
            }
            await all_handled(run, feed, site)


def killer(run: LocalRun, moments: dict[tuple[str, str], str]) -> Callable[[WorkerEvent], None]:
    """Ends a process when another, or itself, comes into a phase for the first time."""

    def take(event: WorkerEvent) -> None:
        victim = moments.pop((event.pod, str(event.data.get("phase"))), None)
        row = next((worker for worker in run.snapshot().workers if worker.pod == victim), None)
        if row is not None and row.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(row.pid, signal.SIGKILL)

    return take
