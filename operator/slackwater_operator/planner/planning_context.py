"""A plan in the making: the concerns of a turn add to it, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from slackwater_operator.model.statefulsets import Ordinals
from slackwater_operator.model.worker_status import Skip
from slackwater_operator.planner.actions import Action, EmitEvent
from slackwater_operator.planner.derived_state import DerivedState
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.planner.status_memory import DecisionRecord, RolloutMemory, remember
from slackwater_operator.policies.conditions import Trouble
from slackwater_operator.policies.scaling.decision import ScalingDecision

_SOON_MS = 1_000


@dataclass
class PlanningContext:
    """What a turn has decided so far.

    Attributes:
        snapshot: what it looks at.
        look: what that comes to.
        rollout: the rolling restart as the status will have it.
        gaps_ms: the measured restarts.
        desired: how many workers are wanted.
        decisions: the decision records.
        acts: what is to be done after the status is written.
        news: what people are told of what was observed, whatever becomes of `acts`.
        events: what people are told after `acts`.
        troubles: what needs a person.
        scaling: the scaling decision.
        step: the scaling step that begins, as (before, after).
        unplanned: why the group rebalanced during a restart, without that being to blame.
        needs_fresh: something would be done on a fresh snapshot.
        busy: something is under way.
        hindered: somebody else has the group.id, so that nothing is begun.
        gives_way: and keeps it, so that this one's workers are stopped.
        template_changes: the StatefulSet that is filled (or at rest) gets another template in this turn.
        takes_over: members are moved to pods of another StatefulSet, so that the template of the one at rest
            stays as it is.
        spans: by suffix the ordinals that each StatefulSet is to have; one that is not there yet is made.
        skipped: the last records that the workers have skipped.
        taken_over: how each takeover that is over by now went: `asked`, `forced`, `restarted`, or `stopped`.
        due_ms: when a turn is needed at the latest although nothing is under way; None: no such time.
    """

    snapshot: GroupSnapshot
    derived: DerivedState
    rollout: RolloutMemory
    gaps_ms: tuple[int, ...] = ()
    desired: int | None = None
    decisions: tuple[DecisionRecord, ...] = ()
    acts: list[Action] = field(default_factory=list)
    news: list[EmitEvent] = field(default_factory=list)
    events: list[EmitEvent] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    scaling: ScalingDecision | None = None
    step: tuple[int, int] | None = None
    unplanned: str = ""
    needs_fresh: bool = False
    busy: bool = False
    hindered: bool = False
    gives_way: bool = False
    template_changes: bool = False
    takes_over: bool = False
    spans: dict[str, Ordinals] = field(default_factory=dict)
    taken_over: list[str] = field(default_factory=list)
    skipped: tuple[Skip, ...] = ()
    due_ms: int | None = None

    @classmethod
    def of(cls, snapshot: GroupSnapshot, derived: DerivedState) -> PlanningContext:
        """An empty one."""
        memory = snapshot.memory
        return cls(
            snapshot,
            derived,
            rollout=memory.rollout,
            gaps_ms=memory.restart_gaps_ms,
            desired=memory.desired,
            decisions=memory.decisions,
            skipped=memory.skipped,
            spans={suffix: statefulset.span for suffix, statefulset in snapshot.sets.items()},
        )

    def change_rollout(self, **fields: Any) -> None:
        """Changes what the status says of the rolling restart; a new phase begins now."""
        phase = fields.get("phase", self.rollout.phase)
        if phase != self.rollout.phase:
            fields["since_ms"] = self.snapshot.now_ms
        self.rollout = replace(self.rollout, **fields)

    def decided(self, kind: str, action: str, reason: str) -> bool:
        """Keeps a decision, if it differs from the one before of its kind; whether it does."""
        before = self.decisions
        self.decisions = remember(before, self.snapshot.now_ms, kind, action, reason)
        return self.decisions is not before

    def tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Tells people what is done, once it is done."""
        self.events.append(EmitEvent(reason, message, warning))

    def report(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Tells people what was observed."""
        self.news.append(EmitEvent(reason, message, warning))

    def trouble(self, reason: str, message: str) -> None:
        """Notes what needs a person."""
        self.troubles.append(Trouble(reason, message))

    def wake(self, at_ms: int) -> None:
        """Asks for a turn at this time, whether or not something is under way."""
        self.due_ms = at_ms if self.due_ms is None else min(self.due_ms, at_ms)

    @property
    def wake_ms(self) -> int:
        """When to look again at the latest while something is under way."""
        return self.snapshot.now_ms + _SOON_MS
