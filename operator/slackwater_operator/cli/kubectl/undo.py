"""`kubectl slackwater undo GROUP`: goes back to the spec of an earlier revision."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from slackwater_operator.cli.kubectl.actions import now_text
from slackwater_operator.cli.kubectl.cluster import Cluster, CommandError, Object, add_group, connected
from slackwater_operator.model import names
from slackwater_operator.specs.revision_record import KEY, revision_source


@dataclass(frozen=True)
class KeptRevision:
    """A revision whose spec the operator has kept.

    Attributes:
        number: its number; a later one has a larger number.
        name: its name, as in `status.revision`.
        created: its ConfigMap's creationTimestamp.
        source: what it was made from (`revision_source`).
    """

    number: int
    name: str
    created: str
    source: Mapping[str, Any]


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "undo",
        help="go back to an earlier revision's spec",
        description="Sets the part of the spec that workers are started from (not replicas, scaling and the "
        "like) as it was in an earlier revision. Workers are rolled as after any other change.",
    )
    add_group(parser)
    parser.add_argument(
        "--to-revision",
        default="",
        metavar="REVISION",
        help="number or name in kubectl slackwater history (default: the one before)",
    )
    parser.set_defaults(run_async=run)


async def run(args: argparse.Namespace) -> int:
    """Changes the spec. Returns the exit code.

    Raises:
        CommandError: no such group or revision.
        KubeError: the API server refuses it.
    """
    async with connected(args) as cluster:
        group = await cluster.group(args.group)
        target = chosen(await kept(cluster, args.group), group, args.to_revision)
        body = patch(group, target)
        if not body:
            raise CommandError(f"the spec is that of revision {target.number} ({target.name}) already")
        await cluster.kube.patch(API_VERSION, KIND, cluster.namespace, args.group, body)
    print(f"consumergroup.slackwater.dev/{args.group} goes back to revision {target.number} ({target.name})")
    return 0


async def kept(cluster: Cluster, group: str) -> list[KeptRevision]:
    """The revisions of a group that the operator has kept, the latest first."""
    result = []
    for record in await cluster.of_group("v1", "ConfigMap", group):
        metadata = record["metadata"]
        name = (metadata.get("labels") or {}).get(names.REVISION_LABEL)
        number = str((metadata.get("annotations") or {}).get(names.REVISION_NUMBER, ""))
        if not name or not number.isdigit():
            continue
        try:
            source = json.loads((record.get("data") or {})[KEY])
        except (KeyError, ValueError):
            continue
        created = str(metadata.get("creationTimestamp", ""))
        result.append(KeptRevision(int(number), str(name), created, source))
    return sorted(result, key=lambda each: each.number, reverse=True)


def chosen(revisions: Sequence[KeptRevision], group: Object, wanted: str) -> KeptRevision:
    """The revision of that number or name; without one, the latest that is neither present nor failed.

    Raises:
        CommandError: there is none.
    """
    if wanted:
        named = [each for each in revisions if wanted in (str(each.number), each.name)]
        if named:
            return named[0]
        known = ", ".join(str(each.number) for each in revisions) or "none"
        raise CommandError(f"revision {wanted} is not kept; kept: {known}")
    status = group.get("status") or {}
    rollout = status.get("rollout") or {}
    failed = (rollout.get("failed") or {}).get("hash")
    present = revision_source(group)
    for each in revisions:
        if each.name not in (rollout.get("wanted"), failed) and each.source != present:
            return each
    raise CommandError("there is no earlier revision")


def patch(group: Object, target: KeptRevision) -> dict[str, Any]:
    """The merge patch that gives the group the revision's spec; empty if it has that already."""
    present = revision_source(group)
    spec = merge_patch(present["spec"], target.source["spec"])
    restarted = target.source.get("restartedAt")
    if not spec and restarted == present["restartedAt"]:
        return {}
    annotations = {names.RESTARTED_AT: restarted}
    if (group["metadata"].get("annotations") or {}).get(names.ABORT) == target.name:
        annotations[names.ABORT] = None
    failed = (((group.get("status") or {}).get("rollout") or {}).get("failed") or {}).get("hash")
    if failed == target.name:
        annotations[names.RETRY] = now_text()
    return {"metadata": {"annotations": annotations}, "spec": spec}


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch (RFC 7386) that makes `after` of `before`."""
    result: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            inner = merge_patch(old, value)
            if inner:
                result[name] = inner
        elif name not in before or old != value:
            result[name] = value
    return result
