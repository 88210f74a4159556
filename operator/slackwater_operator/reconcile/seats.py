"""What the decision about a takeover looks at: the two sets, and of each member its pod in either."""

from __future__ import annotations

from slackwater_operator.build import names
from slackwater_operator.decide.policy import takeover_policy
from slackwater_operator.decide.takeover import SeatView, SetView, TakeoverInput, TakeoverPolicy
from slackwater_operator.decide.view import WorkerView
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.look import lag_of, worker_view
from slackwater_operator.reconcile.revision import Chosen
from slackwater_operator.reconcile.sets import Span, StatefulSetSeen, next_suffix
from slackwater_operator.reconcile.world import PodSeen, World


def two_sets(draft: Draft) -> tuple[SetView, SetView]:
    """The set that is left and the one that is filled, which may not be there yet."""
    world = draft.world
    filled, left = world.arrangement.filled, world.arrangement.left
    assert filled is not None
    if left is None:
        name = names.statefulset(world.name, next_suffix(filled.suffix))
        return _view(filled, draft.spans), SetView(name)
    return _view(left, draft.spans), _view(filled, draft.spans)


def _view(one: StatefulSetSeen, spans: dict[str, Span]) -> SetView:
    span = spans[one.suffix]
    return SetView(one.name, span.start if span.replicas else 0, span.replicas)


def goes_back(draft: Draft, old: SetView) -> bool:
    """Whether what is left has failed."""
    left, failed = draft.world.arrangement.left, draft.rollout.failed
    if left is None or failed is None:
        return False
    return left.name == old.name and left.template == failed.template


def policy_of(draft: Draft, chosen: Chosen) -> TakeoverPolicy:
    """spec.rollout; whether successors stand by is told by the template that they get."""
    world = draft.world
    assert world.group is not None
    there = world.statefulset
    template = chosen.template
    if template is None and there is not None:
        template = there.manifest["spec"].get("template") or {}
    return takeover_policy(
        world.group,
        paused=world.rollout_policy.paused,
        hands_over=names.can_hand_over(dict(template or {})),
    )


def seen_by(draft: Draft, old: SetView, new: SetView, *, back: bool) -> TakeoverInput:
    """What `decide_takeover` looks at; where a scaling step begins now, the members that there will be."""
    world = draft.world
    count = draft.step[1] if draft.step is not None else draft.look.replicas
    return TakeoverInput(
        old=old,
        new=new,
        seats=[_seat(world, ordinal, old, new) for ordinal in range(count)],
        group=draft.look.group,
        moving=draft.rollout.moving,
        gaps_ms=draft.gaps_ms,
        now_ms=world.now_ms,
        forced=world.measured.forced,
        sessions_since_ms=world.measured.sessions_since_ms,
        back=back,
        expected=draft.rollout.expected_rebalance or world.measured.topics_changed,
    )


def _seat(world: World, ordinal: int, old: SetView, new: SetView) -> SeatView:
    assert world.group is not None
    member = world.group.instance_id(ordinal)

    def worker(there: SetView) -> WorkerView | None:
        pod = world.pod_named(f"{there.name}-{ordinal}")
        return worker_view(world, member, pod, lag_of(world)) if pod is not None else None

    return SeatView(ordinal, member, worker(old), worker(new))


def updated(world: World) -> int:
    """How many members are served by a pod of the revision that is being filled in."""
    there = world.statefulset
    if there is None or world.arrangement.left is None or not there.update_revision:
        return 0
    serving = {one.member: world.pod(one.member) for one in world.pods}
    return sum(one is not None and one.revision == there.update_revision for one in serving.values())


def outdated(world: World, there: StatefulSetSeen) -> list[PodSeen]:
    """Pods of a set that are of another template than it has now."""
    if not there.update_revision:
        return []
    own = [one for one in world.pods if one.suffix == there.suffix and one.ordinal in there.span]
    return [one for one in own if one.revision != there.update_revision]
