"""`kubectl slackwater lag GROUP`: the lag of each partition, as the group's workers report it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from slackwater_operator.cli.kubectl.cluster import CommandError, add_group, connected
from slackwater_operator.model.worker_status import WorkerStatus

_PLAIN_WIDTH = 500


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "lag",
        help="list the partitions of a group with their lag",
        description="Lists the partitions that the group's workers hold, with their lag in records, which "
        "the API server asks the pods for (the right to get pods/proxy).",
    )
    add_group(parser)
    parser.add_argument("--sort-by-lag", action="store_true", help="the largest lag first")
    parser.set_defaults(run_async=show)


async def show(args: argparse.Namespace) -> int:
    """Prints the table. Returns the exit code.

    Raises:
        CommandError: no such group, no API server, no right, or no worker reports its partitions.
    """
    async with connected(args) as cluster:
        await cluster.group(args.group)
        reports = await cluster.reports(await cluster.of_group("v1", "Pod", args.group))
    problems = [f"{pod}: {report}" for pod, report in sorted(reports.items()) if isinstance(report, str)]
    listed = rows(reports, by_lag=args.sort_by_lag)
    if not listed:
        why = next((problem for problem in problems if not problem.endswith(": ")), "no worker holds any")
        raise CommandError(f"no partitions: {why}")
    table = Table(box=None, pad_edge=False, header_style="")
    for column in ("TOPIC", "PARTITION", "LAG", "POD"):
        table.add_column(column, no_wrap=True, justify="right" if column in ("PARTITION", "LAG") else "left")
    for row in listed:
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(table)
    for problem in problems:
        if not problem.endswith(": "):
            console.print(problem)
    return 0


def rows(
    reports: Mapping[str, WorkerStatus | str], *, by_lag: bool = False
) -> list[tuple[str, str, str, str]]:
    """The table's rows; a lag that is not known is `?`.

    Args:
        reports: what the workers report, by pod, or why it is not known.
        by_lag: whether the largest lag comes first.
    """
    held = [
        (partition, report.lag.get(partition), pod)
        for pod, report in reports.items()
        if isinstance(report, WorkerStatus) and report.is_member
        for partition in report.assignment
    ]
    held.sort(key=lambda row: (-(row[1] or 0) if by_lag else 0, row[0]))
    return [
        (partition.topic, str(partition.partition), "?" if lag is None else f"{lag:,}", pod)
        for partition, lag, pod in held
    ]
