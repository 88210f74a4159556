"""Operations: something is asked of the run, it is waited for, and its cost is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slackwater_operator.local.processes import wall_ms
from slackwater_operator.local.state import RunState
from slackwater_operator.local.views import Operation, OperationError, OperationReport


class OperationStopped(Exception):
    """Raised by a `done` function: a decision has ended the operation, for the reason it says."""


async def operate(
    state: RunState,
    kind: str,
    text: str,
    timeout_s: float,
    *,
    subjects: tuple[str, ...] = (),
    done: Callable[[], str] = lambda: "",
    began_ms: int | None = None,
) -> OperationReport:
    """Waits until what was asked for is done and the group is settled, and reports.

    Args:
        state: the run.
        kind: the report's kind.
        text: what is done, for people.
        timeout_s: how long it may take.
        subjects: the workers that it is done to.
        done: gives what is still missing, "" when nothing is.
        began_ms: when it began; by default now.

    Raises:
        OperationError: it was ended by a decision, or took too long.
        RunError: the run cannot go on.
    """
    operation = Operation(kind, text, wall_ms() if began_ms is None else began_ms, subjects)
    shown = state.operation is None  # a kill may fall into another operation, which stays the one shown
    if shown:
        state.operation = operation
    state.notify(text)
    state.settled_since_ms = None
    outcome = "done"
    try:
        async with asyncio.timeout(timeout_s):
            await _until_done(state, operation, done)
    except TimeoutError:
        outcome = f"not done after {timeout_s:.0f} s: {operation.status}"
    except OperationStopped as stopped:
        outcome = str(stopped)
    finally:
        if shown:
            state.operation = None
    report = _report(state, operation, outcome)
    if outcome != "done":
        state.notify(f"{text}: {outcome}")
        raise OperationError(f"{text}: {outcome}", report)
    state.notify(_told(report))
    return report


async def _until_done(state: RunState, operation: Operation, done: Callable[[], str]) -> None:
    """Returns when two observations in a row found nothing missing."""
    settled_at: set[int] = set()
    async with state.turned:
        while True:
            state.check()
            operation.status = done() or state.unsettled()
            if operation.status:
                settled_at.clear()
            elif state.seen is not None:
                settled_at.add(state.seen.at_ms)
            if len(settled_at) >= 2:
                return
            await state.turned.wait()


def _report(state: RunState, operation: Operation, outcome: str) -> OperationReport:
    began, ended = operation.began_ms, wall_ms()
    timeline = state.timeline
    return OperationReport(
        kind=operation.kind,
        text=operation.text,
        began_ms=began,
        ended_ms=ended,
        outcome=outcome,
        rebalances=timeline.rebalances(began, ended),
        generations=tuple(one.number for one in timeline.generations(began, ended)),
        unowned_ms=timeline.unowned_ms(began, ended),
        restarts=tuple(timeline.restarts(began, ended)),
        removed=tuple(operation.removed),
        takeovers=tuple(timeline.takeovers(began, ended)),
    )


def _told(report: OperationReport) -> str:
    took = (report.ended_ms - report.began_ms) / 1000
    unowned = report.longest_unowned_ms / 1000
    cost = f"{report.rebalances} rebalance{'' if report.rebalances == 1 else 's'}"
    pauses = [one.longest_ms for one in report.takeovers if one.longest_ms is not None]
    paused = f", no partition paused for more than {max(pauses)} ms" if pauses else ""
    return (
        f"{report.text}: done in {took:.1f} s, {cost}, no partition unowned for more than {unowned:.1f} s"
        f"{paused}"
    )
