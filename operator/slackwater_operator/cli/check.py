"""`slackwater-operator check`: what `helm test` runs.

Asks the API server for the operator's pods, each of them for `/readyz`, and the API server for groups.
Prints a line for each and ends with 1 when one of them is bad. It doesn't wait: `helm install --wait` has.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from slackwater.commands.arguments import whole_number
from slackwater.kafka.untrusted import one_line
from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeConfigError, KubeError
from slackwater_operator.workers.bounded_http import BadAnswer, bounded_session, request

REQUEST_TIMEOUT_S = 10.0
PORT_NAME = "http"
_MOST_BYTES = 64 * 1024
"""Of the answer to GET /readyz."""


@dataclass(frozen=True)
class Result:
    """The result of one check: whether it passed, and details."""

    well: bool
    text: str


@dataclass(frozen=True)
class Wanted:
    """What has to be there.

    Attributes:
        namespace: of the operator's pods.
        selector: their labels.
        expect: how many are ready at least.
        namespaces: where ConsumerGroups are looked for; empty: everywhere.
    """

    namespace: str
    selector: str
    expect: int
    namespaces: Sequence[str]


def register(subparsers: Any) -> None:
    """Adds the subcommand to `slackwater-operator`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "check",
        help="check whether an installed operator is ready",
        description="Checks that the operator is ready and that the API server knows its resource.",
    )
    parser.add_argument("--selector", required=True, help="label selector of the operator's pods")
    parser.add_argument(
        "--expect",
        type=whole_number(),
        default=1,
        metavar="N",
        help="the number of pods that must be ready (default: 1)",
    )
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NS",
        help="a namespace to list ConsumerGroups in (repeatable; default: all)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code: 0 where all is well, 1 where something isn't or cannot be asked, 2 for a wrong
    kubeconfig."""
    wanted = Wanted(os.environ.get("POD_NAMESPACE", "default"), args.selector, args.expect, args.namespace)
    return asyncio.run(_print(wanted))


async def _print(wanted: Wanted) -> int:
    try:
        kube = await Kube.connect(request_timeout_s=REQUEST_TIMEOUT_S)
    except KubeConfigError as error:
        print(f"slackwater-operator check: error: {error}", file=sys.stderr)
        return error.exit_code
    try:
        results = [result async for result in check(kube, wanted)]
    finally:
        await kube.close()
    for result in results:
        print(f"{'ok    ' if result.well else 'failed'}  {result.text}")
    sys.stdout.flush()
    return 0 if all(result.well for result in results) else 1


async def check(kube: Kube, wanted: Wanted) -> AsyncIterator[Result]:
    """Runs all checks in turn; an error in a check is its result."""
    try:
        pods = await kube.list("v1", "Pod", wanted.namespace, wanted.selector)
    except KubeError as error:
        yield Result(False, f"the operator's pods cannot be listed: {error}")
        return
    answers = [await _ready(pod) for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    for answer in answers:
        yield answer
    ready = sum(answer.well for answer in answers)
    yield Result(ready >= wanted.expect, f"{ready} of {wanted.expect} operators are ready")
    everywhere: Sequence[str | None] = [None]
    for namespace in wanted.namespaces or everywhere:
        yield await _served(kube, namespace)


async def _ready(pod: dict[str, Any]) -> Result:
    name, address = pod["metadata"]["name"], pod.get("status", {}).get("podIP", "")
    if not address:
        return Result(
            False, f"pod {name} has no address yet ({pod.get('status', {}).get('phase', 'no status')})"
        )
    shown = f"[{address}]" if ":" in address else address
    url = f"http://{shown}:{_port(pod)}/readyz"
    try:
        async with bounded_session(REQUEST_TIMEOUT_S) as session:
            answer = await request(session, "GET", url, most_bytes=_MOST_BYTES)
            said = one_line(answer.body.decode(errors="replace").strip(), 200)
            return Result(answer.status == 200, f"pod {name}: {url} returned {answer.status} {said}".rstrip())
    except (BadAnswer, aiohttp.ClientError, TimeoutError, OSError) as error:
        return Result(False, f"pod {name}: {url} does not respond: {error or type(error).__name__}")


def _port(pod: dict[str, Any]) -> int:
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
    return int(next((port["containerPort"] for port in ports if port.get("name") == PORT_NAME), 8080))


async def _served(kube: Kube, namespace: str | None) -> Result:
    where = f"in {namespace}" if namespace else "in all namespaces"
    try:
        groups = await kube.list(API_VERSION, KIND, namespace)
    except KubeError as error:
        return Result(False, f"{KIND}s {where} cannot be listed: {error}")
    return Result(True, f"the API server has {len(groups)} {KIND}s {where}")
