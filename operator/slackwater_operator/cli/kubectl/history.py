"""`kubectl slackwater history GROUP`: the revisions that its workers were started from."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from slackwater.clock import SYSTEM_CLOCK
from slackwater.times import duration
from slackwater_operator.cli.kubectl.cluster import Object, add_group, connected
from slackwater_operator.model import names
from slackwater_operator.model.times import time_ms


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "history",
        help="list the revisions of a group's workers",
        description="Lists the ControllerRevisions of the group's StatefulSets, the latest first.",
    )
    add_group(parser)
    parser.set_defaults(run_async=show)


async def show(args: argparse.Namespace) -> int:
    """Prints the revisions. Returns the exit code.

    Raises:
        CommandError: no such group, no API server, no right.
    """
    async with connected(args) as cluster:
        group = await cluster.group(args.group)
        revisions = await cluster.of_group("apps/v1", "ControllerRevision", args.group)
        pods = await cluster.of_group("v1", "Pod", args.group)
    running: dict[str, int] = {}
    for pod in pods:
        name = (pod["metadata"].get("labels") or {}).get("controller-revision-hash", "")
        running[name] = running.get(name, 0) + 1
    table = Table(box=None, pad_edge=False, header_style="")
    for column in ("REVISION", "CREATED", "PODS", "IMAGE", "STATE"):
        table.add_column(column, no_wrap=True)
    for row in rows(revisions, group.get("status") or {}, running, SYSTEM_CLOCK.wall_ms()):
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 500
    console.print(table)
    return 0


def rows(
    revisions: list[Object], status: Mapping[str, Any], running: Mapping[str, int], now_ms: int
) -> list[tuple[str, str, str, str, str]]:
    """The table's rows, the latest revision first.

    Args:
        revisions: the ControllerRevisions.
        status: the group's.
        running: how many pods there are of each.
        now_ms: wall clock.
    """
    rollout = status.get("rollout") or {}
    failed = (rollout.get("failed") or {}).get("hash")
    result = []
    latest_first = sorted(revisions, key=lambda each: (_created(each), each.get("revision", 0)), reverse=True)
    for revision in latest_first:
        name = str(revision["metadata"]["name"])
        template = (((revision.get("data") or {}).get("spec") or {}).get("template")) or {}
        hash_ = ((template.get("metadata") or {}).get("labels") or {}).get(names.REVISION_LABEL, "")
        states = [
            state
            for state, holds in (
                ("wanted", name == rollout.get("target")),
                ("good", name == rollout.get("good")),
                ("failed", bool(failed) and hash_ == failed),
            )
            if holds
        ]
        created = f"{duration(max(0, now_ms - _created(revision)))} ago"
        result.append((name, created, str(running.get(name, 0)), _image(template), ", ".join(states)))
    return result


def _created(revision: Object) -> int:
    return time_ms(revision["metadata"].get("creationTimestamp")) or 0


def _image(template: Mapping[str, Any]) -> str:
    containers = (template.get("spec") or {}).get("containers") or []
    return next((str(each.get("image", "")) for each in containers if each["name"] == names.CONTAINER), "")
