"""`kubectl slackwater status GROUP`: the group, its StatefulSets, pods, members and partitions as a tree."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka.structs import TopicPartition
from slackwater.times import age, ago
from slackwater_operator.api.times import time_ms
from slackwater_operator.api.v1alpha1.status.group_status import parse_status
from slackwater_operator.api.v1alpha1.status.maintenance import TableStatus
from slackwater_operator.cli.kubectl.cluster import (
    POLL_EVERY_S,
    Cluster,
    CommandError,
    Object,
    add_group,
    connected,
)
from slackwater_operator.kubernetes.errors import KubeUnavailable
from slackwater_operator.model import names
from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.policies.conditions import WELL
from slackwater_operator.policies.explanations import terms_by_spec, unconfirmed

_PLAIN_WIDTH = 10_000
"""Lines for other programs are not wrapped."""
_WELL, _BAD, _BUSY, _DIM = "green", "red", "yellow", "dim"


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "status",
        help="show a group, its pods, members, partitions and lag",
        description="Shows a ConsumerGroup, its StatefulSets, their pods, and of each pod its membership, "
        "partitions and lag, which the API server asks the pods for (the right to get pods/proxy).",
    )
    add_group(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="show it anew every second")
    parser.set_defaults(run_async=show)


async def show(args: argparse.Namespace) -> int:
    """Prints the tree. Returns the exit code.

    Raises:
        CommandError: no such group, no API server, no right.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    async with connected(args) as cluster:
        shown = tree(await observe(cluster, args.group), SYSTEM_CLOCK.wall_ms())
        if not args.watch:
            console.print(shown)
            return 0
        with Live(shown, console=console, auto_refresh=False) as live:
            while True:
                live.refresh()
                await asyncio.sleep(POLL_EVERY_S)
                try:
                    live.update(tree(await observe(cluster, args.group), SYSTEM_CLOCK.wall_ms()))
                except CommandError as error:
                    if not isinstance(error.__cause__, KubeUnavailable):
                        raise


@dataclass(frozen=True)
class Observed:
    """A group as the API server and its pods show it.

    Attributes:
        resource: the ConsumerGroup.
        sets: its StatefulSets.
        pods: its workers' pods.
        reports: what the workers report, by pod, or why it is not known.
    """

    resource: Object
    sets: list[Object]
    pods: list[Object]
    reports: Mapping[str, WorkerStatus | str]


async def observe(cluster: Cluster, name: str) -> Observed:
    """Looks at the group."""
    resource = await cluster.group(name)
    sets, pods = await asyncio.gather(
        cluster.of_group("apps/v1", "StatefulSet", name), cluster.of_group("v1", "Pod", name)
    )
    return Observed(resource, sets, pods, await cluster.reports(pods))


def tree(observed: Observed, now_ms: int) -> Tree:
    """The group as a tree. `now_ms`: wall clock."""
    metadata, status = observed.resource["metadata"], observed.resource.get("status") or {}
    term = terms_by_spec(observed.resource).generation
    root = Tree(
        _line(
            f"ConsumerGroup {metadata['namespace']}/{metadata['name']}",
            _figures(status, observed.reports, term, now_ms),
        )
    )
    if old := unconfirmed(status, now_ms):
        root.add(Text(old, _BAD))
    for condition in status.get("conditions", ()):
        going_on = condition["type"] == "Reconciling" and condition["status"] == "True"
        if condition["type"] == "Stalled":
            continue  # Degraded has its message
        if condition["type"] == "Ready" or going_on or _is_trouble(condition):
            root.add(_condition(condition, now_ms))
    for table in parse_status(status).maintenance:
        root.add(_maintenance(table, now_ms))
    for stateful_set in sorted(observed.sets, key=lambda each: str(each["metadata"]["name"])):
        branch = root.add(_set_line(stateful_set, status))
        uid = stateful_set["metadata"]["uid"]
        pods = [pod for pod in observed.pods if _owner(pod) == uid]
        for pod in sorted(pods, key=lambda pod: _ordinal(metadata["name"], pod)):
            _add_pod(branch, pod, observed.reports.get(pod["metadata"]["name"], ""), term, now_ms)
    if not observed.pods:
        root.add(Text("no pods", _DIM))
    return root


def _figures(
    status: Mapping[str, Any], reports: Mapping[str, WorkerStatus | str], term: str, now_ms: int
) -> str:
    parts = [
        f"{status.get('readyReplicas', 0)} of {status.get('desiredReplicas', '?')} workers ready",
        _lag(status, reports, now_ms),
        f"{term} {status.get('generation', '?')}",
        f"revision {status.get('revision', '?')}",
    ]
    return ", ".join(parts)


def _lag(status: Mapping[str, Any], reports: Mapping[str, WorkerStatus | str], now_ms: int) -> str:
    """The group's lag as its members report it now, as the lines of their partitions have it; without all of
    them, what the operator saw, and when."""
    members = [report for report in reports.values() if isinstance(report, WorkerStatus) and report.is_member]
    lags = [report.lag.get(partition) for report in members for partition in report.assignment]
    known = [lag for lag in lags if lag is not None]
    if known and len(known) == len(lags) and len(members) == status.get("members"):
        return f"lag {sum(known):,}"
    lag, when = status.get("lag"), ago(time_ms(status.get("lastConfirmedTime")), now_ms)
    if not isinstance(lag, int):
        return "lag not known"
    return f"lag about {lag:,}{f' ({when})' if when else ''}"


