"""`kubectl slackwater logs GROUP`: the logs of all workers, by `kubectl logs`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from slackwater_operator.cli.kubectl.cluster import CommandError, add_group, connected
from slackwater_operator.model import names

_MOST_AT_ONCE = 100
_POD_LABEL = "statefulset.kubernetes.io/pod-name"


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
    parser.add_argument(
        "--tail", metavar="N", help="of each pod the last N lines (default: 100; with --event, all)"
    )
    parser.add_argument("--pod", action="append", default=[], metavar="POD", help="of this pod (repeatable)")
    parser.add_argument(
        "--event",
        action="append",
        default=[],
        metavar="NAME",
        help="only the worker's events of this name, such as error, joined or committed (repeatable)",
    )
    parser.add_argument(
        "-p", "--previous", action="store_true", help="of the process before, such as one that failed"
    )
    parser.set_defaults(run_async=show)


async def show(args: argparse.Namespace) -> int:
    """Becomes kubectl, or prints what is asked for of its output. Returns the exit code.

    Raises:
        CommandError: no such group, or no kubectl.
    """
    async with connected(args) as cluster:
        await cluster.group(args.group)
        namespace = cluster.namespace
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise CommandError("kubectl is not on the PATH")
    line = command(args, kubectl, namespace)
    if not args.event:
        os.execv(kubectl, line)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for text in of_events(process.stdout, args.event):
            sys.stdout.write(text)
            sys.stdout.flush()
    return process.returncode


def of_events(lines: Iterable[str], names_: Sequence[str]) -> Iterator[str]:
    """The lines that are events of one of these names; each has a prefix, `[pod/NAME/worker] `."""
    for line in lines:
        try:
            event = json.loads(line.partition("] ")[2])
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") in names_:
            yield line


def command(args: argparse.Namespace, kubectl: str, namespace: str) -> list[str]:
    """The command line of kubectl."""
    selector = names.selector_text(args.group)
    if args.pod:
        selector += f",{_POD_LABEL} in ({','.join(args.pod)})"
    line = [kubectl, "logs", "--namespace", namespace, "--selector", selector]
    tail = args.tail or ("-1" if args.event else "100")
    line += ["--container", names.CONTAINER, "--prefix", "--tail", tail]
    line += ["--max-log-requests", str(_MOST_AT_ONCE)]
    if args.context:
        line += ["--context", args.context]
    if args.follow:
        line.append("--follow")
    if args.since:
        line += ["--since", args.since]
    if args.previous:
        line.append("--previous")
    return line
