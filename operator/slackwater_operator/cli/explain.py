"""`slackwater explain GROUP` and `kubectl slackwater explain GROUP`.

Reads the ConsumerGroup and prints what `policies/explanations.py` makes of its spec and status. Needs the
right to get ConsumerGroups, and nothing of the operator: it may be gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.cli.kubectl.cluster import Object, add_group, connected
from slackwater_operator.policies.explanations import explain

CLEAR = "\x1b[H\x1b[2J"


def register(subparsers: Any) -> None:
    """Adds the subcommand to `slackwater` or `kubectl slackwater`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explain",
        help="explain the state of a ConsumerGroup on Kubernetes",
        description="Shows a ConsumerGroup's state, its last decisions with their reasons, and what would "
        "change them.",
    )
    add_group(parser)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="output format")
    parser.add_argument("-w", "--watch", action="store_true", help="show the state again whenever it changes")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the explanation. Returns the exit code.

    Raises:
        CommandError: no such group, no API server, no right.
        KubeConfigError: no usable kubeconfig.
    """
    return asyncio.run(_show(args))


async def _show(args: argparse.Namespace) -> int:
    async with connected(args) as cluster:
        resource = await cluster.group(args.group)
        print(_rendered(resource, args.output), flush=True)
        while args.watch:
            resource = await cluster.changed(resource)
            if args.output == "text" and sys.stdout.isatty():
                print(CLEAR, end="")
            print(_rendered(resource, args.output), flush=True)
    return 0


def _rendered(resource: Object, output: str) -> str:
    explanation = explain(resource, SYSTEM_CLOCK.wall_ms())
    if output == "json":
        return json.dumps(asdict(explanation), indent=None if not sys.stdout.isatty() else 2)
    return "\n".join(explanation.lines())
