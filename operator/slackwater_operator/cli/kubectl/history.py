"""`kubectl slackwater history GROUP`: the revisions that its workers were started from."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from slackwater.clock import SYSTEM_CLOCK
from slackwater.times import ago
from slackwater_operator.api.times import time_ms
from slackwater_operator.cli.kubectl.cluster import Object, add_group, connected
from slackwater_operator.cli.kubectl.undo import KeptRevision, kept
from slackwater_operator.model import names
from slackwater_operator.specs.statefulset import template_hash


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "history",
        help="list the revisions of a group's workers",
        description="Lists the revisions of the group's workers, the latest first. "
        "kubectl slackwater undo can go back to those with a number.",
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
        made = await cluster.of_group("apps/v1", "ControllerRevision", args.group)
        records = await kept(cluster, args.group)
        pods = await cluster.of_group("v1", "Pod", args.group)
    running = Counter(
        str((pod["metadata"].get("labels") or {}).get(names.REVISION_LABEL, "")) for pod in pods
    )
    table = Table(box=None, pad_edge=False, header_style="")
    for column in ("NUMBER", "REVISION", "CREATED", "PODS", "IMAGE", "STATE"):
        table.add_column(column, no_wrap=True)
    for row in rows(made, records, group.get("status") or {}, running, SYSTEM_CLOCK.wall_ms()):
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 500
    console.print(table)
    return 0


def rows(
    made: Sequence[Object],
    records: Sequence[KeptRevision],
    status: Mapping[str, Any],
    running: Mapping[str, int],
    now_ms: int,
) -> list[tuple[str, str, str, str, str, str]]:
    """The table's rows, the latest revision first.

    Args:
        made: the StatefulSets' ControllerRevisions; those of a former StatefulSet are gone.
        records: the revisions whose spec is kept.
        status: the group's.
        running: how many pods there are of each revision.
        now_ms: wall clock.
    """
    rollout = status.get("rollout") or {}
    templates, created, good = {}, {}, str(rollout.get("goodRevision") or "")
    for revision in made:
        template = (((revision.get("data") or {}).get("spec") or {}).get("template")) or {}
        name = template_hash(template)
        templates[name] = template
        created[name] = time_ms(revision["metadata"].get("creationTimestamp")) or 0
        if not good and revision["metadata"]["name"] == rollout.get("good"):
            good = name
    for record in records:
        created.setdefault(record.name, time_ms(record.created) or 0)
    numbers = {record.name: record.number for record in records}
    images = {record.name: (record.source["spec"].get("pipeline") or {}).get("image") for record in records}
    states = {
        "wanted": rollout.get("wanted") or status.get("revision"),
        "good": good,
        "failed": (rollout.get("failed") or {}).get("hash"),
    }
    return [
        (
            str(numbers.get(name, "")),
            name,
            ago(created[name], now_ms),
            str(running.get(name, 0)),
            _image(templates.get(name, {})) or str(images.get(name) or ""),
            ", ".join(state for state, of in states.items() if of == name),
        )
        for name in sorted(created, key=lambda each: (numbers.get(each, 0), created[each]), reverse=True)
    ]


def _image(template: Mapping[str, Any]) -> str:
    containers = (template.get("spec") or {}).get("containers") or []
    return next((str(each.get("image", "")) for each in containers if each["name"] == names.CONTAINER), "")
