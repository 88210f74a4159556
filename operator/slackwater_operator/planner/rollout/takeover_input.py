"""What the decision about a takeover looks at: the two sets, and of each member its pod in either."""

from __future__ import annotations

from slackwater_operator.model import names
from slackwater_operator.model.group import WorkerView
from slackwater_operator.model.statefulsets import NO_ORDINALS, Ordinals, StatefulSetSnapshot, next_suffix
from slackwater_operator.planner.derived_state import lag_of, worker_view
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rollout.revision import Chosen
from slackwater_operator.planner.snapshot import GroupSnapshot, PodSnapshot
from slackwater_operator.policies.resource_policies import takeover_policy
from slackwater_operator.policies.takeover.decision import SeatView, SetView, TakeoverInput, TakeoverPolicy


def two_sets(context: PlanningContext) -> tuple[SetView, SetView]:
    """The set that is left and the one that is filled, which may not be there yet."""
    snapshot = context.snapshot
    filled, left = snapshot.arrangement.filled, snapshot.arrangement.left
    assert filled is not None
    if left is None:
        name = names.statefulset(snapshot.name, next_suffix(filled.suffix))
        return _view(filled, context.spans), SetView(name)
    return _view(left, context.spans), _view(filled, context.spans)


def _view(one: StatefulSetSnapshot, spans: dict[str, Ordinals]) -> SetView:
    span = spans[one.suffix]
    return SetView(one.name, span or NO_ORDINALS)


def goes_back(context: PlanningContext, old: SetView) -> bool:
    """Whether what is left has failed."""
    left, failed = context.snapshot.arrangement.left, context.rollout.failed
    if left is None or failed is None:
        return False
    return left.name == old.name and left.template == failed.template


def policy_of(context: PlanningContext, chosen: Chosen) -> TakeoverPolicy:
    """spec.rollout; whether successors stand by is told by the template that they get."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    there = snapshot.statefulset
    template = chosen.template
    if template is None and there is not None:
        template = there.manifest["spec"].get("template") or {}
    return takeover_policy(
        snapshot.group,
        paused=snapshot.rollout_policy.paused,
        hands_over=names.can_hand_over(dict(template or {})),
    )


def seen_by(context: PlanningContext, old: SetView, new: SetView, *, back: bool) -> TakeoverInput:
    """What `decide_takeover` looks at; where a scaling step begins now, the members that there will be."""
    snapshot = context.snapshot
    count = context.step[1] if context.step is not None else context.derived.replicas
    return TakeoverInput(
        old=old,
        new=new,
        seats=[_seat(snapshot, ordinal, old, new) for ordinal in range(count)],
        group=context.derived.group,
        moving=context.rollout.moving,
        gaps_ms=context.gaps_ms,
        now_ms=snapshot.now_ms,
        forced=snapshot.measured.forced,
        sessions_since_ms=snapshot.measured.sessions_since_ms,
        back=back,
        expected=context.rollout.expected_rebalance or snapshot.measured.topics_changed,
    )


def _seat(snapshot: GroupSnapshot, ordinal: int, old: SetView, new: SetView) -> SeatView:
    assert snapshot.group is not None
    member = snapshot.group.instance_id(ordinal)

    def worker(there: SetView) -> WorkerView | None:
        pod = snapshot.pod_named(f"{there.name}-{ordinal}")
        return worker_view(snapshot, member, pod, lag_of(snapshot)) if pod is not None else None

    return SeatView(ordinal, member, worker(old), worker(new))


def updated(snapshot: GroupSnapshot) -> int:
    """How many members are served by a pod of the revision that is being filled in."""
    there = snapshot.statefulset
    if there is None or snapshot.arrangement.left is None or not there.update_revision:
        return 0
    serving = {one.member: snapshot.pod(one.member) for one in snapshot.pods}
    return sum(one is not None and one.revision == there.update_revision for one in serving.values())


def outdated(snapshot: GroupSnapshot, there: StatefulSetSnapshot) -> list[PodSnapshot]:
    """Pods of a set that are of another template than it has now."""
    if not there.update_revision:
        return []
    own = [one for one in snapshot.pods if one.suffix == there.suffix and one.ordinal in there.span]
    return [one for one in own if one.revision != there.update_revision]
