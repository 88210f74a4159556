"""The loop that the simulator runs on."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtual_time import Livelock, SealedLoop


def _run(loop: SealedLoop, work: object) -> object:
    try:
        return loop.run_until_complete(work)  # type: ignore[arg-type]
    finally:
        loop.close()


def test_hours_pass_at_once_and_timers_fire_in_their_order() -> None:
    loop = SealedLoop()
    fired: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append((name, loop.time()))

    async def main() -> None:
        await asyncio.gather(wait("b", 7_200), wait("a", 3_600.5), wait("c", 7_200.25))

    _run(loop, main())
    assert fired == [("a", 4_600.5), ("b", 8_200.0), ("c", 8_200.25)]


def test_a_program_that_calls_itself_without_waiting_is_stopped() -> None:
    loop = SealedLoop(max_turns=100)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="turns of the loop at 1000.000 s"):
        _run(loop, spin())


def test_a_program_that_waits_for_nothing_is_told_so() -> None:
    loop = SealedLoop()

    async def hang() -> None:
        await loop.create_future()

    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        _run(loop, hang())
