"""`slackwater local run`: a ConsumerGroup with processes of this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackwater_operator.local.run import LocalRun
    from slackwater_operator.local.views import RunSnapshot

_STATUS_S = 5.0


def register(subparsers: Any) -> None:
    """Adds the subcommand `local`."""
    local = subparsers.add_parser("local", help="run ConsumerGroups on this machine")
    commands = local.add_subparsers(dest="local_command", metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run",
        help="run the workers of a ConsumerGroup as processes",
        description="Runs the workers of a ConsumerGroup as processes of this machine, until Ctrl-C.",
    )
    run.add_argument(
        "-f", "--file", required=True, type=Path, metavar="FILE", help="the ConsumerGroup's YAML"
    )
    run.add_argument(
        "--bootstrap", default="", metavar="HOST:PORT", help="brokers to use in place of the file's"
    )
    run.add_argument(
        "--spark",
        choices=("connect", "local"),
        default="local",
        help="connect: one Spark Connect server for all workers; local (the default): a session in each",
    )
    run.add_argument(
        "--workdir",
        type=Path,
        default=None,
        metavar="DIR",
        help="where the workers' configuration and logs go (default: .slackwater/NAME in the current folder)",
    )
    run.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Runs the group; 0 after Ctrl-C.

    Raises:
        ResourceError: the file is wrong.
        RunError: the run could not go on.
    """
    return asyncio.run(_main(arguments))


async def _main(arguments: argparse.Namespace) -> int:
    from slackwater_operator.local.launch import Launch

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    launch = Launch(
        arguments.file, bootstrap=arguments.bootstrap, spark=arguments.spark, workdir=arguments.workdir
    )
    async with launch as run:
        run.on_notice(lambda notice: _line(notice.text))
        tasks = [asyncio.create_task(stop.wait()), asyncio.create_task(_watch(run))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if run.failure is not None:
            raise run.failure
        _line("ending the workers (again Ctrl-C: at once)")
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, launch.hurry)
    _line("all workers have ended")
    return 0


async def _watch(run: LocalRun) -> None:
    """Prints a status line now and then, and returns when the run cannot go on."""
    last = ""
    while run.failure is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STATUS_S):
                await run.wait_failed()
        told = status_line(run.snapshot())
        if told != last:
            _line(told)
            last = told


def status_line(shown: RunSnapshot) -> str:
    """A run in one line: the group, each worker with its partitions, the lag, what is being done."""
    workers = ", ".join(
        f"{one.name} {one.phase}" + (f" ({len(one.assignment)})" if one.phase == "running" else "")
        for one in shown.workers
    )
    lag = "unknown" if shown.total_lag is None else str(shown.total_lag)
    parts = [
        f"group {shown.group_state or 'unknown'}",
        f"generation {shown.generation}",
        f"lag {lag}",
        workers or "no workers",
    ]
    if shown.operation is not None and shown.operation.status:
        parts.append(f"{shown.operation.text}: {shown.operation.status}")
    if shown.problems:
        parts.append("; ".join(shown.problems))
    return " | ".join(parts)


def _line(text: str) -> None:
    print(f"{datetime.now(UTC).astimezone():%H:%M:%S} {text}", flush=True)
