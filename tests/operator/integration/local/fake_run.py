"""LocalRuns of fake workers, for tests."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.kafka.clusters import ClusterIdentity, Clusters, GroupWanted, Round
from slackwater_operator.local.run import LocalRun, RunSettings
from slackwater_operator.local.source import Source
from slackwater_operator.planner.rollout import restarts
from slackwater_operator.policies.takeover import context as takeover_context
from slackwater_operator.specs import statefulset
from tests.operator.integration.local.fake_group import FakeGroup
from tests.operator.unit.local.group_manifest import manifest
from tests.support.waiting import HANG_S, wait_until_async

HERE = Path(__file__).parent
FAST = RunSettings(round_ms=50, busy_round_ms=50, max_failures=2)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has to run for a moment only before the next one goes, and ends sooner."""
    monkeypatch.setattr(restarts, "FIRST_PROOF_MS", 300)
    monkeypatch.setattr(restarts, "PROOF_MS", 100)
    monkeypatch.setattr(takeover_context, "FIRST_PROOF_MS", 300)
    monkeypatch.setattr(takeover_context, "PROOF_MS", 100)
    monkeypatch.setattr(takeover_context, "REQUEST_RETRY_MS", 500)
    monkeypatch.setattr(statefulset, "GRACE_BEYOND_DRAIN_MS", 0)


class FakeClusters(Clusters):
    """The one cluster that a FakeGroup is on."""

    def __init__(self, group: FakeGroup) -> None:
        super().__init__()
        self._group = group

    async def observe(self, cluster: ClusterIdentity, wanted: Sequence[GroupWanted[Any]]) -> Round[Any]:
        return Round({group.key: await self._group.observe(group.topics) for group in wanted})

    async def identify(self, cluster: ClusterIdentity) -> str | None:
        return "fake"

    async def remove_members(
        self, cluster: ClusterIdentity, group_id: str, members: Mapping[str, str]
    ) -> dict[str, str]:
        return await self._group.remove_members(tuple(members))

    async def delete_group(self, cluster: ClusterIdentity, group_id: str) -> str:
        self._group.deleted = True
        return ""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@dataclass
class FakeRun:
    """A run of fake workers, and the group that they join."""

    run: LocalRun
    group: FakeGroup
    folder: Path
    pids: list[int] = field(default_factory=list)

    def behave(self, **changed: Any) -> None:
        """What workers do that start from now on: by the name of a member or a process, as "behave"."""
        fake = self.folder / "fake.json"
        fake.write_text(json.dumps({**json.loads(fake.read_text()), **changed}))

    async def until(self, what: Callable[[], bool]) -> None:
        """Waits until ``what`` holds. Raises the run's failure, after which it never would."""
        async with asyncio.timeout(HANG_S):
            while not what():
                if self.run.failure is not None:
                    raise self.run.failure
                await asyncio.sleep(0.01)

    def source(self, replicas: int | None = None, **spec: Any) -> Source:
        """A changed file."""
        return Source(manifest(replicas, **spec), self.folder, self.folder)


Make = Callable[..., Awaitable[FakeRun]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes a started run with `replicas` fake workers; all it began is over afterwards."""
    runs: list[FakeRun] = []

    async def start(
        replicas: int | None,
        *,
        behave: dict[str, str] | None = None,
        settings: RunSettings = FAST,
        preflight: bool = False,
        rollout: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> FakeRun:
        rollout = {"preflight": {"enabled": preflight}, **(rollout or {})}
        group = FakeGroup(partitions=12)
        fake = {"group": await group.start(), "behave": behave or {}}
        (tmp_path / "fake.json").write_text(json.dumps(fake))
        run = LocalRun(
            Source(manifest(replicas, rollout=rollout, **spec), tmp_path, tmp_path),
            workdir=tmp_path / "run",
            settings=settings,
            clusters=FakeClusters(group),
            program=[sys.executable, str(HERE / "fake_worker.py"), str(tmp_path / "fake.json")],
        )
        fakes = FakeRun(run, group, tmp_path)
        run.subscribe(lambda event: fakes.pids.append(event.data["pid"]) if "pid" in event.data else None)
        runs.append(fakes)
        await run.start()
        return fakes

    yield start
    for fakes in runs:
        await fakes.run.stop(grace_ms=2_000)
        await fakes.group.close()
        # SIGKILL takes a moment.
        await wait_until_async(
            lambda pids=fakes.pids: not any(map(alive, pids)), "all processes have ended", HANG_S
        )