def _is_trouble(condition: Mapping[str, Any]) -> bool:
    well = WELL.get(condition["type"], condition["status"])
    return condition["status"] not in (well, "Unknown")


def _condition(condition: Mapping[str, Any], now_ms: int) -> Text:
    since_ms = time_ms(condition.get("lastTransitionTime"))
    since = f" for {age(since_ms, now_ms)}" if since_ms is not None else ""
    good = WELL.get(condition["type"]) == condition["status"]
    style = _BAD if _is_trouble(condition) else _WELL if good else _BUSY
    head = f"{condition['type']}={condition['status']}{since}: "
    return Text(head, style) + Text(str(condition["message"]), "default")


def _maintenance(table: TableStatus, now_ms: int) -> Text:
    parts = []
    if table.running:
        parts.append(f"running for {age(table.started_ms, now_ms)}")
    if table.succeeded_ms:
        parts.append(
            f"{table.compacted} files became {table.written} {ago(table.succeeded_ms, now_ms)}"
            if table.compacted
            else f"nothing to compact {ago(table.succeeded_ms, now_ms)}"
        )
    if table.failures:
        parts.append(f"{table.failures} failed since: {table.message}")
    if not table.running:
        parts.append(f"next in {age(now_ms, table.next_ms)}")
    return _line(f"Maintenance {table.table}", ", ".join(parts), _BAD if table.failures else "default")


def _set_line(stateful_set: Object, group_status: Mapping[str, Any]) -> Text:
    status = stateful_set.get("status") or {}
    revision = str(status.get("updateRevision") or "")
    target = (group_status.get("rollout") or {}).get("target")
    parts = [
        f"{status.get('readyReplicas', 0)} of {stateful_set['spec'].get('replicas', 1)} pods ready",
        f"{status.get('updatedReplicas', 0)} of {revision or 'an unknown revision'}",
    ]
    if target and target != revision:
        parts.append(f"wanted: {target}")
    return _line(f"StatefulSet {stateful_set['metadata']['name']}", ", ".join(parts))


def _add_pod(branch: Tree, pod: Object, report: WorkerStatus | str, term: str, now_ms: int) -> None:
    metadata, status = pod["metadata"], pod.get("status") or {}
    started_ms = time_ms(status.get("startTime"))
    restarts = sum(each.get("restartCount", 0) for each in status.get("containerStatuses") or ())
    phase = "Terminating" if metadata.get("deletionTimestamp") else str(status.get("phase", "Pending"))
    parts = [phase, f"on {pod['spec'].get('nodeName') or 'no node yet'}"]
    if restarts:
        parts.append(f"{restarts} restarts")
    if started_ms is not None:
        parts.append(f"started {ago(started_ms, now_ms)}")
    line = _line(f"Pod {metadata['name']}", ", ".join(parts), _WELL if phase == "Running" else _BUSY)
    node = branch.add(line)
    if isinstance(report, str):
        if report:
            node.add(Text(report, _BUSY))
        return
    node.add(_member(report, term))
    for topic, partitions in groupby(sorted(report.assignment), key=lambda tp: tp.topic):
        node.add(_partitions(topic, list(partitions), report.lag))
    for stopped in report.stopped:
        node.add(Text(f"{stopped.reason}: {stopped.message}", _BAD))
    if report.error:
        node.add(Text(report.error, _BAD))


def _member(report: WorkerStatus, term: str) -> Text:
    if report.standby is not None:
        return Text(f"standby, reads ahead in {report.standby.prefetched_partitions} partitions", _DIM)
    if not report.is_member:
        return Text(f"{report.phase}, not in the group", _BUSY)
    leader = ", leads the group" if report.is_leader else ""
    text = f"{report.phase}, member of {term} {report.generation}{leader}"
    return Text(text, _WELL if report.running else _BUSY)


def _partitions(topic: str, partitions: list[TopicPartition], lag: Mapping[TopicPartition, int]) -> Text:
    known = [lag[tp] for tp in partitions if tp in lag]
    text = f"{topic} {ranges(tp.partition for tp in partitions)}"
    if not known:
        return Text(f"{text}: lag not known", _DIM)
    return Text(f"{text}: lag {sum(known):,}")


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in short: `0-3, 7`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _owner(pod: Object) -> str:
    references = pod["metadata"].get("ownerReferences") or [{}]
    return str(references[0].get("uid", ""))


def _ordinal(group: str, pod: Object) -> tuple[int, str]:
    name = str(pod["metadata"]["name"])
    ordinal = names.ordinal_of(group, name)
    return (-1 if ordinal is None else ordinal, name)


def _line(what: str, details: str, style: str = "default") -> Text:
    return Text(what, "bold") + Text(f"  {details}", style)
