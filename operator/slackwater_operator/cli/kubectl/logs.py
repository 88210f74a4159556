"""`kubectl slackwater logs GROUP`: the logs of all workers, by `kubectl logs`."""

from __future__ import annotations

import argparse
import os
import shutil
from typing import Any

from slackwater_operator.cli.kubectl.cluster import CommandError, add_group, connected
from slackwater_operator.model import names

_MOST_AT_ONCE = 100


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "logs",
        help="print the logs of a group's workers",
        description="Runs kubectl logs for the group's workers; each line begins with its pod's name.",
    )
    add_group(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on as lines come")
    parser.add_argument("--since", default="", metavar="TIME", help="of the last TIME only, such as 10m")
    parser.add_argument("--tail", default="100", metavar="N", help="of each pod the last N lines (100)")
    parser.set_defaults(run_async=show)


async def show(args: argparse.Namespace) -> int:
    """Becomes kubectl.

    Raises:
        CommandError: no such group, or no kubectl.
    """
    async with connected(args) as cluster:
        await cluster.group(args.group)
        namespace = cluster.namespace
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise CommandError("kubectl is not on the PATH")
    os.execv(kubectl, command(args, kubectl, namespace))


def command(args: argparse.Namespace, kubectl: str, namespace: str) -> list[str]:
    """The command line of kubectl."""
    line = [kubectl, "logs", "--namespace", namespace, "--selector", names.selector_text(args.group)]
    line += ["--container", names.CONTAINER, "--prefix", "--tail", args.tail]
    line += ["--max-log-requests", str(_MOST_AT_ONCE)]
    if args.context:
        line += ["--context", args.context]
    if args.follow:
        line.append("--follow")
    if args.since:
        line += ["--since", args.since]
    return line
