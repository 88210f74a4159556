"""Detects workers whose node is lost: the pods stay as the kubelet left them, and Kubernetes does not
replace them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OVERDUE_MS = 30_000
"""How long after the end of its grace period a deleted pod may still be there."""


@dataclass(frozen=True)
class PlacedWorker:
    """A worker's pod on its node, as far as it tells of a lost node.

    Attributes:
        pod: the pod's name.
        node: the node's name.
        ready: whether the pod's Ready condition is True.
        node_lost: whether the node controller says that nobody hears of the node.
        silent: whether the worker does not answer.
        is_member: whether it is in Kafka's group; None: not known.
        deleted_ms: when the pod should be gone at the latest, None where it is not being deleted.
    """

    pod: str
    node: str
    ready: bool
    node_lost: bool
    silent: bool
    is_member: bool | None
    deleted_ms: int | None = None


def lost_workers(workers: Sequence[PlacedWorker], *, now_ms: int) -> tuple[PlacedWorker, ...]:
    """The workers whose node is lost, or may be.

    A worker that hangs, or that alone is cut off, is not among them: its kubelet sees the probes fail and
    marks its pod as not ready. Only with a kubelet that is gone does a worker not respond, leave the group,
    and have a ready pod.
    """
    return tuple(worker for worker in workers if worker.node and worker.silent and _lost(worker, now_ms))


def _lost(worker: PlacedWorker, now_ms: int) -> bool:
    overdue = worker.deleted_ms is not None and now_ms > worker.deleted_ms + OVERDUE_MS
    return worker.node_lost or overdue or (worker.ready and worker.is_member is False)


def advice(lost: Sequence[PlacedWorker]) -> str:
    """Which pods and which node, and what to do, in words; "" without lost workers."""
    if not lost:
        return ""
    node = lost[0].node
    pods = [worker.pod for worker in lost if worker.node == node]
    others = sorted({worker.node for worker in lost} - {node})
    also = f" (also {', '.join(others)})" if others else ""
    certain = any(worker.node_lost for worker in lost if worker.node == node)
    state = "is lost" if certain else "may be lost"
    names = " ".join(pods)
    return (
        f"{', '.join(pods)} on node {node} does not respond, and the node {state}{also}. Kubernetes "
        "replaces a StatefulSet's pod only when its node returns or is confirmed down. Restore the node; "
        f"or make sure that it is shut down, and then run: kubectl taint nodes {node} "
        f"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, or: kubectl delete pod {names} "
        "--grace-period=0 --force"
    )
