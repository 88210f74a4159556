"""The ConsumerGroups of a kubeconfig's context, for commands: one group, its pods, its workers' reports."""

from __future__ import annotations

import argparse
import asyncio
import difflib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from slackwater.kafka.untrusted import one_line
from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeError, KubeForbidden, KubeUnavailable
from slackwater_operator.model import names
from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.workers.client import parse_status

MANAGER = "kubectl-slackwater"
"""The field manager of what the commands write: not the operator's, which gives up fields of a spec."""
REQUEST_TIMEOUT_S = 10.0
POLL_EVERY_S = 1.0
_MOST_PLACES = 5
"""An error names at most so many other namespaces."""
Object = dict[str, Any]


class CommandError(Exception):
    """An error for the user, one line: what is wrong and what to do."""

    exit_code = 1


class NoSuchGroupError(CommandError):
    """A name or a namespace that has no ConsumerGroup."""

    exit_code = 2


def add_group(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name a group: GROUP, `--namespace`, `--context`."""
    parser.add_argument("group", metavar="GROUP", help="name of the ConsumerGroup")
    add_cluster(parser)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name a cluster: `--namespace`, `--context`."""
    parser.add_argument(
        "-n",
        "--namespace",
        default="",
        metavar="NS",
        help="namespace of the ConsumerGroup (default: the context's)",
    )
    parser.add_argument(
        "--context", default="", metavar="NAME", help="kubeconfig context (default: the current one)"
    )


class Cluster:
    """An API server and a namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        """Asks nothing yet.

        Args:
            kube: the API server.
            namespace: where the groups are.
        """
        self.kube = kube
        self.namespace = namespace

    async def group(self, name: str) -> Object:
        """The ConsumerGroup.

        Raises:
            CommandError: there is none, the API server does not answer, or does not permit it.
        """
        try:
            resource = await self.kube.get(API_VERSION, KIND, self.namespace, name)
            if resource is not None:
                return resource
            raise NoSuchGroupError(await self._missing(name))
        except KubeUnavailable as error:
            raise CommandError(f"{error.message}; check the context") from error
        except KubeForbidden as error:
            raise CommandError(error.message) from error

    async def changed(self, last: Object) -> Object:
        """The group when it is another than `last`. An API server that is away for a moment is waited for.

        Raises:
            CommandError: it was deleted.
        """
        name = last["metadata"]["name"]
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            try:
                resource = await self.kube.get(API_VERSION, KIND, self.namespace, name)
            except KubeUnavailable:
                continue
            if resource is None:
                raise CommandError(f"{KIND} {self.namespace}/{name} was deleted")
            if resource["metadata"]["resourceVersion"] != last["metadata"]["resourceVersion"]:
                return resource

    async def names(self, namespace: str | None) -> list[Object]:
        """The metadata of the ConsumerGroups; without a namespace, everywhere."""
        return await self.kube.list(API_VERSION, KIND, namespace, metadata_only=True)

    async def of_group(self, api_version: str, kind: str, group: str) -> list[Object]:
        """The objects of a kind that the group's workers are made of, by their labels."""
        return await self.kube.list(api_version, kind, self.namespace, names.selector_text(group))

    async def annotate(self, group: str, **annotations: str | None) -> None:
        """Sets annotations of the domain slackwater.dev; None removes one.

        Raises:
            KubeError: the API server refuses it.
        """
        body = {
            "metadata": {
                "annotations": {f"{names.DOMAIN}/{name}": value for name, value in annotations.items()}
            }
        }
        await self.kube.patch(API_VERSION, KIND, self.namespace, group, body)

    async def reports(self, pods: list[Object]) -> dict[str, WorkerStatus | str]:
        """What the workers in these pods report, by pod; or why it is not known."""
        reports = await asyncio.gather(*(self._report(pod) for pod in pods))
        return {pod["metadata"]["name"]: report for pod, report in zip(pods, reports, strict=True)}

    async def _report(self, pod: Object) -> WorkerStatus | str:
        metadata = pod["metadata"]
        if pod.get("status", {}).get("phase") != "Running":
            return ""
        try:
            document = await self.kube.pod_json(
                metadata["namespace"], metadata["name"], names.health_port(metadata), "/status"
            )
            return parse_status(document)
        except KubeForbidden:
            return "its partitions are not shown: you may not get pods/proxy"
        except (KubeError, ValueError) as error:
            return f"does not answer: {one_line(str(error), 120)}"

    async def _missing(self, name: str) -> str:
        """Why the group does not exist, and similar names."""
        if not await self.kube.served(API_VERSION, KIND):
            server = self.kube.access.server
            return f"{server} does not know {KIND}; install Slackwater there, or use another context"
        problem = f"there is no {KIND} {name} in namespace {self.namespace}"
        try:
            here = [str(group["metadata"]["name"]) for group in await self.names(self.namespace)]
        except KubeForbidden:
            return problem
        near = difflib.get_close_matches(name, here, n=1, cutoff=0.5)
        if near:
            return f"{problem}; did you mean {near[0]}?"
        elsewhere = await self._elsewhere(name)
        if elsewhere:
            return f"{problem}; it exists in {', '.join(elsewhere)} (-n {elsewhere[0]})"
        return f"{problem}; it contains {', '.join(here[:10])}" if here else f"{problem}; it contains none"

    async def _elsewhere(self, name: str) -> list[str]:
        try:
            groups = await self.names(None)
        except KubeForbidden:
            return []
        places = [
            str(group["metadata"]["namespace"]) for group in groups if group["metadata"]["name"] == name
        ]
        return places[:_MOST_PLACES]


@asynccontextmanager
async def connected(args: argparse.Namespace) -> AsyncIterator[Cluster]:
    """The cluster of `add_cluster`'s arguments.

    Raises:
        KubeConfigError: no usable kubeconfig.
    """
    kube = await Kube.connect(request_timeout_s=REQUEST_TIMEOUT_S, context=args.context, manager=MANAGER)
    try:
        yield Cluster(kube, args.namespace or kube.access.namespace)
    finally:
        await kube.close()
