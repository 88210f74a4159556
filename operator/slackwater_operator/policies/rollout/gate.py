"""When new workers that have warmed up may join the group.

Each newcomer costs a rebalance, but those who join together cost one. So they wait until all of a batch are
warm, and until nothing else moves the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_operator.model.group import GroupView, WorkerView


@dataclass(frozen=True)
class GateDecision:
    """Whom to let in.

    Attributes:
        open: workers to let in now, all at once; empty: nobody yet.
        reason: one sentence for people; "" when nobody waits.
    """

    open: tuple[str, ...]
    reason: str


def decide_gate(
    group: GroupView | None, workers: Sequence[WorkerView], *, now_ms: int, patience_ms: int
) -> GateDecision:
    """Decides whether the workers that wait at the gate may join.

    Args:
        group: the group, None when the broker did not say.
        workers: the workers that should be.
        now_ms: the time.
        patience_ms: how long a warm worker waits for the others of its batch.
    """
    waiting = sorted((one for one in workers if one.waiting_since_ms is not None), key=lambda one: one.name)
    if not waiting:
        return GateDecision((), "")
    names = tuple(one.name for one in waiting)
    listed = ", ".join(names)
    if group is None:
        return GateDecision((), f"waiting to join: {listed}; the broker did not report the group's state")
    if not (group.stable or group.memberless):
        return GateDecision((), f"waiting to join: {listed}; the group is {group.state}")
    late = sorted(one.name for one in workers if _on_its_way(one, group))
    since = min(one.waiting_since_ms for one in waiting if one.waiting_since_ms is not None)
    if late and now_ms - since < patience_ms:
        return GateDecision((), f"waiting to join: {listed}; {', '.join(late)} is still starting")
    if late:
        return GateDecision(names, f"{listed} may join without {', '.join(late)}: not warm after too long")
    return GateDecision(names, f"all started workers join at once: {listed}")


def _on_its_way(worker: WorkerView, group: GroupView) -> bool:
    """Whether it is a newcomer that will reach the gate but has not."""
    if worker.waiting_since_ms is not None or worker.name in group.instance_ids:
        return False
    return worker.phase in ("", "starting", "warming") or not worker.alive
