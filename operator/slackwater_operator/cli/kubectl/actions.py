"""`kubectl slackwater restart`, `pause`, `rewind`, `scale` and others: changes of a group.

Each sets an annotation or a field of the ConsumerGroup that kubectl could set, too; the operator acts on it.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater.commands.arguments import whole_number
from slackwater.tools.starts import REWIND_SYNTAX, rewind_start_of
from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from slackwater_operator.cli.kubectl.cluster import Cluster, CommandError, Object, add_group, connected
from slackwater_operator.model import names


@dataclass(frozen=True)
class Action:
    """A command that changes a group.

    Attributes:
        help: what it does, for `--help`.
        run: does it; returns what was done, in words that follow the group's name.
    """

    help: str
    run: Callable[[Cluster, Object, argparse.Namespace], Awaitable[str]]


async def _restart(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    await cluster.annotate(args.group, restartedAt=now_text())
    return "restarts its workers"


async def _pause(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    await cluster.annotate(args.group, paused="true")
    return "pauses its rollout; a restart in progress completes"


async def _resume(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    if (group["spec"].get("rollout") or {}).get("paused"):
        raise CommandError("spec.rollout.paused is true; set it to false in the ConsumerGroup")
    await cluster.annotate(args.group, paused=None)
    return "resumes its rollout"


async def _retry(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    await cluster.annotate(args.group, retry=now_text(), abort=None)
    return "tries its revision again"


async def _maintain(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    if not group["spec"].get("maintenance"):
        raise CommandError("spec.maintenance says of no table how it is maintained; set it")
    await cluster.annotate(args.group, maintain=now_text())
    return f"maintains its tables now; kubectl slackwater status {args.group} shows the result"


async def _promote(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    step, steps = _rollout(group).get("step"), (group["spec"].get("rollout") or {}).get("steps") or []
    index = step.get("index") if isinstance(step, dict) else None
    if not isinstance(index, int) or index >= len(steps):
        raise CommandError("no rollout is at a step of spec.rollout.steps")
    await cluster.annotate(args.group, promote=f"{'all' if args.full else index + 1} {now_text()}")
    if args.full:
        return "goes on to the end of its rollout"
    return f"goes on after step {index + 1} of {len(steps)}"


async def _abort(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    status, good = group.get("status") or {}, _rollout(group).get("goodRevision")
    wanted = _rollout(group).get("wanted")
    if status.get("observedGeneration") != group["metadata"].get("generation"):
        raise CommandError("the operator has not processed the newest spec yet; try again")
    if not good or not wanted:
        raise CommandError("there is no earlier revision to go back to")
    if wanted == good:
        raise CommandError(f"no rollout is in progress: all workers have revision {good}")
    await cluster.annotate(args.group, abort=str(wanted))
    return f"stops the rollout of revision {wanted}, and goes back to {good}"


async def _rewind(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    starts = " ".join(args.starts)
    before = (group["metadata"].get("annotations") or {}).get(names.REWIND)
    # The operator carries out each value once; a word after # makes another value of the same starts.
    value = (
        f"{starts} #{now_text()}" if before is not None and before.partition(" #")[0] == starts else starts
    )
    await cluster.annotate(args.group, rewind=value)
    return f"writes again from {starts}; kubectl slackwater status {args.group} shows how it goes"


async def _suspend(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    await _set_spec(cluster, args.group, {"suspend": True})
    return "stops its workers; its offsets remain"


async def _unsuspend(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    await _set_spec(cluster, args.group, {"suspend": False})
    return "starts its workers"


async def _scale(cluster: Cluster, group: Object, args: argparse.Namespace) -> str:
    scaling = group["spec"].get("scaling") or {}
    targets = [f"spec.scaling.{name}" for name in ("catchUp", "lagPerReplica") if name in scaling]
    if targets:
        raise CommandError(
            f"the operator decides how many workers there are ({', '.join(targets)}); remove that, or change "
            "spec.scaling.minReplicas and maxReplicas"
        )
    await cluster.kube.patch(
        API_VERSION,
        KIND,
        cluster.namespace,
        args.group,
        {"spec": {"replicas": args.replicas}},
        subresource="scale",
    )
    return f"is scaled to {args.replicas} workers"


ACTIONS = {
    "restart": Action("restart all workers, one after another, without a rebalance", _restart),
    "pause": Action("pause a rollout: no further worker is restarted", _pause),
    "resume": Action("go on with a paused rollout", _resume),
    "retry": Action("try a failed revision again", _retry),
    "maintain": Action("maintain the tables of spec.maintenance now, not when they are due", _maintain),
    "promote": Action("go on after the present step of a rollout", _promote),
    "abort": Action("stop a rollout, and go back to the revision before", _abort),
    "rewind": Action("remove rows from an offset on, and write them again", _rewind),
    "suspend": Action("stop all workers; their offsets remain", _suspend),
    "unsuspend": Action("start the workers of a suspended group", _unsuspend),
    "scale": Action("set the number of workers, where the operator does not decide it", _scale),
}


def register(subparsers: Any) -> None:
    """Adds the subcommands."""
    for name, action in ACTIONS.items():
        parser: argparse.ArgumentParser = subparsers.add_parser(
            name, help=action.help, description=f"{action.help[0].upper()}{action.help[1:]}."
        )
        add_group(parser)
        if name == "scale":
            parser.add_argument(
                "--replicas", required=True, type=whole_number(), metavar="N", help="how many workers"
            )
        if name == "promote":
            parser.add_argument("--full", action="store_true", help="go on after all steps that are left")
        if name == "rewind":
            parser.add_argument("starts", nargs="+", metavar="START", type=_start, help=REWIND_SYNTAX)
        parser.set_defaults(run_async=_run, action=action)


async def _run(args: argparse.Namespace) -> int:
    async with connected(args) as cluster:
        group = await cluster.group(args.group)
        done = await args.action.run(cluster, group, args)
    print(f"consumergroup.slackwater.dev/{args.group} {done}")
    return 0


def _rollout(group: Object) -> Object:
    return (group.get("status") or {}).get("rollout") or {}


async def _set_spec(cluster: Cluster, name: str, fields: dict[str, Any]) -> None:
    await cluster.kube.patch(API_VERSION, KIND, cluster.namespace, name, {"spec": fields})


def now_text() -> str:
    """The time as an annotation's value. Twice within a second would be once."""
    at = datetime.fromtimestamp(SYSTEM_CLOCK.wall_ms() / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _start(text: str) -> str:
    rewind_start_of(text)
    return text
