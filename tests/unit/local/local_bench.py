"""LocalRuns of fake workers, for tests."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, parse
from slackwater_operator.local.prepare import Source
from slackwater_operator.local.run import LocalRun, RunSettings
from tests.unit.policies.fake_group import FakeGroup

HERE = Path(__file__).parent
FAST = RunSettings(observe_interval_ms=50, grace_ms=700, max_failures=2)
KEY = bytes(range(32))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.01)


def resource(
    replicas: int, *, rollout: object = None, scaling: object = None, **properties: str
) -> ConsumerGroup:
    """A ConsumerGroup `flights`, as a user writes it."""
    spec = {
        "kafka": {"bootstrapServers": "127.0.0.1:1", "properties": properties},
        "topics": ["flights"],
        "pipeline": {"handler": "flights.pipeline:transform", "sink": {"path": "out"}},
        "replicas": replicas,
        "rollout": rollout or {},
        "scaling": scaling,
    }
    document = {"apiVersion": "slackwater.dev/v1alpha1", "kind": "ConsumerGroup", "spec": spec}
    return parse({**document, "metadata": {"name": "flights"}})


@dataclass
class Bench:
    """A run under test and the group that its workers join."""

    run: LocalRun
    group: FakeGroup
    folder: Path
    pids: list[int] = field(default_factory=list)

    def behave(self, **changed: Any) -> None:
        """What workers do that start from now on: by the name of a member or a process, as "behave"."""
        fake = self.folder / "fake.json"
        fake.write_text(json.dumps({**json.loads(fake.read_text()), **changed}))


Make = Callable[..., Awaitable[Bench]]


class Benches:
    """Makes started runs, and ends all that they began."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Bench] = []

    async def build(
        self,
        replicas: int,
        *,
        behave: dict[str, str] | None = None,
        rollout: object = None,
        scaling: object = None,
        settings: RunSettings = FAST,
    ) -> Bench:
        """A run of `replicas` fake workers, started."""
        folder = self._folder
        group = FakeGroup(partitions=12)
        fake = {"group": await group.start(), "behave": behave or {}}
        (folder / "fake.json").write_text(json.dumps(fake))
        wanted = resource(replicas, rollout=rollout, scaling=scaling)
        run = LocalRun(
            Source(wanted, folder, folder),
            group,
            workdir=folder / "run",
            settings=settings,
            takeover_key=KEY,
            command=lambda config: [
                sys.executable,
                str(HERE / "fake_worker.py"),
                str(folder / "fake.json"),
                str(config),
            ],
        )
        bench = Bench(run, group, folder)
        run.subscribe(lambda event: bench.pids.append(event.data["pid"]) if "pid" in event.data else None)
        self._made.append(bench)
        await run.start()
        return bench

    async def close(self) -> None:
        """Ends the runs, and sees to it that nothing is left."""
        for bench in self._made:
            await bench.run.stop(grace_ms=2_000)
            await bench.group.close()
            assert bench.pids
            async with asyncio.timeout(60):  # SIGKILL takes a moment
                while any(alive(pid) for pid in bench.pids):
                    await asyncio.sleep(0.01)
