"""What the demo waits for, in virtual time: a fault ends the wait, a slow machine does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slackwater_operator.demo.children import DemoError
from slackwater_operator.demo.scenario import Scenario
from slackwater_operator.local.report.views import RunError
from tests.support.virtual_time import run_virtually

HOUR_S = 3_600.0


class FakeRun:
    """A run whose commits, problems and failure a test sets."""

    def __init__(self) -> None:
        self.committed = 0
        self.problems: tuple[str, ...] = ()
        self.failure: RunError | None = None

    def snapshot(self) -> Any:
        return SimpleNamespace(
            positions={"flights-0": self.committed}, problems=self.problems, operation=None, workers=()
        )


class FakeDisplay:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.run, self.display = FakeRun(), FakeDisplay()
        self.scenario = Scenario(
            cast(Any, self.run),
            cast(Any, self.display),
            bootstrap="127.0.0.1:1",
            logs=folder,
            topic="flights",
            feed_s=1.0,
            seed=1,
        )

    async def until(self, committed: int) -> float:
        """Waits until that many are committed; gives how long it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self.scenario._until("records flow", lambda: self.run.committed >= committed)
        return loop.time() - began_s


def test_a_slow_machine_is_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        waiting = asyncio.create_task(bench.until(100))
        await asyncio.sleep(HOUR_S)
        bench.run.committed = 100
        assert await waiting >= HOUR_S
        assert any("waiting until records flow" in line for line in bench.display.lines)
        assert len(bench.display.lines) <= HOUR_S / 60, "one line a minute at most"

    run_virtually(story())


def test_a_reported_problem_without_progress_ends_the_wait_with_its_cause(tmp_path: Path) -> None:
    async def story() -> None:
        bench, began_s = Bench(tmp_path), asyncio.get_running_loop().time()
        bench.run.problems = ("Degraded: WorkerFailing: flights-1 ends again and again",)
        with pytest.raises(
            DemoError, match=r"records flow: no progress for 12\d s.*flights-1 ends again and again"
        ) as error:
            await bench.until(100)
        assert str(tmp_path) in str(error.value), "it says where the logs are"
        assert 120 <= asyncio.get_running_loop().time() - began_s <= 125

    run_virtually(story())


def test_a_reported_problem_does_not_end_a_wait_that_makes_progress(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.run.problems = ("the broker did not answer",)
        waiting = asyncio.create_task(bench.until(60))
        for _ in range(60):
            await asyncio.sleep(100)
            bench.run.committed += 1
        await waiting

    run_virtually(story())


def test_a_problem_that_has_passed_does_not_end_the_wait(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.run.problems = ("the broker did not answer",)
        waiting = asyncio.create_task(bench.until(1))
        await asyncio.sleep(100)
        bench.run.problems = ()
        await asyncio.sleep(HOUR_S)
        bench.run.problems = ("the broker did not answer",)  # a moment is no fault
        await asyncio.sleep(60)
        bench.run.committed = 1
        await waiting

    run_virtually(story())


def test_a_run_that_has_failed_ends_the_wait_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        bench, began_s = Bench(tmp_path), asyncio.get_running_loop().time()
        waiting = asyncio.create_task(bench.until(1))
        await asyncio.sleep(10)
        bench.run.failure = RunError("flights-0 failed 5 times in a row")
        with pytest.raises(RunError, match="5 times in a row"):
            await waiting
        assert asyncio.get_running_loop().time() - began_s < 12

    run_virtually(story())


def test_an_operation_that_hangs_is_ended_when_a_problem_is_reported(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.run.problems = ("the broker did not answer",)
        hanging = asyncio.get_running_loop().create_future()
        with pytest.raises(DemoError, match="the takeover is done"):
            await bench.scenario._done("the takeover is done", hanging)
        assert hanging.cancelled()

    run_virtually(story())
