"""`slackwater explain GROUP`, and `kubectl slackwater explain GROUP` by the script `kubectl-slackwater`.

Reads the ConsumerGroup and prints what `policies/explanations.py` makes of its spec and status. Needs the
right to get ConsumerGroups, and nothing of the operator: it may be gone.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeConfigError, KubeError, KubeForbidden, KubeUnavailable
from slackwater_operator.policies.explanations import explain

REQUEST_TIMEOUT_S = 10.0
POLL_EVERY_S = 1.0
CLEAR = "\x1b[H\x1b[2J"
Object = dict[str, Any]


class ExplainError(Exception):
    """An error for the user, one line: what is wrong and what to do."""


def register(subparsers: Any) -> None:
    """Adds the subcommand to `slackwater`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explain",
        help="explain the state of a ConsumerGroup on Kubernetes",
        description="Shows a ConsumerGroup's state, its last decisions with their reasons, and what would "
        "change them.",
    )
    _arguments(parser)
    parser.set_defaults(run=run)


def kubectl(arguments: Sequence[str] | None = None) -> int:
    """The kubectl plugin: `kubectl slackwater explain GROUP` runs `kubectl-slackwater explain GROUP`."""
    parser = _Parser(prog="kubectl slackwater", description="Slackwater's consumer groups on Kubernetes.")
    register(parser.add_subparsers(dest="command", metavar="COMMAND", required=True))
    args = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    try:
        return run(args)
    except KeyboardInterrupt:
        return 130
    except (ExplainError, KubeError) as error:
        print(f"kubectl slackwater: error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))


def run(args: argparse.Namespace) -> int:
    """Prints the explanation. Returns the exit code.

    Raises:
        ExplainError: no such group, no API server, no right.
        KubeConfigError: no usable kubeconfig.
    """
    try:
        return asyncio.run(_show(args))
    except BrokenPipeError:  # | head
        sys.stderr.close()
        return 0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", help="name of the ConsumerGroup")
    parser.add_argument(
        "-n", "--namespace", default="", metavar="NS", help="default: the namespace of the context"
    )
    parser.add_argument("--context", default="", metavar="NAME", help="kubeconfig context")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="output format")
    parser.add_argument("-w", "--watch", action="store_true", help="show the state again whenever it changes")


async def _show(args: argparse.Namespace) -> int:
    kube = await Kube.connect(request_timeout_s=REQUEST_TIMEOUT_S, context=args.context)
    namespace = args.namespace or kube.access.namespace
    try:
        resource = await _get(kube, namespace, args.group)
        print(_rendered(resource, args.output), flush=True)
        while args.watch:
            resource = await _changed(kube, namespace, args.group, resource)
            if args.output == "text" and sys.stdout.isatty():
                print(CLEAR, end="")
            print(_rendered(resource, args.output), flush=True)
    finally:
        await kube.close()
    return 0


def _rendered(resource: Object, output: str) -> str:
    explanation = explain(resource, SYSTEM_CLOCK.wall_ms())
    if output == "json":
        return json.dumps(asdict(explanation), indent=None if not sys.stdout.isatty() else 2)
    return "\n".join(explanation.lines())


async def _changed(kube: Kube, namespace: str, name: str, last: Object) -> Object:
    """The group when it is another than `last`. An API server that is away for a moment is waited for."""
    while True:
        await asyncio.sleep(POLL_EVERY_S)
        try:
            resource = await kube.get(API_VERSION, KIND, namespace, name)
        except KubeUnavailable:
            continue
        if resource is None:
            raise ExplainError(f"{KIND} {namespace}/{name} was deleted")
        if resource["metadata"]["resourceVersion"] != last["metadata"]["resourceVersion"]:
            return resource


async def _get(kube: Kube, namespace: str, name: str) -> Object:
    try:
        resource = await kube.get(API_VERSION, KIND, namespace, name)
        if resource is not None:
            return resource
        raise ExplainError(await _missing(kube, namespace, name))
    except KubeUnavailable as error:
        raise ExplainError(f"{error.message}; check the context") from error
    except KubeForbidden as error:
        raise ExplainError(error.message) from error


async def _missing(kube: Kube, namespace: str, name: str) -> str:
    """Why the group does not exist, and similar names."""
    if not await kube.served(API_VERSION, KIND):
        return f"{kube.access.server} does not know {KIND}; install Slackwater there, or use another context"
    problem = f"there is no {KIND} {name} in namespace {namespace}"
    try:
        here = [str(group["metadata"]["name"]) for group in await _names(kube, namespace)]
    except KubeForbidden:
        return problem
    near = difflib.get_close_matches(name, here, n=1, cutoff=0.5)
    if near:
        return f"{problem}; did you mean {near[0]}?"
    elsewhere = await _elsewhere(kube, name)
    if elsewhere:
        return f"{problem}; it exists in {', '.join(elsewhere)} (-n {elsewhere[0]})"
    return f"{problem}; it contains {', '.join(here[:10])}" if here else f"{problem}; it contains none"


async def _elsewhere(kube: Kube, name: str) -> list[str]:
    try:
        groups = await _names(kube, None)
    except KubeForbidden:
        return []
    return [str(group["metadata"]["namespace"]) for group in groups if group["metadata"]["name"] == name][:5]


async def _names(kube: Kube, namespace: str | None) -> list[Object]:
    return await kube.list(API_VERSION, KIND, namespace, metadata_only=True)


__all__ = ["ExplainError", "KubeConfigError", "kubectl", "register", "run"]
